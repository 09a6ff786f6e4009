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
