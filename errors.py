"""Every fault a caller can meet, in one place.

A fault is the user's (one sentence that says what to do), the model's (transient, retried) or the contract's
(the reply does not parse). Nothing else leaves a graph on purpose.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches


class DubitoError(RuntimeError):
    """Base of every error that dubito raises on purpose; its text is one sentence fit for a terminal.

    A RuntimeError because LangGraph's server, and so Studio, shows only the text of Python's own kinds of error; in
    place of any other it says "An internal error occurred".
    """


class UserFault(DubitoError, ValueError):
    """Something the caller can mend: a missing corpus, an empty question, an unknown model, a wrong setting."""


class CapabilityMissing(UserFault):
    """The chosen model cannot do what the graph needs; the message names what can."""


class ContextOverflow(UserFault):
    """The prompt does not fit the model's context window."""


class ModelFault(DubitoError):
    """A transient fault of a model or its server (timeout, 5xx, dropped connection); a node retries it."""

    def __init__(self, endpoint: str, reason: str) -> None:
        """endpoint: the model's name or URL; reason: what happened, without a final full stop."""
        super().__init__(f"{endpoint}: {reason}.")
        self.endpoint = endpoint
        self.reason = reason


class ModelUnavailable(DubitoError):
    """A model fault that outlived its retries."""

    def __init__(self, endpoint: str, attempts: int, reason: str) -> None:
        """attempts: how many times the node was tried, the first included."""
        tries = "1 attempt" if attempts == 1 else f"{attempts} attempts"
        super().__init__(f"{endpoint} did not answer after {tries}: {reason}.")
        self.endpoint = endpoint
        self.attempts = attempts
        self.reason = reason


class ContractFault(DubitoError):
    """A model's reply that breaks the output contract of its prompt."""

    def __init__(self, problem: str, reply: str) -> None:
        """problem: what is wrong, fit to be shown to the model; reply: the text that was received."""
        super().__init__(problem)
        self.problem = problem
        self.reply = reply


def either(names: Sequence[str]) -> str:
    """'a', 'a or b', 'a, b or c'."""
    return " or ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else "".join(names)


def closest(name: str, names: Iterable[str]) -> str:
    """' (did you mean a?)' if one of the names is much like `name`, else nothing."""
    close = get_close_matches(name, list(names), n=1)
    return f" (did you mean {close[0]}?)" if close else ""
