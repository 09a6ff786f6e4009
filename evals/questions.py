"""A question with its gold answers."""

from dataclasses import dataclass
from typing import Literal

from ..retrieval.corpus import Document


@dataclass(frozen=True, slots=True)
class GoldQuestion:
    """A question, its gold answers, and further facts from the dataset.

    answers: gold answers and their aliases; at least one if the question is answerable; id: unique in the dataset;
    kind: `yes_no` if every gold answer is "yes" or "no"; answerable: from the dataset's paragraphs (an unanswerable
    question may keep the gold answers that it would have had);
    documents: the question's own paragraphs, distractors included; gold_documents: ids of the documents that support
    the answer, either among `documents` or in the dataset's corpus.
    """

    question: str
    answers: tuple[str, ...]
    id: str = ""
    kind: Literal["text", "yes_no"] = "text"
    answerable: bool = True
    documents: tuple[Document, ...] = ()
    gold_documents: tuple[str, ...] = ()
