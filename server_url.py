"""The URL of a server that a setting may name, and the key that goes there.

A key is bound to hosts, so that whoever may name a server cannot choose where a key goes:

- `OPENAI_API_KEY` goes to https://api.openai.com alone;
- `DUBITO_API_KEY`, and `DUBITO_QDRANT_API_KEY` for Qdrant, go to the servers in `DUBITO_ALLOW` and in `DUBITO_KEYS`,
  where the command line adds those in its arguments;
- `DUBITO_KEYS`, and the table `[keys]` of a configuration file that is named, may name another key for a host.
"""

import os
import re
import shlex
from collections.abc import Iterable, Iterator
from urllib.parse import urlsplit

from pydantic import SecretStr

from .config import config
from .errors import UserFault
from .settings import settings

Place = tuple[str, str, int]
"""Scheme, host and port."""

OPENAI: Place = ("https", "api.openai.com", 443)

_VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]*")
_URL = re.compile(r"https?://[^\s'\"#&,]+", re.IGNORECASE)
_SECRET = re.compile(r"https?://(?:[^\s/?#]*@|[^\s?#]*\?)", re.IGNORECASE)
_PASSWORD = re.compile(r"postgres(?:ql)?://(?:[^\s@/?#]*:[^\s@]*@|\S*password=)", re.IGNORECASE)


def checked_url(url: str, example: str) -> str:
    """A server's URL without a slash at its end; `UserFault` if it holds a key or is no such URL.

    example: a right URL, for the message.
    """
    trimmed = url.strip().rstrip("/")
    refuse_secrets(trimmed)
    try:
        parts = urlsplit(trimmed)
        is_valid = parts.scheme in {"http", "https"} and (parts.hostname or "").encode("idna") and parts.port != 0
    except ValueError:  # UnicodeError is one
        is_valid = False
    if not is_valid or "#" in trimmed or any(c.isspace() or not c.isprintable() for c in trimmed):
        raise UserFault(f"{url!r} is not the URL of a server: write it as in {example}.")
    return trimmed


def with_path(url: str) -> str:
    """A server's URL, with /v1 if it has no path: `http://127.0.0.1:8000` is `http://127.0.0.1:8000/v1`."""
    trimmed = url.strip().rstrip("/")
    return f"{trimmed}/v1" if re.fullmatch(r"https?://[^/?#]+", trimmed, re.IGNORECASE) else trimmed


def each_url(address: str) -> list[str]:
    """The URLs of a server's name, several between commas, each with its path (see `with_path`)."""
    return list(dict.fromkeys(with_path(url) for url in address.split(",")))


def ollama_url() -> str:
    """The URL of Ollama: http://127.0.0.1:11434/v1, or the server that OLLAMA_HOST names in one of Ollama's forms."""
    host = os.environ.get("OLLAMA_HOST", "").strip() or "127.0.0.1"
    scheme, sign, rest = host.partition("://")
    scheme, rest = (scheme, rest) if sign else ("http", host)
    place = rest.rstrip("/")
    has_port = re.search(r":\d+$", place) and (place.count(":") == 1 or "]" in place)
    if not (has_port or sign or "/" in place):
        place = f"[{place}]:11434" if place.count(":") > 1 and "]" not in place else f"{place}:11434"
    # the address to listen on at every interface is none to connect to
    place = place.replace("0.0.0.0", "127.0.0.1")  # noqa: S104
    url = checked_url(f"{scheme}://{place}", "OLLAMA_HOST=127.0.0.1:11434")
    return f"{url.removesuffix('/v1')}/v1"


def refuse_secrets(text: str) -> None:
    """Raise `UserFault` for a text with a URL that may hold a key; the URL is not quoted."""
    if _SECRET.search(text):
        raise UserFault(
            "A server's URL must not hold a user name, a password or anything behind a question mark: put the key "
            "into DUBITO_KEYS, as HOST=KEY, and leave it out of the URL."
        )
    if _PASSWORD.search(text):
        raise UserFault(
            "A database's URL must not hold a password: put it into the environment variable PGPASSWORD or the file "
            "~/.pgpass, and leave it out of the URL."
        )


