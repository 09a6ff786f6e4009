"""Questions that need several paragraphs: HotpotQA, 2WikiMultihopQA, MuSiQue, StrategyQA, Bamboogle."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from ...errors import UserFault
from ...retrieval.corpus import Document, shown
from ..questions import GoldQuestion
from .fields import (
    Record,
    answers_of,
    beside,
    document,
    gold_question,
    has,
    id_of,
    listed,
    needed,
    question_text,
    rows_of,
)
from .reading import Broken, json_file, records_of

PARAGRAPH_FILES = ("strategyqa_train_paragraphs.json", "strategyQA_aug_context.jsonl")


def titled_question(record: Record) -> GoldQuestion:
    """HotpotQA and 2WikiMultihopQA, as published or as a table: paragraphs with titles, supporting facts by title."""
    if not has(record, "context") and not has(record, "supporting_facts"):
        needed(record, "context")
    paragraphs, gold = paragraphs_and_gold(record)
    answers = answers_of(record.get("answer"))
    return gold_question(record, question_text(record), answers, documents=paragraphs, gold=gold)


def paragraphs_and_gold(record: Record) -> tuple[list[Document], list[str]]:
    """The `context` and the ids of those of it that the `supporting_facts` name.

    A title with no paragraph of its own stands for itself, the id of a document in an open corpus.
    """
    paragraphs = [document(title, text) for title, text in _pairs(record.get("context"), "sentences", "content")]
    ids: dict[str, list[str]] = {}
    for one in paragraphs:
        ids.setdefault(one.title, []).append(one.id)
    titles = [str(title).strip() for title, _ in _pairs(record.get("supporting_facts"), "sent_id")]
    return paragraphs, [name for title in titles for name in ids.get(title, [title])]


def _pairs(given: object, *names: str) -> list[tuple[object, object]]:
    """[[title, x], ...], or as a table {"title": [...], name: [...]}."""
    if given is None or given == []:
        return []
    if isinstance(given, Mapping):
        titles = given.get("title")
        others = next((given[name] for name in names if given.get(name) is not None), None)
        if isinstance(titles, list) and isinstance(others, list) and len(titles) == len(others):
            return list(zip(titles, others, strict=True))
    elif isinstance(given, list) and all(isinstance(one, list | tuple) and len(one) == 2 for one in given):
        return [(first, second) for first, second in given]
    raise ValueError(f"what goes with the titles is no list of [title, {names[0]}], nor two lists of the same length")


def musique_question(record: Record) -> GoldQuestion:
    """MuSiQue: paragraphs that say whether they support, an answer with aliases.

    A question is unanswerable if it says so, or if fewer paragraphs support it than it has steps (its contrast set
    keeps the decomposition and takes supporting paragraphs away). It has the id of its answerable twin, and here
    `#unanswerable` after that.
    """
    given = rows_of(record.get("paragraphs"), 'the "paragraphs"')
    paragraphs = [document(one.get("title"), one.get("paragraph_text")) for one in given]
    gold = [one.id for one, told in zip(paragraphs, given, strict=True) if told.get("is_supporting") is True]
    steps = record.get("question_decomposition")
    short = isinstance(steps, list) and len(gold) < len(steps)
    answerable = record.get("answerable") is not False and not short
    question = question_text(record)
    if not answerable:
        record = {**record, "id": f"{id_of(record, question)}#unanswerable"}
    answers = answers_of(record.get("answer"), record.get("answer_aliases"))
    return gold_question(record, question, answers, answerable=answerable, documents=paragraphs, gold=gold)


def bamboogle_question(record: Record) -> GoldQuestion:
    """Bamboogle: a question and an answer, nothing to read."""
    return gold_question(record, question_text(record, "Question"), answers_of(record.get("Answer")))


def strategyqa_questions(folder: Path | None) -> Callable[[Record], GoldQuestion]:
    """StrategyQA: a yes or a no, and each annotator's evidence as ids of paragraphs (`Title-N`).

    Where the file of paragraphs is beside it, a question's documents are the evidence of all its annotators, and gold
    is that of the first of them whose evidence is there whole; without it, that of the first who names any.
    """
    path = beside(folder, *PARAGRAPH_FILES)
    paragraphs = None if path is None else _strategyqa_paragraphs(path)

    def question_of(record: Record) -> GoldQuestion:
        answer = record.get("answer")
        if not isinstance(answer, bool):
            raise ValueError(f'the "answer" is {"missing" if answer is None else "neither true nor false"}')  # noqa: TRY004
        evidence = listed(record["evidence"], 'the "evidence"') if has(record, "evidence") else []
        annotators = [list(dict.fromkeys(_ids_in(one))) for one in evidence]
        named = [one for one in annotators if one]
        if paragraphs is not None:
            named = [one for one in named if set(one) <= paragraphs.keys()]
        documents = [paragraphs[name] for one in annotators for name in one if name in paragraphs] if paragraphs else []
        gold = named[0] if named else []
        return gold_question(record, question_text(record), answers_of(answer), documents=documents, gold=gold)

    return question_of


def _ids_in(evidence: object) -> Iterator[str]:
    """Paragraph ids at any depth; beside them stand `no_evidence` and `operation`."""
    if isinstance(evidence, list):
        for one in evidence:
            yield from _ids_in(one)
    elif isinstance(evidence, str) and evidence not in {"no_evidence", "operation"}:
        yield evidence.strip()


def _strategyqa_paragraphs(path: Path) -> dict[str, Document]:
    """By id: JSON lines with `contents`, or one object of paragraphs by their ids with `content`."""
    if path.suffix == ".json":
        given = json_file(path)
        records = list(given.values()) if isinstance(given, dict) else [given]
    else:
        records = [record for _, record in records_of(path)]
    found = {}
    for number, record in enumerate(records, start=1):
        text = None if isinstance(record, Broken) or not isinstance(record, dict) else _content(record)
        if text is None or not has(record, "title", "para_index"):
            raise UserFault(
                f"'{shown(path)}', paragraph {number} is no paragraph of StrategyQA: mend it, or take it away."
            )
        name = f"{record['title']}-{record['para_index']}".strip()
        found[name] = Document(name, str(record["title"]).strip(), text)
    return found


def _content(record: Record) -> str | None:
    text = record.get("contents", record.get("content"))
    return text if isinstance(text, str) and text.strip() else None
