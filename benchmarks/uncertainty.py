"""What does an estimate of uncertainty cost that reads the model's hidden states, and how much memory do they take?

    python benchmarks/uncertainty.py [--k 20] [--tokens 8] [--questions 1] [--write FILE]

Each estimate follows a greedy pass over the same prompt, as in SeaKR, whose prompts share a long start: a system text
and examples. Runs the embedded chat model on this machine; the memory is that of processes of their own, from Linux.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import subprocess
import sys
import time
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import torch
from dubito.models.decoding import Decoder
from dubito.models.interfaces import Message, Sampling, States
from dubito.models.prefix_cache import PrefixCache
from dubito.models.transformers_chat import TransformersChat
from dubito.models.weights import smollm2_gguf
from dubito.uncertainty import eigen_score

EXAMPLES = 15
PREFIX_BYTES = 1 << 29
WAYS = [
    ("one introspection", True),
    ("one introspection", False),
    ("k requests at once", True),
    ("k requests at once", False),
]
PASSES = {
    "complete": "sampling alone, nothing read",
    "introspect": "the same, with one layer's states of the last tokens",
    "one": "a padded pass over prompt + continuations, one layer kept",
    "all": "the same pass with output_hidden_states=True",
}
ABOUT = """\
k = {k} continuations of at most {tokens} tokens (temperature 1.0, top-p 0.9, top-k 50) from SmolLM2-135M-Instruct in
float32, {threads} threads on {machine}, torch {torch}. Where prefixes are kept, the start that the prompts have in
common was read with another question before. Other programs ran on the machine, so read the ratios, those of CPU
seconds first.
*Read*: tokens that went through the model, padding included.
"""


@dataclass
class Cost:
    """Of one way to make an estimate, a number for each question."""

    greedy_s: list[float] = field(default_factory=list)
    greedy_cpu_s: list[float] = field(default_factory=list)
    estimate_s: list[float] = field(default_factory=list)
    estimate_cpu_s: list[float] = field(default_factory=list)
    greedy_read: list[int] = field(default_factory=list)
    estimate_read: list[int] = field(default_factory=list)
    written: list[int] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)


def prompts(count: int) -> list[list[Message]]:
    """Prompts of so many sample questions after the same examples."""
    lines = (resources.files("dubito") / "examples" / "sample" / "questions.jsonl").read_text("utf-8").splitlines()
    records = [json.loads(line) for line in lines]
    shown = "\n".join(f"Question: {r['question']}\nAnswer: {r['answer']}" for r in records[:EXAMPLES])
    system: Message = {"role": "system", "content": f"Answer in one sentence. These are examples.\n{shown}"}
    asked = records[EXAMPLES : EXAMPLES + count]
    return [[system, {"role": "user", "content": record["question"]}] for record in asked]


async def opened() -> tuple[TransformersChat, Decoder]:
    """The embedded model, and what runs it."""
    chat = TransformersChat("embedded", str(smollm2_gguf()), dtype="float32")
    await chat.window()
    decoder = chat._decoder
    assert decoder is not None
    return chat, decoder


async def estimate(chat: TransformersChat, prompt: list[Message], sampling: Sampling, way: str) -> list[Any]:
    """The introspections of k continuations: one, or k of one continuation each."""
    if way == "one introspection":
        return [await chat.introspect(prompt, sampling)]
    single = {**vars(sampling), "n": 1}
    return await asyncio.gather(
        *(chat.introspect(prompt, Sampling(**{**single, "seed": seed})) for seed in range(sampling.n))
    )


async def speed(questions: int, sampling: Sampling) -> dict[tuple[str, bool], Cost]:
    """Each way for each question in turn."""
    chat, decoder = await opened()
    read = 0

    def count(_: object, __: object, given: dict[str, Any]) -> None:
        nonlocal read
        read += given["input_ids"].numel()

    decoder._model.register_forward_pre_hook(count, with_kwargs=True)
    first, *others = prompts(questions + 1)
    costs = {way: Cost() for way in WAYS}
    for prompt in others:
        for (way, kept), cost in costs.items():
            decoder._prefixes = PrefixCache(PREFIX_BYTES if kept else 0)
            await chat.complete(first, Sampling(max_tokens=1))
            read, start, cpu = 0, time.perf_counter(), time.process_time()
            await chat.complete(prompt, Sampling(max_tokens=sampling.max_tokens))
            cost.greedy_s.append(time.perf_counter() - start)
            cost.greedy_cpu_s.append(time.process_time() - cpu)
            cost.greedy_read.append(read)
            read, start, cpu = 0, time.perf_counter(), time.process_time()
            said = await estimate(chat, prompt, sampling, way)
            cost.estimate_s.append(time.perf_counter() - start)
            cost.estimate_cpu_s.append(time.process_time() - cpu)
            cost.estimate_read.append(read)
            cost.written.append(sum(one.tokens.completion for one in said))
            cost.scores.append(eigen_score(np.concatenate([one.states for one in said])))
    return costs


def speed_table(costs: dict[tuple[str, bool], Cost]) -> str:
    """A row for each way, means over the questions."""
    head = ["k continuations in", "prefixes", "greedy pass, s", "CPU s", "read", "estimate, s", "CPU s", "read"]
    lines = [f"| {' | '.join([*head, 'written', 'U'])} |", "|---" * 10 + "|"]
    for (way, kept), cost in costs.items():
        cells = [
            way,
            "kept" if kept else "not kept",
            *(f"{np.mean(seconds):.2f}" for seconds in (cost.greedy_s, cost.greedy_cpu_s)),
            f"{np.mean(cost.greedy_read):,.0f}",
            *(f"{np.mean(seconds):.2f}" for seconds in (cost.estimate_s, cost.estimate_cpu_s)),
            *(f"{np.mean(counts):,.0f}" for counts in (cost.estimate_read, cost.written)),
            f"{np.mean(cost.scores):.4f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


async def memory(kind: str, sampling: Sampling) -> dict[str, float]:
    """What one pass needs at its peak beyond the weights, in MiB, and what it is about."""
    chat, decoder = await opened()
    [prompt] = prompts(1)
    ids = decoder.text.prompt(prompt, thinking=False)[0]
    decoder._prefixes = PrefixCache(0)
    before = settled()
    if kind == "complete":
        await chat.complete(prompt, sampling)
    elif kind == "introspect":
        await chat.introspect(prompt, sampling)
    else:
        padded = torch.tensor([ids + [0] * sampling.max_tokens] * sampling.n)
        layers: set[tuple[int, States]] = {(decoder.states.layer(None), "residual")} if kind == "one" else set()
        with torch.inference_mode(), decoder.states.seen(layers):
            decoder._model(input_ids=padded, output_hidden_states=kind == "all", use_cache=False, logits_to_keep=1)
    return {"peak": status("VmHWM") - before, "prompt": len(ids)}


def settled() -> float:
    """This process's memory in MiB; its peak, so far that of loading, is forgotten."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    return status("VmRSS")


