"""Capabilities that only some chat models have: a model declares them, a context asks for them."""

from typing import Literal

Capability = Literal["logprobs", "option_probabilities", "score", "seed", "hidden_states", "energy"]
"""logprobs: `complete` returns tokens with their log-probabilities.
option_probabilities: `choose` returns the model's own probabilities. Without it, `choose` parses one reply.
score: `score` returns the log-probabilities of a given continuation.
seed: equal requests with equal seeds give equal samples.
hidden_states: `introspect` returns the hidden state at the end of each continuation.
energy: `introspect` also returns the free energy of each continuation, computed from the logits.
"""

MEANING: dict[Capability, str] = {
    "logprobs": "log-probabilities of its own tokens",
    "option_probabilities": "probabilities of given options",
    "score": "log-probabilities of given text",
    "seed": "seeds",
    "hidden_states": "hidden states",
    "energy": "logits",
}
"""What a model with the capability gives, for messages."""

Means = Capability | Literal["encoder"]
"""What a setting's value may need: a capability of the chat model, or an encoder that can be opened."""
