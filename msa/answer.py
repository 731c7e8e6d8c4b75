"""The right answers for a scene, from the float64 formulas; host, slow, independent of driver and eager API."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from msa import reference as formulas
from msa.geometry import FP8
from msa.scene import Scene


def caches_after(
    scene: Scene,
    caches: Mapping[str, torch.Tensor],
    fresh: Mapping[str, torch.Tensor],
    scales: Mapping[str, float] | None = None,
) -> dict[str, torch.Tensor]:
    """The caches once the step's tokens are written.

    Args:
        scene: the batch.
        caches: by name, [pages + 1, heads, P, D], host.
        fresh: by the same names, [T, heads, D], host: the step's keys or values.
        scales: by the same names, of caches that are stored as fp8.
    """
    after = {name: tensor.clone() for name, tensor in caches.items()}
    for row in range(scene.real_rows):
        if scene.position(row) >= 0:
            page, offset = scene.slot(row // scene.qo_len, scene.position(row))
            for name, tensor in after.items():
                value = fresh[name][row]
                if tensor.dtype is FP8:
                    value = (value.float() / (scales or {}).get(name, 1.0)).clamp(-448, 448)
                tensor[page, :, offset] = value.to(tensor.dtype)
    return after


def slots(scene: Scene) -> torch.Tensor:
    """Where each row of the bucket writes, int64 [T], host."""
    out = torch.full((scene.batch * scene.qo_len,), scene.geometry.dummy_slot)
    for row in range(scene.real_rows):
        if scene.position(row) >= 0:
            page, offset = scene.slot(row // scene.qo_len, scene.position(row))
            out[row] = page * scene.geometry.page_size + offset
    return out


def scores(scene: Scene, index_cache: torch.Tensor, index_q: torch.Tensor) -> torch.Tensor:
    """Proxy scores float64 [Hidx, T, W]; zero where no row sees the page.

    Args:
        index_cache: [pages + 1, 1, P, D], host, with the step's tokens.
        index_q: [T, Hidx, D], host.
    """
    geometry = scene.geometry
    out = torch.zeros(geometry.index_heads, scene.batch * scene.qo_len, geometry.max_pages, dtype=torch.float64)
    for row in range(scene.real_rows):
        (keys,) = _visible(scene, row, index_cache)
        mine = formulas.page_scores(index_q[row], keys[:, 0], geometry.page_size)
        out[:, row, : mine.shape[1]] = mine
    return out


def page_ids(scene: Scene, given: torch.Tensor) -> torch.Tensor:
    """Selected pages int32 [T, Hkv, K] in the total order of the scores that were given, [Hidx, T, W], host."""
    geometry = scene.geometry
    ids = torch.full((scene.batch * scene.qo_len, geometry.kv_heads, geometry.top_k), -1, dtype=torch.int32)
    for row, count in enumerate(scene.valid_pages().tolist()):
        for head in range(geometry.kv_heads):
            mine = given[head, row, :count].tolist()
            chosen = formulas.select(mine, geometry.top_k, geometry.init_pages, geometry.local_pages)
            ids[row, head, : len(chosen)] = torch.tensor(chosen, dtype=torch.int32)
    return ids


def confirmed(scene: Scene, ids: torch.Tensor, right: torch.Tensor, slack: float) -> torch.Tensor:
    """The pages that were chosen, int32 [T, Hkv, K], where float64 scores allow the choice; else the right ones.

    Args:
        ids: [T, Hkv, K], host: what was chosen.
        right: [Hidx, T, W] float64, host: scores.
        slack: how far two scores may lie apart and still come in either order.
    """
    best = page_ids(scene, right)
    confirmed = ids.clone()
    geometry = scene.geometry
    for row, count in enumerate(scene.valid_pages().tolist()):
        forced = {*range(min(geometry.init_pages, count)), *range(max(count - geometry.local_pages, 0), count)}
        for head in range(geometry.kv_heads):
            mine = ids[row, head].tolist()
            pages = [page for page in mine if page >= 0]
            others = [float(right[head, row, page]) for page in range(count) if page not in pages]
            scored = [float(right[head, row, page]) for page in pages if page not in forced and page < count]
            listed = sorted(set(pages)) + [-1] * (geometry.top_k - len(pages))
            fits = mine == listed and len(pages) == min(geometry.top_k, count) and forced <= set(pages)
            if not fits or pages[-1:] > [count - 1] or (others and scored and min(scored) < max(others) - slack):
                confirmed[row, head] = best[row, head]
    return confirmed


def sparse_out(
    scene: Scene, k_cache: torch.Tensor, v_cache: torch.Tensor, q: torch.Tensor, ids: torch.Tensor
) -> torch.Tensor:
    """Attention float64 [T, Hq, D] over the given pages [T, Hkv, K]; caches with the step's tokens, host."""
    geometry = scene.geometry
    out = torch.zeros(q.shape, dtype=torch.float64)
    for row in range(scene.real_rows):
        keys, values = _visible(scene, row, k_cache, v_cache)
        out[row] = formulas.sparse_attention(q[row], keys, values, ids[row], geometry.page_size, geometry.scale)
    return out


def dense_out(scene: Scene, k_cache: torch.Tensor, v_cache: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """Attention float64 [T, Hq, D] over everything visible; caches with the step's tokens, host."""
    out = torch.zeros(q.shape, dtype=torch.float64)
    for row in range(scene.real_rows):
        keys, values = _visible(scene, row, k_cache, v_cache)
        out[row] = formulas.attention(q[row], keys, values, scene.geometry.scale)
    return out


def _visible(scene: Scene, row: int, *caches: torch.Tensor) -> list[torch.Tensor]:
    """The tokens that a real row sees, float64 [n, heads, D], of each cache."""
    extent = max(scene.position(row) + 1, 0)
    pages = scene.rows[row // scene.qo_len][: scene.geometry.pages(extent)]
    return [formulas.tokens(cache, pages, extent) for cache in caches]
