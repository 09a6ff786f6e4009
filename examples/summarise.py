"""How certain is a summary of your own texts? (DENSE, appendix H.1)

    python examples/summarise.py notes.txt minutes.md [--about "what was decided"] [--llm vllm:http://127.0.0.1:8000/v1]

Each file is one chunk. The model writes the summary again with one file at a time rephrased. If the new summary says
something else, the model has not understood that file, or the files contradict each other.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dubito import dense
from dubito.state.dense import DenseContext
from dubito.state.records import Chunk


def summarise(files: Sequence[Path], about: str, llm: str, judge: str) -> dict[str, Any]:
    """Summarise the files; return the summary with its uncertainty."""
    chunks: list[str | Chunk] = [
        {"id": str(file), "doc_id": str(file), "title": file.stem, "text": file.read_text(encoding="utf-8")}
        for file in files
    ]
    context = DenseContext(task="summarise", max_answer_tokens=200, llm=llm, judge=judge)
    result: dict[str, Any] = dense.invoke({"question": f"Summarise {about}.", "chunks": chunks}, context=context)
    return result


def main() -> None:
    """Print the summary, its DSE and each file's share in it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--about", default="the texts")
    parser.add_argument("--llm", default="embedded")
    parser.add_argument("--judge", default="embedded")
    given = parser.parse_args()
    result = summarise(given.files, given.about, given.llm, given.judge)
    print(result["answer"])
    print(f"\nDSE {result['dse']:.2f} nats, {'certain' if result['certain'] else 'uncertain'}")
    for file, share in zip(given.files, result["shares"], strict=True):
        print(f"{share:6.2f}  {file.name}")
    for warning in result["warnings"]:
        print(f"Warning: {warning}")


if __name__ == "__main__":
    main()
