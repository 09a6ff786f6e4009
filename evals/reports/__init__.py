"""What a run of `dubito eval` says, as numbers, as Markdown with plots, and as one page of HTML."""
