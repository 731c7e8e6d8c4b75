"""Target and draft caches that always hold the same requests."""

from __future__ import annotations

from eagle3.errors import ManagerMismatch, RequestExists
from eagle3.kv_manager.manager_v2 import KvManagerV2


class CachePair:
    """Every call reaches both managers or has no effect.

    So the draft's pool is a part of admission: where it is exhausted, a request waits as it does for the target's.

    Args:
        target: of the target's layers.
        draft: of the draft's; None if the target's pool holds them too, or nothing is drafted.

    Raises:
        ManagerMismatch: a manager cannot suspend requests, as the scheduler needs.
    """

    def __init__(self, target: KvManagerV2, draft: KvManagerV2 | None = None) -> None:
        for role, manager in (("target", target), ("draft", draft)):
            if manager is not None and not manager.can_suspend:
                raise ManagerMismatch(
                    f"the {role} cache is a {type(manager).__name__}, which cannot suspend requests, under a scheduler "
                    "that does; resolve both managers with resolve_managers, which gives a V2 target a V2 draft"
                )
        self.target = target
        self.draft = draft
        self.managers = [target] if draft is None else [target, draft]

    def must_be_new(self, request: int) -> None:
        """Pass if neither manager knows the request.

        Raises:
            RequestExists: one does.
        """
        if any(request in manager.caches for manager in self.managers):
            raise RequestExists(f"request {request} has a cache already; free it before the id is used again")

    def prepare_context(self, request: int) -> bool:
        """As of `KvManagerV2`, for both."""
        return self._together(request, [manager.prepare_context(request) for manager in self.managers])

    def resize_context(self, request: int, tokens: int) -> bool:
        """As of `KvManagerV2`, for both."""
        return self._together(request, [manager.resize_context(request, tokens) for manager in self.managers])

    def try_allocate_generation(self, request: int, draft_len: int) -> bool:
        """As of `KvManagerV2`, for both."""
        granted = [manager.try_allocate_generation(request, draft_len) for manager in self.managers]
        return self._together(request, granted)

    def launch(self, request: int) -> None:
        """The granted step is in flight."""
        for manager in self.managers:
            manager.launch(request)

    def cancel(self, request: int) -> None:
        """The granted step will not run."""
        for manager in self.managers:
            manager.cancel(request)

    def update_resources(self, request: int, kept: int) -> None:
        """The oldest step in flight kept ``kept`` of its tokens."""
        for manager in self.managers:
            manager.update_resources(request, kept)

    def suspend_request(self, request: int) -> None:
        """The request holds no pages of either pool."""
        for manager in self.managers:
            manager.suspend_request(request)

    def is_request_active(self, request: int) -> bool:
        """Whether its pages are in both pools."""
        return all(manager.is_request_active(request) for manager in self.managers)

    def free_resources(self, request: int) -> None:
        """Neither manager knows the request."""
        for manager in self.managers:
            if request in manager.caches:
                manager.free_resources(request)

    def _together(self, request: int, done: list[bool]) -> bool:
        """Whether all managers did it; if not, nothing is granted, and the request is active in both or in neither."""
        if all(done):
            return True
        self.cancel(request)
        if not self.is_request_active(request):
            self.suspend_request(request)
        return False
