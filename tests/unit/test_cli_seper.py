"""`dubito seper` and `dubito ask --graph seper`: the measurements, the table, the faults."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from dubito.cli import app
from dubito.cli.seper import WIDTH, delta_bar
from dubito.errors import ContextOverflow, UserFault
from dubito.evals.seper_steps import score_steps
from dubito.models.interfaces import Completion, Token
from dubito.resources import resources as resources_module
from dubito.resources.resources import Resources
from dubito.state.seper import SePerContext
from dubito.tests.recorded import RUNS, record
from dubito.tests.scripted import QUERY, QUESTION, VECTORS, Believer, ScriptedJudge, ScriptedRetriever
from dubito.traces.recording import read
from typer.testing import CliRunner


def believes(question: str, shown: Sequence[str]) -> list[str]:
    """Ten responses; one is right, and one more for each document whose text starts with b or f."""
    right = 1 + sum(text[0] in "bf" for text in shown)
    return ["Ada"] * right + ["Bob"] * (10 - right)


@pytest.fixture
def llm(monkeypatch: pytest.MonkeyPatch) -> Believer:
    model = Believer(believes=believes, mean_logprob=lambda user, text: -1.0 - text.count("1"))
    opened = Resources(llm=model, judge=ScriptedJudge(), retriever=ScriptedRetriever(QUERY, VECTORS[:2]))
    monkeypatch.setattr(resources_module, "_shared", opened)
    return model


@pytest.fixture
def sunar_trace(tmp_path: Path) -> Path:
    record(RUNS["sunar"](), tmp_path / "sunar.jsonl")
    return tmp_path / "sunar.jsonl"


def dubito(*arguments: Any) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, [str(one) for one in arguments], catch_exceptions=False)
    return result.exit_code, result.stdout, result.stderr


# the neutral rows of the scripted judge hold P(entailment) = 0.4
def belief(right: int) -> float:
    return round((right + 0.4 * (10 - right)) / 10, 9)


# --- the steps ---


async def test_every_step_has_a_score(sunar_trace: Path) -> None:
    model = Believer(believes=believes, mean_logprob=lambda user, text: -1.0 - text.count("1"))
    found = await score_steps(
        read(sunar_trace), ["Ada"], SePerContext(), Resources(llm=model, judge=ScriptedJudge()),
        chunks=True, compress=0.5,
    )  # fmt: skip
    told = [
        (
            one.step,
            one.label,
            one.kind,
            " ".join(chunk["id"] for chunk in one.evidence),
            one.result and round(one.result.seper, 9),
        )
        for one in found
    ]
    who, where = "Who is the founder?", "Where was Ada born?"
    assert told == [
        (1, who, "known", "n1 f1", belief(2)),
        (1, who, "compressed", "n1", belief(1)),
        (1, who, "first_stage", "f1 f2", belief(3)),
        (1, who, "reranked", "n1 f1", belief(2)),
        (1, "Tn1", "chunk", "n1", belief(1)),
        (1, "Tf1", "chunk", "f1", belief(2)),
        (2, where, "known", "n1 f1 b1 b2", belief(4)),
        (2, where, "compressed", "n1 f1", belief(2)),
        (2, where, "first_stage", "b1 b2", belief(3)),
        (2, where, "reranked", "b1 b2", belief(3)),
        (2, "Tb1", "chunk", "b1", belief(2)),
        (2, "Tb2", "chunk", "b2", belief(2)),
        (3, "meta evidence", "known", "f1 n1 b1 b2", belief(4)),
        (3, "meta evidence", "compressed", "f1 n1", belief(2)),
    ]
    assert {round(one.result.seper_without, 9) for one in found if one.result} == {belief(1)}
    assert found[0].result is not None
    assert found[0].result.delta == pytest.approx(0.06)
    assert found[6].words == 4
    # equal prompts are sampled once; f1 n1 is another prompt than n1 f1
    assert len(model.sampled) == len(set(model.sampled)) == 11


async def test_evidence_can_be_compressed_by_the_question(sunar_trace: Path) -> None:
    model = Believer(believes=believes, mean_logprob=lambda user, text: -1.0 - user.count("n1"))
    opened = Resources(llm=model, judge=ScriptedJudge())
    recording = read(sunar_trace)
    found = await score_steps(recording, ["Ada"], SePerContext(), opened, compress=1.0, compression="question_aware")
    known = [[chunk["id"] for chunk in one.evidence] for one in found if one.kind == "known"]
    shorter = [[chunk["id"] for chunk in one.evidence] for one in found if one.kind == "compressed"]
    assert shorter == [sorted(ids, key=lambda name: name == "n1") for ids in known], (
        "the question is least likely after n1"
    )
    prompts = [messages[-1]["content"] for verb, messages in model.calls if verb == "score"]
    assert any(recording.question in prompt for prompt in prompts)


async def test_evidence_that_does_not_fit_has_no_result(sunar_trace: Path) -> None:
    class Narrow(Believer):
        async def complete(self, messages: Any, sampling: Any) -> Any:
            if "b2" in messages[1]["content"]:
                raise ContextOverflow("The prompt has 9000 tokens and the window is 2048: use fewer chunks.")
            return await super().complete(messages, sampling)

    opened = Resources(llm=Narrow(believes=believes), judge=ScriptedJudge())
    found = await score_steps(read(sunar_trace), ["Ada"], SePerContext(), opened)
    fits = [one.result is not None for one in found]
    assert fits == [True, True, True, False, False, False, False]


async def test_a_run_that_looked_nothing_up_is_refused(sunar_trace: Path) -> None:
    recording = read(sunar_trace)
    recording.steps.clear()
    with pytest.raises(UserFault, match="looked nothing up"):
        await score_steps(recording, ["Ada"], SePerContext(), Resources(llm=Believer()))


# --- the command ---


def test_the_table(llm: Believer, sunar_trace: Path) -> None:
    code, said, wrong = dubito("seper", sunar_trace, "--answer", "Ada", "--chunks")
    assert (code, wrong) == (0, "")
    lines = said.splitlines()
    assert lines[0] == f"sunar: {QUESTION}"
    assert "chat model embedded, judge embedded, 10 samples" in lines[1]
    assert f"Without evidence the belief in the right answer is {belief(1):.3f}." in said
    (first,) = [line for line in lines if line.startswith("1  Who")]
    assert "all so far" in first
    assert f"{belief(2):.3f}  {belief(2) - belief(1):+.3f}" in first
    assert "│" in first
    assert "as searched" in said
    assert "as re-ranked" in said
    assert "meta evidence" in said
    assert lines[-1].startswith(f"{len(llm.sampled)} model calls, ")
    assert "compressed" not in said


def test_one_json_object_and_nothing_else(llm: Believer, sunar_trace: Path) -> None:
    code, said, _ = dubito(
        "seper", sunar_trace, "--answer", "Ada", "--answer", "Eve", "--compress", "0.5", "--set", "samples=20",
        "--set", "rule=hard", "--json",
    )  # fmt: skip
    assert code == 0
    found = json.loads(said)
    assert (found["graph"], found["question"], found["answers"]) == ("sunar", QUESTION, ["Ada", "Eve"])
    assert found["seper_without"] == pytest.approx(0.1)
    assert [one["evidence"] for one in found["steps"][:4]] == ["known", "compressed", "first_stage", "reranked"]
    assert found["steps"][0] == {
        "step": 1,
        "label": "Who is the founder?",
        "evidence": "known",
        "chunk_ids": ["n1", "f1"],
        "words": 2,
        "seper": pytest.approx(0.2),
        "delta": pytest.approx(0.1),
    }
    assert {one.n for one in llm.samplings} == {20}
    assert found["usage"]["calls"] == len(llm.calls)
    assert (found["context"]["samples"], found["context"]["rule"]) == (20, "hard")


def test_the_model_is_the_runs_own_unless_another_is_named(llm: Believer, sunar_trace: Path) -> None:
    text = sunar_trace.read_text().replace('"llm": "embedded"', '"llm": "hf:my-model"')
    sunar_trace.write_text(text)

    def model(*more: str) -> str:
        _, said, _ = dubito("seper", sunar_trace, "--answer", "Ada", "--json", *more)
        return str(json.loads(said)["context"]["llm"])

    assert model() == "hf:my-model"
    assert model("--llm", "embedded") == "embedded"
    assert model("--set", "llm=gguf:x.gguf") == "gguf:x.gguf"
    assert model("--preset", "paper").endswith("Llama-2-7b-chat-hf")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "There is no right answer"),
        (["--answer", " "], "Right answer 1 is no text"),
        (["--answer", "Ada", "--compress", "0"], "share of sentences or tokens to keep"),
        (["--answer", "Ada", "--compression", "question_aware"], "give --compress SHARE too"),
        (["--answer", "Ada", "--set", "samples=0"], "samples is '0'"),
        (["--answer", "Ada", "--set", "sample=3"], "seper has no setting 'sample'"),
    ],
)
def test_bad_options_are_refused(llm: Believer, sunar_trace: Path, arguments: list[str], message: str) -> None:
    code, said, wrong = dubito("seper", sunar_trace, *arguments)
    assert (code, said) == (2, "")
    assert message in wrong
    assert wrong.count("\n") == 1
    assert llm.calls == []


def test_a_file_that_is_not_a_trace_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text("hello\n")
    assert dubito("seper", tmp_path / "x.jsonl", "--answer", "Ada")[0] == 2
    assert "There is no trace" in dubito("seper", tmp_path / "none", "--answer", "Ada")[2]


@pytest.mark.parametrize(
    ("delta", "left", "right"),
    [(0.0, 0, 0), (1.0, 0, WIDTH // 2), (-1.0, WIDTH // 2, 0), (0.5, 0, WIDTH // 4), (-0.01, 0, 0)],
)
def test_bars_go_both_ways(delta: float, left: int, right: int) -> None:
    before, after = delta_bar(delta).split("│")
    assert (before.count("█"), after.count("█")) == (left, right)
    assert len(before) == len(after) == WIDTH // 2
    assert before.endswith("█" * left)
    assert after.startswith("█" * right)


def test_a_warning_is_given_once(llm: Believer, sunar_trace: Path) -> None:
    llm.believes = lambda question, shown: [Completion("A", "length", (Token("A", 0.0),))] * (len(shown) + 1) + ["B"]
    _, said, _ = dubito("seper", sunar_trace, "--answer", "Ada")
    assert said.count("Warning: ") == 2, "with the chunks, and without"


# --- the graph at the command line ---


def test_ask_measures_a_retrieval(llm: Believer) -> None:
    code, said, _ = dubito("ask", "Who?", "--graph", "seper", "--answer", "Ada", "-k", "2", "--json")
    assert code == 0
    found = json.loads(said)
    assert (found["gold_answers"], found["seper"], found["delta"]) == (["Ada"], pytest.approx(belief(1)), 0.0)
    assert len(found["with_context"]["responses"]) == 10


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--graph", "seper"], "--answer"),
        (["--graph", "vanilla_rag", "--answer", "Ada"], "vanilla_rag takes no right answers"),
    ],
)
def test_ask_says_which_graphs_take_right_answers(llm: Believer, arguments: list[str], message: str) -> None:
    code, _, wrong = dubito("ask", "Who?", *arguments)
    assert code == 2
    assert message in wrong
    assert llm.calls == []
