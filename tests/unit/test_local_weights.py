"""A GGUF file is read once, and what is read is what the `gguf` package reads."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

gguf = pytest.importorskip("gguf")


def test_a_folders_fingerprint_is_that_of_its_weights(tmp_path: Path) -> None:
    from dubito.models.local_weights import fingerprint  # noqa: PLC0415

    content = bytes(1000)
    (tmp_path / "inner").mkdir()
    (tmp_path / "modules.json").write_text("[]")
    weights = tmp_path / "inner" / "model.safetensors"
    weights.write_bytes(content)
    before = fingerprint(str(tmp_path))
    (tmp_path / "README.md").write_text("how it was trained")
    shutil.copytree(tmp_path, tmp_path / "copy")
    os.utime(tmp_path / "copy" / "modules.json", ns=(0, 0))
    assert fingerprint(str(tmp_path / "copy")) == before
    shutil.rmtree(tmp_path / "copy")
    for other in (content + b"x", b"x" + content[1:], content[:-1] + b"x", content[:500] + b"x" + content[501:]):
        weights.write_bytes(other)
        assert fingerprint(str(tmp_path)) != before
    assert fingerprint("a-name-on-the-hub") == ""
    os.mkfifo(tmp_path / "endless.json")
    assert fingerprint(str(tmp_path)) == "", "it is not waited for"
    (tmp_path / "modules.json").unlink()
    (tmp_path / "endless.json").unlink()
    assert fingerprint(str(tmp_path)) == "", "a folder that is no model's is not walked through"


def safetensors(tensors: dict[str, bytes]) -> bytes:
    begins = np.cumsum([0, *map(len, tensors.values())]).tolist()
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    for i, (name, content) in enumerate(tensors.items()):
        header[name] = {"dtype": "F32", "shape": [len(content) // 4], "data_offsets": begins[i : i + 2]}
    encoded = json.dumps(header).encode()
    return len(encoded).to_bytes(8, "little") + encoded + b"".join(tensors.values())


def test_a_fine_tune_of_one_small_tensor_has_another_fingerprint(tmp_path: Path) -> None:
    from dubito.models.local_weights import BLOCK, BLOCKS, fingerprint  # noqa: PLC0415

    (tmp_path / "config.json").write_text("{}")
    tensors = {f"layer.{i}.{name}": bytes(size) for i in range(8) for name, size in (("w", 2**21), ("b", 64))}
    assert sum(map(len, tensors.values())) > 3 * BLOCK * BLOCKS, "not every byte is looked at"
    seen = set()
    for changed in (None, "layer.3.w", "layer.3.b", "layer.5.b", "layer.7.w"):
        other = {name: b"x" * len(content) if name == changed else content for name, content in tensors.items()}
        (tmp_path / "model.safetensors").write_bytes(safetensors(other))
        seen.add(fingerprint(str(tmp_path)))
    assert len(seen) == 5


def test_a_change_inside_a_file_without_a_readable_header_has_another_fingerprint(tmp_path: Path) -> None:
    from dubito.models.local_weights import fingerprint  # noqa: PLC0415

    (tmp_path / "config.json").write_text("{}")
    for name in ("model.bin", "model.safetensors"):
        seen = set()
        for content in (bytes(2**24), bytes(2**23) + b"\xff" * 2**15 + bytes(2**23 - 2**15), b"\xff" * 2**24):
            (tmp_path / name).write_bytes(content)
            seen.add(fingerprint(str(tmp_path)))
        assert len(seen) == 3


def test_the_weights_of_a_hub_name_are_those_that_were_downloaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dubito.models.local_weights import fingerprint, snapshot  # noqa: PLC0415

    constants = pytest.importorskip("huggingface_hub.constants")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    assert snapshot("some/model") == "some/model"
    assert snapshot("no:such\0name") == "no:such\0name"
    repository = tmp_path / "models--some--model"
    seen = set()
    for commit in ("aaaa", "bbbb"):
        folder = repository / "snapshots" / commit
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(f'"{commit}"')
        (repository / "refs").mkdir(exist_ok=True)
        (repository / "refs" / "main").write_text(commit)
        assert snapshot("some/model") == snapshot(str(folder)) == str(folder)
        seen.add(fingerprint(snapshot("some/model")))
    assert len(seen - {""}) == 2


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(96)
    writer.add_token_list(["<s>", "fox", "Grüße"])
    writer.add_tensor("output_norm.weight", np.arange(6, dtype=np.float32).reshape(2, 3))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_a_file_is_read_once_and_as_it_is(file: Path) -> None:
    from dubito.models.local_weights import gguf_read_once  # noqa: PLC0415

    plain, names = gguf.GGUFReader(file), gguf.get_tensor_name_map
    with gguf_read_once():
        read = gguf.GGUFReader(file)
        assert gguf.GGUFReader(file) is read
        assert gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, 2) is gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, 2)
    assert {key: field.contents() for key, field in read.fields.items()} == {
        key: field.contents() for key, field in plain.fields.items()
    }
    assert read.fields["tokenizer.ggml.tokens"].contents() == ["<s>", "fox", "Grüße"]
    assert [(one.name, one.data.tolist()) for one in read.tensors] == [("output_norm.weight", [[0, 1, 2], [3, 4, 5]])]
    assert gguf.get_tensor_name_map is names
    assert gguf.GGUFReader(file) is not gguf.GGUFReader(file), "afterwards others read as before"
