"""What people are shown of IRCoT."""

from . import reasoning
from .presenter import Presenter

presenter = Presenter(
    name="IRCoT",
    purpose="Look up every sentence of the reasoning",
    when="A question of several hops; the other techniques are compared with it.",
    about="IRCoT reasons one sentence at a time. Before each sentence it searches for the sentence before, and the "
    "model reads the best snippet.",
    steps={**reasoning.STEPS, "query_from_last_rationale": reasoning.query},
    figures=reasoning.figures,
    outcome=reasoning.outcome,
    why=reasoning.why,
    retrieval_steps=reasoning.retrieved,
    score=reasoning.SCORE,
)
