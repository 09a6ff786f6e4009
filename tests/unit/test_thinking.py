"""What of a reply is thinking and what is the answer."""

import pytest
from dubito.models.thinking import strip_thinking


@pytest.mark.parametrize(
    ("reply", "answer"),
    [
        ("Paris", "Paris"),
        ("  Paris\n", "  Paris\n"),
        ("", ""),
        ("<think>It is in France.</think>\n\nParis", "Paris"),
        ("<think>\n\n</think>\n\nParis\n", "Paris"),
        ("<think>one</think> Paris <think>two</think>", "Paris"),
        ("It is <think>which?</think>Paris", "It is Paris"),
        ("<think>It never ends", ""),
        ("Paris <think>or not", "Paris"),
        ("so it is in France.</think> Paris", "Paris"),
        ("one</think>two</think>Paris", "Paris"),
        ("<think>one<think>two</think>three</think>Paris", "Paris"),
        ("<think>done</think>", ""),
        ("a < b and <thinking> is no mark", "a < b and <thinking> is no mark"),
    ],
)
def test_only_the_answer_is_left(reply: str, answer: str) -> None:
    assert strip_thinking(reply) == answer


def test_stripping_twice_changes_nothing() -> None:
    once = strip_thinking("<think>a</think> b")
    assert strip_thinking(once) == once
