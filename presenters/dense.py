"""What people are shown of DENSE."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

from ..state.answer_text import normalised
from ..state.context import BaseContext
from ..state.dense import ORIGINAL, REPEATED, context_key
from ..traces.recording import Recording
from ..traces.steps import Step, last_update, named
from .blocks import Block, Cell, Fold, Row, Table, Tone, Words, answer_cell, num
from .presenter import Presenter, RetrievalStep, StepSummary, by_node, hidden, looked_at, warnings
from .words import counted, measure, names_of, similarities, title_of

LINKS = "1: the two responses entail each other; 0.5: in one direction only; 0: neither."

ORIGINAL_CONTEXT = "the original context"
"""Stands for a chunk's title beside r_0."""

CLASS_TONES: Mapping[str, Tone] = {"certain": "good", "necessary": "warn", "unnecessary": "bad"}

Classes = Mapping[str, Mapping[str, Any]]
"""The classified chunks by chunk id; empty if no chunk was classified."""


def retrieve_top_k(step: Step) -> StepSummary:
    """How many chunks were retrieved, and their similarity to the question."""
    return StepSummary(similarities(step.update["evidence"], measure(step.settings)))


def rephrase(step: Step) -> StepSummary:
    """How many chunks were rephrased, and why others were not."""
    kept = warnings(step)
    words = f"{len(step.ended) - len(kept)} of {counted(len(step.ended), 'chunk')} rephrased"
    reused = len(step.state["evidence"]) - len(step.ended)
    words += f", {counted(reused, 'rephrasing')} reused" if reused else ""
    return StepSummary(words, kept)


def respond(step: Step) -> StepSummary:
    """r_0 and the r_i as they arrive, each beside the chunk that is rephrased in its context."""
    names = {context_key(i): (f"r_{i}", title_of(chunk)) for i, chunk in enumerate(step.input["evidence"], 1)}
    names[ORIGINAL] = ("r_0", ORIGINAL_CONTEXT)
    responses: dict[str, str] = {}
    for run in step.ended:
        responses |= run.update["response_by_key"]
    keys = [run.input["key"] for run in step.runs]
    wordings = counted(len({normalised(response) for response in responses.values()}), "wording")
    words = "" if step.running else f"{wordings} of the answer from {counted(len(keys), 'context')}"
    return StepSummary(words, [responses_table(names, {key: responses.get(key) for key in keys}, ORIGINAL)])


def responses_table(
    names: Mapping[str, tuple[str, str]], responses: Mapping[str, str | None], original: str, r_0: str | None = None
) -> Table:
    """A row a response with its label and title; responses that differ from r_0 stand out, others are minor.

    responses: null while the model has not answered. original: the key of r_0, if it is among them; else give r_0.
    """
    r_0 = responses.get(original, r_0)
    rows = []
    for key, response in responses.items():
        label, title = names[key]
        cells = [Cell(label, tone="dim"), Cell(title)]
        if response is None:
            rows.append(Row([*cells, Cell(""), Cell("...", tone="dim")], minor=key != original))
        elif r_0 is None or key == original:
            rows.append(Row([*cells, Cell(""), answer_cell(response, "strong" if key == original else "")]))
        elif normalised(response) == normalised(r_0):
            rows.append(Row([*cells, Cell("=", tone="dim"), answer_cell(response, "dim")], minor=True))
        else:
            rows.append(Row([*cells, Cell("≠", tone="warn"), answer_cell(response, "warn")]))
    return Table([""] * 4, rows)


def repeat(step: Step) -> StepSummary:
    """The second response to the original context."""
    words = "the original context again: is the model deterministic?"
    return StepSummary(words, [] if step.running else [Words(step.update["response_by_key"][REPEATED])])


def entail(step: Step) -> StepSummary:
    """How many pairs of responses entail each other."""
    link = step.update["link"]
    links = [link[i][j] for i, j in combinations(range(len(link)), 2)]
    if not links:
        return StepSummary("only one response")
    one_way = sum(0 < value < 1 for value in links)
    words = f"{sum(value == 1 for value in links)} of {counted(len(links), 'pair')} of responses entail each other"
    return StepSummary(words + (f", {one_way} in one direction only" if one_way else ""))


