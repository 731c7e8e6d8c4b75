"""Tokens per second of the speculative loop: eager steps against graphs, for draft lengths and batches.

    python benchmarks/eagle3_loop.py --pair FOLDER [--prompts 100] [--quick] [--json FILE]
    python benchmarks/eagle3_loop.py --m3-width [--quick] [--json FILE]
    python benchmarks/eagle3_loop.py --device cpu --quick

The first prints a table over L and batch on held-out library text. With ``--prompts N`` it also generates behind N held-out
prompts and compares: graphs with eager steps (tokens and kept drafts), and every L with L = 0 (tokens); what differs makes
the exit code 1. The second takes random weights of MiniMax-M3's width and L = 3, and forces 0, 1, 2 and 3 drafts to be
kept, because random drafts are kept by chance only. The third takes a tiny untrained pair and runs eagerly, to see that
everything works. Speed counts from the step on in which the last prompt was read; each is the median of several runs.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from eagle3.accept import Acceptor, accept_greedy
from eagle3.acceptance import Acceptance
from eagle3.checkpoint import TargetTables, load_head
from eagle3.config import HeadConfig
from eagle3.engine import Engine
from eagle3.head import DraftHead
from eagle3.m3.config import TargetConfig
from eagle3.m3.pair_files import Pair, load_pair
from eagle3.m3.successor import successor_pair
from eagle3.m3.target import Target
from eagle3.m3.training.text import load_text, tiled
from eagle3.m3.weights import random_weights
from eagle3.ops import Operators
from eagle3.pace import Pace
from eagle3.published import random_tensors

MODES = ("eager", "graphs")
FORCED_DRAFT_LEN = 3
CHECK_BATCH = 8


class Forced:
    """Keeps a fixed number of drafts, whatever the target says of them; an `eagle3.accept.Acceptor`.

    The step calls it in place of `accept_greedy`, inside the captured region: everything else of the step is what it
    always is, and the text is junk.

    Args:
        drafts: kept in every row, 0..L.
    """

    def __init__(self, drafts: int) -> None:
        self.drafts = drafts

    def __call__(
        self,
        draft: torch.Tensor,
        target: torch.Tensor,
        kv_lens: torch.Tensor,
        out_tokens: torch.Tensor,
        out_count: torch.Tensor,
    ) -> None:
        """As `accept_greedy`, and then ``out_count`` is overridden; padding rows stay 0."""
        accept_greedy(draft, target, kv_lens, out_tokens, out_count)
        torch.mul(kv_lens.sign(), 1 + self.drafts, out=out_count)


@dataclass(frozen=True)
class Setting:
    """What does not change within a table.

    Args:
        pair: target and head.
        prompts: tokens; a batch takes the first ones.
        tokens: to generate behind each.
        modes: of "eager" and "graphs".
        kernels: of the attention.
        repeats: runs that each speed is the median of.
    """

    pair: Pair
    prompts: list[list[int]]
    tokens: int
    modes: Sequence[str]
    kernels: str
    repeats: int = 3

    def engine(self, mode: str, batch: int, draft_len: int, accept: Acceptor = accept_greedy) -> Engine:
        """A new engine for these prompts; the memory of those that nobody holds is free."""
        gc.collect()
        return Engine(
            self.pair.target,
            self.pair.head,
            draft_len=draft_len,
            max_batch=batch,
            max_seq_len=max(map(len, self.prompts)) + self.tokens,
            graphs=mode == "graphs",
            kernels=self.kernels,
            accept=accept,
        )


def measure(
    setting: Setting, batch: int, draft_len: int, accept: Acceptor = accept_greedy, **more: object
) -> dict[str, Any]:
    """One row of the table: speeds by mode, their ratio, AR and AL, which must be those of all modes."""
    row: dict[str, Any] = {"batch": batch, "draft_len": draft_len, **more}
    prompts = setting.prompts[:batch]
    kept: list[tuple[int, ...]] = []
    for mode in setting.modes:
        engine = setting.engine(mode, batch, draft_len, accept)
        # Kernels are compiled at their first launch.
        engine.generate(prompts, min(setting.tokens, 2 + draft_len))
        speeds = []
        for _ in range(setting.repeats):
            pace = Pace()
            generated = engine.generate(prompts, setting.tokens, progress=pace)
            speeds.append(pace.tokens_per_second)
        row[f"{mode}_tokens_per_second"] = round(statistics.median(speeds), 1)
        row["steps"] = generated.steps
        row |= rates(generated.acceptance)
        kept.append((generated.acceptance.steps, *generated.acceptance.kept))
        del engine
    if len(setting.modes) == 2:
        row["ratio"] = round(row["graphs_tokens_per_second"] / row["eager_tokens_per_second"], 2)
    row["modes_keep_the_same"] = len(set(kept)) == 1
    return row


def rates(acceptance: Acceptance) -> dict[str, float | None]:
    """AR and AL; AR is None where nothing was drafted."""
    return {
        "ar": round(acceptance.rate, 4) if acceptance.drafted else None,
        "al": round(acceptance.length, 4) if acceptance.steps else None,
    }


def check(setting: Setting, draft_lens: Iterable[int]) -> list[dict[str, Any]]:
    """One entry per L: whether graphs and eager steps agree in tokens and kept drafts, and with L = 0 in tokens."""
    plain = setting.engine("eager", CHECK_BATCH, 0).generate(setting.prompts, setting.tokens).tokens
    entries = []
    for draft_len in draft_lens:
        runs = [
            setting.engine(mode, CHECK_BATCH, draft_len).generate(setting.prompts, setting.tokens)
            for mode in setting.modes
        ]
        first = runs[0]
        entries.append(
            {
                "draft_len": draft_len,
                "prompts": len(setting.prompts),
                "tokens": sum(map(len, first.tokens)),
                "prompts_unlike_plain": differing(first.tokens, plain),
                "prompts_unlike_eager": max(differing(run.tokens, first.tokens) for run in runs),
                "kept_unlike_eager": any(
                    (run.acceptance.steps, run.acceptance.kept) != (first.acceptance.steps, first.acceptance.kept)
                    for run in runs
                ),
                "graphs_replayed": runs[-1].replayed,
                **rates(first.acceptance),
            }
        )
        print(check_line(entries[-1]), flush=True)
    return entries


def differing(some: list[list[int]], others: list[list[int]]) -> int:
    """How many prompts have another text."""
    return sum(one != other for one, other in zip(some, others, strict=True))


def failed(results: dict[str, list[dict[str, Any]]]) -> bool:
    """Whether anything differs that must be equal."""
    return any(
        entry["prompts_unlike_plain"] or entry["prompts_unlike_eager"] or entry["kept_unlike_eager"]
        for entry in results["check"]
    ) or not all(row["modes_keep_the_same"] for row in results["table"])


def line(row: dict[str, Any]) -> str:
    """A row of the table in words."""
    speeds = ", ".join(
        f"{mode} {row[f'{mode}_tokens_per_second']:>8.1f}" for mode in MODES if f"{mode}_tokens_per_second" in row
    )
    ratio = f", ratio {row['ratio']:.2f}" if "ratio" in row else ""
    drafts = "" if row["ar"] is None else f", AR {row['ar']:.3f}, AL {row['al']:.3f}"
    forced = f", {row['forced']} drafts kept by force" if "forced" in row else ""
    differ = "" if row["modes_keep_the_same"] else ", GRAPHS KEEP OTHER DRAFTS THAN EAGER STEPS"
    return f"batch {row['batch']}, L {row['draft_len']}: tokens/s {speeds}{ratio}{drafts}{forced}{differ}"


def check_line(entry: dict[str, Any]) -> str:
    """An entry of the check in words."""
    drafts = "" if entry["ar"] is None else f"; AR {entry['ar']:.4f}, AL {entry['al']:.4f}"
    kept = "other" if entry["kept_unlike_eager"] else "the same"
    return (
        f"check L {entry['draft_len']}: {entry['prompts']} prompts, {entry['tokens']} tokens; unlike L = 0 "
        f"{entry['prompts_unlike_plain']}, unlike eager {entry['prompts_unlike_eager']}, {kept} drafts kept{drafts}"
    )


def m3_pair(config: TargetConfig, kernels: str, device: str, dtype: torch.dtype) -> Pair:
    """Random weights; the head shares the target's tables, as heads for MiniMax-M3 do."""
    operators = Operators(kernels)
    target = Target(config, random_weights(config, 0, device, dtype), operators)
    of_head = HeadConfig(
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_attention_heads=config.q_heads,
        num_key_value_heads=config.kv_heads,
        head_dim=config.head_dim,
        vocab_size=config.vocab_size,
        draft_vocab_size=config.vocab_size,
        target_hidden_size=config.hidden_size,
        max_position_embeddings=config.max_seq_len,
        capture_inputs=config.capture_layers,
        dtype=dtype,
    )
    tables = TargetTables(target.embed, target.lm_head)
    loaded = load_head(random_tensors(of_head, 1, tables=False), of_head, target=tables, device=device)
    return Pair(target, DraftHead(of_head, loaded.weights, loaded.embed, loaded.lm_head, operators))


