"""What `introspect` says, in this process, against plain forward passes of `transformers` over each sequence alone."""

import asyncio
import json
from types import SimpleNamespace

import numpy as np
import pytest
from dubito.errors import ContextOverflow, UserFault
from dubito.models import decoding
from dubito.models.interfaces import Message, Sampling, StatePlace
from dubito.models.transformers_chat import TransformersChat

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.weights

END = 2
CAPITAL: list[Message] = [{"role": "user", "content": "What is the capital of France?"}]
SURPRISE: list[Message] = [{"role": "user", "content": "Tell me something surprising, in a few words."}]


@pytest.fixture(scope="module")
def chat(smollm2_folder):
    return TransformersChat("smollm2", str(smollm2_folder), dtype="float32")


@pytest.fixture(scope="module")
def tokenizer(smollm2_folder):
    return transformers.AutoTokenizer.from_pretrained(smollm2_folder)


@pytest.fixture(scope="module")
def reference(tokenizer, smollm2_folder):
    """The same weights, loaded and read by transformers alone."""
    model = transformers.AutoModelForCausalLM.from_pretrained(smollm2_folder, dtype=torch.float32)
    return SimpleNamespace(model=model.eval(), tokenizer=tokenizer)


@pytest.fixture(scope="module")
def tiny(tokenizer, tmp_path_factory):
    """Folders of small random models of several architectures, with SmolLM2's tokenizer and a window of 96."""
    sizes = {"vocab_size": 49152, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4}
    more = {"max_position_embeddings": 96, "bos_token_id": 1, "eos_token_id": END, "initializer_range": 0.3}
    llama = sizes | more | {"intermediate_size": 64, "head_dim": 8, "num_key_value_heads": 2, "pad_token_id": 2}
    slides = llama | {"sliding_window": 16}
    configs = {
        "llama": transformers.LlamaConfig(**llama),
        "mistral": transformers.MistralConfig(**slides),
        "gemma3": transformers.Gemma3TextConfig(**slides, query_pre_attn_scalar=8),
        "gpt2": transformers.GPT2Config(**sizes, **more),
    }
    folders = {}
    for kind, config in configs.items():
        torch.manual_seed(7)
        folders[kind] = tmp_path_factory.mktemp(kind)
        transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folders[kind])
        tokenizer.save_pretrained(folders[kind])
    return folders


@pytest.fixture
def generated(monkeypatch):
    """The ids of every continuation of the calls that are over, call by call."""
    ids: list[list[list[int]]] = []
    result = decoding.Decoder._result

    def noting(self, request):
        ids.append([list(row.ids) for row in request.rows])
        return result(self, request)

    monkeypatch.setattr(decoding.Decoder, "_result", noting)
    return ids


def prompt_ids(tokenizer, messages):
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    return tokenizer(text, add_special_tokens=False)["input_ids"]


def plain(model, prompt, ids, layer):
    """The state of the last token and the energy, from one pass over everything, alone and without a cache."""
    with torch.no_grad():
        out = model(input_ids=torch.tensor([prompt + ids]), output_hidden_states=True, use_cache=False)
    drawn_from = out.logits[0, len(prompt) - 1 : -1].double()
    return out.hidden_states[layer][0, -1].float().numpy(), float(-drawn_from.exp().sum(-1).log().mean())


def distance(state, expected):
    return float(np.linalg.norm(state - expected) / np.linalg.norm(expected))


def apart(states, others):
    assert states.shape == others.shape
    return max(map(distance, states, others))


