"""A judge's memory: each pair once, whoever asks, in whatever loop, and on disk where that is allowed."""

import asyncio
import os
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import closing
from contextvars import ContextVar
from pathlib import Path

import numpy as np
import pytest
from blockbuster import blockbuster_ctx
from dubito.errors import ModelFault
from dubito.models import judgement_cache
from dubito.models.interfaces import Judgements
from dubito.models.judgement_cache import JudgementStore, RememberingJudge, pair_key

Pair = tuple[str, str]
QUESTION = "Which river?"
PAIRS = [("a", "b"), ("b", "a"), ("a", "c")]
NAN = [np.nan] * 3

asking: ContextVar[str] = ContextVar("asking", default="nobody")


def row(question: str, first: str, second: str) -> list[float]:
    seed = [len(question), *f"{first}\0{second}".encode("utf-8", "surrogatepass")]
    return np.random.default_rng(seed).dirichlet([1, 1, 1]).tolist()  # type: ignore[no-any-return]


def rows(question: str, pairs: Sequence[Pair]) -> Judgements:
    return np.array([row(question, *pair) for pair in pairs])


class StubJudge:
    """Rows from the texts' hash. Keeps what it was asked; waits for `gate` if there is one; `unsure` pairs are NaN."""

    name = "stub"

    def __init__(self, gate: threading.Event | None = None, unsure: Sequence[Pair] = ()) -> None:
        self.asked: list[list[Pair]] = []
        self.by: list[str] = []
        self.faults: list[Exception] = []
        self.gate = gate
        self.unsure = list(unsure)
        self.begun = threading.Event()

    async def judge(self, question: str, pairs: Sequence[Pair]) -> Judgements:
        self.asked.append(list(pairs))
        self.by.append(asking.get())
        self.begun.set()
        while self.gate is not None and not self.gate.is_set():  # noqa: ASYNC110 - for several loops
            await asyncio.sleep(0.001)
        if self.faults:
            raise self.faults.pop(0)
        return np.array([NAN if pair in self.unsure else row(question, *pair) for pair in pairs])


async def until(event: threading.Event) -> None:
    while not event.is_set():  # noqa: ASYNC110 - set in another loop
        await asyncio.sleep(0.001)


async def turns(n: int = 50) -> None:
    """Let everything that can go on without the gate go on."""
    for _ in range(n):
        await asyncio.sleep(0)


# --- in memory ---


async def test_an_ordered_pair_is_judged_once() -> None:
    stub = StubJudge()
    judge = RememberingJudge(stub, group=10)
    np.testing.assert_array_equal(await judge.judge(QUESTION, [*PAIRS, PAIRS[0]]), rows(QUESTION, [*PAIRS, PAIRS[0]]))
    assert stub.asked == [PAIRS]
    again = [("a", "c"), ("c", "a"), ("a", "b")]
    np.testing.assert_array_equal(await judge.judge(QUESTION, again), rows(QUESTION, again))
    assert stub.asked[1:] == [[("c", "a")]]
    assert judge.name == "stub"


def test_where_one_text_ends_is_part_of_the_key() -> None:
    texts = [("ab", "c", "d"), ("a", "bc", "d"), ("a", "b", "cd"), ("", "abc", "d"), ("ab", "d", "c"), ("c", "ab", "d")]
    assert len({pair_key(*some) for some in texts}) == len(texts)
    assert len(pair_key("\ud800", "", "é")) == 32


async def test_no_pairs() -> None:
    stub = StubJudge()
    judged = await RememberingJudge(stub, group=10).judge(QUESTION, [])
    assert judged.shape == (0, 3)
    assert judged.dtype == np.float64
    assert stub.asked == []


async def test_pairs_are_judged_in_groups_at_once() -> None:
    stub = StubJudge()
    pairs = [(str(i), "x") for i in range(5)]
    np.testing.assert_array_equal(await RememberingJudge(stub, group=2).judge(QUESTION, pairs), rows(QUESTION, pairs))
    assert sorted(len(group) for group in stub.asked) == [1, 2, 2]
    assert sorted(pair for group in stub.asked for pair in group) == pairs


async def test_what_the_judge_could_not_say_is_asked_again() -> None:
    stub = StubJudge(unsure=[PAIRS[1]])
    judge = RememberingJudge(stub, group=10)
    for _ in range(2):
        judged = await judge.judge(QUESTION, PAIRS)
        np.testing.assert_array_equal(np.isnan(judged).all(axis=1), [False, True, False])
    assert stub.asked == [PAIRS, [PAIRS[1]]]
    stub.unsure = []
    np.testing.assert_array_equal(await judge.judge(QUESTION, PAIRS), rows(QUESTION, PAIRS))


