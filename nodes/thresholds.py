"""δ, the threshold of U above which SeaKR retrieves (section 3.1): set, calibrated, or built in for the model."""

import asyncio
from collections.abc import Mapping

from ..errors import UserFault
from ..resources.resources import Resources
from ..state.calibration import Calibration, identity
from ..state.seakr import KNOWN, SeaKRContext, SeaKRState

PAPER = -6.0
"""The paper's value for models of 7 to 8 billion parameters (section 5.3)."""

BUILT_IN = {
    ("meta-llama/Llama-2-7b-hf", 20): PAPER,
    ("meta-llama/Llama-2-7b-chat-hf", 20): PAPER,
    ("meta-llama/Meta-Llama-3-8B", 20): PAPER,
    ("meta-llama/Meta-Llama-3-8B-Instruct", 20): PAPER,
    # medians over 80 questions: U says little about a model this small (docs/measurements/known_unknown.md)
    ("embedded", 5): 7.73,
    ("embedded", 10): 7.31,
    ("embedded", 20): 6.75,
}
"""δ of the estimator `gram` by model and number of samples, for the paper's layer and α."""

BEGIN_WITH: Mapping[str, float] = {
    "gram": PAPER,
    "perplexity": 2.3,
    "multi_perplexity": 4.7,
    "ln_entropy": 1.5,
    "energy": -22.9,
    "semantic_entropy": 1.2,
    "degree_entropy": 0.9,
}
"""A δ to begin with where none is known: the paper's for `gram`, else the best one of the embedded model with 20
samples (docs/measurements/known_unknown.md)."""

UNSURE = 0.5
"""δ of the estimator `prompt`: above it "I do not know enough" is the likelier reply."""


async def set_threshold(state: SeaKRState, context: SeaKRContext, resources: Resources) -> SeaKRState:
    """Put δ into the state."""
    llm = await resources.llm(context)
    return {"threshold": await asyncio.to_thread(threshold_of, context, llm.name)}  # which may read a file


def threshold_of(context: SeaKRContext, llm: str) -> float:
    """The threshold of the settings; else the calibration's; else the built-in one for the model and the estimator.

    llm: the name of the model that answers; a live model is not named by the context.
    Raises `UserFault` if there is none, and for a calibration of another model or other settings.
    """
    if context.retrieval_threshold != KNOWN:
        threshold = float(context.retrieval_threshold)
        if context.estimator == "prompt" and "estimator" in context.chosen and not 0 <= threshold <= 1:
            raise UserFault(
                f"retrieval_threshold={threshold:g} is no probability, which the estimator 'prompt' compares, and auto "
                f"has chosen it because {context.chosen['estimator']['because']}: set retrieval_threshold={KNOWN}."
            )
        return threshold
    if context.calibration:
        return Calibration.load(context.calibration, "seakr", context).threshold
    if context.estimator == "prompt":
        return UNSURE
    model = model_of(llm)
    known = BUILT_IN.get((model, context.samples))
    if known is None or context.estimator != "gram" or (context.layer, context.alpha) != (0, 1e-3):
        origin = "the paper's, for models of 7 billion parameters" if context.estimator == "gram" else "SmolLM2's"
        raise UserFault(
            f"No threshold is known for the estimator '{context.estimator}' with the model '{model}' and "
            f"{context.samples} samples: find one with `dubito calibrate seakr`, or set "
            f"retrieval_threshold={BEGIN_WITH[context.estimator]:g} to begin with ({origin})."
        )
    return known


def model_of(name: str) -> str:
    """The model behind a chat model's name, wherever it is served or read from."""
    kind, _, rest = name.partition(":")
    return rest if kind in {"hf", "gguf"} else identity(name)
