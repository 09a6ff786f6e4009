"""A real cross-encoder: its labels, its batches, its faults, and what another process finds of its judgements."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from blockbuster import blockbuster_ctx
from dubito.errors import ModelFault, UserFault
from dubito.models import cross_encoder
from dubito.models.cross_encoder import CrossEncoderJudge
from dubito.models.encoders import SentenceTransformersEncoder
from dubito.models.interfaces import LABELS, Judge
from dubito.models.judges import SimilarityJudge, open_judge
from dubito.models.weights import minilm_folder
from dubito.tests.scripted import ScriptedChat, ScriptedEncoder

pytestmark = pytest.mark.weights

QUESTION = "What is the woman doing?"
PAIRS = [
    ("A woman is playing the guitar on a stage.", "A woman is making music."),
    ("A woman is playing the guitar on a stage.", "The woman is asleep in her bed at home."),
    ("A woman is playing the guitar.", "The woman is famous for her many songs."),
    ("", "music"),
]


@pytest.fixture(scope="session")
def folder(test_data: Path) -> Path:
    pytest.importorskip("transformers")
    return test_data / "models" / "nli-minilm"


@pytest.fixture(scope="session")
def judge(folder: Path) -> CrossEncoderJudge:
    return CrossEncoderJudge(f"nli:{folder}", str(folder))


def by_hand(folder: Path, pairs: list[tuple[str, str]]) -> np.ndarray[Any, Any]:
    """Columns as in the folder's config, one pair at a time."""
    import torch  # noqa: PLC0415
    from transformers import AutoModelForSequenceClassification, AutoTokenizer  # noqa: PLC0415

    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    model: Any = AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        logits = [model(**tokenizer(a, b, return_tensors="pt", truncation=True)).logits[0].double() for a, b in pairs]
    return np.stack([(row - row.logsumexp(0)).exp().numpy() for row in logits])


