"""What people are shown of DENSE-RAG."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast, get_args

from ..nodes.best_answer import is_low, latest_answer, suffices
from ..state.context import BaseContext
from ..state.dense_rag import GIVEN, BestAnswer, ChunkClass, DenseRagContext, DenseRagState, StopReason
from ..traces.recording import Recording
from ..traces.steps import NodeRun, Step
from . import dense
from .blocks import Bar, Bars, Block, Cell, Fold, Row, Table, Words, answer_cell, num
from .presenter import Presenter, RetrievalStep, StepSummary, by_node
from .words import counted, measure, names_of, similarities, title_of

STOP_REASONS: Mapping[StopReason, str] = {
    "certain": "the answer is certain without refinement",
    "not_refined": "the answer is uncertain and refinement is off",
    "accepted": "the context was accepted",
    "all_visited": "every chunk of the corpus has been tried",
    "max_rounds": "the rounds of refinement are used up",
    "unchanged": "refinement changed nothing",
    "nothing_left": "refinement dropped every chunk",
}

JUDGED = {True: "The model finds the context sufficient.", False: "The model finds the context insufficient."}


def retrieve_context(step: Step) -> StepSummary:
    """How many of the chunks were retrieved, and their similarity to the question; or how many were given."""
    chunks, chunking = step.update["context_chunks"], step.update["chunking"]
    if chunking == GIVEN:
        return StepSummary(f"{counted(len(chunks), 'chunk')} given")
    return StepSummary(similarities(chunks, measure(step.settings), chunking, step.update["total"]))


def measured_context(step: Step) -> StepSummary:
    """Which context is measured, and how certain its answer is."""
    words = f"context {len(step.state['rounds']) + 1}, {counted(len(step.state['context_chunks']), 'chunk')}"
    return StepSummary(words if step.running else f"{words}: {dense.verdict(step.update)}")


def self_evaluate(step: Step) -> StepSummary:
    """Whether the model finds the context sufficient."""
    if step.update.get("warnings"):
        return StepSummary("the model said neither yes nor no: the context counts as insufficient")
    return StepSummary(f"the model finds the context {'sufficient' if step.update['sufficient'] else 'insufficient'}")


def update_best(step: Step) -> StepSummary:
    """The best answer so far; whether it is accepted, and if not, why and what follows."""
    best, before, stop_reason = step.update["best"], step.state["best"], step.update["stop_reason"]
    words = f"best so far: DSE {best['dse']:.2f}"
    if before is not None:
        words += " of an earlier context" if best == before else f", before it was {before['dse']:.2f}"
    if stop_reason == "accepted":
        return StepSummary(f"{words}, accepted")
    follows = f"the run ends: {STOP_REASONS[stop_reason]}" if stop_reason else "the context is refined"
    return StepSummary(words, [Words(f"not accepted: {' and '.join(_objections(step))}; {follows}")])


def _objections(step: Step) -> list[str]:
    """Why no answer is accepted: the best one, or the latest one if a low DSE or a sufficient context is enough."""
    context = cast("DenseRagContext", step.settings)
    latest = latest_answer(cast("DenseRagState", step.input))
    judged: BestAnswer = step.update["best"] if context.accept == "both" else latest
    objections = []
    if not is_low(judged, context):
        objections.append(
            f"its DSE is not below {context.dse_threshold:g}"
            if judged["probed"]
            else dense.why_unprobed(judged["answer"])
        )
    if not suffices(judged, context):
        objections.append("its context is judged insufficient")
    return objections


def ablate(step: Step) -> StepSummary:
    """The responses without each uncertain chunk, as they arrive."""
    names = {chunk["id"]: (f"c_{i}", title_of(chunk)) for i, chunk in enumerate(step.state["context_chunks"], 1)}
    responses: dict[str, str] = {}
    for run in step.ended:
        responses |= run.update["ablations"]
    ablations = {run.input["key"]: responses.get(run.input["key"]) for run in step.runs}
    words = "" if step.running else f"{counted(len(ablations), 'uncertain chunk')} left out in turn"
    return StepSummary(words, [dense.responses_table(names, ablations, "", step.state["responses"][0])])


def classify(step: Step) -> StepSummary:
    """Each chunk's class, and the responses that decide it."""
    titles = {chunk["id"]: title_of(chunk) for chunk in step.input["context_chunks"]}
    rows = []
    for i, chunk in enumerate(step.update["classified"], 1):
        kind, *ablation = dense.class_cells(chunk)
        cells = [Cell(f"c_{i}", tone="dim"), Cell(titles[chunk["chunk_id"]]), kind]
        response = [answer_cell(chunk["response"]), num(chunk["link"], level=chunk["link"])]
        rows.append(Row([*cells, *response, *ablation], minor=chunk["kind"] == "certain"))
    counts = Counter(chunk["kind"] for chunk in step.update["classified"])
    words = ", ".join(f"{counts[kind]} {kind}" for kind in get_args(ChunkClass) if counts[kind])
    columns = ["", "chunk", "class", "response with it rephrased", "link", "response without it", "link"]
    return StepSummary(words, [Table(columns, rows)])


