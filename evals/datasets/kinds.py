"""The kinds of datasets: how their records are recognised, how they become questions, where the hub has them."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ...errors import UserFault, closest
from ..questions import GoldQuestion
from .fields import ANSWER_NAMES, Record, has
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


QuestionOf = Callable[[Record], GoldQuestion]
"""Makes a question of a row. Raises ValueError for a wrong row."""


@dataclass(frozen=True, slots=True)
class Kind:
    """The form of a dataset.

    question_of: for kinds that need only the row; open: for kinds that need other files, takes the file's folder (None
    for a table); rows: splits a record with several questions into rows; hub: NAME[/CONFIG]#SPLIT on the hub.
    """

    name: str
    question_of: QuestionOf | None = None
    rows: Callable[[Record], Iterable[Record | Broken]] | None = None
    hub: str | None = None
    open: Callable[[Path | None], QuestionOf] | None = None


KINDS: Mapping[str, Kind] = {
    kind.name: kind
    for kind in (
        Kind(PLAIN, plain),
        Kind("2wiki", titled_question, hub="framolfese/2WikiMultihopQA#validation"),
        Kind("hotpotqa", titled_question, hub="hotpotqa/hotpot_qa/distractor#validation"),
        Kind("musique", musique_question, hub="dgslibisey/MuSiQue#validation"),
        Kind("nq", nq_question, hub="google-research-datasets/nq_open#validation"),
        Kind("triviaqa", triviaqa_question, triviaqa_rows, "mandarjoshi/trivia_qa/rc.nocontext#validation"),
        Kind("ambignq", ambignq_question, hub="sewon/ambig_qa/light#validation"),
        Kind("popqa", popqa_question, hub="akariasai/PopQA#test"),
        Kind("squad", squad_question, squad_rows, "rajpurkar/squad#validation"),
        Kind("strategyqa", open=strategyqa_questions, hub="ChilleD/StrategyQA#test"),
        Kind("bamboogle", bamboogle_question, hub="chiayewken/bamboogle#test"),
        Kind("iirc", open=iirc_questions, rows=iirc_rows),
        Kind("longbench", longbench_question),
        Kind("infinitebench", infinitebench_question),
        Kind("flashrag", flashrag_question),
    )
}


def kind_named(name: str) -> Kind:
    """The kind of this name. Raises `UserFault` if there is none."""
    if name not in KINDS:
        raise UserFault(f"There is no kind of dataset '{name}'{closest(name, KINDS)}: there are {', '.join(KINDS)}.")
    return KINDS[name]


def looks_like(record: Record) -> tuple[str, ...]:
    """The kinds that fit a record's fields; empty if none is recognised."""
    return next((names for names, is_one in _MARKS if is_one(record)), ())


def _fields(*names: str) -> Callable[[Record], bool]:
    return lambda record: has(record, *names)


def _first(record: Record, name: str) -> Record:
    """The first object of a list, else an empty record."""
    value = record.get(name)
    first = value[0] if isinstance(value, list) and value else None
    return first if isinstance(first, Mapping) else {}


def _has_titles(record: Record) -> bool:
    context = record.get("context")
    pairs = isinstance(context, list) and bool(context) and isinstance(context[0], list)
    return has(record, "supporting_facts") or isinstance(context, Mapping) or pairs


def _has_articles(record: Record) -> bool:
    is_row = isinstance(record.get("context"), str) and isinstance(record.get("answers"), Mapping)
    return is_row or has(record, "data") or "qas" in _first(record, "paragraphs")


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
    (
        ("triviaqa",),
        lambda record: (
            has(record, "Data") or any(isinstance(record.get(name), Mapping) for name in ("answer", "Answer"))
        ),
    ),
    (("bamboogle",), _fields("Question", "Answer")),
    (("strategyqa",), lambda record: isinstance(record.get("answer"), bool)),
    (("2wiki",), lambda record: has(record, "evidences") and not has(record, "input")),
    (("hotpotqa", "2wiki"), _has_titles),
    (("triviaqa",), lambda record: record.get("dataset") == "trivia"),
    (
        ("nq",),
        lambda record: record.get("dataset") == "nq" or has(record, "short_answers") or has(record, "question_tokens"),
    ),
    (("nq", "triviaqa", PLAIN), lambda record: has(record, "question") and isinstance(record.get("answer"), list)),
    (
        (PLAIN,),
        lambda record: has(record, "question") and any(has(record, name) for name in ANSWER_NAMES),
    ),
)
"""Kinds and how their records are recognised, the most specific first."""
