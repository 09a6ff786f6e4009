"""A cross-encoder as a re-ranker: tiny models of random weights, made here, against transformers itself."""

from __future__ import annotations

import asyncio
import json
import shutil
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from blockbuster import blockbuster_ctx
from dubito.errors import ModelFault, UserFault
from dubito.models import cross_encoder
from dubito.models.cross_encoder import CrossEncoderRelevance
from dubito.models.encoders import SentenceTransformersEncoder
from dubito.models.rerankers import Reranker, open_reranker
from dubito.models.transformers_chat import TransformersChat
from dubito.models.weights import minilm_folder
from dubito.tests.scripted import ScriptedChat, ScriptedEncoder
from dubito.tests.small_bert import save_bert

QUERY = "which river flows past lancaster"
WORDS = [
    *QUERY.split(),
    "the",
    "lune",
    "wyre",
    "thames",
    "town",
    "castle",
    "of",
    "and",
    "in",
    "a",
    "founded",
    "by",
    "ada",
]
WINDOW = 24
TEXTS = ["the lune flows past lancaster", "ada", "a castle in the town " * 30, "", "thames", "the wyre and the lune"]


def make(folder: Path, labels: dict[int, str]) -> Path:
    """A tiny BERT whose head is large, so that its scores differ."""
    model = save_bert(
        "BertForSequenceClassification", folder, WORDS, window=WINDOW, id2label=labels, initializer_range=0.5
    )
    model.classifier.bias.data[0] = -0.4  # so that some logits are negative
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def one(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of one output."""
    pytest.importorskip("transformers")
    return make(tmp_path_factory.mktemp("models") / "one", {0: "LABEL_0"})


def cross(folder: Path) -> Reranker:
    return open_reranker(f"cross:{folder}", ScriptedChat(), ScriptedEncoder())


def by_hand(folder: Path, query: str, texts: list[str]) -> np.ndarray[Any, Any]:
    """The logits, one pair at a time, as transformers gives them."""
    import torch  # noqa: PLC0415
    from transformers import AutoModelForSequenceClassification, AutoTokenizer  # noqa: PLC0415

    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    model: Any = AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32).eval()
    rows = []
    with torch.no_grad():
        for text in texts:
            # as lists: of a single pair it would take an empty text for none
            inputs = tokenizer([query], [text], return_tensors="pt", truncation="longest_first", max_length=WINDOW)
            assert inputs["input_ids"].shape[1] <= WINDOW
            rows.append(model(**inputs).logits[0].double().numpy())
    return np.stack(rows)


async def test_one_output_is_put_through_the_sigmoid(one: Path) -> None:
    scores = await cross(one).scores(QUERY, TEXTS)
    (logits,) = (await asyncio.to_thread(by_hand, one, QUERY, TEXTS)).T
    np.testing.assert_allclose(scores, 1 / (1 + np.exp(-logits)), atol=1e-5)
    assert np.ptp(scores) > 0.1, "the check above must be able to fail"


@pytest.mark.parametrize(
    ("labels", "relevant"),
    [
        ({0: "LABEL_0", 1: "LABEL_1"}, 1),
        ({0: "irrelevant", 1: "relevant"}, 1),
        ({0: "relevant", 1: "not_relevant"}, 0),
    ],
)
async def test_of_two_outputs_the_relevant_ones_share_counts(
    labels: dict[int, str], relevant: int, tmp_path: Path
) -> None:
    pytest.importorskip("transformers")
    two = await asyncio.to_thread(make, tmp_path / "two", labels)
    scores = await cross(two).scores(QUERY, TEXTS)
    logits = await asyncio.to_thread(by_hand, two, QUERY, TEXTS)
    odds = logits[:, 1 - relevant] - logits[:, relevant]
    np.testing.assert_allclose(scores, 1 / (1 + np.exp(odds)), atol=1e-5)
    assert np.abs(np.array(scores) - 0.5).max() > 0.05


async def test_many_texts_come_back_in_their_order(one: Path) -> None:
    draw = np.random.default_rng(0)
    texts = [" ".join(draw.choice(WORDS, size=1 + i % 29)) for i in range(2 * cross_encoder.BATCH + 7)]
    scores = await cross(one).scores(QUERY, texts + texts[:5])
    (logits,) = (await asyncio.to_thread(by_hand, one, QUERY, texts)).T
    np.testing.assert_allclose(scores, (1 / (1 + np.exp(-logits)))[[*range(len(texts)), *range(5)]], atol=1e-5)


async def test_long_and_odd_texts_are_scored(one: Path) -> None:
    reranker = cross(one)
    for query in (QUERY, "river " * 300, "", "\ud800"):
        scores = await reranker.scores(query, ["lune " * 300, "", "\0", "\ud800", "[SEP] [CLS]", "🙂"])
        assert all(0 < score < 1 for score in scores)


async def test_without_a_limit_of_the_tokenizer_the_models_own_holds(one: Path, tmp_path: Path) -> None:
    def lift() -> Path:
        copy = Path(shutil.copytree(one, tmp_path / "limitless"))
        settings = json.loads((copy / "tokenizer_config.json").read_text())
        del settings["model_max_length"]
        (copy / "tokenizer_config.json").write_text(json.dumps(settings))
        return copy

    scores = await cross(await asyncio.to_thread(lift)).scores(QUERY, ["lune " * 300])
    assert 0 < scores[0] < 1


class Gate:
    """Holds the model's thread in its first batch until it is let go; keeps the batches' sizes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.entered, self.go = threading.Event(), threading.Event()
        self.batches: list[int] = []
        batch = cross_encoder._PairModel._batch

        def gated(model: Any, texts: list[tuple[str, str]]) -> Any:
            self.batches.append(len(texts))
            if len(self.batches) == 1:
                self.entered.set()
                assert self.go.wait(60)
            return batch(model, texts)

        monkeypatch.setattr(cross_encoder._PairModel, "_batch", gated)


async def all_wait(backend: CrossEncoderRelevance, requests: int) -> None:
    await asyncio.sleep(0)  # every task that was created takes its first step
    assert len(backend._shared._worker.get()[0]) == requests


async def test_questions_that_wait_share_the_next_batch(one: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(monkeypatch)
    backend = CrossEncoderRelevance("cross:x", str(one))
    first = asyncio.create_task(backend.relevance(QUERY, TEXTS[:1]))
    await asyncio.to_thread(gate.entered.wait, 60)
    asked = [("lancaster", TEXTS), ("ada", TEXTS[:2]), ("given up", TEXTS[:4]), (QUERY, TEXTS[3:])]
    tasks = [asyncio.create_task(backend.relevance(query, texts)) for query, texts in asked]
    await all_wait(backend, len(asked))
    tasks.pop(2).cancel()
    await asyncio.sleep(0)
    gate.go.set()
    found = [await task for task in [first, *tasks]]
    assert gate.batches == [1, 6 + 2 + 3]
    for (query, texts), shares in zip([(QUERY, TEXTS[:1]), *asked[:2], asked[3]], found, strict=True):
        (logits,) = (await asyncio.to_thread(by_hand, one, query, texts)).T
        np.testing.assert_allclose(shares, 1 / (1 + np.exp(-logits)), atol=1e-5)


async def test_a_fault_reaches_all_who_shared_the_batch_and_nobody_after(
    one: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch)
    backend = CrossEncoderRelevance("cross:x", str(one))
    first = asyncio.create_task(backend.relevance(QUERY, TEXTS))
    await asyncio.to_thread(gate.entered.wait, 60)
    tasks = [asyncio.create_task(backend.relevance(query, TEXTS)) for query in ("ada", "lune")]
    await all_wait(backend, 2)
    with monkeypatch.context() as broken:

        def fail(*_: Any) -> None:
            raise RuntimeError("CUDA out of memory.\nTried to allocate")

        broken.setattr(cross_encoder._PairModel, "_batch", fail)
        gate.go.set()
        assert len(await first) == len(TEXTS)
        for task in tasks:
            with pytest.raises(ModelFault, match=r"cross:x: torch failed: CUDA out of memory\.$"):
                await task
    np.testing.assert_allclose(await backend.relevance(QUERY, TEXTS), await first, atol=1e-6)


async def test_it_loads_once_for_callers_at_once_and_never_blocks_the_loop(
    one: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loads: list[str] = []
    load = cross_encoder._PairModel.__init__

    def counted(self: Any, source: str, *settings: Any) -> None:
        loads.append(source)
        load(self, source, *settings)

    monkeypatch.setattr(cross_encoder._PairModel, "__init__", counted)
    reranker = cross(one)
    with blockbuster_ctx():
        rows = await asyncio.gather(*(reranker.scores(QUERY, TEXTS) for _ in range(8)))
    assert loads == [str(one)]
    np.testing.assert_allclose(rows, [rows[0]] * 8, atol=1e-5)


def test_event_loops_one_after_the_other_share_the_model(one: Path) -> None:
    reranker = cross(one)
    rows = [asyncio.run(reranker.scores(QUERY, TEXTS)) for _ in range(2)]
    np.testing.assert_allclose(rows[0], rows[1], atol=1e-6)


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
async def test_numbers_that_are_not_finite_are_told(number: float, one: Path) -> None:
    backend = CrossEncoderRelevance("cross:x", str(one))
    await backend.relevance(QUERY, TEXTS)
    model: Any = backend._shared._model
    model._model.classifier.bias.data[0] = number
    assert np.isnan(await backend.relevance(QUERY, TEXTS)).all()


async def test_broken_weights_are_told_in_one_sentence(one: Path, tmp_path: Path) -> None:
    def broken() -> Path:
        from safetensors.torch import load_file, save_file  # noqa: PLC0415

        copy = Path(shutil.copytree(one, tmp_path / "broken"))
        weights = load_file(copy / "model.safetensors")
        weights["classifier.bias"][0] = np.nan
        save_file(weights, copy / "model.safetensors", {"format": "pt"})
        return copy

    folder = await asyncio.to_thread(broken)
    with pytest.raises(UserFault, match=rf"'cross:{folder}' gives no numbers for 6 of 6 documents"):
        await cross(folder).scores(QUERY, TEXTS)


async def test_a_model_without_a_head_is_refused() -> None:
    pytest.importorskip("transformers")
    # an encoder has two outputs by default, whose weights the library would draw by chance
    with pytest.raises(
        UserFault, match=r"cannot be loaded \(its file has no weights for classifier.*works too: cross:"
    ):
        await cross(minilm_folder()).scores(QUERY, TEXTS)


async def test_a_model_for_inference_is_refused_before_its_weights_are_read(one: Path, tmp_path: Path) -> None:
    def relabel() -> Path:
        copy = Path(shutil.copytree(one, tmp_path / "nli"))
        config = json.loads((copy / "config.json").read_text())
        config["id2label"] = {"0": "contradiction", "1": "entailment", "2": "neutral"}
        (copy / "config.json").write_text(json.dumps(config))
        (copy / "model.safetensors").unlink()
        return copy

    folder = await asyncio.to_thread(relabel)
    with pytest.raises(UserFault, match=r"id2label is \{0: 'contradiction', 1: 'entailment', 2: 'neutral'\}.* not one"):
        await cross(folder).scores(QUERY, TEXTS)


PASSAGES = [
    "Aldwick Cheese\nAldwick is a hard cheese made of the milk of sheep and ripened for a year.",
    "River Lune\nThe Lune rises in Cumbria and flows past Lancaster into the Irish Sea.",
    "Harpsichord\nA harpsichord is played with a keyboard whose keys pluck the strings.",
]


@pytest.mark.weights
@pytest.mark.parametrize("name", ["embedded", "likelihood"])
async def test_the_passage_that_answers_comes_first(name: str, smollm2_folder: Path) -> None:
    pytest.importorskip("sentence_transformers")
    llm = TransformersChat("smollm2", str(smollm2_folder))
    encoder = SentenceTransformersEncoder("embedded", str(minilm_folder()))
    scores = await open_reranker(name, llm, encoder).scores("Which river flows past Lancaster?", PASSAGES)
    assert scores.index(max(scores)) == 1
    assert all(0 < score < 1 for score in scores)
