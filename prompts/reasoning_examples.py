"""The in-context examples of `reasoning`: ten questions of our own, each with its reasoning."""

from typing import NamedTuple

ENDING = "So the final answer is:"


class Example(NamedTuple):
    """A question, the facts that its answer needs, one sentence each, and the answer."""

    question: str
    facts: tuple[str, ...]
    answer: str

    @property
    def sentences(self) -> tuple[str, ...]:
        """The facts and the sentence that gives the answer."""
        return (*self.facts, f"{ENDING} {self.answer}")


EXAMPLES = (
    Example(
        "Which river is longer, the Rhine or the Thames?",
        ("The Rhine is about 1,230 kilometres long.", "The Thames is about 346 kilometres long."),
        "the Rhine",
    ),
    Example(
        "In which country was the director of the film Jaws born?",
        ("The film Jaws was directed by Steven Spielberg.", "Steven Spielberg was born in the United States."),
        "the United States",
    ),
    Example(
        "Who was born first, Isaac Newton or Albert Einstein?",
        ("Isaac Newton was born in 1643.", "Albert Einstein was born in 1879."),
        "Isaac Newton",
    ),
    Example(
        "What is the capital of the country in which Vincent van Gogh was born?",
        ("Vincent van Gogh was born in the Netherlands.", "The capital of the Netherlands is Amsterdam."),
        "Amsterdam",
    ),
    Example(
        "Are the Louvre and the Prado in the same city?",
        ("The Louvre is in Paris.", "The Prado is in Madrid."),
        "no",
    ),
    Example(
        "Which river flows through the city where Wolfgang Amadeus Mozart died?",
        ("Wolfgang Amadeus Mozart died in Vienna.", "The river that flows through Vienna is the Danube."),
        "the Danube",
    ),
    Example(
        "Who wrote the play that the musical West Side Story is based on?",
        (
            "The musical West Side Story is based on the play Romeo and Juliet.",
            "Romeo and Juliet was written by William Shakespeare.",
        ),
        "William Shakespeare",
    ),
    Example(
        "Is the Eiffel Tower older than the Empire State Building?",
        ("The Eiffel Tower was finished in 1889.", "The Empire State Building was finished in 1931."),
        "yes",
    ),
    Example(
        "When did the first person to walk on the Moon die?",
        ("The first person to walk on the Moon was Neil Armstrong.", "Neil Armstrong died in 2012."),
        "2012",
    ),
    Example(
        "Which has the higher atomic number, iron or gold?",
        ("The atomic number of iron is 26.", "The atomic number of gold is 79."),
        "gold",
    ),
)
