import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

SAMPLE = Path(__file__).parents[2] / "examples" / "sample"


def records(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (SAMPLE / name).read_text(encoding="utf-8").splitlines()]


ARTICLES = records("corpus.jsonl")
QUESTIONS = records("questions.jsonl")
TEXTS = {article["title"]: article["text"] for article in ARTICLES}
LINKS = {"q09": "Weavers' Bridge", "q12": "Elin Orlan"}
"""What joins the two articles of a question where it is not the second one's title."""

each_article = pytest.mark.parametrize("article", ARTICLES, ids=lambda article: article["title"])
each_question = pytest.mark.parametrize("question", QUESTIONS, ids=lambda question: question["id"])
each_two_hop_bridge = pytest.mark.parametrize(
    "question",
    [question for question in QUESTIONS if question["type"] == "bridge" and question["hops"] == 2],
    ids=lambda question: question["id"],
)


def names(text: str, phrase: str) -> bool:
    """Whether the text holds the phrase as whole words."""
    return re.search(rf"(?<!\w){re.escape(phrase)}(?!\w)", text, re.IGNORECASE) is not None


def plain(title: str) -> str:
    """The title as a sentence would use it: without what tells it from its namesakes."""
    return re.sub(r" \(.*\)$", "", title)


def answering(question: dict[str, Any]) -> list[str]:
    return [title for title in question["gold_documents"] if names(TEXTS[title], question["answer"])]


def sentences(text: str) -> list[str]:
    parts = re.split(r"(?<=[.!?])\s+", text)
    return [" ".join(re.findall(r"\w+", part.lower())) for part in parts]


def test_is_about_sixty_articles_and_thirty_questions():
    assert 55 <= len(ARTICLES) <= 70
    assert len(QUESTIONS) == 30


@each_article
def test_an_article_is_a_title_and_90_to_220_words(article):
    assert set(article) == {"title", "text"}
    for value in article.values():
        assert value
        assert value == value.strip()
    assert 90 <= len(article["text"].split()) <= 220
    assert not re.search(r" {2}|\n{3}|(?<!\n)\n(?!\n)|\t", article["text"])


def test_titles_are_unique():
    assert len({title.casefold() for title in TEXTS}) == len(ARTICLES)


def test_no_two_articles_share_a_sentence():
    seen = Counter(sentence for text in TEXTS.values() for sentence in sentences(text))
    assert [sentence for sentence, times in seen.items() if times > 1] == []


def test_no_two_articles_share_ten_words_in_a_row():
    owner: dict[tuple[str, ...], str] = {}
    for title, text in TEXTS.items():
        words = re.findall(r"\w+", text.lower())
        for start in range(len(words) - 9):
            run = tuple(words[start : start + 10])
            assert owner.setdefault(run, title) == title, " ".join(run)


@each_question
def test_a_question_has_the_documented_fields(question):
    assert list(question) == ["id", "question", "answer", "aliases", "gold_documents", "type", "hops"]
    assert question["question"].endswith("?")
    assert question["answer"]
    assert question["type"] in {"bridge", "comparison", "inference", "yes_no"}
    assert all(alias and alias != question["answer"] for alias in question["aliases"])
    assert len(set(question["aliases"])) == len(question["aliases"])


def test_ids_count_up_and_no_question_is_asked_twice():
    assert [question["id"] for question in QUESTIONS] == [f"q{number:02}" for number in range(1, len(QUESTIONS) + 1)]
    assert len({question["question"].casefold() for question in QUESTIONS}) == len(QUESTIONS)


def test_the_mix_of_questions():
    assert Counter(question["hops"] for question in QUESTIONS) == {2: 22, 3: 6, 4: 2}
    types = Counter(question["type"] for question in QUESTIONS)
    assert types["comparison"] == 5
    assert types["yes_no"] == 3
    assert {question["answer"] for question in QUESTIONS if question["type"] == "yes_no"} == {"yes", "no"}


@each_question
def test_one_supporting_article_per_hop_and_each_exists(question):
    assert len(set(question["gold_documents"])) == len(question["gold_documents"]) == question["hops"]
    assert set(question["gold_documents"]) <= set(TEXTS)


@each_question
def test_the_answer_can_be_found_where_it_should_be(question):
    if question["type"] == "yes_no":
        assert question["answer"] in {"yes", "no"}
    elif question["type"] == "comparison":
        assert question["answer"] in question["gold_documents"]
    else:
        assert answering(question)


@each_question
def test_the_question_does_not_give_its_answer_away(question):
    if question["type"] != "comparison":  # a comparison names both
        assert not any(names(question["question"], answer) for answer in [question["answer"], *question["aliases"]])


@each_two_hop_bridge
def test_the_second_hop_is_neither_named_nor_enough(question):
    first, second = question["gold_documents"]
    assert answering(question) == [second]
    assert not names(question["question"], plain(second))
    assert not names(TEXTS[second], plain(first))


@each_two_hop_bridge
def test_both_articles_name_what_joins_them_and_the_question_does_not(question):
    first, second = question["gold_documents"]
    link = LINKS.get(question["id"], plain(second))
    assert names(TEXTS[first], link)
    assert names(second, link) or names(TEXTS[second], link)
    assert not names(question["question"], link)


@pytest.mark.parametrize(
    "question", [question for question in QUESTIONS if question["hops"] > 2], ids=lambda question: question["id"]
)
def test_a_long_chain_ends_in_an_article_that_is_not_named_and_does_not_name_its_start(question):
    first, *_, last = question["gold_documents"]
    assert answering(question)[-1] == last
    assert not names(question["question"], plain(last))
    assert not names(TEXTS[last], plain(first))


def test_the_showcase_is_short_and_has_a_short_answer():
    showcase = QUESTIONS[0]
    assert (showcase["type"], showcase["hops"]) == ("bridge", 2)
    assert len(showcase["question"].split()) <= 14
    assert len(showcase["answer"].split()) <= 2
