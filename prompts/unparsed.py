"""The prompts without a parser of their own: the reply is one of a few options, or is scored, or is a plain answer."""

from collections.abc import Sequence

from ..state.messages import Message
from ..state.records import Chunk
from ..state.sunar import Hop
from . import render

YES, NO = "yes", "no"
SCORES = ("0", "1", "2", "3", "4", "5")
RATINGS = tuple(str(rating) for rating in range(1, 11))


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
    return render("entailment", question=_line(question), first=_line(first), second=_line(second))


def sufficient(question: str, chunks: Sequence[Chunk]) -> list[Message]:
    """DENSE's self-evaluation (section 5.2): is the context sufficient to answer the question, yes or no?"""
    return render("sufficient", question=question, chunks=chunks)


def summary(question: str, chunks: Sequence[Chunk]) -> list[Message]:
    """DENSE's request for a summary (appendix H.1). question: the task, such as the subject of the summary."""
    return render("summary", question=question, chunks=chunks)


def meta_evidence(question: str, hops: Sequence[Hop], sequential_answer: str, chunks: Sequence[Chunk]) -> list[Message]:
    """SUNAR's meta evidence reasoner (section 3.2): the answer from the path and the meta evidence, if there is any."""
    return render("meta_evidence", question=question, hops=hops, sequential_answer=sequential_answer, chunks=chunks)


def contribution(question: str, chunks: Sequence[Chunk], answer: str) -> list[Message]:
    """An LLM as the judge of evidence (SePer appendix B.2, direct): which of `RATINGS` is its part in the answer?"""
    return render("contribution", question=_line(question), chunks=chunks, answer=_line(answer))


def correctness(question: str, chunks: Sequence[Chunk], answer: str) -> list[Message]:
    """An LLM as the judge of an answer (SePer appendix B.2, reduction): which of `RATINGS` does the answer get?

    chunks: what the judge is shown; none: it judges by the question alone.
    """
    return render("correctness", question=_line(question), chunks=chunks, answer=_line(answer))


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


def question_information(question: str) -> list[Message]:
    """The chat before a passage that is scored as one for the question; compare `self_information`."""
    return render("question_information", question=question)


def _line(text: str) -> str:
    return " ".join(text.split())
