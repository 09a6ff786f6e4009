"""The file in which `dubito calibrate` saves a threshold.

A threshold holds for one technique, one chat model and one set of settings; `Calibration.load` refuses others.
"""

import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, FiniteFloat

from ..errors import UserFault
from ..json_files import content_of, parsed
from .context import AUTO, BaseContext

WITHOUT_EFFECT = frozenset({"preset", "concurrency", "on_bad_record"})
"""Settings that change no score."""

PLACES = frozenset({"corpus"})
"""Settings that say where a resource is. The same resource may be at another place."""


class Calibration(BaseModel):
    """A threshold, and the technique, model and settings for which it holds.

    technique: its score is compared with the threshold; model: the identity of the chat model; settings: those that
    change the score; made_with: the version of dubito, the questions and the corpus, for information only.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    technique: str
    model: str
    settings: dict[str, Any]
    threshold: FiniteFloat
    made_with: dict[str, Any]

    @classmethod
    def load(cls, path: str | Path, technique: str, context: BaseContext) -> Self:
        """Read a calibration file for this technique and these settings.

        Raises `UserFault` if the file is not a calibration, or holds for another technique, model or setting.
        """
        path = Path(path).expanduser()
        try:
            calibration = cls.model_validate(parsed(content_of(path)))
        except OSError as fault:
            raise UserFault(
                f"There is no calibration at '{path}' ({fault.strerror}): make one with dubito calibrate {technique}."
            ) from fault
        except ValueError as fault:  # pydantic's ValidationError is one, and BrokenJson
            raise UserFault(f"'{path}' is not a calibration: make one with dubito calibrate {technique}.") from fault
        if differences := calibration.differences(technique, context):
            raise UserFault(
                f"The threshold in '{path}' holds for {differences}: use the settings it was made with, or calibrate "
                "again."
            )
        return calibration

    def differences(self, technique: str, context: BaseContext) -> str:
        """How these settings differ from those the threshold holds for, in words; empty if they do not."""
        if self.technique != technique:
            return f"{self.technique}, not {technique}"
        if self.model != (model := identity(context.llm)):
            return f"the chat model {self.model}, not {model}"
        settings = settings_of(context, self.settings)
        return ", ".join(
            f"{name} {value}, not {settings.get(name)}"
            for name, value in self.settings.items()
            if settings.get(name) not in (value, AUTO)  # what auto takes is known once the model is open
        )

    def save(self, path: Path) -> None:
        """Write the file in one go. Raises `UserFault` if it cannot be written."""
        partial = path.with_name(f".{path.name}.{uuid.uuid4().hex}.partial")
        try:
            partial.write_text(self.model_dump_json(indent=2) + "\n", encoding="utf-8")
            partial.replace(path)
        except OSError as fault:
            partial.unlink(missing_ok=True)
            raise UserFault(f"The calibration cannot be written to '{path}': {fault.strerror}.") from fault


def is_calibration(path: Path) -> bool:
    """Is the file a calibration of any technique?"""
    try:
        Calibration.model_validate(parsed(content_of(path)))
    except (OSError, ValueError):
        return False
    return True


def identity(name: str) -> str:
    """The identity of a model: for a model on a server its name without the server's address."""
    kind, _, rest = name.partition(":")
    if kind == "engine":
        return name.partition("?")[0]  # without the engine's options
    if kind == "ollama":
        return rest
    served = rest.partition("#")[2].partition("&")[0]  # without the server of hidden states
    return served or name if kind in {"vllm", "openai", "http", "https"} else name


def settings_of(context: BaseContext, names: Iterable[str] | None = None) -> dict[str, Any]:
    """The settings that change a score, as JSON, with models by their identity. names: only these settings."""
    values = context.model_dump(mode="json")
    kept = values.keys() - WITHOUT_EFFECT - PLACES - {"llm"} if names is None else values.keys() & set(names)
    return {
        name: identity(value) if isinstance(value, str) else value for name, value in values.items() if name in kept
    }
