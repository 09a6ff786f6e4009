"""A trace's page in a real browser: what is in it stays text, it asks for nothing, it fits the screen."""

import http.server
import json
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from html import escape, unescape
from pathlib import Path
from typing import Any

import pytest
from dubito.render import trace_page as page
from dubito.tests.json_lines import write_lines
from dubito.tests.recorded import RUNS, parsed, record, vanilla_run
from dubito.tests.stub_server import listening_on
from dubito.traces.recording import read
from dubito.traces.writer import VERSION

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


@pytest.fixture
def browse(tmp_path) -> Callable[..., str]:
    """The DOM of a page once it has loaded, as HTML."""

    def dom(path: Path, *flags: str, fragment: str = "") -> str:
        assert CHROMIUM is not None
        profile = tmp_path / "profile"
        command = [CHROMIUM, *FLAGS, f"--user-data-dir={profile}", *flags, "--dump-dom", f"{path.as_uri()}{fragment}"]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout

    return dom


@pytest.fixture
def measure(browse, tmp_path) -> Callable[..., Any]:
    """What a script of the test's own reads off a page that has loaded; without the policy no script could."""

    def look(html: str, figures: str, *flags: str, fragment: str = "") -> Any:
        script = f"addEventListener('load', () => document.body.dataset.seen = JSON.stringify({figures}))"
        spied = POLICY.sub("", html).replace("</head>", f"<script>{script}</script></head>", 1)
        path = tmp_path / "spied.html"
        path.write_text(spied)
        found = re.search(r'data-seen="([^"]*)"', browse(path, *flags, fragment=fragment))
        assert found is not None
        return json.loads(unescape(found[1]))

    return look


def framed(*pages: tuple[str, int]) -> str:
    """Pages in frames of their widths: the browser's own window has a least width."""
    frames = [
        f'<iframe srcdoc="{escape(POLICY.sub("", html))}" style="width: {width}px; height: 900px; border: 0"></iframe>'
        for html, width in pages
    ]
    return f"<!doctype html><html><head><title>frames</title></head><body>{''.join(frames)}</body></html>"


@pytest.fixture
def listener() -> Iterator[tuple[str, list[str]]]:
    """A server, and what it was asked for."""
    asked: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(204)
            self.end_headers()

        def log_message(self, *parts: object) -> None:
            pass

    with listening_on(Handler) as url:
        yield url, asked


def attacks(url: str) -> str:
    return (
        f"<script>document.documentElement.dataset.owned = 1; fetch('{url}/script')</script>"
        f"<img src='{url}/img' onerror='document.documentElement.dataset.owned = 2'>"
        f"<svg onload='document.documentElement.dataset.owned = 3'><style>@import url({url}/css);</style></svg>"
        f'" autofocus onfocus="document.documentElement.dataset.owned = 4" x="'
        f"</pre></details></style></title><iframe src='{url}/frame'></iframe><link rel=stylesheet href='{url}/link'>"
    )


@pytest.mark.parametrize("policy", [True, False], ids=["as it is", "without its policy"])
def test_hostile_text_is_text_and_asks_for_nothing(tmp_path, browse, listener, policy):
    """The policy is a second wall: without it the page must hold too."""
    url, asked = listener
    text = attacks(url)
    record(vanilla_run((text, "two"), text, text), tmp_path / "t.jsonl")
    html = page.render(read(tmp_path / "t.jsonl")).decode()
    assert POLICY.search(html)
    path = tmp_path / "page.html"
    # opened, so that nothing hides in what is folded
    path.write_text((html if policy else POLICY.sub("", html)).replace("<details", "<details open"))
    dom = parsed(browse(path).encode())
    assert "data-owned" not in dom.one("html").attributes
    assert not [one for one in dom.every() if one.tag in {"script", "img", "iframe", "link"}]
    assert dom.one("h1").text == " ".join(text.split())
    assert dom.one(id="answer").text == " ".join(text.split())
    assert asked == []


def test_the_attacks_would_succeed_on_a_page_that_did_not_escape(tmp_path, browse, listener):
    url, asked = listener
    path = tmp_path / "page.html"
    path.write_text(f"<!doctype html><html><body><pre>{attacks(url)}</pre></body></html>")
    assert "data-owned" in browse(path)
    assert asked


FITS = """Array.from(frames, one => {
  const all = (what) => [...one.document.querySelectorAll(what)];
  const stacked = all('table.stack');
  const drawn = all('svg').filter(svg => svg.getBoundingClientRect().width > 0);
  const scale = (svg) => svg.getBoundingClientRect().width / svg.viewBox.baseVal.width;
  const size = (text) => parseFloat(one.getComputedStyle(text).fontSize);
  return {
    screen: one.innerWidth,
    wide: one.document.scrollingElement.scrollWidth,
    steps: all('details.step').length,
    open: all('details.step[open]').length,
    cut: stacked.filter(table => table.scrollWidth > table.parentElement.clientWidth).length,
    text: Math.min(...drawn.map(svg => scale(svg) * Math.min(...[...svg.querySelectorAll('text')].map(size)))),
    reached: all('details > summary:first-child').filter(fold => fold.tabIndex === 0).length === all('details').length,
  };
})"""
"""Of each frame: its width and its page's, its steps, tables cut off, the smallest text drawn, are folds for keys?"""

