"""Can a small model tell supporting paragraphs from distractors? AUROC of DF-RAG's evaluators on HotpotQA.

For every question, two chunk sets of equal size: the two gold paragraphs, and two distractors. The question itself
stands for a one-step plan. A rating that cannot tell the sets apart has an AUROC of 0.5.

    python benchmarks/evaluators.py --data DIR [--questions 40] [--llm embedded] [--write FILE]

DIR holds hotpotqa/dev_distractor_hf.jsonl.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dubito.errors import ContractFault
from dubito.models.interfaces import ChatModel, Message
from dubito.nodes.evaluate import score_by_report
from dubito.prompts import unparsed
from dubito.resources.opening import open_chat_model
from dubito.state.df_rag import DFRagContext, EvaluateInput
from dubito.state.records import Chunk

YES_NO = ("yes", "no")
AT_ONCE = 8


def chunks(record: dict[str, Any], *, gold: bool) -> list[Chunk]:
    """The two gold paragraphs of a record, or its first two distractors."""
    titles, sentences = record["context"]["title"], record["context"]["sentences"]
    supporting = set(record["supporting_facts"]["title"])
    wanted = [i for i, title in enumerate(titles) if (title in supporting) == gold][:2]
    return [{"id": titles[i], "doc_id": titles[i], "title": titles[i], "text": "".join(sentences[i])} for i in wanted]


async def ratings(llm: ChatModel, question: str, passages: list[Chunk]) -> dict[str, float]:
    """What each evaluator gives a chunk set."""
    chat = unparsed.choice(question, passages)
    rated = await llm.choose(chat, unparsed.SCORES)
    question_of_fact = chat[-1]["content"].replace("Score from 0 to 5:", "Is it there?")
    yes_no: list[Message] = [*chat[:-1], {"role": "user", "content": question_of_fact}]
    asked = await llm.choose(yes_no, YES_NO)
    with_set, without = await asyncio.gather(
        llm.score(unparsed.likelihood(passages), [question]), llm.score(unparsed.likelihood([]), [question])
    )
    few_shot, zero_shot = [await reported(llm, question, passages, examples=examples) for examples in (True, False)]
    return {
        "written report, three worked examples": few_shot,
        "written report, no examples": zero_shot,
        "0-5, the likeliest": float(rated.best),
        "0-5, expected": sum(int(option) * p for option, p in rated.probabilities.items()),
        "yes or no": asked.probabilities["yes"],
        "likelihood of the step with the set": with_set.means[0],
        "likelihood gain over no set": with_set.means[0] - without.means[0],
    }


async def reported(llm: ChatModel, question: str, passages: list[Chunk], *, examples: bool) -> float:
    """The score in a written report; 0 if it cannot be read, as in DF-RAG."""
    state: EvaluateInput = {"plan": [question], "candidate": 0, "chunks": passages}
    try:
        scores, _ = await score_by_report(state, DFRagContext(evaluator="report", report_examples=examples), llm)
    except ContractFault:
        return 0.0
    return scores[0]


def auroc(gold: Sequence[float], distractors: Sequence[float]) -> float:
    """The chance that a gold set is rated above a distractor set, ties counting half."""
    wins = sum((g > d) + 0.5 * (g == d) for g in gold for d in distractors)
    return wins / (len(gold) * len(distractors))


def paired(gold: Sequence[float], distractors: Sequence[float]) -> float:
    """The share of questions whose gold set is rated above its own distractor set, ties counting half."""
    return sum((g > d) + 0.5 * (g == d) for g, d in zip(gold, distractors, strict=True)) / len(gold)


async def table(data: Path, questions: int, name: str) -> str:
    """The measured table, as Markdown."""
    lines = (data / "hotpotqa" / "dev_distractor_hf.jsonl").read_text(encoding="utf-8").splitlines()
    records = [json.loads(line) for line in lines[:questions]]
    llm = open_chat_model(name)
    at_once = asyncio.Semaphore(AT_ONCE)

    async def rate(record: dict[str, Any], *, gold: bool) -> dict[str, float]:
        async with at_once:
            return await ratings(llm, record["question"], chunks(record, gold=gold))

    found = {gold: await asyncio.gather(*(rate(record, gold=gold) for record in records)) for gold in (True, False)}
    rows = [
        f"| {evaluator} | {auroc(*pair):.2f} | {paired(*pair):.2f} |"
        for evaluator in found[True][0]
        if (pair := ([r[evaluator] for r in found[True]], [r[evaluator] for r in found[False]]))
    ]
    head = ["| rating | AUROC over all sets | gold above distractor, per question |", "|---|---|---|"]
    return "\n".join([*head, *rows])


def main() -> None:
    """Measure, print, and write where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--questions", type=int, default=40)
    parser.add_argument("--llm", default="embedded")
    parser.add_argument("--write", type=Path)
    arguments = parser.parse_args()
    measured = asyncio.run(table(arguments.data, arguments.questions, arguments.llm))
    print(measured)
    if arguments.write:
        command = f"python benchmarks/evaluators.py --data DIR --questions {arguments.questions} --llm {arguments.llm}"
        page = f"# Which evaluator for a small model?\n\n{ABOUT}\n\n    {command}\n\n{measured}\n"
        arguments.write.write_text(page, encoding="utf-8")


ABOUT = (
    "For HotpotQA questions (dev, distractor setting), two chunk sets each: the two gold paragraphs, and two\n"
    "distractors. The question stands for a one-step plan. 0.5 is a coin; 1 tells every gold set from every distractor."
)

if __name__ == "__main__":
    main()
