"""A connector that a vLLM server loads: it writes the last prompt token's hidden state to a small file per request.

It runs in vLLM's own environment, where PYTHONPATH finds it (see `cli/vllm_commands.py`), so it cannot import dubito.
vLLM's example connector, its base, writes the states of all tokens through pinned memory, which does not exist on a
CPU, and leaves the files of aborted requests.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from vllm.distributed.kv_transfer.kv_connector.v1.example_hidden_states_connector import (
    ExampleHiddenStatesConnector,
    PendingSave,
)
from vllm.v1.request import RequestStatus

if TYPE_CHECKING:
    from vllm.v1.request import Request


class LastHiddenState(ExampleHiddenStatesConnector):
    """Writes `hidden_states` [1, layers, hidden] of the last prompt token and `token_ids` [prompt] to safetensors.

    The reply's `kv_transfer_params` hold the file's path as `hidden_states_path`, and `hidden_states_layers`: the ids
    of the layers in the order of the file (the id of a layer is the number of layers below its output, 1 to L - 1).
    The reader takes a shared flock on `PATH.lock`, which is held until the file is written, and removes both.
    """

    def request_finished(self, request: Request, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        """Name the file in the reply; an aborted request has no file."""
        if request.status == RequestStatus.FINISHED_ABORTED:
            self._request_filenames.pop(request.request_id, None)
            return False, None
        delay, reply = super().request_finished(request, block_ids)
        if reply is not None:
            draft = self._vllm_config.speculative_config.draft_model_config.hf_config
            reply = {**reply, "hidden_states_layers": list(draft.eagle_aux_hidden_state_layer_ids)}
        return delay, reply

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        """Write the requested states, and remove the locks of aborted requests."""
        saved = {pending.req_id for pending in self._pending()}
        dropped = [name for name in finished_req_ids - saved if name in self._lock_fds]
        finished = super().get_finished(finished_req_ids)
        for name in dropped:
            Path(self._storage_path, f"{name}.safetensors.lock").unlink(missing_ok=True)
        return finished

    def _pending(self) -> list[PendingSave]:
        return self._get_connector_metadata().pending_saves if self.has_connector_metadata() else []

    def _submit_async_write(self, pending: PendingSave) -> None:
        if not self._is_tp_rank_zero:
            return
        last = len(pending.token_ids) - 1
        block = pending.block_ids[last // self._block_size]
        state = self._kv_cache[block, :, last % self._block_size].to("cpu", copy=True)
        tensors = {"hidden_states": state.unsqueeze(0).contiguous(), "token_ids": pending.token_ids.clone()}
        # a few kilobytes: the copy is complete here, and the disk is written in another thread
        self._req_copy_events[pending.req_id] = _DONE
        lock = self._lock_fds.pop(pending.req_id, None)
        written = self._executor.submit(self._write_tensors, tensors, _DONE, pending.filename, lock)
        self._req_futures[pending.req_id] = written
        written.add_done_callback(lambda future: self._on_write_done(pending.req_id, future))


class _Done:
    """In place of the CUDA event that the base class waits for."""

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        return


_DONE = _Done()
