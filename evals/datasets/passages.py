"""Datasets of questions about one text: SQuAD, IIRC, LongBench, InfiniteBench."""

import re
from collections.abc import Callable, Iterator, Mapping
from html import unescape
from pathlib import Path

from ...errors import UserFault
from ...retrieval.corpus import Document, shown
from ..questions import GoldQuestion
from .fields import Record, answers_of, beside, document, each, gold_question, has, listed, rows_of
from .reading import Broken, json_file

ARTICLES_FILE = "context_articles.json"


def squad_rows(record: Record) -> Iterator[Record | Broken]:
    """One row per question, as in a table, from articles with paragraphs with questions."""
    articles = each(record["data"], '"data"') if has(record, "data") else [record]
    for article in articles:
        if isinstance(article, Broken) or not has(article, "paragraphs"):
            yield article
            continue
        for paragraph in each(article["paragraphs"], '"paragraphs"'):
            if isinstance(paragraph, Broken):
                yield paragraph
                continue
            about = {"title": article.get("title"), "context": paragraph.get("context")}
            for question in each(paragraph.get("qas"), '"qas"'):
                yield question if isinstance(question, Broken) else {"is_impossible": False, **question, **about}


def squad_question(record: Record) -> GoldQuestion:
    """SQuAD 1.1 and 2.0: the paragraph is gold. In a table, a question without answers is unanswerable."""
    texts = [entry.get("text") for entry in rows_of(record.get("answers"), '"answers"')]
    impossible = not texts if record.get("is_impossible") is None else record["is_impossible"]
    title = record.get("title")
    paragraph = document(title.replace("_", " ") if isinstance(title, str) else title, record.get("context"))
    answers = () if impossible else answers_of(texts)
    gold = [] if impossible else [paragraph.id]
    return gold_question(record, answers, answerable=not impossible, documents=[paragraph], gold=gold)


def iirc_rows(record: Record) -> Iterator[Record | Broken]:
    """One row per question, with its passage and the passage's links."""
    about = {name: record.get(name) for name in ("title", "text", "links")}
    for question in each(record.get("questions"), '"questions"'):
        yield question if isinstance(question, Broken) else {**question, **about}


def iirc_questions(folder: Path | None) -> Callable[[Record], GoldQuestion]:
    """IIRC: gold are the passage and the linked articles, as far as the answer's evidence is from them.

    If the file of articles is in the same folder, a question's documents are its passage and all linked articles.
    Without that file they are the passage alone, and an article's id is its title in lower case, as in that file.
    """
    path = beside(folder, ARTICLES_FILE)
    articles = None if path is None else _articles(path)

    def question_of(record: Record) -> GoldQuestion:
        passage = document(record.get("title"), record.get("text"))
        evidence = [
            str(entry.get("passage", "")).strip() for entry in rows_of(record.get("context") or [], '"context"')
        ]
        links = [str(entry.get("target", "")).strip() for entry in rows_of(record.get("links") or [], '"links"')]
        names = [name for name in evidence if name != "main"]
        linked = [found for name in (*links, *names) if (found := (articles or {}).get(name.lower()))]
        gold = [passage.id if name == "main" else _article_id(name, articles) for name in evidence]
        kind, answers = _iirc_answers(record.get("answer"))
        return gold_question(record, answers, answerable=kind != "none", documents=[passage, *linked], gold=gold)

    return question_of


def _article_id(name: str, articles: Mapping[str, Document] | None) -> str:
    found = (articles or {}).get(name.lower())
    return found.id if found else name.lower()


def _iirc_answers(answer: object) -> tuple[str, tuple[str, ...]]:
    """The answer's type and its texts: spans joined into one text, a number with and without its unit."""
    if not isinstance(answer, Mapping):
        raise ValueError('"answer" is missing')  # noqa: TRY004
    kind = answer.get("type")
    if kind == "none":
        return kind, ()
    if kind == "span":
        spans = [entry.get("text") for entry in rows_of(answer.get("answer_spans"), "the answer's spans")]
        return kind, answers_of(", ".join(answers_of(spans))) if spans else ()
    if kind == "value":
        value, unit = answer.get("answer_value"), answer.get("answer_unit")
        number = str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value
        return kind, answers_of(number, f"{number} {unit}" if isinstance(number, str) and unit else None)
    if kind == "binary":
        return kind, answers_of(answer.get("answer_value"))
    raise ValueError(f"the answer's type is {kind}, not span, value, binary or none")


def _articles(path: Path) -> dict[str, Document]:
    """By title in lower case; the texts without mark-up."""
    given = json_file(path)
    if not isinstance(given, dict) or not all(isinstance(text, str) for text in given.values()):
        raise UserFault(f"'{shown(path)}' does not map titles to articles: correct or remove it.")
    return {
        title.strip().lower(): document(title, unescape(re.sub(r"<[^>]*>", "", text))) for title, text in given.items()
    }


def longbench_question(record: Record) -> GoldQuestion:
    """LongBench: one long text, which is gold. Tasks without a question, such as summaries, are refused."""
    return _about_one_text(record, listed(record.get("answers"), '"answers"'))


def infinitebench_question(record: Record) -> GoldQuestion:
    """InfiniteBench's questions about books: one long text, which is gold."""
    if record.get("options"):
        raise ValueError("it is a multiple-choice question, which is not supported")
    return _about_one_text(record, record.get("answer"))


def _about_one_text(record: Record, answers: object) -> GoldQuestion:
    text = document(None, record.get("context"))
    return gold_question(record, answers_of(answers), question="input", documents=[text], gold=[text.id])
