"""Datasets without distractors: plain JSON lines, Natural Questions, AmbigNQ, TriviaQA, PopQA, FlashRAG's form."""

from collections.abc import Iterator, Mapping

from ..questions import GoldQuestion
from .fields import (
    ANSWER_NAMES,
    Record,
    answers_of,
    document,
    each,
    gold_question,
    has,
    listed,
    listed_answers,
    needed,
    rows_of,
    supporting,
)
from .multi_hop import paragraphs_and_gold
from .reading import Broken


def plain(record: Record) -> GoldQuestion:
    """A user's own file: a "question", its answers under one or more of `ANSWER_NAMES`, and optional fields.

    The optional fields are `id`, `answerable` and `gold_documents` (ids in the corpus that is searched).
    """
    needed(record, "question")
    answerable = record.get("answerable")
    if not (answerable is None or isinstance(answerable, bool)):
        raise ValueError('"answerable" is neither true nor false')
    gold = answers_of(listed(record["gold_documents"], '"gold_documents"')) if has(record, "gold_documents") else ()
    answers = answers_of(*(record.get(name) for name in ANSWER_NAMES))
    if not answers and answerable is not False:
        raise ValueError('"answers" is missing')
    return gold_question(record, answers, answerable=answerable is not False, gold=gold)


def nq_question(record: Record) -> GoldQuestion:
    """Natural Questions: NQ-open, or a question with the passage that holds its answer (`context`, `title`)."""
    name = "short_answers" if has(record, "short_answers") else "answer"
    passages = [document(record.get("title"), record["context"])] if has(record, "context") else []
    gold = [passage.id for passage in passages]
    return gold_question(record, listed_answers(record, name), documents=passages, gold=gold)


def ambignq_question(record: Record) -> GoldQuestion:
    """AmbigNQ: any annotator's answer to any reading of the question is a gold answer."""
    annotations = rows_of(record.get("annotations"), '"annotations"')
    answers: list[object] = []
    for annotation in annotations:
        if annotation.get("type") == "singleAnswer":
            answers += listed(annotation.get("answer"), "an annotation's answer")
        elif annotation.get("type") == "multipleQAs":
            for reading in rows_of(annotation.get("qaPairs"), "an annotation's qaPairs"):
                answers += listed(reading.get("answer"), "a reading's answer")
        else:
            raise ValueError(f"an annotation has the type {annotation.get('type')}, not singleAnswer or multipleQAs")
    return gold_question(record, answers_of(answers))


def triviaqa_rows(record: Record) -> Iterator[Record | Broken]:
    """The questions in the list of the published file."""
    yield from each(record["Data"], '"Data"') if has(record, "Data") else [record]


def triviaqa_question(record: Record) -> GoldQuestion:
    """TriviaQA: as published (`Question`, `Answer`), as a table, or a question with a list of answers."""
    name, answer = ("Question", record.get("Answer")) if has(record, "Question") else ("question", record.get("answer"))
    fields = {str(field).lower(): value for field, value in answer.items()} if isinstance(answer, Mapping) else {}
    if answer is None or fields.get("value") == "<unk>":
        raise ValueError("there is no answer (the test split has none)")
    if fields:
        return gold_question(record, answers_of(fields.get("value"), fields.get("aliases")), question=name)
    return gold_question(record, answers_of(listed(answer, '"answer"')), question=name)


def popqa_question(record: Record) -> GoldQuestion:
    """PopQA: the names of the object as a list in a text; paragraphs with `is_supporting`, or none."""
    paragraphs = rows_of(record["paragraphs"], '"paragraphs"') if has(record, "paragraphs") else []
    documents, gold = supporting(paragraphs, "text")
    return gold_question(record, listed_answers(record, "possible_answers"), documents=documents, gold=gold)


def flashrag_question(record: Record) -> GoldQuestion:
    """FlashRAG: `golden_answers`; the paragraphs of HotpotQA and 2WikiMultihopQA are in its `metadata`."""
    if record.get("choices"):
        raise ValueError("it is a multiple-choice question, which is not supported")
    given = record.get("metadata")
    metadata: Record = given if isinstance(given, Mapping) else {}
    context = metadata.get("context")
    paragraphs, gold = paragraphs_and_gold(metadata if isinstance(context, Mapping) and "title" in context else {})
    return gold_question(record, listed_answers(record, "golden_answers"), documents=paragraphs, gold=gold)