async def test_states_and_energies_are_those_of_plain_forward_passes(chat, reference, generated):
    prompt = prompt_ids(reference.tokenizer, CAPITAL)
    sampling = Sampling(n=5, temperature=0.8, top_p=0.9, top_k=50, seed=2, max_tokens=9, stop=("Paris",))
    for asked, layer in ((None, 15), (1, 1), (30, 30)):
        said = await chat.introspect(CAPITAL, sampling, StatePlace(asked))
        assert (said.layer, said.states.shape, said.states.dtype) == (layer, (5, 576), np.float32)
        rows = generated.pop()
        for ids, state, energy in zip(rows, said.states, said.energies, strict=True):
            expected_state, expected_energy = plain(reference.model, prompt, ids, layer)
            assert distance(state, expected_state) < 1e-5
            assert isinstance(energy, float)
            assert energy == pytest.approx(expected_energy, abs=1e-4)
        assert len({len(ids) for ids in rows}) > 1
        assert {c.finish_reason for c in said.reply.completions} == {"stop", "length"}
        assert said.tokens == said.reply.tokens
        assert (said.tokens.prompt, said.tokens.completion) == (len(prompt), sum(map(len, rows)))


@pytest.mark.parametrize("stop", [(), ("Fran",)])
async def test_a_feed_forward_block_says_what_it_adds_to_the_residual_stream(chat, reference, generated, stop):
    """The residual stream behind the layer less the stream that its feed-forward block reads."""
    prompt = prompt_ids(reference.tokenizer, CAPITAL)
    before = []
    hook = reference.model.model.layers[14].post_attention_layernorm.register_forward_pre_hook(
        lambda _, given: before.append(given[0])
    )
    for at in ("eos", "last"):
        said = await chat.introspect(
            CAPITAL, Sampling(max_tokens=6, stop=stop), StatePlace(states="feed_forward", at=at)
        )
        (ids,) = generated.pop()
        assert len(ids) == (4 if stop else 6)
        assert ids[-1] != END
        with torch.no_grad():
            read = torch.tensor([[*prompt, *ids[:-1], END if at == "eos" else ids[-1]]])
            after = reference.model(read, output_hidden_states=True).hidden_states[15]
        assert said.layer == 15
        assert distance(said.states[0], (after - before.pop())[0, -1].numpy()) < 1e-4
    hook.remove()


async def test_states_at_an_end_token_beside_requests_without_it(chat, reference, generated):
    prompt = prompt_ids(reference.tokenizer, CAPITAL)
    sampling = Sampling(n=3, temperature=0.8, seed=5, max_tokens=5)
    put_in, plain_one = await asyncio.gather(
        chat.introspect(CAPITAL, sampling, StatePlace(at="eos")), chat.introspect(CAPITAL, sampling)
    )
    texts = [[one.text for one in said.reply.completions] for said in (put_in, plain_one)]
    assert texts[0] == texts[1], "the text is that of the sample"
    for ids, theirs, ours in zip(generated.pop(), put_in.states, plain_one.states, strict=True):
        assert distance(theirs, plain(reference.model, prompt, [*ids[:-1], END], 15)[0]) < 1e-5
        assert distance(ours, plain(reference.model, prompt, ids, 15)[0]) < 1e-5


async def test_feed_forward_blocks_of_several_architectures(tiny):
    for kind, folder in tiny.items():
        chat = TransformersChat(kind, str(folder), dtype="float32")
        sampling = Sampling(n=2, temperature=1.0, seed=3, max_tokens=4)
        inner = await chat.introspect(CAPITAL, sampling, StatePlace(2, "feed_forward", "eos"))
        outer = await chat.introspect(CAPITAL, sampling, StatePlace(2, at="eos"))
        assert inner.states.shape == outer.states.shape == (2, 32)
        assert apart(inner.states, outer.states) > 1e-2, kind


async def test_what_ends_a_continuation_does_not_change_which_token_is_last(chat, reference, generated):
    prompt = prompt_ids(reference.tokenizer, CAPITAL)
    whole = reference.tokenizer("The capital of France is Paris.")["input_ids"] + [END]
    with torch.no_grad():
        hidden = reference.model(torch.tensor([prompt + whole]), output_hidden_states=True).hidden_states[15][0]
    ended = {
        8: [Sampling()],
        4: [
            Sampling(stop=("France",)),
            Sampling(stop=("l of France",)),
            Sampling(stop=("Fran",)),
            Sampling(max_tokens=4),
        ],
        1: [Sampling(stop=("The",)), Sampling(max_tokens=1)],
        7: [Sampling(stop=("s.", "never")), Sampling(max_tokens=7)],
    }
    assert whole[7] == END
    for length, samplings in ended.items():
        for sampling in samplings:
            said = await chat.introspect(CAPITAL, sampling)
            assert generated.pop() == [whole[:length]]
            assert distance(said.states[0], hidden[len(prompt) + length - 1].numpy()) < 1e-5


