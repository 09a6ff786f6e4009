"""The page of `dubito ui` in a real browser, driven by its keyboard, over scripted models."""

import asyncio
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from dubito.cli.ui import page_allow_list
from dubito.errors import CapabilityMissing
from dubito.resources.resources import Resources
from dubito.tests.browser import CHROMIUM, Browser, serious_faults
from dubito.tests.scripted import PLAN, QUERY, VECTORS, ScriptedChat, ScriptedEncoder, ScriptedJudge, ScriptedRetriever
from dubito.ui.app import create_app
from dubito.ui.server import Server
from dubito.ui.uploads import Limits

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no executable named chromium on the PATH"),
]

HAS_ENDED = "document.querySelector('.status')?.textContent === 'Done.'"

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
        try:
            await super()._begin(verb, messages)
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
        live = Resources(llm, retriever=retriever, judge=judge)
        app = create_app(page_allow_list([], None, []), **{"resources": live, **more})
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


def test_the_page_is_light_and_soon_painted(browser, serve):
    browser.open(serve(Held()))
    loaded = "[...performance.getEntriesByType('navigation'), ...performance.getEntriesByType('resource')]"
    assert browser.run(f"{loaded}.reduce((bytes, one) => bytes + one.transferSize, 0)") < 200_000
    paint = "performance.getEntriesByName('first-contentful-paint')[0]"
    browser.until(paint)
    assert browser.run(f"{paint}.startTime") < 5_000, "milliseconds: 250 alone, more beside other tests"


def test_a_question_is_asked_by_keyboard_and_its_steps_come_as_they_happen(browser, serve):
    llm = Held()
    browser.open(serve(llm))
    assert browser.run("document.activeElement.id") == "question"
    browser.write("Which river?")
    browser.press("Enter", shift=True)
    browser.write("And why?")
    browser.press("Enter")
    browser.until("document.querySelector('.card.running')?.innerText.startsWith('plan')")
    assert browser.run("document.activeElement.className") == "stop"
    sides = browser.run("[...document.querySelectorAll('[data-round=\"2\"] > .card')].map(one => one.offsetTop)")
    assert len(sides) == 2, "plan and candidates run side by side"
    assert sides[0] == sides[1]
    assert shown(browser, ".answer") == []
    assert browser.run("document.getElementById('go').disabled")
    llm.let.set()
    browser.until(HAS_ENDED)  # the answer comes before the end
    assert shown(browser, ".answer") == [f"the Lune {HOSTILE}"]
    browser.until("document.activeElement.id === 'question'")
    nodes = [one.split()[0] for one in shown(browser, ".card.done")]
    assert nodes == ["prepare", *sorted(["plan", "candidates"], key=nodes.index), *nodes[3:]]
    assert nodes[-2:] == ["choose_lambda", "generate"]
    assert len(shown(browser, ".evidence li")) == 5
    assert browser.run("document.documentElement.dataset.owned") is None
    trace = browser.run("fetch(document.querySelector('.links [download]').href).then(one => one.text())")
    asked = json.loads(trace.splitlines()[0])
    assert asked["question"] == "Which river?\nAnd why?"
    again = browser.run("location.href")
    browser.open(browser.run("document.querySelector('.links a').href"))
    assert shown(browser, "h1") == ["Which river? And why?"]
    browser.open(again)
    browser.until(HAS_ENDED)
    assert shown(browser, ".asked") == ["Which river?\nAnd why?"]
    assert shown(browser, ".answer") == [f"the Lune {HOSTILE}"]
    assert [one.split()[0] for one in shown(browser, ".card.done")] == nodes
    assert browser.run("document.documentElement.dataset.owned") is None


