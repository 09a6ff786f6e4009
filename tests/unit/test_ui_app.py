"""The server of `dubito ui` over scripted models: asking, refusing, leaving."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from dubito.cli.ui import page_allow_list
from dubito.errors import ModelFault
from dubito.graphs import vanilla_rag
from dubito.models.answer_stream import text_listener
from dubito.resources.resources import Resources
from dubito.settings import settings
from dubito.state.vanilla_rag import VanillaRagContext
from dubito.tests.recorded import RUNS, parsed
from dubito.tests.scripted import Believer, ScriptedChat, ScriptedJudge, ScriptedRetriever
from dubito.traces.recording import assembled
from dubito.ui import request
from dubito.ui.app import LONGEST_BODY, LONGEST_QUESTION, create_app
from starlette.applications import Starlette
from starlette.testclient import TestClient

VECTORS = [[1.0, 0.1], [1.0, 0.2], [1.0, 0.3]]
HOSTILE = "<script>alert(1)</script>"


def app_over(
    llm: Any, texts: tuple[str, ...] = ("zero", "one", "two"), allow: tuple[str, ...] = (), **more: Any
) -> Starlette:
    opened = Resources(llm=llm, retriever=ScriptedRetriever([1.0, 0.0], VECTORS, texts), judge=ScriptedJudge())
    return create_app(page_allow_list([], None, allow), resources=opened, **more)


def chat(answer: str = "the Lune", **more: Any) -> ScriptedChat:
    return ScriptedChat(reply=lambda system, user: answer, **more)


def client(app: Starlette) -> TestClient:
    return TestClient(app, base_url="http://127.0.0.1:8700")


@pytest.fixture
def page() -> Iterator[TestClient]:
    with client(app_over(chat())) as opened:
        yield opened


def body(question: str = "Which river?", graph: str = "vanilla_rag", **more: Any) -> dict[str, Any]:
    return {"graph": graph, "question": question, **more}


def events(text: str) -> list[tuple[str, dict[str, Any]]]:
    found = re.findall(r"event: (.*)\ndata: (.*)\n\n", text)
    return [(kind, json.loads(data)) for kind, data in found if kind != "alive"]


def test_the_page_has_a_label_for_every_input(page):
    tree = parsed(page.get("/").content)
    named = {one.attributes.get("for") for one in tree.every("label")}
    inputs = [one for tag in ("input", "select", "textarea") for one in tree.every(tag)]
    assert len(inputs) > 10
    assert {one.attributes["id"] for one in inputs} <= named
    hints = {one.attributes["id"] for one in tree.every("p") if "id" in one.attributes}
    assert {one.attributes["aria-describedby"] for one in inputs if one.attributes["id"] != "graph"} <= hints


def test_a_form_of_each_graph_and_of_no_other(page):
    form = page.get("/form/sunar")
    assert parsed(form.content).one("input", id="set-budget").attributes["max"] == "100000"
    missing = page.get("/form/nothing")
    assert missing.status_code == 404
    assert "There is no graph named 'nothing'" in missing.text


def test_what_the_page_needs_is_on_the_server(page):
    tree = parsed(page.get("/").content)
    for one in [tree.one("script").attributes["src"], tree.one("link", rel="stylesheet").attributes["href"]]:
        found = page.get(f"/{one}")
        assert found.status_code == 200
        assert "http" not in found.text.replace("http://www.w3.org", "")


def test_the_steps_of_a_question_come_then_its_answer(page):
    own = {"origin": "http://127.0.0.1:8700", "sec-fetch-site": "same-origin"}
    found = events(page.post("/ask", json=body(), headers=own).text)
    steps = [data for kind, data in found if kind == "step"]
    last = {data["number"]: (data["node"], data["state"], data["round"]) for data in steps}
    assert last == {
        1: ("prepare", "done", 1),
        2: ("retrieve", "done", 2),
        3: ("generate", "done", 3),
    }
    kind, done = found[-1]
    assert kind == "done"
    tree = parsed(f"<body>{done['html']}</body>".encode())
    assert tree.one("p", class_="answer").text == "the Lune"
    assert [one.one("p").text for one in tree.one(class_="evidence").every("li")] == ["zero", "one", "two"]
    generate = parsed(next(one["html"] for one in steps if one["number"] == 3 and one["state"] == "done").encode())
    assert "1 model call · 7 tokens read, 3 written · " in generate.text


async def test_the_answer_grows_on_the_page(monkeypatch):
    class Typing(ScriptedChat):
        async def complete(self, messages, sampling):
            listener = text_listener(sampling)
            assert listener is not None
            for text in ("the", "the <b>"):
                listener(text)
                await asyncio.sleep(0.05)  # so that the page is told both
            return await super().complete(messages, sampling)

    graph = vanilla_rag.build(
        Resources(llm=Typing(reply=lambda *_: "the Lune"), retriever=ScriptedRetriever([1.0, 0.0], VECTORS))
    )
    asked = request.Request(
        "name", graph.compile(name="vanilla_rag"), "Which river?", VanillaRagContext(k=2), {"question": "Which river?"}
    )
    shown = [event.data["html"] async for event in asked.events() if event.kind == "answer"]
    assert [parsed(f"<body>{html}</body>".encode()).one("p", class_="answer").text for html in shown] == [
        "the",
        "the Lune",
    ]
    assert b"answer_begin" in asked.trace


def test_the_trace_is_the_runs_own_and_its_page_opens(page):
    html = events(page.post("/ask", json=body("Why?", settings={"k": "2"})).text)[-1][1]["html"]
    links = [one.attributes["href"] for one in parsed(f"<body>{html}</body>".encode()).every("a")]
    trace = page.get(f"/{links[1]}")
    recording = assembled(Path("t"), trace.content.splitlines(keepends=True))
    assert (recording.question, recording.context["k"]) == ("Why?", 2)
    assert recording.output is not None
    assert recording.output["answer"] == "the Lune"
    assert trace.headers["content-disposition"] == 'attachment; filename="trace.jsonl"'
    full = page.get(f"/{links[0]}")
    assert parsed(full.content).one("h1").text == "Why?"
    assert "script-src" not in full.headers["content-security-policy"]
    assert full.headers["content-security-policy"].startswith("default-src 'none'; ")


def test_a_trace_that_is_not_there(page):
    for path in ("/runs/guessed", "/runs/guessed/trace.jsonl"):
        missing = page.get(path)
        assert (missing.status_code, missing.text) == (
            404,
            "This question is not kept here (any more): ask it again.",
        )


def test_a_question_is_found_again_and_shown_as_it_was(page):
    live = events(page.post("/ask", json=body("Why?")).text)
    name = live[0][1]["name"]
    listed = parsed(page.get("/history").content)
    assert [one.attributes["href"] for one in listed.every("a")] == [f"#{name}"]
    assert listed.one("a").text == "Why?"
    again = events(page.get(f"/runs/{name}/events").text)
    assert again[0] == live[0]
    last = {data["number"]: data for kind, data in live if kind == "step"}
    assert [data["node"] for kind, data in again if kind == "step"] == [one["node"] for one in last.values()]
    assert again[-1][0] == "done"
    assert parsed(again[-1][1]["html"].encode()).one("p", class_="answer").text == "the Lune"


def test_what_the_page_allows_need_not_stand_in_the_environment_too(allow):
    allow("")
    server = "vllm:http://127.0.0.1:9/v1#m"
    with client(app_over(chat(), allow=(f"llm={server}",))) as page:
        kind, last = events(page.post("/ask", json=body(settings={"llm": server})).text)[-1]
    assert kind == "done"
    assert parsed(last["html"].encode()).one("p", class_="answer").text == "the Lune"


def test_another_browser_finds_nothing(page):
    name = events(page.post("/ask", json=body()).text)[0][1]["name"]
    page.cookies.clear()
    assert parsed(b"<body>" + page.get("/history").content + b"</body>").every("a") == []
    for refused in (page.get(f"/runs/{name}"), page.get(f"/runs/{name}/events"), page.delete(f"/runs/{name}")):
        assert refused.status_code == 404


def test_a_deleted_question_is_gone(page):
    name = events(page.post("/ask", json=body()).text)[0][1]["name"]
    assert page.delete(f"/runs/{name}", headers={"origin": "http://evil.example"}).status_code == 403
    assert page.delete(f"/runs/{name}").status_code == 204
    assert page.get(f"/runs/{name}/events").json()["error"].startswith("This question is not kept here")
    assert page.delete(f"/runs/{name}").status_code == 404


def test_a_question_of_another_version_is_listed_and_says_so(page):
    name = events(page.post("/ask", json=body("Why?")).text)[0][1]["name"]
    (path,) = settings().cache.glob(f"history/*/{name}.jsonl")
    path.write_bytes(path.read_bytes().replace(b'"version": 2', b'"version": 1', 1))
    assert "Why?" in page.get("/history").text
    for url in (f"/runs/{name}", f"/runs/{name}/events"):
        refused = page.get(url)
        assert refused.status_code == 409
        assert "is a trace in form 1, and this dubito reads form 2: record the run anew." in refused.text


def test_a_follow_up_is_rewritten_with_the_conversation_and_has_the_techniques_figures():
    def reply(system: str, user: str) -> str:
        return "Where does the Lune rise?" if "last question" in system else "at Wath"

    llm = ScriptedChat(reply=reply)
    with client(app_over(llm)) as page:
        first = events(page.post("/ask", json=body("Which river?")).text)
        asked = body("Where does it rise?", follows=[first[0][1]["name"]])
        second = events(page.post("/ask", json=asked).text)
        again = events(page.get(f"/runs/{second[0][1]['name']}/events").text)
    last = {data["number"]: data for kind, data in second if kind == "step"}
    nodes = [one["node"] for one in last.values()]
    assert nodes == ["listen", "standalone", "vanilla_rag", "prepare", "retrieve", "generate", "reply"]
    ((_, messages),) = [call for call in llm.calls if "last question" in call[1][0]["content"]]
    assert "user: Which river?\nassistant: at Wath\n\nLast question: Where does it rise?" in messages[-1]["content"]
    assert second[0][1]["technique"] == "Plain RAG"
    for found in (second, again):
        (said,) = [data for _, data in found if data.get("node") == "standalone" and data["state"] == "done"]
        assert "Where does the Lune rise?" in said["html"]
        tree = parsed(f"<body>{found[-1][1]['html']}</body>".encode())
        assert tree.one("p", class_="answer").text == "at Wath"
        assert len(tree.one(class_="figures-of").every("table")) == 1


def test_a_follow_up_knows_the_earlier_answer_without_its_marks():
    llm = ScriptedChat(reply=lambda system, user: "Where?" if "last question" in system else "the Lune [1]")
    with client(app_over(llm)) as page:
        first = events(page.post("/ask", json=body("Which river?", settings={"cite": "true"})).text)
        page.post("/ask", json=body("Where does it rise?", follows=[first[0][1]["name"]]))
    assert "the Lune [1]" in parsed(first[-1][1]["html"].encode()).one("p", class_="answer").text
    ((_, messages),) = [call for call in llm.calls if "last question" in call[1][0]["content"]]
    assert "assistant: the Lune\n" in messages[-1]["content"]


@pytest.mark.parametrize(
    ("follows", "status", "said"),
    [
        (["guessed"], 404, "This question is not kept here"),
        (["x" * 22] * 21, 400, "The request is not from this version of the page"),
    ],
)
def test_a_follow_up_on_nothing_is_refused(page, follows, status, said):
    refused = page.post("/ask", json=body(follows=follows))
    assert refused.status_code == status
    assert refused.json()["error"].startswith(said)


def test_a_graph_that_takes_right_answers_cannot_follow_up(page):
    name = events(page.post("/ask", json=body()).text)[0][1]["name"]
    refused = page.post("/ask", json=body(graph="seper", answers=["x"], follows=[name]))
    assert refused.json()["error"] == "A question to seper stands alone: ask it without following up."


def test_hostile_text_is_text():
    with client(app_over(chat(HOSTILE), (HOSTILE, HOSTILE, HOSTILE))) as page:
        found = events(page.post("/ask", json=body(HOSTILE)).text)
        for _, data in found:
            assert "<script" not in data.get("html", "")  # the page puts the question in as text
        tree = parsed(f"<body>{found[-1][1]['html']}</body>".encode())
        assert tree.one("p", class_="answer").text == HOSTILE
        trace = page.get("/" + tree.every("a")[0].attributes["href"])
        assert "<script" not in trace.text


@pytest.mark.parametrize(
    ("sent", "status", "said"),
    [
        (body(" \n "), 400, "The question is empty: write one."),
        (body("x" * (LONGEST_QUESTION + 1)), 413, "The question is too long: it may have 8,000 characters."),
        (body("x" * LONGEST_BODY), 413, "The question is too long: it may have 8,000 characters."),
        (body(graph="nothing"), 400, "There is no graph named 'nothing'"),
        (body(settings={"k": "0"}), 400, "k is '0' and must be a whole number from 1 to 1000."),
        (body(settings={"colour": "red"}), 400, "vanilla_rag has no setting 'colour'"),
        (body(settings={"corpus": "/etc/passwd"}), 403, "corpus '/etc/passwd' is not allowed here"),
        (body(settings={"llm": "vllm:http://10.0.0.1/v1#m"}), 403, "llm 'vllm:http://10.0.0.1/v1#m' is not allowed"),
        (body(settings={"preset": "paper"}), 403, "llm 'vllm:"),
        (body(settings={"k": 3}), 400, "The request is not from this version of the page: reload the page."),
        (body(chunks=["x"]), 400, "The request is not from this version of the page: reload the page."),
        (body(graph="seper", answers=[" "]), 400, "seper measures against right answers: write at least one."),
        (body(graph="seper", answers=["x"] * 101), 400, "A question may come with 100 right answers: leave some out."),
    ],
)
def test_what_cannot_be_asked_is_said_in_a_sentence_and_no_model_hears_of_it(sent, status, said):
    llm = chat()
    with client(app_over(llm)) as page:
        refused = page.post("/ask", json=sent)
    assert refused.status_code == status
    assert refused.json()["error"].startswith(said)
    assert llm.calls == []


@pytest.mark.parametrize("sent", [b"{", b"\xff", b"", b'{"graph": "vanilla_rag", "question": "\\ud800"}'])
def test_what_is_no_json_or_no_text_is_refused(page, sent):
    refused = page.post("/ask", content=sent, headers={"content-type": "application/json"})
    assert refused.status_code == 400
    assert refused.json()["error"] == "The request is not from this version of the page: reload the page."


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""])
def test_what_a_form_of_another_page_can_send_is_refused(page, kind):
    refused = page.post("/ask", content=json.dumps(body()), headers={"content-type": kind})
    assert refused.status_code == 415


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "http://127.0.0.1:8700.evil.example"},
        {"sec-fetch-site": "cross-site"},
        {"origin": "http://127.0.0.1:8700", "sec-fetch-site": "cross-site"},
    ],
)
def test_posts_from_another_page_are_refused(headers):
    llm = chat()
    with client(app_over(llm)) as page:
        refused = page.post("/ask", json=body(), headers=headers)
    assert refused.status_code == 403
    assert refused.json()["error"] == "The question comes from another page: ask it on this one."
    assert llm.calls == []


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:8700", 200),
        ("[::1]:8700", 200),
        ("LOCALHOST:8700", 200),
        ("127.0.0.1", 403),
        ("localhost:9000", 403),
        ("evil.example@localhost:8700", 403),
        ("localhost:8700@evil.example", 403),
        ("evil.example", 403),
        ("evil.example:8700", 403),
        ("localhost.evil.example", 403),
        ("", 403),
        ("[", 403),
    ],
)
def test_only_an_address_in_numbers_and_localhost_are_names_of_the_page(page, host, status):
    assert page.get("/", headers={"host": host}).status_code == status
    assert page.post("/ask", json=body(), headers={"host": host}).status_code == status


@pytest.fixture
def with_token(monkeypatch: pytest.MonkeyPatch) -> Iterator[TestClient]:
    monkeypatch.setenv("DUBITO_TOKEN", "open sesame")
    settings.cache_clear()
    with client(app_over(chat())) as opened:
        yield opened
    settings.cache_clear()


@pytest.mark.parametrize("given", ["", "Bearer", "Bearer open", "Basic open sesame", "Bearer open sesame2"])
def test_without_the_token_nothing_is_answered(with_token, given):
    for reply in (
        with_token.get("/", headers={"authorization": given}),
        with_token.post("/ask", json=body(), headers={"authorization": given}),
        with_token.get("/?token=wrong"),
    ):
        assert (reply.status_code, reply.headers["www-authenticate"]) == (401, "Bearer")
        assert "Send the token" in reply.json()["error"]


def test_a_program_sends_the_token_and_a_browser_keeps_it(with_token):
    assert with_token.post("/ask", json=body(), headers={"authorization": "Bearer open sesame"}).status_code == 200
    opened = with_token.get("/?token=open+sesame", follow_redirects=False)
    assert (opened.status_code, opened.headers["location"]) == (303, "/")
    assert "HttpOnly" in opened.headers["set-cookie"]
    assert "SameSite=strict" in opened.headers["set-cookie"]
    assert with_token.get("/").status_code == 200
    assert with_token.post("/ask", json=body()).status_code == 200


def test_with_a_token_it_may_have_the_name_of_a_proxy(with_token):
    proxied = {"host": "ask.example", "origin": "https://ask.example", "authorization": "Bearer open sesame"}
    assert with_token.post("/ask", json=body(), headers=proxied).status_code == 200
    assert with_token.get("/", headers={"host": "ask.example"}).status_code == 401
    foreign = proxied | {"origin": "https://evil.example"}
    assert with_token.post("/ask", json=body(), headers=foreign).status_code == 403


def test_a_health_check_needs_no_token(with_token):
    assert with_token.get("/ok").json() == {"ok": True}


def test_the_name_it_listens_on_is_the_pages_too():
    with client(app_over(chat(), host="rag.example")) as page:
        assert page.get("/", headers={"host": "Rag.example:8700"}).status_code == 200
        assert page.get("/", headers={"host": "other.example"}).status_code == 403


def test_every_answer_forbids_what_the_page_does_not_need(page):
    for found in (page.get("/"), page.get("/ui.js"), page.get("/nothing"), page.post("/ask", json=body())):
        policy = found.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe-inline" not in policy.replace("style-src 'self' 'unsafe-inline'", "")
        assert found.headers["x-content-type-options"] == "nosniff"
        assert found.headers["cache-control"] == "no-store"


@pytest.mark.usefixtures("fast_retries")
def test_a_model_that_does_not_answer_is_named_and_the_steps_so_far_are_kept():
    faults: list[Exception] = [ModelFault("http://127.0.0.1:9/v1", "connection refused")] * 9
    with client(app_over(chat(faults=faults))) as page:
        found = events(page.post("/ask", json=body()).text)
        kind, data = found[-1]
        assert kind == "fault"
        tree = parsed(f"<body>{data['html']}</body>".encode())
        said = "http://127.0.0.1:9/v1 did not answer after 4 attempts: connection refused."
        assert tree.one(class_="fault").text == said
        steps = {one["node"]: one for kind, one in found if kind == "step"}
        assert steps["generate"]["state"] == "failed"
        assert said in steps["generate"]["html"]
        trace = page.get("/" + tree.one("a").attributes["href"])
        assert said in parsed(trace.content).text


def test_a_fault_of_ours_is_a_sentence_too():
    def broken(system: str, user: str) -> str:
        raise ZeroDivisionError("by zero")

    with client(app_over(ScriptedChat(reply=broken))) as page:
        kind, data = events(page.post("/ask", json=body()).text)[-1]
    assert kind == "fault"
    assert "Unexpected ZeroDivisionError: by zero" in data["html"]
    assert "Traceback" not in data["html"]


def test_right_answers_reach_the_graph_that_takes_them():
    llm = Believer(believes=lambda question, shown: ["Ada"])
    with client(app_over(llm)) as page:
        found = events(page.post("/ask", json=body(graph="seper", answers=["Ada", " ", "Byron "])).text)
        trace = page.get("/" + re.findall(r'href="(runs/[^"]*jsonl)"', found[-1][1]["html"])[0])
    assert json.loads(trace.text.splitlines()[-1])["output"]["gold_answers"] == ["Ada", "Byron"]


async def test_questions_at_once_do_not_mix():
    llm = ScriptedChat(reply=lambda system, user: f"answer to {user.rpartition('ABOUT ')[2].split()[0]}", seconds=0.05)
    app = app_over(llm, at_once=3)
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8700") as page:
        asked = [body(f"ABOUT {name} ?", settings={"k": str(k)}) for name, k in (("a", 1), ("b", 2), ("c", 3))]
        answers = await asyncio.gather(*(page.post("/ask", json=one) for one in asked))
    for answer, name, k in zip(answers, "abc", (1, 2, 3), strict=True):
        tree = parsed(f"<body>{events(answer.text)[-1][1]['html']}</body>".encode())
        assert tree.one("p", class_="answer").text == f"answer to {name}"
        assert len(tree.one(class_="evidence").every("li")) == k
    assert llm.under_way_at_most == 3


class Visit:
    """One request to the application itself, whose connection can be dropped."""

    def __init__(self, app: Starlette, sent: dict[str, Any]) -> None:
        self.said: list[dict[str, Any]] = []
        self.heard, self.alive = asyncio.Event(), asyncio.Event()
        self._left = asyncio.Event()
        self._body: list[dict[str, Any]] = [{"type": "http.request", "body": json.dumps(sent).encode()}]
        headers = [(b"host", b"127.0.0.1"), (b"content-type", b"application/json")]
        scope = {
            "type": "http",
            "method": "POST",
            "path": "/ask",
            "headers": headers,
            "query_string": b"",
            "http_version": "1.1",
            "scheme": "http",
            "server": ("127.0.0.1", 80),
        }
        self.task = asyncio.create_task(self._visit(app, scope))

    def leave(self) -> None:
        self._left.set()

    async def _visit(self, app: Starlette, scope: dict[str, Any]) -> None:
        await app(scope, self._receive, self._send)

    async def _receive(self) -> dict[str, Any]:
        if self._body:
            return self._body.pop()
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        self.said.append(message)
        if b"generate" in message.get("body", b""):
            self.heard.set()
        if self.heard.is_set() and b"event: alive" in message.get("body", b""):
            self.alive.set()

    @property
    def status(self) -> int:
        found: int = self.said[0]["status"]
        return found


class Waiting(ScriptedChat):
    """Answers when it is let to; `begun` counts the calls that have reached it, `ended` says how they ended."""

    def __init__(self) -> None:
        super().__init__(reply=lambda system, user: "so")
        self.let = asyncio.Event()
        self.begun = asyncio.Semaphore(0)
        self.ended: list[str] = []

    async def _begin(self, verb: str, messages: Any) -> None:
        self.begun.release()
        try:
            await self.let.wait()
        except asyncio.CancelledError:
            self.ended.append("cancelled")
            raise
        self.ended.append("answered")


async def test_a_closed_tab_ends_its_run_and_no_other():
    llm = Waiting()
    app = app_over(llm, at_once=2)
    gone, stays = Visit(app, body("first")), Visit(app, body("second"))
    for _ in (gone, stays):
        await asyncio.wait_for(llm.begun.acquire(), 30)
    gone.leave()
    await asyncio.wait_for(gone.task, 30)
    assert llm.ended == ["cancelled"]
    assert not stays.task.done()
    llm.let.set()
    await asyncio.wait_for(stays.task, 30)
    assert llm.ended == ["cancelled", "answered"]
    assert b"event: done" in b"".join(one.get("body", b"") for one in stays.said)
    assert b"event: done" not in b"".join(one.get("body", b"") for one in gone.said)


async def test_the_trace_of_a_stopped_run_is_kept_as_far_as_it_got():
    llm = Waiting()
    app = app_over(llm)
    visit = Visit(app, body())
    await asyncio.wait_for(visit.heard.wait(), 30)  # the page has been sent the step that the model holds up
    visit.leave()
    await asyncio.wait_for(visit.task, 30)
    ((kind, begun), *_) = events(b"".join(one.get("body", b"") for one in visit.said).decode())
    assert kind == "begun"
    cookie = next(value for name, value in visit.said[0]["headers"] if name == b"set-cookie").decode().partition(";")[0]
    trace = client(app).get(f"/runs/{begun['name']}/trace.jsonl", headers={"cookie": cookie}).text
    recorded = assembled(Path("run"), trace.encode().splitlines(keepends=True))
    assert [(step.node, step.running) for step in recorded.steps] == [
        ("prepare", False),
        ("retrieve", False),
        ("generate", True),
    ]
    assert recorded.output is None


async def test_no_more_questions_at_once_than_allowed_and_room_again_afterwards():
    llm = Waiting()
    app = app_over(llm, at_once=1)
    first = Visit(app, body("first"))
    await asyncio.wait_for(first.heard.wait(), 30)
    refused = Visit(app, body("second"))
    await asyncio.wait_for(refused.task, 30)
    assert refused.status == 429
    assert json.loads(refused.said[1]["body"])["error"] == (
        "No more than 1 question can be under way here at once: wait until one is answered."
    )
    first.leave()
    await asyncio.wait_for(first.task, 30)
    llm.let.set()
    third = Visit(app, body("third"))
    await asyncio.wait_for(third.task, 30)
    assert third.status == 200


async def test_a_silent_run_gives_signs_of_life(monkeypatch):
    monkeypatch.setattr(request, "QUIET_S", 0.01)
    llm = Waiting()
    visit = Visit(app_over(llm), body())
    await asyncio.wait_for(visit.heard.wait(), 30)
    await asyncio.wait_for(visit.alive.wait(), 30)
    llm.let.set()
    await asyncio.wait_for(visit.task, 30)
    assert b"event: done" in visit.said[-2]["body"]


async def test_when_the_server_ends_so_do_the_runs():
    llm = Waiting()
    app = app_over(llm)
    visit = Visit(app, body())
    await asyncio.wait_for(llm.begun.acquire(), 30)
    app.state.end_runs()
    await asyncio.wait_for(visit.task, 30)
    assert llm.ended == ["cancelled"]
    assert visit.said[-1] == {"type": "http.response.body", "body": b"", "more_body": False}
    assert b"event: fault" not in b"".join(one.get("body", b"") for one in visit.said)


@pytest.mark.parametrize("name", RUNS)
async def test_every_step_of_every_graph_is_whole_html(name):
    run = RUNS[name]()
    asked = request.Request("run", run.graph, run.question, run.context, {"question": run.question, **run.more})
    found = [message async for message in asked.events()]
    assert found[-1].kind == "done"
    for message in found:
        if "html" in message.data:
            parsed(f"<body>{message.data['html']}</body>".encode())
    steps = {message.data["number"]: message.data for message in found if message.kind == "step"}
    recorded = assembled(Path("run"), asked.trace.splitlines(keepends=True))
    assert sorted(one["node"] for one in steps.values()) == sorted(step.node for _, step in recorded.walk())
    assert {one["state"] for one in steps.values()} <= {"done", "passing"}
