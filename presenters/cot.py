"""What people are shown of chain of thought."""

from . import reasoning
from .presenter import Presenter

presenter = Presenter(
    name="Chain of thought",
    about="Chain of thought reasons one sentence at a time and retrieves nothing. The last sentence gives the answer.",
    steps=reasoning.STEPS,
    figures=reasoning.figures,
    outcome=reasoning.outcome,
)
