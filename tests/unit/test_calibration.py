"""Thresholds, and the files that keep them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from dubito.errors import UserFault
from dubito.evals.answer_calibration import split
from dubito.evals.answers import answer_rule, is_right
from dubito.evals.calibration import best_threshold
from dubito.evals.questions import GoldQuestion
from dubito.state.calibration import Calibration, identity, is_calibration, settings_of
from dubito.state.sunar import SunarContext
from hypothesis import given
from hypothesis import strategies as st

CONTEXT = SunarContext(budget=32, llm="vllm:http://127.0.0.1:8000/v1#llama", corpus="notes.index")

# best_threshold

graded = st.lists(st.tuples(st.sampled_from([-6.5, -6.0, -2.0, 0.0, 0.5, 3.0]), st.booleans()), min_size=2, max_size=14)


def both_kinds(pairs: list[tuple[float, bool]]) -> bool:
    return len({wrong for _, wrong in pairs}) == 2


@pytest.mark.parametrize(
    ("right", "wrong", "threshold", "accuracy", "auroc"),
    [
        ([-8, -7], [-4, -3], -5.5, 1.0, 1.0),  # halfway
        # 1 R 2 W 3 R 4 W 5: after the first or after the third, three of four are right
        ([1, 3], [2, 4], 3.5, 0.75, 0.75),
        ([4, 3], [2, 1], 2.5 + 2, 0.5, 0.0),  # the wrong way round: all or none, and the upper of the two
        ([1, 1], [1, 1], 1.5, 0.5, 0.5),
        ([1, 1, 1], [1], 1.5, 0.75, 0.5),  # never retrieve
        ([1], [1, 1, 1], 0.5, 0.75, 0.5),  # always
        ([0, 2], [2, 4], 3.0, 0.75, 0.875),  # 1 too; of the pairs 2-2 counts a half
    ],
)
def test_best_thresholds_by_hand(right, wrong, threshold: float, accuracy: float, auroc: float) -> None:
    found = best_threshold([*right, *wrong], [False] * len(right) + [True] * len(wrong))
    assert found == (threshold, accuracy, auroc)
    assert {type(part) for part in found} == {float}


def test_of_three_equally_good_thresholds_it_is_the_middle_one() -> None:
    # cuts 0.5 (WRWR: 2), 1.5 (1), 2.5 (2), 3.5 (1), 4.5 (2)
    assert best_threshold([1, 2, 3, 4], [True, False, True, False]).threshold == 2.5


@given(graded.filter(both_kinds))
def test_no_threshold_is_better(pairs: list[tuple[float, bool]]) -> None:
    scores, wrong = [score for score, _ in pairs], [label for _, label in pairs]

    def accuracy(delta: float) -> float:
        return sum((score > delta) == label for score, label in pairs) / len(pairs)

    found = best_threshold(scores, wrong)
    assert found.accuracy == accuracy(found.threshold)
    assert found.accuracy == max(accuracy(delta) for delta in [-100.0, *scores])


def test_scores_that_differ_in_the_last_digit_are_told_apart() -> None:
    low = 1.0
    high = math.nextafter(low, 2)
    assert best_threshold([low, high], [False, True]).accuracy == 1.0
    higher = math.nextafter(high, 2)  # what lies between these two is rounded to the upper one
    assert best_threshold([high, higher], [False, True]).accuracy == 1.0
    found = best_threshold([low, high, high], [True, True, False])
    assert (found.accuracy, found.threshold < low) == (2 / 3, True)


@pytest.mark.parametrize(
    ("scores", "wrong", "said"),
    [
        ([1.0, 2.0], [True, True], "All 2 answers are wrong"),
        ([1.0], [False], "All 1 answers are right"),
        ([], [], "All 0 answers"),
        ([1.0, math.nan], [True, False], "not finite"),
        ([1.0, math.inf], [True, False], "not finite"),
        ([1.0, 2.0], [True], r"shape \(2,\) and what was wrong \(1,\)"),
        ([[1.0, 2.0]], [[True, False]], r"shape \(1, 2\)"),
        ([1.0, 2.0], [0.2, 0.8], "must be true or false"),
    ],
)
def test_scores_that_are_refused(scores, wrong, said: str) -> None:
    with pytest.raises(UserFault, match=said):
        best_threshold(scores, wrong)


@pytest.mark.parametrize(("count", "holdout", "held"), [(60, 0.5, 30), (7, 0.3, 2), (5, 0.0, 0), (1, 0.95, 1)])
def test_the_questions_are_split_at_random_and_alike_each_time(count: int, holdout: float, held: int) -> None:
    calibration, held_back = split(range(count), holdout, 4)
    assert len(held_back) == held
    assert sorted([*calibration, *held_back]) == list(range(count))
    assert split(range(count), holdout, 4) == (calibration, held_back)
    assert count < 10 or split(range(count), holdout, 5) != (calibration, held_back)


@pytest.mark.parametrize(
    ("rule", "answer", "right"),
    [
        ("exact", "The Lune.", True),
        ("exact", "river Lune", False),
        ("f1:0.5", "river Lune", True),  # precision 1/2, recall 1: 2/3
        ("f1:0.66", "river Lune", True),
        ("f1:0.67", "river Lune", False),
        ("f1:1", "lune", True),
        ("f1:0.5", "", False),
        ("exact", " ", False),
        ("f1:0.001", "Wyre", False),
        ("cover_em:1", "It is the Lune, I think.", True),
        ("cover_em:1", "Lunesdale", False),
        ("accuracy:1", "the river Wye", True),
        ("rouge_l:0.6", "river Lune", True),  # precision 1/2, recall 1: 2/3
        ("rouge_l:0.7", "river Lune", False),
        ("bleu:1", "Lune", True),
        ("correctness:0.8", "Lune", False),  # it was not measured
    ],
)
def test_what_is_a_right_answer(rule: str, answer: str, right: bool) -> None:
    question = GoldQuestion("Which river?", ("Wye", "Lune"))
    assert is_right(answer, question, answer_rule(rule)) is right


@pytest.mark.parametrize(("answer", "right"), [("Wyre", True), (" ", False)])
def test_a_judge_says_what_is_right(answer: str, right: bool) -> None:
    question = GoldQuestion("Which river?", ("Wye", "Lune"))
    assert is_right(answer, question, answer_rule("correctness:0.75"), {"correctness": 7 / 9}) is right
    assert not is_right(answer, question, answer_rule("correctness:0.75"), {"correctness": 6 / 9})


@pytest.mark.parametrize(
    "rule",
    ["", "em", "f1", "f1:", "f1:0", "f1:-1", "f1:1.1", "f1:nan", "f1:x", "exact:1", "cover_em", "delta_seper:0.5"],
)
def test_rules_that_are_none(rule: str) -> None:
    with pytest.raises(UserFault, match="There is no rule"):
        answer_rule(rule)


# the file


def saved(path: Path, **more: Any) -> Calibration:
    found = Calibration(
        **{
            "technique": "sunar",
            "model": identity(CONTEXT.llm),
            "settings": settings_of(CONTEXT),
            "threshold": 0.4,
            "made_with": {"dubito": "0.1.0"},
            **more,
        }
    )
    found.save(path)
    return found


def test_a_threshold_comes_back_for_what_it_was_made_with(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    found = saved(path)
    assert Calibration.load(path, "sunar", CONTEXT) == found
    assert [file.name for file in tmp_path.iterdir()] == ["c.json"]
    assert is_calibration(path)
    # neither where the model and the corpus are nor what changes no score counts
    elsewhere = {
        "llm": "openai:https://other/v1#llama",
        "corpus": "/copy/notes.index",
        "concurrency": 2,
        "on_bad_record": "skip",
    }
    assert Calibration.load(str(path), "sunar", CONTEXT.model_copy(update=elsewhere)).threshold == 0.4


@pytest.mark.parametrize(
    ("technique", "change", "said"),
    [
        ("seakr", {}, "holds for sunar, not seakr"),
        ("sunar", {"llm": "vllm:http://127.0.0.1:8000/v1#qwen"}, "the chat model llama, not qwen"),
        ("sunar", {"llm": "embedded"}, "the chat model llama, not embedded"),
        ("sunar", {"budget": 100, "samples": 5}, "budget 32, not 100, samples 10, not 5"),
        ("sunar", {"encoder": "st:other"}, "encoder embedded, not st:other"),
        ("sunar", {"judge": "llm", "meta_evidence": False}, "judge auto, not llm, meta_evidence True, not"),
    ],
)  # fmt: skip
def test_a_threshold_of_something_else_is_refused(tmp_path: Path, technique: str, change, said: str) -> None:
    path = tmp_path / "c.json"
    saved(path)
    with pytest.raises(UserFault, match=f"{said}.*: use the settings it was made with, or calibrate again"):
        Calibration.load(path, technique, CONTEXT.model_copy(update=change))


def test_few_settings_may_be_all_that_matter(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    saved(path, technique="seakr", settings=settings_of(CONTEXT, ["samples", "temperature"]))
    assert Calibration.load(path, "seakr", CONTEXT.model_copy(update={"budget": 1})).settings == {
        "samples": 10,
        "temperature": 0.7,
    }
    with pytest.raises(UserFault, match="samples 10, not 3"):
        Calibration.load(path, "seakr", CONTEXT.model_copy(update={"samples": 3}))


def test_a_setting_that_there_is_no_more_is_refused(tmp_path: Path) -> None:
    saved(tmp_path / "c.json", settings={"layers": 3})
    with pytest.raises(UserFault, match="layers 3, not None"):
        Calibration.load(tmp_path / "c.json", "sunar", CONTEXT)


DEEP = pytest.param("[" * 100_000, id="deep")
NO_NUMBER = '{"technique": "sunar", "model": "m", "settings": {}, "threshold": NaN, "made_with": {}}'


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", "{}", '{"technique": "sunar"}', NO_NUMBER, "\x00", DEEP],
)
def test_a_file_that_is_no_calibration_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "c.json"
    path.write_text(content)
    assert not is_calibration(path)
    with pytest.raises(UserFault, match="is not a calibration: make one with dubito calibrate sunar"):
        Calibration.load(path, "sunar", CONTEXT)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserFault, match=r"There is no calibration at .*No such file"):
        Calibration.load(tmp_path / "c.json", "sunar", CONTEXT)
    assert not is_calibration(tmp_path / "c.json")
    with pytest.raises(UserFault, match="cannot be written"):
        saved(tmp_path / "nowhere" / "c.json")


def test_settings_of_a_context() -> None:
    found = settings_of(CONTEXT)
    left_out = {"preset", "concurrency", "on_bad_record", "calibration", "cite", "corpus", "llm"}
    assert set(SunarContext.model_fields) - set(found) == left_out
    assert (found["budget"], found["penalty"], found["chunker"]) == (32, "1/s", "words:100")
    assert settings_of(CONTEXT.model_copy(update={"encoder": "openai:http://a/v1#e5"}))["encoder"] == "e5"


@pytest.mark.parametrize(
    ("name", "which"),
    [
        ("vllm:http://127.0.0.1:8000/v1#meta-llama/Llama-2", "meta-llama/Llama-2"),
        ("openai:https://host/v1#m", "m"),
        ("vllm:http://127.0.0.1:8000/v1", "vllm:http://127.0.0.1:8000/v1"),
        ("vllm:http://a:8000/v1#m&states=http://a:8001/v1", "m"),
        ("vllm:http://a:8000/v1#m&states=http://a:8001/v1&layer=4", "m&layer=4"),
        ("vllm:http://b:9000#m&layer=4&states=http://b:9001", "m&layer=4"),
        ("engine:org/m?max_model_len=512&dtype=float32", "engine:org/m?dtype=float32"),
        ("engine:org/m?dtype=auto&tensor_parallel_size=2", "engine:org/m"),
        ("hf:/folder#1", "hf:/folder#1"),
        ("embedded", "embedded"),
    ],
)
def test_which_model_a_name_stands_for(name: str, which: str) -> None:
    assert identity(name) == which
