"""One thread for all event loops of the process: it runs a batch step by step, and single calls between the steps."""

import asyncio
import atexit
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, Generic, Protocol, TypeVar
from weakref import WeakSet

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
    """Serves `run` and `generate` from any number of event loops on one daemon thread.

    Scheduling is round-robin: a turn is one call (`run`), one attempt to join (`generate`) and one step of the batch. A
    long request delays others by one turn at a time. The thread ends after `linger_s` idle seconds, so nothing needs to
    be closed; the next call starts another.
    """

    def __init__(self, open_batch: Callable[[], B], linger_s: float = 5.0) -> None:
        """open_batch: called on the worker's thread at the first call; called again only if it raised."""
        self._open_batch = open_batch
        self._linger_s = linger_s
        self._batch: B | None = None
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._stopping = False
        self._single: deque[tuple[Callable[[B], Any], Future[Any]]] = deque()
        self._joining: deque[tuple[Any, Future[Any]]] = deque()
        self._running: list[tuple[Any, Future[Any]]] = []
        _workers.add(self)

    async def run(self, work: Callable[[B], Answer]) -> Answer:
        """Call `work` with the batch on the worker's thread, between two steps."""
        future: Future[Answer] = Future()
        self._submit(self._single, (work, future))
        return await asyncio.wrap_future(future)

    async def generate(self, request: object) -> Any:  # noqa: ANN401 - the batch's own result
        """Run a request in the batch until it is finished. Cancelling the caller takes the request out."""
        future: Future[Any] = Future()
        self._submit(self._joining, (request, future))
        return await asyncio.wrap_future(future)

    def stop(self, timeout_s: float) -> None:
        """Stop the thread after the current turn. Pending requests are never answered."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
            thread = self._thread
        if thread is not None:
            thread.join(timeout_s)

    def _submit(self, queue: deque[Any], item: tuple[Any, Future[Any]]) -> None:
        with self._changed:
            queue.append(item)
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._serve, name="dubito-model", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def _serve(self) -> None:
        while self._has_work():
            self._serve_single()
            self._serve_joining()
            self._serve_running()

    def _has_work(self) -> bool:
        with self._changed:
            self._changed.wait_for(
                lambda: self._stopping or self._single or self._joining or self._running, timeout=self._linger_s
            )
            if not self._stopping and (self._single or self._joining or self._running):
                return True
            self._thread = None
            return False

    def _serve_single(self) -> None:
        if (item := self._oldest(self._single)) is None:
            return
        work, future = item
        try:
            _succeed(future, work(self._opened()))
        except BaseException as fault:
            _fail(future, fault)

    def _serve_joining(self) -> None:
        if (item := self._oldest(self._joining)) is None:
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
            with self._changed:
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

    def _oldest(self, queue: deque[tuple[Any, Future[Any]]]) -> tuple[Any, Future[Any]] | None:
        with self._changed:
            while queue:
                item = queue.popleft()
                if not item[1].done():  # neither cancelled by its caller nor failed in the batch
                    return item
        return None

    def _forget(self, requests: list[Any]) -> None:
        if requests and self._batch is not None:
            gone = {id(request) for request in requests}
            self._running = [item for item in self._running if id(item[0]) not in gone]
            self._batch.leave(requests)

    def _opened(self) -> B:
        if self._batch is None:
            self._batch = self._open_batch()
        return self._batch


def _succeed(future: Future[Any], result: object) -> None:
    if future.set_running_or_notify_cancel():  # from here on it can no longer be cancelled
        future.set_result(result)


def _fail(future: Future[Any], fault: BaseException) -> None:
    if future.set_running_or_notify_cancel():
        future.set_exception(fault)


_workers: WeakSet[Worker[Any]] = WeakSet()


@atexit.register
def _stop_all() -> None:
    # a daemon thread that is inside torch while the interpreter ends can crash the process
    for worker in list(_workers):
        worker.stop(timeout_s=10.0)
