"""Write the keys, values and index keys of new tokens into their slots, all caches of a layer in one kernel."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from msa.ops.triton.launch import check_aligned, launch_options, opaque, power_of_two
from msa.ops.triton.tile import dependency_wait


@triton.jit
def _copy(cache, rows, slot, row, divisor, HEADS: tl.constexpr, BLOCK_HEADS: tl.constexpr, P: tl.constexpr,
          D: tl.constexpr, BLOCK_D: tl.constexpr):  # fmt: skip
    head = tl.arange(0, BLOCK_HEADS)[:, None]
    dim = tl.arange(0, BLOCK_D)[None, :]
    inside = (head < HEADS) & (dim < D)
    value = tl.load(rows + (row * HEADS + head) * D + dim, mask=inside)
    if cache.dtype.element_ty == tl.float8e4nv:
        # Division, rounded as everywhere else: `/` is an approximation. What is too large saturates. NaN stays NaN.
        value = tl.div_rn(value.to(tl.float32), divisor)
        value = tl.where(value > 448.0, 448.0, tl.where(value < -448.0, -448.0, value))
    target = ((slot // P * HEADS + head) * P + slot % P) * D + dim
    tl.store(cache + target, value.to(cache.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["slots", "k_scale", "v_scale", "index_scale"])
def _write(
    k_cache,
    v_cache,
    index_cache,
    k,
    v,
    index_k,
    slots,
    k_scale,
    v_scale,
    index_scale,
    HEADS: tl.constexpr,
    BLOCK_HEADS: tl.constexpr,
    P: tl.constexpr,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    PAIR: tl.constexpr,
    INDEX: tl.constexpr,
    PDL: tl.constexpr,
):
    dependency_wait(PDL)
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + row)
    _copy(k_cache, k, slot, row, k_scale, HEADS, BLOCK_HEADS, P, D, BLOCK_D)
    if PAIR:
        _copy(v_cache, v, slot, row, v_scale, HEADS, BLOCK_HEADS, P, D, BLOCK_D)
    if INDEX:
        _copy(index_cache, index_k, slot, row, index_scale, 1, 1, P, D, BLOCK_D)


def _launch(
    caches: tuple[torch.Tensor, ...],
    rows: tuple[torch.Tensor, ...],
    slots: torch.Tensor,
    scales: tuple[float, float, float],
    pdl: bool,
) -> None:
    names = ("k_cache", "v_cache", "index_cache")
    check_aligned(**dict(zip(names, caches, strict=False)), **dict(zip(("k", "v", "index_k"), rows, strict=False)))
    _, heads, page_size, dim = caches[0].shape
    # What is absent is compiled out; its place is taken by the first one.
    full_caches = (*caches, *(caches[0],) * (3 - len(caches)))
    full_rows = (*rows, *(rows[0],) * (3 - len(rows)))
    _write[(slots.shape[0],)](
        *full_caches,
        *full_rows,
        slots,
        *scales,
        HEADS=heads,
        BLOCK_HEADS=power_of_two(heads),
        P=page_size,
        D=dim,
        BLOCK_D=power_of_two(dim, 16),
        PAIR=len(caches) > 1,
        INDEX=len(caches) > 2,
        PDL=pdl,
        **launch_options(1 if heads == 1 else 4, pdl),
    )


def _kv_write(cache: torch.Tensor, rows: torch.Tensor, slots: torch.Tensor, scale: float, pdl: bool) -> None:
    _launch((cache,), (rows,), slots, (scale, 1.0, 1.0), pdl)


def _kv_write_layer(
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    index_cache: torch.Tensor | None,
    k: torch.Tensor,
    v: torch.Tensor,
    index_k: torch.Tensor | None,
    slots: torch.Tensor,
    k_scale: float,
    v_scale: float,
    index_scale: float,
    pdl: bool,
) -> None:
    caches, rows = (k_cache, v_cache), (k, v)
    if index_cache is not None and index_k is not None:
        caches, rows = (*caches, index_cache), (*rows, index_k)
    _launch(caches, rows, slots, (k_scale, v_scale, index_scale), pdl)


_one = opaque("kv_write(Tensor(a!) cache, Tensor rows, Tensor slots, float scale, bool pdl) -> ()", _kv_write)
_layer = opaque(
    "kv_write_layer(Tensor(a!) k_cache, Tensor(b!) v_cache, Tensor(c!)? index_cache, Tensor k, Tensor v, "
    "Tensor? index_k, Tensor slots, float k_scale, float v_scale, float index_scale, bool pdl) -> ()",
    _kv_write_layer,
)


def kv_write(
    cache: torch.Tensor, rows: torch.Tensor, slots: torch.Tensor, *, scale: float = 1.0, pdl: bool = False
) -> None:
    """Slot ``slots[t]`` of ``cache`` holds ``rows[t]`` in every head; every other slot keeps its bits.

    One launch, grid (T). An fp8 cache gets ``rows / scale``, saturated at 448.

    Args:
        cache: [pages, heads, P, D] bf16, fp16, fp32 or fp8 e4m3, device; written in place.
        rows: [T, heads, D] any float dtype, device, contiguous.
        slots: [T] int64, device, page * P + offset; inside the cache. Equal slots are allowed for the dummy slot only.
        scale: what a stored value is multiplied with when it is read; fp8 only.
        pdl: launch as a programmatic dependent of the kernel before.

    Read live: ``rows``, ``slots``. Frozen at capture: T, the shape of the cache and the scale.
    """
    _one(cache, rows, slots, scale, pdl)


def kv_write_layer(
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    index_cache: torch.Tensor | None,
    k: torch.Tensor,
    v: torch.Tensor,
    index_k: torch.Tensor | None,
    slots: torch.Tensor,
    *,
    k_scale: float = 1.0,
    v_scale: float = 1.0,
    index_scale: float = 1.0,
    pdl: bool = False,
) -> None:
    """What `kv_write` does for keys, values and, on sparse layers, index keys, in one launch, grid (T).

    Args:
        k_cache, v_cache: [pages, Hkv, P, D], device; written in place.
        index_cache: [pages, 1, P, D], device, written in place; None on dense layers.
        k, v: [T, Hkv, D], device, contiguous.
        index_k: [T, 1, D], device, contiguous; None on dense layers.
        slots: [T] int64, device.
        k_scale, v_scale, index_scale: as in `kv_write`.
        pdl: as in `kv_write`.
    """
    _layer(k_cache, v_cache, index_cache, k, v, index_k, slots, k_scale, v_scale, index_scale, pdl)
