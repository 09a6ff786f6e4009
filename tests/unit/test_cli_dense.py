"""How `dense` and `dense_rag` look on the terminal and in a pipe."""

import io
import json
import re
from typing import Any, get_args

import numpy as np
import pytest
from dubito.cli import app
from dubito.cli.link_map import LinkMap, Row
from dubito.cli.steps import Step, Task
from dubito.cli.view import RENDERERS, block
from dubito.cli.view_dense_rag import STOPS
from dubito.cli.watch import Watch, follow
from dubito.errors import UserFault
from dubito.graphs import dense, dense_rag
from dubito.models import resources
from dubito.models.resources import Resources
from dubito.state.context import BaseContext
from dubito.state.dense import DenseContext
from dubito.state.dense_rag import DenseRagContext, Stop
from dubito.tests.scripted import ScriptedChat, ScriptedRetriever
from dubito.traces.run import NodeEnd, NodeStart, Progress, Run, State
from rich.console import Console
from rich.text import Text
from typer.testing import CliRunner

QUESTION = "Which river flows past the birthplace of the founder?"
HOSTILE = "[/bold] [red]x[/red] :smile: \x1b[31mred\x1b[0m \x1b]0;title\x07 \x9b2J \x07 \u202eback"
SEEN = "[/bold] [red]x[/red] :smile: red"


class WordJudge:
    """An answer entails every answer whose words it all has."""

    name = "words"

    async def judge(self, question: str, pairs):
        rows = [[0.8, 0.1, 0.1] if set(b.split()) <= set(a.split()) else [0.1, 0.8, 0.1] for a, b in pairs]
        return np.array(rows, dtype=np.float64).reshape(len(pairs), 3)


class FlatEncoder:
    """Every text is the first axis."""

    name = "flat"

    async def dimension(self) -> int:
        return 2

    async def max_tokens(self) -> int | None:
        return None

    async def token_counter(self):
        return lambda text: len(text.split())

    async def embed(self, texts, *, query=False):
        return np.array([[1.0, 0.0]] * len(texts), dtype=np.float32)


UNPROBED = "(unprobed)"
"""In place of an answer: the chunk cannot be rephrased."""


def chat(answers: dict[str, str], left_out: str = "the Lune", suffices: str = "yes", **more: Any) -> ScriptedChat:
    """`answers` by the text that is reworded in the context; to contexts of less than all chunks `left_out`."""

    def reply(system: str, user: str) -> str:
        if QUESTION not in user:  # the rephrasing, which never sees the question
            found = re.search(r"chunk (\w+)", user)
            return f"in other words {found[1]}" if found and answers.get(found[0]) != UNPROBED else ""
        reworded = re.search(r"in other words (\w+)", user)
        if reworded:
            return answers.get(f"chunk {reworded[1]}", "the Lune")
        return left_out if "chunk 2" not in user else "the Lune"

    return ScriptedChat(reply=reply, pick=lambda user, options: suffices, **more)


class SameChunks(Resources):
    """Cuts nothing anew: whatever chunker is asked for, its chunks are those of the retriever that was given."""

    async def retriever(self, corpus: str, chunker: str, encoder: str, on_error: Any = "refuse") -> Any:
        return self._retriever


def opened(llm: ScriptedChat, count: int = 6, texts: tuple[str, ...] = (), slope: float = 0.1) -> Resources:
    vectors = [[1.0, slope * i] for i in range(count)]
    texts = texts or tuple(f"chunk {i}" for i in range(count))
    retriever = ScriptedRetriever([1.0, 0.0], vectors, texts)
    return SameChunks(llm=llm, encoder=FlatEncoder(), retriever=retriever, judge=WordJudge())


UNEVEN = {"chunk 1": "the River Lune", "chunk 2": "the Wyre"}
"""r_0 and r_1 the Lune; r_2 entails them one way, r_3 and they have nothing to do with each other."""

REFINED = {"chunk 0": "the River Lune", "chunk 2": "the Wyre"}
"""The same, and as the answer stays without chunk 0 and changes without chunk 2, the one is dropped, the other kept."""