def refine(step: Step) -> StepSummary:
    """The dropped chunks, the added chunks, and the chunk that each of these is near to."""
    record, stop_reason = step.update["rounds"][-1], step.update["stop_reason"]
    words = f"{len(record['pruned'])} dropped, {len(record['refilled'])} added"
    words += f"; the run ends: {STOP_REASONS[stop_reason]}" if stop_reason else ""
    return StepSummary(words, _refined(step.input, step.update))


def _refined(state: Mapping[str, Any], update: Mapping[str, Any], title: str = "") -> list[Block]:
    """A table of the dropped and the added chunks; empty if there are none."""
    before = names_of(state["context_chunks"])
    after = names_of(update.get("context_chunks", []))
    record = update["rounds"][-1]
    rows = [Row([Cell("dropped", tone="bad"), Cell(before[chunk_id]), Cell("")]) for chunk_id in record["pruned"]]
    for refill in record["refilled"]:
        added = Cell(after.get(refill["chunk_id"], refill["chunk_id"]))
        near = Cell(f"cosine {refill['similarity']:.2f} to {before[refill['near']]}", tone="dim")
        rows.append(Row([Cell("added", tone="good"), added, near]))
    return [Table(["", "chunk", "near"], rows, title)] if rows else []


def give_best_answer(step: Step) -> StepSummary:
    """Why the run ended, and how certain the answer is."""
    return StepSummary(f"{STOP_REASONS[step.update['stop_reason']]}: {dense.verdict(step.update)}")


def outcome(output: Mapping[str, Any], settings: BaseContext) -> list[Block]:
    """How certain the answer is, how many contexts were measured, and why the run ended."""
    words = f"{counted(len(output['rounds']), 'context')} measured; it ended because "
    sentences = [f"{words}{STOP_REASONS[output['stop_reason']]}.", JUDGED.get(output["sufficient"], "")]
    return [*dense.outcome(output, settings), Words(" ".join(sentence for sentence in sentences if sentence))]


@dataclass
class _Context:
    """A measured context. run: of the subgraph `dense`; refinement: the update of `refine`, empty if there is none."""

    run: NodeRun
    sufficient: bool | None = None
    classes: dense.Classes = field(default_factory=dict)
    refinement: tuple[Mapping[str, Any], Mapping[str, Any]] | None = None


def figures(recording: Recording) -> list[Block]:
    """Every measured context and its refinement."""
    contexts = _contexts(recording.steps)
    if not contexts:
        return [Words("The run ended before a context was measured.")]
    names = [_name(number, context.run) for number, context in enumerate(contexts, 1)]
    blocks: list[Block] = [_bars(names, contexts)]
    if stop_reason := (recording.output or {}).get("stop_reason"):
        blocks.append(Words(f"The run ended because {STOP_REASONS[stop_reason]}."))
    for name, context in zip(names, contexts, strict=True):
        blocks_of_context: list[Block] = [] if context.sufficient is None else [Words(JUDGED[context.sufficient])]
        blocks_of_context += dense.measurement(context.run.steps, context.classes)
        blocks_of_context += _refined(*context.refinement, "Refined") if context.refinement else []
        title = f"{name}: DSE {context.run.update['dse']:.3f}"
        blocks.append(Fold(title, blocks_of_context, open=context is contexts[0]))
    return blocks


