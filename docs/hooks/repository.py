"""Adds the files outside docs/ that pages link to, so that no link leads out of the site.

A folder becomes a page that lists its Markdown and Python files; a program or a notebook becomes a page that shows it.
In the repository the same links lead to the files.
"""

from __future__ import annotations

import json
import re
from os.path import normpath, relpath
from pathlib import Path, PurePosixPath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

WHERE = "repository"
"""The folder of the site for these pages."""

LINK = re.compile(r"(?<=\]\()(?!https?:|mailto:|#|/)([^)\s#]+)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add a page for each file and folder outside docs/ that a page links to, also for their own links."""
    docs = Path(config.docs_dir)
    root = docs.parent
    pending = [(f"{docs.name}/{page.src_uri}", page.content_string) for page in files.documentation_pages()]
    added: dict[str, str] = {}
    while pending:
        source, text = pending.pop()
        for target in sorted({_target(source, link) for link in LINK.findall(text)}):
            if _uri(docs, target).startswith(f"{WHERE}/") and target not in added and (root / target).exists():
                added[target] = _page_of(root, target)
                pending.append((_uri(docs, target).removeprefix(f"{WHERE}/"), added[target]))
    for target, text in added.items():
        files.append(File.generated(config, _uri(docs, target), content=text, inclusion=InclusionLevel.NOT_IN_NAV))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point links at the pages of the site."""
    docs = Path(config.docs_dir)
    here = page.file.src_uri
    source = here.removeprefix(f"{WHERE}/") if page.file.generated_by else f"{docs.name}/{here}"

    def in_site(match: re.Match[str]) -> str:
        there = _uri(docs, _target(source, match[1]))
        return relpath(there, PurePosixPath(here).parent) if files.get_file_from_path(there) else match[1]

    return LINK.sub(in_site, markdown)


def _target(source: str, link: str) -> str:
    """The link's target as a path from the repository's root."""
    return normpath(PurePosixPath(source).parent / link)


def _uri(docs: Path, target: str) -> str:
    """The path of a file or folder of the repository among the site's sources."""
    if (docs.parent / target).is_dir():
        return f"{WHERE}/{target}/index.md"
    if target.startswith(f"{docs.name}/"):
        return target.removeprefix(f"{docs.name}/")
    return f"{WHERE}/{target}" if target.endswith(".md") else f"{WHERE}/{target}.md"


def _page_of(root: Path, target: str) -> str:
    path = root / target
    if path.is_dir():
        names = sorted(file.name for file in path.iterdir() if file.suffix in {".md", ".py"})
        return f"# {target}\n\n" + "\n".join(f"- [{name}]({name})" for name in names)
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".ipynb":
        cells = [(cell["cell_type"], "".join(cell["source"])) for cell in json.loads(text)["cells"]]
        return "\n\n".join(source if kind == "markdown" else f"```python\n{source}\n```" for kind, source in cells)
    return text if path.suffix == ".md" else f"# {target}\n\n````{path.suffix[1:]}\n{text}````\n"
