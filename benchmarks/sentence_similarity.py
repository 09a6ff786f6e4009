"""Which τ joins how many neighbouring sentences? Semantic chunks of 2WikiMultihopQA passages at several τ.

    python benchmarks/sentence_similarity.py --data DIR [--passages 200] [--encoder embedded] [--write FILE]

DIR holds 2wikimultihopqa/ with its corpus. The paper's τ = 0.6 belongs to its encoder; another encoder's cosines lie
elsewhere.
"""

from __future__ import annotations

import argparse
import asyncio
from itertools import pairwise
from pathlib import Path

import numpy as np
from dubito.resources.opening import open_encoder
from dubito.retrieval.chunkers import chunker_for
from dubito.retrieval.corpus import read_corpus
from dubito.retrieval.sentences import sentences

TAUS = (0.2, 0.3, 0.4, 0.5, 0.6, 0.7)


async def measured(data: Path, passages: int, name: str) -> str:
    """The table as Markdown."""
    documents = read_corpus(data / "2wikimultihopqa" / "2wikimultihopqa_corpus.json").documents[:passages]
    encoder = open_encoder(name)
    cosines: list[float] = []
    for document in documents:
        texts = [document.text[start:end].strip() for start, end in sentences(document.text)]
        vectors = await encoder.embed(texts)
        cosines += [float(a @ b) for a, b in pairwise(vectors)]
    count = await encoder.token_counter()
    assert count is not None
    rows = []
    for tau in TAUS:
        chunks = await (await chunker_for(f"semantic:{tau}/512", encoder)).cut(documents)
        tokens = [count(chunk["text"]) for chunk in chunks]
        joined = sum(cosine >= tau for cosine in cosines)
        rows.append(f"| {tau} | {joined} | {len(chunks)} | {np.mean(tokens):.0f} | {max(tokens)} |")
    return (
        f"{len(documents)} passages, {len(cosines)} pairs of neighbouring sentences; their median cosine is "
        f"{np.median(cosines):.2f} (encoder `{name}`).\n\n"
        "| τ | pairs at or above it | chunks | mean tokens | most tokens |\n|---|---|---|---|---|\n"
        + "\n".join(rows)
        + "\n"
    )


def main() -> None:
    """Measure, print, and write where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--passages", type=int, default=200)
    parser.add_argument("--encoder", default="embedded")
    parser.add_argument("--write", type=Path)
    given = parser.parse_args()
    text = asyncio.run(measured(given.data, given.passages, given.encoder))
    print(text)
    if given.write:
        page = f"# Semantic chunks at several τ\n\n    python benchmarks/sentence_similarity.py --data DIR\n\n{text}"
        given.write.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
