"""What people are shown of neighbourhood-aware retrieval, alone and as the look-ups of SUNAR."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from heapq import nlargest
from typing import Any, cast

from ..nodes.answer_uncertainty import COUNTED
from ..nodes.update_frontier import penalty, ranked
from ..state.answer_text import normalised
from ..state.context import BaseContext
from ..state.neighbourhood import NeighbourhoodContext, Pool, ScoredDocument, StopReason
from ..state.records import Chunk
from ..traces.recording import Recording
from ..traces.steps import NodeRun, Step, last_update, named
from .blocks import Block, Cell, Fold, Pairs, Row, Table, Words, num
from .exploration import exploration
from .presenter import Presenter, RetrievalStep, StepSummary, by_node, hidden, own_uncertainty, warnings
from .words import MOST_TITLES, NO_ANSWER, counted, names_of, shortened, title_of, titles_of

STOP_REASONS: Mapping[StopReason, str] = {
    "budget": "the budget is spent",
    "exhausted": "no documents are left to score",
    "converged": "the best documents no longer improve",
    "batches": "there were too many batches",
}
"""Why an exploration ended."""

MOST_ENTERED, MOST_ANSWERS = 5, 5
"""Shown: a batch's documents among the best, distinct sampled answers; the others are counted."""

LONGEST_ANSWER = 30
"""Characters of a sampled answer beside others."""

_SOURCE: Mapping[Pool, str] = {"first_stage": "from the first stage", "frontier": "neighbours"}


def search_first_stage(step: Step) -> StepSummary:
    """How many documents the first stage found."""
    count = len(step.update["first_stage"])
    return StepSummary(
        f"{counted(count, 'document')} from {step.update['first_stage_name']}" if count else "no documents"
    )


def score_batch(step: Step) -> StepSummary:
    """The batch; `update_frontier` shows its scores."""
    return StepSummary(f"{_batch(step)} to score", hidden=True)


def sample_answers(step: Step) -> StepSummary:
    """How many answers are sampled; `update_frontier` shows them."""
    count = _settings(step).samples
    return StepSummary(f"{counted(count, 'answer')} from batch {step.input['iteration'] + 1}", hidden=True)


def count_semantic_sets(step: Step) -> StepSummary:
    """How many answers are compared; once done, only warnings."""
    if step.running:
        return StepSummary(f"{counted(len(_distinct(step.input['sampled_answers'])), 'distinct answer')} to compare")
    shown = warnings(step)
    return StepSummary(f"batch {step.input['iteration'] + 1}", shown, hidden=not shown)


def update_frontier(step: Step) -> StepSummary:
    """The batch: how many documents are scored, the sampled answers, and its documents among the best."""
    context, before, batch = _settings(step), step.input["scored"], step.update["scored"]
    words = f"{_batch(step)}, {len(before) + len(batch):,} of {context.budget:,} scored"
    entered = entered_best(before, batch, context.k)
    frontier = f"{counted(len(step.update['frontier']), 'document')} in the frontier"
    blocks: list[Block] = [] if context.penalty == "none" else [_answers(step)]
    blocks.append(Words(f"{len(entered) or 'no documents'} new among the best {context.k}; {frontier}"))
    return StepSummary(words, [*blocks, _entered(entered, step.input["documents_by_id"])] if entered else blocks)


def intermediate_answer(step: Step) -> StepSummary:
    """A sub-question's answer and its evidence; without a parent graph they stand under the answer."""
    if not step.path:
        return StepSummary()
    evidence = titles_of(step.update["evidence"], MOST_TITLES)
    return StepSummary(step.update["answer"] or NO_ANSWER, [Words(f"from {evidence}", "dim")] if evidence else [])


def explored(output: Mapping[str, Any]) -> str:
    """'48 scored, 16 from the frontier', of documents."""
    scored: Sequence[ScoredDocument] = output["scored"]
    return f"{len(scored):,} scored, {sum(document['pool'] == 'frontier' for document in scored):,} from the frontier"


def entered_best(
    before: Sequence[ScoredDocument], batch: Sequence[ScoredDocument], k: int
) -> list[tuple[int, ScoredDocument]]:
    """The batch's documents among the k best, each with its rank from 1."""
    known = {document["chunk_id"] for document in before}
    # the k best by score, of equal scores the first, as `ranked` has them; sorting all takes longer
    best = nlargest(k, [*before, *batch], key=lambda document: document["score"])
    return [(rank, document) for rank, document in enumerate(best, 1) if document["chunk_id"] not in known]


def _settings(step: Step) -> NeighbourhoodContext:
    return cast("NeighbourhoodContext", step.settings)


