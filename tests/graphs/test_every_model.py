"""Every graph with every kind of chat model, all settings at their defaults: it answers, or says what to set."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from dubito.docs.generate import BACKENDS, works_with
from dubito.errors import UserFault
from dubito.graphs.registry import context_type, graph_named, graph_names
from dubito.models.interfaces import (
    MIDDLE_LAYER,
    Introspection,
    Message,
    Reply,
    Sampling,
    StatePlace,
    Tokens,
)
from dubito.resources.resources import Resources
from dubito.tests.scripted import QUERY, QUESTION, VECTORS, ScriptedChat, ScriptedEncoder, ScriptedRetriever, spoken
from dubito.tests.stub_server import Stub, completed, serving
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage
from langchain_core.outputs import ChatGeneration, ChatResult

SAYS = "So the final answer is: the Lune."


def token(text: str) -> dict[str, Any]:
    return {"token": text, "logprob": -0.5, "top_logprobs": [{"token": text, "logprob": -0.5}]}


@dataclass
class Server(Stub):
    """As Ollama, an older one, answers: a request for log-probabilities is ignored. `models` is what it lists."""

    logprobs: bool = False
    models: list[dict[str, Any]] = field(default_factory=lambda: [{"id": "m"}])

    def reply(self, body: dict[str, Any], authorization: str = "") -> tuple[int, dict[str, Any]]:
        self.script = lambda body: SAYS
        status, reply = super().reply(body, authorization)
        for choice in [] if self.logprobs else reply.get("choices", []):
            choice["logprobs"] = None
        return status, reply


@dataclass
class VLLM(Server):
    """As vLLM answers: choices that are confined, tokens that are words, and the log-probabilities of a prompt."""

    logprobs: bool = True
    scores: bool = True
    models: list[dict[str, Any]] = field(
        default_factory=lambda: [{"id": "m", "owned_by": "vllm", "max_model_len": 4096}]
    )

    def reply(self, body: dict[str, Any], authorization: str = "") -> tuple[int, dict[str, Any]]:
        if "messages" in body and "max_tokens" in body:
            if options := body.get("structured_outputs", {}).get("choice"):
                choice: dict[str, Any] = {
                    "message": {"role": "assistant", "content": options[0]},
                    "finish_reason": "stop",
                }
                logprobs = {"content": [{**token(options[0]), "logprob": -1e-4}]}
                logprobs["content"][0]["top_logprobs"] = [{"token": options[0], "logprob": -1e-4}]
                choice |= {"index": 0, "logprobs": logprobs, "token_ids": [1], "stop_reason": None}
                return 200, completed(body, [choice]) | {"prompt_token_ids": [1, 2]}
            return super().reply(body, authorization)
        if "messages" in body:
            return 200, {"tokens": [1, 2, 3]}
        if isinstance(body["prompt"], str):
            return 200, {"tokens": [len(word) for word in body["prompt"].split()]}
        if not self.scores:
            return 400, {"error": {"message": "prompt_logprobs is switched off", "type": "invalid_request_error"}}
        rows = [
            {
                "index": i,
                "text": "",
                "prompt_logprobs": [{str(t): {"logprob": -0.5, "decoded_token": "x"}} for t in ids],
            }
            for i, ids in enumerate(body["prompt"])
        ]
        return 200, completed(body, rows)


@dataclass
class InProcess(ScriptedChat):
    """A model in this process that can do what it says, and says always the same."""

    async def complete(self, messages: Sequence[Message], sampling: Sampling) -> Reply:
        return Reply((spoken(SAYS, sampling),) * sampling.n, Tokens(7, 3))

    async def introspect(
        self, messages: Sequence[Message], sampling: Sampling, place: StatePlace = MIDDLE_LAYER
    ) -> Introspection:
        states = np.tile(np.array([1.0, -1.0], dtype=np.float32), (sampling.n, 1))
        return Introspection(await self.complete(messages, sampling), states, 15)


def in_process(kind: str) -> InProcess:
    return InProcess(
        capabilities=BACKENDS[kind].capabilities,
        name=BACKENDS[kind].name,
        pick=lambda user, options: options[0],
        mean_logprob=lambda user, text: -0.5,
    )


class LangChain(BaseChatModel):
    """Any LangChain chat model."""

    @property
    def _llm_type(self) -> str:
        return "fixed"

    def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **more: Any) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=AIMessage(SAYS))])

    async def _agenerate(self, messages: Any, stop: Any = None, run_manager: Any = None, **more: Any) -> ChatResult:
        return self._generate(messages)


class Counting(ScriptedEncoder):
    """An encoder with a tokenizer."""

    async def token_counter(self) -> Any:
        return lambda text: len(text.split())


@dataclass(frozen=True)
class Opened:
    """A chat model, live or by its name."""

    live: Any = None
    name: str = "embedded"

    def resources(self) -> Resources:
        return Resources(llm=self.live, encoder=Counting(), retriever=ScriptedRetriever(QUERY, VECTORS))


@pytest.fixture(scope="module")
def models() -> Iterator[Mapping[str, Opened]]:
    """A model of each kind; a kind without a server of its own kind here is what its capabilities make it."""
    with ExitStack() as stack:
        plain, told, vllm = (stack.enter_context(serving(stub)) for stub in (Server(), Server(logprobs=True), VLLM()))
        yield {
            "plain": Opened(name=f"openai:{plain.url}#m"),
            "logprobs": Opened(name=f"{told.url}#m"),
            "vllm": Opened(name=vllm.url.removesuffix("/v1")),
            "langchain": Opened(LangChain()),
            **{kind: Opened(in_process(kind)) for kind in ("states", "engine", "weights", "embedded")},
        }


def given(graph: str) -> dict[str, Any]:
    return {"question": QUESTION, **({"answers": ["the Lune"]} if graph == "seper" else {})}


async def ran(graph: str, model: Opened, **settings: Any) -> dict[str, Any]:
    compiled = graph_named(graph, model.resources())
    output: dict[str, Any] = await compiled.ainvoke(given(graph), context={"llm": model.name, **settings})
    return output


PLAIN, ASKED, READ = "plain", "logprobs", "langchain"
ANSWERS: Mapping[str, Mapping[str, str]] = {
    "df_rag": {"": "likelihood", PLAIN: "report", ASKED: "report", READ: "report"},
    "seakr": {
        "": "set retrieval_threshold",
        "embedded": "gram",
        **dict.fromkeys([PLAIN, ASKED, READ, "vllm"], "prompt"),
    },
    "flare": {"": "yes", PLAIN: "no", READ: "no"},
    "seper": {"": "yes", PLAIN: "no", READ: "no"},
}
"""What becomes of a graph, "" for every other kind of model: what auto takes, `no` for a refusal, or what to set."""


@pytest.mark.parametrize("kind", BACKENDS)
@pytest.mark.parametrize("graph", graph_names())
async def test_it_answers_or_says_what_to_set(graph: str, kind: str, models: Mapping[str, Opened]) -> None:
    due = ANSWERS.get(graph, {"": "yes"})
    due_here, model = due.get(kind, due[""]), models[kind]
    assert works_with(context_type(graph_named(graph)), BACKENDS[kind]) == due_here, "the table in docs/models.md"
    if due_here == "no" or due_here.startswith("set "):
        with pytest.raises(UserFault) as fault:
            await ran(graph, model, **({} if graph == "cot" else {"corpus": "/nowhere"}))
        assert ("set llm to a model" if due_here == "no" else "set retrieval_threshold, or estimator=prompt") in str(
            fault.value
        )
        assert due_here == "no" or "dubito calibrate retrieval_threshold" in str(fault.value)
        if due_here == "no":
            return
    output = await ran(graph, model, **({"retrieval_threshold": -6} if due_here.startswith("set ") else {}))
    assert "Lune" in output["answer"]
    chosen = {name: choice["value"] for name, choice in output["chosen"].items()}
    assert due_here in {"yes", *chosen.values()} or chosen["estimator"] == "gram"
    assert all(choice["because"] for choice in output["chosen"].values())


async def test_a_vllm_server_that_scores_nothing_is_found_out_before_the_run() -> None:
    with serving(VLLM(scores=False)) as stub:
        model = Opened(name=f"vllm:{stub.url}#m")
        output = await ran("df_rag", model)
        assert output["chosen"]["evaluator"]["value"] == "report"
        (told,) = [warning for warning in output["warnings"] if "log-probabilities" in warning]
        assert "prompt_logprobs is switched off" in told
        with pytest.raises(UserFault, match=r"evaluator=likelihood needs .* set evaluator=report"):
            await ran("df_rag", model, evaluator="likelihood", corpus="/nowhere")


async def test_a_threshold_of_another_scale_is_refused(models: Mapping[str, Opened]) -> None:
    with pytest.raises(UserFault, match="retrieval_threshold=-6 is no probability"):
        await ran("seakr", models["plain"], retrieval_threshold=-6)


async def test_a_setting_that_auto_leaves_without_effect_gives_a_warning(models: Mapping[str, Opened]) -> None:
    output = await ran("seakr", models["plain"], samples=7)
    assert "samples has no effect with estimator=prompt, which auto has chosen." in output["warnings"]


async def test_without_an_encoder_the_chat_model_judges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dubito.resources.fitting.can_encode", lambda name: False)
    model = in_process("vllm")
    resources = Resources(llm=model, retriever=ScriptedRetriever(QUERY, VECTORS))
    dense = await graph_named("dense", resources).ainvoke({"question": QUESTION})
    assert dense["chosen"]["judge"] == {"value": "llm:calibrated", "because": "no encoder is installed"}
    sunar = await graph_named("neighbourhood", resources).ainvoke({"question": QUESTION})
    assert {name: choice["value"] for name, choice in sunar["chosen"].items()} == {
        "judge": "llm:calibrated",
        "reranker": "likelihood",
    }
    assert math.isfinite(sunar["scored"][0]["raw_score"])
    without_probabilities = Resources(llm=in_process("plain"), retriever=ScriptedRetriever(QUERY, VECTORS))
    dense = await graph_named("dense", without_probabilities).ainvoke({"question": QUESTION})
    assert dense["chosen"]["judge"]["value"] == "llm"
