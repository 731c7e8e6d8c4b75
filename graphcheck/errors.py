"""Exceptions of graphcheck: one per cause.

::

    GraphcheckError
    ├── UsageError                  what the caller asked for cannot be understood (exit 2)
    │   ├── UnknownTarget           no component, code or file of that name
    │   ├── ContractError           a component breaks the contract (also a TypeError)
    │   ├── ComponentRaised         a component's own code raised where it must not
    │   ├── MalformedFile           a repro file, trace or report that does not hold what it should
    │   └── PlanError               a plan that this component cannot run
    ├── EnvironmentUnable           this machine cannot run what was asked (exit 3)
    │   └── UnseenLaunch            a kernel launch that the backend cannot see
    ├── CaptureRefused              an operation that CUDA refuses while a stream is capturing (also a RuntimeError)
    ├── UnknownOperator             the emulator has no rule for an operator (also a RuntimeError)
    ├── ReplayFailed                a replay raised instead of finishing (also a RuntimeError)
    └── CaseRefused                 a component refuses a case that lies outside what it was built for (also a ValueError)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from graphcheck.finding import Location


class GraphcheckError(Exception):
    """Base of everything that graphcheck raises on purpose."""


class UsageError(GraphcheckError):
    """What the caller asked for cannot be understood. Exit code 2."""


class UnknownTarget(UsageError):
    """A component, code or file of that name does not exist."""


class ContractError(UsageError, TypeError):
    """A component hides a member of the contract with something else, or returns the wrong thing."""


class ComponentRaised(UsageError):
    """A component's own code raised outside the cases in which raising is an answer.

    Args:
        member: the member of the contract that raised, for instance ``"allocate"``.
        cause: the exception.
        where: the component's own line.
    """

    def __init__(self, component: str, member: str, cause: BaseException, where: Location | None = None) -> None:
        self.component = component
        self.member = member
        self.cause = cause
        self.where = where
        place = f" at {where}" if where is not None else ""
        super().__init__(
            f"{component}.{member} raised {type(cause).__name__}: {cause}{place}; fix the component, "
            "or raise CaseRefused from stage if the case lies outside what it was built for"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.component, self.member, self.cause, self.where)


class MalformedFile(UsageError):
    """A repro file, trace or report does not hold what it should."""


class PlanError(UsageError):
    """A plan cannot be run by this component."""


class EnvironmentUnable(GraphcheckError):
    """This machine cannot run what was asked. Exit code 3."""


class UnseenLaunch(EnvironmentUnable):
    """A kernel launch went past the backend, so a recording would silently lack it."""


class CaptureRefused(GraphcheckError, RuntimeError):
    """CUDA refuses this operation while a stream is capturing.

    Args:
        code: the catalogue's code, for instance ``"GC102"``.
        what: what the code tried, as a clause.
        advice: what to write instead.
        where: the first source line outside torch and graphcheck.
    """

    def __init__(self, code: str, what: str, advice: str, where: Location | None = None) -> None:
        self.code = code
        self.what = what
        self.advice = advice
        self.where = where
        place = f" at {where}" if where is not None else ""
        super().__init__(f"{code}: {what}{place}; {advice}")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.code, self.what, self.advice, self.where)


class UnknownOperator(GraphcheckError, RuntimeError):
    """The emulator has no rule for an operator, and recording nothing would be a silent pass."""


class ReplayFailed(GraphcheckError, RuntimeError):
    """A replay raised instead of finishing."""


class CaseRefused(GraphcheckError, ValueError):
    """A component refuses a case that lies outside what it was built for (capacity exceeded, for instance)."""
