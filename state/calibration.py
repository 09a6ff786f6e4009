"""The file in which `dubito calibrate` saves a threshold or p-values.

It holds for one technique, one chat model and one set of settings; `CalibrationFile.load` refuses others.
"""

import hashlib
import json
import math
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat

from ..errors import UserFault
from ..json_files import content_of, parsed
from .context import AUTO, BaseContext
from .records import Certificate

WITHOUT_EFFECT = frozenset({"preset", "concurrency", "on_bad_record", "calibration"})
"""Settings that change no score."""

PLACES = frozenset({"corpus"})
"""Settings that say where a resource is. The same resource may be at another place."""

FILES = frozenset({"examples", "penalty_file", "threshold_file"})
"""Settings that may name a file, of which the content counts."""


class CalibrationFile(BaseModel):
    """The technique, the model and the settings for which a calibration holds.

    technique: what is calibrated; model: the identity of the chat model; settings: those that change the calibrated
    score; made_with: the version of dubito, the questions and the corpus, for information only.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    technique: str
    model: str
    settings: dict[str, Any]
    made_with: dict[str, Any]

    @classmethod
    def load(cls, path: str | Path, technique: str, context: BaseContext, llm: str = "") -> Self:
        """Read a calibration file for this technique and these settings.

        llm: the name of the chat model that answers; empty: the context's. A live model is not named by the context.
        Raises `UserFault` if the file is not a calibration, or holds for another technique, model or setting.
        """
        calibration = cls.read(path, technique)
        if differences := calibration.differences(technique, context, llm or context.llm):
            raise UserFault(
                f"The calibration '{path}' holds for {differences}: use the settings it was made with, or calibrate "
                "again."
            )
        return calibration

    @classmethod
    def read(cls, path: str | Path, technique: str) -> Self:
        """Read a calibration file, whatever it holds for. technique: for the messages.

        Raises `UserFault` if the file is not a calibration, or was changed by hand.
        """
        path = Path(path).expanduser()
        try:
            content = parsed(content_of(path))
            calibration = cls.model_validate(content)
        except OSError as fault:
            raise UserFault(
                f"There is no calibration at '{path}' ({fault.strerror}): make one with dubito calibrate {technique}."
            ) from fault
        except ValueError as fault:  # pydantic's ValidationError is one, and BrokenJson
            raise UserFault(f"'{path}' is not a calibration: make one with dubito calibrate {technique}.") from fault
        if content.get("sha256") != _sha256(content):
            raise UserFault(f"'{path}' was changed after it was made: make it anew with dubito calibrate {technique}.")
        return calibration

    def differences(self, technique: str, context: BaseContext, llm: str) -> str:
        """How these settings differ from those the calibration holds for, in words; empty if they do not."""
        if self.technique != technique:
            return f"{self.technique}, not {technique}"
        if self.model != (model := identity(llm)):
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
        content = self.model_dump(mode="json")
        content["sha256"] = _sha256(content)
        try:
            partial.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
            partial.replace(path)
        except OSError as fault:
            partial.unlink(missing_ok=True)
            raise UserFault(f"The calibration cannot be written to '{path}': {fault.strerror}.") from fault


class Calibration(CalibrationFile):
    """A threshold; the technique's score is compared with it."""

    threshold: FiniteFloat


class PenaltyCalibration(CalibrationFile):
    """The numbers of semantic sets under which SUNAR's penalty `conformal` finds the p-value of a batch's number.

    scores: s of one batch of each question, ascending: a batch drawn at random from those that hold the right answer;
    right: the rule for right answers; left_out: questions without such a batch, those that failed among them.
    """

    technique: Literal["penalty"]
    scores: list[int] = Field(min_length=1)
    right: str
    left_out: int


class Combination(BaseModel):
    """The probability that an answer is wrong: the logistic function of intercept + Σ weight · signal."""

    model_config = ConfigDict(frozen=True)

    intercept: FiniteFloat
    weights: dict[str, FiniteFloat] = Field(min_length=1)

    def value(self, signals: Mapping[str, float | None]) -> float | None:
        """A probability, in [0, 1]; None if a signal is unknown or too large to reckon with."""
        logit = self.intercept
        for name, weight in self.weights.items():
            signal = signals.get(name)
            if signal is None or not math.isfinite(signal):
                return None
            logit += weight * signal
        return 1 / (1 + math.exp(-min(max(logit, -700), 700))) if math.isfinite(logit) else None


