"""δ: set, calibrated, or built in for a model and an estimator; never another model's."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import pytest
from dubito.errors import UserFault
from dubito.nodes.thresholds import BUILT_IN, model_of, threshold_of
from dubito.nodes.uncertainty_estimators import ESTIMATORS
from dubito.state.calibration import Calibration, identity, settings_of
from dubito.state.capability import Capability
from dubito.state.seakr import NEEDS, Estimator, SeaKRContext


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("embedded", "embedded"),
        ("hf:meta-llama/Llama-2-7b-chat-hf", "meta-llama/Llama-2-7b-chat-hf"),
        ("hf:/models/llama", "/models/llama"),
        ("gguf:/models/m.gguf", "/models/m.gguf"),
        ("vllm:http://127.0.0.1:8000/v1#meta-llama/Llama-2-7b-chat-hf", "meta-llama/Llama-2-7b-chat-hf"),
        ("vllm:http://h:1/v1#m&states=http://h:2/v1", "m"),
        ("vllm:http://h:1/v1#m&states=http://h:2/v1#other", "m"),
        ("openai:https://host/v1#gpt", "gpt"),
        ("vllm:http://h:1/v1", "vllm:http://h:1/v1"),
    ],
)
def test_the_model_that_a_name_stands_for(name: str, model: str) -> None:
    assert model_of(name) == model


AUTHORS = {"states": "feed_forward", "at": "eos"}


def threshold(**settings: Any) -> float:
    """δ if the context's model answers."""
    context = SeaKRContext(**settings).fitted(NEEDS["gram"] | NEEDS["energy"] | {"inner_states"})
    return threshold_of(context, context.llm)


@pytest.mark.parametrize(
    ("settings", "delta"),
    [
        ({}, BUILT_IN["embedded", 20, ("residual", "last")]),
        ({"preset": "paper"}, -6.0),
        ({"llm": "hf:meta-llama/Meta-Llama-3-8B", **AUTHORS}, -6.0),
        ({"llm": "engine:meta-llama/Llama-2-7b-chat-hf?dtype=float16", **AUTHORS}, -6.0),
        ({"estimator": "prompt"}, 0.5),
        ({"estimator": "prompt", "llm": "hf:other"}, 0.5),
        ({"retrieval_threshold": -4}, -4.0),
        ({"retrieval_threshold": "-4.5", "llm": "hf:other"}, -4.5),
        ({"retrieval_threshold": " 1e3 ", "estimator": "energy"}, 1000.0),
    ],
)
def test_the_threshold(settings: dict[str, Any], delta: float) -> None:
    assert threshold(**settings) == delta


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"llm": "hf:other"}, "the model 'other' and 20 samples"),
        ({"samples": 7}, "the model 'embedded' and 7 samples"),
        ({"layer": 3}, "'gram' with states=residual, at=last, the model 'embedded'"),
        ({"alpha": 0.01, "preset": "paper"}, "at=eos, the model 'meta-llama/Llama-2-7b-chat-hf'"),
        ({"states": "feed_forward"}, "'gram' with states=feed_forward, at=last, the model 'embedded'"),
        ({"at": "eos"}, "'gram' with states=residual, at=eos, the model 'embedded'"),
        ({"llm": "hf:meta-llama/Meta-Llama-3-8B"}, "states=residual, at=last, the model 'meta-llama/Meta-Llama-3-8B'"),
        ({"llm": "hf:other", **AUTHORS}, "set retrieval_threshold=-6 to begin with .the paper's"),
        ({"estimator": "perplexity"}, "'perplexity' with the model 'embedded'"),
    ],
)
def test_no_threshold_is_known(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserFault, match=message) as fault:
        threshold(**settings)
    assert "set retrieval_threshold" in str(fault.value)
    assert "\n" not in str(fault.value)


def test_a_live_model_does_not_get_the_threshold_of_the_one_that_the_context_names() -> None:
    with pytest.raises(UserFault, match="the model 'langchain:ChatOllama#big'"):
        threshold_of(SeaKRContext(estimator="gram"), "langchain:ChatOllama#big")


def calibrated(path: Path, context: SeaKRContext, *names: str) -> str:
    """A calibration file with the threshold −4.25 that depends on these settings."""
    settings = settings_of(context, names)
    model = identity(context.llm)
    Calibration(technique="retrieval_threshold", model=model, settings=settings, threshold=-4.25, made_with={}).save(
        path
    )
    return str(path)


WITH: dict[str, Any] = {"llm": "vllm:http://h:1/v1#m&states=http://h:2/v1", "estimator": "energy"}