async def test_the_longest_unused_are_forgotten_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judgement_cache, "REMEMBERED", 2)
    stub = StubJudge()
    judge = RememberingJudge(stub, group=10)
    for first in "ab":
        await judge.judge(QUESTION, [(first, "x")])
    await judge.judge(QUESTION, [("a", "x")])  # used again
    await judge.judge(QUESTION, [("c", "x")])
    await judge.judge(QUESTION, [("a", "x")])
    await judge.judge(QUESTION, [("b", "x")])
    assert [group[0][0] for group in stub.asked] == ["a", "b", "c", "b"]


async def test_the_judge_runs_in_the_context_of_who_asks_first() -> None:
    stub = StubJudge()
    judge = RememberingJudge(stub, group=1)
    asking.set("the node")
    await judge.judge(QUESTION, PAIRS)
    assert stub.by == ["the node"] * 3


# --- at once ---


async def test_callers_at_once_share_one_judgement() -> None:
    stub = StubJudge(gate=threading.Event())
    judge = RememberingJudge(stub, group=10)
    tasks = [asyncio.create_task(judge.judge(QUESTION, [pair, PAIRS[0]])) for pair in PAIRS * 3]
    await turns()
    assert stub.gate is not None
    stub.gate.set()
    for task, pair in zip(tasks, PAIRS * 3, strict=True):
        np.testing.assert_array_equal(await task, rows(QUESTION, [pair, PAIRS[0]]))
    assert sorted(pair for group in stub.asked for pair in group) == sorted(PAIRS)


async def test_callers_who_wait_for_each_other_do_not_wait_for_ever() -> None:
    judge = RememberingJudge(StubJudge(), group=1)
    lists = [[(str((i + j) % 7), "x") for j in range(7)] for i in range(20)]
    async with asyncio.timeout(60):
        for pairs, judged in zip(lists, await asyncio.gather(*(judge.judge(QUESTION, p) for p in lists)), strict=True):
            np.testing.assert_array_equal(judged, rows(QUESTION, pairs))


async def test_an_unsure_row_is_shared_by_those_who_wait() -> None:
    stub = StubJudge(gate=threading.Event(), unsure=[PAIRS[0]])
    judge = RememberingJudge(stub, group=10)
    tasks = [asyncio.create_task(judge.judge(QUESTION, [PAIRS[0]])) for _ in range(3)]
    await turns()
    assert stub.gate is not None
    stub.gate.set()
    assert all(np.isnan(judged).all() for judged in await asyncio.gather(*tasks))
    assert len(stub.asked) == 1


async def test_a_fault_reaches_all_who_wait_and_is_not_remembered() -> None:
    stub = StubJudge(gate=threading.Event())
    stub.faults = [ModelFault("stub", "timed out")]
    judge = RememberingJudge(stub, group=10)
    tasks = [asyncio.create_task(judge.judge(QUESTION, [PAIRS[0]])) for _ in range(3)]
    await turns()
    assert stub.gate is not None
    stub.gate.set()
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [ModelFault] * 3
    assert len(stub.asked) == 1
    np.testing.assert_array_equal(await judge.judge(QUESTION, [PAIRS[0]]), rows(QUESTION, [PAIRS[0]]))


async def test_if_the_first_gives_up_another_judges() -> None:
    stub = StubJudge(gate=threading.Event())
    judge = RememberingJudge(stub, group=10)
    first = asyncio.create_task(judge.judge(QUESTION, PAIRS))
    await until(stub.begun)
    second = asyncio.create_task(judge.judge(QUESTION, PAIRS))
    await turns()
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    assert stub.gate is not None
    stub.gate.set()
    np.testing.assert_array_equal(await second, rows(QUESTION, PAIRS))
    assert stub.asked == [PAIRS, PAIRS]


async def test_one_who_waits_may_give_up_without_harm_to_the_others() -> None:
    stub = StubJudge(gate=threading.Event())
    judge = RememberingJudge(stub, group=10)
    first = asyncio.create_task(judge.judge(QUESTION, PAIRS))
    await until(stub.begun)
    second, third = (asyncio.create_task(judge.judge(QUESTION, PAIRS)) for _ in range(2))
    await turns()
    second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second
    assert stub.gate is not None
    stub.gate.set()
    for task in (first, third):
        np.testing.assert_array_equal(await task, rows(QUESTION, PAIRS))
    assert stub.asked == [PAIRS]


