"""A graph's run as a series of events; those events as the lines of a trace file; and a trace file read back."""