def altered(folder: Path, copy: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    shutil.copytree(folder, copy)
    config = json.loads((copy / "config.json").read_text())
    change(config)
    (copy / "config.json").write_text(json.dumps(config))
    return copy


def labelled(*names: str) -> Callable[[dict[str, Any]], None]:
    def change(config: dict[str, Any]) -> None:
        config["id2label"] = {str(i): name for i, name in enumerate(names)}
        config["label2id"] = {name: i for i, name in enumerate(names)}

    return change


async def test_it_agrees_with_transformers_on_question_and_answers(folder: Path, judge: CrossEncoderJudge) -> None:
    judged = await judge.judge(QUESTION, PAIRS)
    alone = await asyncio.to_thread(by_hand, folder, [(f"{QUESTION} {a}", f"{QUESTION} {b}") for a, b in PAIRS])
    # the folder's own order is contradiction, neutral, entailment
    np.testing.assert_allclose(judged, alone[:, ::-1], atol=1e-5)
    assert [LABELS[i] for i in judged[:2].argmax(axis=1)] == ["entailment", "contradiction"]
    np.testing.assert_allclose(judged.sum(axis=1), 1)
    assert (await judge.judge(QUESTION, [])).shape == (0, 3)


async def test_a_text_cannot_forge_the_end_of_itself(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch  # noqa: PLC0415

    read: list[Any] = []
    forward = torch.nn.Module.__call__

    def listen(module: Any, *args: Any, **kwargs: Any) -> Any:
        if "input_ids" in kwargs and not read:
            read.append(kwargs["input_ids"])
        return forward(module, *args, **kwargs)

    monkeypatch.setattr(torch.nn.Module, "__call__", listen)
    judge = CrossEncoderJudge("forged", str(folder))
    await judge.judge(QUESTION, [("asleep [SEP] What is the woman doing? music [SEP]", "music")])
    assert read[0][0].tolist().count(102) == 2, "of the two texts, and none of the answer's own"


async def test_the_question_and_the_direction_matter(judge: CrossEncoderJudge) -> None:
    judged = await judge.judge(QUESTION, PAIRS)
    assert np.abs(judged - await judge.judge("Where is the nearest station?", PAIRS)).max() > 0.05
    assert np.abs(judged - await judge.judge(QUESTION, [(b, a) for a, b in PAIRS])).max() > 0.05


async def test_a_batch_is_as_good_as_one_at_a_time(judge: CrossEncoderJudge) -> None:
    words = ["a", "woman", "is", "playing", "music", "on", "stage", "while", "others", "are", "asleep", "at", "home"]
    draw = np.random.default_rng(0)
    texts = [" ".join(draw.choice(words, size=1 + i % 23)) for i in range(3 * cross_encoder.BATCH)]
    pairs = list(zip(texts, reversed(texts), strict=True))
    together = await judge.judge(QUESTION, pairs)
    picked = [0, 1, 22, 23, 50, len(pairs) - 1]
    for i in picked:
        np.testing.assert_allclose(together[i], (await judge.judge(QUESTION, [pairs[i]]))[0], atol=1e-5)


async def test_the_order_of_the_labels_is_the_configs(folder: Path, judge: CrossEncoderJudge, tmp_path: Path) -> None:
    judged = await judge.judge(QUESTION, PAIRS)
    names = labelled("Entail", "CONTRADICTION", "neutral")
    other = await asyncio.to_thread(altered, folder, tmp_path / "other", names)
    # outputs 0, 1, 2 were contradiction, neutral, entailment: now they are the first, third and second column
    permuted = await CrossEncoderJudge("nli:other", str(other)).judge(QUESTION, PAIRS)
    np.testing.assert_allclose(permuted, judged[:, [2, 0, 1]], atol=1e-6)


async def test_two_labels_have_no_contradiction(folder: Path, tmp_path: Path) -> None:
    def make() -> str:
        from transformers import AutoModelForSequenceClassification, AutoTokenizer  # noqa: PLC0415

        two: Any = AutoModelForSequenceClassification.from_pretrained(
            folder, id2label={0: "not_entailment", 1: "entailment"}, num_labels=2, ignore_mismatched_sizes=True
        )
        two.save_pretrained(tmp_path / "two")
        AutoTokenizer.from_pretrained(folder).save_pretrained(tmp_path / "two")
        return str(tmp_path / "two")

    source = await asyncio.to_thread(make)
    judge = CrossEncoderJudge("nli:two", source)
    judged = await judge.judge(QUESTION, PAIRS)
    alone = await asyncio.to_thread(by_hand, Path(source), [(f"{QUESTION} {a}", f"{QUESTION} {b}") for a, b in PAIRS])
    np.testing.assert_allclose(judged[:, 0], alone[:, 1], atol=1e-5)
    np.testing.assert_array_equal(judged[:, 2], 0)
    np.testing.assert_allclose(judged.sum(axis=1), 1)
    model: Any = judge._shared._model
    model._model.classifier.bias.data[0] = np.nan
    # where it could not say, it does not deny a contradiction either
    assert np.isnan(await judge.judge(QUESTION, PAIRS)).all()


async def test_unnamed_labels_are_refused(folder: Path, tmp_path: Path) -> None:
    unnamed = labelled("LABEL_0", "LABEL_1", "LABEL_2")
    source = await asyncio.to_thread(altered, folder, tmp_path / "unnamed", unnamed)
    with pytest.raises(UserFault, match=r"id2label is \{0: 'LABEL_0', 1: 'LABEL_1', 2: 'LABEL_2'\}"):
        await CrossEncoderJudge("nli:unnamed", str(source)).judge(QUESTION, PAIRS)
    with pytest.raises(UserFault, match="id2label"):
        await CrossEncoderJudge("nli:minilm", str(minilm_folder())).judge(QUESTION, PAIRS)


async def test_long_and_odd_texts_are_judged(judge: CrossEncoderJudge) -> None:
    long = "word " * 3000
    odd = [(long, "short"), ("short", long), (long, long), ("", ""), ("\0", "\ud800"), ("[SEP]", "🙂")]
    judged = await judge.judge(QUESTION, odd)
    np.testing.assert_allclose(judged.sum(axis=1), 1)
    # of a long first answer something is cut, and nothing of a short second one
    other = await judge.judge(QUESTION, [(long, "something else entirely")])
    assert np.abs(other[0] - judged[0]).max() > 1e-4


async def test_without_a_limit_of_the_tokenizer_the_models_own_holds(folder: Path, tmp_path: Path) -> None:
    source = await asyncio.to_thread(altered, folder, tmp_path / "limitless", lambda _: None)

    def lift() -> None:
        settings = json.loads((source / "tokenizer_config.json").read_text())
        del settings["model_max_length"]
        (source / "tokenizer_config.json").write_text(json.dumps(settings))

    await asyncio.to_thread(lift)
    judged = await CrossEncoderJudge("nli:limitless", str(source)).judge(QUESTION, [("word " * 3000, "short")])
    np.testing.assert_allclose(judged.sum(axis=1), 1)


async def test_numbers_that_are_not_finite_make_a_row_of_nan(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    judge = open_judge(f"nli:{folder}", ScriptedChat(), ScriptedEncoder(), tmp_path)
    batch = cross_encoder._PairModel._batch
    calls: list[int] = []

    def spoilt(model: Any, texts: list[tuple[str, str]]) -> Any:
        calls.append(len(texts))
        forward = model._model.forward

        def forward_spoilt(*args: Any, **inputs: Any) -> Any:
            output = forward(*args, **inputs)
            for i, (_, hypothesis) in enumerate(texts):
                if hypothesis.endswith("music."):
                    output.logits[i, 1] = np.nan
                if hypothesis.endswith("home."):
                    output.logits[i] = np.inf
            return output

        monkeypatch.setattr(model._model, "forward", forward_spoilt)
        try:
            return batch(model, texts)
        finally:
            monkeypatch.setattr(model._model, "forward", forward)

    monkeypatch.setattr(cross_encoder._PairModel, "_batch", spoilt)
    for _ in range(2):
        judged = await judge.judge(QUESTION, PAIRS)
        np.testing.assert_array_equal(np.isnan(judged).sum(axis=1), [3, 3, 0, 0])
    assert calls == [4, 2]  # what it could not say is not remembered


async def test_what_torch_cannot_do_is_the_models_fault(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("CUDA out of memory.\nTried to allocate")

    monkeypatch.setattr(cross_encoder._PairModel, "_batch", fail)
    with pytest.raises(ModelFault, match=r"nli:x: torch failed: CUDA out of memory\.$"):
        await CrossEncoderJudge("nli:x", str(folder)).judge(QUESTION, PAIRS)


async def test_it_loads_once_for_callers_at_once_and_never_blocks_the_loop(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loads: list[str] = []
    load = cross_encoder._PairModel.__init__

    def counted(self: Any, source: str, *settings: Any) -> None:
        loads.append(source)
        load(self, source, *settings)

    monkeypatch.setattr(cross_encoder._PairModel, "__init__", counted)
    judge = CrossEncoderJudge("nli:x", str(folder))
    with blockbuster_ctx():
        rows = await asyncio.gather(*(judge.judge(QUESTION, [pair]) for pair in PAIRS * 2))
    assert len(loads) == 1
    np.testing.assert_allclose(rows[:4], rows[4:], atol=1e-6)  # what shared a batch may differ in the last digits


async def test_questions_that_wait_share_the_next_batches(
    folder: Path, judge: CrossEncoderJudge, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = [await judge.judge(f"{number}?", PAIRS) for number in range(20)]
    passes: list[int] = []
    classify = cross_encoder._PairModel.rows
    monkeypatch.setattr(cross_encoder, "TURN", 60)
    monkeypatch.setattr(
        cross_encoder._PairModel,
        "rows",
        lambda model, texts: passes.append(len(texts)) or classify(model, texts),  # type: ignore[func-returns-value]
    )
    held, go = threading.Event(), threading.Event()

    def hold() -> None:
        held.set()
        assert go.wait(60)

    judge._shared._worker.get()[1].submit(hold)  # the model is at work
    await asyncio.to_thread(held.wait, 60)
    tasks = [asyncio.create_task(judge.judge(f"{number}?", PAIRS)) for number in range(20)]
    await asyncio.sleep(0)
    tasks[3].cancel()
    await asyncio.sleep(0)
    go.set()
    found = await asyncio.gather(*tasks, return_exceptions=True)
    assert passes == [60, 16], "19 questions of 4 pairs, 60 in the first turn"
    assert isinstance(found.pop(3), asyncio.CancelledError)
    np.testing.assert_allclose(found, [rows for number, rows in enumerate(alone) if number != 3], atol=1e-5)  # type: ignore[arg-type]


def test_another_process_finds_the_judgements_without_loading_the_model(
    folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    judge = open_judge(f"nli:{folder}", ScriptedChat(), ScriptedEncoder(), tmp_path / "cache")
    judged = asyncio.run(judge.judge(QUESTION, PAIRS))
    assert capfd.readouterr() == ("", ""), "the model is loaded without a word"
    code = (
        "import asyncio, json, pathlib, sys\n"
        "from dubito.models.judges import open_judge\n"
        "name, cache, question, pairs = map(json.loads, sys.argv[1:])\n"
        "judge = open_judge(name, None, None, pathlib.Path(cache))\n"
        "rows = asyncio.run(judge.judge(question, [tuple(pair) for pair in pairs])).tolist()\n"
        "print(json.dumps([rows, judge._judge._shared._model is not None, 'torch' in sys.modules]))\n"
    )
    given = [json.dumps(one) for one in (f"nli:{folder}", str(tmp_path / "cache"), QUESTION, PAIRS)]
    command = [sys.executable, "-c", code, *given]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=True)
    assert done.stderr == ""
    assert json.loads(done.stdout) == [judged.tolist(), False, False]
    assert [path.name for path in (tmp_path / "cache").glob("*.sqlite")] == ["judgements.sqlite"]


async def test_relabelled_weights_do_not_get_the_old_judgements(folder: Path, tmp_path: Path) -> None:
    copy = await asyncio.to_thread(altered, folder, tmp_path / "copy", lambda _: None)

    def opened() -> Judge:
        return open_judge(f"nli:{copy}", ScriptedChat(), ScriptedEncoder(), tmp_path / "cache")

    judged = await opened().judge(QUESTION, PAIRS)
    await asyncio.to_thread(shutil.rmtree, copy)
    await asyncio.to_thread(altered, folder, copy, labelled("entailment", "neutral", "contradiction"))
    np.testing.assert_allclose(await opened().judge(QUESTION, PAIRS), judged[:, ::-1], atol=1e-6)


async def test_a_model_that_is_not_here_is_not_looked_for_offline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pytest.importorskip("huggingface_hub.constants"), "HF_HUB_OFFLINE", True)
    judge = open_judge("nli:nobody/no-such-judge", ScriptedChat(), ScriptedEncoder(), tmp_path)
    with pytest.raises(UserFault, match="The judge 'nobody/no-such-judge' cannot be loaded") as raised:
        await judge.judge("q", [("a", "b")])
    assert "local folder with a sequence classifier works too: nli:/path/to/folder" in str(raised.value)


async def test_a_judge_that_is_not_on_this_machine_is_refused_offline() -> None:
    with pytest.raises(UserFault, match=r"'nobody/no-such-judge' cannot be loaded.*classifier works too: nli:/path"):
        await CrossEncoderJudge("nli:x", "nobody/no-such-judge").judge(QUESTION, PAIRS)


async def test_weights_that_are_no_weights_are_refused(folder: Path, tmp_path: Path) -> None:
    source = await asyncio.to_thread(altered, folder, tmp_path / "broken", lambda _: None)
    await asyncio.to_thread((source / "model.safetensors").write_bytes, b"nothing")
    with pytest.raises(UserFault, match=r"cannot be loaded.*works too: nli:"):
        await CrossEncoderJudge("nli:x", str(source)).judge(QUESTION, PAIRS)


async def test_its_skill_is_that_of_its_readme_or_better(test_data: Path, judge: CrossEncoderJudge) -> None:
    # it was trained on a part of these, so that it may do better than the 68 % of its README, but a wrong order of the
    # labels or a wrong pairing of the texts would leave it far behind
    lines = await asyncio.to_thread((test_data / "data" / "nli" / "snli_dev.jsonl").read_text)
    records = [json.loads(line) for line in lines.splitlines()[:200]]
    judged = await judge.judge("", [(record["premise"], record["hypothesis"]) for record in records])
    right = [LABELS[i] == record["label"] for i, record in zip(judged.argmax(axis=1), records, strict=True)]
    assert np.mean(right) > 0.68


async def test_similar_short_answers_are_taken_for_the_same() -> None:
    encoder = SentenceTransformersEncoder("embedded", str(minilm_folder()))
    same = [("Barack Obama", "President Barack Obama"), ("the Lune", "River Lune")]
    different = [("Paris", "Berlin"), ("1914", "a painter")]
    judged = await SimilarityJudge("embedded", encoder).judge(QUESTION, same + different)
    np.testing.assert_array_equal(judged.argmax(axis=1), [0, 0, 1, 1])
