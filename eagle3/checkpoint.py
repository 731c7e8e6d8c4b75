"""Load the tensors of an Eagle3 head, checked against its config before anything is allocated."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from eagle3.config import HeadConfig, read_config
from eagle3.errors import CheckpointFormat, CheckpointMismatch
from eagle3.published import TRAINING_ONLY, expected_shapes, optional_shapes, published_name
from graphcheck.contract import refuse_while_capturing

_INTEGERS = (torch.int32, torch.int64)
_STORED = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
}


@dataclass(frozen=True)
class TargetTables:
    """What a head may share with its target.

    Args:
        embed: [V, Ht], embeddings of the target's tokens.
        lm_head: [V, Ht], its LM head.
    """

    embed: torch.Tensor
    lm_head: torch.Tensor


@dataclass(frozen=True)
class HeadWeights:
    """The head's own tensors on the device; projections that read the same rows are stacked.

    Args:
        fc: [H, C * Ht], C captured layers.
        input_layernorm: [H], of the embedding.
        hidden_norm: [H], of the hidden state.
        qkv: [(Hq + 2 Hkv) * D, 2 H].
        o_proj: [H, Hq * D].
        post_attention_layernorm: [H].
        gate_up: [2 I, H].
        down_proj: [H, I].
        norm: [H]; None if there is no last norm.
        fc_bias: [H] or None.
        fc_norms: C times [Ht], or none.
        input_norm: [C * Ht], of the joined hidden states, or None.
        d2t: [Vd] int64, what is added to a draft id to get the target's; None for nothing.
    """

    fc: torch.Tensor
    input_layernorm: torch.Tensor
    hidden_norm: torch.Tensor
    qkv: torch.Tensor
    o_proj: torch.Tensor
    post_attention_layernorm: torch.Tensor
    gate_up: torch.Tensor
    down_proj: torch.Tensor
    norm: torch.Tensor | None = None
    fc_bias: torch.Tensor | None = None
    fc_norms: tuple[torch.Tensor, ...] = ()
    input_norm: torch.Tensor | None = None
    d2t: torch.Tensor | None = None


@dataclass(frozen=True)
class LoadedHead:
    """All that `eagle3.head.DraftHead` is made of.

    Args:
        config: sizes and variant.
        weights: the head's own.
        embed: [V, H]; the target's own tensor where the head has none.
        lm_head: [Vd, H]; likewise.
    """

    config: HeadConfig
    weights: HeadWeights
    embed: torch.Tensor
    lm_head: torch.Tensor


def load_head(
    source: str | Path | Mapping[str, torch.Tensor],
    config: HeadConfig | None = None,
    *,
    target: TargetTables | None = None,
    device: torch.device | str = "cpu",
    dtype: torch.dtype | None = None,
) -> LoadedHead:
    """A head whose tensors are exactly those that its config asks for, on the device; safetensors only.

    Names, shapes and dtypes are checked from the headers, before a tensor is read.

    Args:
        source: a folder with safetensors files (one, or shards with an index), one such file, or tensors by name.
        config: of the head; ``config.json`` of the folder by default.
        target: tables to share where the checkpoint has none of its own.
        device, dtype: of the weights; by default the CPU and the config's dtype. Shared tables stay as they are.

    Raises:
        CaptureRefused: the current stream is capturing.
        CheckpointFormat: there is no safetensors file, or none is understood; pickled checkpoints are not read.
        CheckpointMismatch: tensors are missing, unknown, mis-shaped or of a wrong dtype, or there is nothing to share;
            every one is named.
        HeadConfigRefused: there is no config, or it cannot be served.
    """
    refuse_while_capturing("weights of a head")
    if isinstance(source, Mapping):
        if config is None:
            raise CheckpointFormat("tensors by name come without a config; pass config=")
        held = {
            name: _Held(tensor.shape, tensor.dtype, lambda tensor=tensor: tensor) for name, tensor in source.items()
        }
        return _build(held, config, target, device, dtype, "the tensors given")
    path = Path(source)
    config = config or read_config(path if path.is_dir() else path.parent)
    try:
        # Tensors by name load without it.
        from safetensors import SafetensorError
    except ImportError as error:
        raise CheckpointFormat(
            f"{path} cannot be read without safetensors; install torch-graphcheck[eagle3]"
        ) from error
    try:
        return _build(_headers(path), config, target, device, dtype, str(path))
    except SafetensorError as error:
        raise CheckpointFormat(f"{path} is no whole safetensors file ({error}); fetch it again") from error


@dataclass(frozen=True)
class _Held:
    """A tensor of a checkpoint that is not read yet."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    read: Callable[..., torch.Tensor]


def _headers(path: Path) -> dict[str, _Held]:
    """Every tensor of a folder or file, from the headers alone."""
    from safetensors import safe_open

    held: dict[str, _Held] = {}
    for file in _files(path):
        opened: Any = safe_open(file, framework="pt", device="cpu")
        for name in opened.keys():  # noqa: SIM118 - the handle is no mapping
            piece = opened.get_slice(name)
            dtype = _STORED.get(piece.get_dtype(), torch.bool)
            held[name] = _Held(
                tuple(piece.get_shape()), dtype, lambda opened=opened, name=name: opened.get_tensor(name)
            )
    return held


