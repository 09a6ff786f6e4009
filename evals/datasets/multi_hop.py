"""Multi-hop datasets: HotpotQA, 2WikiMultihopQA, MuSiQue, StrategyQA, Bamboogle."""

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
    supporting,
)
from .reading import Broken, json_file, records_of

PARAGRAPH_FILES = ("strategyqa_train_paragraphs.json", "strategyQA_aug_context.jsonl")


def titled_question(record: Record) -> GoldQuestion:
    """HotpotQA and 2WikiMultihopQA, as published or as a table: paragraphs with titles, supporting facts by title."""
    if not has(record, "context") and not has(record, "supporting_facts"):
        needed(record, "context")
    paragraphs, gold = paragraphs_and_gold(record)
    answers = answers_of(record.get("answer"))
    return gold_question(record, answers, documents=paragraphs, gold=gold)


def paragraphs_and_gold(record: Record) -> tuple[list[Document], list[str]]:
    """The paragraphs of `context`, and the ids of those that `supporting_facts` names.

    A title without a paragraph is itself the id, of a document in an open corpus.
    """
    paragraphs = [document(title, text) for title, text in _pairs(record.get("context"), "sentences", "content")]
    ids: dict[str, list[str]] = {}
    for paragraph in paragraphs:
        ids.setdefault(paragraph.title, []).append(paragraph.id)
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
    elif isinstance(given, list) and all(isinstance(pair, list | tuple) and len(pair) == 2 for pair in given):
        return [(first, second) for first, second in given]
    raise ValueError(f"the titles are neither in a list of [title, {names[0]}] nor in two lists of equal length")


def musique_question(record: Record) -> GoldQuestion:
    """MuSiQue: paragraphs with `is_supporting`, an answer with aliases.

    A question is unanswerable if it says so, or if it has fewer supporting paragraphs than steps: the contrast set
    keeps the decomposition and removes supporting paragraphs. An unanswerable question has the id of its answerable
    twin in the file, so `#unanswerable` is added.
    """
    paragraphs, gold = supporting(rows_of(record.get("paragraphs"), '"paragraphs"'), "paragraph_text")
    steps = record.get("question_decomposition")
    short = isinstance(steps, list) and len(gold) < len(steps)
    answerable = record.get("answerable") is not False and not short
    if not answerable:
        record = {**record, "id": f"{id_of(record, question_text(record))}#unanswerable"}
    answers = answers_of(record.get("answer"), record.get("answer_aliases"))
    return gold_question(record, answers, answerable=answerable, documents=paragraphs, gold=gold)


def bamboogle_question(record: Record) -> GoldQuestion:
    """Bamboogle: a question and an answer, without paragraphs."""
    return gold_question(record, answers_of(record.get("Answer")), question="Question")


def strategyqa_questions(folder: Path | None) -> Callable[[Record], GoldQuestion]:
    """StrategyQA: yes or no, and each annotator's evidence as ids of paragraphs (`Title-N`).

    If the file of paragraphs is in the same folder, a question's documents are the evidence of all annotators, and gold
    is the evidence of the first annotator whose paragraphs all exist. Without that file, gold is the evidence of the
    first annotator who names any.
    """
    path = beside(folder, *PARAGRAPH_FILES)
    paragraphs = None if path is None else _strategyqa_paragraphs(path)

    def question_of(record: Record) -> GoldQuestion:
        answer = record.get("answer")
        if not isinstance(answer, bool):
            raise ValueError(f'"answer" is {"missing" if answer is None else "neither true nor false"}')  # noqa: TRY004
        evidence = listed(record["evidence"], '"evidence"') if has(record, "evidence") else []
        annotators = [list(dict.fromkeys(_ids_in(part))) for part in evidence]
        named = [ids for ids in annotators if ids]
        if paragraphs is not None:
            named = [ids for ids in named if set(ids) <= paragraphs.keys()]
        documents = [paragraphs[name] for ids in annotators for name in ids if name in paragraphs] if paragraphs else []
        gold = named[0] if named else []
        return gold_question(record, answers_of(answer), documents=documents, gold=gold)

    return question_of


def _ids_in(evidence: object) -> Iterator[str]:
    """The paragraph ids at any depth, without the words `no_evidence` and `operation`."""
    if isinstance(evidence, list):
        for part in evidence:
            yield from _ids_in(part)
    elif isinstance(evidence, str) and evidence not in {"no_evidence", "operation"}:
        yield evidence.strip()


def _strategyqa_paragraphs(path: Path) -> dict[str, Document]:
    """By id, from JSON lines with `contents`, or from one object that maps ids to paragraphs with `content`."""
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
                f"'{shown(path)}', paragraph {number} is not a paragraph of StrategyQA: correct or remove it."
            )
        name = f"{record['title']}-{record['para_index']}".strip()
        found[name] = Document(name, str(record["title"]).strip(), text)
    return found


def _content(record: Record) -> str | None:
    text = record.get("contents", record.get("content"))
    return text if isinstance(text, str) and text.strip() else None
