"""δ, from where on something is looked up (SeaKR section 3.1): given, calibrated, or known for the model."""

from __future__ import annotations

from ..errors import UserFault
from ..state.calibration import Calibration, identity
from ..state.seakr import KNOWN, SeaKRContext

PAPER = -6.0
"""What the paper uses for models of 7 to 8 billion parameters (section 5.3)."""

BUILT_IN = {
    ("meta-llama/Llama-2-7b-hf", 20): PAPER,
    ("meta-llama/Llama-2-7b-chat-hf", 20): PAPER,
    ("meta-llama/Meta-Llama-3-8B", 20): PAPER,
    ("meta-llama/Meta-Llama-3-8B-Instruct", 20): PAPER,
    # medians of 80 questions, as the U of this model tells little (docs/measurements/known_unknown.md)
    ("embedded", 5): 7.73,
    ("embedded", 10): 7.31,
    ("embedded", 20): 6.75,
}
"""δ of the estimator gram for a model and a number of samples, at the paper's layer and α."""

UNSURE = 0.5
"""δ of the estimator prompt: the model finds it likelier that it does not know enough."""


def threshold_of(context: SeaKRContext, llm: str) -> float:
    """The threshold that is set; else that of the calibration, or the one known for the model and the estimator.

    llm: the name of the model that answers, which may be a live one that the context does not name.
    Raises `UserFault` where none is known, and for a calibration of another model or other settings.
    """
    if context.threshold != KNOWN:
        return float(context.threshold)
    if context.calibration:
        return Calibration.load(context.calibration, "seakr", context).threshold
    if context.estimator == "prompt":
        return UNSURE
    model = model_of(llm)
    known = BUILT_IN.get((model, context.samples))
    if known is None or context.estimator != "gram" or (context.layer, context.alpha) != (0, 1e-3):
        raise UserFault(
            f"No threshold is known for the estimator '{context.estimator}' with the model '{model}' and "
            f"{context.samples} samples: find one with `dubito calibrate seakr`, or set threshold (the paper's for "
            f"gram and 7-billion models is {PAPER:g})."
        )
    return known


def model_of(name: str) -> str:
    """The model that a chat model's name stands for, wherever it is served or read from."""
    kind, _, rest = name.partition(":")
    return rest if kind in {"hf", "gguf"} else identity(name)
