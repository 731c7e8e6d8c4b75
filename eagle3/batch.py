"""The batch that a step holds: whose tokens, lengths and pages stand in its rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from eagle3.prompt import page_rows
from eagle3.step import SpeculativeStep
from eagle3.text import Text

Rows = list[list[int]]


class Batch:
    """Requests in the order of a step's rows.

    A step carries its requests on by itself, so as long as they are the same ones in the same rows nothing but pages is
    staged. Where they are not, what the step has left for them is read first: their next drafts are nowhere else.

    Attributes:
        step: the last one staged; None before the first.
        requests: ids, in the order of its rows.
    """

    def __init__(self) -> None:
        self.step: SpeculativeStep | None = None
        self.requests: list[int] = []
        self._pages: tuple[Rows, Rows] | None = None

    def stage(
        self,
        step: SpeculativeStep,
        requests: Sequence[int],
        texts: Mapping[int, Text],
        pages: Rows,
        draft_pages: Rows,
    ) -> None:
        """The step's inputs are those of these requests, and neutral values behind them.

        Args:
            step: to be run next.
            requests: ids, in the order of the rows.
            texts: of all requests, by id; tokens and ``past`` are up to date.
            pages, draft_pages: of each request, physical; those of the draft are not looked at without a head.
        """
        if step is not self.step or list(requests) != self.requests:
            self._fetch(texts)
            rows = [[texts[request].tokens[-1], *texts[request].drafts] for request in requests]
            step.inputs[: len(rows)].copy_(torch.tensor(rows))
            step.lengths.stage([texts[request].past for request in requests])
            self.step, self.requests, self._pages = step, list(requests), None
        if self._pages == (pages, draft_pages):
            return
        batch = step.lengths.batch
        step.page_table.copy_(page_rows(pages, step.driver.geometry, batch))
        if step.loop is not None:
            step.loop.page_table.copy_(page_rows(draft_pages, step.loop.geometry, batch))
        self._pages = (pages, draft_pages)

    def _fetch(self, texts: Mapping[int, Text]) -> None:
        """The drafts that the last step left on the device are on the host."""
        if self.step is None:
            return
        drafts = self.step.inputs[: len(self.requests), 1:].tolist()
        for request, row in zip(self.requests, drafts, strict=True):
            texts[request].drafts = row
