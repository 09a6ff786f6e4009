"""What a trace holds, read back and shown: as a tree and a comparison on the terminal, as one page in a browser."""
