"""The chat backend on vLLM's engine: what it says, and what it reads, against transformers on the same weights.

vLLM has an environment of its own, so `engine_script` runs there, once, and this looks at what it found out.
"""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dubito.models.interfaces import Message, Sampling, Vectors
from dubito.models.transformers_chat import TransformersChat
from dubito.tests.integration.conftest import SMALL
from dubito.tests.integration.engine_script import DREW, LETTERS, LONG, QUESTION, SLY, STORY, WINDOW

pytestmark = pytest.mark.vllm

LIMIT_S = 840
NATS = 1e-4  # float32 against float32; another token's log-probability is off by more than 0.01
TOLERANCE = 1e-5  # of a state's length; another layer's or another token's state is off by more than 0.1
LAYER = 15  # of SmolLM2's 30

Found = dict[str, Any]


@pytest.fixture(scope="module")
def found(smollm2_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Found:
    executable = os.environ.get("DUBITO_TEST_VLLM")
    if not executable:
        pytest.skip("set DUBITO_TEST_VLLM to a vllm executable (tests/vllm_cpu.sh DIR makes one)")
    path = tmp_path_factory.mktemp("path")
    (path / "dubito").symlink_to(Path(__file__).parents[2])  # vLLM's environment has what dubito needs, and not dubito
    script = path / "dubito" / "tests" / "integration" / "engine_script.py"
    name = f"engine:{smollm2_folder}?dtype=float32&max_model_len={WINDOW}"
    ran = subprocess.run(
        [Path(executable).with_name("python"), script, name],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        env={**os.environ, **SMALL, "PYTHONPATH": str(path)},
        cwd=path,
        check=False,
    )
    if ran.returncode:
        pytest.fail(f"it ended with {ran.returncode}; the end of what it said:\n{ran.stderr[-6000:]}")
    assert ran.stdout.count("\n") == 1, f"vLLM keeps off a program's standard output:\n{ran.stdout}"
    assert "Exception ignored" not in ran.stderr, ran.stderr[-4000:]
    return dict(json.loads(ran.stdout))


@pytest.fixture(scope="module")
def reference(smollm2_folder: Path) -> TransformersChat:
    return TransformersChat("hf:smollm2", str(smollm2_folder))


class Weights:
    """The same weights in transformers, without any code of ours."""

    def __init__(self, folder: Path) -> None:
        import torch  # noqa: PLC0415
        import transformers  # noqa: PLC0415

        self.torch = torch
        self.tokenizer: Any = transformers.AutoTokenizer.from_pretrained(folder)
        self.model: Any = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)

    def prompt(self, messages: list[Message]) -> list[int]:
        text = self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def states(self, sequences: Sequence[Sequence[int]], layer: int = LAYER) -> Vectors:
        with self.torch.inference_mode():
            rows = [
                self.model(self.torch.tensor([list(ids)]), output_hidden_states=True).hidden_states[layer][0, -1]
                for ids in sequences
            ]
        return np.stack([row.numpy() for row in rows])

    def feed_forward(self, ids: Sequence[int]) -> Vectors:
        """What the feed-forward block of the middle layer says at the last token."""
        said: list[Any] = []
        block = self.model.model.layers[LAYER - 1].mlp
        hook = block.register_forward_hook(lambda _, __, output: said.append(output[0, -1:].numpy()))
        with self.torch.inference_mode():
            self.model(self.torch.tensor([list(ids)]))
        hook.remove()
        (states,) = said
        return np.asarray(states)

    def next(self, prompt: list[int]) -> list[float]:
        """The probability of every token after a prompt."""
        with self.torch.inference_mode():
            logits = self.model(self.torch.tensor([prompt])).logits[0, -1].double()
        return list(logits.softmax(-1).tolist())


@pytest.fixture(scope="module")
def weights(smollm2_folder: Path) -> Weights:
    return Weights(smollm2_folder)