async def test_the_samples_are_those_of_complete(chat):
    sampling = Sampling(n=4, temperature=1.0, seed=11, max_tokens=6, stop=(",",), logprobs=True)
    reply = await chat.complete(SURPRISE, sampling)
    said = await chat.introspect(
        SURPRISE, Sampling(n=4, temperature=1.0, seed=11, max_tokens=6, stop=(",",)), StatePlace(2)
    )
    assert said.tokens == reply.tokens
    for mine, theirs in zip(said.reply.completions, reply.completions, strict=True):
        assert (mine.text, mine.finish_reason) == (theirs.text, theirs.finish_reason)
        assert [token.text for token in mine.tokens] == [token.text for token in theirs.tokens]
        logprobs = [token.logprob for token in theirs.tokens]
        assert [token.logprob for token in mine.tokens] == pytest.approx(logprobs, abs=1e-4)


async def test_greedy_continuations_are_equal_and_generated_once(chat, generated):
    said = await chat.introspect(CAPITAL, Sampling(n=4))
    assert [len(rows) for rows in generated] == [1]
    assert said.states.shape == (4, 576)
    assert np.array_equal(said.states, np.repeat(said.states[:1], 4, axis=0))
    assert len(set(said.reply.completions)) == 1
    assert len(said.reply.completions) == len(said.energies) == 4
    assert len(set(said.energies)) == 1
    assert said.tokens.completion == 8


async def test_a_greedy_pass_and_the_samples_after_it_read_the_prompt_once(chat, reference, generated):
    await chat.window()
    read: list[int] = []
    hook = chat._decoder._model.register_forward_pre_hook(
        lambda _, __, given: read.append(given["input_ids"].numel()), with_kwargs=True
    )
    message = [{"role": "user", "content": "Which colour has a clear sky at noon, and which at dusk? Be brief."}]
    prompt = len(prompt_ids(reference.tokenizer, message))
    system = len(prompt_ids(reference.tokenizer, [{"role": "user", "content": "\u00e9"}]))  # the template's own text
    try:
        await chat.complete(message, Sampling(max_tokens=5))
        await chat.introspect(message, Sampling(n=6, temperature=1.0, seed=1, max_tokens=4))
    finally:
        hook.remove()
    [[greedy], samples] = generated
    decoded = (len(greedy) - 1) + sum(map(len, samples))  # the last token of a plain completion is never read
    assert prompt - system < sum(read) - decoded <= prompt + 1  # the last token of a known prompt is read again
    assert len([tokens for tokens in read if tokens > 6]) == 1


async def test_introspections_at_once_equal_those_alone(chat):
    calls = [
        (CAPITAL, Sampling(n=3, temperature=1.0, seed=1, max_tokens=7), StatePlace(15)),
        (SURPRISE, Sampling(n=2, temperature=0.7, seed=2, max_tokens=3), StatePlace(30)),
        (CAPITAL, Sampling(max_tokens=5), StatePlace(1)),
        (SURPRISE, Sampling(n=3, temperature=1.0, seed=4, max_tokens=9, stop=(" ",)), StatePlace(15)),
    ]
    alone = [await chat.introspect(*call) for call in calls]
    *together, reply = await asyncio.gather(
        *(chat.introspect(*call) for call in calls), chat.complete(CAPITAL, Sampling(max_tokens=6))
    )
    assert reply.text == "The capital of France is Paris"
    for one, other in zip(alone, together, strict=True):
        assert [c.text for c in one.reply.completions] == [c.text for c in other.reply.completions]
        assert (one.layer, one.tokens) == (other.layer, other.tokens)
        assert apart(other.states, one.states) < 1e-5
        assert other.energies == pytest.approx(one.energies, abs=1e-4)


