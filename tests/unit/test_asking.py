from collections.abc import Sequence

import pytest
from dubito.errors import ContractFault
from dubito.models.choose_by_prompt import ask_and_parse, named_option
from dubito.models.interfaces import Choice, Completion, Message, Reply, Sampling, Tokens
from dubito.models.metering import Meter, Metered, current_meter
from dubito.tests.scripted import ScriptedChat

GRADES = ["0", "1", "2", "3", "4", "5"]


@pytest.mark.parametrize(
    ("reply", "options", "named"),
    [
        ("yes", ["yes", "no"], "yes"),
        ("  **Yes.** ", ["yes", "no"], "yes"),
        ("YES!", ["yes", "no"], "yes"),
        ("The answer is no.", ["yes", "no"], "no"),
        ("yes or no", ["yes", "no"], None),
        ("nothing known", ["yes", "no"], None),
        ("", ["yes", "no"], None),
        ("Score: 4", GRADES, "4"),
        ("4.", GRADES, "4"),
        ("10", GRADES, None),
        ("4.5", GRADES, None),
        ("1,5", GRADES, None),
        ("-1", GRADES, None),
        ("3-4", GRADES, None),
        ("4 of 5", GRADES, None),
        ("-1", ["-1", "0", "1"], "-1"),
        ("I would say -1.", ["-1", "0", "1"], "-1"),
        ("partly correct", ["correct", "partly correct"], "partly correct"),
        ("It is partly  correct, I think", ["correct", "partly correct"], "partly correct"),
        ("incorrect", ["correct", "incorrect"], "incorrect"),
        ("That is incorrect.", ["correct", "incorrect"], "incorrect"),
        ("a non-relevant passage", ["relevant", "other"], None),
        ("B", ["A", "B", "C"], "B"),
        ("b", ["A", "B", "C"], "B"),
        ("I think it is a good case for B", ["A", "B", "C"], "B"),
        ("a", ["A", "a"], "a"),
        ("C++", ["C", "C++"], "C++"),
        ("I prefer C++ here", ["C", "C++"], "C++"),
        ("New  York it is", ["New York", "York"], "New York"),
        ("(c)", ["(c)", "c"], "(c)"),
    ],
)
def test_an_option_is_what_the_reply_is_or_the_only_one_it_names(
    reply: str, options: list[str], named: str | None
) -> None:
    assert named_option(reply, options) == named


class Script:
    def __init__(self, *replies: str) -> None:
        self.replies = list(replies)
        self.asked: list[list[Message]] = []

    async def complete(self, messages: Sequence[Message], sampling: Sampling) -> Reply:
        assert sampling.temperature == 0
        self.asked.append(list(messages))
        return Reply((Completion(self.replies.pop(0), "stop"),), Tokens(10, 2))


QUESTION: list[Message] = [
    {"role": "system", "content": "You judge."},
    {"role": "user", "content": "Is it so?"},
]


async def test_the_options_are_listed_where_the_model_is_asked() -> None:
    script = Script("Yes.")
    assert (await ask_and_parse(script.complete, QUESTION, ["yes", "no"])).best == "yes"
    (asked,) = script.asked
    assert [m["role"] for m in asked] == ["system", "user"]
    assert asked[1]["content"].startswith("Is it so?")
    assert "yes | no" in asked[1]["content"]
    assert QUESTION[1]["content"] == "Is it so?"


async def test_it_asks_once_more_and_says_what_was_wrong() -> None:
    script = Script("Perhaps.", "no")
    assert (await ask_and_parse(script.complete, QUESTION, ["yes", "no"])).best == "no"
    again = script.asked[1]
    assert [m["role"] for m in again] == ["system", "user", "assistant", "user"]
    assert again[2]["content"] == "Perhaps."
    assert "names none" in again[3]["content"]


async def test_an_empty_reply_is_not_shown_to_the_model() -> None:
    script = Script("  ", "no")
    assert (await ask_and_parse(script.complete, QUESTION, ["yes", "no"])).best == "no"
    assert [m["role"] for m in script.asked[1]] == ["system", "user"]


async def test_a_chat_that_ends_with_an_assistant_turn_gets_a_user_turn() -> None:
    script = Script("yes")
    await ask_and_parse(script.complete, [*QUESTION, {"role": "assistant", "content": "Hm."}], ["yes", "no"])
    assert [m["role"] for m in script.asked[0]] == ["system", "user", "assistant", "user"]


async def test_two_replies_that_name_none_break_the_contract() -> None:
    with pytest.raises(ContractFault, match=r"yes \| no") as fault:
        await ask_and_parse(Script("Perhaps.", "Both: yes, no").complete, QUESTION, ["yes", "no"])
    assert fault.value.reply == "Both: yes, no"


async def test_a_choice_that_fails_is_a_call_with_the_tokens_of_both_requests() -> None:
    class Silent(ScriptedChat):
        async def choose(self, messages: Sequence[Message], options: Sequence[str]) -> Choice:
            return await ask_and_parse(Script("Perhaps.", "Both: yes, no").complete, messages, options)

    meter = Meter()
    current_meter.set(meter)
    with pytest.raises(ContractFault):
        await Metered(Silent(), 1).choose(QUESTION, ["yes", "no"])
    [call] = meter.calls
    assert (call.verb, call.prompt_tokens, call.completion_tokens) == ("choose", 20, 4)
    assert call.reply["reply"] == "Both: yes, no"
