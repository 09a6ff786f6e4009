"""A folder that vLLM's own Python looks into, so nothing else may lie here: the names would be importable there."""
