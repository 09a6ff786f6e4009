"""One thread for all event loops of the process: it runs a batch step by step, and single calls between the steps."""

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, Generic, Protocol, TypeVar

from .local_weights import model_thread

Request = TypeVar("Request")
Result = TypeVar("Result")
Answer = TypeVar("Answer")


class Batch(Protocol[Request, Result]):
    """Runs many requests together, one step at a time. Only the worker's thread uses it."""

    def join(self, request: Request) -> bool:
        """Take in a request, or a part of it. False: the rest must wait until other requests have left.

        An empty batch takes in at least a part of any request. A fault raised here fails this request only.
        """
        ...

    def step(self) -> list[tuple[Request, Result]]:
        """Advance every request by one step; finished requests leave and are returned with their results."""
        ...

    def leave(self, requests: Sequence[Request]) -> None:
        """Remove requests, finished or not, joined or not."""
        ...


B = TypeVar("B", bound=Batch[Any, Any])


class Worker(Generic[B]):
    """Serves `run` and `generate` from any number of event loops on one thread.

    Scheduling is round-robin: a turn is one call (`run`), one attempt to join (`generate`) and one step of the batch. A
    long request delays others by one turn at a time. When the interpreter ends, so does the work after the current
    turn, because no turn can be scheduled any more. A forked child needs a worker of its own (see `OfProcess`), because
    its copy of the batch may be in the middle of a step.
    """

    def __init__(self, open_batch: Callable[[], B]) -> None:
        """open_batch: called on the worker's thread at the first call; again only after a fault of it or the batch."""
        self._open_batch = open_batch
        self._batch: B | None = None
        self._thread = model_thread("dubito-model")
        self._lock = threading.Lock()
        self._has_turn = False
        self._single: deque[tuple[Callable[[B], Any], Future[Any]]] = deque()
        self._joining: deque[tuple[Any, Future[Any]]] = deque()
        self._running: list[tuple[Any, Future[Any]]] = []

    async def run(self, work: Callable[[B], Answer]) -> Answer:
        """Call `work` with the batch on the worker's thread, between two steps."""
        future: Future[Answer] = Future()
        self._single.append((work, future))
        self._schedule_turn()
        return await asyncio.wrap_future(future)

    async def generate(self, request: object) -> Any:  # noqa: ANN401 - the batch's own result
        """Run a request in the batch until it is finished. Cancelling the caller takes the request out."""
        future: Future[Any] = Future()
        self._joining.append((request, future))
        self._schedule_turn()
        return await asyncio.wrap_future(future)

    def _schedule_turn(self) -> None:
        with self._lock:
            if not self._has_turn and (self._single or self._joining or self._running):
                self._has_turn = True
                self._thread.submit(self._turn)

    def _turn(self) -> None:
        try:
            self._serve_single()
            self._serve_joining()
            self._serve_running()
        finally:  # without another turn every later call would wait for ever
            self._has_turn = False
            self._schedule_turn()

    def _serve_single(self) -> None:
        if (item := _oldest(self._single)) is None:
            return
        work, future = item
        try:
            _succeed(future, work(self._opened()))
        except BaseException as fault:
            _fail(future, fault)

    def _serve_joining(self) -> None:
        if (item := _oldest(self._joining)) is None:
            return
        request, future = item
        try:
            is_complete = self._opened().join(request)
        except BaseException as fault:
            self._forget([request])
            _fail(future, fault)
            return
        if all(future is not joined for _, joined in self._running):
            self._running.append(item)
        if not is_complete:
            self._joining.appendleft(item)

    def _serve_running(self) -> None:
        self._forget([request for request, future in self._running if future.done()])
        if not self._running:
            return
        futures = {id(request): future for request, future in self._running}
        try:
            for request, result in self._opened().step():
                self._running = [item for item in self._running if item[0] is not request]
                _succeed(futures[id(request)], result)
        except BaseException as fault:
            broken = self._running
            self._forget([request for request, _ in broken])
            for _, future in broken:
                _fail(future, fault)

    def _forget(self, requests: list[Any]) -> None:
        """Take requests out of the batch. A fault, such as of memory, fails those that stay, and empties the batch."""
        if not requests or self._batch is None:
            return
        gone = {id(request) for request in requests}
        self._running = [item for item in self._running if id(item[0]) not in gone]
        try:
            self._batch.leave(requests)
        except BaseException as fault:
            broken, self._running = self._running, []
            try:
                self._batch.leave([*requests, *(request for request, _ in broken)])  # an empty batch needs no memory
            except BaseException:
                self._batch = None
            for _, future in broken:
                _fail(future, fault)

    def _opened(self) -> B:
        if self._batch is None:
            self._batch = self._open_batch()
        return self._batch


def _oldest(queue: deque[tuple[Any, Future[Any]]]) -> tuple[Any, Future[Any]] | None:
    while queue:
        item = queue.popleft()
        if not item[1].done():  # neither cancelled by its caller nor failed in the batch
            return item
    return None


def _succeed(future: Future[Any], result: object) -> None:
    if future.set_running_or_notify_cancel():  # from here on it can no longer be cancelled
        future.set_result(result)


def _fail(future: Future[Any], fault: BaseException) -> None:
    if future.set_running_or_notify_cancel():
        future.set_exception(fault)
