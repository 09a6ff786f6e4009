"""What people are shown of chain of thought."""

from . import reasoning
from .presenter import Presenter

presenter = Presenter(
    name="Chain of thought",
    purpose="Reason without passages",
    when="The model knows the facts; the other techniques are compared with it.",
    about="Chain of thought reasons one sentence at a time and retrieves nothing. The last sentence gives the answer.",
    steps=reasoning.STEPS,
    figures=reasoning.figures,
    outcome=reasoning.outcome,
    why=reasoning.why,
)