def _files(path: Path) -> list[Path]:
    """The safetensors files that make up a checkpoint."""
    if path.is_file() and path.suffix == ".safetensors":
        return [path]
    index = path / "model.safetensors.index.json"
    if index.is_file():
        try:
            shards = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointFormat(f"{index} is no index ({error!r}); expected an object with a weight_map") from error
        files = [path / shard for shard in sorted(shards)]
    else:
        files = sorted(path.glob("*.safetensors")) if path.is_dir() else []
    absent = [file.name for file in files if not file.is_file()]
    if absent:
        raise CheckpointFormat(f"{path} lacks {', '.join(absent)}, which its index names; fetch the missing shards")
    if files:
        return files
    found = [path] if path.is_file() else [file for kind in ("*.bin", "*.pt", "*.pth") for file in path.glob(kind)]
    if not found:
        raise CheckpointFormat(f"{path} has no safetensors file; expected model.safetensors, or shards with an index")
    raise CheckpointFormat(
        f"{', '.join(sorted(file.name for file in found))} in {found[0].parent} may be a pickle, which can run code when "
        "it is read, so it is not; convert it once where you trust it: "
        "safetensors.torch.save_file(torch.load('pytorch_model.bin', weights_only=True), 'model.safetensors')"
    )


def _build(
    held: Mapping[str, _Held],
    config: HeadConfig,
    target: TargetTables | None,
    device: torch.device | str,
    dtype: torch.dtype | None,
    where: str,
) -> LoadedHead:
    named: dict[str, _Held] = {}
    wrong = []
    for name, tensor in held.items():
        if published_name(name) in named:
            wrong.append(f"two spellings of {published_name(name)}")
        named[published_name(name)] = tensor
    wrong += _objections(named, config)
    tables = {name: _table(name, named, config, target, wrong) for name in ("embed_tokens.weight", "lm_head.weight")}
    if wrong:
        raise CheckpointMismatch(f"{where}: not the head that the config describes: {'; '.join(wrong)}")
    dtype = dtype or config.dtype

    def get(*names: str) -> torch.Tensor:
        # Copies, so that nothing hangs on a mapped file and every weight starts where the allocator puts it.
        return torch.cat([named[name].read() for name in names]).to(device=device, dtype=dtype)

    def maybe(name: str) -> torch.Tensor | None:
        return get(name) if name in named else None

    layer = "midlayer."
    attention, mlp = f"{layer}self_attn.", f"{layer}mlp."
    weights = HeadWeights(
        fc=get("fc.weight"),
        input_layernorm=get(f"{layer}input_layernorm.weight"),
        hidden_norm=get(f"{layer}hidden_norm.weight"),
        qkv=get(*(f"{attention}{name}_proj.weight" for name in "qkv")),
        o_proj=get(f"{attention}o_proj.weight"),
        post_attention_layernorm=get(f"{layer}post_attention_layernorm.weight"),
        gate_up=get(f"{mlp}gate_proj.weight", f"{mlp}up_proj.weight"),
        down_proj=get(f"{mlp}down_proj.weight"),
        norm=maybe("norm.weight"),
        fc_bias=maybe("fc.bias"),
        fc_norms=tuple(get(f"fc_norm.{number}.weight") for number in range(config.num_captures * config.fc_norm)),
        input_norm=maybe("input_norm.weight"),
        d2t=_offsets(named["d2t"].read(), config, where).to(device) if "d2t" in named else None,
    )
    embed, lm_head = (get(name) if table is None else table for name, table in tables.items())
    return LoadedHead(config, weights, embed, lm_head)


def _objections(named: Mapping[str, _Held], config: HeadConfig) -> list[str]:
    """Everything about names, shapes and dtypes that the config does not ask for."""
    required, optional = expected_shapes(config), optional_shapes(config)
    known = optional | required
    missing = [f"{name} {list(shape)}" for name, shape in required.items() if name not in named]
    unknown = [name for name in named if name not in known and name not in TRAINING_ONLY]
    shaped = [
        f"{name} is {list(named[name].shape)}, expected {list(shape)}"
        for name, shape in known.items()
        if name in named and tuple(named[name].shape) != shape
    ]
    typed = [
        f"{name} is {tensor.dtype}, expected {'int64' if name == 'd2t' else 'a floating-point type'}"
        for name, tensor in named.items()
        if name in known and not (tensor.dtype in _INTEGERS if name == "d2t" else tensor.dtype.is_floating_point)
    ]
    return [*_listed("missing", missing), *_listed("unknown", unknown), *shaped, *typed]


def _listed(what: str, names: Iterable[str]) -> list[str]:
    words = ", ".join(names)
    return [f"{what}: {words}"] if words else []


def _table(
    name: str, named: Mapping[str, _Held], config: HeadConfig, target: TargetTables | None, wrong: list[str]
) -> torch.Tensor | None:
    """The target's table in place of one that the checkpoint lacks; objections go to ``wrong``."""
    if name in named:
        return None
    expected = optional_shapes(config)[name]
    if target is None:
        wrong.append(f"{name} is left to the target; pass target=")
        return None
    table = target.embed if name == "embed_tokens.weight" else target.lm_head
    if tuple(table.shape) != expected:
        wrong.append(f"{name} is left to the target, whose own is {list(table.shape)}, expected {list(expected)}")
    return table


def _offsets(d2t: torch.Tensor, config: HeadConfig, where: str) -> torch.Tensor:
    """The offsets as int64, all of which lead to different tokens of the target."""
    d2t = d2t.to(dtype=torch.int64, copy=True)
    if d2t.is_meta:
        return d2t
    tokens = d2t + torch.arange(d2t.shape[0], device=d2t.device)
    outside = int(((tokens < 0) | (tokens >= config.vocab_size)).sum())
    repeated = tokens.shape[0] - int(tokens.unique().shape[0])
    if outside or repeated:
        raise CheckpointMismatch(
            f"d2t of {where} leads {outside} draft ids outside the target's {config.vocab_size} tokens and {repeated} to "
            "tokens that another one leads to; expected offsets (token id minus draft id), not token ids"
        )
    return d2t
