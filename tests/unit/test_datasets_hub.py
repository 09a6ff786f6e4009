"""Datasets by name: what is asked of the `datasets` library, and a folder in its form read for real."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from dubito.errors import UserFault, extra_command
from dubito.evals.datasets import KINDS, load_dataset
from dubito.tests.json_lines import write_lines

ROWS = [{"question": "Who?", "answer": ["Ada"]}, {"question": "Where?", "answer": ["Brand", "a town"]}]


class Library:
    """Tells what it was asked for."""

    def __init__(self, *splits: str) -> None:
        self.splits = splits
        self.asked: list[Any] = []

    def get_dataset_split_names(self, path: str, config: str | None) -> list[str]:
        self.asked.append((path, config))
        return list(self.splits)

    def load_dataset(self, path: str, config: str | None, split: str) -> list[dict[str, Any]]:
        self.asked.append((path, config, split))
        return ROWS


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Library:
    made = Library("train", "test", "validation")
    monkeypatch.setitem(sys.modules, "datasets", made)
    return made


@pytest.mark.parametrize(
    ("name", "path", "config", "split"),
    [
        ("own/name", "own/name", None, "validation"),
        ("own/name/some.config", "own/name", "some.config", "validation"),
        ("own/name/config#train[:10%]", "own/name", "config", "train[:10%]"),
    ],
)
def test_names(name: str, path: str, config: str | None, split: str, library: Library) -> None:
    dataset = load_dataset(f"nq:hub:{name}")
    assert library.asked[-1] == (path, config, split)
    assert dataset.name == f"nq:hub:{path}{f'/{config}' if config else ''}#{split}"
    assert [one.answers for one in dataset.questions] == [("Ada",), ("Brand", "a town")]


@pytest.mark.parametrize(
    ("splits", "taken"), [(["train", "dev", "test"], "dev"), (["test", "train"], "test"), (["only"], "only")]
)
def test_the_split_that_is_taken(splits: list[str], taken: str, library: Library) -> None:
    library.splits = tuple(splits)
    assert load_dataset("nq:hub:own/name").name.endswith(f"#{taken}")


def test_a_split_that_cannot_be_guessed(library: Library) -> None:
    library.splits = ("train", "other")
    with pytest.raises(
        UserFault, match="'own/name' has the splits train, other: name one of them, as in 'own/name#train'"
    ):
        load_dataset("nq:hub:own/name")


def test_known_names(library: Library) -> None:
    for spec in ("nq:hub", "nq:hub:"):
        load_dataset(spec)
        assert library.asked.pop() == ("google-research-datasets/nq_open", None, "validation")
    for kind in KINDS.values():
        assert kind.hub is None or ("#" in kind.hub and 1 <= kind.hub.count("/") <= 2)
    with pytest.raises(UserFault, match="The place of 'iirc' on the hub is unknown: give iirc:hub:OWNER/NAME"):
        load_dataset("iirc:hub")


@pytest.mark.parametrize("name", ["a/b/c/d", "a//b", "/b"])
def test_what_is_no_name(name: str, library: Library) -> None:
    with pytest.raises(UserFault, match=r"is not a name on the hub: give owner/name|There is no folder"):
        load_dataset(f"nq:hub:{name}")
    assert library.asked == []


def test_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(UserFault, match=re.escape(f"needs an extra: {extra_command('datasets')}.")):
        load_dataset("hotpotqa:hub")


def test_without_a_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ConnectionError("Couldn't reach 'own/name' on the Hub.\nMore of it.")

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(get_dataset_split_names=fail, load_dataset=fail))
    for name in ("own/name", "own/name#test"):
        with pytest.raises(UserFault) as fault:
            load_dataset(f"nq:hub:{name}")
        assert str(fault.value) == (
            f"'{name}' cannot be loaded through the datasets library (Couldn't reach 'own/name' on the Hub): check the "
            "name and the network, or give a file (KIND:FILE)."
        )


def test_a_broken_row_has_its_place(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "load_dataset", lambda *_, **__: [*ROWS, {"question": "Why?", "answer": None}])
    with pytest.raises(UserFault, match=r"^'own/name#validation', row 3: \"answer\" is missing .*; correct it"):
        load_dataset("nq:hub:own/name")
    assert len(load_dataset("nq:hub:own/name", on_bad_record="skip").problems) == 1


HOTPOT = {
    "id": "h1",
    "question": "By which river?",
    "answer": "Lune",
    "supporting_facts": {"title": ["Ada", "Brand"], "sent_id": [0, 1]},
    "context": {"title": ["Ada", "Brand"], "sentences": [["Born in Brand."], ["A town.", "By the Lune."]]},
}
READINGS = [
    {"type": "multipleQAs", "answer": None, "qaPairs": [{"question": "First?", "answer": ["1987"]}]},
    {"type": "singleAnswer", "answer": ["1989"], "qaPairs": None},
]
TABLES: dict[str, list[dict[str, Any]]] = {
    "hotpotqa": [HOTPOT],
    "ambignq": [{"id": "1", "question": "When?", "annotations": READINGS}],
}


@pytest.mark.parametrize(("kind", "form"), [("hotpotqa", "jsonl"), ("ambignq", "parquet")])
def test_a_folder_in_the_hubs_form_is_read_as_the_file(
    kind: str, form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = pytest.importorskip("datasets")
    monkeypatch.setattr(library.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    file, folder = tmp_path / "file.jsonl", tmp_path / "made"
    write_lines(file, TABLES[kind])
    folder.mkdir()
    if form == "jsonl":
        (folder / "validation.jsonl").write_bytes(file.read_bytes())
    else:
        library.Dataset.from_list(TABLES[kind]).to_parquet(str(folder / "validation.parquet"))
    dataset = load_dataset(f"{kind}:hub:{folder}")
    assert dataset.name == f"{kind}:hub:made#validation"
    assert dataset.questions == load_dataset(f"{kind}:{file}").questions
    assert len(dataset.questions) == len(TABLES[kind])
    with pytest.raises(UserFault, match="cannot be loaded through the datasets library"):
        load_dataset(f"{kind}:hub:{folder}#none")
