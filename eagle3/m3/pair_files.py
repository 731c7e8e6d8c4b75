"""A target and its draft head: read from the folder that the training exports, and checked to belong together."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import torch

from eagle3.checkpoint import TargetTables, load_head
from eagle3.errors import CheckpointFormat, CheckpointMismatch
from eagle3.head import DraftHead
from eagle3.m3.target import Target
from eagle3.m3.weights import CONFIG_FILE, WEIGHTS_FILE, load_target
from eagle3.ops import Operators

TARGET, HEAD = "target", "head"
# Where the repository keeps its trained pair.
STORED = Path(__file__).with_name("pair")


class Pair(NamedTuple):
    """Two models that may serve together.

    Args:
        target: says what is kept.
        head: drafts for it.
    """

    target: Target
    head: DraftHead


def load_pair(
    folder: Path, kernels: str = "portable", device: torch.device | str = "cpu", dtype: torch.dtype | None = None
) -> Pair:
    """Target and head of a folder that ``python -m eagle3.m3.training --out`` wrote: ``target/`` and ``head/``.

    Args:
        folder: of the pair.
        kernels: of the operators, as of `eagle3.ops.Operators`.
        device: where the weights lie.
        dtype: of all weights; as the target is stored by default.

    Raises:
        CaptureRefused: the current stream is capturing.
        CheckpointFormat: a file is missing, no safetensors file, or safetensors is not installed.
        CheckpointMismatch: tensors are not those of the head's config, or the head is not for this target.
        HeadConfigRefused, TargetConfigRefused, WeightsMismatch: a part by itself cannot be served.
        UnknownKernels: there are none of this name.
    """
    operators = Operators(kernels)
    files = [folder / part / name for part in (TARGET, HEAD) for name in (CONFIG_FILE, WEIGHTS_FILE)]
    missing = [file.relative_to(folder).as_posix() for file in files if not file.is_file()]
    if missing:
        raise CheckpointFormat(
            f"{folder} holds no trained pair, {', '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing; "
            f"train one with: python -m eagle3.m3.training --out {folder}"
        )
    config, weights = load_target(folder / TARGET, device, dtype)
    target = Target(config, weights, operators)
    tables = TargetTables(target.embed, target.lm_head)
    loaded = load_head(folder / HEAD, target=tables, device=device, dtype=target.embed.dtype)
    head = DraftHead(
        loaded.config, loaded.weights, loaded.embed, loaded.lm_head, operators, positions=config.max_seq_len
    )
    check_pair(target, head)
    return Pair(target, head)


def check_pair(target: Target, head: DraftHead) -> None:
    """Pass if the head reads what the target shows of a token, and speaks its vocabulary.

    Raises:
        CheckpointMismatch: it does not; every objection is named.
        HeadConfigRefused: it reads layers that the target does not have.
    """
    theirs, ours = head.config, target.config
    captured = theirs.captured(ours.layers)
    pairs = {
        "captured layers": (captured, ours.capture_layers),
        "target_hidden_size": (theirs.target_hidden_size, ours.hidden_size),
        "vocab_size": (theirs.vocab_size, ours.vocab_size),
        "dtype": (head.weights.fc.dtype, target.embed.dtype),
    }
    wrong = [f"{name} {mine}, the target's {its}" for name, (mine, its) in pairs.items() if mine != its]
    if wrong:
        raise CheckpointMismatch(f"this head is not for this target: {'; '.join(wrong)}; take the head trained for it")
