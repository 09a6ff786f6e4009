"""Whose hidden state is whose, in batches of both of vLLM's model runners; no vLLM is needed."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch: Any = pytest.importorskip("torch")

from dubito.models.engine_options import ASK_STATE  # noqa: E402
from dubito.models.engine_worker import ReadsStates  # noqa: E402

LAYERS = 3


class Ones(torch.nn.Module):  # type: ignore[misc]
    def forward(self, hidden: Any) -> Any:
        return torch.ones_like(hidden)


class Layer(torch.nn.Module):  # type: ignore[misc]
    """Its feed-forward block says 1; the residual is added by whoever comes next, as vLLM's layers leave it."""

    def __init__(self) -> None:
        super().__init__()
        self.mlp = Ones()

    def forward(self, hidden: Any, residual: Any) -> tuple[Any, Any]:
        residual = hidden if residual is None else residual.add_(hidden)
        return self.mlp(residual), residual


class Stack(torch.nn.Module):  # type: ignore[misc]
    """A row of layers; like vLLM's it is called without its hooks."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(Layer() for _ in range(LAYERS))

    def __call__(self, tokens: Any) -> Any:
        hidden, residual = torch.stack([tokens, 10 * tokens], dim=1), None
        for layer in self.layers:
            hidden, residual = layer(hidden, residual)
        return -(hidden + residual)  # the final norm's part


class Model(torch.nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.model = Stack()

    def forward(self, tokens: Any) -> Any:
        return self.model(tokens)


class Runner:
    """Runs batches in the order of `order`, as V1's runner (its batch is its own) or V2's (in the state of a step)."""

    def __init__(self, version: str) -> None:
        self.model_config = SimpleNamespace(hf_text_config=SimpleNamespace(num_hidden_layers=LAYERS))
        self.model = Model()
        self.version = version
        self.order: list[str] = []
        self.tokens: dict[str, list[int]] = {}
        self.execute_model_state: Any = None
        if version == "V1":
            self.input_batch: Any = None

    def get_model(self) -> Model:
        return self.model

    def execute_model(self, batch: Batch, intermediate: None = None) -> str:
        ids: list[int] = []
        for name in self.order:
            start = batch.before(name)
            ids += self.tokens[name][start : start + batch.num_scheduled_tokens[name]]
        self.model(torch.tensor([*ids, 0, 0], dtype=torch.float32))  # padded
        step = SimpleNamespace(req_ids=self.order)
        if self.version == "V1":
            self.input_batch, self.execute_model_state = step, ("a", "tuple")
        else:
            self.execute_model_state = SimpleNamespace(input_batch=step)
        return "told"


@dataclass
class Batch:
    """vLLM's SchedulerOutput, as far as it is looked at."""

    num_scheduled_tokens: dict[str, int]
    scheduled_new_reqs: list[Any] = field(default_factory=list)
    cached: dict[str, int] = field(default_factory=dict)
    finished_req_ids: set[str] = field(default_factory=set)

    @property
    def scheduled_cached_reqs(self) -> Any:
        return SimpleNamespace(req_ids=list(self.cached), num_computed_tokens=list(self.cached.values()))

    def before(self, name: str) -> Any:
        return {new.req_id: new.num_computed_tokens for new in self.scheduled_new_reqs}.get(
            name, self.cached.get(name, 0)
        )


def new(name: str, tokens: list[int], computed: int = 0, asks: list[Any] | None = None) -> Any:
    extra = None if asks is None else {ASK_STATE: [*asks, "residual"][:3], "else": 1}
    return SimpleNamespace(
        req_id=name,
        prompt_token_ids=tokens,
        num_computed_tokens=computed,
        sampling_params=SimpleNamespace(extra_args=extra),
    )


@pytest.fixture(params=["V1", "V2"])
def runner(request: pytest.FixtureRequest) -> Runner:
    return Runner(request.param)


@pytest.fixture
def worker(runner: Runner) -> ReadsStates:
    worker = ReadsStates()
    worker.model_runner = runner
    assert worker.dubito_layers() == [LAYERS, LAYERS]
    return worker


def run(runner: Runner, batch: Batch) -> None:
    assert runner.execute_model(batch, None) == "told"


def taken(worker: ReadsStates, *keys: str) -> dict[str, list[float]]:
    return {key: np.frombuffer(state, np.float32).tolist() for key, state in worker.dubito_take(list(keys)).items()}