def off(states: Sequence[Sequence[float]], expected: Vectors) -> float:
    """The greatest distance between two rows, relative to the expected one's length."""
    rows = np.array(states, np.float32)
    assert rows.shape == expected.shape
    return float((np.linalg.norm(rows - expected, axis=1) / np.linalg.norm(expected, axis=1)).max())


def same_tokens(told: Sequence[Sequence[Any]], expected: Sequence[Any]) -> bool:
    texts = [text for text, _ in told] == [token.text for token in expected]
    logprobs = [logprob for _, logprob in told], [token.logprob for token in expected]
    return texts and bool(np.allclose(*logprobs, rtol=0, atol=NATS))


async def test_greedy_replies_and_their_log_probabilities_are_those_of_transformers(
    found: Found, reference: TransformersChat
) -> None:
    for told, messages in zip(found["greedy"], (STORY, QUESTION, SLY), strict=True):
        expected = await reference.complete(messages, Sampling(max_tokens=24, logprobs=True))
        assert told["texts"] == [expected.text]
        assert told["finish"] == [expected.completions[0].finish_reason]
        assert same_tokens(told["tokens"][0], expected.completions[0].tokens)
        assert told["cost"] == [expected.tokens.prompt, expected.tokens.completion]
    assert found["window"] == WINDOW
    assert found["counts"] == await reference.count(["a b", "<|im_end|>", ""])


def test_a_reply_is_told_while_it_grows(found: Found) -> None:
    assert found["told"]["reply"] == found["greedy"][0]
    assert len(found["told"]["pieces"]) > 2
    assert found["told"]["reply"]["texts"][0].startswith("".join(found["told"]["pieces"]))


def test_a_reply_is_kept_to_its_pattern(found: Found) -> None:
    assert re.fullmatch("[a-z]{3} fox[.!]", found["kept"])


async def test_choices_and_scores_are_those_of_transformers(found: Found, reference: TransformersChat) -> None:
    for told, options in zip(found["choices"], (["Yes", "No", "Yes, it is."], LETTERS), strict=True):
        expected = await reference.choose(QUESTION, options)
        assert list(told) == options
        assert math.isclose(sum(told.values()), 1, abs_tol=1e-9)
        assert told == pytest.approx(dict(expected.probabilities), abs=1e-4)
    scores = await reference.score(STORY, ["Once upon a time.", "", "Fox"])
    for row, tokens in zip(found["scores"], scores.continuations, strict=True):
        assert same_tokens(row, tokens)


def test_samples_come_with_the_states_at_their_ends(found: Found, weights: Weights) -> None:
    drawn = found["drawn"]
    prompt = weights.prompt(STORY)
    assert len(set(drawn["texts"])) > 1
    assert drawn["layer"] == LAYER
    assert [ids[: len(prompt)] for ids in drawn["read"]] == [prompt] * len(drawn["read"])
    sequences = {weights.tokenizer.decode(ids[len(prompt) :]): ids for ids in drawn["read"]}
    assert off(drawn["states"], weights.states([sequences[text] for text in drawn["texts"]])) < TOLERANCE
    assert all(len(tokens) == DREW.max_tokens for tokens in drawn["tokens"])
    assert drawn["texts"] == found["drawn without states"], "equal seeds give both the same"


def test_samples_are_drawn_from_the_models_distribution(found: Found, weights: Weights) -> None:
    told = Counter(found["first tokens"]["texts"])
    n = sum(told.values())
    assert n == 60
    chances: Counter[str] = Counter()
    for token, chance in enumerate(weights.next(weights.prompt(STORY))):
        chances[weights.tokenizer.decode([token])] += chance  # type: ignore[assignment]
    for text, chance in chances.most_common(4):
        assert abs(told[text] - n * chance) < 4.5 * math.sqrt(n * chance * (1 - chance)), (text, told[text], chance)