class AnswerCalibration(Calibration):
    """The uncertainty up to which a graph's answers are given, and what is promised of them.

    signal: the name of the uncertainty; combination: how it is reckoned, if it is a combination of several.
    guarantee: "risk": with probability `confidence`, over the calibration questions, at most the share `alpha` of the
    answers given is wrong. "kept": a right answer is withheld with probability at most `alpha`. "average": a question
    is answered wrong with probability at most `alpha`. The last two are over the calibration questions and the question
    asked together, and `confidence` is null.
    right: the rule for right answers; n: questions that the threshold was found from; answered, errors: those of them
    that are answered, and answered wrong; uncertainties: of them, null where unknown; hashes: of their texts; failed:
    questions without an answer, each of which counts as a wrong answer that is given;
    corpus: the hash of the chunks, or the name of a collection of a vector database; null if it is unknown or each
    question had its own; context: all settings, with which the calibration can be used.
    """

    guarantee: Literal["risk", "kept", "average"]
    signal: str
    combination: Combination | None = None
    alpha: float
    confidence: float | None
    right: str
    n: int
    answered: int
    errors: int
    failed: int
    uncertainties: list[float | None] = []
    hashes: list[str] = []
    corpus: str | None = None
    context: dict[str, Any] = {}

    def certificate(self, void: str = "") -> Certificate:
        """What is promised of a run with these settings. void: why nothing is, as a sentence."""
        return {
            "sentence": void or self.promise(),
            "holds": not void,
            "signal": self.signal,
            "threshold": self.threshold,
            "right": self.right,
        }

    def promise(self) -> str:
        """The guarantee in a sentence."""
        like = f"for questions like those of {self.made_with.get('questions', 'the calibration')}"
        if self.guarantee == "risk":
            confidence = f"with {percent(self.confidence or 0)} confidence"
            return f"At most {percent(self.alpha)} of the answers given are wrong, {confidence}, {like}."
        if self.guarantee == "kept":
            return f"At least {percent(1 - self.alpha)} of the right answers are given, on average, {like}."
        return f"At most {percent(self.alpha)} of the questions are answered wrong, on average, {like}."


def percent(share: float) -> str:
    """'20%', '0.5%': not rounded, because a promise of 0.4 % is none of 0 %."""
    return f"{100 * share:.6g}%"


class CascadeCalibration(AnswerCalibration):
    """The same for a cascade.

    thresholds: by rung; null for a rung that is not run; `threshold` is the highest. rung_uncertainties: by rung, as
    `uncertainties`. combinations: by rung, if each rung's uncertainty is a combination of several. beyond: the share of
    all questions that, at the same confidence, the first rung leaves to the others at most; null if not promised.
    tokens: that a question costs at most on average, at the same confidence, where of each no more than tokens_counted
    are counted; null if not promised.
    """

    thresholds: dict[str, float | None]
    rung_uncertainties: dict[str, list[float | None]] = {}
    combinations: dict[str, Combination] = {}
    beyond: float | None = None
    tokens: float | None = None
    tokens_counted: float | None = None

    def promise(self) -> str:
        """The guarantee in a sentence."""
        said = [super().promise()]
        if self.beyond is not None:
            first = next(iter(self.thresholds))
            said.append(f"And at most {percent(self.beyond)} of the questions go beyond {first}.")
        if self.tokens is not None:
            said.append(
                f"And a question costs at most {self.tokens:,.0f} tokens on average, where at most "
                f"{self.tokens_counted or 0:,.0f} of each are counted."
            )
        return " ".join(said)


def _sha256(content: Mapping[str, Any]) -> str:
    """The hash of a calibration, by which a change is noticed."""
    kept = {name: value for name, value in content.items() if name != "sha256"}
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()


def is_calibration(path: Path) -> bool:
    """Is the file a calibration of any technique?"""
    try:
        content = parsed(content_of(path))
        kind = (
            PenaltyCalibration if isinstance(content, dict) and content.get("technique") == "penalty" else Calibration
        )
        kind.model_validate(content)
    except (OSError, ValueError):
        return False
    return True


def identity(name: str) -> str:
    """The identity of a model: what its name says of what it computes, and not of where.

    A model on a server has its name there, with `&layer=N` if the name gives the layer of its hidden states. An engine
    has its folder or hub name, with `?dtype=...` if the name gives one; no other option is meant to change results.
    """
    kind, _, rest = name.partition(":")
    if kind == "engine":
        source, _, options = name.partition("?")
        return "?".join([source, *_options(options, "dtype")]).removesuffix("?dtype=auto")
    if kind == "ollama":
        return rest
    served, options = _served(name)
    return "&".join([served, *_options(options, "layer")]) if served else name


def identity_in_calls(name: str, *, states: bool = True) -> str:
    """The identity of a model in remembered calls. states: those that read hidden states may be among them.

    Then it has the server of the hidden states, if the name does not give their layer: another server may have another.
    """
    served, options = _served(name)
    if not states:
        return served or identity(name)
    return "&".join([identity(name), *([] if _options(options, "layer") else _options(options, "states"))])


def _served(name: str) -> tuple[str, str]:
    """A model's name on its server, and the options behind it; both empty for a name that gives no such name."""
    kind, _, rest = name.partition(":")
    served, _, options = rest.partition("#")[2].partition("&")
    return (served, options) if served and kind in {"vllm", "openai", "http", "https"} else ("", "")


def _options(options: str, name: str) -> list[str]:
    """The option of this name as it is written; none or one."""
    return [option for option in options.split("&") if option.startswith(f"{name}=")]


def settings_of(context: BaseContext, names: Iterable[str] | None = None) -> dict[str, Any]:
    """The settings that change a score, as JSON, with models by their identity and files by the hash of their content.

    names: only these settings. It reads the files.
    """
    values = context.model_dump(mode="json")
    kept = values.keys() - WITHOUT_EFFECT - PLACES - {"llm"} if names is None else values.keys() & set(names)
    if not getattr(context, "writes_marks", False):
        kept -= {"cite"}  # the answer is the same
    return {
        name: (_content(value) if name in FILES else identity(value)) if isinstance(value, str) else value
        for name, value in values.items()
        if name in kept
    }


def _content(name: str) -> str:
    """The hash of what a file holds; the name itself if it is of no file that can be read. It blocks."""
    if not name or name.isdecimal():
        return name
    try:
        return f"sha256:{hashlib.sha256(content_of(Path(name).expanduser())).hexdigest()[:16]}"
    except OSError:
        return name
