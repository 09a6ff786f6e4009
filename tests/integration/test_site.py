"""The documentation as a site: built strictly and without a network, whole, and in need of no other host."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from html import unescape
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import typer
from dubito import errors, uncertainty
from dubito.cli import app
from dubito.evals import datasets
from dubito.graphs.registry import graph_names
from dubito.tests.browser import CHROMIUM, Browser, serious_faults

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"

pytestmark = pytest.mark.skipif(
    find_spec("mkdocs") is None, reason='mkdocs is not installed: pip install "dubito[docs]"'
)

# how a page makes the browser fetch something by itself; a link that a reader may follow is none of these
FETCHED = re.compile(
    r'<(?:script|img|iframe|source|video|audio|embed|input)\b[^>]*?\b(?:src|srcset)="([^"]*)"'
    r'|<link\b[^>]*?\bhref="([^"]*)"'
    r'|<object\b[^>]*?\bdata="([^"]*)"'
    r'|<(?:use|image)\b[^>]*?\bhref="([^"]*)"'
)
FETCHED_BY_STYLE = re.compile(r"""(?:url\(|@import)\s*["']?([^"')\s]+)""")

NO_NETWORK = """
import socket

def refused(*args, **named):
    raise OSError(f"the build wants the network: {args}")

socket.socket.connect = socket.getaddrinfo = socket.create_connection = refused
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    folder: Path = tmp_path_factory.mktemp("site")
    offline = tmp_path_factory.mktemp("offline")
    (offline / "sitecustomize.py").write_text(NO_NETWORK)
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(offline), "NO_COLOR": "1"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    said = built.stdout + built.stderr
    assert built.returncode == 0, said
    assert "warning" not in said.lower(), said
    return folder


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[str, str]:
    """Every page's text by its path in the site."""
    return {path.relative_to(site).as_posix(): path.read_text(encoding="utf-8") for path in site.rglob("*.html")}


def test_no_page_makes_the_browser_ask_another_host(site: Path, pages: dict[str, str]) -> None:
    for name, text in pages.items():
        wanted = ["".join(found) for found in FETCHED.findall(text)]
        assert wanted, name
        if name != "404.html":  # it is shown at any address, so its own begin at the root
            for address in wanted:
                assert (site / name).parent.joinpath(address.partition("?")[0]).is_file(), f"{name} fetches {address}"
        assert not any(re.match(r"[a-z]+:|//", address) for address in wanted), name
        for style in re.findall(r'<style[^>]*>(.*?)</style>|\bstyle="([^"]*)"', text, re.DOTALL):
            assert not FETCHED_BY_STYLE.findall("".join(style)), name
        # Material's script would fetch Mermaid for these
        assert not re.search(r'class="[^"]*\bmermaid\b', text), name
    for style in site.rglob("*.css"):
        for address in FETCHED_BY_STYLE.findall(style.read_text(encoding="utf-8")):
            assert address.startswith("data:"), f"{style.name} fetches {address}"


def test_every_link_within_the_site_leads_somewhere(site: Path, pages: dict[str, str]) -> None:
    for name, text in pages.items():
        for link in set(re.findall(r'<a\b[^>]*?\bhref="([^"]*)"', text)):
            path, _, place = unescape(link).partition("#")
            if name == "404.html" or re.match(r"https?:", path):
                continue
            target = (site / name).parent.joinpath(path).resolve() if path else site / name
            target = target / "index.html" if target.is_dir() else target
            assert target.is_file(), f"{name} links to {link}"
            if place and target.suffix == ".html":
                there = pages[target.relative_to(site).as_posix()]
                assert f'id="{place}"' in there or f'name="{place}"' in there, f"{name} links to {link}"


def test_every_page_of_the_documentation_is_in_the_navigation(pages: dict[str, str]) -> None:
    navigation = pages["index.html"].partition('<nav class="md-nav md-nav--primary')[2]
    for source in DOCS.rglob("*.md"):
        at = source.relative_to(DOCS).with_suffix(".html").as_posix().replace("README.html", "index.html")
        assert f'href="{at}"' in navigation, source


def test_what_pages_link_to_outside_the_documentation_is_in_the_site(pages: dict[str, str]) -> None:
    assert 'href="repository/CHANGELOG.html"' in pages["index.html"]
    assert 'href="repository/examples/agents/tool.py.html"' in pages["agents.html"]
    code = re.sub(r"<[^>]+>", "", pages["repository/examples/agents/tool.py.html"])
    assert "create_agent(" in code
    assert 'href="../metrics.html"' in pages["repository/CHANGELOG.html"]


@pytest.mark.parametrize("name", graph_names())
def test_every_graph_has_its_page_with_its_figure(pages: dict[str, str], name: str) -> None:
    page = pages[f"reference/graphs/{name}.html"]
    graph: Any = import_module(f"dubito.graphs.{name}").graph
    context = graph.builder.context_schema
    assert f'id="dubito.graphs.{name}.build"' in page
    assert f'id="{context.__module__}.{context.__qualname__}"' in page
    drawn = graph.get_graph(xray=True)
    figure = page.partition('<figure class="graph">')[2].partition("</figure>")[0]
    shown = set(re.findall(r"<text[^>]*>([^<]+)</text>", figure))
    assert shown == {{"__start__": "start", "__end__": "end"}.get(node, node) for node in drawn.nodes}
    edges = [(edge.source, edge.target, edge.conditional) for edge in drawn.edges]
    assert figure.count('class="always"') == sum(not decided for *_, decided in edges)
    assert figure.count('class="decided"') == sum(decided for *_, decided in edges)


def test_every_drawing_of_a_page_is_a_figure(pages: dict[str, str]) -> None:
    for source in DOCS.glob("*.md"):
        fences = source.read_text(encoding="utf-8").count("```mermaid")
        page = pages[source.with_suffix(".html").name]
        assert page.count('<figure class="graph"><svg') == fences, source
        assert "graph TD" not in page


def test_every_verb_of_the_command_line_has_its_section(pages: dict[str, str]) -> None:
    page = pages["reference/cli.html"]
    plain = unescape(re.sub(r"<[^>]+>", "", page))
    group: Any = typer.main.get_command(app)
    calibrate = group.commands["calibrate"]
    techniques = {name: calibrate.get_command(None, name) for name in calibrate.list_commands(None)}
    verbs = {**group.commands, **techniques}
    assert {"ask", "eval", "calibrate", "retrieval_threshold"} <= set(verbs)
    for name, verb in verbs.items():
        place = f"dubito-calibrate-{name}" if name in techniques else f"dubito-{name}"
        assert f'id="{place}"' in page
        first = " ".join(verb.help.split("\n\n")[0].replace("`", "").split())
        assert first in " ".join(plain.split())
        for option in verb.params:
            assert option.param_type_name == "argument" or option.opts[0] in plain
    assert "Exit codes" not in page
    assert "interrupted" in plain


def test_the_reference_holds_what_is_public(pages: dict[str, str]) -> None:
    places = set()
    for name, text in pages.items():
        if name.startswith("reference/"):
            places |= set(re.findall(r'id="(dubito\.[^"]+)"', text))
    known = {place.rsplit(".", 1)[-1] for place in places}
    assert set(uncertainty.__all__) <= known
    assert set(datasets.__all__) - {"KINDS"} <= known
    faults = {
        name for name, one in vars(errors).items() if isinstance(one, type) and issubclass(one, errors.DubitoError)
    }
    assert faults <= known
    for place in (
        "dubito.graphs.tool.as_tool",
        "dubito.graphs.chat.build",
        "dubito.graphs.reviewed.build",
        "dubito.resources.resources.Resources",
        "dubito.models.interfaces.ChatModel.complete",
        "dubito.state.df_rag.DFRagOutput.lambda_star",
        "dubito.state.df_rag.DFRagContext.sampling",
        "dubito.state.mixins.RetrievalContext.k",
        "dubito.retrieval.gmmr_sweep",
        "dubito.uncertainty.energy.energy",
        "dubito.evals.answers.answer_scores",
        "dubito.evals.statistics.bootstrap_interval",
        "dubito.settings.Settings.cache_dir",
    ):
        assert place in places


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("there is no executable named chromium on the PATH")
    opened = Browser(tmp_path / "profile")
    yield opened
    opened.close()


@pytest.mark.browser
def test_the_search_works_on_a_page_opened_from_disk(site: Path, browser: Browser) -> None:
    browser.open(f"{(site / 'index.html').as_uri()}?q=degree_entropy")
    browser.until(
        "[...document.querySelectorAll('.md-search-result__link')].some(link => "
        "link.href.includes('reference/uncertainty.html'))"
    )


@pytest.mark.browser
@pytest.mark.parametrize("dark", [False, True])
def test_axe_finds_nothing_serious(site: Path, browser: Browser, dark: bool) -> None:
    browser.screen(1280, dark=dark)
    for page in ("index.html", "df_rag.html", "reference/uncertainty.html"):
        browser.open((site / page).as_uri())
        assert serious_faults(browser) == []