def test_each_prompts_last_token_is_read_at_its_layer_wherever_it_lies(runner: Runner, worker: ReadsStates) -> None:
    runner.tokens = {"a": [1, 2, 3], "b": [4, 5], "c": [6], "plain": [7, 8]}
    runner.order = ["plain", "c", "a", "b"]
    requests = [
        new("a", [1, 2, 3], asks=["ka", 1]),
        new("b", [4, 5], asks=["kb", 2]),
        new("c", [6], asks=["kc", LAYERS]),
        new("plain", [7, 8]),
    ]
    run(runner, Batch({"a": 3, "b": 2, "c": 1, "plain": 2}, requests))
    # layer N adds 1 to the token and to ten times the token; the last one's goes through the norm
    assert taken(worker, "ka", "kb", "kc", "none") == {"ka": [4, 31], "kb": [7, 52], "kc": [-9, -63]}
    assert taken(worker, "ka", "kb", "kc") == {}, "they are kept once"


def test_what_is_cached_or_read_in_parts_is_kept_when_its_end_is_read(runner: Runner, worker: ReadsStates) -> None:
    runner.tokens = {"long": [1, 2, 3, 4, 5], "hit": [11, 12, 13]}
    runner.order = ["long"]
    run(runner, Batch({"long": 2}, [new("long", [1, 2, 3, 4, 5], asks=["k", 1])]))
    assert taken(worker, "k") == {}
    runner.order = ["hit", "long"]
    run(runner, Batch({"long": 2, "hit": 1}, [new("hit", [11, 12, 13], computed=2, asks=["h", 1])], {"long": 2}))
    assert taken(worker, "k", "h") == {"h": [14, 131]}
    runner.order = ["long"]
    run(runner, Batch({"long": 1}, cached={"long": 4}))
    assert taken(worker, "k") == {"k": [6, 51]}
    run(runner, Batch({"long": 1}, cached={"long": 4}))
    assert taken(worker, "k") == {}, "what comes after the prompt is not asked for"


def test_a_request_that_was_given_up_is_forgotten(runner: Runner, worker: ReadsStates) -> None:
    runner.tokens, runner.order = {"gone": [1, 2, 3]}, ["gone"]
    run(runner, Batch({"gone": 2}, [new("gone", [1, 2, 3], asks=["k", 1])]))
    runner.order = []
    run(runner, Batch({}, finished_req_ids={"gone"}))
    runner.order = ["gone"]
    run(runner, Batch({"gone": 1}, cached={"gone": 2}))
    assert taken(worker, "k") == {}


def test_layers_that_are_hooked_are_let_go(runner: Runner, worker: ReadsStates) -> None:
    runner.tokens, runner.order = {"a": [1]}, ["a"]
    run(runner, Batch({"a": 1}, [new("a", [1], asks=["k", 2])]))
    assert not any(module._forward_hooks for module in runner.model.modules())


def test_a_layer_of_another_process_is_left_to_it() -> None:
    runner = Runner("V1")

    class PPMissingLayer(Layer):
        pass

    runner.model.model.layers[0] = PPMissingLayer()
    worker = ReadsStates()
    worker.model_runner = runner
    assert worker.dubito_layers() == [LAYERS, LAYERS], "those of another process count"
    runner.tokens, runner.order = {"a": [1], "b": [2]}, ["a", "b"]
    run(runner, Batch({"a": 1, "b": 1}, [new("a", [1], asks=["ka", 1]), new("b", [2], asks=["kb", 2])]))
    assert taken(worker, "ka", "kb") == {"kb": [4, 22]}


def test_a_model_without_a_row_of_layers_says_so() -> None:
    runner = Runner("V1")
    runner.model_config.hf_text_config.num_hidden_layers = LAYERS + 1
    worker = ReadsStates()
    worker.model_runner = runner
    assert worker.dubito_layers() == [0, 0]


def test_a_feed_forward_block_is_read_without_the_residual(runner: Runner, worker: ReadsStates) -> None:
    runner.model.model.layers[1].mlp.forward = lambda hidden: 3 * hidden
    runner.tokens, runner.order = {"a": [1, 2], "b": [5]}, ["b", "a"]
    asks = [new("a", [1, 2], asks=["ka", 2, "feed_forward"]), new("b", [5], asks=["kb", 2])]
    run(runner, Batch({"a": 2, "b": 1}, asks))
    # layer 1 adds 1 to (2, 20); the block of layer 2 says three times that, and the layer adds it to (5, 50) and 1
    assert taken(worker, "ka", "kb") == {"ka": [9, 63], "kb": [24, 204]}


def test_layers_without_a_feed_forward_block_say_so() -> None:
    runner = Runner("V1")
    del runner.model.model.layers[2].mlp
    worker = ReadsStates()
    worker.model_runner = runner
    assert worker.dubito_layers() == [LAYERS, LAYERS - 1]
