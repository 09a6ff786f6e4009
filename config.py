"""The configuration file: dubito.toml in the working directory, or the file that --config or DUBITO_CONFIG names.

At its top it has settings of all graphs; a table such as `[df_rag]` has those of one graph. Further tables: `[eval]`,
`[ask]`, `[ui]`, `[mcp]` and `[calibrate]` have the options of a command, `[process]` the settings of the process,
`[keys]` the environment variable that has a server's key.
"""

import logging
import os
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from .errors import UserFault, closest, either

NAMES = ("dubito.toml", "dubito.yaml", "dubito.yml")
"""The files that are looked for in the working directory."""

COMMANDS = ("ask", "calibrate", "eval", "mcp", "ui")
"""The commands that have a table of options."""

PROCESS, KEYS = "process", "keys"

LONGEST = 1_000_000
"""Bytes of a configuration file."""

_SECRETS = {"api_key": "DUBITO_API_KEY", "qdrant_api_key": "DUBITO_QDRANT_API_KEY", "token": "DUBITO_TOKEN"}

_VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]*")
_OTHER_MACHINE = re.compile(
    r"https?://(?!(?:localhost|127\.0\.0\.1|\[::1\])(?:[:/\s'\"#&]|$))[^/\s'\"#&?@]+", re.IGNORECASE
)

logger = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class Configuration:
    """What a configuration file says; empty without a file.

    named: was the file named by --config or DUBITO_CONFIG? values: the entries at its top; tables: its tables.
    """

    path: Path | None = None
    named: bool = False
    values: Mapping[str, Any] = field(default_factory=dict)
    tables: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def place(self, name: str, table: str = "") -> str:
        """An entry in words: 'dubito.toml: k', 'dubito.toml: [df_rag] k'."""
        return f"{self.path}: {f'[{table}] ' if table else ''}{name}"

    def check_names(self, table: str, known: Iterable[str]) -> Mapping[str, Any]:
        """The entries of a table ('': the top); `UserFault` if one of them is not known."""
        entries, names = self.tables.get(table, {}) if table else self.values, list(known)
        for name in entries:
            if name not in names:
                where = f"[{table}]" if table else "the file's top"
                allowed = closest(name, names) or f": {where} takes {either(sorted(names))}"
                raise UserFault(f"{self.place(name, table)} is unknown{allowed}.")
        return entries

    def variables_of_keys(self) -> Mapping[str, str]:
        """For each server of `[keys]`, the environment variable that has its key. No value is ever quoted."""
        entries = self.tables.get(KEYS, {})
        if entries and not self.named:
            raise UserFault(
                f"{self.path}: [{KEYS}] is read only from a file that --config or DUBITO_CONFIG names, so that no "
                f"folder decides where keys go: name this file, as in DUBITO_CONFIG={self.path}."
            )
        for host, variable in entries.items():
            if not isinstance(variable, str) or not _VARIABLE.fullmatch(variable) or not os.environ.get(variable):
                raise UserFault(
                    f"{self.place(host, KEYS)} must be the name of an environment variable that has the key, such as "
                    f'"{host}" = "MY_API_KEY": set the variable, and write no key into the file.'
                )
        return entries


@lru_cache(maxsize=1)
def config() -> Configuration:
    """The configuration file, read once; `UserFault` for a file that cannot be used.

    A file that nobody named is announced with a warning if it names a server on another machine.
    """
    named = os.environ.get("DUBITO_CONFIG")
    if named:
        return _read(Path(named).expanduser(), named=True)
    found = [path for path in map(Path, NAMES) if path.exists()]
    if len(found) > 1:
        raise UserFault(
            f"{either([path.name for path in found])}: there may be one configuration file in a folder, and "
            f"'{Path.cwd()}' has {len(found)}: keep one of them, or name one in --config or DUBITO_CONFIG."
        )
    if not found:
        return Configuration()
    file = _read(found[0], named=False)
    if servers := sorted(set(_OTHER_MACHINE.findall(str([file.values, file.tables])))):
        logger.warning(
            "%s, which lies in this folder, sends questions and passages to %s. If that is right, name the file in "
            "--config or DUBITO_CONFIG.",
            file.path,
            ", ".join(servers),
        )
    return file


def _read(path: Path, *, named: bool) -> Configuration:
    try:
        with path.open("rb") as file:
            raw = file.read(LONGEST + 1)
    except OSError as fault:
        raise UserFault(f"The configuration file '{path}' cannot be read: {fault.strerror or fault}.") from fault
    if len(raw) > LONGEST:
        raise UserFault(f"The configuration file '{path}' is longer than {LONGEST:,} bytes: name another file.")
    try:
        entries = _parsed(raw.decode(), path)
    except UnicodeDecodeError as fault:
        raise UserFault(f"The configuration file '{path}' is not UTF-8 text.") from fault
    except RecursionError as fault:
        raise UserFault(f"The configuration file '{path}' is nested too deeply.") from fault
    if not isinstance(entries, dict) or not all(isinstance(name, str) for name in entries):
        raise UserFault(f"'{path}' is not a configuration file: write settings as name and value, such as k = 5.")
    entries = {name: value for name, value in entries.items() if value is not None}  # an empty table in YAML
    tables = {name: value for name, value in entries.items() if isinstance(value, dict)}
    values = {name: value for name, value in entries.items() if name not in tables}
    for table, name in [("", name) for name in values] + [(PROCESS, name) for name in tables.get(PROCESS, {})]:
        if name in _SECRETS:
            place = Configuration(path).place(name, table)
            raise UserFault(
                f"{place} is a secret: delete it from the file, and keep it in the environment variable "
                f"{_SECRETS[name]}."
            )
    return Configuration(path, named, values, tables)


def _parsed(text: str, path: Path) -> Any:  # noqa: ANN401 - whatever the file holds
    if path.suffix == ".toml":
        try:
            return tomllib.loads(text)
        except tomllib.TOMLDecodeError as fault:
            raise UserFault(f"'{path}' is not TOML: {str(fault).rstrip('.')}.") from fault
    if path.suffix in {".yaml", ".yml"}:
        import yaml  # noqa: PLC0415 - slow to import, and most files are TOML

        try:
            return yaml.safe_load(text) or {}
        except yaml.YAMLError as fault:
            mark, problem = getattr(fault, "problem_mark", None), getattr(fault, "problem", None) or "it does not parse"
            line = f" (at line {mark.line + 1}, column {mark.column + 1})" if mark else ""
            raise UserFault(f"'{path}' is not YAML: {problem}{line}.") from fault
    raise UserFault(f"The configuration file '{path}' must end in .toml, .yaml or .yml.")