def test_a_mark_of_the_answer_leads_to_its_passage_on_the_page_and_in_the_trace(browser, serve):
    browser.open(serve(ScriptedChat(lambda system, user: "the Lune [3]"), judge=ScriptedJudge()))
    browser.run("document.getElementById('graph').value = 'vanilla_rag'")
    browser.run("document.getElementById('graph').dispatchEvent(new Event('change'))")
    browser.until("document.getElementById('set-cite') && document.getElementById('set-selection')")
    browser.run("document.getElementById('set-cite').checked = true")
    browser.write("Which river?")
    browser.press("Enter")
    browser.until(HAS_ENDED)
    asked = browser.run("location.href")
    for evidence, passage in ((".evidence", "li.cited"), ("#evidence", ":target")):
        assert shown(browser, ".answer") == ["the Lune [3]"]
        assert "not supported" in shown(browser, "td")
        browser.run("document.querySelector('.answer a').click()")
        browser.until(f"document.querySelector('{passage}')?.checkVisibility()")
        assert shown(browser, f"{passage} b") == shown(browser, f"{evidence} li:nth-child(3) b")
        if trace := browser.run("document.querySelector('.links a')?.href"):
            assert browser.run("location.href") == asked, "which a reload shows again"
            browser.open(trace)


def test_stop_ends_the_run_and_another_can_be_asked(browser, serve):
    llm = Held()
    browser.open(serve(llm, at_once=1))
    browser.write("Which river?")
    browser.press("Enter")
    browser.until("document.querySelector('.card.running')")
    wait_until(lambda: llm.under_way_at_most == 1)  # the page shows a step before its model is asked
    browser.run("document.querySelector('.stop').click()")
    browser.until("document.querySelector('.status').textContent === 'Stopped.'")
    wait_until(lambda: llm.ended == ["cancelled"])
    assert shown(browser, ".card.running") == []
    browser.until("!document.getElementById('go').disabled")
    assert browser.run("document.querySelector('.stop').hidden")
    asked = browser.run("document.querySelector('.result a').href")
    llm.let.set()
    browser.run("document.getElementById('go').click()")
    browser.until("document.querySelector('.answer')")
    browser.open(asked)
    assert shown(browser, "h1") == ["Which river?"]
    assert [card for card in shown(browser, ".step > summary") if "not finished" in card]


def test_a_closed_tab_ends_its_run(browser, serve):
    llm = Held()
    browser.open(serve(llm))
    browser.write("Which river?")
    browser.press("Enter")
    browser.until("document.querySelector('.card.running')?.innerText.startsWith('plan')")
    wait_until(lambda: llm.under_way_at_most == 1)
    browser.open("about:blank")
    wait_until(lambda: llm.ended == ["cancelled"])


def test_faults_are_said_where_they_are_seen(browser, serve):
    llm = Held(faults=[CapabilityMissing("This model cannot score.")])
    llm.let.set()
    browser.open(serve(llm))
    browser.write("  ")
    browser.press("Enter")
    browser.until("document.querySelector('.fault')")
    assert shown(browser, ".fault") == ["The question is empty: write one."]
    browser.run("document.getElementById('set-corpus').add(new Option('/etc', '/etc', true, true))")
    browser.run("document.getElementById('question').value = 'Which river?'")
    browser.run("document.getElementById('go').click()")
    browser.until("document.querySelector('.fault')?.textContent.startsWith('corpus')")
    assert "corpus '/etc' is not allowed here" in shown(browser, ".fault")[0]
    browser.run("document.getElementById('set-corpus').value = 'sample'")
    browser.run("document.getElementById('go').click()")
    browser.until("document.querySelector('.fault')?.textContent.startsWith('This model')")
    assert browser.run("document.querySelector('.fault').getAttribute('role')") == "alert"
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
    browser.until("document.querySelector('.answer')")
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
    assert reached[:7] == ["go", "SUMMARY", "graph", "set-corpus", "set-llm", "set-k", "SUMMARY"]
    assert "beside" in reached


def asked_and_answered(browser: Browser, question: str) -> None:
    browser.run("document.getElementById('question').value = ''; document.getElementById('question').focus()")
    browser.write(question)
    browser.press("Enter")
    browser.until("document.getElementById('go').disabled")
    browser.until("!document.getElementById('go').disabled")


@pytest.fixture
def answered(browser: Browser, serve: Callable[..., str]) -> Browser:
    """A page with an answer."""
    llm = Held()
    llm.let.set()
    browser.open(serve(llm, at_once=2))
    asked_and_answered(browser, "Which river?")
    return browser


