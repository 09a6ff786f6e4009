"""The kinds of datasets that are read: what tells their records, what makes questions of them, where they are kept."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from ...errors import UserFault, closest
from ..questions import ANSWER_NAMES, GoldQuestion
from .fields import Record, has
from .multi_hop import bamboogle_question, musique_question, strategyqa_questions, titled_question
from .open_domain import (
    ambignq_question,
    flashrag_question,
    nq_question,
    plain,
    popqa_question,
    triviaqa_question,
    triviaqa_rows,
)
from .passages import (
    iirc_questions,
    iirc_rows,
    infinitebench_question,
    longbench_question,
    squad_question,
    squad_rows,
)
from .reading import Broken

PLAIN = "jsonl"


@dataclass(frozen=True, slots=True)
class Kind:
    """A dataset's layout.

    open: given the file's folder (None for a table), makes what reads a row, which raises ValueError for what is
    wrong with it; rows: a record's questions, each with what it needs of the record; hub: NAME[/CONFIG]#SPLIT there.
    """

    name: str
    open: Callable[[Path | None], Callable[[Record], GoldQuestion]]
    rows: Callable[[Record], Iterable[Record | Broken]] | None = None
    hub: str | None = None


def _alone(question_of: Callable[[Record], GoldQuestion]) -> Callable[[Path | None], Callable[[Record], GoldQuestion]]:
    return lambda _: question_of


_ALL = (
    Kind(PLAIN, _alone(plain)),
    Kind("2wiki", _alone(titled_question), hub="framolfese/2WikiMultihopQA#validation"),
    Kind("hotpotqa", _alone(titled_question), hub="hotpotqa/hotpot_qa/distractor#validation"),
    Kind("musique", _alone(musique_question), hub="dgslibisey/MuSiQue#validation"),
    Kind("nq", _alone(nq_question), hub="google-research-datasets/nq_open#validation"),
    Kind("triviaqa", _alone(triviaqa_question), triviaqa_rows, "mandarjoshi/trivia_qa/rc.nocontext#validation"),
    Kind("ambignq", _alone(ambignq_question), hub="sewon/ambig_qa/light#validation"),
    Kind("popqa", _alone(popqa_question), hub="akariasai/PopQA#test"),
    Kind("squad", _alone(squad_question), squad_rows, "rajpurkar/squad#validation"),
    Kind("strategyqa", strategyqa_questions, hub="ChilleD/StrategyQA#test"),
    Kind("bamboogle", _alone(bamboogle_question), hub="chiayewken/bamboogle#test"),
    Kind("iirc", iirc_questions, iirc_rows),
    Kind("longbench", _alone(longbench_question)),
    Kind("infinitebench", _alone(infinitebench_question)),
    Kind("flashrag", _alone(flashrag_question)),
)

KINDS: Mapping[str, Kind] = {kind.name: kind for kind in _ALL}


def kind_named(name: str) -> Kind:
    """The kind of this name. Raises `UserFault` if there is none."""
    if name not in KINDS:
        raise UserFault(f"There is no kind of dataset '{name}'{closest(name, KINDS)}: there are {', '.join(KINDS)}.")
    return KINDS[name]


def looks_like(record: Record) -> tuple[str, ...]:
    """The kinds that a record may be of by the fields it has; none if they tell nothing."""
    return next((names for names, is_one in _MARKS if is_one(record)), ())


def _fields(*names: str) -> Callable[[Record], bool]:
    return lambda record: has(record, *names)


def _first(record: Record, name: str) -> Record:
    """The first object of a list, empty if there is none."""
    value = record.get(name)
    found = value[0] if isinstance(value, list) and value else None
    return found if isinstance(found, Mapping) else {}


def _has_table(record: Record) -> bool:
    return isinstance(record.get("answer"), Mapping) or isinstance(record.get("Answer"), Mapping) or has(record, "Data")


def _has_titles(record: Record) -> bool:
    context = record.get("context")
    pairs = isinstance(context, list) and bool(context) and isinstance(context[0], list)
    return has(record, "supporting_facts") or isinstance(context, Mapping) or pairs


def _is_trivia(record: Record) -> bool:
    return record.get("dataset") == "trivia"


def _is_nq(record: Record) -> bool:
    return record.get("dataset") == "nq" or has(record, "short_answers") or has(record, "question_tokens")


def _has_articles(record: Record) -> bool:
    return has(record, "data") or "qas" in _first(record, "paragraphs") or _is_squad_row(record)


def _is_squad_row(record: Record) -> bool:
    return isinstance(record.get("context"), str) and isinstance(record.get("answers"), Mapping)


def _has_any_answers(record: Record) -> bool:
    return has(record, "question") and any(has(record, name) for name in ANSWER_NAMES)


_MARKS: tuple[tuple[tuple[str, ...], Callable[[Record], bool]], ...] = (
    (
        ("musique",),
        lambda record: has(record, "question_decomposition") or "paragraph_text" in _first(record, "paragraphs"),
    ),
    (("popqa",), _fields("possible_answers")),
    (("ambignq",), _fields("annotations")),
    (("flashrag", PLAIN), _fields("golden_answers")),
    (("iirc",), _fields("questions", "links")),
    (("squad",), _has_articles),
    (("longbench",), _fields("input", "context", "answers")),
    (("infinitebench",), _fields("input", "context", "answer")),
    (("triviaqa",), _has_table),
    (("bamboogle",), _fields("Question", "Answer")),
    (("strategyqa",), lambda record: isinstance(record.get("answer"), bool)),
    (("2wiki",), lambda record: has(record, "evidences") and not has(record, "input")),
    (("hotpotqa", "2wiki"), _has_titles),
    (("triviaqa",), _is_trivia),
    (("nq",), _is_nq),
    (("nq", "triviaqa", PLAIN), lambda record: has(record, "question") and isinstance(record.get("answer"), list)),
    ((PLAIN,), _has_any_answers),
)
"""Kinds by what tells their records, the most telling first."""


def rows_in(kind: Kind, record: Record) -> Iterator[Record | Broken]:
    """The rows of a record, each of which is a question."""
    yield from kind.rows(record) if kind.rows else (record,)
