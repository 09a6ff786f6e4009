"""An OpenAI-compatible server that answers from a script: each reply depends on the request alone."""

from __future__ import annotations

import hashlib
import json
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Stub:
    """fails: of a request and how many there were before, the status of a refusal, 200 for none; seconds: how long each
    takes; script: the text of every reply, else a word that depends on the request; refusal: the words of a refusal,
    of the request's header Authorization; `models` is what it lists. Streamed replies come in words: drip: seconds
    between two words; breaks: of a request and how many there were before, after how many words the connection is cut,
    0 for never. `requests` and `authorizations` are the bodies and headers that it was sent; `left`: a client went away
    in a stream.
    """

    url: str = ""
    seconds: float = 0.0
    fails: Callable[[dict[str, Any], int], int] = lambda body, number: 200
    script: Callable[[dict[str, Any]], str] | None = None
    refusal: Callable[[str], str] = lambda authorization: "out of order"
    requests: list[dict[str, Any]] = field(default_factory=list)
    authorizations: list[str] = field(default_factory=list)
    models: list[dict[str, Any]] = field(default_factory=lambda: [{"id": "m"}])
    drip: float = 0.0
    breaks: Callable[[dict[str, Any], int], int] = lambda body, number: 0
    left: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def reply(self, body: dict[str, Any], authorization: str = "") -> tuple[int, dict[str, Any]]:
        with self._lock:
            number = len(self.requests)
            self.requests.append(body)
            self.authorizations.append(authorization)
        time.sleep(self.seconds)
        if (status := self.fails(body, number)) != 200:
            return status, {"error": {"message": self.refusal(authorization), "type": "server_error"}}
        if tools := body.get("tools"):
            return 200, self._with_tools(body, tools)
        if "input" in body:
            return 200, embedded(body["input"])
        texts = [
            self.script(body) if self.script else f"So the final answer is: {word(body, place)}."
            for place in range(body.get("n") or 1)
        ]
        message = [
            {
                "index": i,
                "finish_reason": "stop",
                "message": {"role": "assistant", "content": text},
                "logprobs": {"content": [{"token": text, "logprob": -0.5}]} if body.get("logprobs") else None,
            }
            for i, text in enumerate(texts)
        ]
        return 200, completed(body, message)

    def _with_tools(self, body: dict[str, Any], tools: list[dict[str, Any]]) -> dict[str, Any]:
        """Asks the first tool, then repeats what it was told."""
        told = [one["content"] for one in body["messages"] if one["role"] == "tool"]
        if told:
            message: dict[str, Any] = {"role": "assistant", "content": f"The library says: {told[-1]}"}
            return completed(body, [{"index": 0, "finish_reason": "stop", "message": message}])
        function = {"name": tools[0]["function"]["name"], "arguments": '{"question": "Who founded it?"}'}
        call = {"id": "call-1", "type": "function", "function": function}
        message = {"role": "assistant", "content": None, "tool_calls": [call]}
        return completed(body, [{"index": 0, "finish_reason": "tool_calls", "message": message}])


def chunks_of(reply: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A whole reply as the chunks of a stream, one a word; then the end; then the usage."""
    (choice,) = reply["choices"]
    words = re.findall(r"\s*\S+", choice["message"]["content"])
    for word in words:
        logprobs = choice.get("logprobs") and {"content": [{"token": word, "logprob": -0.5}]}
        yield {"choices": [{"index": 0, "delta": {"content": word}, "logprobs": logprobs, "finish_reason": None}]}
    yield {"choices": [{"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]}]}
    yield {"choices": [], "usage": reply["usage"]}


def embedded(texts: list[str]) -> dict[str, Any]:
    """An embedding of each text: how often it has each letter."""
    vectors = [[float(text.lower().count(letter)) for letter in "abcdefghijklmnopqrstuvwxyz"] for text in texts]
    data = [{"object": "embedding", "index": i, "embedding": vector} for i, vector in enumerate(vectors)]
    return {"object": "list", "data": data, "model": "stub", "usage": {"prompt_tokens": 1, "total_tokens": 1}}


def completed(body: dict[str, Any], choices: list[dict[str, Any]]) -> dict[str, Any]:
    """A whole reply."""
    usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
    about = {"id": "x", "object": "chat.completion", "created": 0, "model": body["model"]}
    return {**about, "choices": choices, "usage": usage}


def word(body: dict[str, Any], place: int) -> str:
    """What it says to a request."""
    asked = json.dumps([body["messages"], body.get("temperature"), body.get("seed"), place])
    return hashlib.sha256(asked.encode()).hexdigest()[:8]


@contextmanager
def serving(stub: Stub) -> Iterator[Stub]:
    """Serve it on a free port."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            status, reply = stub.reply(body, self.headers.get("Authorization", ""))
            if body.get("stream") and status == 200:
                self._stream(reply, stub.breaks(body, len(stub.requests) - 1))
                return
            content = json.dumps(reply).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def _stream(self, reply: dict[str, Any], words: int) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            try:
                for number, chunk in enumerate([*chunks_of(reply), None], 1):
                    event = f"data: {'[DONE]' if chunk is None else json.dumps(chunk)}\n\n".encode()
                    self.wfile.write(b"%x\r\n%s\r\n" % (len(event), event))
                    if number == words:
                        self.close_connection = True
                        return
                    time.sleep(stub.drip)
                self.wfile.write(b"0\r\n\r\n")
            except OSError:
                self.close_connection = True
                stub.left.set()

        def do_GET(self) -> None:
            """The list of models, if the stub is not out of order."""
            status = stub.fails({}, -1)
            content = json.dumps({"data": stub.models}).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None:
            pass

    with listening_on(Handler) as url:
        stub.url = f"{url}/v1"
        yield stub


@contextmanager
def collecting(take: Callable[[str, Mapping[str, str], bytes], int]) -> Iterator[str]:
    """Serve a collector of spans. take: gets the path, headers and body of each post; returns the status."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            headers = {name.lower(): value for name, value in self.headers.items()}
            self.send_response(take(self.path, headers, body))
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    with listening_on(Handler) as url:
        yield url


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *request: Any) -> None:
        """A client that left is nothing to print: printing a traceback parses code, and while a test does the same in
        another thread, Python 3.11 breaks the test off ("AST constructor recursion depth mismatch")."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(*request)


@contextmanager
def listening_on(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    """Serve it on a free port of this machine."""
    server = _Server(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
