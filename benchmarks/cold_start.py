"""From the command to its first line and to its first model call: `dubito ask` over a server, one new process a run.

    python benchmarks/cold_start.py [--tree before=DIR --tree now=DIR] [--graphs cot vanilla_rag df_rag] [--runs 5]

The server is a stub on this machine that answers at once. A tree is a folder that holds the package `dubito`; their
runs take turns. Each tree has a cache folder of its own, and a first run fills it. Printed: the median of the seconds
to the first byte on the terminal and to the first request for a reply, and whether torch was imported.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple

from dubito.tests.stub_server import Stub, serving

CODE = (
    "import atexit, sys\n"
    "atexit.register(lambda: print('torch imported:', 'torch' in sys.modules, file=sys.stderr))\n"
    "from dubito.cli import main\n"
    "main()"
)
SETTINGS = {"df_rag": ["--set", "evaluator=report"]}


class Start(NamedTuple):
    """Seconds to the first byte and to the first model call; whether torch was imported."""

    life: float
    call: float
    torch: bool


class Clock(Stub):
    """Notes when the first reply is asked for."""

    first: float | None = None

    def reply(self, body: dict[str, Any], authorization: str = "") -> tuple[int, dict[str, Any]]:
        """See `Stub.reply`."""
        self.first = self.first or time.perf_counter()
        return super().reply(body, authorization)


def start_of(graph: str, tree: Path, cache: Path, server: Clock) -> Start:
    """Run the command once."""
    server.first = None
    command = [sys.executable, "-c", CODE, "ask", "Who founded the mill?", "--graph", graph]
    command += ["--llm", f"openai:{server.url}#m", *SETTINGS.get(graph, [])]
    environment = os.environ | {"PYTHONPATH": str(tree), "DUBITO_CACHE_DIR": str(cache)}
    begun = time.perf_counter()
    process = subprocess.Popen(command, env=environment, cwd=cache, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    errors: list[bytes] = []
    reader = threading.Thread(target=lambda: errors.append(process.stderr.read()))  # type: ignore[union-attr]
    reader.start()
    process.stdout.read(1)
    life = time.perf_counter() - begun
    process.stdout.read()
    reader.join()
    said = b"".join(errors).decode()
    if process.wait() or server.first is None:
        raise SystemExit(said)
    return Start(life, server.first - begun, "torch imported: True" in said)


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tree", action="append", help="NAME=FOLDER")
    parser.add_argument("--graphs", nargs="+", default=["cot", "vanilla_rag", "df_rag"])
    parser.add_argument("--runs", type=int, default=5)
    given = parser.parse_args()
    trees = dict(tree.split("=", 1) for tree in given.tree or [f"now={Path(__file__).parents[2]}"])
    print("| graph | tree | first line, s | first model call, s | torch |\n|---|---|---|---|---|")
    server = Clock()
    with serving(server), tempfile.TemporaryDirectory() as folder:
        for graph in given.graphs:
            starts: dict[str, list[Start]] = {name: [] for name in trees}
            for run in range(given.runs + 1):
                for name, tree in trees.items():
                    cache = Path(folder) / name
                    cache.mkdir(exist_ok=True)
                    start = start_of(graph, Path(tree), cache, server)
                    starts[name] += [start] if run else []  # the first run fills the cache
            for name, runs in starts.items():
                life, call = (statistics.median(times) for times in list(zip(*runs, strict=True))[:2])
                print(f"| `{graph}` | {name} | {life:.2f} | {call:.2f} | {'yes' if runs[0].torch else 'no'} |")


if __name__ == "__main__":
    main()
