"""Lets the reference find the package and not the command of the same name."""

from __future__ import annotations

import sys
import sysconfig
from typing import Any


def on_startup(**_: Any) -> None:  # noqa: ANN401 - mkdocs' own signature
    """Python looks first where `mkdocs` lies when it is started by that name, and there lies `dubito` too."""
    sys.path[:] = [folder for folder in sys.path if folder != sysconfig.get_path("scripts")]
