"""Opens what a context names, once a process, and shares it: models, corpora, caches, telemetry."""
