"""The package as it is shipped: wheel, sdist, and the commands of the Docker image, run from the installed wheel.

It is built from the files that .dockerignore lets into the image, and installed into an environment of its own. The
other packages are those of this environment. Not run: Docker itself, `apt` users and folders, and the download of
the packages.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath
from urllib.error import HTTPError
from urllib.request import urlopen
from zipfile import ZipFile

import pytest
import yaml
from dubito.tests.integration.test_studio import free_port

ROOT = Path(__file__).parents[2]
PACKAGED = {".css", ".jinja", ".js", ".jsonl", ".py", ".typed"}
START_LIMIT_S = 240


@pytest.fixture(scope="module")
def context(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files that Docker copies to /src."""
    patterns = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")]

    def ignored(folder: str, names: list[str]) -> list[str]:
        deep = [pattern.removeprefix("**/") for pattern in patterns if pattern.startswith("**/")]
        here = [*deep, *patterns] if Path(folder) == ROOT else deep
        return [name for name in names if any(fnmatch(name, pattern) for pattern in here)]

    folder = tmp_path_factory.mktemp("image") / "src"
    shutil.copytree(ROOT, folder, ignore=ignored)
    return folder


def built(context: Path, kind: str, folder: Path) -> Path:
    """The wheel or the sdist, by the hook that pip and `build` call."""
    code = f"import sys; from setuptools import build_meta; build_meta.build_{kind}(sys.argv[1])"
    copy = folder / "context"
    shutil.copytree(context, copy)  # building leaves files
    subprocess.run([sys.executable, "-W", "ignore", "-c", code, folder], cwd=copy, check=True, capture_output=True)
    (archive,) = (path for path in folder.iterdir() if path.is_file())
    return archive


