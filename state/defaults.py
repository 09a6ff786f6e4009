"""What a setting starts from: the built-in default, then the configuration file, then the environment."""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Literal

from ..config import COMMANDS, KEYS, PROCESS, config
from ..errors import UserFault, closest, either
from ..server_url import refuse_secrets


@dataclass(frozen=True)
class ConfiguredValue:
    """A value that the operator gave a setting. place: in words, such as DUBITO_K or 'dubito.toml: [df_rag] k'."""

    value: object
    source: Literal["file", "environment"]
    place: str


def configured_values(graph: str, names: Iterable[str]) -> dict[str, ConfiguredValue]:
    """The values that the operator gave these settings of a graph, by setting.

    The environment variable DUBITO_NAME comes before the graph's table in the configuration file, and the table before
    the file's top. An empty variable counts as none.
    """
    file = config()
    found: dict[str, ConfiguredValue] = {}
    for name in names:
        for table, entries in ((graph, file.tables.get(graph, {})), ("", file.values)):
            if name in entries and name not in found:
                found[name] = ConfiguredValue(entries[name], "file", file.place(name, table))
        variable = f"DUBITO_{name.upper()}"
        if text := os.environ.get(variable):
            found[name] = ConfiguredValue(text, "environment", variable)
        if name in found and isinstance(found[name].value, str):
            _refuse_secrets(found[name])
            if name == "prompts":
                found[name] = replace(found[name], value=_prompts_in(str(found[name].value), found[name].place))
    return found


@lru_cache(maxsize=1)
def _prompts_in(folder: str, place: str) -> Mapping[str, str]:
    """The templates in the operator's folder, read once, as the configuration file is."""
    from ..prompt_templates import read_folder  # noqa: PLC0415 - seldom needed

    try:
        return read_folder(Path(folder).expanduser())
    except UserFault as fault:
        raise UserFault(f"{place}: {fault}") from None


def _refuse_secrets(found: ConfiguredValue) -> None:
    try:
        refuse_secrets(str(found.value))
    except UserFault as fault:
        raise UserFault(f"{found.place}: {fault}") from None


def check_names(settings: Mapping[str, Iterable[str]]) -> None:
    """Raise `UserFault` for an entry of the configuration file that is no setting. settings: by graph, their names."""
    file = config()
    tables = [*settings, *COMMANDS, PROCESS, KEYS]
    for table in file.tables:
        if table not in tables:
            raise UserFault(
                f"{file.path}: the table [{table}] is unknown{closest(table, tables)}: use {either(sorted(tables))}."
            )
    file.check_names("", {name for names in settings.values() for name in names})
    for graph, names in settings.items():
        file.check_names(graph, names)
