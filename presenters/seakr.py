"""What people are shown of SeaKR."""

from collections.abc import Mapping, Sequence
from typing import Any

from ..state.abstention import abstains
from ..state.context import BaseContext
from ..state.reasoning import Attempt, ReasoningStep
from ..state.seakr import SeaKRContext, Strategy, StrategyAnswer
from ..traces.recording import Recording
from ..traces.steps import Step, last_update, updates
from . import reasoning
from .blocks import Bar, Bars, Block, Cell, Fold, Row, Table, Words, answer_cell, num
from .presenter import Presenter, StepSummary, by_node
from .words import NO_ANSWER, counted, figure, names_of

STRATEGIES: Mapping[Strategy, str] = {"rationales": "the sentences", "knowledge": "the snippets"}


def pseudo_generate(step: Step) -> StepSummary:
    """The sentence that the model would write without retrieval, and its U against δ."""
    draft, settings = step.update["draft"], step.settings
    words = reasoning.sentence(draft["rationale"])
    if isinstance(settings, SeaKRContext) and not settings.self_aware_retrieval:
        return StepSummary(words)
    uncertainty, threshold = draft["uncertainty"], step.input["threshold"]
    if uncertainty is None:
        return StepSummary(words, [Words("U is unknown and counts as above δ", "warn")])
    comparison = f"{figure(uncertainty)} {'>' if uncertainty > threshold else '≤'} δ"
    return StepSummary(words, [Bars("", [Bar("U", uncertainty, comparison)], threshold, f"δ = {figure(threshold)}")])


def try_snippet(step: Step) -> StepSummary:
    """A row a snippet, filled in as the attempts end: the sentence that it leads to, and U there."""
    attempts: list[Attempt] = [attempt for run in step.ended for attempt in run.update["attempts"]]
    names = names_of(run.input["snippet"] for run in step.runs)
    table = _attempts(attempts, names, (step.state.get("draft") or {}).get("uncertainty"), None)
    return StepSummary(f"{counted(len(step.runs), 'snippet')} to try" if step.running else "", [table])


def strategy_answer(step: Step) -> StepSummary:
    """A strategy's answer and its U."""
    (answer,) = step.update["strategy_answers"]
    return StepSummary(_with_u(answer))


def choose_strategy(step: Step) -> StepSummary:
    """The strategy whose answer is chosen."""
    return StepSummary(f"the answer from {STRATEGIES[step.update['strategy']]}")


def figures(recording: Recording) -> list[Block]:
    """U of each step against δ, the reasoning, the snippets that were tried, and the strategies' answers."""
    steps, names = reasoning.steps_of(recording), reasoning.snippet_names(recording)
    if not steps:
        return reasoning.figures(recording)
    threshold = last_update(recording.steps, "prepare")["threshold"]
    tried = [
        Fold(
            f"Step {number}: {counted(len(step['attempts']), 'snippet')} tried",
            [_attempts(step["attempts"], names, step["draft"]["uncertainty"] if step["draft"] else None, step)],
        )
        for number, step in enumerate(steps, 1)
        if step["attempts"]
    ]
    table = reasoning.reasoning_table(steps, names)
    return [_bars(steps, threshold), table, *tried, *reasoning.stop_words(recording), *_answers(recording)]


def outcome(output: Mapping[str, Any], settings: BaseContext) -> list[Block]:
    """The same as for the baselines, and which of two answers was chosen."""
    blocks = reasoning.outcome(output, settings)
    answers: Sequence[StrategyAnswer] = output["strategy_answers"]
    if len(answers) < 2:
        return blocks
    chosen, other = sorted(answers, key=lambda answer: answer["strategy"] != output["strategy"])
    return [*blocks, Words(f"Chosen: {_with_u(chosen)}. Not chosen: {_with_u(other)}.", "dim")]


def _with_u(answer: StrategyAnswer) -> str:
    u = "" if answer["uncertainty"] is None else f", U {figure(answer['uncertainty'])}"
    return f"{answer['answer'] or NO_ANSWER} (from {STRATEGIES[answer['strategy']]}{u})"


