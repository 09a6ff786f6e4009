"""The steps of the graphs; steps that share their parts share a file."""
