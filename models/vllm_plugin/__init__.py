"""This folder is on the import path of vLLM's own Python, so it holds only what vLLM must import."""
