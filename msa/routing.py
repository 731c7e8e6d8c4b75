"""Routing: which path serves a batch."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

from msa.errors import RoutingRefused
from msa.geometry import Geometry


class Path(enum.Enum):
    """How a batch runs."""

    DECODE = "decode"  # the captured driver, one qo_len for all
    EXTEND = "extend"  # the eager API, never captured


@dataclass(frozen=True)
class Route:
    """The path of a batch.

    Args:
        path: which.
        decode_qo_len: 1 + draft_len on the decode path; None on the extend path.
    """

    path: Path
    decode_qo_len: int | None = None


def route(qo_lens: Sequence[int], is_context: Sequence[bool], geometry: Geometry) -> Route:
    """The path of a batch, from what the host knows of it.

    Uniform pure generation is decode-shaped. A batch with any context request takes the eager extend path, where
    generation rows are short extends of whatever length.

    Args:
        qo_lens: query tokens of each request; 1 + draft_len for generation.
        is_context: whether each request still reads its prompt.
        geometry: bounds of the decode path.

    Raises:
        RoutingRefused: the batch is empty or malformed, or pure generation with different numbers of query tokens.
    """
    if not qo_lens or len(qo_lens) != len(is_context):
        raise RoutingRefused(
            f"{len(qo_lens)} qo_lens and {len(is_context)} flags; expected as many of both, at least one"
        )
    short = [f"request {b}: {qo_len}" for b, qo_len in enumerate(qo_lens) if qo_len < 1]
    if short:
        raise RoutingRefused(f"requests without query tokens ({', '.join(short)}); leave them out of the batch")
    if any(is_context):
        return Route(Path.EXTEND)
    if len(set(qo_lens)) > 1:
        raise RoutingRefused(
            f"generation requests with different numbers of query tokens {list(qo_lens)}; "
            "pad the drafts to one length, or split the batch by draft length"
        )
    if qo_lens[0] > geometry.max_qo_len:
        raise RoutingRefused(
            f"{qo_lens[0]} query tokens per generation request, expected at most {geometry.max_qo_len}; "
            "shorten the draft or raise max_qo_len"
        )
    return Route(Path.DECODE, qo_lens[0])
