"""Each message that the pages of troubles quote is a message of the code, or of the library that the page names."""

from __future__ import annotations

import ast
import re
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FIRST, MODELS = (ROOT / "docs" / f"troubleshooting{page}.md" for page in ("", "_models"))
OURS, _, OTHERS = (FIRST.read_text(encoding="utf-8") + MODELS.read_text(encoding="utf-8")).partition(
    "## Messages of other libraries"
)
NOT_PRODUCT = {"tests", "docs", "examples", "benchmarks", "build"}
HOLE = "..."

FILES = {
    "Recursion limit of": "langgraph/pregel/main.py",
    "Blocking call to": "blockbuster/blockbuster.py",
    "To serve at least one request with the model's max seq len": "vllm/v1/core/kv_cache_utils.py",
    "No available memory for the cache blocks": "vllm/v1/core/kv_cache_utils.py",
    "Free memory on device": "vllm/v1/worker/utils.py",
    "User-specified max_model_len": "vllm/config/model.py",
}
"""Messages of other libraries, and the file of each."""


def quotes(page: str) -> list[str]:
    """The quoted messages: in headings, and in the first cells of tables."""
    lines = re.findall(r"^### (.+)$|^\| (`[^|]+) \|", page, re.MULTILINE)
    return [quote for heading, cell in lines for quote in re.findall(r"`([^`]+)`", heading or cell)]


@cache
def texts_of_the_code() -> str:
    """Every string of the product code but docstrings, with `...` for what an f-string fills in."""
    texts = []
    for path in ROOT.rglob("*.py"):
        folder = path.relative_to(ROOT).parts[0]
        if folder in NOT_PRODUCT or folder.startswith("."):
            continue
        nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
        docstrings = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
        for node in nodes:
            if isinstance(node, ast.JoinedStr):
                parts = [str(part.value) if isinstance(part, ast.Constant) else HOLE for part in node.values]
                texts.append("".join(parts))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
                texts.append(node.value.replace("%s", HOLE))
    return "\n".join(texts)


def is_said(quote: str) -> bool:
    pattern = ".*?".join(re.escape(piece) for piece in quote.split(HOLE))
    return bool(re.search(pattern, texts_of_the_code()))


@pytest.mark.parametrize("quote", quotes(OURS))
def test_a_quoted_message_is_a_message_of_the_code(quote: str) -> None:
    assert is_said(quote)


def test_the_page_has_messages_and_others_are_not_found() -> None:
    assert len(quotes(OURS)) > 50
    assert not is_said("The weights of the ... are not there")


@pytest.mark.parametrize("quote", quotes(OTHERS))
def test_a_message_of_another_library_is_in_its_file(quote: str) -> None:
    package, _, _ = FILES[quote].partition("/")
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        pytest.skip(f"{package} is not installed")
    folder = Path(next(iter(spec.submodule_search_locations))).parent
    assert quote in (folder / FILES[quote]).read_text(encoding="utf-8")
