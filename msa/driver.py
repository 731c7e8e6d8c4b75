"""The decode driver: everything is allocated once, and every step plans on the device only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from graphcheck.contract import capture_safe, refuse_while_capturing
from msa.cache import PagedCache
from msa.errors import BatchTooLarge, GeometryError, ShapeMismatch
from msa.geometry import Geometry
from msa.ladder import Ladder
from msa.paging import pad_rows
from msa.passes import Passes, PortablePasses

if TYPE_CHECKING:
    from msa.ops.triton.partials import Partials
    from msa.ops.triton.passes import TritonPasses

KERNELS = ("portable", "triton")


class DecodeDriver:
    """Runs the attention of a decode or verify step for a fixed number of requests and query tokens.

    A step is: `stage` outside the graph (or the engine's own writes to ``kv_lens`` and ``page_table``), then inside it
    `plan` once, and `sparse_layer` or `dense_layer` for each layer. No method but `stage` and the constructor touches
    the host. Every address stays what it is for the life of the driver.

    Args:
        geometry: sizes.
        batch: B, requests in the bucket; rows behind the real batch have length 0.
        qo_len: Q, query tokens per request, 1 to ``geometry.max_qo_len``.
        device: where the buffers live.
        kv_lens, page_table: inputs that the engine owns, for instance views that the drivers of all buckets share;
            allocated here if left out.
        kernels: "portable" for the torch operators, "triton" for the kernels in ``msa.ops.triton`` (needs triton and a
            GPU, or Triton's interpreter). Call `prepare` before the first capture.
        partials: with "triton", a workspace that the drivers of all buckets share; allocated here if left out.
        pdl: with "triton", programmatic dependent launches.

    Attributes:
        kv_lens: [B] int32, device, tokens, the Q new ones included. Input.
        page_table: [B, W] int32, device, contiguous. Input.
        ladder: per-row fields, derived.
        scores: [Hidx, T, W] fp32, device; columns behind a row's valid pages are never written.
        page_ids: [T, Hkv, K] int32, device.
        out: [T, Hq, D] dtype, device: the default output.
        passes: what runs the passes.
        triton: the same, if they are Triton's; None with portable operators.

    Raises:
        CaptureRefused: the current stream is capturing.
        GeometryError: ``qo_len`` is out of range, or there are no such kernels.
        BatchTooLarge: ``batch`` is out of range.
        ShapeMismatch: an input that was passed has the wrong shape or dtype.
    """

    def __init__(
        self,
        geometry: Geometry,
        batch: int,
        qo_len: int,
        device: torch.device | str,
        *,
        kv_lens: torch.Tensor | None = None,
        page_table: torch.Tensor | None = None,
        kernels: str = "portable",
        partials: Partials | None = None,
        pdl: bool = False,
    ) -> None:
        refuse_while_capturing("decode state")
        if kernels not in KERNELS:
            raise GeometryError(f"kernels {kernels!r}, expected one of {', '.join(KERNELS)}")
        if not 1 <= qo_len <= geometry.max_qo_len:
            raise GeometryError(f"qo_len {qo_len}, expected 1..{geometry.max_qo_len}; use the eager API for extends")
        if not 1 <= batch <= geometry.max_batch:
            raise BatchTooLarge(f"batch {batch}, expected 1..{geometry.max_batch}")
        self.geometry = geometry
        self.batch = batch
        self.qo_len = qo_len
        rows = batch * qo_len
        if kv_lens is None:
            kv_lens = torch.zeros(batch, dtype=torch.int32, device=device)
        if page_table is None:
            page_table = torch.full((batch, geometry.max_pages), -1, dtype=torch.int32, device=device)
        _check_input("kv_lens", kv_lens, (batch,))
        _check_input("page_table", page_table, (batch, geometry.max_pages))
        self.kv_lens = kv_lens
        self.page_table = page_table
        self.ladder = Ladder(geometry, batch, qo_len, device)
        self.scores = torch.zeros(geometry.index_heads, rows, geometry.max_pages, device=device)
        self.page_ids = torch.full((rows, geometry.kv_heads, geometry.top_k), -1, dtype=torch.int32, device=device)
        self.out = torch.zeros(rows, geometry.q_heads, geometry.head_dim, dtype=geometry.dtype, device=device)
        self.triton: TritonPasses | None = None
        if kernels == "triton":
            # Triton reads its mode when it is imported, and portable users need not have it.
            from msa.ops.triton.passes import TritonPasses

            self.triton = TritonPasses(geometry, rows, device, partials=partials, pdl=pdl)
        self.passes: Passes = PortablePasses(geometry) if self.triton is None else self.triton

    def prepare(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        index_q: torch.Tensor,
        index_k: torch.Tensor,
        cache: PagedCache,
        out: torch.Tensor | None = None,
    ) -> None:
        """Every kernel that a layer with such buffers launches is compiled and loaded; before the first capture.

        The kernels run once on lengths of zero: derived fields and outputs are overwritten, of the cache only the dummy
        page is. Portable operators need no preparation.

        Args:
            q, k, v, index_q, index_k, cache, out: the step's own buffers, as in `sparse_layer`.

        Raises:
            CaptureRefused: the current stream is capturing.
        """
        refuse_while_capturing("decode kernels")
        if self.triton is None:
            return
        lengths = self.kv_lens.clone()
        accepted = torch.full_like(lengths, self.qo_len)
        self.triton.correct_and_plan(self.ladder, self.kv_lens, self.page_table, torch.zeros_like(lengths), accepted)
        self.plan()
        self.sparse_layer(q, k, v, index_q, index_k, cache, out)
        self.dense_layer(q, k, v, cache.dense(), out)
        self.kv_lens.copy_(lengths)
        self.plan()

    def stage(self, kv_lens: Sequence[int], rows: Sequence[Sequence[int]]) -> None:
        """Lengths and page table hold this batch, and neutral values behind it; in place, from the host.

        Args:
            kv_lens: length of each request, tokens, the Q new ones included.
            rows: physical pages of each request.

        Raises:
            BatchTooLarge, LengthTooLarge, PageOutOfRange: the batch does not fit; nothing is written.
        """
        table = pad_rows(rows, kv_lens, self.geometry, self.batch)
        lengths = torch.zeros(self.batch, dtype=torch.int32)
        lengths[: len(kv_lens)] = torch.tensor(list(kv_lens), dtype=torch.int32)
        self.page_table.copy_(table)
        self.kv_lens.copy_(lengths)

    def plan(self) -> None:
        """Every derived field follows from ``kv_lens`` and ``page_table``; device only, idempotent."""
        self.passes.plan_ladder(self.ladder, self.kv_lens, self.page_table)

    @capture_safe(dynamic=("k", "v", "index_k"), static=("self",), out=("cache",))
    def write(self, cache: PagedCache, k: torch.Tensor, v: torch.Tensor, index_k: torch.Tensor | None = None) -> None:
        """The step's keys and values stand in their slots; rows without a token go to the dummy slot.

        Args:
            cache: written in place.
            k, v: [T, Hkv, D], device.
            index_k: [T, 1, D], device; on sparse layers.

        Raises:
            ShapeMismatch: index keys without an index cache, or the other way round.
        """
        if (index_k is None) != (cache.index_k is None):
            raise ShapeMismatch("index keys and an index cache belong together; dense layers have neither")
        self.passes.write(cache, k, v, index_k, self.ladder.slots)

    @capture_safe(dynamic=("index_q", "cache"), static=("self",))
    def score(self, index_q: torch.Tensor, cache: PagedCache) -> torch.Tensor:
        """Proxy scores of the step, in ``scores``. ``index_q`` [T, Hidx, D], device.

        Raises:
            ShapeMismatch: the cache is a dense layer's.
        """
        self.passes.score(self.scores, index_q, cache, self.page_table, self.kv_lens, self.qo_len)
        return self.scores

    def select(self) -> torch.Tensor:
        """Selected pages of the step, in ``page_ids``, from ``scores``; device only."""
        self.passes.select(self.page_ids, self.scores, self.ladder.valid_pages)
        return self.page_ids

    @capture_safe(dynamic=("q", "cache"), static=("self",), out=("out",))
    def attend_sparse(self, q: torch.Tensor, cache: PagedCache, out: torch.Tensor | None = None) -> torch.Tensor:
        """Attention over ``page_ids``, in ``out``. ``q`` and ``out`` [T, Hq, D] dtype, device."""
        out = self.out if out is None else out
        ladder = self.ladder
        where = (self.page_ids, self.page_table, ladder.row_requests, self.kv_lens, ladder.qo_offsets)
        self.passes.attend_sparse(out, q, cache, *where)
        return out

    @capture_safe(dynamic=("q", "cache"), static=("self", "heads_at_once"), out=("out",))
    def attend_dense(
        self, q: torch.Tensor, cache: PagedCache, out: torch.Tensor | None = None, heads_at_once: int = 1
    ) -> torch.Tensor:
        """Attention over everything visible, in ``out``. ``q`` and ``out`` [T, Hq, D] dtype, device.

        The width is the capacity, min(table capacity, ``max_seq_len``): lengths of the batch at hand are not frozen.
        """
        out = self.out if out is None else out
        table = self.page_table.narrow(1, 0, self.geometry.dense_pages)
        self.passes.attend_dense(out, q, cache, table, self.kv_lens, self.qo_len, heads_at_once)
        return out

    @capture_safe(dynamic=("q", "k", "v", "index_q", "index_k", "cache"), static=("self",), out=("out",))
    def sparse_layer(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        index_q: torch.Tensor,
        index_k: torch.Tensor,
        cache: PagedCache,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """A sparse layer's step: write, score, select, attend. Call `plan` first.

        Args:
            q: [T, Hq, D], device.
            k, v: [T, Hkv, D], device.
            index_q: [T, Hidx, D], device.
            index_k: [T, 1, D], device.
            cache: of this layer; written in place.
            out: [T, Hq, D] dtype, device; ``self.out`` by default.
        """
        self.write(cache, k, v, index_k)
        self.score(index_q, cache)
        self.select()
        return self.attend_sparse(q, cache, out)

    @capture_safe(dynamic=("q", "k", "v", "cache"), static=("self",), out=("out",))
    def dense_layer(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        cache: PagedCache,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """A dense layer's step: write, attend. Call `plan` first. Arguments as in `sparse_layer`."""
        self.write(cache, k, v)
        return self.attend_dense(q, cache, out)

    def tensors(self) -> dict[str, torch.Tensor]:
        """Every tensor that the driver uses from step to step, by name; their addresses never change."""
        ladder = self.ladder
        workspace = {}
        if self.triton is not None:
            partials = self.triton.partials
            workspace = {"peaks": partials.peaks, "norms": partials.norms, "totals": partials.totals}
        return workspace | {
            "kv_lens": self.kv_lens,
            "page_table": self.page_table,
            "row_requests": ladder.row_requests,
            "steps": ladder.steps,
            "qo_offsets": ladder.qo_offsets,
            "extents": ladder.extents,
            "valid_pages": ladder.valid_pages,
            "slots": ladder.slots,
            "scores": self.scores,
            "page_ids": self.page_ids,
            "out": self.out,
        }


def _check_input(name: str, tensor: torch.Tensor, shape: tuple[int, ...]) -> None:
    if tuple(tensor.shape) != shape or tensor.dtype is not torch.int32 or not tensor.is_contiguous():
        raise ShapeMismatch(
            f"{name} is {tensor.dtype} {tuple(tensor.shape)}; expected a contiguous int32 tensor of shape {shape}"
        )