@pytest.mark.parametrize("kind", ["llama", "mistral", "gemma3", "gpt2"])
async def test_architectures_are_exact_in_a_batch_and_in_parts(tiny, kind, generated, tokenizer):
    model = transformers.AutoModelForCausalLM.from_pretrained(tiny[kind], dtype=torch.float32).eval()
    prompt = prompt_ids(tokenizer, CAPITAL)
    sampling = Sampling(n=5, temperature=0.7, seed=3, max_tokens=30)
    for rows, layers in ((16, (1, 3)), (2, (2,))):
        chat = TransformersChat(kind, str(tiny[kind]), dtype="float32", rows=rows)
        for layer in layers:
            said, _ = await asyncio.gather(
                chat.introspect(CAPITAL, sampling, StatePlace(layer)),
                chat.introspect(SURPRISE, Sampling(max_tokens=4), StatePlace(1)),
            )
            assert said.energies is not None
            ids = next(call for call in generated if len(call) == 5)
            generated.clear()
            for one, state, energy in zip(ids, said.states, said.energies, strict=True):
                expected_state, expected_energy = plain(model, prompt, one, layer)
                assert distance(state, expected_state) < 1e-4
                assert energy == pytest.approx(expected_energy, rel=1e-4)


async def test_every_layer_of_samples_that_are_read_together_is_that_of_each_alone(tiny, tokenizer):
    from dubito.benchmarks.known_unknown import EveryLayer  # noqa: PLC0415 - it needs transformers

    reader = EveryLayer("vllm:http://127.0.0.1:9/v1#m", tiny["llama"])
    prompt = prompt_ids(tokenizer, CAPITAL)
    distinct = [prompt[first : first + length] for first, length in enumerate((5, 1, 9, 3, 3, 12, 7))]
    samples = [*distinct, distinct[2], distinct[0]]
    read = reader.read(prompt, samples)
    for row, sample in enumerate(samples):
        with torch.inference_mode():
            alone = reader.reader(torch.tensor([prompt + sample]), output_hidden_states=True).hidden_states[1:]
        assert apart(read[:, row], np.stack([layer[0, -1] for layer in alone])) < 1e-5


async def test_only_the_wanted_states_are_kept(tiny, monkeypatch):
    chat = TransformersChat("tiny", str(tiny["llama"]), dtype="float32")
    kept: list[int] = []
    result = decoding.Decoder._result

    def noting(self, request):
        kept.extend(row.state.untyped_storage().nbytes() for row in request.rows)
        return result(self, request)

    monkeypatch.setattr(decoding.Decoder, "_result", noting)
    await chat.introspect(CAPITAL, Sampling(n=4, temperature=1.0, seed=1, max_tokens=20), StatePlace(2))
    assert len(kept) == 4
    assert max(kept) <= 4 * 32 * 4  # one layer's states of the last tokens, at most all that ended in one step
    assert chat._decoder is not None
    assert not any(module._forward_hooks for module in chat._decoder._model.modules())


async def test_states_of_half_precision_are_float32(tiny, generated, tokenizer):
    model = transformers.AutoModelForCausalLM.from_pretrained(tiny["llama"], dtype=torch.bfloat16).eval()
    chat = TransformersChat("tiny", str(tiny["llama"]), dtype="bfloat16")
    said = await chat.introspect(CAPITAL, Sampling(n=3, temperature=1.0, seed=1, max_tokens=5), StatePlace(2))
    assert said.states.dtype == np.float32
    for ids, state in zip(generated.pop(), said.states, strict=True):
        assert distance(state, plain(model, prompt_ids(tokenizer, CAPITAL), ids, 2)[0]) < 0.05