def test_callers_in_several_loops_share_one_judgement() -> None:
    stub = StubJudge(gate=threading.Event())
    judge = RememberingJudge(stub, group=10)
    results: list[Judgements] = []
    threads = [
        threading.Thread(target=lambda: results.append(asyncio.run(judge.judge(QUESTION, PAIRS)))) for _ in range(6)
    ]
    for thread in threads:
        thread.start()
    assert stub.begun.wait(60)
    assert stub.gate is not None
    stub.gate.set()
    for thread in threads:
        thread.join(60)
    assert len(results) == 6
    for judged in results:
        np.testing.assert_array_equal(judged, rows(QUESTION, PAIRS))
    assert stub.asked == [PAIRS]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_forked_child_does_not_wait_for_its_parents_judge() -> None:
    code = (
        "import asyncio, os, threading\n"
        "from dubito.models.judgement_cache import RememberingJudge\n"
        "from dubito.tests.unit.test_judges_cache import PAIRS, QUESTION, StubJudge\n"
        "stub = StubJudge(gate=threading.Event())\n"
        "judge = RememberingJudge(stub, group=10)\n"
        "parent = threading.Thread(target=lambda: asyncio.run(judge.judge(QUESTION, PAIRS)))\n"
        "parent.start()\n"
        "stub.begun.wait(60)\n"
        "if (child := os.fork()) == 0:\n"
        "    stub.gate.set()\n"
        "    os._exit(len(asyncio.run(judge.judge(QUESTION, PAIRS))))\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
        "stub.gate.set()\n"
        "parent.join()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == "3\n"


# --- on disk ---


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "judgements.sqlite"


def stored(path: Path, stub: StubJudge, weights: str = "weights") -> RememberingJudge:
    return RememberingJudge(stub, 10, JudgementStore(path, lambda: weights))


async def test_another_process_finds_what_was_judged(path: Path) -> None:
    second = StubJudge()
    with blockbuster_ctx():
        await stored(path, StubJudge()).judge(QUESTION, PAIRS)
        judged = await stored(path, second).judge(QUESTION, [PAIRS[2], ("new", "pair"), PAIRS[0]])
    np.testing.assert_array_equal(judged, rows(QUESTION, [PAIRS[2], ("new", "pair"), PAIRS[0]]))
    assert second.asked == [[("new", "pair")]]


async def test_other_weights_judge_anew(path: Path) -> None:
    await stored(path, StubJudge()).judge(QUESTION, PAIRS)
    other = StubJudge()
    await stored(path, other, "other weights").judge(QUESTION, PAIRS)
    assert other.asked == [PAIRS]


async def test_judgements_belong_to_the_weights_that_judged_whatever_lies_in_their_folder_later(path: Path) -> None:
    found = iter(["", "weights", "others that came later"])
    judge = RememberingJudge(StubJudge(), 1, JudgementStore(path, lambda: next(found)))
    await judge.judge(QUESTION, PAIRS)
    again = StubJudge()
    await stored(path, again).judge(QUESTION, PAIRS)
    assert again.asked == []


async def test_weights_that_cannot_be_named_are_not_stored(path: Path) -> None:
    for _ in range(2):
        stub = StubJudge()
        await stored(path, stub, "").judge(QUESTION, PAIRS)
        assert stub.asked == [PAIRS]
    assert not await asyncio.to_thread(path.exists)


async def test_unsure_rows_are_not_stored(path: Path) -> None:
    await stored(path, StubJudge(unsure=[PAIRS[1]])).judge(QUESTION, PAIRS)
    assert await asyncio.to_thread(count, path) == 2
    second = StubJudge()
    np.testing.assert_array_equal(await stored(path, second).judge(QUESTION, PAIRS), rows(QUESTION, PAIRS))
    assert second.asked == [[PAIRS[1]]]


def count(path: Path) -> int:
    with closing(sqlite3.connect(path)) as database:
        return int(database.execute("SELECT count(*) FROM entries").fetchone()[0])


def change(path: Path, statement: str) -> None:
    with closing(sqlite3.connect(path)) as database, database:
        database.execute(statement)


@pytest.mark.parametrize("value", ["x'0011'", "x'000000000000f87f' || zeroblob(16)"])
async def test_damaged_rows_are_judged_anew(path: Path, value: str) -> None:
    await stored(path, StubJudge()).judge(QUESTION, PAIRS)
    change(path, f"UPDATE entries SET value = CAST({value} AS BLOB) WHERE key = (SELECT min(key) FROM entries)")
    stub = StubJudge()
    np.testing.assert_array_equal(await stored(path, stub).judge(QUESTION, PAIRS), rows(QUESTION, PAIRS))
    assert [len(group) for group in stub.asked] == [1]
