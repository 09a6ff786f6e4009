"""A command line that answers at once, and a package that is cheap to import."""

import subprocess
import sys
import time

import pytest
from dubito.tests.machine import slowness

HELP = "import sys; sys.argv = ['dubito', '--help']; from dubito.cli import main; main()"
# not pydantic and rich: typer reads options and draws help with them
HEAVY = {
    "faiss",
    "jinja2",
    "langchain_core",
    "langgraph",
    "mcp",
    "numpy",
    "openai",
    "sentence_transformers",
    "torch",
    "transformers",
}


@pytest.mark.alone
@pytest.mark.parametrize("code", ["import dubito", HELP])
def test_it_takes_less_than_half_a_second(code):
    assert min(seconds(code) for _ in range(3)) < 0.5 * slowness()


VERBS = [
    *(
        "",
        "ask",
        "calibrate",
        "compare",
        "corpus",
        "doctor",
        "draw",
        "eval",
        "index",
        "mcp",
        "report",
        "seper",
        "serve",
        "settings",
        "trace",
        "ui",
    ),
]


HELP_OF_EACH = """
import os, sys
from dubito.cli import app
for verb in sys.argv[1:]:
    if not os.fork():
        break
    if os.wait()[1]:
        sys.exit(verb)
else:
    sys.exit()
sys.argv = ["dubito", *filter(None, [verb]), "--help"]
try:
    app()
except SystemExit:
    pass
print("loaded", *{name.partition(".")[0] for name in sys.modules}, end="\\0")
"""
"""The help of each verb and what is loaded then, in a process that was forked as soon as it knew the verbs."""


@pytest.fixture(scope="module")
def helps():
    command = [sys.executable, "-c", HELP_OF_EACH, *VERBS]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return dict(zip(VERBS, done.stdout.split("\0")[:-1], strict=True))


@pytest.mark.parametrize("verb", VERBS)
def test_help_imports_nothing_heavy(helps, verb):
    assert f"Usage: dubito {verb}" in helps[verb]
    assert HEAVY.isdisjoint(helps[verb].rsplit("loaded", 1)[1].split())


def seconds(code: str) -> float:
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60, check=True)
    return time.perf_counter() - start