def _batch(step: Step) -> str:
    """'batch 2: 16 neighbours'."""
    return f"batch {step.input['iteration'] + 1}: {len(step.input['batch_ids'])} {_SOURCE[step.input['pool']]}"


def _distinct(answers: Sequence[str]) -> list[tuple[str, int]]:
    """Answers that differ after normalisation, the most frequent first, each as it was first written."""
    written = {normalised(text): text for text in reversed(answers) if text}
    times = Counter(normalised(text) for text in answers if text)
    return [(written[text], count) for text, count in times.most_common()]


def _answers(step: Step) -> Words:
    """The sampled answers and the penalty that follows."""
    answers, sets = step.input["sampled_answers"], step.input["number_of_semantic_sets"]
    distinct, empty = _distinct(answers), sum(not text for text in answers)
    shown = [f"{shortened(text, LONGEST_ANSWER)} ({count})" for text, count in distinct[:MOST_ANSWERS]]
    shown += [f"{len(distinct) - MOST_ANSWERS} more"] if len(distinct) > MOST_ANSWERS else []
    listed = ", ".join([*shown, f"{empty} empty"] if empty else shown)
    if sets is None:
        return Words(f"no penalty: {listed}", "warn")
    settings = _settings(step)
    one = {"semantic_sets": "1 semantic set", "contradictions": "at most 1 contradiction"}[settings.asu]
    words = one if sets == 1 else f"{sets} {COUNTED[settings.asu]}"
    factor = penalty(sets, settings, step.input.get("calibration_scores", ()))
    return Words(f"{words}: {listed}") if factor == 1 else Words(f"{words}, scores × {factor:.2f}: {listed}", "warn")


def _entered(entered: Sequence[tuple[int, ScoredDocument]], chunks: Mapping[str, Chunk]) -> Table:
    rows = []
    for rank, document in entered[:MOST_ENTERED]:
        parent = "" if document["parent"] is None else f"neighbour of {title_of(chunks[document['parent']])}"
        title = Cell(title_of(chunks[document["chunk_id"]]))
        rows.append(Row([num(rank), num(document["score"]), title, Cell(parent, tone="dim")]))
    if len(entered) > MOST_ENTERED:
        rows.append(Row([Cell(""), Cell(""), Cell(f"and {len(entered) - MOST_ENTERED} more", tone="dim"), Cell("")]))
    return Table(["", "", "", ""], rows)


def figures(recording: Recording) -> Sequence[Block]:
    """The look-up."""
    return look_up(recording.steps, recording)


def look_up(steps: Sequence[Step], recording: Recording) -> list[Block]:
    """A row a batch, the sampled answers, why it ended, how the exploration went, and all scored documents."""
    batches = [run for step in named(steps, "update_frontier") for run in step.runs if "scored" in run.update]
    if not batches:
        return [Words("It ended before any document was scored.")]
    evidence = {chunk["id"] for chunk in last_update(steps, "intermediate_answer").get("evidence", [])}
    stop_reason = last_update(steps, "select_batch").get("stop_reason")
    ending = [Words(f"It ended because {STOP_REASONS[stop_reason]}.")] if stop_reason else []
    names = names_of(batches[-1].input["documents_by_id"].values())
    scored = [document for run in batches for document in run.update["scored"]]
    table, drawing = _batches(batches, int(recording.context["k"])), exploration(scored, names, evidence)
    return [table, *_samples(batches), *ending, drawing, _scores(scored, names, evidence)]


def _batches(batches: Sequence[NodeRun], k: int) -> Table:
    rows, seen = [], 0
    best: list[ScoredDocument] = []
    for run in batches:
        batch: Sequence[ScoredDocument] = run.update["scored"]
        entered = entered_best(best, batch, k)
        best = ranked([*best, *batch])[:k]
        seen += len(batch)
        sets, pool = run.input["number_of_semantic_sets"], run.input["pool"]
        factor = next((document["score"] / document["raw_score"] for document in batch if document["raw_score"]), None)
        cells = [
            num(run.input["iteration"] + 1),
            Cell("first stage" if pool == "first_stage" else "neighbours"),
            num(len(batch)),
            num(seen),
            Cell("-", number=True) if sets is None else num(sets),
            Cell("-" if factor is None else f"× {factor:.2f}", number=True),
            num(max(document["raw_score"] for document in batch)),
            num(max(document["score"] for document in batch)),
            num(len(entered)),
            num(len(run.update["frontier"])),
        ]
        rows.append(Row(cells))
    columns = ["batch", "from", "documents", "in all", "semantic sets", "factor", "best raw score", "best score"]
    note = (
        "Semantic sets: how many different meanings the answers sampled from a batch have. More sets give a lower "
        "factor; a score is the raw score times the factor. In the frontier: neighbours that may be scored next."
    )
    return Table([*columns, f"new among best {k}", "in the frontier"], rows, "Batches", note)


