"""The image, the services and the workflows are well formed, and say the same as the code.

tests/integration/test_package.py runs the image's commands.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import check_jsonschema
import pytest
import yaml
from click.testing import CliRunner
from dubito.cli import vllm_commands

ROOT = Path(__file__).parents[2]
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
SERVICES: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text(encoding="utf-8"))["services"]


def test_hadolint_has_nothing_to_say() -> None:
    hadolint = shutil.which("hadolint", path=str(Path(sys.executable).parent))
    if hadolint is None:
        pytest.skip('install hadolint: pip install -e ".[dev]"')
    done = subprocess.run([hadolint, ROOT / "Dockerfile"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize(
    ("schema", "files"),
    [
        ("compose-spec", "compose.yaml"),
        ("github-workflows", ".github/workflows/*.yml"),
        ("github-issue-forms", ".github/ISSUE_TEMPLATE/[!c]*.yml"),
        ("github-issue-config", ".github/ISSUE_TEMPLATE/config.yml"),
        ("citation-file-format", "CITATION.cff"),
    ],
)
def test_a_file_keeps_the_schema_of_its_kind(schema: str, files: str) -> None:
    found = sorted(ROOT.glob(files))
    assert found
    done = CliRunner().invoke(check_jsonschema.main, ["--builtin-schema", f"vendor.{schema}", *map(str, found)])
    assert done.exit_code == 0, done.output


def test_the_image_has_the_pins_of_the_makefile_and_extras_that_exist() -> None:
    arguments = dict(re.findall(r'^ARG (\w+)="(.*)"$', DOCKERFILE, re.MULTILINE))
    made = dict(re.findall(r"^(TORCH|WEIGHTS) \?= (\S+)$", MAKEFILE, re.MULTILINE))
    assert {name: arguments[name] for name in made} == made
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert set(arguments["EXTRAS"].split(",")) <= set(project["optional-dependencies"])


@pytest.mark.parametrize("workflow", sorted((ROOT / ".github" / "workflows").glob("*.yml")), ids=lambda path: path.stem)
def test_a_workflow_runs_targets_and_files_that_exist(workflow: Path) -> None:
    read = yaml.safe_load(workflow.read_text(encoding="utf-8"))
    steps = [step for job in read["jobs"].values() for step in job["steps"]]
    commands = [shlex.split(step["run"]) for step in steps if "run" in step]
    targets = set(re.findall(r"^([a-z]+):", MAKEFILE, re.MULTILINE))
    for program, *words in commands:
        assert program in {"make", "python", "test"} or os.access(ROOT / program, os.X_OK), program
        assert program != "make" or set(words) <= targets, words
    torch = re.search(r"^TORCH \?= (.*)$", MAKEFILE, re.MULTILINE)
    assert torch
    assert read.get("env", {}).get("TORCH", f"{torch[1]}+cpu") == f"{torch[1]}+cpu"
    assert all(re.search(r"@(v\d+|release/v\d+)$", step["uses"]) for step in steps if "uses" in step)


def test_every_paper_is_cited() -> None:
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))["references"]
    assert {paper["title"].partition(":")[0] for paper in cited} == {"DENSE-RAG", "DF-RAG", "SUNAR", "SeaKR", "SePer"}


def test_keys_and_tokens_come_from_the_environment_alone() -> None:
    secret = re.compile(r"KEY|TOKEN|SECRET|PASSWORD")
    given = {
        name: value
        for service in SERVICES.values()
        for name, value in service["environment"].items()
        if secret.search(name)
    }
    assert {"DUBITO_TOKEN", "DUBITO_API_KEY", "VLLM_API_KEY", "HF_TOKEN"} <= set(given)
    del given["DUBITO_KEYS"]  # names a server, and no key
    assert all(re.fullmatch(r"\$\{\w+(:-|:\?[^}]+)\}", value) for value in given.values()), given
    assert not secret.search(DOCKERFILE)


def test_the_model_server_is_started_as_dubito_serve_starts_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_commands, "has_gpu", lambda: True)
    service = SERVICES["vllm"]
    words = [re.sub(r"\$\{\w+:-(.*)\}", r"\1", word) for word in [*service["entrypoint"], *service["command"]]]
    model, more = words[2], words[words.index("--max-model-len") :]
    folder = Path("unused")
    (command,) = vllm_commands.commands(
        "vllm", model, more, host="0.0.0.0", port=8000, layer=None, states_folder=folder
    )
    assert words == command.words
