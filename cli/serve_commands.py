"""The commands by which `dubito serve` starts vLLM."""

from __future__ import annotations

import json
import logging
import os
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ..errors import UserFault

PLUGIN = Path(__file__).parents[1] / "models" / "vllm_plugin"
CPU_FLAGS = {"--dtype": "float32", "--enforce-eager": None}
CPU_ENVIRONMENT = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_NUM_OF_RESERVED_CPU": "0"}
HALF_A_GPU = {"--gpu-memory-utilization": "0.45"}
GPU_DEVICES = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")


@dataclass(frozen=True)
class Job:
    """What to serve and how."""

    model: str
    arguments: tuple[str, ...] = ()
    hidden_states: bool = False
    layer: int | None = None
    states_folder: Path | None = None
    host: str = "127.0.0.1"
    port: int = 8000
    vllm: str = "vllm"


@dataclass(frozen=True)
class Command:
    """How one server is started; `environment` is what is added to the caller's."""

    port: int
    words: tuple[str, ...]
    environment: Mapping[str, str]

    def __str__(self) -> str:
        """As it is typed in a shell."""
        added = [f"{name}={shlex.quote(value)}" for name, value in self.environment.items()]
        return " ".join([*added, shlex.join(self.words)])


def commands(job: Job, layer: int | None, folder: Path) -> list[Command]:
    """The plain server's and, if hidden states are wanted, the other's."""
    plain = [job.vllm, "serve", _model_path(job.model), *_named(job), "--host", job.host]
    gpu = has_gpu()
    defaults: Mapping[str, str | None] = (HALF_A_GPU if job.hidden_states else {}) if gpu else CPU_FLAGS
    for flag, value in defaults.items():
        if not given(job, flag):
            plain += [flag] if value is None else [flag, value]
    environment = {} if gpu else {name: os.environ.get(name, value) for name, value in CPU_ENVIRONMENT.items()}
    found = [Command(job.port, (*plain, "--port", str(job.port), *job.arguments), environment)]
    if layer is not None:
        words = (*plain, "--port", str(job.port + 1), *_extraction(layer, folder), *job.arguments)
        path = os.pathsep.join([str(PLUGIN), *filter(None, [os.environ.get("PYTHONPATH")])])
        found.append(Command(job.port + 1, words, {**environment, "PYTHONPATH": path}))
    return found


def has_gpu() -> bool:
    """Is there a device that vLLM's usual build runs on?"""
    return any(Path(device).exists() for device in GPU_DEVICES)


def _extraction(layer: int, folder: Path) -> tuple[str, ...]:
    draft = {"hf_config": {"eagle_aux_hidden_state_layer_ids": [layer]}}
    method = {"method": "extract_hidden_states", "num_speculative_tokens": 1, "draft_model_config": draft}
    connector = {
        "kv_connector": "LastHiddenState",
        "kv_connector_module_path": "dubito_hidden_states",
        "kv_role": "kv_producer",
        "kv_connector_extra_config": {"shared_storage_path": str(folder)},
    }
    return ("--speculative-config", json.dumps(method), "--kv-transfer-config", json.dumps(connector))


def layer_of(job: Job) -> int:
    """The layer that was asked for, or the middle one."""
    count = _count_layers(job.model, ask_hub=job.layer is None)
    if count is None and job.layer is None:
        raise UserFault(
            f"How many layers {job.model} has is not known here: add --layer N; half their number is the middle one."
        )
    if count is not None and job.layer is not None and job.layer >= count:
        raise UserFault(f"{job.model} has {count} layers: --layer is from 1 to {count - 1}, not {job.layer}.")
    return job.layer or max(1, (count or 0) // 2)


def _count_layers(model: str, *, ask_hub: bool) -> int | None:
    path = Path(model).expanduser() / "config.json"
    if not path.is_file():
        if not ask_hub:
            return None
        try:
            from huggingface_hub import hf_hub_download  # noqa: PLC0415 - only for a model that is not here

            logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # it retries, and says so in many lines
            path = Path(hf_hub_download(model, "config.json"))
        except Exception:  # no package, no network, no such model: vLLM says which
            return None
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        count = config.get("num_hidden_layers") or config.get("text_config", {}).get("num_hidden_layers")
    except (OSError, ValueError, AttributeError) as fault:
        raise UserFault(f"{path} cannot be read as a model's configuration ({fault}).") from None
    return count if isinstance(count, int) else None


def _model_path(model: str) -> str:
    path = Path(model).expanduser()
    return str(path.absolute()) if path.exists() else model


def _named(job: Job) -> list[str]:
    return [] if given(job, "--served-model-name") else ["--served-model-name", served_name(job)]


def served_name(job: Job) -> str:
    """What requests call the model: its folder's name, or the hub's."""
    for at, word in enumerate(job.arguments):
        if word == "--served-model-name" and at + 1 < len(job.arguments):
            return job.arguments[at + 1]
        if word.startswith("--served-model-name="):
            return word.partition("=")[2]
    path = Path(job.model).expanduser()
    return re.sub(r"[^\w.-]", "-", path.absolute().name) if path.exists() else job.model


def given(job: Job, flag: str) -> bool:
    """Is the flag among vLLM's own arguments?"""
    return any(word.partition("=")[0] == flag for word in job.arguments)
