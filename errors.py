"""Every error that dubito raises on purpose.

A user fault is a sentence that says what to do. A model fault is transient and is retried. A contract fault is a reply
that cannot be parsed.
"""

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from urllib.parse import urlsplit


class DubitoError(RuntimeError):
    """The base of every error that dubito raises on purpose. Its text is one sentence for a terminal.

    It is a RuntimeError because LangGraph's server, and so Studio, shows the text of Python's built-in errors only;
    for other errors it shows "An internal error occurred".
    """


class UserFault(DubitoError, ValueError):
    """A fault that the user can correct: a missing corpus, an empty question, an unknown model, a wrong setting."""


class CapabilityMissing(UserFault):
    """The chat model lacks a capability that the settings need. The message names models that have it."""


class ContextOverflow(UserFault):
    """The prompt does not fit into the model's context window."""


class ModelFault(DubitoError):
    """A transient fault of a model or its server: timeout, 5xx, dropped connection."""

    def __init__(self, endpoint: str, reason: str, attempts: int = 0) -> None:
        """endpoint: the model's name or URL; reason: the cause, without a full stop at its end.

        attempts: how often the request was sent; 0 if it was not retried, so that the node is.
        """
        super().__init__(f"{endpoint}: {reason}.")
        self.endpoint = endpoint
        self.reason = reason
        self.attempts = attempts


class ModelUnavailable(DubitoError):
    """A model fault that remains after all retries."""

    def __init__(self, endpoint: str, attempts: int, reason: str) -> None:
        """attempts: how many times the request was sent, or the node ran."""
        tries = "1 attempt" if attempts == 1 else f"{attempts} attempts"
        at_once = " Start it, or choose another." if attempts == 1 else ""  # it was not there when it was first asked
        super().__init__(f"{endpoint} did not answer after {tries}: {reason}.{at_once}")
        self.endpoint = endpoint
        self.attempts = attempts
        self.reason = reason


class ContractFault(DubitoError):
    """A model's reply that does not keep the output contract of its prompt."""

    def __init__(self, problem: str, reply: str, spent: tuple[int, int] = (0, 0)) -> None:
        """problem: what is wrong, in words for the model; reply: the model's reply.

        spent: the tokens that were read and written in vain, of requests that no result of a model call tells of.
        """
        super().__init__(problem)
        self.problem = problem
        self.reply = reply
        self.spent = spent


def sentence_of(fault: Exception) -> str:
    """A fault in one sentence; a fault of dubito itself is named with its kind."""
    if isinstance(fault, DubitoError):
        return str(fault)
    first_line = next(iter(str(fault).splitlines()), "")
    return f"Unexpected {type(fault).__name__}: {first_line[:300]} (run again with DUBITO_DEBUG=1 to see where)."


def either(names: Sequence[str]) -> str:
    """'a', 'a or b', 'a, b or c'."""
    return " or ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else "".join(names)


def closest(name: str, names: Iterable[str]) -> str:
    """' (did you mean a?)' if a name is similar to `name`; else an empty text."""
    close = get_close_matches(name, list(names), n=1)
    return f" (did you mean {close[0]}?)" if close else ""


def install_command(words: str) -> str:
    """The command that installs something beside dubito: of pip, uv or pipx, whichever installed dubito.

    words: pip's arguments, as typed in a shell.
    """
    if _said_at_installation("INSTALLER").strip() == "uv":  # its environments have no pip
        return f'uv pip install --python "{sys.prefix}" {words}'
    environment = Path(sys.prefix)
    if (environment / "pipx_metadata.json").exists():
        if environment.parent.name == "venvs":
            return f"pipx runpip {environment.name} install {words}"
        return f'"{sys.executable}" -m pip install {words}'  # that of `pipx run` has no name
    return f"pip install {words}"


def extra_command(extra: str) -> str:
    """The command that adds an extra of dubito, from where dubito was installed: an index, a folder or a repository."""
    from urllib.request import url2pathname  # noqa: PLC0415 - keeps `--help` quick

    source = json.loads(_said_at_installation("direct_url.json") or "{}")
    url = source.get("url", "")
    if source.get("dir_info", {}).get("editable"):
        return install_command(f'-e "{url2pathname(urlsplit(url).path)}[{extra}]"')
    if repository := source.get("vcs_info"):
        url = f"{repository['vcs']}+{url}@{repository['commit_id']}"
    return install_command(f'"dubito[{extra}] @ {url}"' if url else f'"dubito[{extra}]"')


@contextmanager
def needs_extra(what: str, extra: str) -> Iterator[None]:
    """Turn a failed import into a `UserFault`. what: a clause that says what needs the extra's packages."""
    try:
        yield
    except ImportError as error:
        raise UserFault(f"{what}: {extra_command(extra)}.") from error


def _said_at_installation(file: str) -> str:
    """A file of dubito's metadata; empty without the file, and for a dubito that was not installed."""
    from importlib.metadata import distributions  # noqa: PLC0415 - keeps `--help` quick

    # in a copy of the repository there may be metadata of a build too, which no installer wrote
    installed = (found for found in distributions(name="dubito") if found.read_text("INSTALLER"))
    found = next(installed, None)
    return "" if found is None else found.read_text(file) or ""
