"""Which path serves a batch."""

from __future__ import annotations

import pytest

from msa import Path, route
from msa.bench import small
from msa.errors import RoutingRefused


def test_uniform_generation_is_decode_shaped():
    assert route([4, 4, 4], [False] * 3, small()).decode_qo_len == 4
    assert route([1], [False], small()).path is Path.DECODE


def test_a_context_request_sends_the_batch_to_the_extend_path():
    chosen = route([300, 4, 2], [True, False, False], small())
    assert chosen.path is Path.EXTEND and chosen.decode_qo_len is None


@pytest.mark.parametrize(
    ("qo_lens", "words"),
    [([4, 3], "split the batch by draft length"), ([9, 9], "at most 8"), ([], "at least one"), ([0, 1], "request 0")],
)
def test_what_no_path_serves_is_refused_with_a_reason(qo_lens, words):
    with pytest.raises(RoutingRefused, match=words):
        route(qo_lens, [False] * len(qo_lens), small())
