"""What people are shown of SeaKR and its baselines alike: sentences, queries, snippets, why the reasoning ended."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from ..state.context import BaseContext
from ..state.reasoning import ReasoningContext, ReasoningStep, StopReason
from ..state.records import Chunk
from ..traces.recording import Recording
from ..traces.steps import Step, updates
from .blocks import Block, Cell, Pairs, Row, Table, Words
from .presenter import RetrievalStep, StepSummary, by_node, nothing, uncertainty_sentence
from .words import MOST_TITLES, counted, names_of, title_of, titles_of

STOP_REASONS: Mapping[StopReason, str] = {
    "answered": "a sentence gave the answer",
    "max_steps": "the limit max_steps is reached",
    "max_docs": "the limit max_docs is reached",
    "query_repeated": "the query was searched for before",
    "nothing_new": "the search found no new snippet",
    "step_repeated": "a sentence repeats an earlier one",
    "step_empty": "the model wrote no further sentence",
}

SCORE = "the first stage's score"


def draft_step(step: Step) -> StepSummary:
    """The sentence that the model writes."""
    return StepSummary(sentence(step.update["draft"]["rationale"]))


def write_step(step: Step) -> StepSummary:
    """The sentence that the model writes with the snippet."""
    return StepSummary(sentence((step.update.get("kept") or step.update["draft"])["rationale"]))


def query(step: Step) -> StepSummary:
    """The query; if it was searched for before, that it ends the reasoning."""
    stop_reason = step.update.get("stop_reason")
    end = f": {STOP_REASONS[stop_reason]}" if stop_reason else ""
    return StepSummary(f"{step.update['query']}{end}")


def search_snippets(step: Step) -> StepSummary:
    """The snippets that the search found."""
    new = cast(ReasoningContext, step.settings).shows_collected()
    return chunks_found(step.update["snippets"], "new snippet" if new else "snippet")


def keep_snippets(step: Step) -> StepSummary:
    """The snippets that are kept."""
    if not step.update["kept"]:
        return StepSummary("nothing to keep")
    kept = [chunk for chunk in step.input["snippets"] if chunk["id"] in step.update["kept"]["chunk_ids"]]
    return StepSummary(f"keeps {', '.join(map(title_of, kept))}")


def append_rationale(step: Step) -> StepSummary:
    """Why the reasoning ends, if it does."""
    if not step.update["stop_reason"]:
        return StepSummary(hidden=True)
    reason = STOP_REASONS[step.update["stop_reason"]]
    return StepSummary(f"step {len(step.input['steps']) + 1} is the last: {reason}")


STEPS = by_node(draft_step, search_snippets, write_step, append_rationale) | {
    "keep_snippets": keep_snippets,
    "answer_from_rationales": nothing,
}
"""What the nodes say that several of these graphs have."""


def figures(recording: Recording) -> list[Block]:
    """The reasoning, sentence by sentence, and why it ended."""
    steps = steps_of(recording)
    if not steps:
        return [Words("The run ended before a step was written.")]
    return [reasoning_table(steps, snippet_names(recording)), *stop_words(recording)]


def steps_of(recording: Recording) -> list[ReasoningStep]:
    """The steps of the reasoning, as far as the run got."""
    return [step for update in updates(recording.steps, "append_rationale") for step in update.get("steps", [])]


def snippet_names(recording: Recording) -> dict[str, str]:
    """A name for each snippet that was found, by id."""
    found = updates(recording.steps, "search_snippets")
    return names_of(chunk for update in found for chunk in update.get("snippets", []))


def reasoning_table(steps: Sequence[ReasoningStep], names: Mapping[str, str]) -> Table:
    """A row a step: its sentence, its query and the snippet that was kept."""
    rows = [
        Row(
            [
                Cell(f"{number}", number=True),
                Cell(step["rationale"]),
                Cell(step["query"]) if step["query"] else Cell("nothing", tone="dim"),
                Cell(", ".join(names[chunk_id] for chunk_id in step["chunk_ids"])),
            ]
        )
        for number, step in enumerate(steps, 1)
    ]
    return Table(["step", "sentence", "searched for", "snippet kept"], rows, "The reasoning")


def stop_words(recording: Recording) -> list[Block]:
    """Why the reasoning ended; nothing if the run broke off before."""
    reasons = [
        update["stop_reason"]
        for node in ("append_rationale", "formulate_query", "search_snippets")
        for update in updates(recording.steps, node)
        if update.get("stop_reason")
    ]
    return [Words(f"It ended because {STOP_REASONS[reason]}.") for reason in reasons]


def outcome(output: Mapping[str, Any], settings: BaseContext) -> list[Block]:
    """How sure the graph is, if it measures that; the sentences that led to the answer, and their snippets."""
    steps: Sequence[ReasoningStep] = output["steps"]
    names = names_of(output["evidence"])
    sentences = []
    for number, step in enumerate(steps, 1):
        kept = ", ".join(names.get(chunk_id, chunk_id) for chunk_id in step["chunk_ids"])
        source = f" (from {kept})" if kept else ""
        sentences.append((f"{number}", sentence(step["rationale"]) + source))
    reason = STOP_REASONS[output["stop_reason"]]
    title = f"The reasoning, {counted(len(steps), 'step')}; it ended because {reason}:"
    return [*uncertainty_sentence(output), Pairs(sentences, title)]


def why(output: Mapping[str, Any]) -> str:
    """How many sentences the model wrote, and how many it looked something up for."""
    steps: Sequence[ReasoningStep] = output["steps"]
    searched = sum(bool(step["query"]) for step in steps)
    words = f"The model reasoned in {counted(len(steps), 'sentence')}"
    if searched:
        words += f" and looked something up for {'each' if searched == len(steps) else searched} of them"
    used = titles_of(output["evidence"], MOST_TITLES)
    return f"{words}; it ended because {STOP_REASONS[output['stop_reason']]}." + (f" It read {used}." if used else "")


def retrieved(recording: Recording) -> Iterator[RetrievalStep]:
    """Each snippet that was kept, with its query."""
    known: list[Chunk] = []
    for step in recording.steps:
        if kept := step.update.get("knowledge"):
            known += kept
            yield RetrievalStep(str(step.input["query"]), tuple(kept), tuple(known))


def chunks_found(chunks: Sequence[Chunk], thing: str, query: str = "") -> StepSummary:
    """How many chunks a search found, and their titles."""
    words = counted(len(chunks), thing) if chunks else f"no {thing}"
    return StepSummary(f"{words} for: {query}" if query else words, [Words(titles_of(chunks), "dim")] if chunks else [])


def sentence(text: str) -> str:
    """The sentence, or that there is none."""
    return text or "(nothing)"
