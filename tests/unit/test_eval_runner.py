"""The runner: what is on disk when, what a failure is, when it gives up; the folder of a run."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from dubito.errors import DubitoError, ModelFault, ModelUnavailable, UserFault
from dubito.evals import run_folder
from dubito.evals.datasets import Dataset
from dubito.evals.questions import GoldQuestion
from dubito.evals.run_folder import EvaluationRun, EvaluationTask, System, spread
from dubito.evals.runner import Asker, error_of, resources_with_memory, run_all
from dubito.evals.store import Outcome, Store
from dubito.resources.call_cache import CallMemory
from dubito.resources.resources import Resources
from dubito.retrieval.corpus import Document, read_corpus
from dubito.state.vanilla_rag import VanillaRagContext
from dubito.tests.scripted import ScriptedChat, ScriptedRetriever
from dubito.traces.recording import read

TASKS = [
    EvaluationTask(system, f"d/{number}", "cot", {}, f"Q{number}?") for number in range(6) for system in ("a", "b")
]


def outcome(task: EvaluationTask, error: Exception | None = None) -> Outcome:
    output = {"answer": f"{task.system} {task.text}"} if error is None else None
    said = None if error is None else error_of(error)
    return Outcome(system=task.system, question=task.question, output=output, error=said, seconds=0.0)


@pytest.fixture
def store(tmp_path: Path):
    with Store(tmp_path / "results.sqlite", new=True) as opened:
        yield opened


async def run(store: Store, ask, *, at_once: int = 1, retry_failed: bool = False, tasks=TASKS) -> list[Outcome]:
    heard: list[Outcome] = []
    await run_all(tasks, ask, store, at_once=at_once, retry_failed=retry_failed, on_end=heard.append)
    return heard


async def test_each_outcome_is_on_disk_before_its_place_is_given_away(store: Store, tmp_path: Path):
    kept: list[int] = []

    async def ask(task: EvaluationTask) -> Outcome:
        with Store(tmp_path / "results.sqlite") as other:
            kept.append(len(other.ended()))
        return outcome(task)

    heard = await run(store, ask)
    assert kept == list(range(len(TASKS)))
    assert [(one.system, one.question) for one in heard] == [(task.system, task.question) for task in TASKS]


async def test_as_many_are_under_way_as_asked_for(store: Store):
    under_way = most = 0

    async def ask(task: EvaluationTask) -> Outcome:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0.02)
        under_way -= 1
        return outcome(task)

    await run(store, ask, at_once=3)
    assert most == 3


async def test_what_has_an_outcome_is_not_asked_again_unless_it_failed_and_that_is_wanted(store: Store):
    asked: list[tuple[str, str]] = []

    async def ask(task: EvaluationTask) -> Outcome:
        asked.append((task.system, task.question))
        bad = UserFault("No.") if (task.system, task.question) == ("b", "d/2") and len(asked) < 10 else None
        return outcome(task, bad)

    await run(store, ask, tasks=TASKS[:6])
    assert len(asked) == 6
    await run(store, ask)
    assert len(asked) == 12
    assert [key for key, answered in store.ended().items() if not answered] == [("b", "d/2")]
    await run(store, ask, retry_failed=True)
    assert asked[12:] == [("b", "d/2")]
    assert all(store.ended().values())


async def test_an_outage_is_no_outcome_of_the_questions_it_hit(store: Store):
    down = False

    async def ask(task: EvaluationTask) -> Outcome:
        return outcome(task, ModelUnavailable("m", 4, "refused") if down else None)

    await run(store, ask, tasks=TASKS[:4])
    down = True
    with pytest.raises(DubitoError, match=r"7 questions in a row failed.*: m did not answer .*resume"):
        await run(store, ask, at_once=2)
    assert len(store.ended()) == 4
    down = False
    await run(store, ask)
    assert all(store.ended().values())
    assert len(store.ended()) == len(TASKS)


async def test_what_is_being_kept_while_a_streak_is_forgotten_does_not_stay(
    store: Store, monkeypatch: pytest.MonkeyPatch
):
    add, slow = store.add, TASKS[0]

    def added(kept: Outcome) -> None:
        if (kept.system, kept.question) == (slow.system, slow.question):
            time.sleep(0.3)
        add(kept)

    async def ask(task: EvaluationTask) -> Outcome:
        return outcome(task, ModelUnavailable("m", 4, "refused"))

    monkeypatch.setattr(store, "add", added)
    with pytest.raises(DubitoError, match="in a row failed"):
        await run(store, ask, at_once=2)
    await asyncio.sleep(0.4)
    assert store.ended() == {}


async def test_failures_among_answers_are_kept(store: Store):
    count = 0

    async def ask(task: EvaluationTask) -> Outcome:
        nonlocal count
        count += 1
        return outcome(task, ModelUnavailable("m", 4, "refused") if count % 3 else None)

    tasks = [EvaluationTask("a", f"d/{number}", "cot", {}, "?") for number in range(30)]
    await run(store, ask, tasks=tasks)
    assert list(store.ended().values()).count(False) == 20


async def test_a_system_that_never_answers_is_set_up_wrongly_and_others_are_not(store: Store):
    async def ask(task: EvaluationTask) -> Outcome:
        return outcome(task, UserFault("There is no model.") if task.system == "b" else None)

    with pytest.raises(DubitoError, match=r"6 questions in a row failed\. The last failure, of b: There is no model\."):
        await run(store, ask)
    assert {system for system, _ in store.ended()} == {"a"}


async def test_a_system_that_has_answered_may_fail_as_often_as_it_must(store: Store):
    async def ask(task: EvaluationTask) -> Outcome:
        return outcome(task, UserFault("Too long.") if task.question != "d/0" else None)

    await run(store, ask)
    assert list(store.ended().values()).count(False) == len(TASKS) - 2


def vanilla(tmp_path: Path, llm: ScriptedChat, **more) -> tuple[Asker, EvaluationTask]:
    retriever = ScriptedRetriever([1.0, 0.0], [[1.0, 0.1], [1.0, 0.2]], ["first", "second"])
    resources = resources_with_memory(CallMemory(tmp_path / "calls.sqlite"), 0, llm=llm, retriever=retriever)
    asker = Asker(resources, **more)
    return asker, EvaluationTask("plain", "d/1", "vanilla_rag", VanillaRagContext(k=2).model_dump(mode="json"), "Who?")


async def test_a_question_is_asked_of_the_graph_and_its_trace_can_be_opened(tmp_path: Path):
    llm = ScriptedChat(reply=lambda system, user: "the Lune")
    asker, task = vanilla(tmp_path, llm, traces=True)
    found = await asker(task)
    assert found.output is not None
    assert (found.output["answer"], found.error, found.remembered) == ("the Lune", None, 0)
    assert [chunk["text"] for chunk in found.output["evidence"]] == ["first", "second"]
    (tmp_path / "t.jsonl").write_bytes(found.trace)
    recording = read(tmp_path / "t.jsonl")
    assert [step.node for step in recording.steps] == ["prepare", "retrieve", "generate"]
    assert recording.ended
    assert recording.output == found.output
    again = await asker(task)
    assert (again.remembered, len(llm.calls)) == (1, 1)
    assert again.output is not None
    assert again.output["usage"]["calls"] == 1


async def test_without_traces_there_is_none(tmp_path: Path):
    asker, task = vanilla(tmp_path, ScriptedChat(reply=lambda system, user: "x"), traces=False)
    assert (await asker(task)).trace == b""


@pytest.mark.usefixtures("fast_retries")
@pytest.mark.parametrize(
    ("fault", "message", "unavailable"),
    [
        (UserFault("Ask in fewer words."), "Ask in fewer words.", False),
        (ModelFault("m", "busy"), "m did not answer after 4 attempts: busy.", True),
        (KeyError("oops"), "Unexpected KeyError: 'oops'", False),
    ],
)
async def test_whatever_ends_a_question_is_its_outcome(tmp_path: Path, fault, message, unavailable):
    asker, task = vanilla(tmp_path, ScriptedChat(faults=[fault] * 4), traces=True)
    found = await asker(task)
    assert found.output is None
    assert found.error is not None
    assert (found.error_message, found.error["unavailable"]) == (message, unavailable)
    (tmp_path / "t.jsonl").write_bytes(found.trace)
    assert read(tmp_path / "t.jsonl").error is not None


async def test_a_failed_question_keeps_what_it_cost(tmp_path: Path):
    replies: Iterator[str | Exception] = iter(["Tarn Mill was founded in 1815.", UserFault("Too long.")])

    def reply(system: str, user: str) -> str:
        if isinstance(said := next(replies), Exception):
            raise said
        return said

    asker = Asker(Resources(ScriptedChat(reply=reply)), traces=False)
    found = await asker(EvaluationTask("a", "d/0", "cot", {}, "When?"))
    assert found.error_message == "Too long."
    assert found.error is not None
    assert found.error["spent"] == {"calls": 1, "prompt_tokens": 7, "completion_tokens": 3}


def gold(number: int, *paragraphs: str) -> GoldQuestion:
    documents = tuple(Document(f"p{text}", f"T{text}", text) for text in paragraphs)
    return GoldQuestion(f"Q{number}?", (f"A{number}",), id=f"{number}", documents=documents)


PARAGRAPHS = Dataset("hotpotqa:x/dev.json", (gold(1, "one", "both"), gold(2, "two", "both")), ())
SYSTEMS = [System("a", "vanilla_rag", {"corpus": "sample", "k": 2}), System("b", "cot", {"k": 3})]


def begin(
    folder: Path, *datasets: Dataset, corpus: str | None = "pooled", systems=SYSTEMS, limit=None
) -> EvaluationRun:
    more = {"traces": True, "memory": True}
    return run_folder.begin(folder, systems, datasets or [PARAGRAPHS], corpus=corpus, limit=limit, seed=3, more=more)


def test_a_run_is_read_back_as_it_was_begun(tmp_path: Path):
    begun = begin(tmp_path / "r")
    found = run_folder.read(tmp_path / "r")
    assert (found.systems, found.questions, found.seed, found.name) == (
        begun.systems,
        begun.questions,
        3,
        begun.about["id"],
    )
    assert [task.system + task.question for task in found.tasks()] == [
        f"{system}hotpotqa/{number}" for number in (1, 2) for system in "ab"
    ]
    assert found.questions[0].answers == ("A1",)


def test_paragraphs_are_pooled_or_kept_to_their_question(tmp_path: Path):
    pooled = begin(tmp_path / "p").tasks()
    assert pooled[0].context == {"corpus": str(tmp_path / "p/corpora/hotpotqa.jsonl"), "k": 2}
    assert pooled[1].context == {"k": 3}  # nothing is looked up there
    assert [one.text for one in read_corpus(pooled[0].context["corpus"]).documents] == ["one", "both", "two"]
    own = begin(tmp_path / "o", corpus="own").tasks()
    texts = [[one.text for one in read_corpus(own[place].context["corpus"]).documents] for place in (0, 2)]
    assert texts == [["one", "both"], ["two", "both"]]
    assert begin(tmp_path / "n", corpus=None).tasks()[0].context == {"corpus": "sample", "k": 2}


def test_a_folder_may_be_moved(tmp_path: Path):
    begin(tmp_path / "r")
    (tmp_path / "r").rename(tmp_path / "moved")
    assert Path(run_folder.read(tmp_path / "moved").tasks()[0].context["corpus"]).is_file()


def test_datasets_get_on_alike(tmp_path: Path):
    long = Dataset("2wiki:x", tuple(gold(number, "x") for number in range(3)), ())
    found = begin(tmp_path / "r", long, PARAGRAPHS, systems=SYSTEMS[:1])
    assert [task.question for task in found.tasks()] == [
        "2wiki/0",
        "hotpotqa/1",
        "2wiki/1",
        "hotpotqa/2",
        "2wiki/2",
    ]


def test_datasets_of_one_kind_are_told_apart(tmp_path: Path):
    plain = Dataset("some/my questions.jsonl", (gold(1, "x"),), ())
    found = begin(tmp_path / "r", PARAGRAPHS, PARAGRAPHS, plain)
    assert [asked.dataset for asked in found.questions] == ["hotpotqa"] * 2 + ["hotpotqa-2"] * 2 + ["my_questions"]
    assert len({asked.id for asked in found.questions}) == 5


@pytest.mark.parametrize(
    ("files", "names"),
    [
        (["dev", "dev-2", "old/dev"], ["dev", "dev-2", "dev-3"]),
        (["dev", "old/dev", "dev-2"], ["dev", "dev-3", "dev-2"]),
        (["dev", "a/dev", "b/dev-2", "c/dev-2"], ["dev", "dev-3", "dev-2", "dev-2-2"]),
        (["dev", "old/Dev"], ["dev", "Dev-2"]),
    ],
)
def test_each_dataset_has_a_corpus_of_its_own(tmp_path: Path, files: list[str], names: list[str]):
    datasets = [Dataset(f"{name}.jsonl", (gold(place, f"text {place}"),), ()) for place, name in enumerate(files)]
    begun = begin(tmp_path / "r", *datasets, systems=SYSTEMS[:1])
    assert [asked.dataset for asked in begun.questions] == names
    found = [read_corpus(str(task.context["corpus"])).documents[0].text for task in begun.tasks()]
    assert found == [f"text {place}" for place in range(len(files))]


def test_a_sample_is_the_same_for_the_same_seed(tmp_path: Path):
    many = Dataset("hotpotqa:d", tuple(gold(number, "x") for number in range(40)), ())
    drawn = [[one.id for one in begin(tmp_path / name, many, limit=7).questions] for name in "xy"]
    assert drawn[0] == drawn[1]
    assert len(drawn[0]) == 7
    assert json.loads((tmp_path / "x" / "run.json").read_text())["datasets"][0]["of"] == 40


def test_what_is_there_is_not_overwritten(tmp_path: Path):
    begin(tmp_path / "r")
    with pytest.raises(UserFault, match="exists already: resume the run in it"):
        begin(tmp_path / "r")
    (tmp_path / "file").write_text("x")
    with pytest.raises(UserFault, match="exists already"):
        begin(tmp_path / "file")


def test_where_nothing_is_looked_up_no_corpus_is_made(tmp_path: Path):
    bare = Dataset("nq:nq.jsonl", (gold(1),), ())
    begun = begin(tmp_path / "r", bare, systems=SYSTEMS[1:])
    assert [task.context for task in begun.tasks()] == [{"k": 3}]
    assert not (tmp_path / "r/corpora").exists()


def test_questions_without_paragraphs_make_no_corpus(tmp_path: Path):
    with pytest.raises(UserFault, match=r"nq has questions without paragraphs.*--corpus"):
        begin(tmp_path / "r", Dataset("nq:f", (gold(1),), ()))
    assert not (tmp_path / "r").exists()


def test_two_systems_of_one_name_are_refused(tmp_path: Path):
    with pytest.raises(UserFault, match="Two systems are named 'a': rename one of them, as in other=a"):
        begin(tmp_path / "r", systems=[SYSTEMS[0], SYSTEMS[0]])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "There is no run in"),
        ("no json", "does not describe a run"),
        ("[]", "does not describe a run"),
        ('{"version": 1}', "does not describe a run"),
        ('{"version": 2, "dubito": "9.9"}', "of version 2, and this dubito reads version 1: use dubito 9.9"),
    ],
)
def test_a_folder_of_something_else_is_refused(tmp_path: Path, content: str | None, message: str):
    begin(tmp_path / "r")
    (tmp_path / "r/run.json").unlink()
    if content is not None:
        (tmp_path / "r/run.json").write_text(content)
    with pytest.raises(UserFault, match=message):
        run_folder.read(tmp_path / "r")


def test_two_at_work_on_one_folder_are_kept_apart(tmp_path: Path):
    with (
        run_folder.exclusive_lock(tmp_path),
        pytest.raises(UserFault, match="Another process evaluates"),
        run_folder.exclusive_lock(tmp_path),
    ):
        pass
    with run_folder.exclusive_lock(tmp_path):
        pass


def test_a_folder_in_which_another_process_begins_a_run_is_left_to_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    written = run_folder._with_corpora

    def while_another_begins(*arguments: Any) -> Any:
        monkeypatch.setattr(run_folder, "_with_corpora", written)
        with pytest.raises(UserFault, match="Another process evaluates"):
            begin(tmp_path / "r", systems=[System("other", "cot", {})])
        return written(*arguments)

    monkeypatch.setattr(run_folder, "_with_corpora", while_another_begins)
    begun = begin(tmp_path / "r")
    assert run_folder.read(tmp_path / "r").name == begun.name
    assert Path(begun.tasks()[0].context["corpus"]).is_file()


def test_a_folder_that_is_refused_gets_no_lock(tmp_path: Path):
    (tmp_path / "r").mkdir()
    (tmp_path / "r" / "mine").touch()
    with pytest.raises(UserFault, match="exists already"):
        begin(tmp_path / "r")
    assert [path.name for path in (tmp_path / "r").iterdir()] == ["mine"]


def test_a_process_that_ended_with_only_the_lock_leaves_the_folder_free(tmp_path: Path):
    (tmp_path / "r").mkdir()
    for name in ("lock.sqlite", "lock.sqlite-journal"):
        (tmp_path / "r" / name).touch()
    assert begin(tmp_path / "r").questions


def test_questions_are_dealt_out_to_servers_whole():
    tasks = [
        EvaluationTask(system, question, "cot", {"llm": "vllm:http://old/v1#m&states=http://s/v1"}, "?")
        for question in ("q1", "q2", "q3")
        for system in "ab"
    ]
    found = [task.context["llm"] for task in spread(tasks, ["http://one/v1", "http://two/v1"])]
    one, two = (f"vllm:http://{name}/v1#m&states=http://s/v1" for name in ("one", "two"))
    assert found == [one, one, two, two, one, one]
    with pytest.raises(UserFault, match="the chat model of a is 'embedded'"):
        spread([EvaluationTask("a", "q", "cot", {"llm": "embedded"}, "?")], ["http://one/v1"])