def _bars(steps: Sequence[ReasoningStep], threshold: float) -> Bars:
    bars = []
    for number, step in enumerate(steps, 1):
        if step["draft"] is not None:
            bars.append(_bar(f"step {number}, without a snippet", step["draft"]["uncertainty"]))
        if step["chunk_ids"]:
            bars.append(_bar(f"step {number}, with the snippet kept", step["uncertainty"]))
    note = "SeaKR retrieves above δ. The bars have no zero: they begin below the lowest U."
    return Bars("Uncertainty U of each step", bars, threshold, f"δ = {figure(threshold)}", note)


def _bar(label: str, uncertainty: float | None) -> Bar:
    return Bar(label, uncertainty, "not measured" if uncertainty is None else figure(uncertainty))


def _attempts(
    attempts: Sequence[Attempt], names: Mapping[str, str], draft_u: float | None, step: ReasoningStep | None
) -> Table:
    """A row an attempt. draft_u: U of the step without a snippet; step: to mark the snippet that was kept."""
    rows = []
    for attempt in attempts:
        kept, u = step is not None and attempt["chunk_id"] in step["chunk_ids"], attempt["uncertainty"]
        change = Cell("") if u is None or draft_u is None else num(u - draft_u, f"{u - draft_u:+.2f}")
        cells = [Cell(names[attempt["chunk_id"]]), _u(u), change, Cell(reasoning.sentence(attempt["rationale"]))]
        rows.append(Row([*cells, Cell("kept" if kept else "")], marked=kept))
    note = "" if draft_u is None else f"Change: against U without a snippet, {figure(draft_u)}."
    return Table(["snippet", "U", "change", "sentence with it", ""], rows, note=note)


def _answers(recording: Recording) -> list[Block]:
    """The strategies' answers, and which one was chosen."""
    nodes = ("reason_over_rationales", "reason_over_knowledge")
    answers = [a for node in nodes for update in updates(recording.steps, node) for a in update["strategy_answers"]]
    strategy = last_update(recording.steps, "choose_strategy").get("strategy")
    rows = []
    for answer in answers:
        chosen = answer["strategy"] == strategy
        cells = [Cell(STRATEGIES[answer["strategy"]]), answer_cell(answer["answer"])]
        rows.append(Row([*cells, _u(answer["uncertainty"]), Cell("chosen" if chosen else "")], marked=chosen))
    return [Table(["from", "answer", "U", ""], rows, "The answers")] if rows else []


def _u(uncertainty: float | None) -> Cell:
    return Cell("not measured", tone="dim") if uncertainty is None else num(uncertainty)


def why(output: Mapping[str, Any]) -> str:
    """The reasoning, and why one of two strategies' answers was chosen."""
    said, answers = reasoning.why(output), output["strategy_answers"]
    if len(answers) < len(STRATEGIES):
        return said
    chosen, other = sorted(answers, key=lambda answer: answer["strategy"] != output["strategy"])
    u, u_of_other = chosen["uncertainty"], other["uncertainty"]
    if u is not None and u_of_other is not None and u <= u_of_other:
        reason = "was the more certain one"
    elif abstains(other["answer"]):
        reason = "was chosen: the other one says nothing"
    else:
        reason = "was chosen"
    return f"{said} The answer from {STRATEGIES[chosen['strategy']]} {reason}."


presenter = Presenter(
    name="SeaKR",
    purpose="Look up only what the model does not know",
    when="Passages mislead the model about facts that it knows.",
    about="SeaKR reasons one sentence at a time and measures U, how much sampled sentences differ inside the model: "
    "above the threshold δ it searches, and keeps the snippet with the lowest U. In the end it answers from the "
    "sentences and from the snippets, and chooses the answer with the lower U.",
    steps=reasoning.STEPS
    | by_node(pseudo_generate, choose_strategy)
    | {"formulate_query": reasoning.query, "rerank_snippets": reasoning.keep_snippets}
    | dict.fromkeys(("reason_over_rationales", "reason_over_knowledge"), strategy_answer),
    live_steps=by_node(try_snippet),
    figures=figures,
    outcome=outcome,
    retrieval_steps=reasoning.retrieved,
    why=why,
    score=reasoning.SCORE,
)
