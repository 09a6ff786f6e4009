"""What is shown of citations: the marks, what each stands behind, and the verdict, in every view."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from dubito.graphs import vanilla_rag
from dubito.presenters.blocks import Cited, Words
from dubito.presenters.presenter import StepSummary, answer_block, citations, outcome_of, summary_of
from dubito.render import trace_page
from dubito.render.trace_tree import tree
from dubito.resources.resources import Resources
from dubito.state.records import Chunk
from dubito.state.vanilla_rag import VanillaRagContext
from dubito.tests.recorded import cells, parsed, recorded
from dubito.tests.scripted import QUESTION, ScriptedChat, ScriptedJudge, ScriptedRetriever
from dubito.traces.recording import Recording
from dubito.traces.run import Run
from rich.console import Console, RenderableType

HOSTILE = '<img src="x" onerror="alert(1)">[1]'


class Paged(ScriptedRetriever):
    def chunk(self, row: int) -> Chunk:
        return {**super().chunk(row), "metadata": {"url": f"https://a.b/{row}", "page": 3}}


def run(said: str, **settings: Any) -> Run:
    judge = ScriptedJudge(lambda one, other: one == "T0\nfirst")
    retriever = Paged([1.0, 0.0], [[1.0, 0.1], [1.0, 0.2]], ["first", HOSTILE])
    opened = Resources(llm=ScriptedChat(reply=lambda system, user: said), judge=judge, retriever=retriever)
    context = VanillaRagContext(k=2, **{"cite": True, **settings})
    return Run(vanilla_rag.build(opened).compile(name="vanilla_rag"), QUESTION, context)


@pytest.fixture
def cited(tmp_path: Path) -> Recording:
    return recorded(run("the [b] Lune [1][2], or [7] the Wyre [9]"), tmp_path)


def drawn(shown: RenderableType) -> str:
    console = Console(width=140, color_system=None)
    with console.capture() as captured:
        console.print(shown)
    return captured.get()


TABLE = [
    ["[1]", "the [b] Lune", "T0, page 3, https://a.b/0", "supported"],
    ["[2]", "the [b] Lune", "T1, page 3, https://a.b/1", "not supported"],
    ["[7]", "or", "", "no such passage"],
    ["[9]", "the Wyre", "", "no such passage"],
]


def test_the_citations_as_blocks(cited: Recording) -> None:
    output = cited.output
    assert output is not None
    assert answer_block(output) == Cited([("the [b] Lune ", None), ("[1]", 1), ("[2]", 2), (", or the Wyre", None)])
    (table,) = citations(output)
    assert cells(table) == TABLE
    assert outcome_of("vanilla_rag", output, VanillaRagContext(cite=True)) == [table]
    (step,) = [step for step in cited.steps if step.node == "cite"]
    assert summary_of(step) == StepSummary(
        "4 citations: 1 supported, 1 not supported, 2 no such passage", [Words(output["warnings"][0], "warn")]
    )


def test_a_trace_shows_them_on_the_terminal(cited: Recording) -> None:
    said = drawn(tree(cited))
    assert "the [b] Lune [1][2], or the Wyre" in said
    for texts in TABLE:
        assert any(all(text in line for text in texts) for line in said.splitlines())


def test_a_mark_on_the_page_leads_to_its_passage(cited: Recording) -> None:
    page = parsed(trace_page.render(cited))
    links = page.one(id="answer").every("a")
    assert [(link.text, link.attributes["href"]) for link in links] == [("[1]", "#passage-1"), ("[2]", "#passage-2")]
    assert "open" in page.one(id="evidence").attributes
    assert page.one(id="passage-2").one("b").text == "T1"
    assert page.table("Citations")[1:] == TABLE
    assert not page.every("img")


def test_an_answer_without_marks_or_without_the_setting(tmp_path: Path) -> None:
    bare = recorded(run("the Lune"), tmp_path).output
    assert bare is not None
    assert citations(bare) == [Words("The answer cites no passage.", "warn")]
    off = recorded(run("the Lune [1]", cite=False), tmp_path)
    assert off.output is not None
    assert (answer_block(off.output), citations(off.output)) == (Cited([("the Lune [1]", None)]), [])
    page = parsed(trace_page.render(off))
    assert not page.one(id="answer").every("a")
    assert "open" not in page.one(id="evidence").attributes