def held_out(count: int, length: int, source: Path | None) -> list[list[int]]:
    """Prompts of held-out modules of this Python's library, or of an archive of another."""
    stream = load_text(source, allow_other=True).held_out
    return [prompt.tolist() for prompt in tiled(stream, length, count)]


def random_prompts(count: int, length: int, vocab_size: int) -> list[list[int]]:
    """Prompts without meaning."""
    draw = torch.Generator().manual_seed(0)
    return torch.randint(0, min(vocab_size, 256), (count, length), generator=draw).tolist()


def run(given: argparse.Namespace) -> dict[str, Any]:
    """All that was asked for."""
    device, modes = given.device, MODES if given.device == "cuda" else MODES[:1]
    kernels, dtype = ("triton", torch.bfloat16) if device == "cuda" else ("portable", torch.float32)
    tiny = replace(TargetConfig.tiny(), max_seq_len=TargetConfig.max_seq_len)
    if given.pair is not None:
        pair, name = load_pair(given.pair, kernels, device, dtype), str(given.pair)
    elif given.m3_width:
        # Without a GPU the same steps at a size that ends in seconds.
        config = TargetConfig.m3_width() if device == "cuda" else tiny
        pair, name = m3_pair(config, kernels, device, dtype), f"random weights of width {config.hidden_size}"
    else:
        pair, name = successor_pair(tiny, device, kernels=kernels, dtype=dtype), "untrained and tiny"
    count = max(*given.batches, given.prompts)
    if given.pair is not None:
        prompts = held_out(count, given.prompt_tokens, given.text)
    else:
        prompts = random_prompts(count, given.prompt_tokens, pair.target.config.vocab_size)
    setting = Setting(pair, prompts, given.tokens, modes, kernels, 1 if given.quick else 3)
    table: list[dict[str, Any]] = []
    for batch in given.batches:
        if given.m3_width:
            rows = [(0, accept_greedy, {})]
            rows += [(FORCED_DRAFT_LEN, Forced(kept), {"forced": kept}) for kept in range(1 + FORCED_DRAFT_LEN)]
        else:
            rows = [(draft_len, accept_greedy, {}) for draft_len in given.draft_lens]
        for draft_len, accept, more in rows:
            table.append(measure(setting, batch, draft_len, accept, **more))
            print(line(table[-1]), flush=True)
    results: dict[str, Any] = {"pair": name, "prompt_tokens": given.prompt_tokens, "tokens": given.tokens}
    results |= {"target": asdict(pair.target.config), "table": table, "check": []}
    if given.prompts:
        setting = Setting(pair, prompts[: given.prompts], given.check_tokens, modes, kernels)
        results["check"] = check(setting, given.draft_lens)
    return results


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """What was asked for; ``--quick`` lowers what was not given."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--pair", type=Path, help="folder of a trained pair")
    which.add_argument(
        "--m3-width", action="store_true", help="random weights of MiniMax-M3's width, forced acceptance"
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--draft-lens", type=int, nargs="+")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--prompt-tokens", type=int)
    parser.add_argument("--tokens", type=int, help="generated behind each prompt for the table")
    parser.add_argument("--prompts", type=int, default=0, help="prompts of the equality check")
    parser.add_argument("--check-tokens", type=int, default=64, help="generated behind each of them")
    parser.add_argument("--text", type=Path, help="library to take held-out prompts from; this Python's by default")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args(arguments)
    given.draft_lens = given.draft_lens or ([0, 3] if given.quick else list(range(6)))
    given.tokens = given.tokens or (32 if given.quick else 128)
    given.prompt_tokens = given.prompt_tokens or (32 if given.quick else 256)
    if given.prompts and given.m3_width:
        parser.error("--prompts compares texts, and forced acceptance gives none; leave --m3-width out")
    if given.device == "cuda" and not torch.cuda.is_available():
        raise SystemExit("graphs are measured on a GPU, and torch sees none here; --device cpu runs eager steps")
    return given


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; store it if asked to; 1 if something differs that must be equal."""
    given = parse(arguments)
    with torch.no_grad():
        results = run(given)
    if given.json:
        where = torch.cuda.get_device_name() if given.device == "cuda" else "cpu"
        given.json.write_text(json.dumps({"device": where, "torch": torch.__version__, **results}, indent=1) + "\n")
    return int(failed(results))


if __name__ == "__main__":
    raise SystemExit(main())