@pytest.fixture(scope="module")
def wheel(context: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(context, "wheel", tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of a new environment with the wheel; it finds what the wheel needs in this environment."""
    folder = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    python = folder / "bin" / "python"
    pip: list[str | Path] = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        python,
        "install",
        "--quiet",
        "--no-deps",
        "--no-index",
        wheel,
    ]
    subprocess.run(pip, check=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "others.pth").write_text(sysconfig.get_path("purelib"))
    return python


def environment(**more: str) -> dict[str, str]:
    """No setting of dubito and no other way to find the repository."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("DUBITO_", "LANG", "PYTHONPATH"))}
    return kept | {"LANGGRAPH_CLI_NO_ANALYTICS": "1", "LANGSMITH_TRACING": "false", **more}


def test_the_wheel_has_the_package_with_its_data_and_nothing_else(context: Path, wheel: Path) -> None:
    with ZipFile(wheel) as archive:
        found = {name for name in archive.namelist() if not PurePosixPath(name).parts[0].endswith(".dist-info")}
    files = [path.relative_to(context) for path in context.rglob("*") if path.suffix in PACKAGED]
    of_package = {path for path in files if path.parts[0] != "examples" or path.parts[1] == "sample"}
    assert found == {f"dubito/{path.as_posix()}" for path in of_package} | {"dubito/langgraph.json"}
    assert {"dubito/py.typed", "dubito/ui/pages/ui.js", "dubito/prompts/plan.jinja"} <= found
    assert not [name for name in found if {"tests", "benchmarks", "docs"} & set(PurePosixPath(name).parts)]


def test_the_sdist_builds_the_same_wheel(context: Path, wheel: Path, tmp_path: Path) -> None:
    (tmp_path / "sdist").mkdir()
    sdist = built(context, "sdist", tmp_path / "sdist")
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    (folder,) = tmp_path.glob("dubito-*")
    (tmp_path / "wheel").mkdir()
    again = built(folder, "wheel", tmp_path / "wheel")
    with ZipFile(wheel) as first, ZipFile(again) as second:
        assert sorted(first.namelist()) == sorted(second.namelist())


IMPORTED = """
import json, sys
from importlib.metadata import version
import dubito
from dubito import df_rag
from dubito.prompts import plan
from dubito.render import trace_page
from dubito.resources.opening import corpus_path
from dubito.retrieval.corpus import read_corpus
from dubito.ui import app
print(json.dumps({
    "versions": [version("dubito"), dubito.__version__],
    "documents": len(read_corpus(corpus_path("sample")).documents),
    "steps": list(df_rag.get_graph().nodes),
    "files": [m.__file__ for n, m in sys.modules.items() if n.startswith("dubito") and getattr(m, "__file__", None)],
}))
"""


def test_the_installed_wheel_works_without_the_repository(python: Path, tmp_path: Path) -> None:
    def said(*command: str | Path) -> str:
        done = subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert "Usage: dubito" in said(python.parent / "dubito", "--help")
    found = json.loads(said(python, "-c", IMPORTED))
    assert len(set(found["versions"])) == 1
    assert found["documents"] > 10
    assert "choose_lambda" in found["steps"]
    assert all(Path(file).is_relative_to(python.parents[1]) for file in found["files"])
    # the packages that it needs, with the versions that it needs; the default model's weights come without theirs
    checked = subprocess.run([sys.executable, "-m", "pip", "check"], capture_output=True, text=True, check=False)
    assert [line for line in checked.stdout.splitlines() if line.startswith("dubito ")] == []


@contextmanager
def started(command: Sequence[str | Path], folder: Path, **more: str) -> Iterator[Callable[[], str]]:
    """A server of the image. Gives the function that says what it wrote."""
    log = folder / "log"
    with log.open("wb") as out:
        process = subprocess.Popen(command, cwd=folder, env=environment(**more), stdout=out, stderr=out)
    try:
        yield log.read_text
    finally:
        process.terminate()
        process.wait(20)


def image() -> tuple[list[str], list[str]]:
    """The image's command and its health check."""
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    check, command = (json.loads(found) for found in re.findall(r"CMD (\[.*\])", text))
    return command, check


def page() -> tuple[list[str], list[str]]:
    """The page's command and its health check."""
    service = yaml.safe_load((ROOT / "compose.yaml").read_text(encoding="utf-8"))["services"]["ui"]
    return service["command"], service["healthcheck"]["test"][1:]


@pytest.mark.studio
@pytest.mark.parametrize(("service", "port"), [(image, "2024"), (page, "8700")], ids=["graphs", "ui"])
def test_a_command_of_the_image_is_healthy_and_asks_for_the_token(
    service: Callable[[], tuple[list[str], list[str]]], port: str, python: Path, tmp_path: Path
) -> None:
    command, check = service()
    free = str(free_port())
    programs: dict[str, list[str | Path]] = {
        "langgraph": [python, "-m", "langgraph_cli"],
        "dubito": [python.parent / "dubito"],
        "python": [python],
    }
    # the address alone differs: nobody else may reach a test
    command = [word.replace("0.0.0.0", "127.0.0.1") if word != port else free for word in command]
    check = [word.replace(f":{port}/", f":{free}/") for word in check]
    shutil.copy(ROOT / "langgraph.json", tmp_path)
    given = {
        "DUBITO_LLM": "vllm:http://vllm:8000/v1",
        "DUBITO_CORPUS": "sample",
        "DUBITO_ALLOW": "",
        "DUBITO_TOKEN": "sesame",
        "DUBITO_API_KEY": "",
        "DUBITO_KEYS": "http://vllm:8000",
        "DUBITO_CACHE_DIR": str(tmp_path),
    }
    with started([*programs[command[0]], *command[1:]], tmp_path, **given) as said:
        deadline = time.monotonic() + START_LIMIT_S
        checked = [*programs[check[0]], *check[1:]]
        while (healthy := subprocess.run(checked, capture_output=True, check=False)).returncode:
            assert time.monotonic() < deadline, f"{said()[-3000:]} {healthy.stderr!r}"
            time.sleep(0.5)
        with pytest.raises(HTTPError, match="401"):
            urlopen(f"http://127.0.0.1:{free}/", timeout=10)
