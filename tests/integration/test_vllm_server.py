"""The chat backend against a real vLLM server, and its numbers against transformers on the same weights."""

from __future__ import annotations

import asyncio
import json
import math
import re
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
from dubito.cli import app
from dubito.errors import ContextOverflow, ContractFault, ModelFault, UserFault
from dubito.graphs import dense_rag, df_rag
from dubito.models.interfaces import Message, Sampling
from dubito.models.openai_chat import OpenAIChat
from dubito.nodes.evaluate import MAX_REPORT_TOKENS
from dubito.prompts import report
from dubito.resources.resources import Resources
from dubito.state.dense_rag import DenseRagContext
from dubito.state.df_rag import DFRagContext
from dubito.state.records import Chunk
from dubito.tests.scripted import QUERY, VECTORS, ScriptedEncoder, ScriptedRetriever
from typer.testing import CliRunner

from .conftest import VLLMServer

pytestmark = pytest.mark.vllm

QUESTION: list[Message] = [{"role": "user", "content": "Is Paris the capital of France? Answer yes or no."}]
RATE: list[Message] = [
    {"role": "user", "content": "How good is the film Alien, from 0 (bad) to 5 (good)? Give a number."}
]
RATE_TO_TEN: list[Message] = [{"role": "user", "content": "Rate the film Alien from 1 to 10. Give only the number."}]
LISTED = "Reply with exactly one of these and nothing else: yes | no"
SAY: list[Message] = [{"role": "user", "content": "Say yes or no."}]
TOWNS = [
    "Ada Holm founded a paper mill.",
    "Ada Holm's mill made paper for forty years.",
    "The mill of Ada Holm burned down in 1911.",
    "Ada Holm was born in Kirkby.",
    "Holm is also the name of a village.",
    "The Lune flows past Kirkby.",
    "Kirkby has a market on Mondays.",
]
STORY: list[Message] = [{"role": "user", "content": "Tell me a story about a fox."}]


@pytest.fixture
def chat(vllm_server: VLLMServer) -> OpenAIChat:
    return OpenAIChat(f"vllm:{vllm_server.base_url}#smollm2", vllm_server.base_url, "smollm2", "vllm")


