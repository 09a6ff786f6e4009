"""What says that there is no answer, and what does not."""

from __future__ import annotations

import pytest
from dubito.state.abstention import abstains


@pytest.mark.parametrize(
    "answer",
    [
        "",
        " \n",
        "...",
        "Unknown",
        "unanswerable",
        "(none)",
        "N/A",
        "No answer.",
        "The answer is unknown",
        "Nothing was found.",
        "I don’t know.",
        "i do not know who founded it",
        "Answer: I don't know",
        "So the final answer is: unknown.",
        "I'm sorry, but I don't have enough information to answer that.",
        "Sorry, I cannot answer this question.",
        "Unfortunately, I could not find it.",
        "I am not sure.",
        "I am unable to answer from these passages",
        "Not enough information",
        "Insufficient context.",
        "There is not enough information in the passages.",
        "There's no information on that",
        "The passages do not say when it was built.",
        "the provided context doesn't mention it",
        "The information is insufficient.",
        "None of the passages mention the founder.",
        "This question cannot be answered from the passages.",
        "The question is unanswerable",
        "It is not known exactly.",
        "The answer is not given in the passages.",
        "The answer cannot be determined.",
        "It is unknown",
        "It is unknown who founded it.",
        "It remains unknown. The passages do not tell.",
        "This is not known from the passages",
        "Could not be determined.",
        "It cannot be known",
        "Nobody knows",
        "Not mentioned in the passages",
        "From the passages, it is unclear who founded it.",
    ],
)
def test_abstains(answer: str) -> None:
    assert abstains(answer)


@pytest.mark.parametrize(
    "answer",
    [
        "Lune",
        "no",
        "0",
        "Na",  # sodium
        "Unknown Pleasures",
        "The Unknown Soldier",
        "None of the above",
        "And Then There Were None",
        "You Don't Know by Helen Shapiro",
        "I Don't Care",
        "I don't know, but it may be the Lune",  # a guess is an answer
        "I'm not sure. Perhaps the Lune.",
        "The passages do not say it outright. However, it is the Lune.",
        "There is no evidence that they met",
        "No, they did not know each other",
        "The passages name the Lune",
        "The text of the song",
        "He could not find the river",
        "Sorry",  # a song; an apology alone says nothing of knowing
        "It is known as the Lune",
        "It was unknown to science until 1938",
        "It was not known to Europeans before 1606.",
        "It was unknown in the West until 1938",
    ],
)
def test_answers(answer: str) -> None:
    assert not abstains(answer)
