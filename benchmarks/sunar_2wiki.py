"""What does SUNAR answer, what does reading all evidence again change, and what does it cost? 2WikiMultihopQA.

    python benchmarks/sunar_2wiki.py --data DIR --run FILE.jsonl [--questions 20] [--budget 32] [--samples 5]
    python benchmarks/sunar_2wiki.py --data DIR --run FILE.jsonl --write docs/measurements/sunar_2wiki.md

DIR holds 2wikimultihopqa/ with the corpus of 6,119 passages and the 177 open questions. The whole graph `sunar` runs as
it is, on real weights. Every finished question is a line of the run file; started again, it goes on with the questions
that are missing. With --write the measured part of the page is replaced; what stands outside its two marks is kept.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import statistics
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dubito.benchmarks.sunar_cost import STAGES
from dubito.evals.answers import exact_match, f1
from dubito.graphs import sunar
from dubito.resources.resources import shared_resources
from dubito.retrieval.index import Index
from dubito.state.neighbourhood import ScoredDocument
from dubito.state.sunar import SunarContext

BEGIN, END = "<!-- measured -->", "<!-- end of what was measured -->"


def sampled(data: Path, count: int) -> list[dict[str, Any]]:
    """The same questions in every run."""
    questions: list[dict[str, Any]] = json.loads((data / "2wikimultihopqa" / "dev_open_corpus.json").read_text("utf-8"))
    return random.Random(0).sample(questions, min(count, len(questions)))


async def run(questions: Sequence[dict[str, Any]], context: SunarContext, file: Path, at_once: int) -> None:
    """Answer what is missing from the run file, `at_once` questions at a time."""
    done = {line["id"] for line in read(file)}
    missing = [record for record in questions if record["_id"] not in done]
    if not missing:
        return
    index = await shared_resources().retriever(context)
    assert isinstance(index, Index)
    title = {chunk["id"]: chunk["title"] for chunk in index.chunks}
    gate = asyncio.Semaphore(at_once)

    async def one(record: dict[str, Any]) -> None:
        async with gate:
            begun = time.perf_counter()
            result = await sunar.graph.ainvoke({"question": record["question"]}, context=context)
            line = line_of(record, result, title, time.perf_counter() - begun)
        with file.open("a", encoding="utf-8") as out:
            out.write(json.dumps(line, ensure_ascii=False) + "\n")
        print(f"{line['seconds']:5.0f} s  {line['gold']}  <-  {line['sequential']}  <-  {line['answer']}", flush=True)

    await asyncio.gather(*(one(record) for record in missing))


def sets_by_batch(scored: Sequence[ScoredDocument]) -> dict[int, int | None]:
    """The number of semantic sets of each batch."""
    return {document["iteration"]: document["number_of_semantic_sets"] for document in scored}


def line_of(record: dict[str, Any], result: dict[str, Any], title: Mapping[str, str], seconds: float) -> dict[str, Any]:
    """What is kept of a question: answers, path, titles, cost."""
    hops = result["hops"]
    return {
        "id": record["_id"],
        "question": record["question"],
        "gold": record["answer"],
        "sequential": result["sequential_answer"],
        "answer": result["answer"],
        "changed": result["changed"],
        "path": [[hop["question"], hop["answer"]] for hop in hops],
        "wanted": sorted({one for one, _ in record["supporting_facts"]}),
        "read": sorted({chunk["title"] for chunk in result["evidence"]}),
        "found": sorted({title[one] for hop in hops for one in hop["evidence_ids"]}),
        "scored": sorted({title[one["chunk_id"]] for hop in hops for one in hop["scored"]}),
        "documents": sum(len(hop["scored"]) for hop in hops),
        "frontier": sum(one["pool"] == "frontier" for hop in hops for one in hop["scored"]),
        "sets": [count for hop in hops for count in sets_by_batch(hop["scored"]).values()],
        "usage": result["usage"],
        "warnings": result["warnings"],
        "seconds": seconds,
    }


def read(file: Path) -> list[dict[str, Any]]:
    """The finished questions."""
    return [json.loads(line) for line in file.read_text("utf-8").splitlines()] if file.exists() else []


def mean(values: Iterable[float], digits: int = 3) -> str:
    """The mean, a dash of nothing."""
    found = list(values)
    return f"{statistics.fmean(found):,.{digits}f}" if found else "-"


def answers(lines: Sequence[dict[str, Any]]) -> str:
    """EM and F1 of the path's answer and of the one after reading all evidence again, by whether they differ."""
    rows = ["| questions | | EM, path | EM, read again | F1, path | F1, read again |", "|---|---|---|---|---|---|"]
    for name, some in {
        "all": list(lines),
        "answer changed": [line for line in lines if line["changed"]],
        "answer kept": [line for line in lines if not line["changed"]],
    }.items():
        cells = [
            mean(score(line[which], [line["gold"]]) for line in some)
            for score in (exact_match, f1)
            for which in ("sequential", "answer")
        ]
        rows.append(f"| {name} | {len(some)} | {' | '.join(cells)} |")
    return "\n".join(rows)