def measure_dse(step: Step) -> StepSummary:
    """The DSE, whether the answer is certain, and the chunks that its uncertainty comes from."""
    links = replace(_matrix(step.input, {}), title="", note=LINKS)
    label, chunk, share = 0, 1, 4
    rows = [
        Row([row.cells[column] for column in (label, chunk, share)])
        for row in _chunks(step.input, step.update, {}).rows
    ]
    return StepSummary(verdict(step.update), [links, Table(["", "chunk", "share of DSE"], rows), *warnings(step)])


def verdict(output: Mapping[str, Any]) -> str:
    """'DSE 0.45 (uncertain: above 0.2)', of an output of DENSE or DENSE-RAG."""
    uncertainty = output["uncertainty"]
    if output["certain"]:
        reason = f"certain: at most {uncertainty['threshold']:g}"
    elif uncertainty["value"] is None:
        reason = f"uncertain: {why_unprobed(output['answer'])}"
    else:
        reason = f"uncertain: above {uncertainty['threshold']:g}"
    return f"DSE {output['dse']:.2f} ({reason})"


def why_unprobed(answer: str) -> str:
    """Why a DSE says nothing about this r_0."""
    return "no chunk was rephrased" if answer.strip() else "there is no answer"


def outcome(output: Mapping[str, Any], settings: BaseContext) -> list[Block]:
    """How certain the answer is, if nothing else is asked about its certainty."""
    if looked_at(output):
        return []
    return [Words(f"{verdict(output)}.", "good" if output["certain"] else "warn")]


def figures(recording: Recording) -> list[Block]:
    """The measurement."""
    return measurement(recording.steps) or [Words("The run ended before the DSE was measured.")]


def measurement(steps: Sequence[Step], classes: Classes | None = None) -> list[Block]:
    """The matrix W, a row a response, and the rephrasings; empty if the steps did not get to the DSE."""
    measured = [run for step in named(steps, "measure_dse") for run in step.ended if "dse" in run.update]
    if not measured:
        return []
    state, update = measured[-1].input, measured[-1].update
    return [_matrix(state, classes or {}), _chunks(state, update, classes or {}), _rephrasings(state, update)]


def _matrix(state: Mapping[str, Any], classes: Classes) -> Table:
    names = [f"r_{i}" for i in range(len(state["link"]))]
    titles = names_of(state["evidence"])
    heads = [Cell("r_0", tip=ORIGINAL_CONTEXT)]
    for name, chunk in zip(names[1:], state["evidence"], strict=True):
        kind = classes.get(chunk["id"], {}).get("kind", "")
        tip = f"{titles[chunk['id']]}{f', {kind}' if kind else ''}"
        heads.append(Cell(name, tone=CLASS_TONES.get(kind, ""), tip=tip))
    rows = []
    for head, links in zip(heads, state["link"], strict=True):
        cells = [Cell(f"{link:g}", link, tip=f"{head.text}, {name}") for name, link in zip(names, links, strict=True)]
        rows.append(Row([head, *cells]))
    note = "r_0 is the response to the original context, r_1 to the context with chunk 1 rephrased, and so on."
    return Table(["", *names], rows, "Links W between the responses", f"{LINKS} {note}", matrix=True)


