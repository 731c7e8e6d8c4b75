"""The head computes what the paper says, in any company the same bits, and captured what it computes in eager."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import pytest
import torch

from eagle3.checkpoint import load_head
from eagle3.config import HeadConfig
from eagle3.errors import ShapeMismatch
from eagle3.head import DraftHead, paired_tokens
from eagle3.ops import Operators
from eagle3.published import random_tensors
from graphcheck import Buffers, Case, Component, case, contents, integers, lengths
from graphcheck.backend.emulator import EmulatorBackend
from graphcheck.errors import CaptureRefused
from graphcheck.finding import Severity
from msa import DecodeDriver, PagedCache
from msa.bench import small

torch.set_num_threads(1)
GEOMETRY = small()  # heads 8/2, D 32, pages of 16 tokens
CONFIG = HeadConfig(
    hidden_size=64,
    intermediate_size=96,
    num_attention_heads=8,
    num_key_value_heads=2,
    head_dim=32,
    vocab_size=60,
    draft_vocab_size=24,
    target_hidden_size=48,
    max_position_embeddings=160,
    dtype=torch.float32,
)
VARIANTS: dict[str, dict[str, Any]] = {
    "published": {},
    "fc_norm": {"fc_norm": True, "fc_bias": True, "norm_before_residual": True},
    "norm_before_fc": {"norm_before_fc": True, "norm_output": True},
    "one capture, no last norm": {"num_captures": 1, "final_norm": False, "rotary_dim": 16},
    "scaled rotation": {"rope_scaling": {"rope_type": "linear", "factor": 4.0}, "rope_theta": 500.0},
}


def build(kernels: str = "portable", device: torch.device | str = "cpu", **change: Any):
    config = dataclasses.replace(CONFIG, **change)
    tensors = random_tensors(config, 7)
    head = load_head(tensors, config, device=device)
    return DraftHead(config, head.weights, head.embed, head.lm_head, Operators(kernels)), tensors


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def causal(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Attention of one request's rows, in float64."""
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1).double(), v.repeat_interleave(group, 1).double()
    logits = torch.einsum("thd,shd->hts", q.double(), k) * q.shape[2] ** -0.5
    weights = logits.masked_fill(torch.ones(q.shape[0], q.shape[0]).triu(1).bool(), float("-inf")).softmax(2)
    return torch.einsum("hts,shd->thd", weights, v).to(q.dtype)