def recall(lines: Sequence[dict[str, Any]]) -> str:
    """The share of the supporting titles that each set of documents holds."""
    names = {
        "scored": "all documents that were scored",
        "found": "the sub-questions' evidence",
        "read": "the meta evidence, from which the final answer is made",
    }
    rows = ["| among | supporting titles | titles a question |", "|---|---|---|"]
    for key, name in names.items():
        share = mean(len({*line["wanted"]} & {*line[key]}) / len(line["wanted"]) for line in lines)
        rows.append(f"| {name} | {share} | {mean((len(line[key]) for line in lines), 1)} |")
    return "\n".join(rows)


def cost(lines: Sequence[dict[str, Any]]) -> str:
    """What a question takes, by stage."""
    rows = ["| stage | calls | tokens read | written | seconds |", "|---|---|---|---|---|"]
    for stage, nodes in {**STAGES, "in all": tuple(node for some in STAGES.values() for node in some)}.items():
        spent = [[line["usage"]["nodes"][node] for node in nodes if node in line["usage"]["nodes"]] for line in lines]
        cells = [
            mean((sum(node[key] for node in some) for some in spent), digits)
            for key, digits in (("calls", 1), ("prompt_tokens", 0), ("completion_tokens", 0), ("seconds", 1))
        ]
        rows.append(f"| {stage} | {' | '.join(cells)} |")
    return "\n".join(rows)


def report(lines: Sequence[dict[str, Any]]) -> str:
    """The measured part of the page."""
    sets = Counter(sets for line in lines for sets in line["sets"])
    hops = Counter(len(line["path"]) for line in lines)
    seconds = sorted(line["seconds"] for line in lines)
    kinds = Counter(re.sub(r"\d+|\(.*\)", "*", warning) for line in lines for warning in line["warnings"])
    parts = [
        answers(lines),
        f"Changed by reading all evidence again: {sum(line['changed'] for line in lines)} of {len(lines)} answers.",
        recall(lines),
        f"Documents scored a question: {mean((line['documents'] for line in lines), 1)}, of which from the frontier "
        f"{mean((line['frontier'] for line in lines), 1)}. Sub-questions: "
        + ", ".join(f"{number} in {count} questions" for number, count in sorted(hops.items()))
        + f". Semantic sets of the answers from {sum(sets.values())} batches: "
        + ", ".join(f"{number} in {count}" for number, count in sorted(sets.items(), key=str))
        + ".",
        cost(lines),
        f"Median {seconds[len(seconds) // 2]:.0f} s a question, of {seconds[0]:.0f} to {seconds[-1]:.0f}.",
        "Warnings: " + "; ".join(f"{count} × {kind}" for kind, count in kinds.most_common())
        if kinds
        else "No warnings.",
    ]
    return "\n\n".join(parts)


def main() -> None:
    """Run, or read a run, and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--questions", type=int, default=20)
    parser.add_argument("--at-once", type=int, default=4)
    parser.add_argument("--llm", default="embedded")
    parser.add_argument("--judge", default="embedded")
    parser.add_argument("--budget", type=int, default=32)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--samples", type=int, default=5)
    parser.add_argument("--max-hops", type=int, default=3)
    parser.add_argument("--write", type=Path)
    given = parser.parse_args()
    context = SunarContext(
        corpus=str(given.data / "2wikimultihopqa" / "2wikimultihopqa_corpus.json"),
        llm=given.llm,
        judge=given.judge,
        budget=given.budget,
        batch_size=given.batch,
        samples=given.samples,
        max_hops=given.max_hops,
    )
    asyncio.run(run(sampled(given.data, given.questions), context, given.run, given.at_once))
    text = report(read(given.run))
    print(text)
    if given.write:
        page = given.write.read_text("utf-8") if given.write.exists() else f"{BEGIN}\n{END}\n"
        before, after = page.partition(BEGIN)[0], page.partition(END)[2]
        given.write.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
