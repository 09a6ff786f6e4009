"""δ, from where on something is looked up (SeaKR section 3.1): given, calibrated, or known for the model."""

from __future__ import annotations

from ..errors import UserFault
from ..state.calibration import Calibration, identity
from ..state.seakr import KNOWN, SeaKRContext

PAPER = -6.0
"""What the paper uses for models of 7 to 8 billion parameters (section 5.3)."""

BUILT_IN = {
    "meta-llama/Llama-2-7b-hf": PAPER,
    "meta-llama/Llama-2-7b-chat-hf": PAPER,
    "meta-llama/Meta-Llama-3-8B": PAPER,
    "meta-llama/Meta-Llama-3-8B-Instruct": PAPER,
    "embedded": -5.0,
}
"""δ of the estimator gram for a model, at the paper's samples, layer and α."""

UNSURE = 0.5
"""δ of the estimator prompt: the model finds it likelier that it does not know enough."""


def threshold_of(context: SeaKRContext) -> float:
    """The threshold that is set; else that of the calibration, or the one known for the model and the estimator.

    Raises `UserFault` where none is known, and for a calibration of another model or other settings.
    """
    if context.threshold != KNOWN:
        return float(context.threshold)
    if context.calibration:
        return Calibration.load(context.calibration, "seakr", context).threshold
    if context.estimator == "prompt":
        return UNSURE
    model = model_of(context.llm)
    if context.estimator == "gram" and model in BUILT_IN:
        return BUILT_IN[model]
    raise UserFault(
        f"No threshold is known for the estimator '{context.estimator}' with the model '{model}': find one with "
        f"`dubito calibrate seakr`, or set threshold (the paper's for gram and 7-billion models is {PAPER:g})."
    )


def model_of(name: str) -> str:
    """The model that a chat model's name stands for, wherever it is served or read from."""
    kind, _, rest = name.partition(":")
    return rest if kind in {"hf", "gguf"} else identity(name)
