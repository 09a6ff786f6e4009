"""The steps the machines share, one verb a file."""
