"""A presenter: everything people are shown of one technique. It stands in the file that has the graph's name.

Terminal, page, `dubito ui`, reports and `dubito seper` ask here. A graph without a presenter, and a presenter that
fails over a half-written or hostile state, are shown plainly: the keys that each step changed.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Self

from ..errors import UserFault
from ..graphs.registry import technique_of_chat
from ..state.context import BaseContext
from ..state.records import Chunk
from ..traces.recording import Recording
from ..traces.steps import Step, named
from .blocks import Block, Cell, Cited, Gauge, Row, Table, Tone, Words, num
from .words import NO_ANSWER, WITHHELD, counted, figure, measure, names_of, source_of

Chunks = tuple[Chunk, ...]


@dataclass(frozen=True)
class StepSummary:
    """What a step says: words beside its name, and blocks below. hidden: once it is done it is not shown at all."""

    words: str = ""
    blocks: Sequence[Block] = ()
    hidden: bool = False


@dataclass(frozen=True, slots=True)
class RetrievalStep:
    """A step that found chunks, or changed the chunks that the answer is made from.

    label: the query, or what was done; new: the chunks that no earlier step had; known: the chunks that the run could
    answer from after it; first_stage, reranked: the same documents in the order of the search and of the re-ranking,
    empty if the trace does not show both.
    """

    label: str
    new: Chunks
    known: Chunks
    first_stage: Chunks = ()
    reranked: Chunks = ()

    @classmethod
    def whole(cls, label: str, chunks: Sequence[Chunk]) -> Self:
        """A step whose chunks replace all earlier ones."""
        return cls(label, tuple(chunks), tuple(chunks))


Summaries = Mapping[str, Callable[[Step], StepSummary]]
"""What the steps of a graph say, by node name."""


def by_node(*summaries: Callable[[Step], StepSummary]) -> dict[str, Callable[[Step], StepSummary]]:
    """The functions by name: each is named after the node whose steps it summarises."""
    return {summary.__name__: summary for summary in summaries}


@dataclass(frozen=True)
class Presenter:
    """What is shown of a technique.

    name: as its paper writes it; purpose: what it is for, as a heading; when: a sentence that says where it helps;
    about: what it does, in a few sentences, for readers who do not know the paper; steps: what a finished step says;
    live_steps: the same for steps that also say something while they run; figures: what a page shows of a run, as far
    as it got; outcome: what stands under the answer, of the output and the settings; retrieval_steps: what a run
    retrieved; why: a few sentences that say how the answer of an output came about, for readers in a hurry; score: the
    name of the chunks' scores, empty if it is the search's.
    """

    name: str
    purpose: str = ""
    when: str = ""
    about: str = ""
    steps: Summaries = field(default_factory=dict)
    live_steps: Summaries = field(default_factory=dict)
    figures: Callable[[Recording], Sequence[Block]] = lambda recording: ()
    outcome: Callable[[Mapping[str, Any], BaseContext], Sequence[Block]] = lambda output, settings: ()
    retrieval_steps: Callable[[Recording], Iterable[RetrievalStep]] = lambda recording: ()
    why: Callable[[Mapping[str, Any]], str] = lambda output: ""
    score: str = ""


@cache
def presenter_of(graph: str) -> Presenter:
    """The presenter of a graph: `presenter` in the module of its name; a plain one for a graph that has none.

    A chat form has that of its graph, with the steps around the graph.
    """
    if technique := technique_of_chat(graph):
        return _of_chat(technique)
    if graph.isidentifier() and find_spec(f"{__package__}.{graph}") is not None:
        found = getattr(import_module(f"{__package__}.{graph}"), "presenter", None)
        if isinstance(found, Presenter):
            return found
    return Presenter(graph)


def _of_chat(technique: str) -> Presenter:
    inner = presenter_of(technique)

    def within(recording: Recording) -> Recording:
        """The run of the technique, within that of its chat form."""
        return replace(
            recording, graph=technique, steps=[s for step in named(recording.steps, technique) for s in step.steps]
        )

    return replace(
        inner,
        steps={"standalone": standalone} | dict.fromkeys(("listen", technique, "reply"), nothing),
        live_steps={},
        figures=lambda recording: inner.figures(within(recording)),
        outcome=lambda output, settings: (),
        why=lambda output: "",
        retrieval_steps=lambda recording: inner.retrieval_steps(within(recording)),
    )


def standalone(step: Step) -> StepSummary:
    """The question as it stands alone."""
    return StepSummary(step.update.get("question", ""), warnings(step))


def score_name(graph: str, settings: BaseContext) -> str:
    """What the scores of a graph's chunks are."""
    own = "similarity to the question" if measure(settings) == "similarity" else "score"
    return presenter_of(graph).score or own