def test_a_calibration_says_the_threshold(tmp_path: Path) -> None:
    file = calibrated(tmp_path / "c.json", SeaKRContext(**WITH), "estimator", "samples")
    assert threshold(**WITH, threshold_file=file) == -4.25
    moved = {**WITH, "llm": "vllm:http://elsewhere:1/v1#m&states=http://elsewhere:2/v1"}
    assert threshold(**moved, threshold_file=file) == -4.25
    assert threshold(**WITH, threshold_file=file, retrieval_threshold="-3") == -3, "what is set wins"


def test_a_threshold_file_is_compared_with_the_live_model_that_answers(tmp_path: Path) -> None:
    file = calibrated(tmp_path / "c.json", SeaKRContext(**WITH), "estimator", "samples")
    context = SeaKRContext(estimator="energy", threshold_file=file)
    assert threshold_of(context, WITH["llm"]) == -4.25
    with pytest.raises(UserFault, match="holds for the chat model m, not langchain:ChatOpenAI#gpt"):
        threshold_of(SeaKRContext(**WITH, threshold_file=file), "langchain:ChatOpenAI#gpt")


def test_a_threshold_of_another_layer_of_the_states_server_is_refused(tmp_path: Path) -> None:
    at_4, at_20 = ({**WITH, "llm": f"{WITH['llm']}&layer={layer}"} for layer in (4, 20))
    file = calibrated(tmp_path / "c.json", SeaKRContext(**at_4), "estimator", "samples")
    assert threshold(**at_4, threshold_file=file) == -4.25
    with pytest.raises(UserFault, match="holds for the chat model m&layer=4, not m&layer=20"):
        threshold(**at_20, threshold_file=file)


GRAM: dict[str, Any] = {"llm": "hf:other", "estimator": "gram"}


def test_a_calibration_holds_for_its_hidden_states_alone(tmp_path: Path) -> None:
    context = SeaKRContext(**GRAM, **AUTHORS)
    file = calibrated(tmp_path / "c.json", context, "estimator", "states", "at")
    assert threshold(**GRAM, **AUTHORS, threshold_file=file) == -4.25
    with pytest.raises(UserFault, match="states feed_forward, not residual, at eos, not last"):
        threshold(**GRAM, threshold_file=file)


def test_a_calibration_that_does_not_say_its_hidden_states_is_refused(tmp_path: Path) -> None:
    file = calibrated(tmp_path / "c.json", SeaKRContext(**GRAM), "estimator", "samples")
    with pytest.raises(UserFault, match="does not say which hidden states it was found with") as fault:
        threshold(**GRAM, threshold_file=file)
    assert "\n" not in str(fault.value)


def test_the_papers_preset_says_what_the_model_does_not_show() -> None:
    context = SeaKRContext(preset="paper", llm="vllm:http://h:1/v1#m&states=http://h:2/v1").fitted(NEEDS["gram"])
    assert context.quantity() == ("residual", "last")
    assert "no outputs of its feed-forward blocks" in context.chosen["states"]["because"]
    with pytest.raises(UserFault, match="states=feed_forward and at=eos: the model shows no outputs"):
        threshold_of(context, "vllm:http://h:1/v1#meta-llama/Llama-2-7b-chat-hf")


def test_another_settings_calibration_is_refused(tmp_path: Path) -> None:
    file = calibrated(tmp_path / "c.json", SeaKRContext(**WITH), "estimator", "max_step_tokens")
    with pytest.raises(UserFault, match="max_step_tokens 100, not 10"):
        threshold(**WITH, max_step_tokens=10, threshold_file=file)


def test_a_calibration_that_is_not_there_is_refused_though_a_threshold_is_built_in(tmp_path: Path) -> None:
    with pytest.raises(UserFault, match="There is no calibration at"):
        threshold(threshold_file=str(tmp_path / "none.json"))


@pytest.mark.parametrize("estimator", [name for name in get_args(Estimator) if name not in {"gram", "prompt"}])
def test_a_threshold_of_gram_is_no_other_estimators(estimator: Any) -> None:
    with pytest.raises(UserFault, match="No threshold is known"):
        threshold(estimator=estimator)


@pytest.mark.parametrize("threshold", ["", "high", "nan", "-inf", "1e999", None, "-6,0", True, []])
def test_a_threshold_is_a_finite_number_or_known(threshold: Any) -> None:
    with pytest.raises(UserFault, match="must be a number, or 'known'"):
        SeaKRContext(retrieval_threshold=threshold)


def test_every_estimator_measures_and_says_what_it_needs() -> None:
    names = set(get_args(Estimator))
    assert set(NEEDS) == set(ESTIMATORS) == names
    assert names == {
        *("gram", "prompt", "perplexity", "multi_perplexity", "ln_entropy", "energy"),
        *("semantic_entropy", "degree_entropy"),
    }
    for name, needs in NEEDS.items():
        assert needs <= set(get_args(Capability))
        assert SeaKRContext(estimator=name).needs() == needs