class Reference:
    """The same weights in transformers."""

    def __init__(self, folder: Path) -> None:
        import torch  # noqa: PLC0415
        import transformers  # noqa: PLC0415

        self.torch = torch
        self.tokenizer: Any = transformers.AutoTokenizer.from_pretrained(folder)
        self.model: Any = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)

    def prompt(self, messages: list[Message]) -> list[int]:
        text = self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        return self.ids(text)

    def ids(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids

    def logprobs(self, prompt: list[int], continuation: list[int]) -> list[float]:
        with self.torch.inference_mode():
            logs = self.model(self.torch.tensor([prompt + continuation])).logits[0].double().log_softmax(-1)
        return [float(logs[len(prompt) - 1 + i, token]) for i, token in enumerate(continuation)]

    def next(self, prompt: list[int]) -> list[float]:
        """The probability of every token after a prompt."""
        with self.torch.inference_mode():
            probabilities: list[float] = (
                self.model(self.torch.tensor([prompt])).logits[0, -1].double().softmax(-1).tolist()
            )
        return probabilities


@pytest.fixture(scope="module")
def reference(smollm2_folder: Path) -> Reference:
    return Reference(smollm2_folder)


async def test_samples_carry_the_log_probabilities_of_the_model(chat: OpenAIChat, reference: Reference) -> None:
    reply = await chat.complete(STORY, Sampling(n=4, temperature=0.7, max_tokens=12, seed=1, logprobs=True))

    assert len(reply.completions) == 4
    assert len({c.text for c in reply.completions}) > 1
    assert reply.tokens.prompt == len(reference.prompt(STORY))
    assert reply.tokens.completion == sum(len(c.tokens) for c in reply.completions)
    for completion in reply.completions:
        assert completion.finish_reason == "length"
        assert "".join(t.text for t in completion.tokens) == completion.text
        ids = [
            reference.tokenizer.convert_tokens_to_ids(reference.tokenizer.tokenize(t.text))[0]
            for t in completion.tokens
        ]
        # temperature 0.7 samples, but the log-probabilities are the model's own
        expected = reference.logprobs(reference.prompt(STORY), ids)
        assert [t.logprob for t in completion.tokens] == pytest.approx(expected, abs=1e-3)


async def test_a_greedy_reply_ends_with_its_mark_and_scores_as_it_was_written(chat: OpenAIChat) -> None:
    completion = (await chat.complete(QUESTION, Sampling(max_tokens=64, logprobs=True))).completions[0]
    assert completion.finish_reason == "stop"
    assert "".join(t.text for t in completion.tokens) == completion.text
    assert completion.tokens[-1].text == ""

    (scored,) = (await chat.score(QUESTION, [completion.text])).continuations
    assert [t.text for t in scored] == [t.text for t in completion.tokens[:-1]]
    assert [t.logprob for t in scored] == pytest.approx([t.logprob for t in completion.tokens[:-1]], abs=1e-3)


async def test_equal_greedy_continuations_cost_one(chat: OpenAIChat) -> None:
    reply = await chat.complete(STORY, Sampling(n=3, max_tokens=5))
    assert [c.text for c in reply.completions] == [reply.text] * 3
    assert reply.tokens.completion == 5


@pytest.mark.parametrize(("messages", "options"), [(RATE, list("012345")), (QUESTION, ["yes", "no"])])
async def test_choice_probabilities_agree_with_scoring(
    chat: OpenAIChat, messages: list[Message], options: list[str]
) -> None:
    choice = await chat.choose(messages, options)
    scores = await chat.score(messages, options)

    likelihoods = [math.exp(sum(t.logprob for t in option)) for option in scores.continuations]
    assert list(choice.probabilities) == options
    assert sum(choice.probabilities.values()) == pytest.approx(1)
    # confined decoding may also spell an option in other tokens (n, o), which scoring leaves out
    expected = [likelihood / sum(likelihoods) for likelihood in likelihoods]
    assert list(choice.probabilities.values()) == pytest.approx(expected, abs=0.02)


async def test_options_that_begin_alike_are_told_apart_where_they_differ(
    chat: OpenAIChat, reference: Reference
) -> None:
    prompt = reference.prompt(RATE_TO_TEN)
    one, zero, end = (reference.ids(text)[0] for text in ("1", "0", "<|im_end|>"))

    # the first digit as decoding confined to the options would draw it, then 1 ends or goes on to 10
    after = reference.next(prompt)
    digits = [after[reference.ids(str(i))[0]] for i in range(1, 10)]
    first = [digit / sum(digits) for digit in digits]
    after = reference.next([*prompt, one])
    ten = after[zero] / (after[zero] + after[end])
    expected = [first[0] * (1 - ten), *first[1:], first[0] * ten]

    choice = await chat.choose(RATE_TO_TEN, [str(i) for i in range(1, 11)])
    assert list(choice.probabilities.values()) == pytest.approx(expected, abs=1e-3)
    assert sum(choice.probabilities.values()) == pytest.approx(1)
    # the same where the reply itself does not begin with the digit that is shared
    without = [str(i) for i in range(1, 11) if i != 1]
    assert (await chat.choose(RATE_TO_TEN, without)).probabilities["10"] == pytest.approx(first[0], abs=1e-3)


async def test_scores_equal_transformers_on_the_same_weights(chat: OpenAIChat, reference: Reference) -> None:
    continuations = ["Yes", "No, it is not.", "", " leading space", "¿Qué? 東京 🎉", "Yes, Paris is.\n\nIndeed"]
    scores = await chat.score(QUESTION, continuations)

    prompt = reference.prompt(QUESTION)
    for text, scored in zip(continuations, scores.continuations, strict=True):
        expected = reference.logprobs(prompt, reference.ids(text)) if text else []
        assert [t.logprob for t in scored] == pytest.approx(expected, abs=1e-3)
    assert "".join(t.text for t in scores.continuations[1]) == "No, it is not."
    assert scores.tokens.prompt == sum(len(prompt) + len(reference.ids(text)) for text in continuations if text)


async def test_behind_a_long_prompt_scores_come_from_the_prefix_cache(chat: OpenAIChat, reference: Reference) -> None:
    long: list[Message] = [{"role": "user", "content": "The mill stands by the river. " * 70 + "What stands there?"}]
    continuations = ["The mill", "", "A bridge"]
    scores = await chat.score(long, continuations)

    prompt = reference.prompt(long)
    for text, scored in zip(continuations, scores.continuations, strict=True):
        expected = reference.logprobs(prompt, reference.ids(text)) if text else []
        assert [t.logprob for t in scored] == pytest.approx(expected, abs=1e-3)
    assert scores.tokens.prompt == len(prompt) + sum(len(reference.ids(text)) for text in continuations)


async def test_equal_seeds_give_equal_samples(chat: OpenAIChat) -> None:
    async def sample(seed: int) -> list[str]:
        reply = await chat.complete(STORY, Sampling(n=3, temperature=1.0, max_tokens=10, seed=seed))
        return [c.text for c in reply.completions]

    first, again, other = await asyncio.gather(sample(7), sample(7), sample(8))
    assert first == again
    assert first != other


async def test_stop_strings_end_a_reply_before_themselves(chat: OpenAIChat) -> None:
    whole = (await chat.complete(STORY, Sampling(max_tokens=24))).text
    stop = whole.split()[3]
    completion = (await chat.complete(STORY, Sampling(max_tokens=24, stop=(stop,), logprobs=True))).completions[0]
    assert completion.text == whole[: whole.index(stop)]
    assert "".join(t.text for t in completion.tokens) == completion.text
    assert completion.tokens[-1].text  # no end mark
    assert completion.finish_reason == "stop"


async def test_a_reply_that_is_kept_to_its_pattern_can_be_read_where_a_free_one_cannot(chat: OpenAIChat) -> None:
    steps = ["Find the founder of the paper mill", "Find where the founder was born"]
    chunks: list[Chunk] = [{"id": text, "doc_id": text, "title": "Ada Holm", "text": text} for text in TOWNS[:4]]
    messages, sampling = report.messages(steps, chunks, examples=False), Sampling(max_tokens=MAX_REPORT_TOKENS)
    with pytest.raises(ContractFault):
        report.parse((await chat.complete(messages, sampling)).text, len(steps))
    pattern = report.pattern(len(steps))
    kept = (await chat.complete(messages, replace(sampling, pattern=pattern))).text
    assert re.fullmatch(pattern, kept)
    assert report.parse(kept, len(steps))


async def test_window_and_counts_are_the_servers(chat: OpenAIChat, reference: Reference) -> None:
    texts = ["Paris", "", "¿Qué? 東京 🎉", "In 1999, 42 foxes ran."]
    assert await chat.window() == 4096
    assert await chat.count(texts) == [len(reference.ids(text)) if text else 0 for text in texts]


async def test_a_prompt_that_does_not_fit_is_an_overflow(chat: OpenAIChat) -> None:
    long: list[Message] = [{"role": "user", "content": "word " * 6000}]
    full: list[Message] = [{"role": "user", "content": "word " * (4096 - 31)}]
    assert await chat.count([full[0]["content"]]) == [4096 - 30]  # and 30 tokens of the template: exactly the window

    with pytest.raises(ContextOverflow, match=r"\(at least 4097 tokens\).*window of 4096 tokens.*max_model_len"):
        await chat.complete(long, Sampling(max_tokens=4))
    with pytest.raises(ContextOverflow, match="window of 4096 tokens"):
        await chat.complete(QUESTION, Sampling(max_tokens=9000))
    with pytest.raises(ContextOverflow):
        await chat.complete(full, Sampling(max_tokens=4))
    with pytest.raises(ContextOverflow):
        await chat.choose(long, ["yes", "no"])
    with pytest.raises(ContextOverflow):
        await chat.score(long, ["yes", "no"])


async def test_a_model_that_is_not_served_is_the_users_fault(vllm_server: VLLMServer) -> None:
    chat = OpenAIChat("other", vllm_server.base_url, "gpt-5", "vllm")
    for call in (
        chat.complete(QUESTION, Sampling()),
        chat.choose(QUESTION, ["yes", "no"]),
        chat.score(QUESTION, ["yes"]),
        chat.window(),
        chat.count(["yes"]),
    ):
        with pytest.raises(UserFault, match=r"does not serve the model gpt-5; it serves smollm2\."):
            await call


async def test_the_only_model_need_not_be_named(vllm_server: VLLMServer) -> None:
    chat = OpenAIChat("any", vllm_server.base_url)
    assert (await chat.complete(QUESTION, Sampling(max_tokens=2))).text
    with pytest.raises(UserFault, match=r"is not an OpenAI-compatible API; most base URLs end in /v1"):
        await OpenAIChat("root", vllm_server.base_url.removesuffix("/v1"), "smollm2").complete(QUESTION, Sampling())


async def test_the_plain_flavour_reads_the_same_server(vllm_server: VLLMServer, reference: Reference) -> None:
    chat = OpenAIChat("plain", vllm_server.base_url, "smollm2", "openai")
    choice = await chat.choose(SAY, ["yes", "no"])

    after = reference.next(reference.prompt([{"role": "user", "content": f"{SAY[0]['content']}\n\n{LISTED}"}]))
    likely = sorted(range(len(after)), key=after.__getitem__, reverse=True)[:20]
    words = {token: reference.tokenizer.decode([token]).strip().lower() for token in likely}
    yes, no = (
        sum(after[t] for t, word in words.items() if word and option.startswith(word)) for option in ("yes", "no")
    )
    assert yes + no > 0.5, "the options must have the greater part, or the reply would be read instead"
    assert choice.probabilities["yes"] == pytest.approx(yes / (yes + no), abs=1e-3)
    assert sum(choice.probabilities.values()) == pytest.approx(1)


@pytest.mark.parametrize("evaluator", ["choice", "likelihood"])
async def test_df_rag_runs_over_the_server(vllm_server: VLLMServer, evaluator: Literal["choice", "likelihood"]) -> None:
    graph = df_rag.build(Resources(retriever=ScriptedRetriever(QUERY, VECTORS, TOWNS))).compile()
    llm = f"vllm:{vllm_server.base_url}#smollm2"
    context = DFRagContext(llm=llm, evaluator=evaluator, k=3, max_answer_tokens=16)
    state = await graph.ainvoke({"question": "Which river flows past the town of Ada Holm's birth?"}, context=context)
    sets, nodes = len(state["supports"]), state["usage"]["nodes"]
    assert sets > 1
    assert state["answer"]
    assert nodes["generate"]["calls"] == 1
    assert nodes["plan"]["calls"] in (1, 2)
    assert nodes["evaluate"]["calls"] == {"choice": sets * len(state["plan"]), "likelihood": sets + 1}[evaluator]
    assert all(math.isfinite(one["support"]) for one in state["supports"])


async def test_dense_rag_runs_over_the_server_which_is_its_judge_too(vllm_server: VLLMServer) -> None:
    retriever = ScriptedRetriever(QUERY, VECTORS, TOWNS)
    graph = dense_rag.build(Resources(retriever=retriever, encoder=ScriptedEncoder())).compile()
    llm = f"vllm:{vllm_server.base_url}#smollm2"
    context = DenseRagContext(llm=llm, judge="llm", adaptive=False, k=2, max_answer_tokens=16, max_rounds=1)
    state = await graph.ainvoke({"question": "Which river flows past the town of Ada Holm's birth?"}, context=context)
    assert state["answer"]
    for measured in state["rounds"]:
        degrees = [sum(row) for row in measured["link"]]
        n = len(degrees)
        assert measured["dse"] == pytest.approx(-sum(math.log(degree / n) for degree in degrees) / n)
        assert n == len(measured["chunk_ids"]) + 1 == len(measured["responses"])
    assert state["stop_reason"] in {"certain", "accepted", "max_rounds", "unchanged", "nothing_left"}
    assert state["dse"] in [measured["dse"] for measured in state["rounds"]]
    assert not any("gave two answers" in warning for warning in state["warnings"])


async def test_the_calls_of_ask_are_divided_between_the_servers_of_a_name(vllm_server: VLLMServer) -> None:
    """The second server is the first behind a relay, which counts what is asked of it."""
    relayed = 0

    async def copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        nonlocal relayed
        with suppress(OSError):
            while part := await source.read(65_536):
                relayed += part.startswith(b"POST /v1/chat/completions")
                target.write(part)
                await target.drain()
        target.close()

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answers, questions = await asyncio.open_connection("127.0.0.1", vllm_server.port)
        await asyncio.gather(copy(reader, questions), copy(answers, writer))

    async with await asyncio.start_server(relay, "127.0.0.1", 0) as second:
        url = f"http://127.0.0.1:{second.sockets[0].getsockname()[1]}/v1"
        words = [
            "ask",
            "Who founded the Brask Courier?",
            "--json",
            "--llm",
            f"vllm:{vllm_server.base_url},{url}#smollm2",
        ]
        chosen = ["--set", "evaluator=choice", "--set", "max_answer_tokens=8", "--set", "k=2"]
        done = await asyncio.to_thread(CliRunner().invoke, app, [*words, *chosen])
    assert done.exit_code == 0, done.stderr
    assert 0 < relayed < json.loads(done.stdout)["usage"]["calls"]


async def test_the_defaults_of_a_models_authors_do_not_rule(chat: OpenAIChat) -> None:
    samples = await chat.complete(STORY, Sampling(n=4, temperature=1.0, max_tokens=8, seed=1))
    assert len({c.text for c in samples.completions}) > 1
    samples = await chat.complete(STORY, Sampling(n=4, temperature=1.0, max_tokens=8, seed=1, top_k=1))
    assert len({c.text for c in samples.completions}) == 1


async def test_a_killed_server_is_a_model_fault(vllm_server: VLLMServer, chat: OpenAIChat) -> None:
    """The last test of this module: it kills the module's server."""
    running = asyncio.create_task(chat.complete(STORY, Sampling(n=4, temperature=1.0, max_tokens=2000)))
    await asyncio.sleep(0.5)
    assert not running.done()
    await asyncio.to_thread(vllm_server.kill_api)
    with pytest.raises(ModelFault, match="the connection failed"):
        await asyncio.wait_for(running, 30)
    with pytest.raises(ModelFault, match="the connection failed"):
        await chat.complete(STORY, Sampling(max_tokens=2))
    await asyncio.to_thread(vllm_server.stop)
