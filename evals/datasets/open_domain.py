"""Questions without distractors: Natural Questions, AmbigNQ, TriviaQA, PopQA, and the form of FlashRAG."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ..questions import ANSWER_NAMES, GoldQuestion, plain_question
from .fields import Record, answers_of, document, each, gold_question, has, listed, needed, question_text, rows_of
from .multi_hop import paragraphs_and_gold
from .reading import Broken


def plain(record: Record) -> GoldQuestion:
    """Of the user's own: a question and its answers, and what more is known of it.

    `id`, `answerable` and `gold_documents` (ids in the corpus that is asked) may be there.
    """
    answerable = record.get("answerable")
    if not (answerable is None or isinstance(answerable, bool)):
        raise ValueError('the "answerable" is neither true nor false')
    gold = answers_of(listed(record["gold_documents"], 'the "gold_documents"')) if has(record, "gold_documents") else ()
    if answerable is False and not any(record.get(name) for name in ANSWER_NAMES):
        return gold_question(record, question_text(record), (), answerable=False, gold=gold)
    read = plain_question(record)
    return gold_question(record, read.question, read.answers, answerable=answerable is not False, gold=gold)


def nq_question(record: Record) -> GoldQuestion:
    """Natural Questions: NQ-open, or a question with the passage that holds its answer (`context`, `title`)."""
    name = "short_answers" if has(record, "short_answers") else "answer"
    question = question_text(record)
    answers = answers_of(listed(needed(record, name), f'the "{name}"'))
    passages = [document(record.get("title"), record["context"])] if has(record, "context") else []
    return gold_question(record, question, answers, documents=passages, gold=[one.id for one in passages])


def ambignq_question(record: Record) -> GoldQuestion:
    """AmbigNQ: every answer to every reading of the question, by any annotator, counts as right."""
    annotations = rows_of(record.get("annotations"), 'the "annotations"')
    answers: list[object] = []
    for annotation in annotations:
        if annotation.get("type") == "singleAnswer":
            answers += listed(annotation.get("answer"), "an annotation's answer")
        elif annotation.get("type") == "multipleQAs":
            for reading in rows_of(annotation.get("qaPairs"), "an annotation's qaPairs"):
                answers += listed(reading.get("answer"), "a reading's answer")
        else:
            raise ValueError(
                f"an annotation is of the type {annotation.get('type')}, and not singleAnswer or multipleQAs"
            )
    return gold_question(record, question_text(record), answers_of(answers))


def triviaqa_rows(record: Record) -> Iterator[Record | Broken]:
    """A question each, out of the list that the published file is."""
    yield from each(record["Data"], 'the "Data"') if has(record, "Data") else [record]


def triviaqa_question(record: Record) -> GoldQuestion:
    """TriviaQA: as published (`Question`, `Answer`), as a table, or a question with a list of answers."""
    name, answer = ("Question", record.get("Answer")) if has(record, "Question") else ("question", record.get("answer"))
    question = question_text(record, name)
    fields = {str(field).lower(): value for field, value in answer.items()} if isinstance(answer, Mapping) else {}
    if answer is None or fields.get("value") == "<unk>":
        raise ValueError("there is no answer (the test split has none)")
    if fields:
        return gold_question(record, question, answers_of(fields.get("value"), fields.get("aliases")))
    return gold_question(record, question, answers_of(listed(answer, 'the "answer"')))


def popqa_question(record: Record) -> GoldQuestion:
    """PopQA: the object's names as a list in a text; paragraphs that say whether they support, or none."""
    question = question_text(record)
    given = rows_of(record["paragraphs"], 'the "paragraphs"') if has(record, "paragraphs") else []
    paragraphs = [document(one.get("title"), one.get("text")) for one in given]
    gold = [one.id for one, told in zip(paragraphs, given, strict=True) if told.get("is_supporting") is True]
    answers = answers_of(listed(needed(record, "possible_answers"), 'the "possible_answers"'))
    return gold_question(record, question, answers, documents=paragraphs, gold=gold)


def flashrag_question(record: Record) -> GoldQuestion:
    """FlashRAG: `golden_answers`; the paragraphs of HotpotQA and 2WikiMultihopQA are in its `metadata`."""
    if record.get("choices"):
        raise ValueError("it is a question with choices, which are not read")
    question = question_text(record)
    answers = answers_of(listed(needed(record, "golden_answers"), 'the "golden_answers"'))
    metadata = record.get("metadata")
    titled = metadata if isinstance(metadata, Mapping) and _has_titles(metadata.get("context")) else {}
    paragraphs, gold = paragraphs_and_gold(titled)
    return gold_question(record, question, answers, documents=paragraphs, gold=gold)


def _has_titles(context: object) -> bool:
    return isinstance(context, Mapping) and "title" in context