SCREENS = (1280, 390)


def test_the_page_of_every_technique_fits_a_screen_and_a_phone(tmp_path, measure):
    """All in one window; folded and unfolded."""
    expected, frames = [], []
    for name, run in RUNS.items():
        record(run(), tmp_path / f"{name}.jsonl")
        html = page.render(read(tmp_path / f"{name}.jsonl")).decode()
        steps = html.count('<details class="step"')
        for width in SCREENS:
            frames += [(html, width), (html.replace("<details", "<details open"), width)]
            expected += [(name, width, steps, 0), (name, width, steps, steps)]
    seen = measure(framed(*frames), FITS)
    for (name, width, steps, opened), one in zip(expected, seen, strict=True):
        where = f"{name} at {width}, {opened} open"
        assert (one["screen"], one["wide"]) == (width, width), where
        assert (one["steps"], one["open"]) == (steps, opened), where
        assert one["reached"], where
        assert one["cut"] == 0, where
        assert one["text"] >= 9, where


def test_a_row_of_words_stands_below_one_another_on_a_phone(tmp_path, measure):
    record(RUNS["seakr"](), tmp_path / "t.jsonl")
    html = page.render(read(tmp_path / "t.jsonl")).decode()
    figures = """Array.from(frames, one => {
      const row = one.document.querySelector('table.stack tbody tr');
      const cells = [...row.cells].filter(cell => cell.textContent);
      return [new Set(cells.map(cell => cell.getBoundingClientRect().left)).size, cells.length,
        cells.map(cell => one.getComputedStyle(cell, '::before').content)];
    })"""
    (lefts, cells, told), (below, _, names) = measure(framed((html, 1280), (html, 390)), figures)
    assert lefts == cells > 1
    assert set(told) == {"none"}
    assert below == 1
    assert all(one.strip('"') for one in names)
    assert "none" not in names


def test_a_link_to_a_step_within_a_subgraph_unfolds_it(tmp_path, measure):
    record(RUNS["sunar"](), tmp_path / "t.jsonl")
    found = read(tmp_path / "t.jsonl")
    number = next(step.number for path, step in found.walk() if path and step.node == "update_frontier")
    html = page.render(found).decode()
    around = f"[...document.querySelectorAll('details.step')].filter(one => one.querySelector('#s{number}'))"
    figures = f"{around}.map(one => one.open)"
    assert measure(html, figures) == [False]
    assert measure(html, figures, fragment=f"#s{number}") == [True]


@pytest.mark.parametrize("dark", [False, True])
def test_the_colours_follow_the_reader(tmp_path, measure, dark):
    record(RUNS["vanilla_rag"](), tmp_path / "t.jsonl")
    html = page.render(read(tmp_path / "t.jsonl")).decode()
    light = "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).reduce((sum, one) => sum + Number(one), 0)"
    flags = ["--blink-settings=preferredColorScheme=0"] if dark else ["--blink-settings=preferredColorScheme=1"]
    seen = measure(html, f"{{light: {light}}}", *flags)["light"]
    assert seen < 150 if dark else seen > 700


def test_a_page_of_megabytes_is_shown(tmp_path, browse):
    """Six hundred steps with long, distinct texts, all folded."""
    stamp = {"timestamp": "2026-01-02T03:04:05.000+00:00"}
    found = [
        {"type": "run", **stamp, "version": VERSION, "dubito": "0", "graph": "g", "context": {}, "question": "Why?"}
    ]
    for i in range(600):
        place = {**stamp, "node": "n", "task": f"t{i}", "namespace": []}
        found.append({"type": "node_start", **place, "input": {"text": f"{i} <b>long</b> " * 400}})
        found.append({"type": "node_end", **place, "seconds": 0.1, "update": {"other": f"{i} & " * 400}, "error": None})
    found.append({"type": "end", **stamp, "seconds": 1.0, "output": {"answer": "so"}})
    write_lines(tmp_path / "t.jsonl", found)
    assert (tmp_path / "t.jsonl").stat().st_size > 5_000_000
    page.write(read(tmp_path / "t.jsonl"), tmp_path / "page.html")
    dom = parsed(browse(tmp_path / "page.html").encode())
    assert len(dom.every("details", class_="step")) == 600
    assert dom.one(id="answer").text == "so"
    assert not dom.every("b", class_="long")
