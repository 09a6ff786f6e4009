"""δ, the threshold of U above which SeaKR retrieves (section 3.1): set, calibrated, or built in for the model."""

import asyncio
from collections.abc import Mapping

from ..errors import UserFault
from ..resources.resources import Resources
from ..state.calibration import Calibration, identity
from ..state.capability import At, States
from ..state.seakr import KNOWN, SeaKRContext, SeaKRState

PAPER = -6.0
"""The paper's value for models of 7 to 8 billion parameters (section 5.3)."""

AUTHORS: tuple[States, At] = ("feed_forward", "eos")
OURS: tuple[States, At] = ("residual", "last")

BUILT_IN = {
    ("meta-llama/Llama-2-7b-hf", 20, AUTHORS): PAPER,
    ("meta-llama/Llama-2-7b-chat-hf", 20, AUTHORS): PAPER,
    ("meta-llama/Meta-Llama-3-8B", 20, AUTHORS): PAPER,
    ("meta-llama/Meta-Llama-3-8B-Instruct", 20, AUTHORS): PAPER,
    # medians over 80 questions: U says little about a model this small (docs/measurements/known_unknown.md)
    ("embedded", 5, OURS): 7.73,
    ("embedded", 10, OURS): 7.31,
    ("embedded", 20, OURS): 6.75,
}
"""δ of the estimator `gram` by model, number of samples and quantity (states, at), for the paper's layer and α.

The paper's δ is that of its authors' code, which reads the outputs of a feed-forward block at an end-of-sequence token.
With the residual stream it has no meaning: 20 equal states of squared norm 4,000 already have a U above it.
"""

BEGIN_WITH: Mapping[str, float] = {
    "perplexity": 2.3,
    "multi_perplexity": 4.7,
    "ln_entropy": 1.5,
    "energy": -22.9,
    "semantic_entropy": 1.2,
    "degree_entropy": 0.9,
}
"""A δ to begin with where none is known: the best one of the embedded model with 20 samples
(docs/measurements/known_unknown.md). That of `perplexity` was found with whole lines of up to 60 tokens, while a step
is the first sentence of its line."""

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
    if context.threshold_file:
        return _calibrated(context, llm)
    if context.estimator == "prompt":
        return UNSURE
    model, (states, at) = model_of(llm), context.quantity()
    known = BUILT_IN.get((model, context.samples, (states, at)))
    if known is not None and context.estimator == "gram" and (context.layer, context.alpha) == (0, 1e-3):
        return known
    held, advice = "", "set retrieval_threshold, or estimator=prompt, whose threshold holds for every model"
    if context.estimator != "gram":
        advice = f"set retrieval_threshold={BEGIN_WITH[context.estimator]:g} to begin with (SmolLM2's)"
    else:
        held = f"states={states}, at={at}, "
        if (states, at) == AUTHORS:
            advice = f"set retrieval_threshold={PAPER:g} to begin with (the paper's, for 7 billion parameters)"
        elif "states" in context.chosen:
            advice += (
                f" (the paper's {PAPER:g} is for states={AUTHORS[0]} and at={AUTHORS[1]}: "
                f"{context.chosen['states']['because']}; engine:, hf: and gguf: show them)"
            )
    raise UserFault(
        f"No threshold is known for the estimator '{context.estimator}' with {held}the model '{model}' and "
        f"{context.samples} samples: find one with `dubito calibrate retrieval_threshold`, or {advice}."
    )


def _calibrated(context: SeaKRContext, llm: str) -> float:
    found = Calibration.load(context.threshold_file, "retrieval_threshold", context, llm)
    if context.estimator == "gram" and not {"states", "at"} <= found.settings.keys():
        raise UserFault(
            f"The threshold in '{context.threshold_file}' does not say which hidden states it was found with (states, "
            "at): make it anew with dubito calibrate retrieval_threshold."
        )
    return found.threshold


def model_of(name: str) -> str:
    """The model behind a chat model's name, wherever it is served or read from."""
    kind, _, rest = name.partition(":")
    return rest.partition("?")[0] if kind in {"hf", "gguf", "engine"} else identity(name)