def _contexts(steps: Sequence[Step]) -> list[_Context]:
    """Each measurement with the steps between it and the next one."""
    contexts: list[_Context] = []
    for step in steps:
        if step.node == "dense" and "dse" in step.update:
            contexts.append(_Context(step.runs[0]))
        elif step.node == "update_best":
            contexts[-1].sufficient = step.input["sufficient"]
        elif step.node == "classify":
            contexts[-1].classes = {chunk["chunk_id"]: chunk for chunk in step.update.get("classified", [])}
        elif step.node == "refine" and step.update.get("rounds"):
            contexts[-1].refinement = step.input, step.update
    return contexts


def _name(number: int, run: NodeRun) -> str:
    chunks = counted(len(run.input.get("context_chunks") or []), "chunk")
    made = GIVEN if run.input["chunking"] == GIVEN else f"by {run.input['chunking']}"
    return f"Context {number}, round {run.input['round']}, {chunks} {made}"


def _bars(names: Sequence[str], contexts: Sequence[_Context]) -> Bars:
    threshold = contexts[0].run.update["uncertainty"]["threshold"]
    values = [context.run.update["dse"] for context in contexts]
    bars = [Bar(name, dse, f"{dse:.3f}") for name, dse in zip(names, values, strict=True)]
    note = "In nats; an answer is certain if its DSE is at most the threshold."
    return Bars("DSE of each context", bars, threshold, f"threshold {threshold:g}", note)


def retrieved(recording: Recording) -> Iterator[RetrievalStep]:
    """Every context."""
    for step in recording.steps:
        update = step.update
        if step.node in {"retrieve_context", "rechunk"} and "context_chunks" in update:
            yield RetrievalStep.whole(f"{step.node.partition('_')[0]} ({update['chunking']})", update["context_chunks"])
        elif step.node == "refine" and "context_chunks" in update:
            yield RetrievalStep.whole(f"refine, round {update['round']}", update["context_chunks"])


def why(output: Mapping[str, Any]) -> str:
    """Which of the measured contexts gave the answer, and why the run ended."""
    rounds = output["rounds"]
    measured = f"{counted(len(rounds), 'context')} {'were' if len(rounds) > 1 else 'was'} measured"
    if len(rounds) > 1:
        measured += f", the first with DSE {rounds[0]['dse']:.2f}"
    ended = f"It ended because {STOP_REASONS[output['stop_reason']]}"
    # a lower DSE may be of a context that was judged insufficient or in which no chunk was rephrased
    most_certain = output["dse"] <= min(one["dse"] for one in rounds)
    context = "the most certain context" if most_certain else "the context that was kept as the best"
    return f"{measured}. {ended}; the answer is that of {context}: {dense.verdict(output)}."


presenter = Presenter(
    name="DENSE-RAG",
    purpose="Improve uncertain evidence",
    when="The answer changes if a passage is worded differently.",
    about="DENSE-RAG measures how certain the answer is (DSE: 0 if the responses agree whichever chunk is rephrased) "
    "and improves an uncertain context. Unnecessary chunks, without which the answer stays the same, are dropped; "
    "chunks similar to the necessary ones, without which it changes, are added.",
    steps=by_node(retrieve_context, self_evaluate, update_best, classify, refine, give_best_answer)
    | {"rechunk": retrieve_context},
    live_steps=by_node(ablate) | {"dense": measured_context},
    figures=figures,
    outcome=outcome,
    retrieval_steps=retrieved,
    why=why,
)
