"""The trainable models follow the serving rules, and a short run of the whole command lowers the loss."""

from __future__ import annotations

import json

import pytest
import torch
from click.testing import CliRunner

from eagle3.m3.config import TargetConfig
from eagle3.m3.training.__main__ import main
from eagle3.m3.training.continuations import continued, repetition
from eagle3.m3.training.evaluation import accepted_from, walk
from eagle3.m3.training.export import head_config, import_head, import_target, speculators_config, table
from eagle3.m3.training.fitting import Budget, Fitter
from eagle3.m3.training.head_model import HeadModel
from eagle3.m3.training.head_trainer import HeadRecipe, draft_vocabulary, new_head, unrolled_loss
from eagle3.m3.training.model import Lessons, Past, TargetModel
from eagle3.m3.training.selection import index_loss, own_pages, page_mass, page_scores, select_pages, token_mask
from eagle3.m3.weights import shapes
from msa.reference import page_scores as reference_scores
from msa.reference import select as reference_select

torch.set_num_threads(1)
CONFIG = TargetConfig.tiny()
RECIPE = HeadRecipe.tiny()


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def some_tokens(rows: int, length: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, 256, (rows, length), generator=torch.Generator().manual_seed(seed))


@pytest.fixture(scope="module")
def target() -> TargetModel:
    """Its norms are off one, so that logits differ enough for greedy text to vary."""
    model = TargetModel(CONFIG, seed=1).eval()
    model.selecting = True
    with torch.no_grad():
        model.embed_tokens.weight.mul_(50)
    return model


@pytest.fixture(scope="module")
def head(target: TargetModel) -> HeadModel:
    return new_head(CONFIG, target.state_dict(), torch.arange(0, 256, 2), RECIPE)


