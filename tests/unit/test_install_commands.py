"""The command that a message suggests fits how dubito was installed."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from dubito.errors import extra_command, install_command

FROM_INDEX: dict[str, object] = {}
EDITABLE = {"url": "file:///home/ada/my%20rag/dubito", "dir_info": {"editable": True}}
FROM_FOLDER = {"url": "file:///home/ada/dubito", "dir_info": {}}
FROM_GIT = {
    "url": "https://git.example/ada/dubito.git",
    "vcs_info": {"vcs": "git", "requested_revision": "main", "commit_id": "0a1b2c"},
}


@pytest.mark.parametrize(
    ("source", "program", "command"),
    [
        (FROM_INDEX, "pip", 'pip install "dubito[ui]"'),
        (EDITABLE, "pip", 'pip install -e "/home/ada/my rag/dubito[ui]"'),
        (FROM_FOLDER, "pip", 'pip install "dubito[ui] @ file:///home/ada/dubito"'),
        (FROM_GIT, "pip", 'pip install "dubito[ui] @ git+https://git.example/ada/dubito.git@0a1b2c"'),
        (FROM_INDEX, "uv", 'uv pip install --python "PREFIX" "dubito[ui]"'),
        (EDITABLE, "uv", 'uv pip install --python "PREFIX" -e "/home/ada/my rag/dubito[ui]"'),
        (FROM_INDEX, "pipx", 'pipx runpip dubito install "dubito[ui]"'),
        (FROM_INDEX, "pipx run", f'"{sys.executable}" -m pip install "dubito[ui]"'),
    ],
)
def test_an_extra_is_added_as_dubito_was_installed(
    source: object, program: str, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefix = tmp_path / ("venvs/dubito" if program == "pipx" else "a52f6b")
    prefix.mkdir(parents=True)
    monkeypatch.setattr(sys, "prefix", str(prefix))
    monkeypatch.syspath_prepend(str(tmp_path))
    metadata = tmp_path / "dubito-1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: dubito\nVersion: 1\n")
    (metadata / "INSTALLER").write_text("uv\n" if program == "uv" else "pip\n")
    if source:
        (metadata / "direct_url.json").write_text(json.dumps(source))
    if program.startswith("pipx"):
        (prefix / "pipx_metadata.json").write_text("{}")
    assert extra_command("ui") == command.replace("PREFIX", str(prefix))


def test_without_metadata_it_is_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [])
    assert extra_command("ui") == 'pip install "dubito[ui]"'
    assert install_command("bm25s") == "pip install bm25s"