def _chunks(state: Mapping[str, Any], update: Mapping[str, Any], classes: Classes) -> Table:
    """A row a response; with the classes of the chunks if they are known."""
    responses, shares = state["responses"], update["shares"]
    share_of_r_0 = update["dse"] - sum(shares)
    largest = max([*shares, share_of_r_0, 1e-9])
    columns = ["", "chunk", "response with it rephrased", "link to r_0", "share of DSE"]
    columns += ["class", "response without it", "its link to r_0"] if classes else []
    first = [Cell("r_0"), Cell(ORIGINAL_CONTEXT, tone="dim"), answer_cell(responses[0]), Cell("")]
    share = num(share_of_r_0, f"{abs(share_of_r_0):.3f}", max(share_of_r_0, 0.0) / largest)
    rows = [Row([*first, share, *([Cell("")] * 3 if classes else [])])]
    titles = names_of(state["evidence"])
    for i, (chunk, share_of_r_i) in enumerate(zip(state["evidence"], shares, strict=True), 1):
        is_rephrased = update["rephrasings"][i - 1] != chunk["text"]
        title = titles[chunk["id"]] + ("" if is_rephrased else " (not rephrased)")
        link = state["link"][i][0]
        cells = [Cell(f"r_{i}"), Cell(title, tone="" if is_rephrased else "warn"), answer_cell(responses[i])]
        cells += [num(link, level=link), num(share_of_r_i, f"{share_of_r_i:.3f}", share_of_r_i / largest)]
        rows.append(Row([*cells, *(class_cells(classes[chunk["id"]]) if chunk["id"] in classes else [])]))
    note = "The shares add up to the DSE: the larger a share, the more its response differs from the others."
    title = f"DSE {update['dse']:.3f} nats: {'certain' if update['certain'] else 'uncertain'}"
    return Table(columns, rows, title, note)


def class_cells(classified: Mapping[str, Any]) -> list[Cell]:
    """A chunk's class, the response without the chunk, and the link of that response to r_0."""
    kind = Cell(classified["kind"], tone=CLASS_TONES.get(classified["kind"], ""))
    if classified["ablation"] is None:
        return [kind, Cell("not ablated", tone="dim"), Cell("")]
    link = classified["ablation_link"]
    return [kind, answer_cell(classified["ablation"]), num(link, level=link)]


def _rephrasings(state: Mapping[str, Any], update: Mapping[str, Any]) -> Fold:
    rows = []
    for i, (chunk, rephrasing) in enumerate(zip(state["evidence"], update["rephrasings"], strict=True), 1):
        rows.append(Row([Cell(f"r_{i}"), Cell(chunk["text"]), Cell("" if rephrasing == chunk["text"] else rephrasing)]))
    return Fold("The rephrased chunks", [Table(["", "chunk", "rephrasing"], rows)])


def retrieved(recording: Recording) -> Iterator[RetrievalStep]:
    """The retrieved chunks, or those that the caller gave."""
    if evidence := last_update(recording.steps, "retrieve_top_k").get("evidence"):
        yield RetrievalStep.whole(recording.question, evidence)
    elif evidence := last_update(recording.steps, "prepare").get("evidence"):
        yield RetrievalStep.whole("the given chunks", evidence)


def why(output: Mapping[str, Any]) -> str:
    """How many responses agree, and the chunk whose wording matters most."""
    others = output["link"][0][1:]
    agree = sum(link == 1 for link in others)
    words = (
        f"The answer was asked for again with each of {counted(len(output['evidence']), 'chunk')} rephrased in turn: "
    )
    words += f"{agree} of {counted(len(others), 'response')} mean the same. {verdict(output)}."
    share, chunk = max(zip(output["shares"], output["evidence"], strict=True), key=lambda pair: pair[0])
    if output["dse"] and share:
        words += f" The wording of {title_of(chunk)} changes it most."
    return words


presenter = Presenter(
    name="DENSE",
    purpose="Measure how certain an answer is",
    when="You want to know whether the answer hangs on how a passage is worded.",
    about="DENSE measures how certain an answer is: it rephrases each chunk in turn and asks the question again. If "
    "all responses agree, their DSE (degree-based semantic entropy) is 0; it grows the more they differ, up to the "
    "logarithm of their number.",
    steps=by_node(retrieve_top_k, rephrase, entail, measure_dse) | {"contexts": hidden},
    live_steps=by_node(respond, repeat),
    figures=figures,
    outcome=outcome,
    retrieval_steps=retrieved,
    why=why,
)
