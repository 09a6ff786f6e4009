"""The keys that every graph has: input, output, and the state that shared nodes read and write."""

from typing import Annotated, Any, get_args, get_origin, get_type_hints

from langgraph.channels import EphemeralValue
from typing_extensions import TypedDict

from .records import Certificate, Chosen, Chunk, Citation, Uncertainty, Usage, add_new, add_usage, newest


class Question(TypedDict):
    """The input of every graph."""

    question: str


class Answered(TypedDict):
    """The output of every graph, beside the technique's own figures.

    evidence: the chunks that the answer is made from; uncertainty: null if the technique does not measure it;
    signals: every uncertainty of the answer that was measured, by name, if the settings ask for more than the
    technique's own; abstained: whether the answer is withheld: `answer` is empty then, and `withheld_answer` has it;
    certificate: what is promised of the answers that are given, null without a calibration;
    chosen: the settings that were `auto`, by name.
    cited_answer, citations: with `cite`, the answer with marks such as [1], which are the places of the passages in
    `evidence`, and what became of each mark that the model wrote. `answer` never has marks. `cited_answer` is empty
    without `cite`, and for an answer that is empty, abstains, is withheld or has no evidence.
    """

    answer: str
    cited_answer: str
    citations: list[Citation]
    evidence: list[Chunk]
    uncertainty: Uncertainty | None
    signals: dict[str, float | None]
    abstained: bool
    withheld_answer: str
    certificate: Certificate | None
    chosen: dict[str, Chosen]
    usage: Usage
    warnings: list[str]


class Flow(TypedDict, total=False):
    """The state of every graph.

    evidence: the chunks that the answer is made from, most similar to the question first.
    uncertainty: null unless the technique has a node that measures it. chosen: written by `prepare`.
    signals, meanings, abstained, withheld_answer, certificate: written by `check_certainty`, if the settings ask for
    it; meanings: the sampled answers, those that mean the same together.
    cited_answer: what `generate` wrote with marks, until `cite` has read them; citations: written by `cite`.
    warnings: one sentence for each problem that the run worked around.
    settings: the context of the last step. Routers need it when a caller edits a thread's state, because LangGraph
    passes no context then.
    """

    question: str
    answer: str
    cited_answer: str
    citations: list[Citation]
    evidence: list[Chunk]
    uncertainty: Uncertainty | None
    signals: dict[str, float | None]
    meanings: list[list[str]]
    abstained: bool
    withheld_answer: str
    certificate: Certificate | None
    chosen: Annotated[dict[str, Chosen], newest]
    usage: Annotated[Usage, add_usage]
    warnings: Annotated[list[str], add_new]
    settings: Annotated[dict[str, Any], newest]


class Grounded(TypedDict, total=False):
    """The input of the Generator."""

    question: str
    evidence: list[Chunk]
    incremental_context: list[str]


EMPTY_VALUES: tuple[type, ...] = (list, dict, str, int, bool)
"""A key of such a type holds the empty value until a node writes it; a key of another type holds null."""


def begin_anew(schema: type, kept: type = Question) -> dict[str, Any]:
    """The update that makes a thread forget its last question: a value for every key of a state except the input.

    A key with a reducer gets null, and our reducers then begin anew. Another key gets the empty value of its type: [],
    {}, "", 0 or false; null for any other type. The input is the keys of `kept`, and every key that LangGraph itself
    drops after one step (`EphemeralValue`).
    """
    update: dict[str, Any] = {}
    for key, hint in get_type_hints(schema, include_extras=True).items():
        _, *metadata = get_args(hint) if get_origin(hint) is Annotated else (hint,)
        if key in kept.__annotations__ or any(isinstance(mark, EphemeralValue) for mark in metadata):
            continue
        value_type = get_origin(hint) or hint
        update[key] = value_type() if not metadata and value_type in EMPTY_VALUES else None
    return update