def test_a_follow_up_stands_below_the_answer_and_a_new_question_in_its_place(answered):
    answered.run("document.getElementById('follow').click()")
    asked_and_answered(answered, "And where?")
    assert shown(answered, ".asked") == ["Which river?", "And where?"]
    assert "standalone" in [one.split()[0] for one in shown(answered, ".exchange:last-child .card.done")]
    answered.reload()
    answered.until("!document.getElementById('go').disabled && document.querySelectorAll('.answer').length == 2")
    assert shown(answered, ".asked") == ["Which river?", "And where?"]
    asked_and_answered(answered, "Which hill?")
    assert shown(answered, ".asked") == ["Which hill?"]


def test_two_techniques_answer_side_by_side(answered):
    answered.run("document.getElementById('beside').value = 'cot'")
    asked_and_answered(answered, "Which river?")
    assert shown(answered, ".technique") == ["DF-RAG", "Chain of thought"]
    left, right = answered.run("[...document.querySelectorAll('.run')].map(one => one.getBoundingClientRect().top)")
    assert left == right
    assert len(shown(answered, ".answer")) == 2


def test_a_follow_up_in_a_long_conversation_is_on_its_last_answers(answered):
    # one technique was refused each time
    answered.run("for (let i = 0; i < 25; i++) exchanges.push([exchanges[0][0], { name: null }]); 0")
    answered.run("document.getElementById('beside').value = 'cot'")
    answered.run("document.getElementById('follow').click()")
    asked_and_answered(answered, "And where?")
    assert len(shown(answered, ".exchange:last-child .answer")) == 2


def test_an_earlier_question_is_opened_and_deleted(answered):
    asked_and_answered(answered, "Which hill?")
    answered.until("document.querySelectorAll('#history a').length === 2")
    assert shown(answered, "#history a") == ["Which hill?", "Which river?"]
    answered.run("document.querySelectorAll('#history a')[1].click()")
    answered.until(
        "document.querySelector('.asked')?.innerText === 'Which river?' && document.querySelector('.answer')"
    )
    answered.run("document.querySelector('.forget').click()")
    answered.until("document.querySelectorAll('#history a').length === 1")
    assert shown(answered, "#history a") == ["Which river?"]


def test_an_example_is_put_into_the_box_while_the_sample_is_chosen(browser, serve):
    browser.open(serve(Held()))
    browser.run("document.querySelector('#examples').open = true; document.querySelector('.example').click()")
    assert browser.run("document.getElementById('question').value").startswith("Who founded the newspaper")
    browser.run("document.getElementById('set-corpus').add(new Option('/notes', '/notes', true, true))")
    browser.run("document.getElementById('set-corpus').dispatchEvent(new Event('change', { bubbles: true }))")
    assert browser.run("document.getElementById('examples').hidden")


@pytest.fixture
def files(browser: Browser, serve: Callable[..., str], tmp_path: Path) -> Browser:
    """A page that takes files; there are some to add in tmp_path."""
    for name, text in {"bridge.txt": "The bridge is old.", "hill.md": "The hill is high.", "x.exe": "x"}.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "large.txt").write_text("x" * 2_000)
    limits = Limits(file=1_000, browser=3_000)
    live = Resources(ScriptedChat(lambda system, user: "so"), encoder=ScriptedEncoder())
    browser.open(serve(ScriptedChat(), resources=live, uploads=tmp_path / "uploads", limits=limits))
    browser.run("document.getElementById('files').open = true")
    return browser


def added(browser: Browser, tmp_path: Path, *names: str) -> None:
    browser.run("window.before = sending; 0")
    browser.choose("#upload", *(tmp_path / name for name in names))
    browser.until("sending !== window.before")
    browser.run("sending")


NAMES = "#own-files [data-name]"


