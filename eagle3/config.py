"""The config of an Eagle3 head, read from any of the three published styles.

- plain: a flat ``config.json`` (SafeAILab/EAGLE, sgl-project/SpecForge);
- ModelOpt: plain with a nested ``eagle_config`` (NVIDIA/Model-Optimizer, read by NVIDIA/TensorRT-LLM);
- speculators: ``speculators_model_type`` with a nested ``transformer_layer_config`` (vllm-project/speculators).

The layers whose hidden states a head reads are written in two conventions that differ by one: as inputs of decoder
layers (speculators, vLLM) or as outputs (ModelOpt, TensorRT-LLM). Here they are always inputs: layer i stands for the
residual stream that enters layer i, and i = N for the one that leaves the last of N layers, before its norm.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from eagle3.errors import HeadConfigRefused
from eagle3.ops.rope import check_scaling

CONVENTIONS = ("inputs", "outputs")
LAST = -1
_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
_SIZES = (
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "rotary_dim",
    "vocab_size",
    "draft_vocab_size",
    "target_hidden_size",
    "max_position_embeddings",
)


@dataclass(frozen=True)
class HeadConfig:
    """What is fixed about a head with one decoder layer.

    Args:
        hidden_size: H.
        intermediate_size: I, of the feed-forward part.
        num_attention_heads: Hq.
        num_key_value_heads: Hkv; divides Hq.
        head_dim: D.
        vocab_size: V, of the target.
        draft_vocab_size: Vd, of the head's logits.
        target_hidden_size: Ht, of the hidden states that are captured.
        max_position_embeddings: positions of the rotary table.
        rotary_dim: leading dims of a head that are rotated; D by default.
        rms_norm_eps: of every norm.
        rope_theta, rope_scaling: see `eagle3.ops.rope_table`.
        capture_inputs: captured layers as inputs, ascending, `LAST` for the final hidden state; None leaves the choice
            to the target's depth, see `captured`.
        num_captures: how many they are.
        fc_norm: each captured state is normed before they are joined.
        norm_before_fc: the joined states are normed as one.
        fc_bias: the fusion has a bias.
        norm_before_residual: the residual is the normed hidden state.
        norm_output: what a step hands to the next has passed the last norm.
        final_norm: there is a norm before the LM head.
        dtype: of the weights.

    Raises:
        HeadConfigRefused: sizes that cannot be served; every objection is named.
    """

    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    draft_vocab_size: int
    target_hidden_size: int
    max_position_embeddings: int
    rotary_dim: int = 0
    rms_norm_eps: float = 1e-5
    rope_theta: float = 10000.0
    rope_scaling: Mapping[str, Any] | None = None
    capture_inputs: tuple[int, ...] | None = None
    num_captures: int = 3
    fc_norm: bool = False
    norm_before_fc: bool = False
    fc_bias: bool = False
    norm_before_residual: bool = False
    norm_output: bool = False
    final_norm: bool = True
    dtype: torch.dtype = torch.bfloat16

    def __post_init__(self) -> None:
        if self.rotary_dim == 0:
            object.__setattr__(self, "rotary_dim", self.head_dim)
        objections = [
            f"{name} = {getattr(self, name)!r}, expected a whole number >= 1"
            for name in _SIZES
            if not _is_count(getattr(self, name))
        ]
        refuse("this head", objections or self._objections())

    def captured(self, num_layers: int) -> tuple[int, ...]:
        """The captured layers of a target with N layers, as inputs, ascending; N is its final hidden state.

        Where the config names none they are 2, N // 2 and N - 3 (SafeAILab/EAGLE, eagle/model/modeling_llama_kv.py),
        or the final hidden state for a head that reads a single one.

        Raises:
            HeadConfigRefused: the target has too few layers.
        """
        if self.capture_inputs is not None:
            layers = tuple(sorted(num_layers if layer == LAST else layer for layer in self.capture_inputs))
        elif self.num_captures == 1:
            layers = (num_layers,)
        elif num_layers <= 5:
            raise HeadConfigRefused(
                f"a target of {num_layers} layers has no default layers to capture, expected more than 5; "
                "name them in the config"
            )
        else:
            layers = (2, num_layers // 2, num_layers - 3)
        if len(set(layers)) < len(layers) or layers[-1] > num_layers:
            raise HeadConfigRefused(
                f"the head reads the inputs of layers {layers} of a target of {num_layers} layers; "
                f"expected {self.num_captures} different ones up to {num_layers}"
            )
        return layers

    def _objections(self) -> list[str]:
        layers = self.capture_inputs
        checks = (
            (
                self.num_attention_heads % self.num_key_value_heads == 0,
                f"num_key_value_heads {self.num_key_value_heads} does not divide {self.num_attention_heads}",
            ),
            (
                self.rotary_dim % 2 == 0 and self.rotary_dim <= self.head_dim,
                f"{self.rotary_dim} rotated dims of {self.head_dim}, expected an even number of them",
            ),
            (
                self.draft_vocab_size <= self.vocab_size,
                f"draft_vocab_size {self.draft_vocab_size} exceeds vocab_size {self.vocab_size}",
            ),
            (not (self.fc_norm and self.norm_before_fc), "fc_norm and norm_before_fc exclude each other"),
            (self.final_norm or not self.norm_output, "norm_output needs the last norm"),
            (
                layers is None or len(layers) == self.num_captures,
                f"captured layers {layers}, expected {self.num_captures}",
            ),
            (
                layers is None or all(layer >= LAST for layer in layers),
                f"captured layers {layers}, expected {LAST} (the final hidden state) or more",
            ),
            (self.rms_norm_eps > 0, f"rms_norm_eps {self.rms_norm_eps}, expected more than 0"),
        )
        return [words for holds, words in checks if not holds] + check_scaling(self.rope_scaling)


def inputs_of_outputs(layers: Iterable[int]) -> tuple[int, ...]:
    """Layers named by their outputs as layers named by their inputs: what leaves layer i enters layer i + 1."""
    return tuple(layer if layer == LAST else layer + 1 for layer in layers)


def refuse(what: str, objections: list[str]) -> None:
    """Pass if there are no objections.

    Raises:
        HeadConfigRefused: there are; every one is named.
    """
    if objections:
        raise HeadConfigRefused(f"{what} cannot be served: {'; '.join(objections)}")


def read_config(folder: str | Path, *, captures: str | None = None) -> HeadConfig:
    """The config in ``folder/config.json``; see `parse_config`.

    Raises:
        HeadConfigRefused: there is none, it is no JSON object, or it cannot be served.
    """
    path = Path(folder) / "config.json"
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise HeadConfigRefused(f"{path} cannot be read as JSON ({error}); a head needs its config.json") from error
    if not isinstance(fields, dict):
        raise HeadConfigRefused(f"{path} holds a {type(fields).__name__}, expected a JSON object")
    return parse_config(fields, captures=captures)


def parse_config(fields: Mapping[str, Any], *, captures: str | None = None) -> HeadConfig:
    """The config that the fields of a ``config.json`` say, whichever of the three styles they are in.

    Args:
        fields: the JSON object.
        captures: "inputs" or "outputs", the convention of the captured layers. By default that of the style: inputs
            for speculators, outputs for ModelOpt. A plain config that names layers does not say which it means.

    Raises:
        HeadConfigRefused: something is missing or cannot be served; every objection is named.
    """
    objections: list[str] = []
    if captures is not None and captures not in CONVENTIONS:
        objections.append(f"captures {captures!r}, expected one of {', '.join(CONVENTIONS)}")
    nested = fields.get("eagle_config")
    if "speculators_model_type" in fields or "transformer_layer_config" in fields:
        kind, layer, layers = fields.get("speculators_model_type"), fields.get("transformer_layer_config"), fields
        if kind != "eagle3" or not isinstance(layer, Mapping):
            raise HeadConfigRefused(
                f"speculators_model_type {kind!r} with transformer_layer_config of type {type(layer).__name__}; "
                "expected 'eagle3' and an object"
            )
        captures = captures or "inputs"
        variant = _speculators_variant(fields)
    elif isinstance(nested, Mapping):
        layer, layers = fields, nested
        captures = captures or "outputs"
        variant = _plain_variant(fields) | _modelopt_variant(nested, objections)
    else:
        layer, layers = fields, fields
        variant = _plain_variant(fields)
    depth = layer.get("num_hidden_layers", 1)
    if depth != 1:
        objections.append(f"num_hidden_layers {depth}, only heads with one layer are served")
    for name in ("attention_bias", "mlp_bias"):
        if layer.get(name):
            objections.append(f"{name}, only projections without a bias are served")
    named = layers.get("eagle_aux_hidden_state_layer_ids") or None
    if named is not None and captures is None:
        objections.append(
            f"captured layers {named} without the convention they are in; pass captures='inputs' or 'outputs'"
        )
    missing = [
        name
        for name in ("hidden_size", "num_attention_heads", "vocab_size")
        if layer.get(name) is None and fields.get(name) is None
    ]
    if layer.get("intermediate_size_mlp", layer.get("intermediate_size")) is None:
        missing.append("intermediate_size")
    refuse("this config", objections + ([f"{', '.join(missing)} missing"] if missing else []))
    inputs = None
    if named is not None and variant.get("num_captures", 3) != 1:
        inputs = tuple(named) if captures == "inputs" else inputs_of_outputs(named)
        variant["num_captures"] = len(inputs)
    return HeadConfig(**_sizes(layer, fields), **variant, capture_inputs=inputs)


def _sizes(layer: Mapping[str, Any], fields: Mapping[str, Any]) -> dict[str, Any]:
    """What the decoder layer says, with the fields around it as the second source."""

    def get(name: str, default: Any = None) -> Any:
        value = layer.get(name)
        value = fields.get(name) if value is None else value
        return default if value is None else value

    hidden, heads = get("hidden_size"), get("num_attention_heads")
    head_dim = get("head_dim", hidden // heads)
    # transformers 5 keeps everything about the rotation in one object.
    rotation = get("rope_parameters", {})
    factor = rotation.get("partial_rotary_factor", get("partial_rotary_factor", 1.0))
    scaling = get("rope_scaling") or (rotation if rotation.get("rope_type", "default") != "default" else None)
    dtype = get("torch_dtype", get("dtype", "bfloat16"))
    if dtype not in _DTYPES:
        raise HeadConfigRefused(f"torch_dtype {dtype!r}, expected one of {', '.join(_DTYPES)}")
    return {
        "hidden_size": hidden,
        # Llama 4 calls the dense feed-forward part's width so.
        "intermediate_size": get("intermediate_size_mlp", get("intermediate_size")),
        "num_attention_heads": heads,
        "num_key_value_heads": get("num_key_value_heads", heads),
        "head_dim": head_dim,
        "rotary_dim": int(head_dim * factor),
        "vocab_size": get("vocab_size"),
        "draft_vocab_size": get("draft_vocab_size", get("vocab_size")),
        "target_hidden_size": get("target_hidden_size", hidden),
        "max_position_embeddings": get("max_position_embeddings", 2048),
        "rms_norm_eps": get("rms_norm_eps", 1e-5),
        "rope_theta": float(rotation.get("rope_theta", get("rope_theta", 10000.0))),
        "rope_scaling": scaling,
        "dtype": _DTYPES[dtype],
    }


def _plain_variant(fields: Mapping[str, Any]) -> dict[str, Any]:
    # In SpecForge `norm_output` says whether there is a norm before the LM head; speculators means another thing by it.
    return {
        "fc_norm": bool(fields.get("fc_norm", False)),
        "norm_before_fc": bool(fields.get("norm_before_fc", False)),
        "norm_before_residual": bool(fields.get("norm_before_residual", False)),
        "final_norm": bool(fields.get("norm_output", True)),
        "fc_bias": bool(fields.get("bias", False)),
    }


def _modelopt_variant(nested: Mapping[str, Any], objections: list[str]) -> dict[str, Any]:
    for name, served in (
        ("use_input_layernorm_in_first_layer", True),
        ("use_mtp_layernorm", False),
        ("next_layer_regular", True),
        # With one step at a time there are no parallel heads, whatever `parallel_draft_heads_num_layers` says.
        ("parallel_draft_step", 1),
    ):
        value = nested.get(name, served)
        if value != served:
            objections.append(f"eagle_config.{name} {value!r}, only {served!r} is served")
    features = nested.get("num_eagle_features", 3)
    return {
        "final_norm": bool(nested.get("use_last_layernorm", True)),
        "num_captures": features if nested.get("use_aux_hidden_state", True) else 1,
    } | ({"fc_bias": bool(nested["bias"])} if "bias" in nested else {})


def _speculators_variant(fields: Mapping[str, Any]) -> dict[str, Any]:
    names = ("fc_norm", "norm_before_fc", "norm_output", "norm_before_residual")
    return {name: bool(fields.get(name, False)) for name in names}


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1
