"""The recipes that reproduce the papers' tables: their commands are accepted and their scripts work; none is run."""

from __future__ import annotations

import json
import math
import re
import shlex
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from statistics import correlation
from types import ModuleType
from typing import Any

import pytest
import typer
from dubito.benchmarks import passage_utility
from dubito.cli import app
from dubito.cli.completion import GRAPH_OF_SETTING
from dubito.errors import UserFault
from dubito.evals import run_folder
from dubito.evals.datasets import KINDS, load_dataset
from dubito.evals.questions import GoldQuestion
from dubito.evals.run_folder import System
from dubito.evals.seper import Piece, SePerResult
from dubito.graphs.context_from_text import context_for
from dubito.graphs.registry import graph_named
from dubito.models.bert_score import BertScorer
from dubito.tests.json_lines import write_lines
from dubito.tests.reported import answered, asked, dse, failed, made, unsure, vanilla
from typer.testing import CliRunner

ROOT = Path(__file__).parents[2]

PAGES = sorted((ROOT / "docs" / "reproduce").glob("*.md"))

STOPPED = "Nothing is asked here."


def blocks(page: Path, language: str) -> list[str]:
    found: list[str] = re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(encoding="utf-8"), re.M | re.S)
    return found


def commands(page: Path, *verbs: str) -> list[list[str]]:
    """The words of each command; without verbs all of them, else those of dubito that begin so, without `dubito`."""
    lines = [line for block in blocks(page, "console") for line in block.replace("\\\n", "").splitlines()]
    assert all(line.startswith("$ ") for line in lines), "what follows a command has to be joined to it by a backslash"
    words = [shlex.split(line[2:]) for line in lines]
    if not verbs:
        return words
    return [some[1:] for some in words if tuple(some[: 1 + len(verbs)]) == ("dubito", *verbs)]


def all_commands(*verbs: str) -> list[Any]:
    return [
        pytest.param(words, id=f"{page.stem}-{number}")
        for page in PAGES
        for number, words in enumerate(commands(page, *verbs))
    ]


def options(words: list[str]) -> dict[str, Any]:
    """What dubito's own parser makes of the words after `dubito`. Raises where they cannot be parsed."""
    command: Any = typer.main.get_command(app)
    rest = list(words)
    while hasattr(command, "commands"):
        command = command.get_command(None, rest.pop(0))
    with command.make_context(words[0], rest) as context:
        return dict(context.params)


def table_rows(page: Path) -> Iterator[dict[str, str]]:
    """The rows of the page's tables, by the names in the first row of each."""
    heads: list[str] | None = None
    for line in page.read_text(encoding="utf-8").splitlines():
        if not line.startswith("|"):
            heads = None
            continue
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if heads is None:
            heads = [cell.strip("`") for cell in cells]
        elif not set(line) <= set("|-"):
            assert len(cells) == len(heads), line
            yield dict(zip(heads, cells, strict=True))


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DUBITO_LLM", "DUBITO_ENCODER", "DUBITO_CORPUS", "DUBITO_VLLM"):
        monkeypatch.delenv(name, raising=False)


def test_there_are_recipes() -> None:
    assert {page.stem for page in PAGES} == {"README", "dense", "df_rag", "seakr", "seper", "seper_retrieval", "sunar"}
    assert len(all_commands("eval")) >= 10


@pytest.mark.parametrize("words", all_commands())
def test_commands_are_of_known_programs_and_their_options_exist(words: list[str]) -> None:
    program = next(word for word in words if "=" not in word)
    assert program in {"dubito", "vllm", "jq", "python"}
    if program == "dubito":
        options(words[1:])
    if program == "python":
        assert (ROOT / words[1]).is_file()


