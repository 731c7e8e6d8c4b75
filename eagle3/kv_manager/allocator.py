"""The page pool: which physical pages are free."""

from __future__ import annotations

from collections.abc import Iterable

from eagle3.errors import KvError, OutOfPages, PageNotHeld


class PagePool:
    """Pages 0..num_pages-1, each held by nobody or by one owner. The cache's dummy page lies behind them.

    Args:
        num_pages: of the pool.

    Raises:
        KvError: there is no page.
    """

    def __init__(self, num_pages: int) -> None:
        if num_pages < 1:
            raise KvError(f"a pool of {num_pages} pages; expected at least 1")
        self.num_pages = num_pages
        self.held: set[int] = set()
        # The page freed last is handed out first, so a stale table is found out by the next request.
        self._free = list(range(num_pages - 1, -1, -1))

    @property
    def free(self) -> int:
        """Pages that nobody holds."""
        return len(self._free)

    def take(self, count: int) -> list[int]:
        """Pages that are now held.

        Raises:
            OutOfPages: fewer are free; nothing is taken.
        """
        if count > self.free:
            raise OutOfPages(f"{count} pages asked for, {self.free} of {self.num_pages} free; suspend a request first")
        pages = [self._free.pop() for _ in range(count)]
        self.held.update(pages)
        return pages

    def give(self, pages: Iterable[int]) -> None:
        """The pages are free again.

        Raises:
            PageNotHeld: some of them are not held, or stand there twice; nothing is given back.
        """
        pages = list(pages)
        wrong = sorted({page for page in pages if page not in self.held or pages.count(page) > 1})
        if wrong:
            raise PageNotHeld(f"pages {wrong} come back but nobody holds them; each is given back once")
        self.held.difference_update(pages)
        self._free += reversed(pages)
