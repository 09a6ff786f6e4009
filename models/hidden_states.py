"""A model's hidden states, seen while it reads: those of the layers that are asked for, and nothing of the others."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor
from torch.nn import Module, ModuleList

from ..errors import CapabilityMissing, UserFault


class HiddenStates:
    """Where in a model of transformers its `hidden_states[1]` to `hidden_states[L]` come out."""

    def __init__(self, name: str, model: Any) -> None:  # noqa: ANN401
        """name: for messages."""
        self._name = name
        decoder: Module = model.get_decoder()
        count: int = model.config.get_text_config().num_hidden_layers
        stacks = (part for part in decoder.children() if isinstance(part, ModuleList) and len(part) == count)
        layers = list(next(stacks, ModuleList()))
        # what transformers calls the last layer's is what the final norm makes of it
        self._sources = [*layers[:-1], decoder] if layers else []

    def layer(self, wanted: int | None) -> int:
        """The layer to read, 1 to L, where None stands for the middle one; `UserFault` if there is none such."""
        count = len(self._sources)
        if not count:
            raise CapabilityMissing(f"{self._name} has no row of layers whose hidden states could be read.")
        if wanted is None:
            return max(1, count // 2)
        if not 1 <= wanted <= count:
            raise UserFault(f"{self._name} has {count} layers: choose one from 1 to {count}, not {wanted}.")
        return wanted

    @contextmanager
    def seen(self, layers: set[int]) -> Iterator[dict[int, Tensor]]:
        """What each of these layers says of the last token of every row that is read meanwhile: float32 [rows, d]."""
        states: dict[int, Tensor] = {}

        def see(layer: int, output: Any) -> None:  # noqa: ANN401 - a tensor, or what holds it in the first place
            hidden: Tensor = output if isinstance(output, Tensor) else output[0]
            states[layer] = hidden[:, -1].float()

        hooks = [
            self._sources[layer - 1].register_forward_hook(lambda _, __, output, layer=layer: see(layer, output))
            for layer in layers
        ]
        try:
            yield states
        finally:
            for hook in hooks:
                hook.remove()