@pytest.fixture
def use(monkeypatch):
    for name in ("DUBITO_LLM", "DUBITO_ENCODER", "DUBITO_CORPUS", "DUBITO_DEBUG", "FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "80")
    return lambda given: monkeypatch.setattr(resources, "_shared", given)


def dubito(*arguments: str):
    return CliRunner().invoke(app, list(arguments))


def terminal(width: int = 80, color: Any = None, **more: Any) -> Console:
    return Console(
        file=io.StringIO(),
        width=width,
        height=50,
        force_terminal=True,
        force_interactive=False,
        color_system=color,
        markup=False,
        highlight=False,
        emoji=False,
        **more,
    )


def screen_of(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def lines_of(console: Console) -> list[str]:
    return [line.rstrip() for line in screen_of(console).splitlines()]


def followed(given: Resources, console: Console, graph: Any = dense_rag, **settings: Any) -> Run:
    context = DenseRagContext(**settings) if graph is dense_rag else DenseContext(**settings)
    name = "dense_rag" if graph is dense_rag else "dense"
    run = Run(graph.build(given).compile(name=name), QUESTION, context)
    follow(run, None, console)
    return run


def below(lines: list[str], name: str) -> list[str]:
    """The lines below a step's first line, up to the next step."""
    start = next(i for i, line in enumerate(lines) if re.match(rf"{re.escape(name)}(  |$)", line)) + 1
    end = next(i for i in range(start, len(lines)) if not lines[i].startswith(" " * 12))
    return [line[12:] for line in lines[start:end]]


# dense


def test_a_pipe_gets_every_step_of_dense_and_the_answer_last(use):
    use(opened(chat(UNEVEN)))
    done = dubito("ask", QUESTION, "--graph", "dense", "-k", "3")
    assert (done.exit_code, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert " ".join(lines[:2]).startswith(
        "dense: corpus sample, chat model embedded, encoder embedded, judge embedded, k = 3"
    )
    assert re.search(r"^retrieve    3 chunks \(tokens:128/16\), similarity 0\.98 to 1\.00", done.stdout, re.MULTILINE)
    assert re.search(r"^rephrase    3 of 3 chunks rephrased .*3 model calls$", done.stdout, re.MULTILINE)
    assert below(lines, "repeat") == ["the Lune"]
    assert re.search(r"^answer      3 wordings of the answer from 4 contexts", done.stdout, re.MULTILINE)
    assert below(lines, "answer") == [
        "r_0  the context as it is     the Lune",
        "r_1  T0                    =  the Lune",
        "r_2  T1                    ≠  the River Lune",
        "r_3  T2                    ≠  the Wyre",
    ]
    assert re.search(
        r"^entail      of 6 pairs of answers 1 entail each other, 2 one way only", done.stdout, re.MULTILINE
    )
    # degrees 2.5, 2.5, 2 and 1 of 4: (2 ln(4/2.5) + ln 2 + ln 4) / 4
    assert re.search(r"^measure     DSE 0\.75 \(uncertain: above 0\.2\)", done.stdout, re.MULTILINE)
    assert below(lines, "measure") == [
        "     links     share of DSE",
        "r_0  ████▒▒··                 the context as it is",
        "r_1  ████▒▒··  0.12 ━━━       T0",
        "r_2  ▒▒▒▒██··  0.17 ━━━━      T1",
        "r_3  ······██  0.35 ━━━━━━━━  T2",
        "██ entail each other   ▒▒ one way only   ·· neither",
    ]
    assert "contexts" not in [line.split()[0] for line in lines if line.strip()]
    assert lines.index("DSE 0.75 (uncertain: above 0.2)") < lines.index("From, with similarity to the question:")
    assert lines[-1] == "the Lune"
    assert "\x1b" not in done.stdout
    assert max(map(len, lines)) <= 80


def test_a_terminal_gets_the_verdict_in_the_panel():
    console = terminal()
    followed(opened(chat({})), console, dense, k=3)
    assert re.search(r"│ DSE 0\.00 \(certain: at most 0\.2\) +│", screen_of(console))


def test_what_could_not_be_rephrased_is_said():
    console = terminal()
    followed(opened(chat({f"chunk {i}": UNPROBED for i in range(2)})), console, dense, k=2)
    shown = screen_of(console)
    assert re.search(r"^rephrase    0 of 2 chunks rephrased", shown, re.MULTILINE)
    assert [line.partition(":")[0] for line in below(lines_of(console), "rephrase")[:1]] == [
        "Chunk 'c0' was not probed"
    ]
    assert "DSE 0.00 (uncertain: no chunk could be rephrased)" in shown
    assert "r_1  ██████  0.00          not probed: T0" in [line[12:] for line in lines_of(console)]


def test_answers_show_up_as_they_arrive():
    console = terminal()
    watch = Watch(Run(dense.graph, QUESTION, DenseContext()), console)
    evidence = [{"id": f"c{i}", "doc_id": "d", "title": ["Salt", ""][i], "text": "t"} for i in range(2)]
    watch.on(State(namespace=(), at=0.0, values={"evidence": evidence}))
    for key in ("(original)", "c0", "c1"):
        watch.on(NodeStart(namespace=(), at=0.0, node="answer", task=key, input={"key": key}))

    def rows() -> list[str]:
        before = len(lines_of(console))
        console.print(watch._under_way())
        return [re.sub(r" {2,}", "|", line.strip()) for line in lines_of(console)[before + 1 :]]

    def arrives(key: str, said: str) -> None:
        update = {"replies": {key: said}}
        watch.on(NodeEnd(namespace=(), at=1.0, node="answer", task=key, seconds=1.0, update=update))

    assert rows() == ["r_0|the context as it is|...", "r_1|Salt|...", "r_2|c1|..."]
    arrives("c1", "a Lune!")
    assert rows()[2] == "r_2|c1|a Lune!", "with nothing to compare it to it has no mark"
    arrives("(original)", "The Lune")
    assert rows() == ["r_0|the context as it is|The Lune", "r_1|Salt|...", "r_2|c1|=|a Lune!"]
    assert "2 of 3 done" in screen_of(console)
    arrives("c0", "  ")
    assert [re.sub(r" {2,}", "|", line.strip()) for line in lines_of(console)[-3:]] == [
        "r_0|the context as it is|The Lune",
        "r_1|Salt|≠|(no answer)",
        "r_2|c1|=|a Lune!",
    ]


def test_of_many_answers_those_like_r_0_are_counted():
    console = terminal()
    followed(opened(chat({"chunk 29": "the Wyre"}), count=40), console, dense, k=40)
    shown = below(lines_of(console), "answer")
    assert len(shown) == 22
    assert shown[0].split() == ["r_0", "the", "context", "as", "it", "is", "the", "Lune"]
    assert shown[-2].split() == ["r_30", "T29", "≠", "the", "Wyre"]
    assert shown[-1].split() == ["and", "20", "more"]


def test_among_many_that_differ_r_0_stays():
    console = terminal()
    followed(opened(chat({f"chunk {i}": "the Wyre" for i in range(30)}), count=30), console, dense, k=30)
    shown = [line.split() for line in below(lines_of(console), "answer")]
    assert [line[0] for line in shown] == [*(f"r_{i}" for i in range(21)), "and"]


# the map


def map_of(width: int, n: int, color: Any = None, encoding: str = "utf-8") -> list[str]:
    """n answers, of which the second is linked to the first in one direction, the third to none."""
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding, newline="")
    console = terminal(width, color)
    console.file = file
    levels = [[2] * n for _ in range(n)]
    for i in range(n):
        levels[0][1] = levels[1][0] = 1
        levels[2][i] = levels[i][2] = 2 * (i == 2)
    rows = [Row(f"r_{i}", levels[i], None if i == 0 else i / n, f"{i / n:.2f}", Text("a title" * 5)) for i in range(n)]
    for row in rows:
        row.words.no_wrap, row.words.overflow = True, "ellipsis"
    console.print(LinkMap(rows))
    file.flush()
    assert isinstance(file.buffer, io.BytesIO)
    return [line.rstrip() for line in file.buffer.getvalue().decode(encoding).splitlines()]


@pytest.mark.parametrize(
    ("width", "n", "second"),
    [
        (68, 6, "▒▒██··██████"),
        (68, 16, "▒▒██··" + "██" * 13),
        (68, 17, "▒█·" + "█" * 14),
        (68, 21, "▒█·" + "█" * 18),
        (30, 6, "▒█·███"),
    ],
)
def test_the_map_is_as_wide_as_there_is_room(width, n, second):
    lines = map_of(width, n)
    assert max(map(len, lines)) <= width
    assert [line.split()[0] for line in lines[1 : n + 1]] == [f"r_{i}" for i in range(n)]
    assert lines[2].split()[1] == second
    assert lines[n + 1].split()[0] == "█" * (len(second) // n), "below it what the marks mean"


@pytest.mark.parametrize(("width", "n"), [(28, 6), (68, 42), (200, 42)])
def test_where_there_is_no_room_the_largest_shares_are_listed(width, n):
    lines = map_of(width, n)
    assert max(map(len, lines)) <= width
    assert [line.split()[0] for line in lines[1:] if line.startswith("r_")] == [
        f"r_{i}" for i in range(n - 1, max(0, n - 21), -1)
    ]
    assert " ".join(lines).replace("  ", " ").count(f"the largest shares of {n} answers") == 1


def test_a_terminal_that_has_no_blocks_gets_letters_that_differ():
    lines = map_of(68, 3, encoding="ascii")
    assert lines[2].split()[:2] == ["r_1", "++##.."]
    assert lines[3].split()[2:4] == ["0.67", "====="]
    assert lines[-1] == "## entail each other   ++ one way only   .. neither"


def test_the_levels_have_colours_of_their_own():
    second = map_of(68, 3, "standard")[2]
    assert re.findall(r"\x1b\[(\d+)m(▒▒|██|··)", second) == [("33", "▒▒"), ("36", "██"), ("31", "··")]


# dense_rag


def test_the_steps_of_dense_rag_with_a_round_of_refinement(use):
    use(opened(chat(REFINED, left_out="the Ribble", suffices="no"), slope=1))
    done = dubito("ask", QUESTION, "--graph", "dense_rag", "-k", "3", "--set", "max_rounds=1")
    assert (done.exit_code, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    text = re.sub(r"(\S)\n {12,}(?=\S)", r"\1 ", done.stdout)
    assert re.search(r"^retrieve    3 of 6 chunks \(tokens:128/16\), similarity 0\.45 to 1\.00", text, re.MULTILINE)
    assert re.search(r"^dense / measure  DSE 0\.75 \(uncertain: above 0\.2\)", text, re.MULTILINE)
    assert re.search(r"^dense       context 1, 3 chunks: DSE 0\.75 \(uncertain: above 0\.2\)", text, re.MULTILINE)
    assert re.search(r"^rechunk     cut by meaning: 3 of 6 chunks \(semantic:\S+\), similar", text, re.MULTILINE)
    assert re.search(r"^self_evaluate  the model finds the context insufficient", text, re.MULTILINE)
    assert re.search(r"^dense 2 / measure  DSE 0\.75", text, re.MULTILINE)
    assert re.search(r"^keep        best so far: DSE 0\.75", text, re.MULTILINE)
    assert "not accepted: its DSE is not below 0.2 and its context is judged insufficient; it is refined" in text
    assert re.search(r"^ablate      the answer without each of 2 uncertain chunks", text, re.MULTILINE)
    assert below(lines, "ablate") == ["c_1  T0  =  the Lune", "c_3  T2  ≠  the Ribble"]
    assert re.search(r"^classify    1 certain, 1 necessary, 1 unnecessary", text, re.MULTILINE)
    assert [re.split(r"\s{2,}", line.strip()) for line in below(lines, "classify")] == [
        ["chunk", "class", "rephrased", "link", "left out", "link"],
        ["c_1", "T0", "unnecessary", "the River Lune", "0.5", "the Lune", "1"],
        ["c_2", "T1", "certain", "the Lune", "1", "not asked"],
        ["c_3", "T2", "necessary", "the Wyre", "0", "the Ribble", "0"],
    ]
    assert re.search(r"^refine      1 dropped, 1 added: 3 chunks now", text, re.MULTILINE)
    # (1, 2) and (1, 3): 7 / sqrt(5 * 10)
    assert below(lines, "refine") == ["- dropped  c_1 T0", "+ added    T3      cosine 0.99 to  c_3 T2"]
    assert re.search(r"^dense 3 / rephrase  1 of 1 chunk rephrased, 2 known already", text, re.MULTILINE)
    assert "it ends: the rounds of refinement are used up" in text
    assert re.search(r"^conclude    the rounds of refinement are used up: DSE 0\.\d\d", text, re.MULTILINE)
    flat = " ".join(lines)
    assert "3 contexts measured; it ended because the rounds of refinement are used up. The model finds the " in flat
    assert "context insufficient." in flat
    named = [line.split("  ")[0] for line in lines if re.match(r"(dense|prepare)", line)]
    assert [name for name in named if "prepare" in name] == ["prepare"], "a subgraph's prepare takes no line"
    assert lines[-1] == "the Lune"


def test_a_certain_answer_ends_it_at_once():
    console = terminal()
    followed(opened(chat({})), console, k=3)
    shown = screen_of(console)
    assert re.search(r"^conclude    the answer is certain without refinement: DSE 0\.00", shown, re.MULTILINE)
    panel = " ".join(shown.rpartition("Answer")[2].replace("│", "").split())
    assert "1 context measured; it ended because the answer is certain without refinement." in panel
    assert "model finds" not in shown


def test_json_is_the_whole_output(use):
    use(opened(chat(UNEVEN)))
    found = json.loads(dubito("ask", QUESTION, "--graph", "dense_rag", "-k", "3", "--json").stdout)
    assert set(found) == {
        *("answer", "evidence", "usage", "warnings", "dse", "certain", "sufficient", "stopped", "rounds"),
        *("graph", "question", "context", "seconds"),
    }
    assert found["context"]["judge"] == "embedded"
    assert len(found["rounds"][0]["link"]) == 4


def test_text_of_others_reaches_the_terminal_clean():
    def reply(system: str, user: str) -> str:
        if QUESTION not in user:
            return f"other {HOSTILE}"
        return f"{HOSTILE} {'other' in user} {'text 2' in user}"

    class Hostile(ScriptedRetriever):
        def chunk(self, row: int):
            return {**super().chunk(row), "title": HOSTILE if row else "", "id": f"{HOSTILE} {row}"}

    given = SameChunks(
        llm=ScriptedChat(reply=reply, pick=lambda user, options: "no"),
        encoder=FlatEncoder(),
        retriever=Hostile([1.0, 0.0], [[1.0, 0.1 * i] for i in range(8)]),
        judge=WordJudge(),
    )
    console = terminal(150)
    followed(given, console, k=3, max_rounds=1)
    shown = screen_of(console)
    assert set("\x1b\x07\x9b\u202e").isdisjoint(shown)
    for step in ("dense / answer", "dense / measure", "ablate", "classify", "refine"):
        assert "[/bold] [red]x[/re" in " ".join(below(lines_of(console), step)), step


def test_the_trace_tells_the_round_of_every_measuring_step(tmp_path):
    given = opened(chat(REFINED, left_out="the Ribble", suffices="no"))
    context = DenseRagContext(k=3, max_rounds=1)
    run = Run(dense_rag.build(given).compile(name="dense_rag"), QUESTION, context)
    follow(run, tmp_path / "run.jsonl", None)
    found = [json.loads(line) for line in (tmp_path / "run.jsonl").read_text().splitlines()]
    begun = {line["task"]: line["input"] for line in found if line["type"] == "node_start" and line["node"] == "dense"}
    seen: dict[tuple[Any, Any], set[str]] = {}
    for line in found:
        if line.get("namespace"):
            (task,) = [step.removeprefix("dense:") for step in line["namespace"]]
            measured = begun[task]["chunking"], begun[task]["round"]
            seen.setdefault(measured, set()).add(f"{line['type']} {line['node']}")
    assert list(seen) == [(context.chunker, 0), (context.rechunker, 0), (context.rechunker, 1)]
    for steps in seen.values():
        assert {"node_start answer", "llm_call answer", "node_end answer", "node_end measure"} <= steps
    assert [(one["chunking"], one["number"]) for one in run.output["rounds"]] == list(seen)


@pytest.mark.parametrize("width", [40, 80, 120])
def test_nothing_is_wider_than_the_terminal(width):
    console = terminal(width)
    llm = chat({"chunk 3": "the Wyre " * 30, "chunk 5": "the River Lune"}, left_out="the Ribble " * 20, suffices="no")
    followed(opened(llm, count=40), console, k=20, max_rounds=1)
    assert max(map(len, screen_of(console).splitlines())) <= width


def test_a_step_that_fails_is_named():
    def reply(system: str, user: str) -> str:
        if QUESTION in user:
            raise UserFault("The server is gone: start it.")
        return "in other words"

    console = terminal()
    with pytest.raises(UserFault):
        followed(opened(ScriptedChat(reply=reply)), console, k=3)
    found = lines_of(console)
    assert any(re.match(r"dense / (answer|repeat) .*failed", line) for line in found)
    assert found[-1].split()[:2] == ["dense", "failed"]


# single steps


def step_of(node: str, context: BaseContext, state: dict[str, Any], update: dict[str, Any], **more: Any) -> Step:
    """A step of one run that has read `state` and is done."""
    step = Step(node, (), 0.0, state, context, **more)
    start = NodeStart(namespace=(), at=0.0, node=node, task="t", input=state)
    step.tasks["t"] = Task(start, NodeEnd(namespace=(), at=0.0, node=node, task="t", seconds=0.0, update=update))
    return step


def text_of(step: Step, now: float | None = None) -> str:
    console = terminal(200)
    shown = block(step, now)
    if shown is not None:
        console.print(shown)
    return " ".join(screen_of(console).split())


def best(dse: float, *, sufficient: bool | None = True, probed: bool = True) -> dict[str, Any]:
    return {"answer": "a", "chunk_ids": ["c"], "dse": dse, "probed": probed, "sufficient": sufficient}


def measured(dse: float, *, sufficient: bool | None = True, probed: bool = True) -> dict[str, Any]:
    chunk = {"id": "c", "doc_id": "d", "title": "T", "text": "t"}
    said = ["u" if probed else "t"]
    return {"answer": "a", "chunks": [chunk], "rephrasings": said, "dse": dse, "sufficient": sufficient, "best": None}


@pytest.mark.parametrize(
    ("before", "kept", "stopped", "said"),
    [
        (None, best(0.1), "accepted", "keep best so far: DSE 0.10, accepted"),
        (
            best(0.4),
            best(0.3),
            None,
            "keep best so far: DSE 0.30, before it was 0.40 not accepted: its DSE is not below 0.2; it is refined",
        ),
        (
            best(0.1, sufficient=False),
            best(0.1, sufficient=False),
            "all_visited",
            (
                "keep best so far: DSE 0.10 of an earlier context not accepted: its context is judged insufficient; "
                "it ends: every chunk of the corpus has been tried"
            ),
        ),
        (
            None,
            best(0.0, probed=False),
            None,
            "keep best so far: DSE 0.00 not accepted: no chunk was rephrased; it is refined",
        ),
    ],
)
def test_keep_says_in_words_what_it_decided(before, kept, stopped, said):
    state = {**measured(0.5), "best": before}
    assert text_of(step_of("keep", DenseRagContext(), state, {"best": kept, "stopped": stopped})) == said


def test_where_either_reason_is_enough_keep_speaks_of_the_context_just_measured():
    state = {**measured(0.5, sufficient=False), "best": best(0.3, sufficient=False)}
    update = {"best": best(0.3, sufficient=False), "stopped": None}
    shown = text_of(step_of("keep", DenseRagContext(accept="either", threshold=0.4), state, update))
    assert shown.endswith(
        "not accepted: its DSE is not below 0.4 and its context is judged insufficient; it is refined"
    )


@pytest.mark.parametrize(
    ("update", "said"),
    [
        ({"sufficient": True}, "the model finds the context sufficient"),
        ({"sufficient": False}, "the model finds the context insufficient"),
        ({"sufficient": False, "warnings": ["..."]}, "the model said neither yes nor no: the context counts as"),
    ],
)
def test_self_evaluation_in_words(update, said):
    assert said in text_of(step_of("self_evaluate", DenseRagContext(), {}, update))


def test_a_refinement_that_ends_the_run_says_why():
    state: dict[str, Any] = {"chunks": [], "visited": {}}
    update = {"rounds": [{"pruned": [], "refilled": []}], "stopped": "unchanged"}
    assert text_of(step_of("refine", DenseRagContext(), state, update)) == (
        "refine 0 dropped, 0 added; it ends: refining changed nothing more"
    )


def test_every_way_to_end_has_words():
    assert set(STOPS) == set(get_args(Stop))
    for stopped in get_args(Stop):
        assert text_of(step_of("conclude", DenseRagContext(), {}, {"stopped": stopped, "dse": 0.451})) == (
            f"conclude {STOPS[stopped]}: DSE 0.45"
        )


def test_cutting_anew_shows_how_far_it_is():
    context, console = DenseRagContext(), terminal()
    watch = Watch(Run(dense_rag.graph, QUESTION, context), console)
    watch.on(NodeStart(namespace=(), at=0.0, node="rechunk", task="t", input={}))
    watch.on(Progress(namespace=(), at=0.1, node="rechunk", what="comparing sentences", done=30, total=1200))
    console.print(watch._under_way())
    assert "comparing sentences" in screen_of(console)
    assert lines_of(console)[-1].endswith("30 of 1,200")
    watch.on(Progress(namespace=(), at=0.2, node="rechunk", what="indexing notes", done=8, total=90))
    console.print(watch._under_way())
    assert lines_of(console)[-1].endswith("8 of 90 chunks")


@pytest.mark.parametrize("path", [(), ("dense",)])
def test_only_a_subgraphs_prepare_that_did_nothing_is_passed_over(path):
    step = step_of("prepare", DenseContext(), {}, {})
    step.path = path
    assert (block(step) is None) == bool(path)
    assert block(step, now=1.0) is not None
    step.progress = Progress(namespace=(), at=0.0, node="prepare", what="indexing notes", done=5, total=5)
    assert text_of(step).endswith("indexing notes: 5 chunks")


@pytest.mark.parametrize("node", sorted(RENDERERS))
@pytest.mark.parametrize("update", [{}, {"foreign": 1}, dict.fromkeys(("link", "replies", "best", "chunks"))])
def test_another_graphs_node_of_the_same_name_does_no_harm(node, update):
    step = step_of(node, BaseContext(), {}, update)
    shown = text_of(step)
    assert shown.startswith(node) or shown == ""
    step.tasks["t"].end = None
    assert node in text_of(step, now=1.0)


@pytest.mark.parametrize("settings", [BaseContext(), DenseContext(threshold=0.5)])
def test_a_measurement_below_another_technique_has_no_threshold_to_show(settings):
    state = {"evidence": [], "link": [[1.0]]}
    update = {"dse": 0.6, "certain": False, "shares": [], "rephrasings": [], "warnings": ["unsteady"]}
    shown = text_of(step_of("measure", settings, state, update))
    assert shown.startswith("measure DSE 0.60 (uncertain" + (": above 0.5)" if type(settings) is DenseContext else ")"))
    assert shown.endswith("unsteady")
