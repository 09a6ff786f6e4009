"""What a shell is offered when Tab is pressed, by the protocol that its completion script speaks."""

from __future__ import annotations

import pytest
from dubito.cli import app
from dubito.graphs.registry import graph_names
from typer.testing import CliRunner


def offered(line: str) -> list[str]:
    """What bash is offered for the last word of a line, which may be empty."""
    words = line.split(" ")
    environment = {"_DUBITO_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    done = CliRunner().invoke(app, [], prog_name="dubito", env=environment)
    assert done.exit_code == 0
    return done.output.split()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("dubito cal", ["calibrate"]),
        ("dubito ask --gr", ["--graph"]),
        ("dubito ask --graph den", ["dense", "dense_rag"]),
        ("dubito draw it", ["iter_retgen"]),
        ("dubito eval sea", ["seakr"]),
        ("dubito ask --set sampl", ["sampling=", "sampling=uniform", "sampling=binary"]),
        ("dubito ask --graph seakr --set max_st", ["max_steps=", "max_step_tokens="]),
        ("dubito ask --graph df_rag --set thin", ["thinking=", "thinking=true", "thinking=false"]),
        (
            "dubito ask --graph seakr --set judge",
            ["judge=", "judge=auto", "judge=embedded", "judge=llm", "judge=llm:calibrated"],
        ),
        ("dubito ask --graph nope --set k", []),
        ("dubito calibrate retrieval_threshold --set max_st", ["max_steps=", "max_step_tokens="]),
        ("dubito seper --set sampl", ["samples="]),
        ("dubito corpus mu", ["musique"]),
    ],
)
def test_what_is_offered(line: str, words: list[str]) -> None:
    assert offered(line) == words


def test_every_graph_is_offered() -> None:
    assert sorted(offered("dubito ask --graph ")) == sorted(graph_names())


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_script_for_each_shell(shell: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # else it is the shell that this was started from
    monkeypatch.setenv("_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION", "1")
    shown = CliRunner().invoke(app, ["--show-completion", shell], prog_name="dubito")
    assert "_DUBITO_COMPLETE" in shown.output
