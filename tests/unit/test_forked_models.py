"""Models on this machine in a forked child, which has none of its parent's threads."""

import asyncio
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
from dubito.errors import UserFault
from dubito.models.local_weights import OneThread

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")


def forked(code: str) -> str:
    """What a program prints that begins with `code` and then runs `ask()` in the parent and in a forked child."""
    code += (
        "import os\n"
        "from dubito.models.background import run_in_background\n"
        "print(run_in_background(ask()), flush=True)\n"
        "if (child := os.fork()) == 0:\n"
        "    print(run_in_background(ask()), flush=True)\n"
        "    os._exit(7)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
        "os._exit(0)\n"  # work of the parent may still wait
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    return done.stdout


@needs_fork
def test_a_forked_child_uses_its_parents_weights_on_a_thread_of_its_own() -> None:
    code = (
        "from dubito.models.local_weights import OneThread\n"
        "one = OneThread(lambda: print('loaded') or 'weights', 'name')\n"
        "ask = lambda: one.run(lambda model: model)\n"
    )
    assert forked(code) == "loaded\nweights\nweights\n7\n"


@needs_fork
def test_a_forked_child_scores_its_own_pairs_alone() -> None:
    code = (
        "import asyncio, threading\n"
        "import numpy as np\n"
        "from dubito.models.cross_encoder import CrossEncoderRelevance\n"
        "gate, begun = threading.Event(), threading.Event()\n"
        "class Slow:\n"
        "    def rows(self, pairs):\n"
        "        begun.set()\n"
        "        gate.wait('slow' in pairs[0])\n"
        "        return np.array([float(len(pairs))] * len(pairs))\n"
        "ranker = CrossEncoderRelevance('cross:x', 'x')\n"
        "ranker._shared._model = Slow()\n"
        "async def ask():\n"
        "    scored = (await ranker.relevance('quick', ['a'])).tolist()\n"
        "    for _ in range(2):\n"  # one at work and one that waits, while the process forks
        "        slow.append(asyncio.create_task(ranker.relevance('slow', ['b'])))\n"
        "    return scored\n"
        "slow = []\n"
    )
    assert forked(code) == "[1.0]\n[1.0]\n7\n"


@needs_fork
def test_a_forked_child_opens_its_chat_model_anew() -> None:
    code = (
        "import asyncio\n"
        "from dubito.models import transformers_chat\n"
        "from dubito.tests.unit.test_batching import Job, Rows\n"
        "transformers_chat._open = lambda *_: print('opened') or Rows()\n"
        "chat = transformers_chat.TransformersChat('hf:x', 'x')\n"
        "running = []\n"
        "async def ask():\n"
        "    worker = chat._worker.get()\n"
        "    await worker.generate(Job(3))\n"
        "    running.append(asyncio.create_task(worker.generate(Job(10**9))))\n"
        "    return await chat._run(lambda rows: type(rows).__name__)\n"
    )
    assert forked(code) == "opened\nRows\nopened\nRows\n7\n"


def test_a_forked_process_is_told_that_it_cannot_use_its_parents_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = SimpleNamespace(cuda=SimpleNamespace(_is_in_bad_fork=lambda: True))
    monkeypatch.setitem(sys.modules, "torch", torch)
    with pytest.raises(UserFault, match="start the processes with spawn"):
        asyncio.run(OneThread(lambda: None, "name").run(lambda _: None))