def key_for(url: str, general: SecretStr | None) -> str:
    """The key for a server; empty if none may go there. general: the key for servers of the configuration."""
    place, bound = _place(url), _bound_keys()
    if own := bound.get(place):
        return own
    if general is not None and (place in bound or place in _configured_places()):
        return _clean(general.get_secret_value(), "DUBITO_API_KEY")
    return _clean(os.environ.get("OPENAI_API_KEY", ""), "OPENAI_API_KEY") if place == OPENAI else ""


def _configured_places() -> set[Place]:
    """The servers that the operator named. A file that only lies in the working directory says nothing about keys."""
    file = config()
    texts = [settings().allow or ""] if file.named or os.environ.get("DUBITO_ALLOW") else []
    if file.named:
        texts.append(str([file.values, file.tables]))
    return {place for text in texts for place in _places(text)}


def without_keys(text: str) -> str:
    """A text in which every key of this process is replaced by ***."""
    own = settings()
    secrets = [own.api_key, own.qdrant_api_key, own.token]
    keys = [secret.get_secret_value() for secret in secrets if secret]
    keys += [os.environ.get("OPENAI_API_KEY", ""), *_bound_keys().values()]
    for key in keys:
        text = text.replace(key.strip(), "***") if key.strip() else text
    return text


def bind_general_keys(texts: Iterable[str]) -> None:
    """Let the general keys go to the servers that these texts name, here and in processes started from here."""
    named = dict.fromkeys(place for text in texts for place in _places(text))
    if named:
        added = [_written(place) for place in named if place not in _bound_keys()]
        os.environ["DUBITO_KEYS"] = " ".join([os.environ.get("DUBITO_KEYS", ""), *added]).strip()
        settings.cache_clear()


def _bound_keys() -> dict[Place, str]:
    """The keys of DUBITO_KEYS and of the configuration file, empty for a server that gets the general key.

    Raises `UserFault` if they cannot be read.
    """
    given = settings().keys
    bound: dict[Place, str] = {}
    try:
        entries = shlex.split(given.get_secret_value() if given else "")
    except ValueError as fault:
        raise UserFault(f"DUBITO_KEYS cannot be read ({fault}): close its quotation marks.") from None
    of_file = [f"{server}=${variable}" for server, variable in config().variables_of_keys().items()]
    for entry in [*of_file, *entries]:  # the environment has the last word
        server, sign, key = entry.partition("=")
        place = _place(checked_url(server if "://" in server else f"https://{server}", "https://host"))
        if sign and not key.strip():
            raise UserFault("DUBITO_KEYS takes HOST, HOST=KEY or HOST=$VARIABLE, separated by spaces.")
        if key.startswith("$"):
            variable = key[1:].strip("{}")
            key = os.environ.get(variable, "").strip()
            if not key:  # an empty key would stand for the general one
                what = f" {variable}" if _VARIABLE.fullmatch(variable) else ""  # anything else may be a key
                raise UserFault(
                    f"The key for {server} is to come from the environment variable{what}, which is not set: set it, "
                    f"or take {server} out of DUBITO_KEYS."
                )
        bound[place] = _clean(key, f"The key for {server} in DUBITO_KEYS")
    return bound


def _places(text: str) -> Iterator[Place]:
    for url in _URL.findall(text):
        try:
            yield _place(url)
        except ValueError:
            continue


def _place(url: str) -> Place:
    parts = urlsplit(url)
    scheme = parts.scheme.lower()
    return scheme, (parts.hostname or "").rstrip("."), parts.port or (443 if scheme == "https" else 80)


def _written(place: Place) -> str:
    scheme, host, port = place
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"


def _clean(key: str, name: str) -> str:
    key = key.strip()
    if not (key.isascii() and key.isprintable()):
        raise UserFault(f"{name} has characters that a key cannot have.")
    return key
