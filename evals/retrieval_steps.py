"""What a finished run retrieved, step by step, read from its trace."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from ..errors import UserFault
from ..state.records import Chunk
from ..traces.recording import Recording, Step, last_update, named

Chunks = tuple[Chunk, ...]


@dataclass(frozen=True, slots=True)
class RetrievalStep:
    """A step that found something, or changed what the answer is made from.

    label: what was looked up, or what was done; new: the chunks that no earlier step had; known: what the run could
    answer from after it: for graphs that collect, all that was found or kept so far; for those that replace their
    context (DENSE-RAG, ITER-RETGEN) that context.
    first_stage, reranked: as many documents as were kept, in the order of the search and of the re-ranking; empty where
    the trace does not show both.
    """

    label: str
    new: Chunks
    known: Chunks
    first_stage: Chunks = ()
    reranked: Chunks = ()


def retrieval_steps(recording: Recording) -> list[RetrievalStep]:
    """The steps of a run, as far as the trace goes; none of a run that looks nothing up.

    Raises `UserFault` for a graph that is not one of dubito's, and a trace of one that differs from the one known here.
    """
    if recording.graph not in READERS:
        raise UserFault(f"What a run of '{recording.graph}' retrieves is not known: give a trace of dubito's graphs.")
    try:
        return _with_new(READERS[recording.graph](recording))
    except (LookupError, TypeError, ValueError, AttributeError) as fault:
        raise UserFault(
            f"The trace '{recording.path}' holds a {recording.graph} that differs from the one known here: record the "
            "run anew."
        ) from fault


def _with_new(found: Iterable[RetrievalStep]) -> list[RetrievalStep]:
    """The steps, each with those chunks alone as new that no earlier one had."""
    seen: set[str] = set()
    steps = []
    for one in found:
        new = tuple(chunk for chunk in one.new if chunk["id"] not in seen)
        seen |= {chunk["id"] for chunk in new}
        # what goes into prompts must be there
        _ = [chunk["title"] + chunk["text"] for chunk in (*one.known, *one.first_stage)]
        steps.append(replace(one, new=new))
    return steps


def _nothing(recording: Recording) -> Iterator[RetrievalStep]:
    yield from ()


def _once(recording: Recording) -> Iterator[RetrievalStep]:
    """One search for the question, or the chunks that were given."""
    given = last_update(recording.steps, "prepare")
    found = last_update(recording.steps, "retrieve")
    if "evidence" in found:
        yield _whole(recording.question, found["evidence"])
    elif given.get("given") and given["evidence"]:
        yield _whole("the chunks that were given", given["evidence"])


def _df_rag(recording: Recording) -> Iterator[RetrievalStep]:
    """The chunk set that was chosen."""
    chosen = last_update(recording.steps, "choose")
    if chosen.get("evidence"):
        yield _whole(f"λ* = {chosen['lambda_star']:g}", chosen["evidence"])


def _dense_rag(recording: Recording) -> Iterator[RetrievalStep]:
    """Every context."""
    for step in recording.steps:
        update = step.tasks[0].update
        if step.node in {"retrieve", "rechunk"} and "chunks" in update:
            yield _whole(f"{step.node} ({update['chunking']})", update["chunks"])
        elif step.node == "refine" and "chunks" in update:
            yield _whole(f"refine, round {update['round']}", update["chunks"])


def _neighbourhood(recording: Recording) -> Iterator[RetrievalStep]:
    """One look-up."""
    asked = last_update(recording.steps, "prepare").get("asked", recording.question)
    found = last_update(recording.steps, "answer")
    if "evidence" in found:
        yield _look_up(asked, recording.steps, found["evidence"], {})


def _sunar(recording: Recording) -> Iterator[RetrievalStep]:
    """Every sub-question's look-up; in the end what is read again."""
    known: dict[str, Chunk] = {}
    for step in recording.steps:
        for task in step.tasks:
            if step.node == "neighbourhood" and "evidence" in task.update:
                yield _look_up(task.input["query"], task.steps, task.update["evidence"], known)
                known |= {chunk["id"]: chunk for chunk in task.update["evidence"]}
            elif step.node == "gather" and task.update.get("meta_evidence"):
                yield _whole("meta evidence", task.update["meta_evidence"])


def _look_up(asked: str, steps: Sequence[Step], evidence: Sequence[Chunk], known: Mapping[str, Chunk]) -> RetrievalStep:
    found = last_update(steps, "retrieve").get("documents", {})
    first = tuple(found.values())[: len(evidence)]
    together = {**known, **{chunk["id"]: chunk for chunk in evidence if chunk["id"] not in known}}
    return RetrievalStep(asked, tuple(evidence), tuple(together.values()), first, tuple(evidence) if first else ())


def _collecting(node: str) -> Callable[[Recording], Iterator[RetrievalStep]]:
    """Graphs that keep a snippet at a time; node: the one that does."""

    def steps(recording: Recording) -> Iterator[RetrievalStep]:
        known: list[Chunk] = []
        for step in named(recording.steps, node):
            task = step.tasks[0]
            if new := cast("list[Chunk]", task.update.get("knowledge") or []):
                known += new
                yield RetrievalStep(str(task.input["query"]), tuple(new), tuple(known))

    return steps


def _iter_retgen(recording: Recording) -> Iterator[RetrievalStep]:
    """Every round's search."""
    for step in named(recording.steps, "retrieve"):
        update: Mapping[str, Any] = step.tasks[0].update
        if "evidence" in update:
            yield _whole(update["query"], update["evidence"])


def _whole(label: str, chunks: Sequence[Chunk]) -> RetrievalStep:
    return RetrievalStep(label, tuple(chunks), tuple(chunks))


READERS: Mapping[str, Callable[[Recording], Iterator[RetrievalStep]]] = {
    "cot": _nothing,
    "vanilla_rag": _once,
    "dense": _once,
    "seper": _once,
    "df_rag": _df_rag,
    "dense_rag": _dense_rag,
    "neighbourhood": _neighbourhood,
    "sunar": _sunar,
    "seakr": _collecting("rerank"),
    "ircot": _collecting("keep"),
    "flare": _collecting("keep"),
    "iter_retgen": _iter_retgen,
}
