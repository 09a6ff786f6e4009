"""The commands that start vLLM servers for `dubito serve`."""

import json
import logging
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import UserFault

PLUGIN = Path(__file__).parents[1] / "models" / "vllm_plugin"
CPU_FLAGS = {"--dtype": "float32", "--enforce-eager": None, "--block-size": "32"}
"""Each sample of a prompt reads the prompt's last cache block anew, and a block has 128 tokens unless it is set."""

CPU_ENVIRONMENT = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_NUM_OF_RESERVED_CPU": "0"}
HALF_A_GPU = {"--gpu-memory-utilization": "0.45"}
GPU_DEVICES = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")


@dataclass(frozen=True)
class Command:
    """The command that starts a server. environment: variables added to the caller's own."""

    port: int
    words: Sequence[str]
    environment: Mapping[str, str]

    def __str__(self) -> str:
        """The command as typed in a shell."""
        variables = [f"{name}={shlex.quote(value)}" for name, value in self.environment.items()]
        return " ".join([*variables, shlex.join(self.words)])


def commands(
    vllm: str, model: str, arguments: Sequence[str], *, host: str, port: int, layer: int | None, states_folder: Path
) -> list[Command]:
    """The command of the chat server and, if a layer is given, that of the server of its hidden states.

    vllm: the executable; arguments: passed to vLLM; states_folder: the folder that hidden states pass through.
    """
    path = Path(model).expanduser()
    plain = [vllm, "serve", str(path.absolute()) if path.exists() else model]
    if not has_flag(arguments, "--served-model-name"):
        plain += ["--served-model-name", served_name(model, arguments)]
    plain += ["--host", host]
    gpu = has_gpu()
    defaults: Mapping[str, str | None] = CPU_FLAGS if not gpu else {} if layer is None else HALF_A_GPU
    for flag, value in defaults.items():
        if not has_flag(arguments, flag):
            plain += [flag] if value is None else [flag, value]
    environment = {} if gpu else {name: os.environ.get(name, value) for name, value in CPU_ENVIRONMENT.items()}
    chat = Command(port, [*plain, "--port", str(port), *arguments], environment)
    if layer is None:
        return [chat]
    words = [*plain, "--port", str(port + 1), *_hidden_state_arguments(layer, states_folder), *arguments]
    python_path = os.pathsep.join([str(PLUGIN), *filter(None, [os.environ.get("PYTHONPATH")])])
    return [chat, Command(port + 1, words, {**environment, "PYTHONPATH": python_path})]


def has_gpu() -> bool:
    """Is there a device that vLLM's usual build runs on?"""
    return any(Path(device).exists() for device in GPU_DEVICES)


def _hidden_state_arguments(layer: int, folder: Path) -> list[str]:
    draft = {"hf_config": {"eagle_aux_hidden_state_layer_ids": [layer]}}
    method = {"method": "extract_hidden_states", "num_speculative_tokens": 1, "draft_model_config": draft}
    connector = {
        "kv_connector": "LastHiddenState",
        "kv_connector_module_path": "dubito_hidden_states",
        "kv_role": "kv_producer",
        "kv_connector_extra_config": {"shared_storage_path": str(folder)},
    }
    return ["--speculative-config", json.dumps(method), "--kv-transfer-config", json.dumps(connector)]


def hidden_state_layer(model: str, layer: int | None) -> int:
    """The layer that was asked for, or the middle layer.

    Raises `UserFault` for a layer that the model does not have, and if the number of layers is needed and not known.
    """
    count = _count_layers(model, ask_hub=layer is None)
    if count is None and layer is None:
        raise UserFault(
            f"The number of layers of {model} is not known here: add --layer N; half that number is the middle layer."
        )
    if count is not None and layer is not None and layer >= count:
        raise UserFault(f"{model} has {count} layers: --layer is from 1 to {count - 1}, not {layer}.")
    return layer or max(1, (count or 0) // 2)


def _count_layers(model: str, *, ask_hub: bool) -> int | None:
    path = Path(model).expanduser() / "config.json"
    if not path.is_file():
        if not ask_hub:
            return None
        try:
            from huggingface_hub import hf_hub_download  # noqa: PLC0415 - only for a model on a hub

            logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # its retries fill the screen
            path = Path(hf_hub_download(model, "config.json"))
        except Exception:  # no package, no network, no such model
            return None
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        count = config.get("num_hidden_layers") or config.get("text_config", {}).get("num_hidden_layers")
    except (OSError, ValueError, AttributeError) as fault:
        raise UserFault(f"{path} cannot be read as a model's configuration ({fault}).") from None
    return count if isinstance(count, int) else None


def served_name(model: str, arguments: Sequence[str]) -> str:
    """The model's name in requests: --served-model-name, the name of its folder, or its name on the hub."""
    flag = "--served-model-name"
    for position, word in enumerate(arguments):
        if word == flag and position + 1 < len(arguments):
            return arguments[position + 1]
        if word.startswith(f"{flag}="):
            return word.partition("=")[2]
    path = Path(model).expanduser()
    return re.sub(r"[^\w.-]", "-", path.absolute().name) if path.exists() else model


def has_flag(arguments: Sequence[str], flag: str) -> bool:
    """Is the flag among vLLM's arguments?"""
    return any(word.partition("=")[0] == flag for word in arguments)