def status(name: str) -> float:
    """A figure of this process in MiB, as Linux tells it."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name)) / 1024


def memory_table(given: argparse.Namespace) -> str:
    """A row for each kind of pass, every one in a process of its own."""
    rows = []
    # else freed memory that the process holds on to would hide what is allocated anew
    env = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "1048576", "MALLOC_TRIM_THRESHOLD_": "1048576"}
    for kind, about in PASSES.items():
        command = [sys.executable, __file__, "--k", str(given.k), "--tokens", str(given.tokens), "--pass", kind]
        done = subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True, check=True)
        found = json.loads(done.stdout)
        rows.append(f"| {about} | {found['peak']:,.0f} |")
    vector = 576 * 4 / 2**20
    every = 31 * given.k * (found["prompt"] + given.tokens) * vector
    tokens = int(found["prompt"]) + given.tokens
    lines = [f"| {given.k} rows of at most {tokens} tokens | peak beyond the weights, MiB |", "|---|---|", *rows]
    kept = f"All states are {every:,.0f} MiB, those of one layer's last tokens {given.k * vector * 1024:.0f} KiB."
    return "\n".join([*lines, "", kept])


def main() -> None:
    """Measure, print, and write where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--k", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=8, help="the most that a continuation has")
    parser.add_argument("--questions", type=int, default=1)
    parser.add_argument("--pass", dest="kind", choices=PASSES, help="only measure the memory of this one, as JSON")
    parser.add_argument("--write", type=Path)
    given = parser.parse_args()
    sampling = Sampling(n=given.k, temperature=1.0, top_p=0.9, top_k=50, max_tokens=given.tokens, seed=0)
    if given.kind:
        print(json.dumps(asyncio.run(memory(given.kind, sampling))))
        return
    about = ABOUT.format(
        k=given.k,
        tokens=given.tokens,
        threads=torch.get_num_threads(),
        machine=f"{os.cpu_count()} cores ({platform.machine()})",
        torch=torch.__version__,
    )
    print(about)
    parts = [about, speed_table(asyncio.run(speed(given.questions, sampling)))]
    print(parts[-1], flush=True)
    parts.append(memory_table(given))
    print(f"\n{parts[-1]}")
    if given.write:
        given.write.write_text("\n\n".join(parts) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
