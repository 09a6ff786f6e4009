"""What people are shown of FLARE."""

from . import reasoning
from .presenter import Presenter, nothing

presenter = Presenter(
    name="FLARE",
    purpose="Look up unlikely sentences",
    when="A question of several hops; the other techniques are compared with it.",
    about="FLARE reasons one sentence at a time. If a word of the next sentence is unlikely, it searches for the "
    "sentence without its unlikely words, and the model writes the sentence again with the best snippet.",
    steps={
        **reasoning.STEPS,
        "query_from_last_rationale": reasoning.query,
        "mask_unlikely_words": reasoning.query,
        "answer_with_uncertainty": nothing,
    },
    figures=reasoning.figures,
    outcome=reasoning.outcome,
    why=reasoning.why,
    retrieval_steps=reasoning.retrieved,
    score=reasoning.SCORE,
)
