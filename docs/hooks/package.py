"""Lets the reference find the package `dubito`, not the command `dubito`."""

from __future__ import annotations

import sys
import sysconfig
from typing import Any


def on_startup(**_: Any) -> None:  # noqa: ANN401 - mkdocs' own signature
    """Python first searches the folder of the started script `mkdocs`; the command `dubito` is in the same folder."""
    sys.path[:] = [folder for folder in sys.path if folder != sysconfig.get_path("scripts")]
