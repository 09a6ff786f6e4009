"""The prompts without a parser of their own: the reply is one of a few options, or is scored, or is a plain answer."""

from collections.abc import Sequence

from ..state.messages import Message
from ..state.records import Chunk
from ..state.sunar import Hop
from . import render

YES, NO = "yes", "no"
SCORES = ("0", "1", "2", "3", "4", "5")


def choice(step: str, chunks: Sequence[Chunk]) -> list[Message]:
    """DF-RAG's Evaluator as a closed choice: which of `SCORES` says how well the chunks support the step?"""
    return render("choice", step=step, chunks=chunks)


def likelihood(chunks: Sequence[Chunk]) -> list[Message]:
    """DF-RAG's likelihood evaluator. The likelier a step is as the reply, the better the chunks support it.

    Without chunks: the step's likelihood without support.
    """
    return render("likelihood", chunks=chunks)


def entailment(question: str, first: str, second: str) -> list[Message]:
    """The LLM as an entailment judge (DENSE section 4.2): entailment, neutral or contradiction?

    Question and answers are put on one line each, because a line break ends an answer in the prompt.
    """
    question, first, second = (" ".join(text.split()) for text in (question, first, second))
    return render("entailment", question=question, first=first, second=second)


def sufficient(question: str, chunks: Sequence[Chunk]) -> list[Message]:
    """DENSE's self-evaluation (section 5.2): is the context sufficient to answer the question, yes or no?"""
    return render("sufficient", question=question, chunks=chunks)


def summary(question: str, chunks: Sequence[Chunk]) -> list[Message]:
    """DENSE's request for a summary (appendix H.1). question: the task, such as the subject of the summary."""
    return render("summary", question=question, chunks=chunks)


def meta_evidence(question: str, hops: Sequence[Hop], sequential_answer: str, chunks: Sequence[Chunk]) -> list[Message]:
    """SUNAR's meta evidence reasoner (section 3.2): the answer from the path and the meta evidence, if there is any."""
    return render("meta_evidence", question=question, hops=hops, sequential_answer=sequential_answer, chunks=chunks)


def query_likelihood(text: str) -> list[Message]:
    """The likelihood re-ranker. The likelier the question is as the reply, the better the document answers it.

    text: the document with its title.
    """
    return render("query_likelihood", text=text)


def knows(question: str, chunks: Sequence[Chunk], rationales: Sequence[str]) -> list[Message]:
    """SeaKR's prompt-based estimator (section 5.1): can the model continue without retrieval, yes or no?"""
    return render("knows", question=question, chunks=chunks, rationales=rationales)


def self_information() -> list[Message]:
    """The chat before a passage that is scored. It says nothing about the passage: every sentence is new."""
    return render("self_information")
