"""The page of `dubito ui` in a real browser, driven by its keyboard, over scripted models."""

import asyncio
import fcntl
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from dubito.cli.ui import page_allow_list
from dubito.errors import CapabilityMissing
from dubito.resources.resources import Resources
from dubito.tests.scripted import PLAN, QUERY, VECTORS, ScriptedChat, ScriptedJudge, ScriptedRetriever
from dubito.ui.app import create_app
from dubito.ui.server import Server

CHROMIUM = shutil.which("chromium")

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no executable named chromium on the PATH"),
]

FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--remote-debugging-pipe"),
)

AS_3_AND_4 = (
    "import os, sys; _, hears, says, *command = sys.argv; "
    "os.dup2(int(hears), 3); os.dup2(int(says), 4); os.execv(command[0], command)"
)
"""The browser reads what it is told from descriptor 3 and writes to 4."""


class Browser:
    """One tab, told what to do over the browser's own pipe."""

    def __init__(self, profile: Path) -> None:
        assert CHROMIUM is not None
        hears, self._to = os.pipe()
        self._from, says = os.pipe()
        ends = [fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (hears, says)]
        started = [CHROMIUM, *FLAGS, f"--user-data-dir={profile}", "about:blank"]
        command = [sys.executable, "-c", AS_3_AND_4, *map(str, ends), *started]
        self._process = subprocess.Popen(command, pass_fds=ends, stderr=subprocess.DEVNULL)
        for end in (hears, says, *ends):
            os.close(end)
        self._left = b""
        self._calls = 0
        self._session = ""
        targets = self.call("Target.getTargets")["targetInfos"]
        tab = next(one["targetId"] for one in targets if one["type"] == "page")
        self._session = self.call("Target.attachToTarget", targetId=tab, flatten=True)["sessionId"]

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command of the DevTools protocol and return its result."""
        self._calls += 1
        message: dict[str, Any] = {"id": self._calls, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            while b"\0" not in self._left:
                piece = os.read(self._from, 1 << 20)
                assert piece, "the browser is gone"
                self._left += piece
            line, _, self._left = self._left.partition(b"\0")
            answer = json.loads(line)
            if answer.get("id") == self._calls:
                assert "error" not in answer, answer["error"]
                result: dict[str, Any] = answer["result"]
                return result

    def run(self, script: str) -> Any:
        """What a script of the page gives, awaited."""
        found = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def open(self, url: str) -> None:
        self.run("window.isLeft = true")  # the same page may be opened again
        self.call("Page.navigate", url=url)
        self.until("!window.isLeft && document.readyState === 'complete'")

    def until(self, condition: str, seconds: float = 60) -> None:
        end = time.monotonic() + seconds
        while not self.run(f"Boolean({condition})"):
            assert time.monotonic() < end, f"not in {seconds} s: {condition}"
            time.sleep(0.05)

    def write(self, text: str) -> None:
        self.call("Input.insertText", text=text)

    def press(self, key: str, *, shift: bool = False) -> None:
        codes = {"Enter": (13, "\r"), "Tab": (9, ""), " ": (32, " ")}
        code, text = codes[key]
        said = {"key": key, "windowsVirtualKeyCode": code, "modifiers": 8 if shift else 0}
        self.call("Input.dispatchKeyEvent", type="keyDown" if text else "rawKeyDown", text=text, **said)
        self.call("Input.dispatchKeyEvent", type="keyUp", **said)

    def screen(self, width: int, height: int = 900, *, dark: bool = False) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 500
        )
        feature = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[feature])

    def close(self) -> None:
        self._session = ""
        self.call("Browser.close")
        self._process.wait(30)
        os.close(self._to)
        os.close(self._from)


HOSTILE = "<img src=x onerror='document.documentElement.dataset.owned = 1'>"


class Held(ScriptedChat):
    """A model that plans, scores and answers once it is let to; every call waits its turn."""

    def __init__(self, **more: Any) -> None:
        super().__init__(reply=self._reply, mean_logprob=lambda user, step: -3.0 + ("T5" in user), **more)
        self.let = threading.Event()
        self.ended: list[str] = []

    def _reply(self, system: str, user: str) -> str:
        return PLAN if "plan how to answer" in system else f"the Lune {HOSTILE}"

    async def _begin(self, verb: str, messages: Any) -> None:
        await super()._begin(verb, messages)
        try:
            while not self.let.is_set():  # noqa: ASYNC110 - another thread sets it
                await asyncio.sleep(0.01)
        except asyncio.CancelledError:
            self.ended.append("cancelled")
            raise


@pytest.fixture
def serve() -> Iterator[Callable[..., str]]:
    """Serves the page over a model, and gives its address."""
    running: list[tuple[Server, threading.Thread]] = []

    def start(llm: ScriptedChat, judge: ScriptedJudge | None = None, **more: Any) -> str:
        retriever = ScriptedRetriever(QUERY, VECTORS, [f"{HOSTILE} {i}" for i in range(len(VECTORS))])
        app = create_app(
            page_allow_list([], None, []), resources=Resources(llm, retriever=retriever, judge=judge), **more
        )
        listener = socket.create_server(("127.0.0.1", 0))
        server = Server(app)
        thread = threading.Thread(target=lambda: server.run(sockets=[listener]))
        thread.start()
        running.append((server, thread))
        return f"http://127.0.0.1:{listener.getsockname()[1]}/"

    yield start
    for server, thread in running:
        server.should_exit = True
        thread.join(30)


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    opened = Browser(tmp_path / "profile")
    opened.screen(1280)
    yield opened
    opened.close()


def shown(browser: Browser, selector: str) -> list[str]:
    found: list[str] = browser.run(f"[...document.querySelectorAll({json.dumps(selector)})].map(one => one.innerText)")
    return found


def test_a_question_is_asked_by_keyboard_and_its_steps_come_as_they_happen(browser, serve):
    llm = Held()
    browser.open(serve(llm))
    assert browser.run("document.activeElement.id") == "question"
    browser.write("Which river?")
    browser.press("Enter", shift=True)
    browser.write("And why?")
    browser.press("Enter")
    browser.until("document.querySelector('.card.running')?.innerText.startsWith('plan')")
    sides = browser.run("[...document.querySelectorAll('[data-round=\"2\"] > .card')].map(one => one.offsetTop)")
    assert len(sides) == 2, "plan and candidates run side by side"
    assert sides[0] == sides[1]
    assert shown(browser, "#answer") == []
    assert browser.run("document.getElementById('go').disabled")
    llm.let.set()
    browser.until("document.getElementById('status').textContent === 'Done.'")  # the answer comes before the end
    assert shown(browser, "#answer") == [f"the Lune {HOSTILE}"]
    assert browser.run("document.activeElement.id") == "outcome"
    nodes = [one.split()[0] for one in shown(browser, ".card.done")]
    assert nodes == ["prepare", *sorted(["plan", "candidates"], key=nodes.index), *nodes[3:]]
    assert nodes[-2:] == ["choose_lambda", "generate"]
    assert len(shown(browser, "#evidence li")) == 5
    assert browser.run("document.documentElement.dataset.owned") is None
    trace = browser.run("fetch(document.querySelector('.links [download]').href).then(one => one.text())")
    asked = json.loads(trace.splitlines()[0])
    assert asked["question"] == "Which river?\nAnd why?"
    browser.open(browser.run("document.querySelector('.links a').href"))
    assert shown(browser, "h1") == ["Which river? And why?"]


def test_a_mark_of_the_answer_leads_to_its_passage_on_the_page_and_in_the_trace(browser, serve):
    browser.open(serve(ScriptedChat(lambda system, user: "the Lune [3]"), judge=ScriptedJudge()))
    browser.run("document.getElementById('graph').value = 'vanilla_rag'")
    browser.run("document.getElementById('graph').dispatchEvent(new Event('change'))")
    browser.until("document.getElementById('set-cite') && document.getElementById('set-selection')")
    browser.run("document.getElementById('set-cite').checked = true")
    browser.write("Which river?")
    browser.press("Enter")
    browser.until("document.getElementById('status').textContent === 'Done.'")
    for _ in ("the page", "the trace"):
        assert shown(browser, "#answer") == ["the Lune [3]"]
        assert "not supported" in shown(browser, "td")
        browser.run("document.querySelector('#answer a').click()")
        browser.until("document.querySelector(':target')?.checkVisibility()")
        assert shown(browser, ":target b") == shown(browser, "#evidence li:nth-child(3) b")
        if trace := browser.run("document.querySelector('.links a')?.href"):
            browser.open(trace)


def test_stop_ends_the_run_and_another_can_be_asked(browser, serve):
    llm = Held()
    browser.open(serve(llm, at_once=1))
    browser.write("Which river?")
    browser.press("Enter")
    browser.until("document.querySelector('.card.running')")
    browser.run("document.getElementById('stop').click()")
    browser.until("document.getElementById('status').textContent === 'Stopped.'")
    wait_until(lambda: llm.ended == ["cancelled"])
    assert shown(browser, ".card.running") == []
    assert browser.run("document.getElementById('stop').hidden")
    asked = browser.run("document.querySelector('#outcome a').href")
    llm.let.set()
    browser.run("document.getElementById('go').click()")
    browser.until("document.querySelector('#answer')")
    browser.open(asked)
    assert shown(browser, "h1") == ["Which river?"]
    assert [card for card in shown(browser, ".step > summary") if "not finished" in card]


def test_a_closed_tab_ends_its_run(browser, serve):
    llm = Held()
    browser.open(serve(llm))
    browser.write("Which river?")
    browser.press("Enter")
    browser.until("document.querySelector('.card.running')")
    browser.open("about:blank")
    wait_until(lambda: llm.ended == ["cancelled"])


def test_faults_are_said_where_they_are_seen(browser, serve):
    llm = Held(faults=[CapabilityMissing("This model cannot score.")])
    llm.let.set()
    browser.open(serve(llm))
    browser.write("  ")
    browser.press("Enter")
    browser.until("document.querySelector('#fault')")
    assert shown(browser, "#fault") == ["The question is empty: write one."]
    browser.run("document.getElementById('set-corpus').add(new Option('/etc', '/etc', true, true))")
    browser.run("document.getElementById('question').value = 'Which river?'")
    browser.run("document.getElementById('go').click()")
    browser.until("document.querySelector('#fault')?.textContent.startsWith('corpus')")
    assert "corpus '/etc' is not allowed here" in shown(browser, "#fault")[0]
    browser.run("document.getElementById('set-corpus').value = 'sample'")
    browser.run("document.getElementById('go').click()")
    browser.until("document.querySelector('#fault')?.textContent.startsWith('This model')")
    assert browser.run("document.querySelector('#fault').getAttribute('role')") == "alert"
    assert len(shown(browser, ".card.failed")) == 1


def test_a_graph_brings_its_own_settings_and_a_folded_one_out_of_range_is_shown(browser, serve):
    browser.open(serve(Held()))
    browser.run("document.getElementById('graph').value = 'sunar'")
    browser.run("document.getElementById('graph').dispatchEvent(new Event('change'))")
    browser.until("document.getElementById('set-budget')")
    assert browser.run("document.querySelector('#settings details').open") is False
    browser.run("document.getElementById('set-budget').value = 0; document.getElementById('question').value = 'x'")
    browser.run("document.getElementById('go').click()")
    assert browser.run("document.querySelector('#settings details').open") is True
    assert browser.run("document.activeElement.id") == "set-budget"


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [1280, 390])
def test_the_page_fits_the_screen_in_either_colour(browser, serve, width, dark):
    llm = Held()
    llm.let.set()
    browser.screen(width, dark=dark)
    browser.open(serve(llm))
    browser.write("Which river?")
    browser.press("Enter")
    browser.until("document.querySelector('#answer')")
    browser.run("document.querySelectorAll('details').forEach(one => { one.open = true })")
    assert browser.run("document.documentElement.scrollWidth") == width
    light = browser.run(
        "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).reduce((sum, one) => sum + Number(one), 0)"
    )
    assert light < 150 if dark else light > 700


def test_every_control_is_reached_by_tab_alone(browser, serve):
    browser.open(serve(Held()))
    reached = []
    for _ in range(40):
        browser.press("Tab")
        reached.append(browser.run("document.activeElement.id || document.activeElement.tagName"))
    assert reached[:6] == ["go", "graph", "set-corpus", "set-llm", "set-k", "SUMMARY"]


def wait_until(done: Callable[[], bool], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end
        time.sleep(0.02)