@pytest.mark.parametrize("words", all_commands("eval"))
def test_an_evaluation_is_accepted_as_it_is_written(
    words: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    begun: list[System] = []
    specs: list[str] = []
    monkeypatch.chdir(tmp_path)
    for option, value in pairwise(words):
        if (
            option == "--corpus"
            and value not in {run_folder.POOLED, run_folder.OWN}
            and not value.startswith("qdrant:")
        ):
            Path(value).touch()

    def begin(folder: Path, systems: list[System], datasets: object, **rest: object) -> None:
        begun.extend(systems)
        raise UserFault(STOPPED)

    monkeypatch.setattr("dubito.cli.evaluating.load_dataset", lambda spec, **_: specs.append(spec))
    monkeypatch.setattr(run_folder, "begin", begin)
    done = CliRunner().invoke(app, words)
    assert STOPPED in " ".join(done.output.split()), done.output
    assert len({system.label for system in begun}) == len(begun) > 0
    kinds = [spec.partition(":")[0] for spec in specs if ":" in spec]
    assert set(kinds) <= set(KINDS)
    assert {":" in spec or spec.endswith(".jsonl") for spec in specs} == {True}


@pytest.mark.parametrize("words", all_commands("calibrate"))
def test_a_calibrations_settings_exist(words: list[str]) -> None:
    given = options(words)
    named = {name: given.get(name) for name in ("llm", "preset", "corpus", "encoder", "chunker", "k")}
    graph = GRAPH_OF_SETTING.get(words[1], words[1])
    context_for(graph_named(graph), {name: value for name, value in named.items() if value}, given["assignments"])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_what_a_command_reads_another_one_has_written(page: Path) -> None:
    written = [words[words.index("--out") + 1] for words in commands(page) if "--out" in words]
    assert len(set(written)) == len(written)
    assert {words[1] for words in commands(page, "report")} <= set(written)
    read = re.findall(r"threshold_file=([\w.]+)", " ".join(" ".join(words) for words in commands(page, "eval")))
    assert set(read) <= set(written)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_datasets_in_tables_are_of_a_known_kind(page: Path) -> None:
    named = [
        name
        for row in table_rows(page)
        for column in ("--dataset", "made into")
        for name in re.findall(r"`([^`]+)`", row.get(column, ""))
    ]
    assert {name.partition(":")[0] for name in named} <= set(KINDS)
    assert named or page.stem in {"README", "seper_retrieval"}  # whose datasets are on seper's page


@pytest.mark.parametrize("page", [page for page in PAGES if commands(page, "eval")], ids=lambda page: page.stem)
def test_rows_name_systems_of_the_page_or_say_that_they_are_not_run(page: Path) -> None:
    specs = [spec for words in commands(page, "eval") for spec in options(words)["systems"]]
    labels = {spec.partition(":")[0].partition("=")[0] for spec in specs} | {"oracle"}
    rows = [row[head] for row in table_rows(page) for head in ("system", "systems") if head in row]
    assert rows
    for row in rows:
        named = re.findall(r"`([^`]+)`", row)
        assert named or row.startswith("not run: "), row
        assert set(named) <= labels


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_what_was_not_run_here_has_no_figure(page: Path) -> None:
    for row in table_rows(page):
        assert {value for name, value in row.items() if name.startswith("ours")} <= {"—"}


def run_script(page: str, title: str) -> None:
    """Run the Python block whose first line says this."""
    path = next(one for one in PAGES if one.stem == page)
    script = next(block for block in blocks(path, "python") if title in block.split("\n", 1)[0])
    exec(compile(script, title, "exec"), {})


def only(spec: str) -> GoldQuestion:
    (question,) = load_dataset(spec).questions
    return question


def test_triviaqa_is_made_readable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("qa", "evidence/wikipedia"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "evidence/wikipedia/Lune.txt").write_text("The Lune is a river.")
    pages = [{"Title": name, "Filename": f"{name}.txt"} for name in ("Lune", "Gone")]
    answer = {"Value": "Lune", "Aliases": ["River Lune", "Lune"]}
    records = [
        {"QuestionId": "tc_1", "Question": "Which river?", "Answer": answer, "EntityPages": pages},
        {"QuestionId": "tc_2", "Question": "Without a page?", "Answer": answer, "EntityPages": pages[1:]},
    ]
    (tmp_path / "qa/wikipedia-dev.json").write_text(json.dumps({"Data": records}))
    run_script("dense", "TriviaQA")
    found = only("popqa:triviaqa.jsonl")
    assert (found.id, found.question, found.answers) == ("tc_1", "Which river?", ("Lune", "River Lune"))
    assert [(one.title, one.text) for one in found.documents] == [("Lune", "The Lune is a river.")]


def test_ambignq_is_made_readable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    several = {"type": "multipleQAs", "qaPairs": [{"question": "Which?", "answer": ["Wenning"]}]}
    single = {"type": "singleAnswer", "answer": ["Lune", "River Lune"]}
    articles = ["# Lune\n\nThe Lune is a river.", "# Wenning\n\nAnother one."]
    records = [
        {"id": "1", "question": "Which river?", "annotations": [several, single], "articles_plain_text": articles},
        {"id": "2", "question": "Which one?", "annotations": [several], "articles_plain_text": articles},
    ]
    (tmp_path / "dev_with_evidence_articles.json").write_text(json.dumps(records))
    run_script("dense", "AmbigNQ")
    found = only("popqa:ambignq.jsonl")
    assert (found.id, found.answers) == ("1", ("Lune", "River Lune"))
    assert [(one.title, one.text) for one in found.documents] == [("Lune", articles[0]), ("Wenning", articles[1])]


def test_natural_questions_are_made_readable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = {"token": ["<P>", "The", "Lune", "is", "long", "</P>"], "is_html": [True, False, False, False, False, True]}
    page = {"title": "Lune", "tokens": words}
    given: list[list[list[str]]] = [[["the Lune"], []], [[], []]]
    rows = [
        {
            "id": str(number),
            "question": {"text": f"which river {number}"},
            "document": page,
            "annotations": {"short_answers": [{"text": some} for some in answers]},
        }
        for number, answers in enumerate(given)
    ]
    library = ModuleType("datasets")
    library.load_dataset = lambda name, config, split: rows  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "datasets", library)
    run_script("dense", "Natural Questions")
    found = only("nq:nq.jsonl")
    assert (found.id, found.question, found.answers) == ("0", "which river 0", ("the Lune",))
    assert [(one.title, one.text) for one in found.documents] == [("Lune", "The Lune is long")]


