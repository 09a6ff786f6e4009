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


@pytest.mark.parametrize("verb", VERBS)
def test_help_imports_nothing_heavy(verb):
    code = (
        f"import sys; sys.argv = ['dubito', {verb!r}, '--help']; sys.argv = [a for a in sys.argv if a]\n"
        "from dubito.cli import app\n"
        "try:\n    app()\nexcept SystemExit:\n    pass\n"
        "print('loaded', *{name.partition('.')[0] for name in sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert "Usage: dubito" in done.stdout
    assert HEAVY.isdisjoint(done.stdout.rsplit("loaded", 1)[1].split())


def seconds(code: str) -> float:
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60, check=True)
    return time.perf_counter() - start
