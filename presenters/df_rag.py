"""What people are shown of DF-RAG."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from ..nodes.choose_lambda import retrieval_supports, upper_median
from ..state.df_rag import NO_CHUNKS, CandidateSet, DFRagState, Support
from ..traces.recording import Recording
from ..traces.steps import Step, last_update, updates
from .blocks import Block, Cell, Pairs, Row, Table, Words, num, scaled
from .presenter import Presenter, RetrievalStep, StepSummary, by_node
from .words import MOST_TITLES, counted, figure, names_of, titles_of

Scores = Mapping[int, Sequence[float]]
"""The score of each step of the plan, by candidate set."""


def plan(step: Step) -> StepSummary:
    """The steps of the plan, numbered."""
    return StepSummary(counted(len(step.update["plan"]), "step"), [_plan(step.update["plan"])])


def candidates(step: Step) -> StepSummary:
    """The distinct chunk sets: the λ that select each, and the titles of its chunks."""
    sets: Sequence[CandidateSet] = step.update["candidates"]
    if not sets:
        return StepSummary("no chunks")
    chunks = step.update["chunks_by_id"]
    rows = [
        Row(
            [
                Cell(lambda_range(candidate["lambdas"], _grid(sets))),
                Cell(titles_of([chunks[chunk_id] for chunk_id in candidate["chunk_ids"]])),
            ]
        )
        for candidate in sets
    ]
    levels = sum(len(candidate["lambdas"]) for candidate in sets)
    words = f"{counted(len(sets), 'distinct chunk set')} at {counted(levels, 'level')} of diversity λ"
    return StepSummary(words, [Table(["λ", "chunks, in the order of the prompts"], rows)])


def select_lambdas(step: Step) -> StepSummary:
    """How many sets the Evaluator scores next, and whether it scores the plan without any chunks."""
    pending = step.update["pending"]
    if not pending:
        return StepSummary("nothing more to evaluate")
    sets = counted(len(pending) - pending.count(NO_CHUNKS), "set")
    return StepSummary(f"{sets} and no chunks to evaluate" if NO_CHUNKS in pending else f"{sets} to evaluate")


def evaluate(step: Step) -> StepSummary:
    """A row a chunk set, filled in as the scores arrive: the score of each step of the plan, and the support."""
    sets: Sequence[CandidateSet] = step.state["candidates"]
    evaluations = [*step.state.get("evaluations", []), *(e for run in step.ended for e in run.update["evaluations"])]
    scores = {evaluation["candidate"]: evaluation["scores"] for evaluation in evaluations}
    support = {
        tuple(entry["lambdas"]): entry["support"]
        for entry in retrieval_supports(cast("DFRagState", {"candidates": sets, "evaluations": evaluations}))
    }
    under_evaluation = sorted(run.input["candidate"] for run in step.runs)
    is_gain = NO_CHUNKS in under_evaluation or NO_CHUNKS in scores
    rows = []
    for candidate in under_evaluation:
        lambdas = [] if candidate == NO_CHUNKS else sets[candidate]["lambdas"]
        label = Cell(lambda_range(lambdas, _grid(sets)) or "no chunks")
        if candidate not in scores:
            rows.append(Row([label, Cell("...", tone="dim"), Cell("")]))
            continue
        has_support = lambdas and (NO_CHUNKS in scores or not is_gain)
        total = num(support[tuple(lambdas)]) if has_support else Cell("")
        # two decimals at most, so that the scores of all rows stand below one another
        shown = (figure(score) if float(score).is_integer() else f"{score:.2f}" for score in scores[candidate])
        rows.append(Row([label, Cell("  ".join(shown)), total]))
    columns = ["λ", "score of each step", "support (gain)" if is_gain else "support"]
    return StepSummary("", [Table(columns, rows)])


def choose_lambda(step: Step) -> StepSummary:
    """λ*, and the levels it was tied with."""
    lambda_star = step.update["lambda_star"]
    if lambda_star is None:
        return StepSummary("no chunk set to choose from")
    supports: Sequence[Support] = step.update["supports"]
    best = max(entry["support"] for entry in supports)
    tied = sorted(level for entry in supports if entry["support"] == best for level in entry["lambdas"])
    words = f"λ* = {level_name(lambda_star)} with support {figure(best)}"
    if len(tied) > 1:
        which = "the upper median" if lambda_star == upper_median(tied) else "the nearest to the median of all levels,"
        words += f", {which} of {len(tied)} tied levels ({lambda_range(tied, _grid(step.state.get('candidates', [])))})"
    return StepSummary(words)


def figures(recording: Recording) -> list[Block]:
    """The plan, every level of diversity against every step of it, and the distinct chunk sets."""
    steps: Sequence[str] = last_update(recording.steps, "plan").get("plan", [])
    selected = last_update(recording.steps, "candidates")
    blocks: list[Block] = [_plan(steps, "Plan")] if steps else []
    sets: Sequence[CandidateSet] = selected.get("candidates", [])
    if not sets:
        reason = "No chunks were retrieved." if selected else "The run ended before chunks were selected."
        return [*blocks, Words(reason)]
    return [*blocks, _scores(recording, sets, len(steps)), _sets(sets, selected["chunks_by_id"])]


def _plan(steps: Sequence[str], title: str = "") -> Pairs:
    return Pairs([(f"{number})", step) for number, step in enumerate(steps, 1)], title)


def _scores(recording: Recording, sets: Sequence[CandidateSet], plan_length: int) -> Table:
    """A row a level λ; levels that select the same set have the same scores."""
    # sets that grow are selected and evaluated several times
    begin = max(place for place, step in enumerate(recording.steps) if step.node == "candidates")
    evaluations = [e for update in updates(recording.steps[begin:], "evaluate") for e in update.get("evaluations", [])]
    scores: Scores = {evaluation["candidate"]: evaluation["scores"] for evaluation in evaluations}
    choice = last_update(recording.steps, "choose_lambda")
    support = {level: entry["support"] for entry in choice.get("supports", []) for level in entry["lambdas"]}
    spans = [_span(scores, position) for position in range(plan_length)]
    rows = []
    for level, number in sorted((level, i) for i, candidate in enumerate(sets) for level in candidate["lambdas"]):
        is_star = level == choice.get("lambda_star")
        cells = [Cell(level_name(level), number=True), Cell(f"{number + 1}"), *_cells(scores.get(number), spans)]
        total = num(support[level]) if level in support else Cell("")
        rows.append(Row([*cells, total, Cell("λ*" if is_star else "")], is_star))
    is_gain = NO_CHUNKS in scores
    if is_gain:
        without = [num(score) for score in scores[NO_CHUNKS]]
        rows.append(Row([Cell("none"), Cell("no chunks"), *without, Cell(""), Cell("")]))
    note = (
        "Scores are mean log-probabilities of the step in nats; the support is their sum minus the sum without chunks."
        if is_gain
        else "The support is the sum of the scores."
    )
    names = [f"step {position}" for position in range(1, plan_length + 1)]
    columns = ["λ", "set", *names, "support (gain)" if is_gain else "support", ""]
    return Table(columns, rows, "Support of the plan at each level of diversity", f"{note} Shaded within each column.")


def _cells(scores: Sequence[float] | None, spans: Sequence[tuple[float, float]]) -> list[Cell]:
    if scores is None:
        return [Cell("-", tone="dim", number=True)] * len(spans)
    return [num(score, level=scaled(score, *span)) for score, span in zip(scores, spans, strict=True)]


def _span(scores: Scores, position: int) -> tuple[float, float]:
    """The lowest and the highest score of a step; without the score of no chunks, which would flatten the shades."""
    values = [of_set[position] for candidate, of_set in scores.items() if candidate != NO_CHUNKS]
    return (min(values), max(values)) if values else (0.0, 0.0)


def _sets(sets: Sequence[CandidateSet], chunks: Mapping[str, Mapping[str, Any]]) -> Table:
    names = names_of(chunks.values())
    rows = []
    for number, candidate in enumerate(sets, 1):
        titles = [f"{names[i]} ({chunks[i].get('score', 0.0):.2f})" for i in candidate["chunk_ids"]]
        rows.append(
            Row([Cell(f"{number}"), Cell(lambda_range(candidate["lambdas"], _grid(sets))), Cell("; ".join(titles))])
        )
    return Table(["set", "λ", "chunks, with similarity to the question"], rows, "The distinct chunk sets")


def _grid(sets: Sequence[CandidateSet]) -> list[float]:
    """All levels λ, ascending."""
    return sorted(level for candidate in sets for level in candidate["lambdas"])


def lambda_range(levels: Sequence[float], grid: Sequence[float]) -> str:
    """Ascending levels, neighbours in the grid drawn together: '0.1-0.3, 0.6'."""
    place = {level: number for number, level in enumerate(grid)}
    runs: list[list[float]] = []
    for level in levels:
        if runs and place.get(level) == place.get(runs[-1][-1], -2) + 1:
            runs[-1].append(level)
        else:
            runs.append([level])
    return ", ".join(level_name(run[0]) + (f"-{level_name(run[-1])}" if len(run) > 1 else "") for run in runs)


def level_name(level: float) -> str:
    """A level λ with one decimal, or with as many as it has."""
    return f"{level:.1f}" if round(level, 1) == level else f"{level:g}"


def retrieved(recording: Recording) -> Iterator[RetrievalStep]:
    """The chunk set that was chosen."""
    choice = last_update(recording.steps, "choose_lambda")
    if choice.get("evidence"):
        yield RetrievalStep.whole(f"λ* = {level_name(choice['lambda_star'])}", choice["evidence"])


def why(output: Mapping[str, Any]) -> str:
    """The plan, the sets, and what λ* has over the most similar chunks."""
    supports = {level: entry["support"] for entry in output["supports"] for level in entry["lambdas"]}
    star = output["lambda_star"]
    if star is None:
        return "No chunks were retrieved."
    steps = counted(len(output["plan"]), "step")
    if (different := len(output["candidates"])) == 1:
        chosen = "Every level of diversity selects the same chunks, which support the plan with"
    else:
        chosen = f"Of {different} different chunk sets, the one of λ* = {level_name(star)} supports the plan best, with"
    chosen += f" {figure(supports[star])}"
    if 1.0 in supports and supports[1.0] != supports[star]:
        chosen += f"; the chunks most similar to the question (λ = 1) have {figure(supports[1.0])}"
    evidence = titles_of(output["evidence"], MOST_TITLES)
    return f"The question was planned in {steps}. {chosen}. The answer was written from {evidence}."


presenter = Presenter(
    name="DF-RAG",
    purpose="Compare diverse evidence",
    when="The passages that are found repeat one fact, and the second fact is missing.",
    about="DF-RAG plans the question in steps and selects chunks at ten levels of diversity λ: at 1 the chunks most "
    "similar to the question, at lower levels chunks that differ more from one another. The model scores how well each "
    "selection supports every step; the answer comes from the selection at λ*, the level with the most support.",
    steps=by_node(plan, candidates, select_lambdas, choose_lambda),
    live_steps=by_node(evaluate),
    figures=figures,
    retrieval_steps=retrieved,
    why=why,
)
