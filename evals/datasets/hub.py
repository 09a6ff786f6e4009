"""Tables from the HuggingFace hub, or from a folder in its form, read by the `datasets` library (an extra)."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ...errors import UserFault, needs_extra
from .reading import PlacedRecord

PREFERRED_SPLITS = ("validation", "dev", "test")
"""The first of these splits that exists is read if no split is named."""


def rows_on_hub(name: str) -> tuple[str, Iterator[PlacedRecord]]:
    """NAME[/CONFIG][#SPLIT] with the split that is read, and its rows.

    NAME is `owner/name`, `name`, or a folder of JSONL, CSV or parquet files on this machine. Raises `UserFault` if the
    library is not installed or cannot load the table.
    """
    library = _library()
    path, config, split = _parts(name)
    try:
        chosen = split or _chosen(name, library.get_dataset_split_names(path, config))
        table = library.load_dataset(path, config, split=chosen)
    except UserFault:
        raise
    except Exception as fault:  # the library passes on the errors of many others
        reason = " ".join(str(fault).split("\n", 1)[0].split()).rstrip(".") or type(fault).__name__
        raise UserFault(
            f"'{name}' cannot be loaded through the datasets library ({reason}): check the name and the network, or "
            "give a file (KIND:FILE)."
        ) from fault
    shown = "/".join(part for part in (path, config) if part) if not Path(path).is_dir() else Path(path).resolve().name
    return f"{shown}#{chosen}", ((f"row {number}", row) for number, row in enumerate(table, start=1))


def _library() -> Any:  # noqa: ANN401 - an optional library's module
    with needs_extra("Loading from the HuggingFace hub needs an extra", "datasets"):
        import datasets  # noqa: PLC0415 - of an extra
    return datasets


def _parts(name: str) -> tuple[str, str | None, str | None]:
    """The dataset, its configuration and its split."""
    if Path(name).expanduser().is_dir():
        return str(Path(name).expanduser()), None, None
    path, _, split = name.partition("#")
    if Path(path).expanduser().is_dir():
        return str(Path(path).expanduser()), None, split or None
    pieces = path.split("/")
    if path.startswith((".", "/", "~")):
        raise UserFault(f"There is no folder '{path}': give a folder of JSONL or parquet files, or a name on the hub.")
    if len(pieces) > 3 or not all(pieces):
        raise UserFault(
            f"'{name}' is not a name on the hub: give owner/name, owner/name/CONFIG or owner/name/CONFIG#SPLIT."
        )
    return "/".join(pieces[:2]), pieces[2] if len(pieces) == 3 else None, split or None


def _chosen(name: str, splits: Sequence[str]) -> str:
    if len(splits) == 1:
        return splits[0]
    for preferred in PREFERRED_SPLITS:
        if preferred in splits:
            return preferred
    raise UserFault(f"'{name}' has the splits {', '.join(splits)}: name one of them, as in '{name}#{splits[0]}'.")