class Written:
    """The formulas of the paper and of public heads, in float64, from the published tensors."""

    def __init__(self, config: HeadConfig, tensors: Mapping[str, torch.Tensor]) -> None:
        self.config = config
        self.held = {name: tensor.double() for name, tensor in tensors.items()}

    def norm(self, x, name):
        return x / (x.pow(2).mean(-1, keepdim=True) + self.config.rms_norm_eps).sqrt() * self.held[f"{name}.weight"]

    def rotated(self, x, positions):
        dims = self.config.rotary_dim
        scaling = self.config.rope_scaling or {"factor": 1.0}
        out = x.clone()
        for row, position in enumerate(positions.tolist()):
            for pair in range(dims // 2):
                angle = torch.tensor(position / scaling["factor"], dtype=torch.float64)
                angle = angle * self.config.rope_theta ** (-2 * pair / dims)
                left, right = x[row, :, pair], x[row, :, pair + dims // 2]
                out[row, :, pair] = left * angle.cos() - right * angle.sin()
                out[row, :, pair + dims // 2] = right * angle.cos() + left * angle.sin()
        return out

    def fuse(self, captured):
        if self.config.fc_norm:
            parts = captured.double().split(self.config.target_hidden_size, 1)
            captured = torch.cat([self.norm(part, f"fc_norm.{n}") for n, part in enumerate(parts)], 1)
        if self.config.norm_before_fc:
            captured = self.norm(captured.double(), "input_norm")
        return captured.double() @ self.held["fc.weight"].T + self.held.get("fc.bias", 0.0)

    def layer(self, tokens, hidden, positions):
        def project(x, name):
            return x @ self.held[f"midlayer.{name}_proj.weight"].T

        dim, rows = self.config.head_dim, tokens.shape[0]
        embedded = self.norm(self.held["embed_tokens.weight"][tokens], "midlayer.input_layernorm")
        normed = self.norm(hidden.double(), "midlayer.hidden_norm")
        x = torch.cat([embedded, normed], 1)
        q, k, v = (project(x, f"self_attn.{name}").view(rows, -1, dim) for name in "qkv")
        attended = causal(self.rotated(q, positions), self.rotated(k, positions), v)
        residual = normed if self.config.norm_before_residual else hidden.double()
        middle = residual + project(attended.reshape(rows, -1), "self_attn.o")
        x = self.norm(middle, "midlayer.post_attention_layernorm")
        out = middle + project(torch.nn.functional.silu(project(x, "mlp.gate")) * project(x, "mlp.up"), "mlp.down")
        return self.norm(out, "norm") if self.config.norm_output else out

    def logits(self, hidden):
        plain = self.config.norm_output or not self.config.final_norm
        return (hidden.double() if plain else self.norm(hidden.double(), "norm")) @ self.held["lm_head.weight"].T


@pytest.mark.parametrize("kernels", ["portable", "plain"])
@pytest.mark.parametrize("change", VARIANTS.values(), ids=VARIANTS)
def test_the_head_computes_the_published_formulas(change, kernels):
    head, tensors = build(kernels, **change)
    written = Written(head.config, tensors)
    captured = random(9, head.config.num_captures * 48) * 3
    tokens, positions = torch.randint(0, 60, (9,), generator=torch.Generator().manual_seed(1)), torch.arange(40, 49)
    fused = head.fuse(captured)
    torch.testing.assert_close(fused.double(), written.fuse(captured), rtol=0, atol=2e-5)
    # Two steps: what the first hands on is what the second takes.
    hidden, expected = fused, written.fuse(captured)
    for step in range(2):
        hidden = head.layer(tokens, hidden, positions + step, causal)
        expected = written.layer(tokens, expected, positions + step)
        torch.testing.assert_close(hidden.double(), expected, rtol=0, atol=1e-4)
    logits = head.logits(hidden)
    assert logits.dtype is torch.float32
    torch.testing.assert_close(logits.double(), written.logits(expected), rtol=0, atol=1e-4)


def test_draft_ids_lead_to_the_tokens_they_stand_for():
    head, tensors = build()
    used = (tensors["d2t"] + torch.arange(24)).tolist()
    ids = torch.tensor([0, 23, 5, 5], dtype=torch.int32)
    assert head.to_target(ids).tolist() == [used[0], used[23], used[5], used[5]]
    assert head.to_target(ids).dtype is torch.int32
    probabilities = random(3, 24).softmax(1)
    full = head.spread(probabilities)
    assert full.shape == (3, 60) and torch.equal(full[:, used], probabilities)
    torch.testing.assert_close(full.sum(1), torch.ones(3))
    same, _ = build(draft_vocab_size=60)
    assert torch.equal(same.to_target(ids), ids) and same.spread(probabilities) is probabilities


def test_prompts_are_shifted_left_and_end_with_the_sampled_token():
    tokens = torch.tensor([10, 11, 12, 20, 30, 31])
    paired = paired_tokens(tokens, torch.tensor([2, 3, 5]), torch.tensor([91, 92, 93]))
    assert paired.tolist() == [11, 12, 91, 92, 31, 93]


class Paged:
    """One request of the head on msa's driver: ``rows`` tokens a step."""

    def __init__(self, head: DraftHead) -> None:
        self.head = head
        self.cache = PagedCache.allocate(GEOMETRY, "cpu", sparse=False)

    def step(self, tokens: torch.Tensor, hidden: torch.Tensor, first: int, company: int = 0) -> torch.Tensor:
        """Rows at positions ``first`` and on, with ``company`` other requests in the batch, in front."""
        rows = tokens.shape[0]
        driver = DecodeDriver(GEOMETRY, company + 1, rows, "cpu")
        others = [list(range(10 * (n + 1), 10 * (n + 2))) for n in range(company)]
        driver.stage([rows + 3 + n for n in range(company)] + [first + rows], [*others, list(range(10))])
        driver.plan()
        extra = company * rows
        out = self.head.layer(
            torch.cat([torch.arange(extra) % 60, tokens]),
            torch.cat([random(extra, 64, seed=9), hidden]),
            torch.cat([torch.arange(extra), torch.arange(first, first + rows)]),
            lambda q, k, v: driver.dense_layer(q, k, v, self.cache),
        )
        return out[extra:]


def test_bits_do_not_depend_on_how_many_tokens_and_requests_share_a_step():
    head, _ = build()
    tokens, hidden = torch.arange(24) % 60, random(24, 64)
    alone, together = Paged(head), Paged(head)
    single = torch.cat([alone.step(tokens[t : t + 1], hidden[t : t + 1], t) for t in range(24)])
    sizes = [4, 2, 5, 1, 3, 6, 3]
    joint, first = [], 0
    for number, rows in enumerate(sizes):
        part = slice(first, first + rows)
        joint.append(together.step(tokens[part], hidden[part], first, company=number % 4))
        first += rows
    assert first == 24
    assert torch.equal(torch.cat(joint).view(torch.int32), single.view(torch.int32))
    assert torch.equal(head.logits(torch.cat(joint)), torch.cat([head.logits(row[None]) for row in single]))
    for written in (lambda cache: cache.k[0], lambda cache: cache.v[1, :, :8]):
        assert torch.equal(written(together.cache), written(alone.cache))


class HeadStep(Component):
    """One step of the head for four requests of three tokens, from captured states to draft ids."""

    mutates = ("k", "v")
    scratch = ("qo_offsets", "extents", "valid_pages", "slots", "out")
    allocation = 64 << 20
    rows = 12

    def allocate(self, device: torch.device) -> Buffers:
        self.head, _ = build(device=device)
        self.driver = DecodeDriver(GEOMETRY, 4, 3, device)
        cache = PagedCache.allocate(GEOMETRY, device, sparse=False)
        cache.k.zero_(), cache.v.zero_()
        return Buffers(
            tokens=torch.zeros(self.rows, dtype=torch.int64, device=device),
            captured=torch.zeros(self.rows, 144, device=device),
            positions=torch.zeros(self.rows, dtype=torch.int32, device=device),
            kv_lens=self.driver.kv_lens,
            table=self.driver.page_table,
            k=cache.k,
            v=cache.v,
            **{name: self.driver.tensors()[name] for name in self.scratch},
        )

    def cases(self) -> Any:
        return case(lens=lengths(rows=4, low=3, high=100, page=16), x=contents(("normal",)), token=integers(0, 59))

    def stage(self, buffers: Buffers, case: Case) -> None:
        case.x.fill(buffers.captured)
        buffers.tokens.copy_((torch.arange(self.rows) * 7 + int(case.token)) % 60)
        lens = case.lens.tolist()
        self.driver.stage(lens, [list(range(10 * b, 10 * b + 10)) for b in range(4)])
        buffers.positions.copy_(torch.tensor([n - 3 + t for n in lens for t in range(3)], dtype=torch.int32))

    def run(self, buffers: Buffers) -> Mapping[str, torch.Tensor]:
        self.driver.plan()
        cache = PagedCache(buffers.k, buffers.v)
        hidden = self.head.layer(
            buffers.tokens,
            self.head.fuse(buffers.captured),
            buffers.positions,
            lambda q, k, v: self.driver.dense_layer(q, k, v, cache),
        )
        ids = self.head.to_target(self.head.logits(hidden).argmax(1))
        return {"hidden": hidden, "ids": ids}

    def written(self, buffers: Buffers, case: Case) -> Mapping[str, Any]:
        mask = torch.zeros(buffers.k.shape, dtype=torch.bool, device=buffers.k.device)
        lens = case.lens.tolist()
        for request, length in enumerate(lens):
            for position in range(length - 3, length):
                mask[10 * request + position // 16, :, position % 16] = True
        return {"k": mask, "v": mask}


def test_a_captured_step_equals_the_eager_one(graphcheck):
    report = graphcheck(HeadStep, backend="emulator", examples=3, seed=1)
    assert [finding for finding in report.findings if finding.severity is not Severity.NOTE] == []


def test_neither_a_head_nor_its_weights_are_made_inside_a_capture():
    head, tensors = build()
    emulator = EmulatorBackend()
    makers = (
        lambda: DraftHead(head.config, head.weights, head.embed, head.lm_head, head.operators),
        lambda: load_head(tensors, head.config),
    )
    for make in makers:
        with emulator.active(), pytest.raises(CaptureRefused):
            emulator.record(lambda make=make: make() and {}, emulator.pool())


def test_tables_of_another_vocabulary_are_refused():
    head, _ = build()
    with pytest.raises(ShapeMismatch, match=r"lm_head \(60, 64\), expected .* \(24, 64\)"):
        DraftHead(head.config, head.weights, head.embed, head.embed, head.operators)