def test_questions_are_parted_by_one_measurement(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    first = System("first", "dense", {"dse_threshold": 0.2})
    questions = [asked(name, "yes") for name in ("q1", "q2", "q3", "q4", "q5")]
    outcomes = [
        answered("first", "q1", "yes", uncertainty=dse(0.2)),
        answered("first", "q2", "yes", uncertainty=dse(0.21)),
        answered("first", "q3", "no", uncertainty=unsure("DSE", None, 0.2)),  # no chunk could be probed
        failed("first", "q4"),
        answered("first", "q5", "yes", uncertainty=dse(0.0)),
        *(answered("plain", name, "yes") for name in ("q1", "q3", "q4")),
        answered("plain", "q2", "no"),
        answered("plain", "q5", "no"),
    ]
    made(tmp_path / "dense-llama-3.1-8b.run", [first, vanilla()], questions, outcomes)[1].close()
    command = next(words for words in commands(ROOT / "docs/reproduce/dense.md", "report") if "--split-by" in words)
    done = CliRunner().invoke(app, [*command, "--json"])
    assert done.exit_code == 0, done.output
    found = {
        part["system"]: [(part[side]["mean"], part[side]["n"]) for side in ("certain", "uncertain")]
        for part in json.loads(done.stdout)["datasets"][0]["parts"]
    }
    assert found == {"first": [(1.0, 2), (0.5, 2)], "plain": [(0.5, 2), (0.5, 2)]}


@pytest.mark.parametrize("simple", [False, True], ids=["reasoning", "simple"])
def test_seper_is_compared_with_what_passages_are_worth(
    simple: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    context = [["Lune", ["The Lune is a river."]], ["Lancaster", ["A city."]], ["Kent", ["Another river."]]]
    facts = {"unknown 1": ["Lune", "Lancaster"], "unknown 2": ["Lune"], "known": ["Kent"]}
    records = [
        {
            "_id": name,
            "question": f"Which {name}?",
            "answer": "Lune",
            "supporting_facts": [[title, 0] for title in titles],
            "context": context,
        }
        for name, titles in facts.items()
    ]
    (tmp_path / "hotpot_dev_distractor_v1.json").write_text(json.dumps(records))
    gained = {"Lune": 0.3, "Lancaster": 0.2, "Kent": 0.1}

    def belief(value: float) -> Any:
        """Ten responses of equal weight, of which so many are right; the right ones are likelier."""
        right = round(10 * value)
        responses = [
            {"text": "Lune" if good else "Kent", "log_probability": -1.0 if good else -2.0, "tokens": 1, "weight": 0.1}
            | {"entails": [float(good)], "entailed": [0.0], "cluster": int(not good)}
            for good in [True] * right + [False] * (10 - right)
        ]
        clusters = [{"weight": value, "matches": [True]}, {"weight": 1 - value, "matches": [False]}]
        return {"seper": value, "responses": responses, "clusters": clusters}

    async def measure_pieces(pieces: list[Piece], context: Any, resources: object) -> list[Any]:
        assert (context.max_answer_tokens, context.rule) == (512, "hard")
        assert context.fitted(frozenset({"logprobs", "encoder"})).judge == "nli:microsoft/deberta-v2-xlarge-mnli"
        before = [0.6 if "unknown" not in piece.question else 0.1 for piece in pieces]
        after = [value + gained[piece.evidence[0]["title"]] for value, piece in zip(before, pieces, strict=True)]
        return [SePerResult(belief(new), belief(old)) for new, old in zip(after, before, strict=True)]

    async def equal(scorer: BertScorer, pairs: list[tuple[str, str]]) -> list[float]:
        assert scorer.name == "roberta-large"
        return [float(said == gold) for said, gold in pairs]

    monkeypatch.setattr(BertScorer, "f1", equal)
    monkeypatch.setattr(passage_utility, "measure_pieces", measure_pieces)
    page = ROOT / "docs/reproduce/seper.md"
    command = next(words for words in commands(page) if {"multi-hop.jsonl", "--bertscore"} <= set(words))
    other_datasets = [place for place, word in enumerate(command) if word.startswith(("2wiki:", "musique:"))]
    command = [word for place, word in enumerate(command) if not {place, place + 1} & set(other_datasets)]
    # of the simple datasets alone the paper leaves out what the model knew
    monkeypatch.setattr(sys, "argv", [*command[1:], *(["--known", "0.5"] if simple else [])])
    passage_utility.main()
    # a row a question; the last is known
    worth = [0.5, 0.5, 0, 1, 0, 0] + ([] if simple else [0, 0, 1])
    befores = [0.1, 0.1] + ([] if simple else [0.6])
    linear = round(correlation([*gained.values()] * len(befores), worth), 2)

    def entropy(share: float) -> float:
        return -share * math.log(share) - (1 - share) * math.log(1 - share)

    saved = [entropy(before) - entropy(before + gain) for before in befores for gain in gained.values()]
    curved = round(correlation(saved, worth), 2)
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in capsys.readouterr().out.splitlines()]
    rows = {row[0]: row[1] for row in cells if len(row) == 2}
    assert rows["questions, passages"] == f"{len(befores)}, {len(worth)}"
    assert float(rows["belief without a passage"]) == round(sum(befores) / len(befores), 2)
    assert {name: float(rows[shown].split(" ", 1)[0]) for name, shown in passage_utility.NAMES.items()} == {
        name: curved if name == "semantic_entropy" else linear for name in passage_utility.NAMES
    }


def test_two_judges_are_compared_on_the_passages_that_both_have() -> None:
    def passages(dataset: str, question: str, *soft: float) -> list[passage_utility.Passage]:
        worth = [1.0, *[0.0] * (len(soft) - 1)]
        return [
            passage_utility.Passage(dataset, question, value, 0.2, {"seper_soft": gain})
            for value, gain in zip(worth, soft, strict=True)
        ]

    ours = [*passages("hotpotqa", "1", 0.5, 0.0), *passages("musique", "1", 0.5, 0.0), *passages("musique", "2", 0.9)]
    counts = next(line for line in passage_utility.table(ours) if "questions" in line)
    assert counts == "| questions, passages | 1, 2 | 2, 3 | 3, 5 |"
    # the right sign, the wrong sign, and a question with a passage more
    theirs = [*passages("hotpotqa", "1", 0.1, 0.0), *passages("musique", "1", 0.0, 0.3)]
    both = passage_utility.of_both(ours, [*theirs, *passages("musique", "2", 0.1, 0.1)])
    # hotpotqa: 1 - 1; musique: 1 - (-1). All four: the other judge's gains (0.1, 0, 0, 0.3) and worths (1, 0, 1, 0)
    # have a covariance of 0.1 / 4 - 0.1 · 0.5 = -0.025 and deviations of √0.015 and 0.5, so a correlation of -0.41
    cells = [cell.split(" ", 1)[0] for cell in passage_utility.above(both, "seper_soft").split(" | ")[1:]]
    assert cells == ["0.00", "2.00", "1.41"]


@pytest.mark.parametrize(
    ("against", "sentence"),
    [
        ("missing.jsonl", "There is no file .*missing.jsonl: measure it first"),
        ("foreign.jsonl", "foreign.jsonl has no passages that this benchmark measured"),
        ("other.jsonl", "run.jsonl and .*other.jsonl have no question in common"),
    ],
)
def test_a_file_that_cannot_be_compared_is_refused(tmp_path: Path, against: str, sentence: str) -> None:
    passage = passage_utility.Passage("hotpotqa", "1", 1.0, 0.2, {"seper_soft": 0.5})
    write_lines(tmp_path / "run.jsonl", [passage._asdict()])
    write_lines(tmp_path / "other.jsonl", [passage._replace(question="2")._asdict()])
    write_lines(tmp_path / "foreign.jsonl", [{"id": "1"}])
    with pytest.raises(UserFault, match=sentence):
        list(passage_utility.shown(tmp_path / "run.jsonl", tmp_path / against, float("inf")))
