import asyncio
import subprocess
import sys
import threading
import time
import weakref
from dataclasses import dataclass, field

import pytest
from dubito.models.batching import Worker


@dataclass(eq=False)
class Job:
    """Wants `rows` rows for `steps` steps each; its result is the thread it ran on."""

    steps: int
    rows: int = 1
    fault: str = ""
    waiting: int | None = None
    left: list[int] = field(default_factory=list)


class Rows:
    """A batch of at most `most` rows that does nothing, slowly enough to be caught at it."""

    def __init__(self, most: int = 4, pause: float = 0.001) -> None:
        self.most = most
        self.pause = pause
        self.steps = 0
        self.busiest = 0
        self.jobs: list[Job] = []

    @property
    def running(self) -> int:
        return sum(len(job.left) for job in self.jobs)

    def join(self, job):
        if job.fault == "join":
            raise LookupError("join")
        if job.waiting is None:
            job.waiting = job.rows
        room = min(job.waiting, self.most - self.running)
        if room and job not in self.jobs:
            self.jobs.append(job)
        job.waiting -= room
        job.left += [job.steps] * room
        self.busiest = max(self.busiest, self.running)
        return job.waiting == 0

    def step(self):
        time.sleep(self.pause)
        self.steps += 1
        if any(job.fault == "step" for job in self.jobs):
            raise LookupError("step")
        for job in self.jobs:
            job.left = [left - 1 for left in job.left if left > 1]
        done = [job for job in self.jobs if not job.left and not job.waiting]
        self.leave(done)
        return [(job, threading.current_thread()) for job in done]

    def leave(self, jobs):
        self.jobs = [job for job in self.jobs if job not in jobs]


def test_every_loop_is_served_by_one_thread():
    worker = Worker(Rows)

    async def ask():
        return [await worker.generate(Job(3)), await worker.run(lambda _: threading.current_thread())]

    threads = []
    callers = [threading.Thread(target=lambda: threads.extend(asyncio.run(ask()))) for _ in range(6)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert len(threads) == 12
    assert len(set(threads)) == 1
    assert threads[0] not in callers


async def test_requests_share_the_steps():
    rows = Rows()
    worker = Worker(lambda: rows)
    await asyncio.gather(*(worker.generate(Job(50)) for _ in range(4)))
    assert rows.steps < 60


async def test_no_more_rows_run_than_there_is_room_for():
    rows = Rows(most=4)
    worker = Worker(lambda: rows)
    await asyncio.wait_for(asyncio.gather(*(worker.generate(Job(5, rows=n)) for n in (3, 1, 7, 2, 10))), 20)
    assert rows.busiest == 4
    assert rows.running == 0


async def test_single_work_is_not_held_up_by_long_requests():
    rows = Rows(most=1)
    worker = Worker(lambda: rows)
    long = [asyncio.ensure_future(worker.generate(Job(400))) for _ in range(3)]
    await worker.run(lambda _: None)
    before = rows.steps
    await asyncio.gather(*(worker.run(lambda _: None) for _ in range(5)))
    assert rows.steps - before < 20
    assert not any(request.done() for request in long)
    for request in long:
        request.cancel()


async def test_a_caller_that_gives_up_takes_only_its_own_request_out():
    rows = Rows(most=2)
    worker = Worker(lambda: rows)
    running, waiting, other = (
        asyncio.ensure_future(worker.generate(Job(steps, rows=n))) for steps, n in ((10**6, 1), (10**6, 5), (100, 1))
    )
    await worker.run(lambda _: None)
    while rows.running < 2:  # noqa: ASYNC110 - nobody would set an event
        await asyncio.sleep(0.001)
    running.cancel()
    waiting.cancel()
    await asyncio.wait_for(other, 10)
    assert rows.jobs == []
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_a_request_that_cannot_join_fails_alone():
    worker = Worker(Rows)
    results: list[object] = await asyncio.gather(
        worker.generate(Job(20)), worker.generate(Job(1, fault="join")), return_exceptions=True
    )
    assert isinstance(results[0], threading.Thread)
    assert isinstance(results[1], LookupError)


async def test_a_step_that_fails_fails_who_runs_and_nobody_after():
    rows = Rows(most=2)
    worker = Worker(lambda: rows)
    answers = await asyncio.gather(
        worker.generate(Job(10**6)), worker.generate(Job(1, rows=5, fault="step")), return_exceptions=True
    )
    assert [str(answer) for answer in answers] == ["step", "step"]
    assert rows.jobs == []
    assert isinstance(await worker.generate(Job(3, rows=3)), threading.Thread)


@pytest.mark.parametrize("why", ["its caller gives up", "join", "step"])
@pytest.mark.parametrize("faults", [1, 2])
async def test_a_fault_of_leaving_fails_who_runs_and_nobody_after(why, faults):
    class Full(Rows):
        def leave(self, jobs):
            nonlocal faults
            if jobs and faults:
                faults -= 1
                raise MemoryError("leave")
            super().leave(jobs)

    batches = []

    def open_batch():
        batches.append(Full())
        return batches[-1]

    worker = Worker(open_batch)
    stays = asyncio.ensure_future(worker.generate(Job(10**6)))
    leaves = asyncio.ensure_future(worker.generate(Job(10**6, fault=why)))
    for _ in range(4):  # in a turn at most one request joins, after the single work
        await worker.run(lambda _: None)
    if why == "its caller gives up":
        leaves.cancel()
    ended = await asyncio.wait_for(asyncio.gather(stays, leaves, return_exceptions=True), 10)
    assert isinstance(ended[0], (MemoryError, LookupError))
    assert str(ended[1]) == ("" if leaves.cancelled() else why)
    assert isinstance(await asyncio.wait_for(worker.generate(Job(3)), 10), threading.Thread)
    assert len(batches) == (2 if len(batches[0].jobs) else 1)
    assert batches[-1].jobs == []


async def test_opening_is_tried_again_after_a_fault():
    tries = []

    def open_batch():
        tries.append(1)
        if len(tries) < 3:
            raise LookupError(len(tries))
        return Rows()

    worker = Worker(open_batch)
    with pytest.raises(LookupError, match="1"):
        await worker.run(lambda _: None)
    with pytest.raises(LookupError, match="2"):
        await worker.generate(Job(1))
    await asyncio.gather(*(worker.generate(Job(1)) for _ in range(3)))
    assert len(tries) == 3


async def test_a_worker_that_is_let_go_ends_its_thread_and_lets_go_of_the_batch():
    worker = Worker(Rows)
    thread = await worker.generate(Job(1))
    batch = weakref.ref(await worker.run(lambda rows: rows))
    del worker
    for _ in range(100):
        if batch() is None and not thread.is_alive():
            return
        await asyncio.sleep(0.05)
    pytest.fail("the batch is still held")


def test_the_interpreter_ends_in_the_middle_of_a_request():
    script = """
import asyncio, threading, time
from dubito.models.batching import Worker
from test_batching import Job, Rows

endless = Worker(Rows).generate(Job(10**9))
threading.Thread(target=asyncio.run, args=(endless,), daemon=True).start()
time.sleep(0.2)
"""
    path = __file__.rpartition("/")[0]
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=path, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
