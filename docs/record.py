"""Draws a real run of `dubito ask` as docs/ask.svg, the picture of the README.

python docs/record.py                        # asks the embedded models
python docs/record.py --llm vllm:http://127.0.0.1:8000/v1
"""

from __future__ import annotations

import argparse
import io
import re
from inspect import signature
from pathlib import Path

from dubito.cli.watch import follow
from dubito.graphs.context_from_text import context_for
from dubito.graphs.registry import DEFAULT_GRAPH, graph_named
from dubito.traces.run import Run
from rich.console import Console
from rich.terminal_theme import MONOKAI

PICTURE = Path(__file__).parent / "ask.svg"
QUESTION = "Of which garden was the botanist who first described the Hovra bellflower the first director?"
WIDTH = 100
"""Columns."""

FORMAT = str(signature(Console.save_svg).parameters["code_format"].default)
WITHOUT_WEB_FONTS = re.sub(r"@font-face \{\{.*?\}\}\n", "", FORMAT, flags=re.DOTALL)
"""Pages that show the picture load no font from another server; the reader's own monospaced font is used."""


def main() -> None:
    """Ask, and write the picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("question", nargs="?", default=QUESTION)
    parser.add_argument("--graph", default=DEFAULT_GRAPH)
    parser.add_argument("--llm", default="embedded")
    parser.add_argument("--out", type=Path, default=PICTURE)
    given = parser.parse_args()
    # finished steps only: what is redrawn while a step runs has no place in a picture
    terminal = Console(
        record=True, width=WIDTH, file=io.StringIO(), force_terminal=True, force_interactive=False, highlight=False
    )
    options = "" if given.graph == DEFAULT_GRAPH else f" --graph {given.graph}"
    options += "" if given.llm == "embedded" else f' --llm "{given.llm}"'
    terminal.print(f'$ dubito ask "{given.question}"{options}\n', style="bold")
    graph = graph_named(given.graph)
    follow(Run(graph, given.question, context_for(graph, {"llm": given.llm}, []), {}), None, terminal)
    terminal.save_svg(str(given.out), title="dubito ask", theme=MONOKAI, code_format=WITHOUT_WEB_FONTS, unique_id="ask")


if __name__ == "__main__":
    main()
