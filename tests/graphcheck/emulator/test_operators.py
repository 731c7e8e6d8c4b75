"""Recorded and replayed, common operators give the bits of plain CPU torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from graphcheck.backend.emulator import EmulatorBackend

Inputs = dict[str, torch.Tensor]


def inputs(device: str) -> Inputs:
    host = torch.Generator().manual_seed(7)
    made = {
        "x": torch.randn(6, 8, generator=host),
        "y": torch.randn(6, 8, generator=host),
        "w": torch.randn(8, 8, generator=host),
        "v": torch.randn(8, generator=host),
        "i": torch.randint(-9, 9, (6, 8), generator=host),
        "index": torch.tensor([3, 0, 5, 1]),
        "column": torch.tensor([[1], [0], [7], [3], [2], [5]]),
        "mask": torch.rand(6, 8, generator=host) > 0.5,
        "half": torch.randn(6, 8, generator=host).to(torch.bfloat16),
        "image": torch.randn(2, 3, 10, generator=host),
        "kernel": torch.randn(4, 3, 3, generator=host),
        "heads": torch.randn(2, 4, 5, 8, generator=host),
    }
    return {name: tensor.to(device) for name, tensor in made.items()}


def attention(s: Inputs) -> torch.Tensor:
    with sdpa_kernel(SDPBackend.MATH):
        return F.scaled_dot_product_attention(s["heads"], s["heads"], s["heads"], is_causal=True)


def in_place(name: str, *rest: Any) -> Callable[[Inputs], torch.Tensor]:
    return lambda s: getattr(s["x"].clone(), name)(*rest)


def assigned(key: Any, value: Any) -> Callable[[Inputs], torch.Tensor]:
    def run(s: Inputs) -> torch.Tensor:
        x = s["x"].clone()
        x[key] = value
        return x

    return run


def written_out(s: Inputs) -> torch.Tensor:
    out = torch.empty(6, 8, device=s["x"].device)
    torch.mul(s["x"], s["y"], out=out)
    return out


def written_through_view(s: Inputs) -> torch.Tensor:
    x = s["x"].clone()
    x[1:3].t()[2:].add_(5).mul_(0.5)
    return x


def masked_assignment(s: Inputs) -> torch.Tensor:
    x = s["x"].clone()
    x[s["mask"]] = 0.25
    return x


def written_by_index(s: Inputs) -> torch.Tensor:
    x = s["x"].clone()
    x[s["index"]] = s["y"][:4]
    return x


CASES: dict[str, Callable[[Inputs], Any]] = {
    "add": lambda s: s["x"] + s["y"],
    "add alpha": lambda s: torch.add(s["x"], s["y"], alpha=3),
    "add scalar": lambda s: s["x"] + 1.5,
    "add host scalar tensor": lambda s: s["x"] + torch.tensor(2.0),
    "rsub": lambda s: 1 - s["x"],
    "mul broadcast": lambda s: s["x"] * s["v"],
    "div": lambda s: s["x"] / s["y"],
    "floor divide": lambda s: s["i"] // 3,
    "remainder": lambda s: s["i"] % 4,
    "integer promotion": lambda s: s["i"] + 0.5,
    "compare": lambda s: s["x"] > s["y"],
    "logical": lambda s: (s["x"] > 0) & ~(s["y"] > 0) | s["mask"],
    "where": lambda s: torch.where(s["mask"], s["x"], s["y"]),
    "where scalar": lambda s: torch.where(s["mask"], s["x"], 0.0),
    "masked fill": lambda s: s["x"].masked_fill(s["mask"], float("-inf")),
    "exp": lambda s: s["x"].exp(),
    "rsqrt": lambda s: s["x"].abs().rsqrt(),
    "pow": lambda s: s["x"].pow(2),
    "silu": lambda s: F.silu(s["x"]),
    "gelu": lambda s: F.gelu(s["x"]),
    "sigmoid": lambda s: s["x"].sigmoid(),
    "clamp": lambda s: s["x"].clamp(-0.5, 0.5),
    "clamp min": lambda s: s["x"].clamp(min=0),
    "maximum": lambda s: torch.maximum(s["x"], s["y"]),
    "sum": lambda s: s["x"].sum(),
    "sum dim": lambda s: s["x"].sum(1, keepdim=True),
    "mean": lambda s: s["x"].mean(-1),
    "var": lambda s: s["x"].var(-1, unbiased=False),
    "amax": lambda s: s["x"].amax(1),
    "max with indices": lambda s: s["x"].max(1),
    "argmax": lambda s: s["x"].argmax(1),
    "any": lambda s: s["mask"].any(1),
    "all": lambda s: s["mask"].all(),
    "cumsum": lambda s: s["x"].cumsum(1),
    "sort": lambda s: s["x"].sort(1, descending=True),
    "stable sort": lambda s: torch.sort(s["i"], dim=1, stable=True),
    "argsort": lambda s: s["x"].argsort(1),
    "topk": lambda s: s["x"].topk(3, 1),
    "softmax": lambda s: s["x"].softmax(-1),
    "log softmax": lambda s: s["x"].log_softmax(-1),
    "softmax of bf16 as fp32": lambda s: s["half"].softmax(-1, dtype=torch.float32),
    "layer norm": lambda s: F.layer_norm(s["x"], (8,), s["v"], s["v"]),
    "rms norm": lambda s: F.rms_norm(s["x"], (8,), s["v"]),
    "group norm": lambda s: F.group_norm(s["image"], 3),
    "embedding": lambda s: F.embedding(s["index"], s["x"]),
    "one hot": lambda s: F.one_hot(s["column"][:, 0], 9),
    "matmul": lambda s: s["x"] @ s["w"],
    "matmul transposed": lambda s: s["w"].t() @ s["x"].t(),
    "linear": lambda s: F.linear(s["x"], s["w"], s["v"]),
    "bmm": lambda s: torch.bmm(s["heads"][0], s["heads"][0].transpose(1, 2)),
    "einsum": lambda s: torch.einsum("bd,ed->be", s["x"], s["w"]),
    "baddbmm": lambda s: torch.baddbmm(s["heads"][0][:, :, :5], s["heads"][0], s["heads"][1].transpose(1, 2)),
    "attention": attention,
    "conv1d": lambda s: F.conv1d(s["image"], s["kernel"], padding=1),
    "bf16 arithmetic": lambda s: s["half"] * 2 + s["half"],
    "bf16 matmul": lambda s: s["half"] @ s["half"].t(),
    "cast": lambda s: s["x"].to(torch.float16).double(),
    "cast integer": lambda s: s["x"].int(),
    "bits": lambda s: s["x"].view(torch.int32),
    "reshape": lambda s: s["x"].t().reshape(4, 12),
    "permute and contiguous": lambda s: s["heads"].permute(2, 0, 3, 1).contiguous(),
    "expand": lambda s: s["v"].expand(6, 8) + s["x"],
    "select and slice": lambda s: s["x"][1, 2:6:2],
    "unbind and stack": lambda s: torch.stack(s["x"].unbind(0)[::-1]),
    "chunk": lambda s: s["x"].chunk(3),
    "split": lambda s: s["x"].split([1, 2, 3]),
    "cat": lambda s: torch.cat([s["x"], s["y"][:2]]),
    "as strided": lambda s: s["x"].as_strided((3, 4), (2, 3), 1) + 1,
    "roll": lambda s: s["x"].roll(2, 1),
    "flip": lambda s: s["x"].flip(0),
    "tril": lambda s: s["w"].tril(),
    "repeat": lambda s: s["x"].repeat(2, 1),
    "repeat interleave": lambda s: s["x"].repeat_interleave(2, 0),
    "pad": lambda s: F.pad(s["x"], (1, 2), value=3.0),
    "gather": lambda s: s["x"].gather(1, s["column"]),
    "scatter": lambda s: s["x"].scatter(1, s["column"], 9.0),
    "scatter add": lambda s: s["x"].scatter_add(1, s["column"], s["y"]),
    "index select": lambda s: s["x"].index_select(0, s["index"]),
    "index": lambda s: s["x"][s["index"], :3],
    "index pair": lambda s: s["x"][s["index"], s["index"]],
    "index copy": lambda s: s["x"].index_copy(0, s["index"], s["y"][:4]),
    "index add": lambda s: s["x"].index_add(0, s["index"], s["y"][:4]),
    "index put": written_by_index,
    "index put accumulate": lambda s: s["x"].index_put((s["index"],), s["y"][:4], accumulate=True),
    "bucketize": lambda s: torch.bucketize(s["x"], s["v"].sort().values),
    "searchsorted": lambda s: torch.searchsorted(s["v"].sort().values, s["x"]),
    "arange": lambda s: torch.arange(3, 17, 2, device=s["x"].device) + s["i"][0, :7],
    "zeros and ones": lambda s: torch.zeros_like(s["x"]) + torch.ones(8, device=s["x"].device),
    "full": lambda s: torch.full((2, 8), 2.5, device=s["x"].device) * s["v"],
    "new full": lambda s: s["x"].new_full((8,), 3) + s["v"],
    "eye": lambda s: torch.eye(8, device=s["x"].device) @ s["w"],
    "in place": in_place("mul_", 3),
    "in place chain": lambda s: s["x"].clone().add_(1).clamp_(0).sqrt_(),
    "in place cumsum": in_place("cumsum_", 1),
    "slice assignment": assigned(slice(1, 3), 4.0),
    "column assignment": assigned((slice(None), 2), 4.0),
    "masked assignment": masked_assignment,
    "out argument": written_out,
    "write through a view": written_through_view,
    "lerp": lambda s: torch.lerp(s["x"], s["y"], 0.3),
    "addcmul": lambda s: torch.addcmul(s["x"], s["y"], s["y"], value=0.5),
    "outer": lambda s: torch.outer(s["v"], s["v"]),
    "norm": lambda s: s["x"].norm(dim=-1),
    "logsumexp": lambda s: s["x"].logsumexp(1),
    "isin": lambda s: torch.isin(s["i"], s["index"]),
    "complex rotation": lambda s: torch.view_as_real(torch.view_as_complex(s["x"].reshape(6, 4, 2)) * 1j).flatten(1),
}


def flat(value: Any) -> list[torch.Tensor]:
    return [value] if isinstance(value, torch.Tensor) else [tensor for item in value for tensor in flat(item)]


def bits(tensor: torch.Tensor) -> torch.Tensor:
    host = tensor.cpu().contiguous()
    return host.view(torch.uint8) if host.dim() and host.numel() else host


@pytest.mark.parametrize("name", CASES)
def test_replay_gives_the_bits_of_plain_torch(name: str, backend: EmulatorBackend) -> None:
    run = CASES[name]
    expected = [tensor.clone() for tensor in flat(run(inputs("cpu")))]
    staged = inputs("cuda")
    eager = flat(run(staged))
    recording = backend.record(lambda: {str(n): tensor for n, tensor in enumerate(flat(run(staged)))}, backend.pool())
    recording.replay()
    for number, tensor in enumerate(expected):
        replayed = recording.outputs[str(number)]
        assert replayed.shape == tensor.shape
        assert replayed.dtype == tensor.dtype
        assert torch.equal(bits(eager[number]), bits(tensor)), "eager"
        assert torch.equal(bits(replayed), bits(tensor)), "replay"
    assert recording.findings() == []


def test_replay_follows_its_inputs(backend: EmulatorBackend) -> None:
    staged = inputs("cuda")
    recording = backend.record(lambda: {"out": F.linear(staged["x"], staged["w"]).softmax(-1)}, backend.pool())
    for seed in range(3):
        staged["x"].copy_(torch.randn(6, 8, generator=torch.Generator().manual_seed(seed)))
        recording.replay()
        assert torch.equal(recording.outputs["out"].cpu(), F.linear(staged["x"], staged["w"]).softmax(-1).cpu())
