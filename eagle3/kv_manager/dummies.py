"""Dummy requests: they hold what the largest real ones would, for warm-up and for ranks without work."""

from __future__ import annotations

from collections.abc import Sequence

from eagle3.accept import PADDING_TOKEN
from eagle3.errors import ShapeMismatch
from eagle3.kv_manager.pair import CachePair


def dummy_id(draft_len: int) -> int:
    """Id of the dummy request for this draft length, out of the way of real ones."""
    return 2**64 - 1 - draft_len


def add_dummy_requests(
    caches: CachePair,
    requests: Sequence[int],
    token_nums: Sequence[int],
    draft_len: int,
    *,
    is_gen: bool = True,
    extra_steps: int = 0,
) -> list[list[int]] | None:
    """Dummy requests whose coming step is granted in both pools; None if not all of them fit, and then none is there.

    Args:
        caches: of target and draft.
        requests: ids.
        token_nums: tokens of each, drafts not counted: of a generation request its history and one token more.
        draft_len: L of the step.
        is_gen: whether the requests generate; otherwise the step reads all their tokens as a prompt.
        extra_steps: tokens beyond that, one for each further decoding step.

    Returns:
        The query tokens of each request's step, `PADDING_TOKEN` throughout.

    Raises:
        ShapeMismatch: not one number >= 1 for each request.
        RequestExists: an id is in use.
    """
    if len(requests) != len(token_nums) or any(tokens < 1 for tokens in token_nums):
        raise ShapeMismatch(f"token_nums {list(token_nums)} for {len(requests)} dummy requests; expected one >= 1 each")
    added: list[int] = []
    try:
        for request, tokens in zip(requests, token_nums, strict=True):
            caches.must_be_new(request)
            added.append(request)
            if not _add(caches, request, tokens, draft_len, is_gen, extra_steps):
                _remove(caches, added)
                return None
    except BaseException:
        _remove(caches, added)
        raise
    step = [1 + draft_len if is_gen else tokens for tokens in token_nums]
    return [[PADDING_TOKEN] * tokens for tokens in step]


def _add(caches: CachePair, request: int, tokens: int, draft_len: int, is_gen: bool, extra_steps: int) -> bool:
    if not caches.prepare_context(request):
        return False
    if not is_gen:
        return caches.resize_context(request, tokens + extra_steps)
    if tokens > 1:
        if not caches.resize_context(request, tokens - 1):
            return False
        caches.launch(request)
        caches.update_resources(request, tokens - 1)
    return caches.try_allocate_generation(request, draft_len + extra_steps)


def _remove(caches: CachePair, requests: Sequence[int]) -> None:
    for request in requests:
        caches.free_resources(request)