def summary_of(step: Step) -> StepSummary:
    """What a step says."""
    if step.errors:
        return changes(step)
    try:
        presenter = presenter_of(step.graph)
        if summarise := presenter.live_steps.get(step.node):
            return summarise(step)
        if step.running:
            return _progress(step)
        return (presenter.steps.get(step.node) or SHARED.get(step.node, changes))(step)
    except Exception:
        plain = changes(step)
        return plain if step.running else replace(plain, blocks=[Words("(its details cannot be shown)", "warn")])


def figures_of(recording: Recording) -> Sequence[Block]:
    """What a page shows of a run beside its steps."""
    try:
        return presenter_of(recording.graph).figures(recording)
    except Exception:
        return [
            Words(f"This trace's {recording.graph} differs from the one known here; its steps are shown below.", "warn")
        ]


def why(recording: Recording) -> str:
    """How the answer came about, in a few sentences; empty for a run without an answer."""
    if recording.output is None:
        return ""
    try:
        return presenter_of(recording.graph).why(recording.output)
    except Exception:
        return ""


def outcome_of(graph: str, output: Mapping[str, Any], settings: BaseContext | None) -> Sequence[Block]:
    """What stands under the answer; how sure the graph is, if its presenter says nothing of its own."""
    try:
        shown = presenter_of(graph).outcome(output, settings) if settings is not None else ()
        return [*([*shown, *certainty(output)] or own_uncertainty(output)), *citations(output)]
    except Exception:
        return [Words("(its figures cannot be shown)", "warn")]


def retrieval_steps(recording: Recording) -> list[RetrievalStep]:
    """The retrieval steps of a run, as far as the trace goes; none of a run that looks nothing up.

    Raises `UserFault` for a graph without a presenter, and a trace that differs from the graph known here.
    """
    presenter = presenter_of(recording.graph)
    if not presenter.steps:
        raise UserFault(f"What a run of '{recording.graph}' retrieves is not known: give a trace of dubito's graphs.")
    try:
        return _with_new(presenter.retrieval_steps(recording))
    except Exception as fault:
        raise UserFault(
            f"The trace '{recording.path}' holds a {recording.graph} that differs from the one known here: record the "
            "run anew."
        ) from fault


def _with_new(steps: Iterable[RetrievalStep]) -> list[RetrievalStep]:
    """The steps, each with only those chunks as new that no earlier step had."""
    seen: set[str] = set()
    found = []
    for step in steps:
        new = tuple(chunk for chunk in step.new if chunk["id"] not in seen)
        seen |= {chunk["id"] for chunk in new}
        # texts that go into prompts: a chunk without them is a fault of the trace, raised here
        _ = [chunk["title"] + chunk["text"] for chunk in (*step.known, *step.first_stage)]
        found.append(replace(step, new=new))
    return found


def answer_block(output: Mapping[str, Any]) -> Cited:
    """The answer of an output with its marks, or that it is withheld; empty if there is none."""
    cited = str(output.get("cited_answer") or "")
    if output.get("abstained") or not cited:
        return Cited([(WITHHELD if output.get("abstained") else str(output.get("answer") or "").strip(), None)])
    named = {f"[{one['mark']}]": int(one["mark"]) for one in output.get("citations") or [] if one["exists"]}
    parts = [part for part in re.split(r"(\[\d{1,3}\])", cited.strip()) if part]
    return Cited([(part, named.get(part)) for part in parts])


VERDICTS: Mapping[str | None, tuple[str, Tone]] = {
    "supported": ("supported", "good"),
    "unsupported": ("not supported", "bad"),
    "unchecked": ("not checked", "dim"),
    None: ("no such passage", "bad"),
}


def citations(output: Mapping[str, Any]) -> Sequence[Block]:
    """What became of each mark of the answer; nothing if no citations were asked for."""
    found = output.get("citations") or []
    if not found:
        return [Words("The answer cites no passage.", "warn")] if output.get("cited_answer") else []
    names = names_of({"id": one["chunk_id"], "title": one["title"]} for one in found if one["exists"])
    rows = []
    for one in found:
        words, tone = VERDICTS[one["verdict"]]
        source = source_of({"metadata": {"url": one["address"], "page": one["page"], "heading": one.get("heading")}})
        passage = ", ".join(filter(None, (names.get(one["chunk_id"]), source)))
        rows.append(Row([Cell(f"[{one['mark']}]"), Cell(one["statement"]), Cell(passage), Cell(words, tone=tone)]))
    return [Table(["mark", "behind", "passage", "verdict"], rows, "Citations")]