def test_files_are_added_asked_about_and_deleted(files, tmp_path):
    added(files, tmp_path, "bridge.txt", "hill.md")
    files.until(f"document.querySelectorAll('{NAMES}').length === 2")
    assert shown(files, "#upload-status") == ["Added 2 files."]
    assert files.run("document.getElementById('set-corpus').value") == "uploads:"
    files.run("document.getElementById('graph').value = 'vanilla_rag'")
    files.run("document.getElementById('graph').dispatchEvent(new Event('change'))")
    files.until("document.getElementById('set-k') && !document.getElementById('set-evaluator')")
    assert files.run("document.getElementById('set-corpus').value") == "uploads:", "it stays chosen"
    asked_and_answered(files, "How old is the bridge?")
    assert sorted(shown(files, ".evidence li p")) == ["The bridge is old.", "The hill is high."]
    files.run(f"document.querySelector('{NAMES}').click()")
    files.until(f"document.querySelectorAll('{NAMES}').length === 1")
    assert shown(files, "#upload-status") == ["Deleted bridge.txt."]
    assert files.run("document.activeElement.id") == "upload"
    asked_and_answered(files, "How old is the bridge?")
    assert shown(files, ".evidence li p") == ["The hill is high."]
    files.run(f"document.querySelector('{NAMES}').click()")
    files.until("!document.querySelector('#set-corpus [value=\"uploads:\"]')")
    assert files.run("document.getElementById('set-corpus').value") == "sample"


def test_each_file_that_is_not_taken_is_said_and_the_others_are(files, tmp_path):
    added(files, tmp_path, "large.txt", "bridge.txt", "x.exe", "bridge.txt")
    large, kind, twice = shown(files, "#upload-faults p")
    assert large == "large.txt is too large: a file may have 1 kB."
    assert kind.startswith("x.exe is not of a kind that can be read here")
    assert twice == "bridge.txt is here already."
    assert shown(files, "#upload-status") == ["Added 1 file."]
    added(files, tmp_path, "hill.md")
    assert shown(files, "#upload-faults p") == []
    assert len(shown(files, NAMES)) == 2


def test_a_tab_that_comes_back_sees_what_another_has_changed(files, tmp_path):
    added(files, tmp_path, "bridge.txt")
    files.run("fetch('files?name=bridge.txt', {method: 'DELETE'})")  # as another tab does
    files.run(f"document.querySelector('{NAMES}').click()")
    files.until("document.getElementById('upload-status').textContent.includes('not here')")
    assert shown(files, "#upload-status") == ["bridge.txt is not here (any more)."]
    files.until(f"!document.querySelector('{NAMES}')")  # the list is asked for after that is said
    files.run("fetch('files?name=a.txt', {method: 'PUT', body: 'x'})")
    files.run("document.dispatchEvent(new Event('visibilitychange'))")
    files.until(f"document.querySelector('{NAMES}')")


def test_a_file_whose_connection_is_lost_is_named(files, tmp_path):
    files.call("Network.enable")
    lost = {"latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
    files.call("Network.emulateNetworkConditions", offline=True, **lost)
    added(files, tmp_path, "bridge.txt")
    said = "bridge.txt did not arrive, because the connection to dubito was lost: add it again."
    assert shown(files, "#upload-faults p") == [said]
    files.call("Network.emulateNetworkConditions", offline=False, **lost)
    added(files, tmp_path, "bridge.txt")
    assert shown(files, "#upload-faults p") == []
    assert len(shown(files, NAMES)) == 1


@pytest.mark.parametrize("width", [1280, 390])
def test_the_list_of_files_fits_the_screen_and_axe_finds_nothing_serious(files, tmp_path, width):
    files.screen(width)
    added(files, tmp_path, "bridge.txt", "x.exe")
    files.run("document.getElementById('sending').hidden = false")
    assert files.run("document.documentElement.scrollWidth") == width
    assert serious_faults(files) == []


@pytest.mark.parametrize("dark", [False, True])
def test_axe_finds_nothing_serious_on_the_page_and_in_the_trace(answered, dark):
    answered.screen(1280, dark=dark)
    answered.run("document.querySelectorAll('details').forEach(one => { one.open = true })")
    assert serious_faults(answered) == []
    answered.run("document.querySelector('label[for=question]').remove()")
    assert "label" in [fault.partition(":")[0] for fault in serious_faults(answered)]
    answered.open(answered.run("document.querySelector('.links a').href"))
    answered.run("document.querySelectorAll('details').forEach(one => { one.open = true })")
    assert serious_faults(answered) == []


def wait_until(done: Callable[[], bool], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end
        time.sleep(0.02)
