"""What people are shown of SUNAR; `neighbourhood` shows its look-ups."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..state.context import BaseContext
from ..state.records import Chunk
from ..traces.recording import Recording
from ..traces.steps import Step, named
from .blocks import Block, Fold, Pairs, Words
from .neighbourhood import STOP_REASONS, explored, look_up, look_up_step
from .presenter import Presenter, RetrievalStep, StepSummary, by_node, hidden, own_uncertainty, warnings
from .words import MOST_TITLES, NO_ANSWER, counted, titles_of


def decompose(step: Step) -> StepSummary:
    """The next sub-question, or the answer at the end of the reasoning path."""
    query = step.update["query"]
    if query is None:
        words = f"the path arrives at: {step.update['sequential_answer'] or NO_ANSWER}"
    else:
        words = f"sub-question {len(step.input['hops']) + 1}: {query}"
    return StepSummary(words, warnings(step))


def chain_of_query(step: Step) -> StepSummary:
    """The same, and the sub-questions that the model plans to ask then."""
    summary, later = decompose(step), step.update.get("chain", [])[1:]
    planned = [Words(f"then: {' · '.join(node['question'] for node in later)}", "dim")] if later else []
    return StepSummary(summary.words, [*planned, *summary.blocks])


def neighbourhood(step: Step) -> StepSummary:
    """The sub-question; once done, how far the look-up went, because its last step shows its answer."""
    if step.running:
        return StepSummary(step.input["query"])
    return StepSummary(f"{explored(step.update)}: {STOP_REASONS[step.update['stop_reason']]}")


def rerank_all_evidence(step: Step) -> StepSummary:
    """The meta evidence."""
    evidence = step.update["meta_evidence"]
    words = f"{counted(len(evidence), 'document')} of all sub-questions to read again"
    return StepSummary(words, [Words(titles_of(evidence, MOST_TITLES), "dim")] if evidence else [])


def reason_over_all_evidence(step: Step) -> StepSummary:
    """The final answer, and whether it differs from the path's."""
    final = step.update["answer"] or NO_ANSWER
    if not step.update["changed"]:
        return StepSummary(f"the answer stays: {final}")
    sequential = Words(f"≠ the path's answer: {step.input['sequential_answer'] or NO_ANSWER}", "warn")
    return StepSummary(f"the answer changes: {final}", [sequential])


def keep_sequential_answer(step: Step) -> StepSummary:
    """The path's answer is the final one."""
    return StepSummary("the path's answer stands, no evidence is read again")


def figures(recording: Recording) -> Sequence[Block]:
    """The reasoning path, its answer beside the final one, and the look-ups."""
    look_ups = [run for step in named(recording.steps, "neighbourhood") for run in step.runs]
    if not look_ups:
        return [Words("The run ended before anything was looked up.")]
    path = [(str(run.input.get("query")), str(run.update.get("answer", "")) or NO_ANSWER) for run in look_ups]
    blocks: list[Block] = [Pairs(path, "Reasoning path", arrow=True), *_answers(recording)]
    for position, run in enumerate(look_ups, 1):
        title = f"Look-up {position}: {run.input.get('query')}"
        blocks.append(Fold(title, look_up(run.steps, recording), open=position == 1))
    return blocks


def _answers(recording: Recording) -> list[Block]:
    output = recording.output
    if output is None:
        return []
    pairs = [("The path's answer", output["sequential_answer"] or NO_ANSWER)]
    if named(recording.steps, "reason_over_all_evidence"):
        pairs.append(("From all evidence, read again", output["answer"] or NO_ANSWER))
    words = "Reading all evidence again changed the answer." if output["changed"] else "The path's answer stands."
    return [Pairs(pairs, "Answers"), Words(words, "warn" if output["changed"] else "")]


def outcome(output: Mapping[str, Any], settings: BaseContext) -> Sequence[Block]:
    """The reasoning path, whether reading all evidence again changed its answer, and the uncertainty."""
    hops = output["hops"]
    path = [(hop["question"], hop["answer"] or NO_ANSWER) for hop in hops]
    blocks: list[Block] = [Pairs(path, f"The path, {counted(len(hops), 'sub-question')}:", arrow=True)]
    if output["changed"]:
        sequential = output["sequential_answer"] or NO_ANSWER
        blocks.append(Words(f"It arrived at: {sequential}. Reading its evidence again changed the answer.", "warn"))
    return [*blocks, *own_uncertainty(output)]


def retrieved(recording: Recording) -> Iterator[RetrievalStep]:
    """The look-up of every sub-question, then the meta evidence."""
    known: dict[str, Chunk] = {}
    for step in recording.steps:
        for run in step.runs:
            if step.node == "neighbourhood" and "evidence" in run.update:
                yield look_up_step(run.input["query"], run.steps, run.update["evidence"], known)
                known |= {chunk["id"]: chunk for chunk in run.update["evidence"]}
            elif step.node == "rerank_all_evidence" and run.update.get("meta_evidence"):
                yield RetrievalStep.whole("meta evidence", run.update["meta_evidence"])


def why(output: Mapping[str, Any]) -> str:
    """The reasoning path, and whether reading all evidence again changed its answer."""
    hops = output["hops"]
    path = "; ".join(f"{hop['question']} → {hop['answer'] or NO_ANSWER}" for hop in hops)
    sentences = [f"The question was answered by {counted(len(hops), 'sub-question')}: {path}."]
    if output["changed"]:
        sentences.append(
            f"From that followed {output['sequential_answer'] or NO_ANSWER}; reading the best evidence of "
            "all sub-questions again changed it."
        )
    return " ".join(sentences)


presenter = Presenter(
    name="SUNAR",
    purpose="Answer by sub-questions",
    when="A question of several hops, whose later documents share no word with it.",
    about="SUNAR asks one sub-question after another, each built on the answers so far. Each look-up starts from a "
    "search and explores the neighbours of good documents. At the end the model reads the best evidence of all "
    "sub-questions again.",
    steps=by_node(decompose, chain_of_query, rerank_all_evidence, reason_over_all_evidence, keep_sequential_answer)
    | {"record_hop": hidden},
    live_steps=by_node(neighbourhood),
    figures=figures,
    outcome=outcome,
    retrieval_steps=retrieved,
    why=why,
    score="the re-ranker's score",
)
