"""The local page of `dubito ui`: ask a question, watch the steps, read the answer with what it comes from."""
