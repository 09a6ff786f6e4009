"""The hidden states of chosen layers, recorded while a transformers model reads."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeVar

from torch import Tensor
from torch.nn import Module, ModuleList

from ..errors import CapabilityMissing
from ..state.capability import States
from .generation import layer_to_read, no_feed_forward

Key = TypeVar("Key")

FEED_FORWARD = ("mlp", "feed_forward", "ffn", "block_sparse_moe", "moe")
"""The names that models give to the feed-forward block of a layer."""


class HiddenStates:
    """The modules of a transformers model whose outputs are hidden states, layer by layer.

    residual: the modules of `hidden_states[1]` to `hidden_states[L]`; feed_forward: the feed-forward blocks.
    """

    def __init__(self, name: str, model: Any) -> None:  # noqa: ANN401
        self._name = name
        decoder: Module = model.get_decoder()
        count: int = model.config.get_text_config().num_hidden_layers
        stacks = (part for part in decoder.children() if isinstance(part, ModuleList) and len(part) == count)
        layers = list(next(stacks, ModuleList()))
        self._sources: Mapping[States, list[Module]] = {
            # for transformers the last layer's hidden state is the output of the final norm
            "residual": [*layers[:-1], decoder] if layers else [],
            "feed_forward": [block for layer in layers if (block := feed_forward_of(layer)) is not None],
        }

    def layer(self, layer: int | None, states: States = "residual") -> int:
        """See `layer_to_read`; `CapabilityMissing` for a model without such modules."""
        if not (count := len(self._sources["residual"])):
            raise CapabilityMissing(f"{self._name} has no list of layers whose hidden states could be read.")
        if len(self._sources[states]) < count:
            raise CapabilityMissing(no_feed_forward(self._name))
        return layer_to_read(self._name, count, layer)

    def seen(self, wanted: set[tuple[int, States]]) -> AbstractContextManager[dict[tuple[int, States], Tensor]]:
        """Record the states of the last token of every sample read meanwhile: float32 [samples, d]."""
        return recorded({(layer, kind): self._sources[kind][layer - 1] for layer, kind in wanted}, _last_token)


def feed_forward_of(layer: Module) -> Module | None:
    """The feed-forward block of a layer; None if it has none that is known."""
    return next((block for name in FEED_FORWARD if (block := getattr(layer, name, None)) is not None), None)


@contextmanager
def recorded(sources: Mapping[Key, Module | None], state_of: Callable[[Any], Tensor]) -> Iterator[dict[Key, Tensor]]:
    """Record the states of modules while a model reads.

    sources: the modules by key, None for one that is left out; state_of: of the module's output.
    """
    states: dict[Key, Tensor] = {}
    hooks = [
        source.register_forward_hook(lambda _, __, output, key=key: states.update({key: state_of(output)}))
        for key, source in sources.items()
        if source is not None
    ]
    try:
        yield states
    finally:
        for hook in hooks:
            hook.remove()


def _last_token(output: Any) -> Tensor:  # noqa: ANN401 - a tensor, or a tuple that begins with it
    hidden: Tensor = output if isinstance(output, Tensor) else output[0]
    return hidden[:, -1].float()
