"""SeaKR: against a reference implementation, against values by hand, and through every branch with scripted models."""

from __future__ import annotations

import json
import math
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dubito.errors import CapabilityMissing, ContractFault, UserFault
from dubito.graphs import seakr, wiring
from dubito.models.interfaces import (
    MIDDLE_LAYER,
    Completion,
    Introspection,
    Message,
    Reply,
    Sampling,
    StatePlace,
    Token,
    Tokens,
)
from dubito.nodes.thresholds import BUILT_IN
from dubito.prompts.reasoning_examples import ENDING
from dubito.resources.resources import Resources
from dubito.state.seakr import NEEDS, SeaKRContext
from dubito.tests.graphs import seakr_reference as reference
from dubito.tests.scripted import (
    QUESTION,
    Asked,
    ListedRetriever,
    Reasoner,
    ScriptedEncoder,
    ScriptedJudge,
    doubted,
    walk,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

STEP = ["pseudo_generate", "append_rationale"]
BOTH = ["reason_over_knowledge+reason_over_rationales", "choose_strategy"]
FROM_RATIONALES = ["reason_over_rationales", "choose_strategy"]
NOT_MEASURED = "The uncertainty of a step could not be measured; it counts as the highest."

WHO, WHERE, RIVER = "The founder is Ada.", "Ada was born in Kirkby.", "The Lune flows past Kirkby."
LAST = "So the final answer is: the Lune."

FOUND = ["a", "b", "c", "d", "e"]

SURE, UNSURE = -6.5, -5.5
"""U, below and above δ = −6."""


def searched(snippets: int = 3) -> list[str]:
    """The path of a step that retrieves."""
    tried = {0: [], 1: ["try_snippet"]}.get(snippets, [f"try_snippet*{snippets}"])
    return ["pseudo_generate", "formulate_query", "search_snippets", *tried, "rerank_snippets", "append_rationale"]


def through(*sentences: str | Completion) -> Callable[[Sequence[str], Sequence[str]], str | Completion]:
    """One sentence after the other, whichever documents are shown."""
    return lambda shown, rationales: sentences[len(rationales)]


def by(levels: Mapping[tuple[int, str | None], float | None], **kinds: float | None) -> Any:
    """U by kind, else by the number of rationales and the last document shown, else SURE."""

    def uncertainty(kind: str, shown: Sequence[str], rationales: Sequence[str]) -> float | None:
        if kind in kinds:
            return kinds[kind]
        return levels.get((len(rationales), shown[-1] if shown else None), SURE)

    return uncertainty


@dataclass
class Ran:
    """A finished run, its model and its retriever."""

    state: dict[str, Any]
    path: list[str]
    llm: Reasoner
    retriever: ListedRetriever
    judge: ScriptedJudge

    @property
    def steps(self) -> list[dict[str, Any]]:
        steps: list[dict[str, Any]] = self.state["steps"]
        return steps

    @property
    def rationales(self) -> list[str]:
        rationales: list[str] = self.state["rationales"]
        return rationales

    @property
    def evidence(self) -> list[str]:
        return [chunk["id"] for chunk in self.state["evidence"]]

    def answer_of(self, strategy: str) -> dict[str, Any]:
        [answer] = [answer for answer in self.state["strategy_answers"] if answer["strategy"] == strategy]
        return dict(answer)


def machine(
    llm: Reasoner,
    search: Callable[[str], Sequence[str]] = lambda query: FOUND,
    *,
    retriever: ListedRetriever | None = None,
    judge: ScriptedJudge | None = None,
    **compile_with: Any,
) -> Any:
    opened = Resources(llm, ScriptedEncoder(), retriever or ListedRetriever(search), judge=judge or ScriptedJudge())
    return seakr.build(opened).compile(name="seakr", **compile_with)


SET = {"retrieval_threshold": "-6", "samples": 2}


async def run(
    llm: Reasoner,
    search: Callable[[str], Sequence[str]] = lambda query: FOUND,
    judge: ScriptedJudge | None = None,
    **context: Any,
) -> Ran:
    retriever, judge = ListedRetriever(search), judge or ScriptedJudge()
    graph = machine(llm, retriever=retriever, judge=judge)
    state, path, inner = await walk(graph, {"question": QUESTION}, SeaKRContext.unchecked({**SET, **context}))
    assert inner == []
    assert json.loads(json.dumps(state, allow_nan=False)) == state
    rationales = [step["rationale"] for step in state["steps"]]
    dropped = state["stop_reason"] in {"step_repeated", "step_empty"}
    return Ran({**state, "rationales": rationales[: len(rationales) - dropped]}, path, llm, retriever, judge)


# --- when it retrieves ---


async def test_a_certain_model_retrieves_nothing() -> None:
    ran = await run(Reasoner(step=through(WHO, WHERE, LAST)))
    assert ran.path == ["prepare", *STEP * 3, *FROM_RATIONALES]
    assert ran.retriever.asked == []
    assert ran.rationales == [WHO, WHERE, LAST]
    assert (ran.state["answer"], ran.state["strategy"]) == ("the Lune", "rationales")
    assert ran.state["stop_reason"] == "answered"
    assert (ran.evidence, ran.state["warnings"], ran.state["threshold"]) == ([], [], -6.0)
    assert [call.rationales for call in ran.llm.of("step")] == [(), (WHO,), (WHO, WHERE)]
    for step in ran.steps:
        assert (step["query"], step["attempts"], step["chunk_ids"]) == (None, [], [])
        assert step["uncertainty"] == step["draft"]["uncertainty"] == pytest.approx(SURE)
    assert ran.llm.of("end") == []


async def test_an_uncertain_model_retrieves_and_tries_three_snippets() -> None:
    llm = Reasoner(
        step=lambda shown, rationales: [f"The founder is {shown[-1] if shown else 'Bo'}.", LAST][len(rationales)],
        uncertainty=by({(0, None): UNSURE, (0, "a"): -5.7, (0, "b"): -6.2, (0, "c"): -5.8}, whole=-5),
    )
    ran = await run(llm)
    assert ran.path == ["prepare", *searched(), *STEP, *BOTH]
    assert ran.retriever.asked == ["founder Bo"]
    [first, last] = ran.steps
    assert (first["draft"]["rationale"], first["rationale"]) == ("The founder is Bo.", "The founder is b.")
    assert first["draft"]["uncertainty"] == pytest.approx(UNSURE)
    tried = {attempt["chunk_id"]: attempt["uncertainty"] for attempt in first["attempts"]}
    assert tried == {"a": pytest.approx(-5.7), "b": pytest.approx(-6.2), "c": pytest.approx(-5.8)}
    assert [attempt["rationale"] for attempt in first["attempts"]] == [f"The founder is {name}." for name in "abc"]
    assert (first["chunk_ids"], first["query"]) == (["b"], "founder Bo")
    assert first["uncertainty"] == pytest.approx(-6.2), "U with the snippet, not that of the draft"
    assert (last["chunk_ids"], last["attempts"], last["query"]) == ([], [], None)
    assert ran.evidence == ["b"]
    # what was kept stays in the prompt
    assert [(call.shown, call.rationales) for call in ran.llm.of("step")][-1] == (("b",), ("The founder is b.",))


@pytest.mark.parametrize(("threshold", "looks"), [("-5.5001", True), ("-5.4999", False), ("-100", True), (0, False)])
async def test_the_threshold_decides(threshold: Any, looks: bool) -> None:
    llm = Reasoner(step=through(WHO, LAST), uncertainty=by({(0, None): UNSURE}))
    ran = await run(llm, retrieval_threshold=threshold, max_docs=1)
    assert ("search_snippets" in ran.path) == looks
    assert ran.state["threshold"] == float(threshold)


async def test_u_at_the_threshold_is_not_above_it() -> None:
    def measured(ran: Ran) -> float:
        return float(ran.steps[0]["draft"]["uncertainty"])

    def llm() -> Reasoner:
        return Reasoner(step=through(WHO, LAST))

    exact = measured(await run(llm(), retrieval_threshold=10))
    assert "formulate_query" not in (await run(llm(), retrieval_threshold=repr(exact))).path
    assert "formulate_query" in (await run(llm(), retrieval_threshold=repr(math.nextafter(exact, -math.inf)))).path


@pytest.mark.parametrize("empty", ["", "  ", "\n", "...", "1. "])
async def test_an_empty_step_retrieves(empty: str) -> None:
    llm = Reasoner(step=lambda shown, rationales: LAST if shown else empty)
    ran = await run(llm)
    assert ran.path[:-2] == ["prepare", *searched()]
    assert ran.steps[0]["draft"]["rationale"] == ""
    assert ran.retriever.asked == ["river flows past birthplace founder"]
    assert (ran.state["answer"], ran.state["stop_reason"]) == ("the Lune", "answered")


ENDINGS = [
    "So the final answer is: the Lune.",
    "So the answer is the Lune.",
    "The answer is: the Lune.",
    "Thus, the answer to the question is the Lune.",
    "The Lune is the answer.",
]


@pytest.mark.parametrize("ending", ENDINGS)
async def test_nothing_is_looked_up_for_a_step_that_states_the_answer(ending: str) -> None:
    llm = Reasoner(step=through(WHO, doubted(ending, Lune=0.01)), uncertainty=by({(1, None): UNSURE}))
    ran = await run(llm)
    assert ran.path == ["prepare", *STEP * 2, *FROM_RATIONALES]
    assert (ran.retriever.asked, ran.state["stop_reason"]) == ([], "answered")
    assert ran.state["answer"].lower() == "the lune"
    assert ran.steps[1]["uncertainty"] == pytest.approx(UNSURE), "its U still counts"


async def test_the_step_with_a_snippet_may_state_the_answer_in_other_words() -> None:
    llm = Reasoner(step=lambda shown, rationales: "The answer is Bo." if shown else WHO)
    llm.uncertainty = by({(0, None): UNSURE})
    ran = await run(llm)
    assert ran.path == ["prepare", *searched(), *BOTH]
    assert (ran.state["stop_reason"], ran.answer_of("rationales")["answer"]) == ("answered", "Bo")


async def introspected(texts: Sequence[str], rows: Any, k: int) -> Introspection:
    assert len(texts) == len(rows) == k
    reply = Reply(tuple(Completion(text, "stop") for text in texts), Tokens(7, k))
    return Introspection(reply, np.array(rows, dtype=np.float32), 15)


@dataclass
class Sampler(Reasoner):
    """A model that gives the same samples and states for every prompt."""

    texts: Sequence[str] = ()
    rows: Any = ()

    async def introspect(
        self, messages: Sequence[Message], sampling: Sampling, place: StatePlace = MIDDLE_LAYER
    ) -> Introspection:
        await super().introspect(messages, sampling, place)
        return await introspected(self.texts, self.rows, sampling.n)


@pytest.mark.parametrize("texts", [["", "", ""], ["x", " ", ""], ["", "\n", "x"]])
async def test_u_of_too_few_samples_is_unknown_and_counts_as_the_highest(texts: list[str]) -> None:
    rows = [[1.0, -1.0]] * 3
    ran = await run(
        Sampler(step=through(WHO, LAST), texts=texts, rows=rows), samples=3, retrieval_threshold=1e6, max_docs=1
    )
    assert ran.path == ["prepare", *searched(), *BOTH]
    assert ran.steps[0]["draft"]["uncertainty"] is None
    assert [attempt["uncertainty"] for attempt in ran.steps[0]["attempts"]] == [None] * 3
    assert ran.state["warnings"] == [NOT_MEASURED]
    assert ran.evidence == ["a"], "of unknown ones the first"


async def test_empty_samples_are_left_out() -> None:
    # two rows of squared norm 2: ((2 - 1) log α + log(α + 2·2)) / 2, whatever the third one is
    rows = [[1.0, -1.0], [1e9, -7.0], [1.0, -1.0]]
    ran = await run(Sampler(step=through(LAST), texts=["x", "", "y"], rows=rows), samples=3, retrieval_threshold=1e6)
    assert ran.steps[0]["uncertainty"] == pytest.approx((math.log(1e-3) + math.log(1e-3 + 4)) / 2, rel=1e-9)


# --- how the reasoning ends ---


async def test_a_repeated_query_ends_the_reasoning() -> None:
    # the second step's draft has one word that it is sure of, the first one's
    drafts = [doubted("The founder is Bo.", Bo=0.2), doubted("Its founder was Al.", Its=0.2, Al=0.3)]
    llm = Reasoner(
        step=lambda shown, rationales: WHO if shown and not rationales else drafts[len(rationales)],
        end=lambda rationales: "Ada",
    )
    llm.uncertainty = lambda kind, shown, rationales: UNSURE
    ran = await run(llm)
    assert ran.path == ["prepare", *searched(), "pseudo_generate", "formulate_query", *BOTH]
    assert ran.retriever.asked == ["founder"]
    assert (ran.state["stop_reason"], ran.rationales, ran.evidence) == ("query_repeated", [WHO], ["a"])
    assert len(ran.steps) == 1
    assert ran.llm.of("end")[0].rationales == (WHO,)


@pytest.mark.parametrize("max_docs", [1, 2, 3])
async def test_it_stops_at_max_docs(max_docs: int) -> None:
    llm = Reasoner(step=through(WHO, WHERE, RIVER, LAST), end=lambda rationales: "the Lune")
    llm.uncertainty = by({(0, None): UNSURE, (1, "a"): UNSURE, (2, "b"): UNSURE}, whole=UNSURE)
    ran = await run(llm, max_docs=max_docs)
    assert ran.path == ["prepare", *searched() * max_docs, *BOTH]
    assert (ran.state["stop_reason"], ran.evidence) == ("max_docs", ["a", "b", "c"][:max_docs])
    assert ran.rationales == [WHO, WHERE, RIVER][:max_docs]
    assert [call.rationales for call in ran.llm.of("end")] == [tuple(ran.rationales)]
    assert ran.llm.of("end")[0].shown == ()


async def test_the_step_with_the_last_snippet_may_answer() -> None:
    ran = await run(Reasoner(step=through(LAST), uncertainty=by({(0, None): UNSURE})), max_docs=1)
    assert ran.state["stop_reason"] == "answered"


@pytest.mark.parametrize("max_steps", [1, 2, 3])
async def test_it_stops_at_max_steps(max_steps: int) -> None:
    ran = await run(Reasoner(step=through(WHO, WHERE, RIVER), end=lambda rationales: "the Lune"), max_steps=max_steps)
    assert ran.path == ["prepare", *STEP * max_steps, *FROM_RATIONALES]
    assert (ran.state["stop_reason"], ran.state["answer"]) == ("max_steps", "the Lune")
    assert [call.rationales for call in ran.llm.of("end")] == [(WHO, WHERE, RIVER)[:max_steps]]


@pytest.mark.parametrize("again", [WHO, "the founder is: ADA", "Founder is Ada!"])
async def test_a_repeated_step_ends_the_reasoning(again: str) -> None:
    levels = by({(0, None): -6.5, (1, None): -6.3, (2, None): -6.1})
    ran = await run(Reasoner(step=through(WHO, WHERE, again), uncertainty=levels))
    assert ran.path == ["prepare", *STEP * 3, *FROM_RATIONALES]
    assert (ran.state["stop_reason"], ran.rationales) == ("step_repeated", [WHO, WHERE])
    assert ran.llm.of("end")[0].rationales == (WHO, WHERE), "it is not added"
    assert ran.steps[2]["rationale"] == again
    assert ran.answer_of("rationales")["uncertainty"] == pytest.approx(-6.4), "nor does its U count"
    assert ran.answer_of("rationales")["reasoning"] == f"{WHO} {WHERE}"


async def test_if_nothing_is_found_the_draft_stands() -> None:
    ran = await run(Reasoner(step=through(WHO, LAST), uncertainty=by({(0, None): UNSURE})), search=lambda query: [])
    assert ran.path == ["prepare", *searched(0), *STEP, *FROM_RATIONALES]
    assert (ran.rationales, ran.state["stop_reason"], ran.evidence) == ([WHO, LAST], "answered", [])
    first = ran.steps[0]
    assert (first["query"], first["attempts"], first["chunk_ids"]) == ("founder Ada", [], [])
    assert first["uncertainty"] == pytest.approx(UNSURE)
    assert ran.state["warnings"] == ["Nothing new was found for 'founder Ada'; the step is written without it."]


async def test_an_empty_step_without_a_snippet_ends_the_reasoning() -> None:
    ran = await run(Reasoner(step=through(WHO, ""), end=lambda rationales: "Ada"), search=lambda query: [])
    assert ran.path == ["prepare", *STEP, *searched(0), *FROM_RATIONALES]
    assert (ran.state["stop_reason"], ran.rationales, ran.state["answer"]) == ("step_empty", [WHO], "Ada")
    assert ran.llm.of("end")[0].rationales == (WHO,)


async def test_without_any_rationale_the_answer_is_asked_for() -> None:
    ran = await run(Reasoner(step=through(""), end=lambda rationales: "Ada"), search=lambda query: [])
    assert (ran.state["stop_reason"], ran.state["answer"]) == ("step_empty", "Ada")
    assert ran.llm.of("end")[0].rationales == ()
    assert ran.answer_of("rationales")["uncertainty"] is None
    assert ran.answer_of("rationales")["reasoning"] == ""


async def test_steps_that_are_empty_with_every_snippet_end_the_reasoning() -> None:
    ran = await run(Reasoner(step=lambda shown, rationales: ""))
    assert ran.path == ["prepare", *searched(), *FROM_RATIONALES]
    assert (ran.state["stop_reason"], ran.evidence, ran.rationales) == ("step_empty", [], [])


async def test_if_no_snippet_leads_to_a_step_the_draft_stands() -> None:
    llm = Reasoner(step=lambda shown, rationales: "" if shown else LAST if rationales else WHO)
    llm.uncertainty = by({(0, None): UNSURE})
    ran = await run(llm)
    assert ran.path == ["prepare", *searched(), *STEP, *FROM_RATIONALES]
    assert (ran.rationales, ran.evidence, ran.state["stop_reason"]) == ([WHO, LAST], [], "answered")
    assert ran.steps[0]["chunk_ids"] == []
    assert ran.state["warnings"] == ["No snippet leads to a step; the step stands as it was drafted."]


@pytest.mark.parametrize("draft", [WHO, ""])
async def test_with_max_docs_0_it_never_retrieves(draft: str) -> None:
    llm = Reasoner(step=through(draft, LAST))
    llm.uncertainty = lambda kind, shown, rationales: None
    ran = await run(llm, max_docs=0)
    assert ran.path == ["prepare", *STEP * (2 if draft else 1), *FROM_RATIONALES]
    assert ran.retriever.asked == []
    assert ran.state["stop_reason"] == ("answered" if draft else "step_empty")


# --- the authors' endings ---


async def test_the_reasoning_may_end_where_nothing_new_is_found() -> None:
    llm = Reasoner(step=through(WHO, WHERE, LAST), end=lambda rationales: "Ada")
    llm.uncertainty = by({(0, None): UNSURE, (1, "a"): UNSURE}, whole=UNSURE)
    ran = await run(llm, search=lambda query: ["a"], on_nothing_new="stop")
    found_nothing = ["pseudo_generate", "formulate_query", "search_snippets"]
    assert ran.path == ["prepare", *searched(1), *found_nothing, *BOTH]
    assert (ran.state["stop_reason"], ran.rationales, ran.evidence) == ("nothing_new", [WHO], ["a"])
    assert (ran.state["warnings"], ran.state["answer"]) == ([], "Ada")
    assert ran.llm.of("end")[0].rationales == (WHO,), "the step without a snippet is dropped"


async def test_kept_snippets_that_are_found_again_may_leave_fewer_to_try() -> None:
    llm = Reasoner(step=through(WHO, WHERE, LAST), uncertainty=by({(0, None): UNSURE, (1, "a"): UNSURE}))
    ran = await run(llm, found_again="skip")
    assert [[attempt["chunk_id"] for attempt in step["attempts"]] for step in ran.steps] == [
        ["a", "b", "c"],
        ["b", "c"],
        [],
    ]


async def test_the_rationales_answer_may_be_written_and_measured_anew() -> None:
    llm = Reasoner(step=through(WHO, LAST), end=lambda rationales: "So the final answer is: the Wyre.")
    llm.uncertainty = by({}, end=-5.25)
    ran = await run(llm, rationales_uncertainty="anew")
    assert ran.path == ["prepare", *STEP * 2, *FROM_RATIONALES]
    answer = ran.answer_of("rationales")
    assert (answer["answer"], answer["reasoning"]) == ("the Wyre", WHO)
    assert answer["uncertainty"] == pytest.approx(-5.25)
    [written], [measured] = ran.llm.of("end"), ran.llm.of("end", read=True)
    assert (written.rationales, written.shown) == (measured.rationales, measured.shown) == ((WHO,), ())
    assert (measured.sampling and measured.sampling.stop, written.greedy) == (("\n",), True)


@pytest.mark.parametrize(("whole", "strategy"), [(-6.9, "knowledge"), (-6.1, "rationales")])
async def test_knowledge_may_answer_though_none_was_kept(whole: float, strategy: str) -> None:
    llm = Reasoner(step=through(WHO, LAST), whole=lambda shown: f"{WHERE} So the answer is: the Wyre.")
    llm.uncertainty = by({}, whole=whole)
    ran = await run(llm, knowledge_ending="always")
    assert ran.path == ["prepare", *STEP * 2, *BOTH]
    assert (ran.state["strategy"], ran.evidence) == (strategy, [])
    assert ran.llm.of("whole")[0].shown == ()


async def test_an_answer_that_is_asked_for_after_the_knowledge_sees_the_snippets() -> None:
    llm = Reasoner(step=through(WHO, LAST), whole=lambda shown: "Ada left.", end=lambda rationales: "Bo")
    llm.uncertainty = by({(0, None): UNSURE}, whole=-6.9)
    ran = await run(llm)
    assert [(call.shown, call.rationales) for call in ran.llm.of("end")] == [(("a",), ("Ada left.",))]


TEN = [f"d{number}" for number in range(12)]


async def test_one_pass_with_each_of_ten_snippets() -> None:
    llm = Reasoner(whole=lambda shown: f"Ada left. So the answer is {shown[0] if shown else 'none'}.")
    levels: dict[str | None, float] = {
        None: -5.0,
        **{name: -6.0 - 0.01 * number for number, name in enumerate(TEN)},
        "d9": -5.5,
        "d4": -6.8,
    }
    llm.uncertainty = lambda kind, shown, rationales: levels[shown[0] if shown else None]
    ran = await run(llm, search=lambda query: TEN, mode="one_pass", k=10)
    assert ran.path == ["prepare", *searched(10), *FROM_RATIONALES]
    assert ran.retriever.asked == [QUESTION]
    assert (ran.state["answer"], ran.evidence, ran.state["stop_reason"]) == ("d4", ["d4"], "answered")
    assert ran.answer_of("rationales")["uncertainty"] == pytest.approx(-6.8)
    assert {call.kind for call in ran.llm.asked} == {"whole"}
    assert {call.sampling for call in ran.llm.of("whole")} == {Sampling(max_tokens=200, stop=("\n",), logprobs=True)}


async def test_one_pass_that_the_model_is_certain_of() -> None:
    ran = await run(Reasoner(whole=lambda shown: "Ada left. She is old.", end=lambda said: "Bo"), mode="one_pass")
    assert ran.path == ["prepare", *STEP, *FROM_RATIONALES]
    assert (ran.state["answer"], ran.state["stop_reason"]) == ("Bo", "max_steps")
    assert [call.rationales for call in ran.llm.of("end")] == [("Ada left. She is old.",)]


def test_a_form_may_say_preset_for_a_number() -> None:
    schema = SeaKRContext.model_json_schema()["properties"]["max_docs"]
    assert (schema["type"], schema["default"]) == ("string", "preset")
    assert SeaKRContext(preset="authors", max_docs="preset").max_docs == 5
    with pytest.raises(UserFault, match="max_docs"):
        SeaKRContext(max_docs="many")


def test_the_authors_preset_has_the_values_of_their_commands() -> None:
    authors, paper = SeaKRContext(preset="authors"), SeaKRContext(preset="paper")
    assert (authors.max_docs, authors.max_steps, paper.max_docs, paper.max_steps) == (5, 7, 3, 10)
    assert (authors.on_nothing_new, authors.found_again) == ("stop", "skip")
    assert (authors.rationales_uncertainty, authors.knowledge_ending) == ("anew", "always")
    assert authors.llm == paper.llm
    assert SeaKRContext(preset="authors", max_docs=3).max_docs == 3, "what is set wins"
    assert SeaKRContext(**SeaKRContext(preset="authors").model_dump()) == authors


# --- snippets ---


async def test_a_snippet_that_holds_the_final_sentence_does_not_end_the_reasoning() -> None:
    trap = "So the final answer is: Bo."
    llm = Reasoner(step=through(WHO, LAST), uncertainty=by({(0, None): UNSURE}))
    ran = await run(llm, search=lambda query: [trap])
    assert ran.path == ["prepare", *searched(1), *STEP, *BOTH]
    assert (ran.rationales, ran.state["answer"], ran.evidence) == ([WHO, LAST], "the Lune", [trap])


async def test_a_kept_snippet_is_not_tried_again() -> None:
    llm = Reasoner(step=through(WHO, WHERE, LAST))
    llm.uncertainty = by({(0, None): UNSURE, (1, "a"): UNSURE, (2, "b"): SURE}, whole=UNSURE)
    ran = await run(llm)
    assert [[attempt["chunk_id"] for attempt in step["attempts"]] for step in ran.steps] == [
        ["a", "b", "c"],
        ["b", "c", "d"],
        [],
    ]
    assert ran.evidence == ["a", "b"]
    assert [call.shown for call in ran.llm.of("step")] == [
        (), ("a",), ("b",), ("c",), ("a",), ("a", "b"), ("a", "c"), ("a", "d"), ("a", "b"),
    ]  # fmt: skip


async def test_k_snippets_are_tried_though_more_are_searched_for() -> None:
    llm = Reasoner(step=through(WHO, WHERE, LAST), uncertainty=by({(0, None): UNSURE, (1, "a"): UNSURE}))
    ran = await run(llm, search=lambda query: ["a", "b"] if "founder" in query else ["c", "d", "e"], k=2)
    assert [[attempt["chunk_id"] for attempt in step["attempts"]] for step in ran.steps] == [["a", "b"], ["c", "d"], []]


@pytest.mark.parametrize(
    ("levels", "kept"),
    [
        ((-5.0, -5.0, -5.0), "a"),
        ((-5.0, -5.5, -5.5), "b"),
        ((-5.0, -4.0, -5.5), "c"),
        ((None, None, -1.0), "c"),
        ((None, None, None), "a"),
        ((None, -1.0, None), "b"),
        ((None, 2.0, 1.0), "c"),
    ],
)
async def test_the_least_uncertain_snippet_is_kept_and_of_equals_the_first(levels: Any, kept: str) -> None:
    tried = dict(zip("abc", levels, strict=True))
    llm = Reasoner(step=through(WHO))
    llm.uncertainty = lambda kind, shown, rationales: tried[shown[0]] if shown else UNSURE
    ran = await run(llm, max_docs=1)
    assert ran.evidence == ran.steps[0]["chunk_ids"] == [kept]
    assert ran.state["warnings"] == ([NOT_MEASURED] if None in levels else [])


async def test_a_snippet_that_leads_to_an_empty_step_is_never_kept() -> None:
    llm = Reasoner(step=lambda shown, rationales: "" if shown == ("a",) else WHO)
    llm.uncertainty = lambda kind, shown, rationales: {"a": -6.9, "b": -5.0, "c": -5.1}[shown[0]] if shown else UNSURE
    ran = await run(llm, max_docs=1)
    assert ran.evidence == ["c"]


@pytest.mark.parametrize("snippets", [1, 2, 3])
async def test_snippets_are_tried_in_parallel(snippets: int) -> None:
    llm = Reasoner(step=through(WHO), uncertainty=by({(0, None): UNSURE}), seconds=0.05)
    ran = await run(llm, k=snippets, max_docs=1)
    assert ran.path == ["prepare", *searched(snippets), *BOTH]
    assert llm.under_way_at_most == max(snippets, 2), "both strategies run at once, too"


async def test_concurrency_bounds_the_model_calls() -> None:
    llm = Reasoner(step=through(WHO), uncertainty=by({(0, None): UNSURE}), seconds=0.02)
    await run(llm, k=3, max_docs=1, concurrency=1)
    assert llm.under_way_at_most == 1


async def test_the_query_leaves_out_uncertain_words() -> None:
    llm = Reasoner(step=through(doubted("The founder is Ada Bo of Kirkby.", Ada=0.89, Bo=0.91, founder=0.1), LAST))
    llm.uncertainty = by({(0, None): UNSURE})
    ran = await run(llm)
    assert ran.retriever.asked == ["founder Bo Kirkby"], "the founder is in the question"
    words = {word["text"]: word["probability"] for word in ran.steps[0]["draft"]["words"]}
    assert words["Ada"] == pytest.approx(0.89)
    assert words["The"] == 1.0


async def test_words_of_the_previous_sentence_stay_in_the_query() -> None:
    llm = Reasoner(step=through(WHO, doubted("Ada left Bo.", Ada=0.1, Bo=0.1), LAST))
    llm.uncertainty = by({(1, None): UNSURE})
    assert (await run(llm)).retriever.asked == ["Ada left"]


@pytest.mark.parametrize(("word_uncertainty", "asked"), [(0.1, "Bo"), (0.5, "Al Bo"), (0.0, "Bo"), (1.0, "Al Bo Cy")])
async def test_how_unsure_a_word_may_be(word_uncertainty: float, asked: str) -> None:
    llm = Reasoner(step=through(doubted("Al Bo Cy", Al=0.6, Cy=0.1)), uncertainty=by({(0, None): UNSURE}))
    assert (await run(llm, word_uncertainty=word_uncertainty, max_docs=1)).retriever.asked == [asked]


# --- two strategies ---


@pytest.mark.parametrize(
    ("whole", "strategy", "answer"),
    [(-6.8, "knowledge", "the Wyre"), (-6.4, "rationales", "the Lune"), (None, "rationales", "the Lune")],
)
async def test_the_less_uncertain_strategy_answers(whole: float | None, strategy: str, answer: str) -> None:
    llm = Reasoner(step=through(WHO, LAST), whole=lambda shown: f"{WHERE} So the final answer is: the Wyre.")
    llm.uncertainty = by({(0, None): UNSURE, (0, "a"): -6.5, (1, "a"): -6.7}, whole=whole)
    ran = await run(llm)
    assert ran.path == ["prepare", *searched(), *STEP, *BOTH]
    assert (ran.state["strategy"], ran.state["answer"]) == (strategy, answer)
    rationales, knowledge = ran.answer_of("rationales"), ran.answer_of("knowledge")
    assert rationales["uncertainty"] == pytest.approx(-6.6), "the mean of its steps, each with what was kept for it"
    assert knowledge["uncertainty"] == (None if whole is None else pytest.approx(whole))
    assert (rationales["answer"], rationales["reasoning"]) == ("the Lune", f"{WHO} {LAST}")
    assert (knowledge["answer"], knowledge["reasoning"]) == (
        "the Wyre",
        f"{WHERE} So the final answer is: the Wyre.",
    )
    [asked] = ran.llm.of("whole")
    assert (asked.shown, asked.rationales, asked.question) == (("a",), (), QUESTION)


async def test_of_equally_uncertain_strategies_the_rationales_answer() -> None:
    llm = Reasoner(step=through(WHO, LAST), whole=lambda shown: "So the final answer is: the Wyre.")
    llm.uncertainty = lambda kind, shown, rationales: UNSURE
    ran = await run(llm)
    assert ran.answer_of("rationales")["uncertainty"] == ran.answer_of("knowledge")["uncertainty"]
    assert (ran.state["strategy"], ran.state["answer"]) == ("rationales", "the Lune")


@pytest.mark.parametrize(
    ("by_rationales", "by_knowledge", "strategy"),
    [
        ("the Lune", "", "rationales"),
        ("", "the Wyre", "knowledge"),
        ("the Lune", "Unknown.", "rationales"),
        ("I do not know.", "the Wyre", "knowledge"),
        ("I don't know", "the Wyre", "knowledge"),
        ("the Lune", "It is unknown", "rationales"),
        ("It cannot be determined from the passages", "the Wyre", "knowledge"),
        ("**unknown**", "the Wyre", "knowledge"),
        ("", "unknown", "knowledge"),
        ("unknown", "", "rationales"),
    ],
)
@pytest.mark.parametrize("whole", [-6.8, -5.0])
async def test_an_empty_or_unknown_answer_loses_whatever_its_u(
    by_rationales: str, by_knowledge: str, strategy: str, whole: float
) -> None:
    # an ending without an answer is asked for once more
    llm = Reasoner(
        step=through(WHO), end=lambda rationales: by_knowledge if ENDING in rationales[-1] else by_rationales
    )
    llm.whole = lambda shown: f"{ENDING} {by_knowledge}"
    llm.uncertainty = by({(0, None): UNSURE}, whole=whole)
    ran = await run(llm, max_docs=1)
    assert ran.state["strategy"] == strategy
    expected = by_rationales if strategy == "rationales" else by_knowledge
    assert ran.state["answer"] == expected.strip("*").removesuffix(".")
    assert ran.state["warnings"] == []


@pytest.mark.parametrize(("whole", "strategy"), [(-6.8, "knowledge"), (-6.2, "rationales")])
async def test_two_answers_that_are_both_unknown(whole: float, strategy: str) -> None:
    llm = Reasoner(
        step=through(WHO), end=lambda rationales: "unknown", whole=lambda shown: "The final answer is unknown."
    )
    llm.uncertainty = by({(0, None): UNSURE}, whole=whole)
    ran = await run(llm, max_docs=1)
    assert (ran.state["strategy"], ran.state["answer"]) == (strategy, "unknown")


async def test_two_answers_that_are_both_empty() -> None:
    llm = Reasoner(step=through(WHO), end=lambda rationales: " ", whole=lambda shown: "So the final answer is: ")
    ran = await run(llm, retrieval_threshold=-10, max_docs=1)
    assert (ran.state["answer"], ran.state["strategy"]) == ("", "rationales")
    assert ran.state["warnings"] == ["The model's reply gave no answer: it is empty."]


async def test_a_reasoning_over_knowledge_that_gives_no_answer_is_asked_for_it() -> None:
    llm = Reasoner(
        step=through(WHO, LAST), whole=lambda shown: " Ada left. ", end=lambda rationales: "So the final answer is: Bo."
    )
    llm.uncertainty = by({(0, None): UNSURE}, whole=-6.9)
    ran = await run(llm)
    assert (ran.state["strategy"], ran.state["answer"]) == ("knowledge", "Bo")
    assert [call.rationales for call in ran.llm.of("end")] == [("Ada left.",)]


async def test_an_empty_reasoning_over_knowledge_is_not_asked_further() -> None:
    llm = Reasoner(step=through(WHO, LAST), whole=lambda shown: " \n")
    ran = await run(llm, retrieval_threshold=-10)
    assert (ran.answer_of("knowledge")["answer"], ran.state["strategy"]) == ("", "rationales")
    assert ran.llm.of("end") == []


async def test_without_self_aware_reasoning() -> None:
    levels = by({(0, None): UNSURE}, whole=-5.0)

    def llm() -> Reasoner:
        return Reasoner(
            step=through(WHO, LAST), whole=lambda shown: "The final answer is: the Wyre.", uncertainty=levels
        )

    for reasoning, node, answer in (
        ("rationales", "reason_over_rationales", "the Lune"),
        ("knowledge", "reason_over_knowledge", "the Wyre"),
    ):
        ran = await run(llm(), reasoning=reasoning)
        assert ran.path == ["prepare", *searched(), *STEP, node, "choose_strategy"]
        assert (ran.state["answer"], ran.state["strategy"]) == (answer, reasoning)
        assert len(ran.state["strategy_answers"]) == 1


async def test_knowledge_alone_where_none_was_kept() -> None:
    ran = await run(Reasoner(step=through(LAST)), reasoning="knowledge")
    assert ran.path == ["prepare", *STEP, *FROM_RATIONALES]
    assert (ran.state["answer"], ran.state["strategy"]) == ("the Lune", "rationales")


# --- how sure it is ---


def with_levels(*levels: float | None) -> Reasoner:
    """A model with these U's at its steps, of which the last gives the answer."""
    sentences = [WHO, WHERE, RIVER][: len(levels) - 1]
    return Reasoner(step=through(*sentences, LAST), uncertainty=lambda kind, shown, rationales: levels[len(rationales)])


async def test_its_uncertainty_is_the_highest_u_of_its_steps() -> None:
    ran = await run(with_levels(-6.5, -6.2, -6.9), max_docs=0)
    assert ran.state["uncertainty"] == {"signal": "highest U", "value": pytest.approx(-6.2), "threshold": -6.0}


async def test_with_a_snippet_the_u_of_the_step_counts_and_not_that_of_the_draft() -> None:
    llm = Reasoner(step=through(WHO, LAST), uncertainty=by({(0, None): UNSURE, (0, "a"): -6.3, (1, "a"): -6.9}))
    ran = await run(llm, k=1)
    assert ran.state["uncertainty"]["value"] == pytest.approx(-6.3)


async def test_its_uncertainty_is_unknown_if_that_of_a_step_is() -> None:
    ran = await run(with_levels(-6.5, None, -6.9), max_docs=0)
    assert ran.state["uncertainty"] == {"signal": "highest U", "value": None, "threshold": -6.0}


# --- ablations and simple questions ---


async def test_without_self_aware_retrieval_every_step_retrieves() -> None:
    llm = Reasoner(step=through(WHO, WHERE, RIVER))
    ran = await run(llm, self_aware_retrieval=False)
    assert ran.path == ["prepare", *searched() * 3, *BOTH]
    assert (ran.state["stop_reason"], ran.evidence) == ("max_docs", ["a", "b", "c"])
    assert [step["draft"]["uncertainty"] for step in ran.steps] == [None] * 3
    assert ran.state["warnings"] == []
    assert len(ran.llm.of("step")) == 3 * 4
    assert len(ran.llm.of("step", read=True)) == 3 * 3, "U of the draft is not measured"
    assert ran.answer_of("rationales")["uncertainty"] == pytest.approx(SURE)


async def test_without_self_aware_retrieval_the_answers_step_counts_in_the_mean() -> None:
    llm = Reasoner(step=through(WHO, LAST))
    llm.uncertainty = by({(0, "a"): -5.0, (0, "b"): -4.0, (0, "c"): -4.0, (1, "a"): -3.0}, whole=-4.5)
    ran = await run(llm, self_aware_retrieval=False)
    assert [step["uncertainty"] for step in ran.steps] == [pytest.approx(-5), pytest.approx(-3)]
    assert ran.answer_of("rationales")["uncertainty"] == pytest.approx(-4)
    assert ran.state["strategy"] == "knowledge"


@pytest.mark.parametrize("with_snippet", [None, ""])
async def test_without_self_aware_retrieval_u_is_measured_of_a_draft_that_stands(with_snippet: str | None) -> None:
    def step(shown: Sequence[str], rationales: Sequence[str]) -> str:
        return "" if shown else [WHO, LAST][len(rationales)]

    llm = Reasoner(step=step, uncertainty=by({(0, None): -5.0, (1, None): -3.0}))
    found = [] if with_snippet is None else ["a"]
    ran = await run(llm, search=lambda query: found, self_aware_retrieval=False)
    assert ran.rationales == [WHO, LAST]
    assert ran.answer_of("rationales")["uncertainty"] == pytest.approx(-4)


async def test_the_mean_of_the_steps_is_unknown_if_a_u_is() -> None:
    llm = Reasoner(step=through(WHO, LAST))
    llm.uncertainty = by({(0, None): UNSURE, (0, "a"): None, (1, "a"): -6.9}, whole=-5.0)
    ran = await run(llm, search=lambda query: ["a"])
    assert ran.answer_of("rationales")["uncertainty"] is None
    assert ran.state["strategy"] == "knowledge"


async def test_without_self_aware_reranking_only_the_first_snippet_is_tried() -> None:
    llm = Reasoner(step=through(WHO, LAST), uncertainty=by({(0, None): UNSURE, (0, "a"): -5.0, (0, "b"): -6.9}))
    ran = await run(llm, self_aware_reranking=False)
    assert ran.path == ["prepare", *searched(1), *STEP, *BOTH]
    assert ran.evidence == ["a"]
    assert ran.steps[0]["uncertainty"] == pytest.approx(-5.0)


async def test_simple_questions_retrieve_once_at_most() -> None:
    llm = Reasoner(step=through(WHO), whole=lambda shown: "The final answer is: the Wyre.")
    llm.uncertainty = lambda kind, shown, rationales: UNSURE
    ran = await run(llm, mode="simple")
    assert ran.path == ["prepare", *searched(), "reason_over_knowledge", "choose_strategy"]
    assert (ran.state["answer"], ran.state["strategy"]) == ("the Wyre", "knowledge")
    assert ran.state["stop_reason"] == "max_docs"
    assert ran.evidence == ["a"]


async def test_simple_questions_that_the_model_is_certain_of() -> None:
    ran = await run(Reasoner(step=through(WHO, LAST)), mode="simple")
    assert ran.path == ["prepare", *STEP * 2, *FROM_RATIONALES]


async def test_simple_questions_without_documents() -> None:
    llm = Reasoner(step=through(LAST))
    llm.uncertainty = lambda kind, shown, rationales: UNSURE
    assert (await run(llm, mode="simple", max_docs=0)).retriever.asked == []


async def test_simple_questions_answered_from_rationales_alone() -> None:
    llm = Reasoner(step=through(WHO), end=lambda rationales: "Ada")
    llm.uncertainty = lambda kind, shown, rationales: UNSURE
    ran = await run(llm, mode="simple", reasoning="rationales")
    assert ran.path == ["prepare", *searched(), *FROM_RATIONALES]


# --- how U is measured ---


async def test_u_of_equal_states() -> None:
    k, s, alpha = 5, 0.5, 0.1
    # one direction of squared norm 2s² for each of k rows: eigenvalues 2ks² and k − 1 times 0
    ran = await run(
        Sampler(step=through(LAST), texts=["x"] * k, rows=[[s, -s]] * k),
        samples=k,
        alpha=alpha,
        retrieval_threshold=1e6,
    )
    expected = ((k - 1) * math.log(alpha) + math.log(alpha + k * 2 * s * s)) / k
    assert ran.steps[0]["uncertainty"] == pytest.approx(expected, rel=1e-9)


async def test_the_requests_of_a_step() -> None:
    llm = Reasoner(step=through(LAST))
    graph = machine(llm)
    context = {
        "retrieval_threshold": -6, "samples": 7, "temperature": 0.7, "top_p": 0.8, "top_k": 40, "layer": 9,
        "max_step_tokens": 33,
    }  # fmt: skip
    await graph.ainvoke({"question": QUESTION}, context=context)
    samples = Sampling(n=7, temperature=0.7, top_p=0.8, top_k=40, max_tokens=33, stop=(".", "\n"))
    assert llm.asked == [
        Asked("step", QUESTION, (), (), Sampling(max_tokens=33, stop=("\n",), logprobs=True)),
        Asked("step", QUESTION, (), (), samples, read=True),
    ]
    assert llm.layers == [9]


async def test_the_requests_with_default_settings() -> None:
    llm = Reasoner(step=through(WHO), uncertainty=by({(0, None): -4.0}))
    await machine(llm).ainvoke({"question": QUESTION}, context={"max_docs": 1, "retrieval_threshold": -5})
    greedy = Sampling(max_tokens=100, stop=("\n",), logprobs=True)
    samples = Sampling(n=20, temperature=1.0, top_p=0.9, top_k=50, max_tokens=100, stop=(".", "\n"))
    assert {call.sampling for call in llm.of("step")} == {greedy}
    assert {call.sampling for call in llm.of("step", read=True)} == {samples}
    # a whole reasoning does not end with its first sentence
    assert [call.sampling for call in llm.of("whole")] == [replace(greedy, max_tokens=200)]
    assert [call.sampling for call in llm.of("whole", read=True)] == [replace(samples, stop=("\n",))]
    assert [call.sampling for call in llm.of("end")] == [Sampling(max_tokens=64, stop=("\n",))]
    assert set(llm.layers) == {None}
    assert set(llm.quantities) == {("residual", "last")}


@pytest.mark.parametrize(
    ("context", "quantity"),
    [
        ({"states": "feed_forward"}, ("feed_forward", "last")),
        ({"at": "eos"}, ("residual", "eos")),
        ({"preset": "paper"}, ("feed_forward", "eos")),
        ({"preset": "paper", "states": "residual"}, ("residual", "eos")),
    ],
)
async def test_the_hidden_states_that_are_compared(context: dict[str, str], quantity: tuple[str, str]) -> None:
    llm = Reasoner(step=through(WHO, LAST))
    state = await machine(llm).ainvoke({"question": QUESTION}, context={**SET, **context})
    assert set(llm.quantities) == {quantity}
    paper = context.get("preset") == "paper"
    assert ("at" in state["chosen"]) == paper, "it is said only where the model decides it"


async def test_a_model_that_shows_the_residual_stream_alone() -> None:
    llm = Reasoner(step=through(WHO, LAST))
    llm.capabilities -= {"inner_states"}
    state = await machine(llm).ainvoke({"question": QUESTION}, context={**SET, "preset": "paper"})
    assert set(llm.quantities) == {("residual", "last")}
    assert state["chosen"]["states"]["value"] == "residual"
    llm = Reasoner(capabilities=llm.capabilities)
    with pytest.raises(CapabilityMissing, match="set states=residual and at=last, or use a model that shows it"):
        await run(llm, states="feed_forward")
    assert llm.calls == []


async def test_a_model_that_gives_no_log_probabilities_is_not_asked_for_them() -> None:
    llm = Reasoner(step=through(WHO, LAST), uncertainty=by({(0, None): UNSURE}))
    llm.capabilities = frozenset({"hidden_states"})
    ran = await run(llm)
    assert not any(call.sampling.logprobs for call in llm.asked if call.sampling)
    assert {word["probability"] for word in ran.steps[0]["draft"]["words"]} == {None}
    assert ran.retriever.asked == ["founder Ada"], "no word counts as doubtful"


@dataclass
class Claimant(Reasoner):
    """A server that says it gives log-probabilities, and does not."""

    async def complete(self, messages: Sequence[Message], sampling: Sampling) -> Reply:
        if sampling.logprobs:
            self.calls.append(("refused", list(messages)))
            raise CapabilityMissing("The server gives no log-probabilities.")
        return await super().complete(messages, sampling)


async def test_a_server_that_claims_log_probabilities_and_gives_none_is_asked_without() -> None:
    llm = Claimant(step=through(WHO, LAST), uncertainty=by({(0, None): UNSURE}))
    ran = await run(llm)
    assert ran.path == ["prepare", *searched(), *STEP, *BOTH]
    assert ran.retriever.asked == ["founder Ada"]
    assert {word["probability"] for step in ran.steps for word in step["draft"]["words"]} == {None}


@pytest.mark.parametrize("estimator", ["perplexity", "multi_perplexity", "ln_entropy"])
async def test_an_estimator_that_needs_log_probabilities_is_refused(estimator: str) -> None:
    llm = Claimant(step=through(WHO, LAST))
    with pytest.raises(CapabilityMissing, match="gives no log-probabilities"):
        await run(llm, estimator=estimator)
    assert [verb for verb, _ in llm.calls] == ["refused"]


def worth(*probabilities: float) -> tuple[Token, ...]:
    return tuple(Token(f"t{number} ", math.log(p)) for number, p in enumerate(probabilities))


def sampled(text: str, *probabilities: float) -> Completion:
    return Completion(text, "stop", worth(*probabilities))


SAMPLES = [sampled("one", 0.5, 0.5), sampled("two", 0.25), sampled(" ", 0.001), sampled("one", 0.125)]
"""Surprisals log 2, log 4 and log 8, and one that is empty."""


@pytest.mark.parametrize(
    ("estimator", "expected", "calls"),
    [
        ("prompt", 0.7, ["complete", "choose"]),
        ("perplexity", 4.0, ["complete"]),  # of the greedy one: probabilities 1/2 and 1/8, a mean of log 4
        ("multi_perplexity", (2 + 4 + 8) / 3, ["complete", "complete"]),
        ("ln_entropy", math.log(4), ["complete", "complete"]),
        ("energy", -12.5, ["complete", "introspect"]),
        # sets of 2 and 1
        ("semantic_entropy", math.log(3) - 2 / 3 * math.log(2), ["complete", "complete"]),
        # degrees 2, 1, 2 of 3
        ("degree_entropy", -(2 * math.log(2 / 3) + math.log(1 / 3)) / 3, ["complete", "complete"]),
    ],
)
async def test_every_other_estimator(estimator: str, expected: float, calls: list[str]) -> None:
    greedy = Completion("So the final answer is: Ada.", "stop", worth(0.5, 0.125))
    llm = Reasoner(step=through(greedy), unsure=lambda shown, rationales: 0.7, energy=-12.5)
    llm.sampled = lambda kind, shown, rationales: SAMPLES
    ran = await run(llm, estimator=estimator, retrieval_threshold=1e6, samples=4, top_p=0.75, top_k=5, temperature=0.5)
    assert ran.path == ["prepare", *STEP, *FROM_RATIONALES]
    assert ran.steps[0]["uncertainty"] == pytest.approx(expected, rel=1e-9)
    assert [verb for verb, _ in llm.calls] == calls
    if estimator == "energy":
        assert llm.asked[1].sampling == Sampling(max_tokens=100, stop=(".", "\n"), logprobs=True)
    elif calls[1:] == ["complete"]:
        wants = estimator in {"multi_perplexity", "ln_entropy"}
        several = Sampling(n=4, temperature=0.5, top_p=0.75, top_k=5, max_tokens=100, stop=(".", "\n"), logprobs=wants)
        assert llm.asked[1].sampling == several
    pairs = [("one", "two"), ("two", "one")] if estimator in {"semantic_entropy", "degree_entropy"} else []
    assert ran.judge.asked == pairs


async def test_the_perplexity_of_a_step_is_that_of_its_first_sentence() -> None:
    tokens = Token("Ada was", math.log(0.5)), Token(" here.", math.log(0.125)), Token(" She", -9), Token(" left.", -9)
    line = Completion("Ada was here. She left.", "stop", tokens)
    ran = await run(Reasoner(step=through(line, LAST)), estimator="perplexity", retrieval_threshold=1e6)
    assert ran.steps[0]["draft"]["rationale"] == "Ada was here."
    assert ran.steps[0]["uncertainty"] == pytest.approx(4)


async def test_the_energy_of_a_whole_reasoning_is_that_of_all_its_tokens() -> None:
    llm = Reasoner(step=through(LAST), energy=-12.5)
    await run(
        llm, estimator="energy", mode="one_pass", max_step_tokens=50, max_reasoning_tokens=150, retrieval_threshold=1e6
    )
    greedy, energies = [call.sampling for call in llm.asked if call.sampling and call.sampling.logprobs]
    assert (greedy.max_tokens, energies.max_tokens) == (150, 150)


async def test_the_degree_entropy_counts_one_way_entailment_as_half() -> None:
    llm = Reasoner(step=through(LAST), sampled=lambda kind, shown, rationales: ["one", "two"])
    judge = ScriptedJudge(entails=lambda one, other: one == "one")
    ran = await run(llm, judge=judge, estimator="degree_entropy", retrieval_threshold=1e6)
    # degrees 1.5 of 2
    assert ran.steps[0]["uncertainty"] == pytest.approx(-math.log(0.75))
    ran = await run(llm, judge=judge, estimator="semantic_entropy", retrieval_threshold=1e6)
    assert ran.steps[0]["uncertainty"] == pytest.approx(math.log(2)), "equivalence takes both ways"


@pytest.mark.parametrize("estimator", ["semantic_entropy", "degree_entropy"])
async def test_pairs_that_the_judge_cannot_label_give_a_warning(estimator: str) -> None:
    llm = Reasoner(step=through(LAST), sampled=lambda kind, shown, rationales: ["one", "two"])
    judge = ScriptedJudge(entails=lambda one, other: None)
    ran = await run(llm, judge=judge, estimator=estimator, retrieval_threshold=1e6)
    assert ran.steps[0]["uncertainty"] == pytest.approx(math.log(2))
    told = "The judge 'judge' could not label 2 pairs of answers; they count as not entailing."
    assert ran.state["warnings"] == [told]


@pytest.mark.parametrize("estimator", ["multi_perplexity", "ln_entropy", "semantic_entropy", "degree_entropy"])
async def test_samples_that_are_all_empty(estimator: str) -> None:
    llm = Reasoner(step=through(WHO), sampled=lambda kind, shown, rationales: ["", " "])
    ran = await run(llm, estimator=estimator, retrieval_threshold=1e6, max_docs=1)
    assert ran.path == ["prepare", *searched(), *BOTH]
    assert ran.steps[0]["draft"]["uncertainty"] is None
    assert len(ran.state["warnings"]) == 1


@pytest.mark.parametrize("estimator", ["semantic_entropy", "degree_entropy"])
async def test_one_sample_with_text_is_too_few_to_compare(estimator: str) -> None:
    llm = Reasoner(step=through(WHO), sampled=lambda kind, shown, rationales: ["one", " "])
    ran = await run(llm, estimator=estimator, retrieval_threshold=1e6, max_docs=1)
    assert ran.steps[0]["draft"]["uncertainty"] is None


@pytest.mark.parametrize("estimator", ["perplexity", "multi_perplexity", "ln_entropy"])
async def test_a_token_without_any_probability_makes_u_unknown(estimator: str) -> None:
    impossible = Completion(WHO, "stop", (Token(WHO, -math.inf),))
    llm = Reasoner(step=through(impossible), sampled=lambda kind, shown, rationales: [impossible])
    ran = await run(llm, estimator=estimator, retrieval_threshold=1e6, max_docs=1)
    assert ran.steps[0]["draft"]["uncertainty"] is None
    assert [word["probability"] for word in ran.steps[0]["draft"]["words"]] == [0.0] * 4
    assert len(ran.state["warnings"]) == 1


async def test_a_model_that_says_neither_yes_nor_no_counts_as_not_knowing() -> None:
    llm = Reasoner(step=through(LAST))

    async def choose(messages: Any, options: Any) -> Any:
        raise ContractFault("it names no option", "perhaps")

    llm.choose = choose  # type: ignore[method-assign]
    ran = await run(llm, estimator="prompt", retrieval_threshold=0.99, max_docs=0)
    assert ran.steps[0]["uncertainty"] == 1.0
    assert ran.state["warnings"] == ["The model did not say whether it knows enough; it counts as not knowing."]


async def test_the_self_report_is_about_the_step() -> None:
    llm = Reasoner(step=through(WHO, LAST), unsure=lambda shown, rationales: 0.0 if shown else 0.9)
    ran = await run(llm, estimator="prompt", retrieval_threshold="known")
    assert ran.state["threshold"] == 0.5
    assert ran.path == ["prepare", *searched(), *STEP, *BOTH]
    asked = sorted((call.shown, call.rationales) for call in llm.of("knows"))
    assert asked == [((), ()), (("a",), ()), (("a",), ()), (("a",), (WHO,)), (("b",), ()), (("c",), ())]
    assert {call.question for call in llm.of("knows")} == {QUESTION}


# --- against a straight line ---

SENTENCES = [
    "Thus Ada founded Kirkby.",
    "Bo left the river Lune.",
    "The founder of Kirkby is Bo.",
    "Ada was born in Lune.",
]
ENDS = [
    *("So the final answer is: Ada.", "So the final answer is: It is unknown.", "So the final answer is:"),
    *("The answer is Ada.", "So the answer is: unknown.", "Ada is the answer."),
]
NAMES = list("abcdef")


def chance(seed: int, *what: object) -> random.Random:
    """A random generator; the same arguments give the same numbers."""
    return random.Random(repr((seed, *map(str, what))))


@dataclass(frozen=True)
class World:
    """A random model and a random search: the same replies for the graph and for the reference."""

    seed: int

    def step(self, shown: Sequence[str], rationales: Sequence[str]) -> list[tuple[str, float]]:
        luck = chance(self.seed, "step", tuple(shown), tuple(rationales))
        text = luck.choice([*SENTENCES, *SENTENCES, *luck.sample(ENDS, 1 + luck.randrange(3)), ""])
        return [(word, luck.choice([1.0, 0.95, 0.5, 0.1])) for word in text.split()]

    def completion(self, shown: Sequence[str], rationales: Sequence[str]) -> Completion:
        words = self.step(shown, rationales)
        text = " ".join(word for word, _ in words)
        tokens = [Token(f" {word}" if number else word, math.log(p)) for number, (word, p) in enumerate(words)]
        return Completion(text, "stop", tuple(tokens))

    def uncertainty(self, shown: Sequence[str], rationales: Sequence[str]) -> float | None:
        return chance(self.seed, "u", tuple(shown), tuple(rationales)).choice([-6.75, -6.5, -6.25, -5.75, -5.0, None])

    def whole(self, shown: Sequence[str]) -> tuple[str | None, float | None]:
        luck = chance(self.seed, "whole", tuple(shown))
        # no mean of up to ten quarters is that near
        return luck.choice(["Bo", "unknown", "", None]), luck.choice([-6.618, -6.118, -5.618, -5.118, None])

    def whole_text(self, shown: Sequence[str]) -> str:
        answer = self.whole(shown)[0]
        return "nothing in the end" if answer is None else f"Ada left. So the final answer is: {answer}"

    def end(self, rationales: Sequence[str]) -> str:
        return chance(self.seed, "end", tuple(rationales)).choice(["Cy", "unknown", "", "cannot be determined"])

    def end_uncertainty(self, rationales: Sequence[str]) -> float | None:
        return chance(self.seed, "end u", tuple(rationales)).choice([-6.813, -6.313, -5.313, None])

    def search(self, query: str) -> list[str]:
        luck = chance(self.seed, "search", query)
        return luck.sample(NAMES, luck.randrange(len(NAMES) + 1))


@st.composite
def options(draw: st.DrawFn) -> reference.Settings:
    return reference.Settings(
        threshold=draw(st.sampled_from([-6.0, -6.0, -5.25, -7.0])),
        snippets=draw(st.sampled_from([3, 1, 2])),
        max_docs=draw(st.sampled_from([3, 3, 1, 0])),
        max_steps=draw(st.sampled_from([10, 2, 1, 5])),
        word_uncertainty=draw(st.sampled_from([0.1, 0.0, 0.6])),
        simple=draw(st.sampled_from([False, False, False, True])),
        retrieves_by_uncertainty=draw(st.sampled_from([True, True, False])),
        ranks_by_uncertainty=draw(st.sampled_from([True, True, False])),
        reasoning=draw(st.sampled_from(["self_aware", "self_aware", "rationales", "knowledge"])),
        stops_with_nothing_new=draw(st.booleans()),
        skips_kept=draw(st.booleans()),
        measures_anew=draw(st.sampled_from([False, False, True])),
        always_from_knowledge=draw(st.sampled_from([False, False, True])),
        one_pass=draw(st.sampled_from([False, False, False, False, True])),
    )


ASKS = "Who is the founder of Kirkby?"
worlds = st.integers(0, 2**32 - 1).map(World)


def straight_line(world: World, chosen: reference.Settings) -> reference.Outcome:
    line = reference.World(
        ASKS, world.step, world.uncertainty, world.whole, world.end, world.end_uncertainty, world.search
    )
    return reference.seakr(line, chosen)


@settings(max_examples=30, database=None, suppress_health_check=list(HealthCheck))
@given(worlds, options())
async def test_it_computes_what_the_straight_line_computes(world: World, chosen: reference.Settings) -> None:
    expected = straight_line(world, chosen)

    def uncertainty(kind: str, shown: Sequence[str], rationales: Sequence[str]) -> float | None:
        if kind == "end":
            return world.end_uncertainty(rationales)
        return world.whole(shown)[1] if kind == "whole" else world.uncertainty(shown, rationales)

    llm = Reasoner(step=world.completion, whole=world.whole_text, end=world.end, uncertainty=uncertainty, seconds=0)
    retriever = ListedRetriever(world.search)
    context = {
        "retrieval_threshold": str(chosen.threshold),
        "k": chosen.snippets,
        "max_docs": chosen.max_docs,
        "max_steps": chosen.max_steps,
        "word_uncertainty": chosen.word_uncertainty,
        "mode": "one_pass" if chosen.one_pass else "simple" if chosen.simple else "complex",
        "on_nothing_new": "stop" if chosen.stops_with_nothing_new else "go_on",
        "found_again": "skip" if chosen.skips_kept else "replace",
        "rationales_uncertainty": "anew" if chosen.measures_anew else "mean",
        "knowledge_ending": "always" if chosen.always_from_knowledge else "kept",
        "self_aware_retrieval": chosen.retrieves_by_uncertainty,
        "self_aware_reranking": chosen.ranks_by_uncertainty,
        "reasoning": chosen.reasoning,
        "samples": 3,
    }
    graph = machine(llm, retriever=retriever)
    state = await graph.ainvoke({"question": ASKS}, context=SeaKRContext.unchecked(context))

    assert retriever.asked == expected.queries
    assert state["stop_reason"] == expected.stop_reason
    assert [chunk["id"] for chunk in state["evidence"]] == expected.kept
    count = len(expected.rationales)
    assert [step["rationale"] for step in state["steps"]][:count] == expected.rationales
    assert [step["uncertainty"] for step in state["steps"]][:count] == [
        None if u is None else pytest.approx(u) for u in expected.uncertainties
    ]
    tried = [
        [(attempt["chunk_id"], attempt["uncertainty"]) for attempt in step["attempts"]]
        for step in state["steps"]
        if step["query"]
    ]
    assert tried == [[(one, None if u is None else pytest.approx(u)) for one, u in some] for some in expected.tried]
    assert (state["strategy"], state["answer"]) == (expected.strategy, expected.answer)
    assert state["usage"]["calls"] == len(llm.calls) == expected.calls


def test_the_random_worlds_reach_every_stop_reason() -> None:
    reached: Counter[str] = Counter()

    @settings(max_examples=600, derandomize=True, database=None)
    @given(worlds, options())
    def tell(world: World, chosen: reference.Settings) -> None:
        done = straight_line(world, chosen)
        reached[done.stop_reason] += 1
        reached[done.strategy] += 1
        reached["no answer"] += not done.answer
        reached["not the first snippet"] += any(len(tried) > 1 and tried[0][0] not in done.kept for tried in done.tried)
        reached["several kept"] += len(done.kept) > 1
        reached["found nothing"] += [] in done.tried
        reached["one pass, with a snippet"] += chosen.one_pass and bool(done.kept)
        reached["knowledge without a snippet"] += done.strategy == "knowledge" and not done.kept

    tell()
    expected = {"answered", "max_steps", "max_docs", "query_repeated", "nothing_new", "step_repeated", "step_empty"}
    expected |= {"one pass, with a snippet", "knowledge without a snippet"}
    expected |= {"rationales", "knowledge", "no answer", "not the first snippet", "several kept", "found nothing"}
    assert {name for name in expected if reached[name] >= 5} == expected, reached


# --- what goes wrong ---


@pytest.mark.parametrize(
    ("estimator", "has", "told", "possible"),
    [
        (
            "gram",
            {"logprobs", "seed"},
            "hidden_states",
            "prompt, perplexity, multi_perplexity, ln_entropy, semantic_entropy, degree_entropy",
        ),
        ("energy", {"hidden_states"}, "energy", "gram, prompt, semantic_entropy, degree_entropy"),
    ],
)
async def test_a_model_that_cannot_do_what_the_estimator_needs(
    estimator: str, has: set[Any], told: str, possible: str
) -> None:
    llm = Reasoner(capabilities=frozenset(has))
    with pytest.raises(CapabilityMissing) as fault:
        await run(llm, estimator=estimator)
    assert str(fault.value).startswith(
        f"The uncertainty estimator '{estimator}' needs {told}, which the chat model 'scripted' does not give: "
        f"use estimator {possible}; or a model that does"
    )
    assert llm.calls == []


async def test_a_missing_capability_is_reported_before_a_missing_threshold() -> None:
    llm = Reasoner(capabilities=frozenset())
    with pytest.raises(CapabilityMissing, match="use estimator prompt, semantic_entropy, degree_entropy"):
        await machine(llm).ainvoke({"question": QUESTION}, context={"llm": "hf:other", "estimator": "gram"})


@pytest.mark.parametrize("estimator", list(NEEDS))
async def test_the_estimators_that_are_named_can_be_used(estimator: str) -> None:
    llm = Reasoner(step=through(WHO, LAST), capabilities=NEEDS[estimator])  # type: ignore[index]
    llm.sampled = lambda kind, shown, rationales: ["one", "two"] if not shown else ["one"]
    ran = await run(llm, estimator=estimator, retrieval_threshold=-100)
    assert ran.state["answer"]


@pytest.mark.parametrize("context", [{"llm": "hf:other"}, {"estimator": "perplexity"}, {"llm": "vllm:http://h#m"}])
async def test_no_threshold_is_known(context: dict[str, str]) -> None:
    llm = Reasoner()
    with pytest.raises(UserFault, match="No threshold is known"):
        await machine(llm).ainvoke({"question": QUESTION}, context=context)
    assert llm.calls == []


@pytest.mark.parametrize(
    "context",
    [
        {"retrieval_threshold": "high"},
        {"retrieval_threshold": "nan"},
        {"retrieval_threshold": "inf"},
    ],
)
async def test_settings_out_of_bounds_are_refused(context: dict[str, Any]) -> None:
    llm = Reasoner()
    with pytest.raises(UserFault, match=next(iter(context))):
        await machine(llm).ainvoke({"question": QUESTION}, context=context)
    assert llm.calls == []


async def test_a_calibration_that_is_not_there(tmp_path: Path) -> None:
    llm = Reasoner()
    with pytest.raises(UserFault, match="There is no calibration at"):
        await machine(llm).ainvoke({"question": QUESTION}, context={"threshold_file": str(tmp_path / "none.json")})
    assert llm.calls == []


async def test_an_unknown_first_stage_is_refused_before_any_model_is_called() -> None:
    llm = Reasoner()
    with pytest.raises(UserFault, match="no first stage named 'bm52'"):
        await machine(llm).ainvoke({"question": QUESTION}, context={**SET, "first_stage": "bm52"})
    assert llm.calls == []


async def test_states_that_are_no_numbers() -> None:
    with pytest.raises(UserFault, match="not finite"):
        await run(Sampler(step=through(LAST), texts=["x", "y"], rows=[[1.0, math.nan]] * 2))


# --- in other programs ---


async def test_no_context_means_the_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(BUILT_IN, ("embedded", 20, ("residual", "last")), -5.0)
    llm = Reasoner(step=through(WHO, LAST), uncertainty=by({(0, None): -4.5}), name="embedded")
    opened = Resources(llm, ScriptedEncoder(), ListedRetriever(lambda query: FOUND))
    monkeypatch.setattr(wiring, "shared_resources", lambda: opened)
    graph: Any = seakr.graph
    state = await graph.ainvoke({"question": QUESTION})
    assert state["answer"] == "the Lune"
    assert len(state["steps"][0]["attempts"]) == 3
    assert {call.sampling.n for call in llm.asked if call.read and call.sampling} == {20}
