"""Capabilities that only some chat models have: a model declares them, a context asks for them."""

from typing import Literal

Capability = Literal[
    "logprobs", "option_probabilities", "score", "seed", "pattern", "hidden_states", "inner_states", "energy"
]
"""logprobs: `complete` returns tokens with their log-probabilities.
option_probabilities: `choose` returns the model's own probabilities. Without it, `choose` parses one reply.
score: `score` returns the log-probabilities of a given continuation.
seed: equal requests with equal seeds give equal samples.
pattern: `complete` can keep a reply to a regular expression while the model writes it.
hidden_states: `introspect` returns the hidden state at the end of each continuation.
inner_states: `introspect` also returns the outputs of feed-forward blocks, and states at a token that is put in.
energy: `introspect` also returns the free energy of each continuation, computed from the logits.
"""

MEANING: dict[Capability, str] = {
    "logprobs": "log-probabilities of its own tokens",
    "option_probabilities": "probabilities of given options",
    "score": "log-probabilities of given text",
    "seed": "seeds",
    "pattern": "replies that are kept to a pattern",
    "hidden_states": "hidden states",
    "inner_states": "the outputs of its feed-forward blocks and states at a token that is put in",
    "energy": "logits",
}
"""What a model with the capability gives, for messages."""

States = Literal["residual", "feed_forward"]
"""The hidden states of a layer. residual: the residual stream after the layer, which is the input of the next layer.
feed_forward: the output of the layer's feed-forward block, before it is added to the residual stream.
"""

At = Literal["last", "eos"]
"""The token at which a continuation's state is read. last: the last token that was generated. eos: the end-of-sequence
token, put in place of the last token.
"""

Means = Capability | Literal["encoder"]
"""What a setting's value may need: a capability of the chat model, or an encoder that can be opened."""
