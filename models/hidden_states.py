"""The hidden states of chosen layers, recorded while a transformers model reads."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor
from torch.nn import Module, ModuleList

from ..errors import CapabilityMissing
from .generation import layer_to_read


class HiddenStates:
    """The modules of a transformers model whose outputs are its `hidden_states[1]` to `hidden_states[L]`."""

    def __init__(self, name: str, model: Any) -> None:  # noqa: ANN401
        """name: for messages."""
        self._name = name
        decoder: Module = model.get_decoder()
        count: int = model.config.get_text_config().num_hidden_layers
        stacks = (part for part in decoder.children() if isinstance(part, ModuleList) and len(part) == count)
        layers = list(next(stacks, ModuleList()))
        # for transformers the last layer's hidden state is the output of the final norm
        self._sources = [*layers[:-1], decoder] if layers else []

    def layer(self, layer: int | None) -> int:
        """See `layer_to_read`; `CapabilityMissing` for a model without a list of layers."""
        if not self._sources:
            raise CapabilityMissing(f"{self._name} has no list of layers whose hidden states could be read.")
        return layer_to_read(self._name, len(self._sources), layer)

    @contextmanager
    def seen(self, layers: set[int]) -> Iterator[dict[int, Tensor]]:
        """Record each layer's hidden state of the last token of every sample read meanwhile: float32 [samples, d]."""
        states: dict[int, Tensor] = {}

        def see(layer: int, output: Any) -> None:  # noqa: ANN401 - a tensor, or a tuple that begins with it
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
