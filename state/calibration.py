"""A threshold found by `dubito calibrate`, in the file that keeps it.

It holds for the technique, the model and the settings it was found with; `Calibration.load` refuses others.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, FiniteFloat, ValidationError

from ..errors import UserFault
from .context import BaseContext

WITHOUT_EFFECT = frozenset({"preset", "concurrency", "on_bad_record"})
"""Settings that no score depends on."""

PLACES = frozenset({"corpus"})
"""Settings that say where something is: the same may lie elsewhere."""


class Calibration(BaseModel):
    """A threshold and what it holds for.

    technique: whose score it is compared to; model: the chat model's identity; settings: those that the score depends
    on; made_with: the version of dubito, the questions and the corpus, which are told and not compared.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    technique: str
    model: str
    settings: dict[str, Any]
    threshold: FiniteFloat
    made_with: dict[str, Any]

    @classmethod
    def load(cls, path: str | Path, technique: str, context: BaseContext) -> Self:
        """Read a file that `dubito calibrate` has written, to be used by this technique with these settings.

        Raises `UserFault` for a file that is none, and for one of another technique, model or setting, which it names.
        """
        path = Path(path).expanduser()
        try:
            content = json.loads(path.read_bytes())
            found = cls.model_validate(content)
        except OSError as fault:
            what = f"There is no calibration at '{path}' ({fault.strerror})"
            raise UserFault(f"{what}: make one with dubito calibrate {technique}.") from fault
        except (ValueError, RecursionError) as fault:  # pydantic's ValidationError too
            raise UserFault(f"'{path}' is no calibration: make one with dubito calibrate {technique}.") from fault
        if unlike := found.differences(technique, context):
            raise UserFault(
                f"The threshold in '{path}' holds for {unlike}: use what it was made with, or calibrate anew."
            )
        return found

    def differences(self, technique: str, context: BaseContext) -> str:
        """How a run with these settings differs from what the threshold was made with; empty if it does not."""
        if self.technique != technique:
            return f"{self.technique}, and this is {technique}"
        if self.model != (model := identity(context.llm)):
            return f"the chat model {self.model}, and this is {model}"
        present = settings_of(context, self.settings)
        wrong = [name for name, value in self.settings.items() if present.get(name) != value]
        return ", ".join(f"{name} {self.settings[name]} and not {present.get(name)}" for name in wrong)

    def save(self, path: Path) -> None:
        """Write the file, whole or not at all; `UserFault` if it cannot be written."""
        partial = path.with_name(f".{path.name}.{uuid.uuid4().hex}.partial")
        try:
            partial.write_text(self.model_dump_json(indent=2) + "\n", encoding="utf-8")
            partial.replace(path)
        except OSError as fault:
            partial.unlink(missing_ok=True)
            raise UserFault(f"The calibration cannot be written to '{path}': {fault.strerror}.") from fault


def is_calibration(path: Path) -> bool:
    """Is there a calibration, of whatever technique?"""
    try:
        Calibration.model_validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return False
    return True


def identity(name: str) -> str:
    """Which model a name stands for: of one on a server its own name, wherever the server is."""
    kind, _, rest = name.partition(":")
    if kind == "engine":
        return name.partition("?")[0]  # what follows says how it runs
    served = rest.partition("#")[2].partition("&")[0]  # what follows says where its hidden states are shown
    return served or name if kind in {"vllm", "openai"} else name


def settings_of(context: BaseContext, names: Iterable[str] | None = None) -> dict[str, Any]:
    """The settings that a score depends on, as JSON, models by their identity; `names` where it depends on few."""
    values = context.model_dump(mode="json")
    wanted = values.keys() - WITHOUT_EFFECT - PLACES - {"llm"} if names is None else values.keys() & set(names)
    return {
        name: identity(value) if isinstance(value, str) else value for name, value in values.items() if name in wanted
    }
