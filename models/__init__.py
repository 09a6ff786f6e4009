"""Chat models, encoders, entailment judges and re-rankers: everything that has weights or talks to a server."""