def _samples(batches: Sequence[NodeRun]) -> list[Block]:
    """The answers sampled from each batch that has a number of semantic sets."""
    pairs = [
        (f"batch {run.input['iteration'] + 1}", _with_counts(run.input["sampled_answers"]))
        for run in batches
        if run.input.get("sampled_answers") and run.input["number_of_semantic_sets"] is not None
    ]
    return [Fold("The answers sampled from each batch", [Pairs(pairs)])] if pairs else []


def _with_counts(answers: Sequence[str]) -> str:
    times = Counter(answer or "(empty)" for answer in answers)
    return "; ".join(f"{text} (×{count})" for text, count in times.most_common())


def _scores(scored: Sequence[ScoredDocument], names: Mapping[str, str], evidence: set[str]) -> Fold:
    rows = []
    for rank, document in enumerate(ranked(scored), 1):
        chunk_id, parent = document["chunk_id"], document["parent"]
        cells = [
            num(rank),
            Cell(names.get(chunk_id, chunk_id)),
            num(document["iteration"] + 1),
            Cell("" if parent is None else names.get(parent, parent)),
            num(document["raw_score"]),
            num(document["score"]),
            Cell("evidence" if chunk_id in evidence else ""),
        ]
        rows.append(Row(cells, marked=chunk_id in evidence))
    columns = ["rank", "document", "batch", "neighbour of", "raw score", "score", ""]
    return Fold(f"All {len(scored):,} scored documents, best first", [Table(columns, rows)])


def outcome(output: Mapping[str, Any], settings: BaseContext) -> Sequence[Block]:
    """How far the exploration went, why it ended, and the uncertainty."""
    words = f"Documents: {explored(output)}; it ended because {STOP_REASONS[output['stop_reason']]}."
    return [Words(words), *own_uncertainty(output)]


def retrieved(recording: Recording) -> Iterator[RetrievalStep]:
    """The look-up."""
    answered = last_update(recording.steps, "intermediate_answer")
    if "evidence" in answered:
        sub_question = last_update(recording.steps, "prepare").get("sub_question", recording.question)
        yield look_up_step(sub_question, recording.steps, answered["evidence"], {})


def why(output: Mapping[str, Any]) -> str:
    """How far the exploration went, and what it chose."""
    scored: Sequence[ScoredDocument] = output["scored"]
    sets = [document["number_of_semantic_sets"] for document in scored]
    evidence: Sequence[Chunk] = output["evidence"]
    pools = {document["chunk_id"]: document["pool"] for document in scored}
    neighbours = sum(pools.get(chunk["id"]) == "frontier" for chunk in evidence)
    sentences = [f"Of {counted(len(scored), 'document')} that were scored, the best {len(evidence)} are the evidence"]
    sentences[0] += f", {neighbours} of them neighbours of good documents." if neighbours else "."
    if any(number and number > 1 for number in sets):
        sentences.append("Batches whose sampled answers differ in meaning were scored lower.")
    return " ".join([*sentences, f"The answer was written from {titles_of(evidence, MOST_TITLES) or 'nothing'}."])


def look_up_step(
    sub_question: str, steps: Sequence[Step], evidence: Sequence[Chunk], known: Mapping[str, Chunk]
) -> RetrievalStep:
    """A look-up as a retrieval step; known: the earlier look-ups' evidence by id."""
    searched = tuple(last_update(steps, "search_first_stage").get("documents_by_id", {}).values())[: len(evidence)]
    together = (*known.values(), *(chunk for chunk in evidence if chunk["id"] not in known))
    return RetrievalStep(sub_question, tuple(evidence), together, searched, tuple(evidence) if searched else ())


presenter = Presenter(
    name="SUNAR's retrieval",
    purpose="Explore the neighbours of good documents",
    when="The document that is needed shares no word with the question.",
    about="It starts from a search and explores the neighbours of good documents, a batch at a time, until its budget "
    "is spent. If the answers sampled from a batch differ in meaning, the scores of that batch are lowered.",
    steps=by_node(search_first_stage, update_frontier, intermediate_answer) | {"select_batch": hidden},
    live_steps=by_node(score_batch, sample_answers, count_semantic_sets),
    figures=figures,
    outcome=outcome,
    retrieval_steps=retrieved,
    why=why,
    score="the re-ranker's score",
)
