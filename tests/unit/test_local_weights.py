"""A GGUF file is read once, and what is read is what the `gguf` package reads."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pytest

gguf = pytest.importorskip("gguf")


def test_a_folders_fingerprint_is_that_of_its_weights(tmp_path: Path) -> None:
    from dubito.models.local_weights import END, fingerprint  # noqa: PLC0415

    content = bytes(3 * END)
    (tmp_path / "inner").mkdir()
    (tmp_path / "modules.json").write_text("[]")
    weights = tmp_path / "inner" / "model.safetensors"
    weights.write_bytes(content)
    before = fingerprint(str(tmp_path))
    (tmp_path / "README.md").write_text("how it was trained")
    shutil.copytree(tmp_path, tmp_path / "copy")
    assert fingerprint(str(tmp_path / "copy")) == before
    shutil.rmtree(tmp_path / "copy")
    for other in (content + b"x", b"x" + content[1:], content[:-1] + b"x"):
        weights.write_bytes(other)
        assert fingerprint(str(tmp_path)) != before
    assert fingerprint("a-name-on-the-hub") == ""
    os.mkfifo(tmp_path / "endless.json")
    assert fingerprint(str(tmp_path)) == "", "it is not waited for"
    (tmp_path / "modules.json").unlink()
    (tmp_path / "endless.json").unlink()
    assert fingerprint(str(tmp_path)) == "", "a folder that is no model's is not walked through"


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
