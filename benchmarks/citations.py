"""What should a cross-encoder read to judge a citation? Answers of XQuAD against passages that hold them, and others.

    python benchmarks/citations.py --data DIR --nli FOLDER [--questions 150] [--write FILE]

DIR holds squad_xquad_en/xquad.en.json. Each short answer is judged against its own passage, which supports it, and
against the passage of another question; so is the answer to another question. Nothing but the premise and the question
in front of it differs between the rows.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
from collections.abc import Sequence
from pathlib import Path

from dubito.models.cross_encoder import CrossEncoderJudge
from dubito.models.interfaces import LABELS
from dubito.retrieval.sentences import sentences

SEED, APART = 1, 7
ENTAILMENT = LABELS.index("entailment")

Example = tuple[str, str, str, str]
"""Title, passage, question, answer."""


def premises(kind: str, title: str, passage: str) -> list[str]:
    """What is judged; one entailing premise is enough."""
    parts = [passage[start:end].strip() for start, end in sentences(passage)]
    kinds = {
        "the passage": [passage],
        "each sentence": parts,
        "each sentence below the title": [f"{title}\n{part}" for part in parts],
        "the passage and each sentence": [passage, *parts],
    }
    return kinds[kind]


async def supported(judge: CrossEncoderJudge, kind: str, asked: str, of: Example, answer: str) -> bool:
    """Is the answer called supported by the passage of an example?"""
    rows = await judge.judge(asked, [(premise, answer) for premise in premises(kind, of[0], of[1])])
    return bool((rows.argmax(axis=1) == ENTAILMENT).any())


async def row(judge: CrossEncoderJudge, kind: str, has_question: bool, examples: Sequence[Example]) -> str:
    """A row of the table: the shares that are called supported."""
    found = [0, 0, 0]
    for place, one in enumerate(examples):
        other = examples[(place + APART) % len(examples)]
        asked = one[2] if has_question else ""
        for case, (of, answer) in enumerate([(one, one[3]), (one, other[3]), (other, one[3])]):
            found[case] += await supported(judge, kind, asked, of, answer)
    right, answers, passages = (count / len(examples) for count in found)
    balanced = (right + 1 - (answers + passages) / 2) / 2
    named = "yes" if has_question else "no"
    return f"| {kind} | {named} | {right:.2f} | {answers:.2f} | {passages:.2f} | {balanced:.2f} |"


async def measured(data: Path, nli: str, questions: int) -> str:
    """The table as Markdown."""
    topics = json.loads((data / "squad_xquad_en" / "xquad.en.json").read_text(encoding="utf-8"))["data"]
    examples = [
        (topic["title"].replace("_", " "), part["context"], asked["question"], asked["answers"][0]["text"])
        for topic in topics
        for part in topic["paragraphs"]
        for asked in part["qas"]
    ]
    random.Random(SEED).shuffle(examples)
    judge = CrossEncoderJudge(f"nli:{nli}", nli)
    kinds = ("the passage", "each sentence", "each sentence below the title", "the passage and each sentence")
    rows = [await row(judge, kind, asked, examples[:questions]) for asked in (True, False) for kind in kinds]
    columns = "premise", "question in front", "right answer", "other answer", "other passage", "balanced accuracy"
    return f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}\n" + "\n".join(rows) + "\n"


def main() -> None:
    """Measure, print, and write where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--nli", required=True)
    parser.add_argument("--questions", type=int, default=150)
    parser.add_argument("--write", type=Path)
    given = parser.parse_args()
    text = asyncio.run(measured(given.data, given.nli, given.questions))
    print(text)
    if given.write:
        given.write.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