def cite(step: Step) -> StepSummary:
    """'2 of 3 citations are supported'."""
    found = step.update.get("citations") or []
    if not found:
        return StepSummary("no citations", warnings(step))
    verdicts = [one["verdict"] for one in found]
    counts = {words: verdicts.count(verdict) for verdict, (words, _) in VERDICTS.items()}
    words = ", ".join(f"{count} {words}" for words, count in counts.items() if count)
    return StepSummary(f"{counted(len(found), 'citation')}: {words}", warnings(step))


def looked_at(output: Mapping[str, Any]) -> bool:
    """Did the run end with a look at its answer's certainty, whose uncertainty may be another than the graph's own?"""
    return bool(output.get("signals") or output.get("certificate"))


def own_uncertainty(output: Mapping[str, Any]) -> Sequence[Block]:
    """The graph's own uncertainty in a sentence; nothing if the run looked at the answer's certainty."""
    return [] if looked_at(output) else uncertainty_sentence(output)


def certainty(output: Mapping[str, Any]) -> Sequence[Block]:
    """What the look at the answer's certainty found: the uncertainty, the withheld answer, the certificate."""
    if not looked_at(output):
        return []
    blocks = list(uncertainty_sentence(output))
    certificate = output.get("certificate")
    if not certificate:
        return blocks
    if output["abstained"]:
        withheld = output["withheld_answer"] or NO_ANSWER
        blocks.append(Words(f"Not certain enough to answer. The answer that is withheld: {withheld}", "warn"))
    holds = certificate["holds"]
    sentence = certificate["sentence"] if holds else f"Nothing is certified of this answer: {certificate['sentence']}"
    return [*blocks, Words(sentence, "dim" if holds else "warn")]


def check_certainty(step: Step) -> StepSummary:
    """The meanings of the sampled answers, and whether the answer is given."""
    update = step.update
    if step.running:
        return StepSummary()
    rows = [Row([Cell(meaning[0]), num(len(meaning))]) for meaning in update.get("meanings") or []]
    table = [Table(["sampled answers, by meaning", "times"], rows)] if rows else []
    return StepSummary("", [*table, *certainty({**step.state, **update}), *warnings(step)])


def uncertainty_sentence(output: Mapping[str, Any]) -> Sequence[Block]:
    """'DSE 0.45: uncertain, above the threshold 0.2'; nothing for a graph that does not measure it."""
    uncertainty = output.get("uncertainty")
    if not uncertainty or uncertainty["value"] is None:
        return []
    value, threshold = uncertainty["value"], uncertainty["threshold"]
    words = f"Uncertainty: {uncertainty['signal']} {figure(value)}"
    if threshold is None:
        return [Words(f"{words}.")]
    if value > threshold:
        return [Words(f"{words}, above the threshold {figure(threshold)}.", "warn")]
    return [Words(f"{words}, at most the threshold {figure(threshold)}.", "good")]


def changes(step: Step) -> StepSummary:
    """Of any node: the keys of the state that it changed."""
    keys = dict.fromkeys(key for run in step.ended for key in run.update if key != "usage")
    return StepSummary("changed " + ", ".join(keys) if keys else "")


def warnings(step: Step) -> list[Block]:
    """The warnings of a step."""
    return [Words(warning, "warn") for run in step.ended for warning in run.update.get("warnings") or []]


def _progress(step: Step) -> StepSummary:
    """How far a running step's long preparation is, if it has any."""
    if step.progress is None:
        return StepSummary()
    things = "sentences" if step.progress.what.startswith("comparing sentences") else "chunks"
    return StepSummary(step.progress.what, [Gauge(step.progress.done, step.progress.total, things)])


def preparation(step: Step) -> StepSummary:
    """What was chosen and prepared. A subgraph's preparation is hidden if nothing had to be done."""
    if step.path and step.progress is None:
        return StepSummary(hidden=True)
    words = "" if step.progress is None else f"{step.progress.what}: {counted(step.progress.total, 'chunk')}"
    blocks = [block for run in step.ended for block in chosen_settings(run.update)]
    return StepSummary(words, [*blocks, *warnings(step)])


def chosen_settings(output: Mapping[str, Any]) -> list[Block]:
    """'evaluator report: the model gives no ...' for each setting that was `auto`."""
    chosen = (output.get("chosen") or {}).items()
    return [Words(f"{name} {choice['value']}: {choice['because']}") for name, choice in chosen]


def nothing(step: Step) -> StepSummary:
    """No words: the step's name says it, or its result stands under the answer."""
    return StepSummary()


def hidden(step: Step) -> StepSummary:
    """Not shown once it is done: a later step shows what it did."""
    return StepSummary(hidden=True)


SHARED: Summaries = {"prepare": preparation, "generate": nothing, "check_certainty": check_certainty, "cite": cite}
"""What nodes that most graphs have say, by node name."""
