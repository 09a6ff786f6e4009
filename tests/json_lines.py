"""Files of JSON lines."""

import json
from collections.abc import Iterable
from pathlib import Path


def write_lines(path: Path, records: Iterable[object]) -> Path:
    """Write a file with a record in each line; the file."""
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path