def test_neither_a_stop_string_nor_a_limit_changes_which_token_is_last(found: Found, weights: Weights) -> None:
    ends, stop, prompt = found["ends"], found["stop"], len(weights.prompt(STORY))
    (ids,) = ends["whole"]["read"]  # greedy ones are equal, and read once
    assert len(ids) == prompt + 24
    assert ends["whole"]["states"][0] == ends["whole"]["states"][1]

    (cut,) = ends["stopped"]["read"]
    text = ends["whole"]["texts"][0]
    assert ends["stopped"]["texts"] == [text[: text.index(stop)]]
    assert cut == ids[: len(cut)]
    written = [weights.tokenizer.decode(cut[prompt:end]) for end in (len(cut) - 1, len(cut))]
    assert [stop in one for one in written] == [False, True]
    assert ends["limited"]["read"] == [ids[: prompt + 5]]
    assert ends["ended"]["finish"] == ["stop"]
    (answered,) = ends["ended"]["read"]
    assert answered[-1] == weights.tokenizer.eos_token_id
    assert ends["ended"]["tokens"][0][-1][0] == ""
    read = [ids, cut, ids[: prompt + 5], answered]
    told = [ends[name]["states"][0] for name in ("whole", "stopped", "limited", "ended")]
    assert off(told, weights.states(read)) < TOLERANCE


def test_each_layer_is_transformers_own(found: Found, weights: Weights) -> None:
    ends = found["ends"]
    for name, layer in (("first layer", 1), ("last layer", 30)):
        assert ends[name]["layer"] == layer
        assert off(ends[name]["states"], weights.states(ends[name]["read"], layer)) < TOLERANCE
    kind, said = found["no layer"]
    assert kind == "UserFault"
    assert said.endswith("has 30 layers: choose one from 1 to 30, not 31.")


def test_a_feed_forward_block_is_read_at_an_end_token(found: Found, weights: Weights) -> None:
    inner, limited = found["ends"]["feed forward"], found["ends"]["limited"]
    (read,) = inner["read"]
    assert read == [*limited["read"][0][:-1], weights.tokenizer.eos_token_id]
    assert inner["texts"] == limited["texts"]
    assert off(inner["states"], weights.feed_forward(read)) < TOLERANCE


def test_a_prompt_that_was_read_is_not_read_again_by_five_samples_and_their_reading(
    found: Found, weights: Weights
) -> None:
    prompt, block = len(weights.prompt(LONG)), found["block"]
    kept = prompt // block * block  # whole blocks are kept
    assert kept > 0.7 * prompt
    sampled, *readings = found["long"]["requests"]
    assert [sampled[0], *(length for length, _ in readings)] == [prompt, *map(len, found["long"]["read"])]
    assert [cached for _, cached in found["long"]["requests"]] == [kept] * (1 + len(readings))
    assert len(readings) > 2


def test_a_reply_ends_where_the_window_does(found: Found) -> None:
    assert found["to the brim"] == [WINDOW, WINDOW - 1], "the token whose state is read is read with one more"


def test_faults_are_told_in_a_sentence(found: Found) -> None:
    faults = found["faults"]
    for verb in ("complete", "introspect", "choose", "score"):
        kind, said = faults[verb]
        assert kind == "ContextOverflow"
        assert f"has {WINDOW:,}: use fewer or shorter chunks" in said
    assert faults["n"][0] == "UserFault"
    kind, said = faults["vLLM's own"]
    assert kind == "UserFault"
    assert "refused the request: temperature must be" in said


def test_calls_from_two_event_loops_share_their_steps(found: Found) -> None:
    told = found["concurrent"]
    assert max(told["shared"]) == 2
    assert Counter(told["shared"])[2] > 10
    assert told["after"] in told["texts"], "after one that was given up"


def test_a_question_through_seakr(found: Found) -> None:
    told = found["seakr"]
    assert told["answer"]
    assert told["looked up"][0] in {"Ada Holm founded a paper mill.", "Kirkby has a market."}
    assert all(math.isfinite(u) for u in told["uncertainties"])
    assert len(told["uncertainties"]) == 1