@pytest.mark.parametrize("rows", [45, 5, 1])
def test_selection_is_that_of_the_driver(rows):
    """The last rows of 45 tokens, pages of 8, top-k 3."""
    index_q, index_k = draw(1, 2, rows, 8), draw(1, 45, 8, seed=1)
    scores = page_scores(index_q, index_k, 8)
    pages = select_pages(scores, own_pages(rows, 45, 8, index_k.device), 3)
    mask = token_mask(pages, 45, 8)
    for row in range(rows):
        position = 45 - rows + row
        wanted = reference_scores(index_q[0, :, row], index_k[0, : position + 1], 8)
        torch.testing.assert_close(scores[0, :, row, : wanted.shape[1]], wanted.float())
        for index_head in range(2):
            chosen = reference_select(scores[0, index_head, row, : wanted.shape[1]].tolist(), 3, 0, 1)
            assert pages[0, index_head, row].nonzero().flatten().tolist() == chosen
            seen = [p for p in range(position + 1) if p // 8 in chosen]
            assert mask[0, index_head, row].nonzero().flatten().tolist() == seen


def test_page_mass_sums_to_one_and_the_index_branch_is_taught_towards_it():
    q, k = draw(2, 4, 30, 8), draw(2, 2, 30, 8, seed=1)
    mass = page_mass(q, k, 8, 8**-0.5)
    torch.testing.assert_close(mass.sum(-1), torch.ones(2, 2, 30))
    # By hand: the last row's share on page 1 of KV head 1, mean over query heads 2 and 3.
    shares = torch.stack([(k[0, 1] @ q[0, head, 29] * 8**-0.5).softmax(0)[8:16].sum() for head in (2, 3)]).mean()
    torch.testing.assert_close(mass[0, 1, 29, 1], shares)
    own = own_pages(30, 30, 8, q.device)
    hidden = torch.arange(4) > own
    scores = torch.zeros(2, 2, 30, 4, requires_grad=True)
    untaught = index_loss(scores.masked_fill(hidden, float("-inf")), mass, own, 1.0)
    untaught.backward()
    assert not bool(scores.grad.isnan().any()) and bool((scores.grad[..., :8, :] == 0).all())
    taught = index_loss(mass.clamp(min=1e-9).log().masked_fill(hidden, float("-inf")), mass, own, 1.0)
    assert taught < untaught


def test_what_teaches_the_index_branch_moves_nothing_else():
    model = TargetModel(CONFIG, seed=0)
    lessons = Lessons(1)
    model(some_tokens(2, 40), lessons=lessons)
    assert len(lessons.losses) == CONFIG.sparse_layers
    torch.stack(lessons.losses).sum().backward()
    moved = {name for name, parameter in model.named_parameters() if parameter.grad is not None}
    assert moved == {name for name in shapes(CONFIG) if "index" in name}


def test_a_model_that_grows_token_by_token_agrees_with_one_over_the_whole(target):
    tokens = some_tokens(2, 37)
    past = Past(37)
    with torch.no_grad():
        whole, _ = target(tokens)
        parts = [target(tokens[:, :20], past)[0], target(tokens[:, 20:30], past)[0]]
        parts += [target(tokens[:, i : i + 1], past)[0] for i in range(30, 37)]
    torch.testing.assert_close(torch.cat(parts, 1), whole, rtol=1e-4, atol=1e-4)


def test_continuations_are_the_most_likely_tokens(target):
    grown = continued(target, some_tokens(3, 12), 9, at_once=2)
    assert grown.shape == (3, 21) and torch.equal(grown[:, :12], some_tokens(3, 12))
    with torch.no_grad():
        choices = target(grown)[0].argmax(-1)
    assert torch.equal(choices[:, 11:-1], grown[:, 12:])
    assert grown[:, 12:].unique().numel() > 5


def test_an_unrolled_head_is_a_chain_of_single_drafts(target, head):
    """Row by row with a plain list of keys: the chain's own entries replace what the target's features gave."""
    tokens, length = some_tokens(1, 14), 3
    with torch.no_grad():
        _, captured = target(tokens)
        steps = head.unroll(captured, tokens, length)
        layer = head.midlayer
        rows = 14 - 1 - length

        def qkv(token, hidden, position):
            both = torch.cat((layer.input_layernorm(head.embedding[token]), layer.hidden_norm(hidden)))[None, None]
            at = torch.tensor([position])
            q = head.rotation(head._heads(layer.self_attn.q_proj(both)), at)[0, :, 0]
            k = head.rotation(head._heads(layer.self_attn.k_proj(both)), at)[0, :, 0]
            return q, k, head._heads(layer.self_attn.v_proj(both))[0, :, 0]

        fused = head.fc(captured[0])
        entries = [qkv(tokens[0, t + 1], fused[t], t)[1:] for t in range(rows)]
        for start in range(rows):
            seen, hidden = entries[:start], fused[start]
            for step in range(length):
                q, k, v = qkv(tokens[0, start + 1 + step], hidden, start + step)
                seen = [*seen, (k, v)]
                keys, values = (torch.stack([entry[part] for entry in seen], 1) for part in (0, 1))
                group = q.shape[0] // k.shape[0]
                out = [
                    (keys[h // group] @ q[h] * head.head_dim**-0.5).softmax(0) @ values[h // group]
                    for h in range(q.shape[0])
                ]
                hidden = hidden + layer.self_attn.o_proj(torch.cat(out))
                hidden = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
                wanted = head.lm_head(head.norm(hidden))
                torch.testing.assert_close(steps[step][0, start], wanted, rtol=1e-4, atol=1e-4)


def test_a_head_that_follows_its_own_choices_differs_where_they_are_wrong(target, head):
    tokens = some_tokens(1, 14)
    with torch.no_grad():
        _, captured = target(tokens)
        forced, own = head.unroll(captured, tokens, 3), head.unroll(captured, tokens, 3, own_tokens=True)
    assert torch.equal(forced[0], own[0])
    right = head.used[own[0].argmax(-1)] == tokens[:, 2:12]
    assert bool((~right).any()) and not torch.equal(forced[1][~right], own[1][~right])


def test_the_loss_asks_for_the_targets_choice_and_passes_over_what_the_draft_vocabulary_lacks():
    used = torch.tensor([1, 3, 4])
    wanted = torch.zeros(1, 5, 6)
    wanted[0, :, 3] = 4.0
    wanted[0, 2, 5] = 9.0  # not in the draft vocabulary
    good, bad = torch.tensor([0.0, 9.0, 0.0]), torch.tensor([9.0, 0.0, 0.0])
    steps = [torch.stack([good, bad, good]).unsqueeze(0), torch.stack([bad, good, good]).unsqueeze(0)]
    loss, agreement = unrolled_loss(steps, wanted, used, RECIPE)
    assert agreement.tolist() == pytest.approx([2 / 3, 2 / 3])
    worse, _ = unrolled_loss([torch.stack([good, bad, good]).unsqueeze(0)] * 2, wanted, used, RECIPE)
    assert loss < worse


def test_acceptance_counts_leading_drafts_that_are_the_text(target, head):
    tokens = continued(target, some_tokens(2, 10), 12)
    counts = accepted_from(target, head, tokens, 4)
    assert counts.shape == (2, 22 - 1 - 4) and int(counts.min()) >= 0 and int(counts.max()) <= 4
    with torch.no_grad():
        steps = head.unroll(target(tokens)[1], tokens, 4, own_tokens=True)
    for row in range(17):
        drafts = [int(head.used[step[0, row].argmax()]) for step in steps]
        truth = tokens[0, row + 2 : row + 6].tolist()
        expected = next((place for place in range(4) if drafts[place] != truth[place]), 4)
        assert int(counts[0, row]) == expected


def test_the_walk_begins_each_step_where_the_one_before_ended():
    counts = torch.tensor([[9, 9, 2, 0, 0, 1, 3, 0]])
    # From row 2: 2 drafts, then row 5 with 1, then row 7 with none.
    walked = walk(counts, 2, 3)
    assert (walked.verify_steps, walked.tokens) == (3, 6)
    assert walked.length == 2.0 and walked.rate == pytest.approx(1 / 3)
    assert walked.by_position == pytest.approx((2 / 3, 1 / 3, 0.0))
    # One draft at most: rows 2, 4, 5 and 7.
    assert walk(counts, 2, 1).tokens == 6 and walk(counts, 2, 1).verify_steps == 4


def test_the_draft_vocabulary_is_the_most_frequent_ascending():
    stream = torch.tensor([7, 7, 7, 2, 2, 9, 9, 1], dtype=torch.int16)
    assert draft_vocabulary(stream, 3, 12).tolist() == [2, 7, 9]


def test_repetition_counts_runs_seen_before_in_the_same_row():
    assert repetition(torch.arange(40).view(1, 40)) == 0.0
    assert repetition(torch.ones(1, 20, dtype=torch.long)) == pytest.approx(4 / 5)


def test_a_budget_ends_by_steps_or_by_seconds_and_the_rate_ends_low():
    budget = Budget(steps=3, seconds=1e9)
    fitter = Fitter(torch.nn.Linear(2, 2), 1.0, budget)
    rates = []
    while budget.advance():
        rates.append(fitter.rate)
    assert len(rates) == 3 and rates[-1] == pytest.approx(0.03) and rates[0] > rates[-1]
    assert budget.summary()["ended_by"] == "steps"
    short = Budget(steps=10**9, seconds=1e-9)
    assert short.advance() is False or short.advance() is False
    assert short.summary()["ended_by"] == "seconds"


def test_the_default_pair_fits_into_twelve_megabytes():
    config, recipe = TargetConfig(), HeadRecipe()
    weights = {name: torch.zeros(shape) for name, shape in shapes(config).items()}
    head = new_head(config, weights, torch.arange(recipe.draft_vocab), recipe)
    count = sum(torch.Size(shape).numel() for shape in shapes(config).values())
    count += sum(parameter.numel() for parameter in head.parameters())
    assert 2 * count < 11.95e6


def test_the_head_configs_name_the_same_layers_in_their_own_conventions():
    plain, speculators = head_config(CONFIG, RECIPE), speculators_config(CONFIG, RECIPE)
    assert plain["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [1, 3, 4]
    assert speculators["eagle_aux_hidden_state_layer_ids"] == [2, 4, 5]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """One run of the whole command on a library of three modules, one of them held out."""
    folder = tmp_path_factory.mktemp("training")
    lines = [f"def function_{i}(argument):\n    return argument + {i}\n\n\n" for i in range(400)]
    for name in ("argparse.py", "json.py", "shutil.py"):
        (folder / "lib").mkdir(exist_ok=True)
        (folder / "lib" / name).write_text("".join(lines))
    arguments = ["--tiny", "--out", str(folder / "pair"), "--text", str(folder / "lib"), "--device", "cpu"]
    arguments += ["--target-steps", "25", "--head-steps", "15", "--target-seconds", "1000", "--head-seconds", "1000"]
    refused = CliRunner().invoke(main, arguments)
    done = CliRunner().invoke(main, [*arguments, "--other-text"])
    assert done.exit_code == 0, done.output
    return folder / "pair", refused, done.output


def test_other_text_is_refused_unless_it_is_asked_for(run):
    _, refused, output = run
    assert refused.exit_code == 1 and "argparse.py has other contents" in refused.output
    assert "argparse.py has other contents" in output


def test_a_short_run_lowers_both_losses(run):
    folder, _, _ = run
    log = json.loads((folder / "log.json").read_text())
    target, head = log["target"]["curve"], log["head"]["curve"]
    assert target[-1]["bits_per_byte"] < target[0]["bits_per_byte"] - 2
    assert head[-1]["loss"] < head[0]["loss"] - 0.3
    assert (log["target"]["steps"], log["target"]["ended_by"]) == (25, "steps")
    assert 1 < log["target"]["selecting_from_step"] < 10
    assert log["bits_per_byte"]["held_out"] < 7 and len(log["text"]["differing"]) > 600


def test_a_run_leaves_the_files_of_a_pair(run):
    folder, _, output = run
    log = json.loads((folder / "log.json").read_text())
    assert set(log["files"]) == {"target/model.safetensors", "head/model.safetensors"}
    assert [row["draft_len"] for row in log["drafting"]["acceptance"]] == [1, 2, 3, 4, 5]
    written = (folder / "table.md").read_text()
    assert written.splitlines() == table(log) and all(line in output for line in table(log))
    for row in log["drafting"]["acceptance"]:
        assert row["acceptance_rate"] == pytest.approx((row["acceptance_length"] - 1) / row["draft_len"], abs=1e-3)
    model = import_target(folder, torch.device("cpu"))
    assert model.selecting and model.config == CONFIG
    assert import_head(folder, model, RECIPE).used.shape == (128,)


def test_stages_can_be_run_one_by_one(run):
    folder, _, _ = run
    before = json.loads((folder / "log.json").read_text())
    arguments = [
        "--tiny",
        "--out",
        str(folder),
        "--text",
        str(folder.parent / "lib"),
        "--other-text",
        "--device",
        "cpu",
    ]
    done = CliRunner().invoke(main, [*arguments, "--stages", "evaluate"])
    assert done.exit_code == 0 and "target  100%" not in done.output
    after = json.loads((folder / "log.json").read_text())
    assert after["drafting"] == before["drafting"] and after["target"] == before["target"]
    wrong = CliRunner().invoke(main, [*arguments, "--stages", "heads"])
    assert wrong.exit_code == 2 and "no stages heads; there are target, head, evaluate" in wrong.output


def test_the_index_branch_learns_which_pages_a_peaked_attention_reads():
    model = TargetModel(CONFIG, seed=0)
    with torch.no_grad():
        model.embed_tokens.weight.mul_(50)
        for name, parameter in model.named_parameters():
            if name.endswith(("self_attn.q_norm.weight", "self_attn.k_norm.weight")):
                parameter.fill_(2.0)
    branch = [parameter for name, parameter in model.named_parameters() if "index" in name]
    optimiser = torch.optim.AdamW(branch, lr=2e-2)
    losses = []
    for step in range(25):
        lessons = Lessons(4)
        model(some_tokens(4, 64, seed=step) % 32, lessons=lessons)
        loss = torch.stack(lessons.losses).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert sum(losses[-5:]) / 5 < losses[0] - 0.05


def test_the_models_compute_under_autocast(target, head):
    tokens = some_tokens(2, 24)
    with torch.no_grad():
        wanted, captured = target(tokens)
        drafts = head.unroll(captured, tokens, 2)
        with torch.autocast("cpu", torch.bfloat16):
            logits, captured = target(tokens, Past(24), Lessons(1))
            rounded = head.unroll(captured, tokens, 2)
    assert logits.dtype is rounded[1].dtype is torch.float32
    for exact, close in ((drafts[0], rounded[0]), (drafts[1], rounded[1])):
        assert float((exact - close).abs().mean()) < 0.2 * float(exact.std())
    assert not torch.equal(logits, wanted)