async def test_continuations_that_are_all_empty_have_states_too(tiny, tmp_path, generated, tokenizer):
    for file in tiny["llama"].iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": list(range(49152))}))
    model = transformers.AutoModelForCausalLM.from_pretrained(tiny["llama"], dtype=torch.float32).eval()
    chat = TransformersChat("silent", str(tmp_path), dtype="float32")
    said = await chat.introspect(CAPITAL, Sampling(n=3, temperature=1.0, seed=1), StatePlace(2))
    assert [(c.text, c.finish_reason, len(c.tokens)) for c in said.reply.completions] == [("", "stop", 1)] * 3
    for ids, state in zip(generated.pop(), said.states, strict=True):
        assert len(ids) == 1
        assert distance(state, plain(model, prompt_ids(tokenizer, CAPITAL), ids, 2)[0]) < 1e-4


async def test_the_window_s_last_token_is_read(tiny, generated, tokenizer):
    model = transformers.AutoModelForCausalLM.from_pretrained(tiny["llama"], dtype=torch.float32).eval()
    chat = TransformersChat("tiny", str(tiny["llama"]), dtype="float32")
    prompt = prompt_ids(tokenizer, CAPITAL)
    said = await chat.introspect(CAPITAL, Sampling(n=2, temperature=0.5, seed=1, max_tokens=5000), StatePlace(3))
    assert "length" in {c.finish_reason for c in said.reply.completions}
    assert said.tokens.prompt + max(map(len, generated[0])) == 96
    for ids, state in zip(generated.pop(), said.states, strict=True):
        assert distance(state, plain(model, prompt, ids, 3)[0]) < 1e-4


async def test_a_cancelled_introspection_breaks_no_other(tiny):
    chat = TransformersChat("tiny", str(tiny["llama"]), dtype="float32")
    sampling = Sampling(n=3, temperature=1.0, seed=5, max_tokens=12)
    alone = await chat.introspect(CAPITAL, sampling, StatePlace(2))
    given_up = asyncio.ensure_future(
        chat.introspect(SURPRISE, Sampling(n=9, max_tokens=50, temperature=1.0), StatePlace(1))
    )
    beside = asyncio.ensure_future(chat.introspect(CAPITAL, sampling, StatePlace(2)))
    await asyncio.sleep(0)
    given_up.cancel()
    assert apart((await beside).states, alone.states) < 1e-4
    assert apart((await chat.introspect(CAPITAL, sampling, StatePlace(2))).states, alone.states) < 1e-4


async def test_one_sample_is_a_row(tiny):
    chat = TransformersChat("tiny", str(tiny["llama"]), dtype="float32")
    said = await chat.introspect(CAPITAL, Sampling(n=1, temperature=1.0, seed=1, max_tokens=3))
    assert said.energies is not None
    assert (said.states.shape, said.layer, len(said.energies)) == ((1, 32), 1, 1)  # the middle of three is the first


async def test_bad_input_is_the_user_s_fault(tiny, tmp_path):
    chat = TransformersChat("tiny", str(tiny["llama"]), dtype="float32")
    for layer in (0, 4, -1):
        with pytest.raises(UserFault, match=rf"tiny has 3 layers: choose one from 1 to 3, not {layer}\."):
            await chat.introspect(CAPITAL, Sampling(), StatePlace(layer))
    with pytest.raises(UserFault, match="n and max_tokens must be 1 or more"):
        await chat.introspect(CAPITAL, Sampling(n=0))
    with pytest.raises(ContextOverflow, match="use fewer or shorter chunks"):
        await chat.introspect([{"role": "user", "content": "word " * 100}], Sampling(n=2))
    for file in tiny["llama"].iterdir():
        if file.name != "chat_template.jinja":
            (tmp_path / file.name).write_bytes(file.read_bytes())
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
    settings.pop("chat_template", None)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    with pytest.raises(UserFault, match="hf:plain has no chat template"):
        await TransformersChat("hf:plain", str(tmp_path)).introspect(CAPITAL, Sampling())
