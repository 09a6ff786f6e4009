"""Names of models on vLLM's engine, and what is said where vLLM is not installed."""

import sys
from typing import Any

import pytest
from dubito.errors import UserFault, extra_command
from dubito.models.engine_options import engine_options
from dubito.models.vllm_engine import EngineChat, open_engine
from dubito.resources.opening import open_chat_model
from dubito.state.calibration import identity

OPTIONS = ["dtype", "tensor_parallel_size", "gpu_memory_utilization", "max_model_len", "enforce_eager"]


@pytest.mark.parametrize(
    ("name", "source", "given"),
    [
        ("engine:Qwen/Qwen2.5-7B-Instruct", "Qwen/Qwen2.5-7B-Instruct", {}),
        ("engine:/models/one:two", "/models/one:two", {}),
        ("engine:m?dtype=float32", "m", {"dtype": "float32"}),
        (
            "engine:m?tensor_parallel_size=2&gpu_memory_utilization=0.5&max_model_len=8192&enforce_eager=false",
            "m",
            {
                "tensor_parallel_size": 2,
                "gpu_memory_utilization": 0.5,
                "max_model_len": 8192,
                "enforce_eager": False,
            },
        ),
        (
            "engine:m?gpu_memory_utilization=1&enforce_eager=true",
            "m",
            {"gpu_memory_utilization": 1.0, "enforce_eager": True},
        ),
    ],
)
def test_options_stand_behind_the_models_name(name: str, source: str, given: dict[str, Any]) -> None:
    options = engine_options(name)
    assert options.source == source
    assert options.given == given


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("engine:m?quantization=awq", f"there is no option 'quantization', only {', '.join(OPTIONS)}"),
        ("engine:m?dtype=float32&", "there is no option ''"),
        ("engine:m?dtype=float32&dtype=float16", "it names dtype twice"),
        ("engine:m?dtype=int8", "dtype is one of auto, bfloat16, float16, float32, not 'int8'"),
        ("engine:m?tensor_parallel_size=0", "tensor_parallel_size is a number of GPUs from 1, not '0'"),
        ("engine:m?max_model_len=4k", "max_model_len is a number of tokens from 1, not '4k'"),
        ("engine:m?gpu_memory_utilization=1.5", "above 0 and at most 1, not '1.5'"),
        ("engine:m?gpu_memory_utilization=nan", "not 'nan'"),
        ("engine:m?enforce_eager=yes", "enforce_eager is true or false, not 'yes'"),
    ],
)
def test_an_option_that_cannot_be_read_is_named(name: str, what: str) -> None:
    with pytest.raises(UserFault) as fault:
        engine_options(name)
    assert str(fault.value).startswith(f"'{name}' cannot be read: ")
    assert what in str(fault.value)


def test_without_vllm_a_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vllm", None)  # as if it were not there, whatever this environment has
    monkeypatch.setattr("dubito.models.vllm_engine.find_spec", lambda name: None)
    with pytest.raises(UserFault) as fault:
        open_chat_model("engine:some/model")
    assert str(fault.value) == (
        f"engine:some/model needs vLLM, which is not installed: run `{extra_command('vllm')}`, or name a "
        "server instead, as in vllm:http://127.0.0.1:8000/v1#model."
    )


def test_a_folder_that_is_not_there_is_refused_at_once() -> None:
    with pytest.raises(UserFault, match="There is no model folder '/not/here'"):
        open_engine("engine:/not/here?dtype=float32")
    with pytest.raises(UserFault, match="use one of embedded, vllm:URL#model"):
        open_chat_model("engine:")


def test_a_compiled_model_shows_no_hidden_states() -> None:
    def capabilities(name: str) -> frozenset[str]:
        return EngineChat(name, engine_options(name)).capabilities

    eager = {"logprobs", "option_probabilities", "score", "seed", "pattern", "hidden_states", "inner_states"}
    assert capabilities("engine:m") == capabilities("engine:m?enforce_eager=true") == eager
    assert capabilities("engine:m?enforce_eager=false") == eager - {"hidden_states", "inner_states"}


def test_how_an_engine_runs_does_not_change_what_a_calibration_is_for() -> None:
    assert identity("engine:some/model?tensor_parallel_size=2") == identity("engine:some/model") == "engine:some/model"
