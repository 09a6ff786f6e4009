"""The in-context examples of `reasoning`: ten questions of our own, each with its reasoning, or a file of others."""

from pathlib import Path
from typing import Annotated, NamedTuple

from pydantic import StringConstraints, TypeAdapter, ValidationError

from ..errors import UserFault
from ..json_files import BrokenJson, content_of, parsed

ENDING = "So the final answer is:"


Text = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, pattern=r"^[^\n]*$")]


class Example(NamedTuple):
    """A question, the facts that its answer needs, one sentence each, and the answer."""

    question: Text
    facts: tuple[Text, ...]
    answer: Text

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

_EXAMPLES = TypeAdapter(list[Example])


def read_examples(name: str) -> tuple[Example, ...]:
    """The examples that a setting names: the first N of ours, or those of a JSON file. It blocks.

    The file holds a list of objects: question, facts (a list of sentences), answer. Raises `UserFault` for another.
    """
    if name.isascii() and name.isdigit() and int(name) <= len(EXAMPLES):
        return EXAMPLES[: int(name)]
    form = '[{"question": "...", "facts": ["..."], "answer": "..."}]'
    advice = f"give a JSON file such as {form}, or a number from 0 to {len(EXAMPLES)}"
    try:
        found = _EXAMPLES.validate_python(parsed(content_of(Path(name).expanduser())))
    except OSError as fault:
        raise UserFault(f"There are no examples at '{name}' ({fault.strerror}): {advice}.") from fault
    except BrokenJson as fault:
        raise UserFault(f"The examples in '{name}' cannot be read ({fault}, line {fault.line}): {advice}.") from fault
    except ValidationError as fault:
        error = fault.errors()[0]
        number, *field = error["loc"] or [-1]
        place = ", ".join([f"example {int(number) + 1}", *map(str, field)]) if error["loc"] else "the file"
        message = f"The examples in '{name}' cannot be used ({place}: {error['msg']}): {advice}."
        raise UserFault(message) from fault
    return tuple(found)
