"""One technique a file: each reads top to bottom as the machine in its paper's figure."""
