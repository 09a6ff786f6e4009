"""A report's page in a real browser: its script runs, finds and unfolds; hostile text does nothing; it fits a phone."""

import json
import re
import shutil
import subprocess
from html import escape, unescape
from pathlib import Path
from typing import Any

import pytest
from dubito.evals.reports.write import write_reports
from dubito.evals.run_folder import System
from dubito.tests.reported import answered, asked, chunk, dse, failed, made, trace_of, vanilla

CHROMIUM = shutil.which("chromium")

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no executable named chromium on the PATH"),
]

FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)

POLICY = re.compile(r'<meta http-equiv="Content-Security-Policy"[^>]*>')

HOSTILE = "<img src=x onerror=\"document.title='taken'\"><script>document.title='taken'</script>"

LONG = "a_system_with_a_name_that_is_longer_than_a_phone_is_wide:setting=value,another_setting=another_value"


@pytest.fixture(scope="module")
def page(tmp_path_factory) -> Path:
    systems = (vanilla("plain"), System(LONG, "dense", {"dse_threshold": 0.2}))
    questions = [asked("q1", "Ada"), asked("q2", "Paris"), asked("q3", "1978")]
    outcomes = [
        answered("plain", "q1", "Ada", evidence=[chunk("d1", HOSTILE)], trace=trace_of(("generate", {HOSTILE: "x"}))),
        answered("plain", "q2", HOSTILE),
        failed("plain", "q3"),
        *(answered(LONG, f"q{i}", "Ada", uncertainty=dse(0.3 * i)) for i in (1, 2, 3)),
    ]
    bench, store = made(tmp_path_factory.mktemp("runs") / "run", systems, questions, outcomes)
    with store:
        return write_reports(bench, store).html


def browse(path: Path, profile: Path) -> str:
    """The DOM of a page once it has loaded, as HTML."""
    assert CHROMIUM is not None
    command = [CHROMIUM, *FLAGS, f"--user-data-dir={profile}", "--dump-dom", path.as_uri()]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout


def seen(html: str, script: str, tmp_path: Path) -> Any:
    """What a script of the test's own returns once the page has loaded; without the policy no such script could run."""
    own = f"addEventListener('load', () => document.body.dataset.seen = JSON.stringify((() => {{{script}}})()))"
    path = tmp_path / "spied.html"
    path.write_text(POLICY.sub("", html).replace("</head>", f"<script>{own}</script></head>", 1))
    found = re.search(r'data-seen="([^"]*)"', browse(path, tmp_path / "profile"))
    assert found is not None
    return json.loads(unescape(found[1]))


def test_under_its_policy_the_pages_script_runs_and_no_other(page: Path, tmp_path):
    dom = browse(page, tmp_path / "profile")
    assert "3 of 3 questions" in dom
    assert "<title>Evaluation: small</title>" in dom


def test_without_its_policy_hostile_text_does_nothing_either(page: Path, tmp_path):
    assert seen(page.read_text(), "return [document.title, document.querySelectorAll('img').length]", tmp_path) == [
        "Evaluation: small",
        0,
    ]


def test_questions_are_found_by_words_system_and_outcome(page: Path, tmp_path):
    script = """
        const found = [];
        for (const [words, system, outcome] of [
            ["", "", ""], ["q2 paris", "", ""], ["", "0", "r"], ["", "1", "w"], ["", "", "f"], ["", "", "differ"],
            ["zzz", "", ""],
        ]) {
            document.getElementById("text").value = words;
            document.getElementById("system").value = system;
            document.getElementById("outcome").value = outcome;
            document.getElementById("text").dispatchEvent(new Event("input"));
            found.push([...document.querySelectorAll(".q")].map((one) => one.hidden ? "-" : "q").join(""));
        }
        return found;
    """
    assert seen(page.read_text(), script, tmp_path) == ["qqq", "-q-", "q--", "-qq", "--q", "--q", "---"]


def test_steps_unfold_as_text(page: Path, tmp_path):
    script = """
        document.querySelector(".q").open = true;
        const steps = document.querySelector(".steps");
        steps.open = true;
        steps.dispatchEvent(new Event("toggle"));
        return [...steps.querySelectorAll("tbody td")].map((one) => one.textContent);
    """
    assert seen(page.read_text(), script, tmp_path) == ["generate", "1.00", "", "", f"changed {HOSTILE}"]


@pytest.mark.parametrize("width", [390, 1280])
def test_nothing_is_wider_than_the_screen(page: Path, tmp_path, width: int):
    inner = POLICY.sub("", page.read_text())
    frame = f'<iframe srcdoc="{escape(inner)}" style="width: {width}px; height: 900px; border: 0"></iframe>'
    html = f"<!doctype html><html><head><title>frame</title></head><body>{frame}</body></html>"
    script = """
        const inside = document.querySelector("iframe").contentDocument;
        inside.querySelectorAll("details").forEach((one) => { one.open = true; });
        return [inside.documentElement.scrollWidth, inside.documentElement.clientWidth];
    """
    whole, shown = seen(html, script, tmp_path)
    assert whole <= shown == width
