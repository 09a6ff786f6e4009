"""What not every chat model can do; contexts ask for it, models declare it."""

from __future__ import annotations

from typing import Literal

Capability = Literal["logprobs", "option_probabilities", "score", "seed", "hidden_states", "energy"]
"""logprobs: `complete` returns tokens with their log-probabilities.
option_probabilities: `choose` returns the model's own probabilities, not one parsed reply.
score: the log-probabilities of a given continuation.
seed: equal requests with equal seeds give equal samples.
hidden_states: `introspect` returns the hidden state at the end of each continuation.
energy: `introspect` returns each continuation's free energy too, which takes the logits.
"""
