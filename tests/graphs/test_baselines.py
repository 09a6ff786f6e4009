"""SeaKR's baselines, CoT, IRCoT, FLARE and ITER-RETGEN: their paths, queries, snippets and answers."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from dubito.errors import CapabilityMissing, UserFault
from dubito.graphs import cot, flare, ircot, iter_retgen
from dubito.models.interfaces import Completion, Sampling, Token
from dubito.resources.resources import Resources
from dubito.tests.scripted import (
    QUESTION,
    Asked,
    ListedRetriever,
    Reasoner,
    ScriptedChat,
    ScriptedEncoder,
    doubted,
    walk,
)

THREAD: Any = {"configurable": {"thread_id": "1"}}

WHO, WHERE, RIVER = "The founder is Ada.", "Ada was born in Kirkby.", "The Lune flows past Kirkby."
LAST = "So the final answer is: the Lune."
NO_ANSWER = "The model's reply gave no answer: it is empty."

COT = ["draft_step", "append_rationale"]
WITH_SNIPPET = ["search_snippets", "keep_snippets", "write_step", "append_rationale"]
IRCOT = ["query_from_last_rationale", *WITH_SNIPPET]
FLARE = ["mask_unlikely_words", *WITH_SNIPPET]
FLARE_IN_VAIN = ["draft_step", "mask_unlikely_words", "search_snippets", "append_rationale"]

STEPWISE = [cot, ircot, flare]
EVERY = [*STEPWISE, iter_retgen]


def through(*sentences: str | Completion) -> Callable[[Sequence[str], Sequence[str]], str | Completion]:
    """One sentence after the other, whichever documents are shown."""
    return lambda shown, rationales: sentences[len(rationales)]


@dataclass
class Ran:
    """A finished run, its model and its retriever."""

    state: dict[str, Any]
    path: list[str]
    llm: Reasoner
    retriever: ListedRetriever

    @property
    def steps(self) -> list[dict[str, Any]]:
        steps: list[dict[str, Any]] = self.state["steps"]
        return steps

    @property
    def rationales(self) -> list[str]:
        return [step["rationale"] for step in self.steps]

    @property
    def evidence(self) -> list[str]:
        return [chunk["id"] for chunk in self.state["evidence"]]

    @property
    def end(self) -> tuple[str, str]:
        return self.state["answer"], self.state["stop_reason"]


def machine(
    module: ModuleType,
    llm: Reasoner,
    search: Callable[[str], Sequence[str]] = lambda query: ["a", "b", "c", "d"],
    *,
    retriever: ListedRetriever | None = None,
    **compile_with: Any,
) -> Any:
    opened = Resources(llm, ScriptedEncoder(), retriever or ListedRetriever(search))
    return module.build(opened).compile(name="baseline", **compile_with)


async def run(
    module: ModuleType,
    llm: Reasoner,
    search: Callable[[str], Sequence[str]] = lambda query: ["a", "b", "c", "d"],
    **context: Any,
) -> Ran:
    retriever = ListedRetriever(search)
    state, path, inner = await walk(machine(module, llm, retriever=retriever), {"question": QUESTION}, context)
    assert inner == []
    assert json.loads(json.dumps(state, allow_nan=False)) == state
    assert all(call.greedy for call in llm.asked), "nothing is sampled"
    return Ran(state, path, llm, retriever)


# --- chain of thought ---


async def test_cot_searches_for_nothing() -> None:
    ran = await run(cot, Reasoner(step=through(WHO, WHERE, LAST)))
    assert ran.path == ["prepare", *COT * 3, "answer_from_rationales"]
    assert (ran.retriever.asked, ran.evidence, ran.state["warnings"]) == ([], [], [])
    assert ran.end == ("the Lune", "answered")
    assert [(call.kind, call.shown, call.rationales) for call in ran.llm.asked] == [
        ("step", (), ()),
        ("step", (), (WHO,)),
        ("step", (), (WHO, WHERE)),
    ]
    assert {call.sampling for call in ran.llm.asked} == {Sampling(max_tokens=100, stop=("\n",))}
    for step, text in zip(ran.steps, [WHO, WHERE, LAST], strict=True):
        assert step["draft"]["rationale"] == step["rationale"] == text
        assert (step["query"], step["attempts"], step["chunk_ids"], step["uncertainty"]) == (None, [], [], None)


@pytest.mark.parametrize("max_steps", [1, 3])
async def test_cot_is_asked_for_the_answer_when_it_stops_at_max_steps(max_steps: int) -> None:
    ran = await run(
        cot,
        Reasoner(step=through(WHO, WHERE, RIVER), end=lambda rationales: "So the final answer is: **the Lune**."),
        max_steps=max_steps,
    )
    assert ran.path == ["prepare", *COT * max_steps, "answer_from_rationales"]
    assert ran.end == ("the Lune", "max_steps")
    [asked] = ran.llm.of("end")
    assert asked == Asked("end", QUESTION, (), (WHO, WHERE, RIVER)[:max_steps], Sampling(max_tokens=64, stop=("\n",)))


async def test_cot_ends_where_it_repeats_itself() -> None:
    ran = await run(cot, Reasoner(step=through(WHO, WHERE, "the founder is ADA"), end=lambda rationales: "Ada"))
    assert ran.path == ["prepare", *COT * 3, "answer_from_rationales"]
    assert ran.end == ("Ada", "step_repeated")
    assert ran.llm.of("end")[0].rationales == (WHO, WHERE)


@pytest.mark.parametrize("answer", ["", "Ada"])
async def test_cot_ends_where_nothing_is_written(answer: str) -> None:
    ran = await run(cot, Reasoner(step=through(WHO, " "), end=lambda rationales: answer))
    assert ran.path == ["prepare", *COT * 2, "answer_from_rationales"]
    assert ran.end == (answer, "step_empty")
    assert ran.state["warnings"] == ([] if answer else [NO_ANSWER])


async def test_a_step_and_an_answer_that_were_withheld_are_no_empty_ones() -> None:
    withheld = Completion("", "stop", why_empty="the server ended it with 'safety'")
    ran = await run(cot, Reasoner(step=lambda shown, said: withheld, end=lambda rationales: withheld))
    assert ran.state["warnings"] == [
        f"The model's reply gave no {part}: the server ended it with 'safety'." for part in ("next sentence", "answer")
    ]


@pytest.mark.parametrize("module", EVERY)
def test_every_graph_shows_the_examples_of_a_file(module: ModuleType, tmp_path: Path) -> None:
    file = tmp_path / "examples.json"
    file.write_text('[{"question": "Who is it?", "facts": ["Ada founded it."], "answer": "Ada"}]')
    llm = ScriptedChat(reply=lambda system, user: LAST)
    graph = machine(module, llm)  # type: ignore[arg-type]
    state = graph.invoke({"question": QUESTION}, context={"examples": str(file)})
    assert state["answer"] == "the Lune"
    for _, messages in llm.calls:
        said = [message["content"] for message in messages if message["role"] == "assistant"]
        assert "Ada founded it." in said[0]
        assert messages[1]["content"] == "Question: Who is it?"
    file.write_text("[")
    with pytest.raises(UserFault, match="cannot be read"):
        machine(module, llm := ScriptedChat()).invoke({"question": QUESTION}, context={"examples": str(file)})  # type: ignore[arg-type]
    assert llm.calls == []


# --- IRCoT ---


async def test_ircot_searches_the_question_then_the_last_sentence() -> None:
    ran = await run(ircot, Reasoner(step=through(WHO, WHERE, LAST)))
    assert ran.path == ["prepare", *IRCOT * 3, "answer_from_rationales"]
    assert ran.retriever.asked == [QUESTION, WHO, WHERE]
    assert [step["query"] for step in ran.steps] == ran.retriever.asked
    assert [step["chunk_ids"] for step in ran.steps] == [["a"], ["b"], ["c"]], "the best that is new"
    assert ran.evidence == ["a", "b", "c"]
    assert [(call.shown, call.rationales) for call in ran.llm.of("step")] == [
        (("a",), ()),
        (("a", "b"), (WHO,)),
        (("a", "b", "c"), (WHO, WHERE)),
    ]
    assert [step["draft"] for step in ran.steps] == [None] * 3
    assert ran.rationales == [WHO, WHERE, LAST]
    assert ran.end == ("the Lune", "answered")


@pytest.mark.parametrize("max_docs", [0, 1, 2])
async def test_ircot_goes_on_without_documents_when_they_are_spent(max_docs: int) -> None:
    ran = await run(ircot, Reasoner(step=through(WHO, WHERE, RIVER, LAST)), max_docs=max_docs)
    assert ran.path == ["prepare", *IRCOT * max_docs, *COT * (4 - max_docs), "answer_from_rationales"]
    assert ran.evidence == ["a", "b"][:max_docs]
    assert ran.llm.of("step")[-1].shown == tuple(ran.evidence)
    assert [step["chunk_ids"] for step in ran.steps] == [*([one] for one in ran.evidence), *[[]] * (4 - max_docs)]
    assert [step["query"] for step in ran.steps] == [*[QUESTION, WHO][:max_docs], *[None] * (4 - max_docs)]
    assert ran.end == ("the Lune", "answered")


async def test_ircot_writes_without_what_is_not_found() -> None:
    results: Mapping[str, list[str]] = {QUESTION: [], WHO: ["a"], WHERE: ["a"]}
    ran = await run(ircot, Reasoner(step=through(WHO, WHERE, LAST)), search=lambda query: results[query])
    assert ran.path == ["prepare", *IRCOT * 3, "answer_from_rationales"]
    assert [step["chunk_ids"] for step in ran.steps] == [[], ["a"], []]
    assert [call.shown for call in ran.llm.of("step")] == [(), ("a",), ("a",)]
    assert ran.rationales == [WHO, WHERE, LAST]
    assert ran.state["warnings"] == [
        f"Nothing new was found for '{query}'; the step is written without it." for query in (QUESTION, WHERE)
    ]


@pytest.mark.parametrize("max_steps", [1, 2])
async def test_ircots_steps_are_spent(max_steps: int) -> None:
    ran = await run(ircot, Reasoner(step=through(WHO, WHERE), end=lambda rationales: "Ada"), max_steps=max_steps)
    assert ran.path == ["prepare", *IRCOT * max_steps, "answer_from_rationales"]
    assert ran.end == ("Ada", "max_steps")


async def test_ircot_that_repeats_itself() -> None:
    ran = await run(ircot, Reasoner(step=through(WHO, WHO), end=lambda rationales: "Ada"))
    assert ran.path == ["prepare", *IRCOT * 2, "answer_from_rationales"]
    assert ran.end == ("Ada", "step_repeated")
    assert ran.evidence == ["a", "b"]


async def test_ircot_that_writes_nothing() -> None:
    ran = await run(ircot, Reasoner(step=through(""), end=lambda rationales: ""))
    assert ran.path == ["prepare", *IRCOT, "answer_from_rationales"]
    assert ran.end == ("", "step_empty")
    assert ran.state["warnings"] == [NO_ANSWER]


async def test_a_snippet_that_holds_the_final_sentence_does_not_end_ircot() -> None:
    trap = "So the final answer is: Bo."
    ran = await run(ircot, Reasoner(step=through(WHO, LAST)), search=lambda query: [trap], max_docs=1)
    assert (ran.rationales, ran.evidence, ran.state["answer"]) == ([WHO, LAST], [trap], "the Lune")


async def test_ircot_has_no_limit_of_documents() -> None:
    said = [f"Ada met Bo {number} times." for number in range(6)]
    ran = await run(ircot, Reasoner(step=through(*said, LAST)), search=lambda query: [f"d{n}" for n in range(20)])
    assert ran.evidence == [f"d{number}" for number in range(7)]


async def test_ircot_adds_k_snippets_a_step() -> None:
    results: dict[str, list[str]] = {QUESTION: ["a", "b", "c"], WHO: ["b", "a", "d", "e"], WHERE: ["e", "a", "f"]}
    ran = await run(ircot, Reasoner(step=through(WHO, WHERE, LAST)), search=lambda query: results[query], k=2)
    assert [step["chunk_ids"] for step in ran.steps] == [["a", "b"], ["d", "e"], ["f"]]
    assert [call.shown for call in ran.llm.of("step")] == [tuple("ab"), tuple("abde"), tuple("abdef")]
    skips = await run(
        ircot, Reasoner(step=through(WHO, WHERE, LAST)), search=lambda query: results[query], k=2, found_again="skip"
    )
    assert [step["chunk_ids"] for step in skips.steps] == [["a", "b"], [], ["e"]]


async def test_ircot_keeps_no_more_than_max_docs() -> None:
    ran = await run(ircot, Reasoner(step=through(WHO, WHERE, LAST)), k=2, max_docs=3)
    assert [step["chunk_ids"] for step in ran.steps] == [["a", "b"], ["c"], []]
    assert ran.path == ["prepare", *IRCOT * 2, *COT, "answer_from_rationales"]


@pytest.mark.parametrize("module", [ircot, flare])
async def test_an_answer_that_is_asked_for_sees_the_snippets(module: ModuleType) -> None:
    llm = Reasoner(step=through(doubted(WHO, Ada=0.1), doubted(WHERE, Kirkby=0.1)), end=lambda said: "the Lune")
    ran = await run(module, llm, max_steps=2)
    assert ran.end == ("the Lune", "max_steps")
    assert [(call.shown, call.rationales) for call in ran.llm.of("end")] == [(("a", "b"), (WHO, WHERE))]


# --- FLARE ---


async def test_flare_with_k_snippets_of_the_current_step() -> None:
    drafts: list[str | Completion] = [doubted(WHO, Ada=0.1), doubted(WHERE, Kirkby=0.1), LAST]
    with_passages: list[str | Completion] = [WHO, WHERE]
    llm = Reasoner(step=lambda shown, said: (with_passages if shown else drafts)[len(said)])
    found = {"founder": ["a", "b"], "Ada born": ["b", "c"]}
    ran = await run(flare, llm, search=lambda query: found[query], k=2, max_docs=10, passages="current")
    assert ran.path == ["prepare", *["draft_step", *FLARE] * 2, *COT, "answer_with_uncertainty"]
    assert [call.shown for call in ran.llm.of("step")] == [(), ("a", "b"), (), ("b", "c"), ()]
    assert [step["chunk_ids"] for step in ran.steps] == [["a", "b"], ["b", "c"], []]
    assert ran.evidence == ["a", "b", "c"]


async def test_a_step_of_flare_may_be_written_from_kept_snippets_alone() -> None:
    drafts: list[str | Completion] = [doubted(WHO, Ada=0.1), doubted(WHERE, Kirkby=0.1), LAST]
    with_passages: list[str | Completion] = [WHO, WHERE]
    llm = Reasoner(step=lambda shown, said: (with_passages if shown else drafts)[len(said)])
    ran = await run(flare, llm, search=lambda query: ["a", "b"], passages="current", max_docs=2)
    assert [call.shown for call in ran.llm.of("step")] == [(), ("a",), (), ("a",), ()]
    assert (ran.evidence, ran.state["warnings"]) == (["a"], [])


async def test_a_step_of_flare_is_shown_no_more_new_snippets_than_may_be_kept() -> None:
    llm = Reasoner(step=through(doubted(WHO, Ada=0.1), doubted(WHERE, Kirkby=0.1), LAST))
    found = {"founder": ["a", "b"], "Ada born": ["b", "c", "d"]}
    ran = await run(flare, llm, search=lambda query: found[query], passages="current", k=3, max_docs=3)
    assert [step["chunk_ids"] for step in ran.steps] == [["a", "b"], ["b", "c"], []]
    assert ran.evidence == ["a", "b", "c"]


async def test_flare_may_search_for_the_question_first() -> None:
    ran = await run(flare, Reasoner(step=through(WHO, LAST)), search_first=True)
    assert ran.path == ["prepare", *IRCOT, *COT, "answer_with_uncertainty"]
    assert ran.retriever.asked == [QUESTION]
    assert [call.shown for call in ran.llm.of("step")] == [("a",), ("a",)]
    in_vain = await run(flare, Reasoner(step=through(WHO, LAST)), search=lambda query: [], search_first=True)
    assert in_vain.path == [
        *("prepare", "query_from_last_rationale", "search_snippets", *COT, *COT),
        "answer_with_uncertainty",
    ]
    assert in_vain.rationales == [WHO, LAST]


@pytest.mark.parametrize(
    ("likely_from", "probability", "looks"),
    [(0.8, 0.79, True), (0.8, 0.81, False), (0.5, 0.6, False), (1.0, 0.999, True), (0.0, 1e-9, False), (0.8, 1, False)],
)
async def test_flare_retrieves_if_a_word_is_unlikely(likely_from: float, probability: float, looks: bool) -> None:
    llm = Reasoner(step=through(doubted(WHO, Ada=probability), LAST))
    ran = await run(flare, llm, likely_from=likely_from)
    look_up = FLARE[:-1] if looks else []
    assert ran.path == ["prepare", "draft_step", *look_up, "append_rationale", *COT, "answer_with_uncertainty"]
    assert ran.retriever.asked == (["founder Ada"] if looks else [])
    assert ran.evidence == (["a"] if looks else [])


async def test_flare_writes_the_step_again_with_what_it_keeps() -> None:
    def step(shown: Sequence[str], rationales: Sequence[str]) -> str | Completion:
        return LAST if rationales else WHO if shown else doubted("The founder is Bo.", Bo=0.1)

    ran = await run(flare, Reasoner(step=step))
    assert ran.path == ["prepare", "draft_step", *FLARE, *COT, "answer_with_uncertainty"]
    [first, _] = ran.steps
    assert (first["draft"]["rationale"], first["rationale"]) == ("The founder is Bo.", WHO)
    assert (first["query"], first["chunk_ids"], first["attempts"]) == ("founder", ["a"], [])
    assert [(call.shown, call.rationales) for call in ran.llm.of("step")] == [((), ()), (("a",), ()), (("a",), (WHO,))]
    assert {call.sampling for call in ran.llm.asked} == {Sampling(max_tokens=100, stop=("\n",), logprobs=True)}


@pytest.mark.parametrize(
    ("mask_below", "query"), [(0.4, "Al Cy"), (0.3, "Al Bo Cy"), (0.7, "Cy"), (0.0, "Al Bo Cy"), (1.0, "Cy")]
)
async def test_flare_leaves_very_unlikely_words_out_of_the_query(mask_below: float, query: str) -> None:
    llm = Reasoner(step=through(doubted("Al Bo Cy", Al=0.6, Bo=0.35), LAST))
    assert (await run(flare, llm, mask_below=mask_below)).retriever.asked == [query]


async def test_flare_leaves_out_unlikely_words_of_the_question_and_of_the_sentence_before() -> None:
    drafts: list[str | Completion] = [WHO, doubted("Ada, the founder, left Kirkby.", Ada=0.1, founder=0.1), LAST]
    ran = await run(flare, Reasoner(step=through(*drafts)))
    assert "founder" in QUESTION
    assert ran.retriever.asked == ["left Kirkby"]


async def test_flare_keeps_its_draft_if_nothing_is_found() -> None:
    llm = Reasoner(step=through(doubted(WHO, Ada=0.5), LAST))
    ran = await run(flare, llm, search=lambda query: [])
    assert ran.path == [
        "prepare",
        "draft_step",
        "mask_unlikely_words",
        "search_snippets",
        "append_rationale",
        *COT,
        "answer_with_uncertainty",
    ]
    assert (ran.rationales, ran.evidence) == ([WHO, LAST], [])
    assert len(ran.llm.of("step")) == 2, "the draft stands"
    assert (ran.steps[0]["query"], ran.steps[0]["chunk_ids"]) == ("founder Ada", [])
    assert ran.state["warnings"] == ["Nothing new was found for 'founder Ada'; the step is written without it."]


async def test_flare_retrieves_for_an_empty_step() -> None:
    ran = await run(flare, Reasoner(step=lambda shown, rationales: LAST if shown else ""))
    assert ran.path == ["prepare", "draft_step", *FLARE, "answer_with_uncertainty"]
    assert ran.retriever.asked == ["river flows past birthplace founder"]
    assert ran.end == ("the Lune", "answered")


async def test_flare_without_a_step_and_without_a_finding() -> None:
    ran = await run(flare, Reasoner(step=through(""), end=lambda rationales: "Ada"), search=lambda query: [])
    assert ran.path == [
        "prepare",
        "draft_step",
        "mask_unlikely_words",
        "search_snippets",
        "append_rationale",
        "answer_with_uncertainty",
    ]
    assert ran.end == ("Ada", "step_empty")


async def test_flare_may_search_for_the_same_again() -> None:
    def step(shown: Sequence[str], rationales: Sequence[str]) -> str | Completion:
        if len(rationales) == 2:
            return LAST
        # with what was kept for it the step is written anew
        drafts = [doubted("The founder is Bo.", Bo=0.1), doubted("Its founder is Bo.", Bo=0.1)]
        return [WHO, WHERE][len(rationales)] if len(shown) > len(rationales) else drafts[len(rationales)]

    llm = Reasoner(step=step)
    ran = await run(flare, llm)
    assert ran.path == ["prepare", *["draft_step", *FLARE] * 2, *COT, "answer_with_uncertainty"]
    assert ran.retriever.asked == ["founder", "founder"]
    assert ran.evidence == ["a", "b"]


@pytest.mark.parametrize(
    ("k", "warnings"),
    [
        (3, []),
        (4, ["Only 3 of the 4 snippets that the first search found are kept: max_docs allows no more."]),
    ],
)
async def test_flare_says_if_it_may_not_keep_what_a_search_finds(k: int, warnings: list[str]) -> None:
    ran = await run(flare, Reasoner(step=lambda shown, rationales: LAST if shown else ""), k=k)
    assert ran.evidence == ["a", "b", "c"]
    assert ran.state["warnings"] == warnings


@pytest.mark.parametrize("max_docs", [0, 1])
async def test_flare_goes_on_without_documents_when_they_are_spent(max_docs: int) -> None:
    llm = Reasoner(step=through(doubted(WHO, Ada=0.1), doubted(WHERE, Kirkby=0.1), LAST))
    ran = await run(flare, llm, max_docs=max_docs)
    assert ran.path == [
        "prepare",
        "draft_step",
        *(FLARE if max_docs else ["append_rationale"]),
        *COT * 2,
        "answer_with_uncertainty",
    ]
    assert ran.evidence == ["a"][:max_docs]


async def test_flare_does_not_retrieve_if_the_tokens_do_not_spell_the_text() -> None:
    llm = Reasoner(step=through(Completion(WHO, "stop", (Token("???", math.log(0.1)),)), LAST))
    assert (await run(flare, llm)).retriever.asked == []


async def test_flares_uncertainty_is_that_of_its_least_likely_word() -> None:
    llm = Reasoner(step=through(doubted(WHO, Ada=0.25), doubted(WHERE, Kirkby=0.5), LAST))
    ran = await run(flare, llm, likely_from=0.75)
    expected = {"signal": "1 − lowest probability of a word", "value": pytest.approx(0.75), "threshold": 0.25}
    assert ran.state["uncertainty"] == expected, "of the draft, though it was written anew"
    unknown = await run(flare, Reasoner(step=through(Completion(LAST, "stop", (Token("???", -1.0),)))))
    assert unknown.state["uncertainty"]["value"] is None


@pytest.mark.parametrize("module", [cot, ircot, iter_retgen])
async def test_the_others_measure_no_uncertainty(module: ModuleType) -> None:
    assert (await run(module, Reasoner())).state["uncertainty"] is None


# --- ITER-RETGEN ---

ITERATION = ["generation_augmented_retrieval", "retrieval_augmented_generation"]
FIRST, SECOND = f"{WHO} So the final answer is: Ada.", f"{WHERE} So the final answer is: Kirkby."


async def test_iter_retgen_searches_with_its_last_reasoning() -> None:
    results: Mapping[str, list[str]] = {QUESTION: ["a", "b", "c"], f"{FIRST} {QUESTION}": ["c", "d", "e"]}
    llm = Reasoner(whole=lambda shown: FIRST if "a" in shown else SECOND)
    ran = await run(iter_retgen, llm, search=lambda query: results[query], k=2)
    assert ran.path == ["prepare", *ITERATION * 2]
    assert ran.retriever.asked == [QUESTION, f"{FIRST} {QUESTION}"]
    assert ran.state["iterations"] == [
        {"query": QUESTION, "chunk_ids": ["a", "b"], "reasoning": FIRST, "answer": "Ada"},
        {"query": f"{FIRST} {QUESTION}", "chunk_ids": ["c", "d"], "reasoning": SECOND, "answer": "Kirkby"},
    ]
    assert (ran.state["answer"], ran.evidence, ran.state["warnings"]) == ("Kirkby", ["c", "d"], [])
    assert [(call.kind, call.question, call.shown) for call in ran.llm.asked] == [
        ("whole", QUESTION, ("a", "b")),
        ("whole", QUESTION, ("c", "d")),
    ]
    assert {call.sampling for call in ran.llm.asked} == {Sampling(max_tokens=200, stop=("\n",))}


@pytest.mark.parametrize("iterations", [1, 3])
async def test_iter_retgens_iterations(iterations: int) -> None:
    ran = await run(iter_retgen, Reasoner(), max_iterations=iterations)
    assert ran.path == ["prepare", *ITERATION * iterations]
    assert len(ran.state["iterations"]) == iterations
    assert len(ran.evidence) == 4


async def test_the_third_iteration_searches_with_the_second_reasoning_only() -> None:
    replies = iter([FIRST, SECOND, FIRST])
    ran = await run(iter_retgen, Reasoner(whole=lambda shown: next(replies)), max_iterations=3)
    assert ran.retriever.asked == [QUESTION, f"{FIRST} {QUESTION}", f"{SECOND} {QUESTION}"]


async def test_an_iteration_without_an_answer_keeps_the_previous_answer() -> None:
    replies = iter([FIRST, WHERE])
    ran = await run(iter_retgen, Reasoner(whole=lambda shown: next(replies)))
    assert [iteration["answer"] for iteration in ran.state["iterations"]] == ["Ada", "Ada"]
    assert (ran.state["answer"], ran.state["warnings"], ran.llm.of("end")) == ("Ada", [], [])


async def test_a_first_iteration_without_an_answer_gives_no_warning() -> None:
    replies = iter([WHO, SECOND])
    ran = await run(iter_retgen, Reasoner(whole=lambda shown: next(replies)))
    assert [iteration["answer"] for iteration in ran.state["iterations"]] == ["", "Kirkby"]
    assert ran.retriever.asked[1] == f"{WHO} {QUESTION}"
    assert (ran.state["answer"], ran.state["warnings"], ran.llm.of("end")) == ("Kirkby", [], [])


@pytest.mark.parametrize("end", ["Lancaster", " "])
async def test_if_no_iteration_gives_an_answer_it_is_asked_for(end: str) -> None:
    replies = iter([WHO, WHERE])
    ran = await run(iter_retgen, Reasoner(whole=lambda shown: next(replies), end=lambda rationales: end))
    assert ran.state["answer"] == ran.state["iterations"][-1]["answer"] == end.strip()
    [asked] = ran.llm.of("end")
    assert (asked.rationales, asked.sampling) == ((WHERE,), Sampling(max_tokens=64, stop=("\n",)))
    assert ran.state["warnings"] == ([] if end.strip() else [NO_ANSWER])


async def test_iterations_that_are_all_empty() -> None:
    ran = await run(iter_retgen, Reasoner(whole=lambda shown: "", end=lambda rationales: "Ada"))
    assert ran.retriever.asked == [QUESTION, QUESTION]
    assert [call.rationales for call in ran.llm.of("end")] == [()], "no empty turn is sent"
    assert ran.state["answer"] == "Ada"


async def test_an_iteration_that_finds_nothing() -> None:
    ran = await run(iter_retgen, Reasoner(), search=lambda query: [] if query == QUESTION else ["a"])
    assert [iteration["chunk_ids"] for iteration in ran.state["iterations"]] == [[], ["a"]]
    assert [call.shown for call in ran.llm.of("whole")] == [(), ("a",)]
    assert ran.state["warnings"] == [f"Nothing was found for '{QUESTION}'; the answer is made without evidence."]


# --- what goes wrong, in each of them ---


@pytest.mark.parametrize("module", EVERY)
async def test_plain_models_will_do_but_for_flare(module: ModuleType) -> None:
    llm = Reasoner(capabilities=frozenset())
    if module is not flare:
        assert (await run(module, llm)).state["answer"] == "Ada"
        assert not any(call.sampling.logprobs for call in llm.asked if call.sampling)
        return
    with pytest.raises(CapabilityMissing, match=r"its own tokens.*'scripted' does not give: set llm"):
        await run(module, llm)
    assert llm.calls == []
