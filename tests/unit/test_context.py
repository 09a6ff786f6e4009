"""The contexts: what the presets decide, what the caller decides, and what Studio's form is made from."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, get_args, get_type_hints

import dubito
import pytest
from dubito.errors import UserFault
from dubito.graphs.context_from_text import context_for
from dubito.graphs.registry import graph_named
from dubito.prompt_templates import PROMPTS
from dubito.state.baselines import FlareContext, IterRetgenContext
from dubito.state.capability import Capability
from dubito.state.context import PRESET, BaseContext, marks_of
from dubito.state.dense_rag import DenseRagContext
from dubito.state.df_rag import DFRagContext
from dubito.state.mixins import SearchContext
from dubito.state.reasoning import ReasoningContext, SearchingContext
from dubito.state.seakr import SeaKRContext
from dubito.state.seper import SePerContext
from dubito.state.sunar import SunarContext
from dubito.state.vanilla_rag import VanillaRagContext
from pydantic import ValidationError

CONTEXTS: list[type[BaseContext]] = [
    DFRagContext, VanillaRagContext, DenseRagContext, SunarContext, SeaKRContext, SePerContext, ReasoningContext,
    SearchingContext, FlareContext, IterRetgenContext,
]  # fmt: skip
EXPORTED: dict[str, str] = {
    name: entry["path"]
    for name, entry in json.loads((Path(dubito.__file__).parent / "langgraph.json").read_text())["graphs"].items()
}


def defaults(context: type[BaseContext]) -> dict[str, Any]:
    """What Studio's form sends when nobody touched it: every setting, each with its default."""
    return {name: field.default for name, field in context.model_fields.items()}


def exported(name: str) -> Any:
    module, _, attribute = EXPORTED[name].partition(":")
    return getattr(import_module(module), attribute)


# --- presets ---


@pytest.mark.parametrize(
    ("lambdas", "levels"),
    [
        ("0.1:1:0.1", (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)),
        ("0:1:0.3", (0.0, 0.3, 0.6, 0.9)),
        (" 0.5 : 0.7 : 0.1 ", (0.5, 0.6, 0.7)),
        ("1,0.2,0.20", (0.2, 1.0)),
        ([0.25, 0.75], (0.25, 0.75)),
    ],
)
def test_levels_are_a_range_or_a_list(lambdas: Any, levels: tuple[float, ...]) -> None:
    assert DFRagContext(lambdas=lambdas).levels() == levels


@pytest.mark.parametrize(
    ("lambdas", "problem"),
    [
        ("", "must be START:END:STEP"),
        ("many", "must be START:END:STEP"),
        ("0.1:1", "must be START:END:STEP"),
        ("0.1:1:0", "must be START:END:STEP"),
        ("0.1:1:-0.1", "must be START:END:STEP"),
        ("0.1:nan:0.1", "must be START:END:STEP"),
        ("0.1:1e999:0.1", "must be START:END:STEP"),
        ("1:0.1:0.1", "must be START:END:STEP"),
        ("0.5,1.5", "of levels from 0 to 1"),
        ("nan,0.5", "of levels from 0 to 1"),
        ([], "must be START:END:STEP"),
        ("0.5", "two levels or more: for one λ use the graph vanilla_rag"),
        ("0.5,0.5", "two levels or more"),
        ("0.5:0.5:0.1", "two levels or more"),
        ("0:1:0.001", "at most 101 levels, not 1001"),
        (5, "must be text"),
    ],
)
def test_levels_that_cannot_be_used_are_refused_in_one_sentence(lambdas: Any, problem: str) -> None:
    with pytest.raises(UserFault, match=f"^lambdas is .* and .*{problem}") as caught:
        DFRagContext(lambdas=lambdas)
    assert str(caught.value).count(". ") == 0


def test_the_embedded_preset_is_the_default() -> None:
    context = DFRagContext()
    assert (context.llm, context.encoder, context.chunker) == ("embedded", "embedded", "words:100")
    assert context.evaluator == "auto"
    assert context.corpus == "sample"
    assert VanillaRagContext().llm == "embedded"


def test_the_paper_preset_holds_what_the_paper_used() -> None:
    context = DFRagContext(preset="paper").fitted(frozenset({"score"}))
    assert context.llm == "vllm:http://127.0.0.1:8000/v1#meta-llama/Llama-3.3-70B-Instruct"
    assert context.encoder == "st:sentence-transformers/multi-qa-mpnet-base-cos-v1"
    assert (context.chunker, context.evaluator, context.k) == ("words:300", "report", 5)
    assert VanillaRagContext(preset="paper").llm == context.llm


@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize("preset", ["embedded", "paper"])
def test_every_default_sent_explicitly_is_the_same_as_nothing_sent(context: type[BaseContext], preset: str) -> None:
    form = {**defaults(context), "preset": preset}
    assert context(**form) == context(preset=preset)
    assert PRESET not in context(**form).model_dump().values()


@pytest.mark.parametrize("context", CONTEXTS)
def test_every_setting_left_to_the_preset_is_decided_by_every_preset(context: type[BaseContext]) -> None:
    left = {name for name, default in defaults(context).items() if default == PRESET}
    assert left >= {"llm"}
    open_settings = left | {"judge", "reranker"} & context.model_fields.keys()  # of which auto takes the preset's
    optional = {"reranker"} if issubclass(context, SearchContext) else set()
    presets = set(get_args(get_type_hints(context)["preset"]))
    assert set(context.presets) == presets
    assert presets - {"authors"} == {"embedded", "paper"}
    for chosen in context.presets.values():
        assert open_settings - optional <= set(chosen) <= open_settings


@pytest.mark.parametrize("preset", ["embedded", "paper"])
@pytest.mark.parametrize(
    ("name", "value"),
    [("llm", "gguf:/m.gguf"), ("encoder", "st:/e"), ("chunker", "tokens:512/64"), ("evaluator", "choice"), ("k", 9)],
)
def test_an_explicit_value_wins_over_the_preset(preset: Any, name: str, value: Any) -> None:
    context = DFRagContext(**{**defaults(DFRagContext), "preset": preset, name: value})
    assert getattr(context, name) == value
    others = DFRagContext(preset=preset).model_dump(exclude={name})
    assert context.model_dump(exclude={name}) == others


def test_an_explicit_value_of_the_other_preset_wins_too() -> None:
    assert DFRagContext(preset="paper", llm="embedded").llm == "embedded"
    assert DFRagContext(preset="embedded", evaluator="report").evaluator == "report"


def test_a_dump_reads_back_equal() -> None:
    for preset in DFRagContext.presets:
        context = DFRagContext(preset=preset, k=3)
        assert DFRagContext(**json.loads(context.model_dump_json())) == context


# --- what is refused ---


@pytest.mark.parametrize(
    ("context", "settings", "message"),
    [
        (DFRagContext, {"k": 0}, "k is '0' and must be a whole number from 1 to 1000"),
        (
            DFRagContext,
            {"evaluator": "oracle"},
            "evaluator is 'oracle' and must be auto, report, choice or likelihood",
        ),
        (DFRagContext, {"sampling": "greedy"}, "uniform or binary"),
        (DFRagContext, {"preset": "tiny"}, "must be embedded or paper"),
        (DFRagContext, {"preset": None}, "must be embedded or paper"),
        (DFRagContext, {"preset": ["paper"]}, "must be embedded or paper"),
        (DFRagContext, {"llm": None}, "llm is 'None' and must be text"),
        (DFRagContext, {"lambda": 0.5}, "no setting 'lambda' \\(did you mean lambdas\\?\\): use answer_samples"),
        (
            DFRagContext,
            {"incremental_context": True, "evaluator": "likelihood"},
            "set evaluator to 'report', not 'likelihood'",
        ),
        (DFRagContext, {"incremental_context": True, "evaluator": "choice"}, "not 'choice'"),
        (VanillaRagContext, {"fixed_lambda": 1.01}, "must be a number from 0.0 to 1.0"),
        (VanillaRagContext, {"fixed_lambda": float("nan")}, "must be a number from 0.0 to 1.0"),
    ],
)
def test_what_is_out_of_bounds_is_refused(context: type[BaseContext], settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserFault, match=message):
        context(**settings)


@pytest.mark.parametrize(
    ("context", "settings", "cause"),
    [
        (VanillaRagContext, {"fixed_lambda": 0.5}, "selection=top_k"),
        (VanillaRagContext, {"selection": "long_context", "k": 3}, "selection=long_context"),
        (DFRagContext, {"top_n": 50}, "search=exact"),
        (DenseRagContext, {"adaptive": False, "rechunker": "semantic:0.1/64"}, "adaptive=false"),
        (DenseRagContext, {"refinement": "prune", "refill_near": "certain"}, "refinement=prune"),
        (SunarContext, {"penalty": "none", "judge": "llm"}, "penalty=none"),
        (SunarContext, {"tolerance": 0.1}, "patience=0"),
        (SunarContext, {"meta_evidence": False, "meta_documents": 3}, "meta_evidence=false"),
        (SeaKRContext, {"estimator": "prompt", "samples": 5}, "estimator=prompt"),
        (SeaKRContext, {"judge": "llm"}, "estimator=auto"),
        (SePerContext, {"cluster_rule": "loose"}, "rule=soft"),
        (SePerContext, {"match_rule": "bidirectional"}, "rule=soft"),
        (SePerContext, {"rule": "hard", "direction": "forward"}, "rule=hard"),
        (SePerContext, {"entailment_threshold": "0.5"}, "rule=soft"),
        (SePerContext, {"cluster_founder": "last"}, "rule=soft"),
        (SePerContext, {"judge": "similarity:0.5", "question_mark": True}, "judge=similarity:0.5"),
    ],
)
def test_a_setting_without_effect_is_refused(context: type[BaseContext], settings: dict[str, Any], cause: str) -> None:
    name, setting = list(settings)[-1], cause.partition("=")[0]
    message = f"{name} has no effect with {cause}: change {setting}, or leave {name} at its default"
    with pytest.raises(UserFault, match=message):
        context(**settings)
    assert getattr(context.unchecked(settings), name) == settings[name], "such as the settings of a parent graph"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"several_answers": "union"}, "union needs clusters, which rule=soft has not: set rule=hard"),
        (
            {"rule": "hard", "entailment_threshold": "0"},
            "is '0' and must be a number above 0, at most 1, or 'likeliest'",
        ),
        ({"rule": "hard", "entailment_threshold": 1.5}, "is '1.5' and must be a number above 0, at most 1"),
        ({"rule": "hard", "entailment_threshold": "nan"}, "must be a number above 0, at most 1"),
        ({"rule": "hard", "entailment_threshold": "half"}, "must be a number above 0, at most 1"),
    ],
)
def test_settings_of_seper_that_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserFault, match=message):
        SePerContext(**settings)
    with pytest.raises(UserFault, match=message):
        SePerContext.unchecked(settings)


def test_a_setting_without_effect_may_have_its_default_or_the_presets_value() -> None:
    assert SeaKRContext(judge="preset") == SeaKRContext(judge="embedded")
    assert SeaKRContext(preset="paper", judge="llm").judge == "llm"
    assert VanillaRagContext(fixed_lambda=0.7) == VanillaRagContext()


@pytest.mark.parametrize("context", CONTEXTS)
def test_settings_that_make_others_useless_exist_and_can_have_those_values(context: type[BaseContext]) -> None:
    for name, field in context.model_fields.items():
        for cause, values in marks_of(field).get("unused_with", {}).items():
            for value in values:
                made = context.unchecked({cause: value})
                assert getattr(made, cause) == value
                assert not made.is_used(name)
            assert context.unchecked({}).is_used(name) or getattr(context(), cause) in values


@pytest.mark.parametrize(
    ("context", "absent"),
    [
        (ReasoningContext, {"corpus", "chunker", "k", "on_bad_record", "thinking"}),
        (SearchingContext, {"thinking"}),
        (FlareContext, {"thinking"}),
        (SeaKRContext, {"thinking"}),
        (IterRetgenContext, {"thinking"}),
    ],
)
def test_a_setting_that_no_node_reads_is_not_offered(context: type[BaseContext], absent: set[str]) -> None:
    assert not absent & context.model_fields.keys()


@pytest.mark.parametrize("context", CONTEXTS)
def test_a_context_cannot_be_changed_and_can_be_a_key(context: type[BaseContext]) -> None:
    one, same, other = context(concurrency=3), context(concurrency=3), context(concurrency=4)
    with pytest.raises(ValidationError, match="frozen"):
        one.concurrency = 4  # type: ignore[misc]
    assert hash(one) == hash(same)
    assert len({one: 1, same: 2, other: 3}) == 2


def test_what_settings_need_beyond_plain_completion() -> None:
    every: frozenset[Capability] = frozenset({"score", "logprobs", "hidden_states"})
    assert DFRagContext().fitted(every).needs() == {"score"}
    assert DFRagContext().fitted(every - {"score"}).needs() == frozenset()
    assert DFRagContext(preset="paper").fitted(every).needs() == frozenset()
    assert DFRagContext(evaluator="choice").needs() == frozenset()
    assert VanillaRagContext().needs() == frozenset()
    assert SePerContext().needs() == {"logprobs"}


# --- Studio's form ---


@pytest.mark.parametrize("name", EXPORTED)
def test_the_schemas_of_every_exported_graph_are_there(name: str) -> None:
    # where one cannot be made, the server shows an empty form and says nothing
    graph = exported(name)
    assert graph.name == name
    assert graph.checkpointer is None
    more = {
        "dense": {"chunks"},
        "dense_rag": {"chunks"},
        "neighbourhood": {"query"},
        "seper": {"answers", "chunks"},
    }.get(name, set())
    given = {"messages"} if name.endswith("_chat") else {"question", *more}
    assert set(graph.get_input_jsonschema()["properties"]) == given
    assert set(graph.get_input_jsonschema()["required"]) == given - {"chunks", "query"}
    assert {"answer", "evidence", "usage", "warnings"} <= set(graph.get_output_jsonschema()["properties"])
    assert graph.get_context_jsonschema() is not None


@pytest.mark.parametrize("name", EXPORTED)
def test_type_checkers_know_that_an_output_has_all_its_keys(name: str) -> None:
    assert exported(name).builder.output_schema.__optional_keys__ == frozenset()


@pytest.mark.parametrize("name", EXPORTED)
def test_a_form_begins_with_the_settings_of_every_graph_and_then_its_own(name: str) -> None:
    graph = exported(name)
    shown = list(graph.get_context_jsonschema()["properties"])
    context = graph.builder.context_schema
    shared = {
        setting
        for one in context.__mro__
        if one.__module__ in {"dubito.state.context", "dubito.state.mixins"}
        for setting in one.__annotations__
    }
    first = [setting for setting in ("corpus", "llm", "k") if setting in shown]
    own = [setting for setting in shown if setting in context.model_fields.keys() - shared - {*first}]
    assert shown[: len(first) + len(own)] == [*first, *own]


@pytest.mark.parametrize(
    ("name", "begins"),
    [
        ("cot", ["llm", "max_steps", "max_step_tokens", "preset"]),
        ("df_rag", ["corpus", "llm", "k", "evaluator", "lambdas"]),
        ("seakr", ["corpus", "llm", "k", "estimator", "retrieval_threshold"]),
        ("sunar_chat", ["corpus", "llm", "k", "decomposition", "max_hops"]),
        ("dense_rag_reviewed", ["corpus", "llm", "k", "max_rounds", "refinement"]),
    ],
)
def test_what_people_change_comes_first(name: str, begins: list[str]) -> None:
    assert list(exported(name).get_context_jsonschema()["properties"])[: len(begins)] == begins


OF_NO_NODE = {
    *("preset", "llm", "concurrency", "prompts", "encoder", "corpus", "chunker", "on_bad_record", "where"),
    "rung_settings",  # of the graphs that a cascade asks
}


@pytest.mark.parametrize(
    ("name", "setting", "nodes"),
    [
        ("df_rag", "k", {"candidates"}),
        ("df_rag", "evaluator", {"select_lambdas", "evaluate", "choose_lambda"}),
        ("df_rag", "lambdas", {"candidates"}),  # `context.levels()` reads it
        ("dense", "judge", {"entail", "check_certainty", "cite"}),  # `resources.judge(context)` reads it
        ("dense_rag", "adaptive", {"prepare", "dense"}),  # it decides which node follows
        ("sunar", "penalty", {"prepare", "score_batch", "update_frontier"}),  # in the subgraph, too
        (
            "seakr",
            "at",
            {
                *("prepare", "pseudo_generate", "try_snippet", "rerank_snippets"),
                *("reason_over_rationales", "reason_over_knowledge"),
            },
        ),  # a table of estimators calls `context.quantity()`
    ],
)
def test_a_setting_stands_at_the_nodes_whose_code_reads_it(name: str, setting: str, nodes: set[str]) -> None:
    assert set(exported(name).get_context_jsonschema()["properties"][setting]["langgraph_nodes"]) == nodes


@pytest.mark.parametrize("name", EXPORTED)
def test_every_setting_of_every_exported_graph_explains_itself(name: str) -> None:
    graph = exported(name)
    context: type[BaseContext] = graph.context_schema
    schema = graph.get_context_jsonschema()
    assert schema["additionalProperties"] is False
    of_prompts = {prompt: shown for prompt, shown in schema["properties"].items() if prompt.endswith("_prompt")}
    for prompt, shown in of_prompts.items():
        assert shown["default"] == PROMPTS[prompt.removesuffix("_prompt")].source
        assert (shown["type"], shown["langgraph_type"]) == ("string", "prompt")
        assert nodes_of(graph).intersection(shown["langgraph_nodes"]), "Studio shows it at a node"
    settings = {setting: shown for setting, shown in schema["properties"].items() if setting not in of_prompts}
    assert set(settings) == set(context.model_fields)
    assert "required" not in schema
    hints = get_type_hints(context)
    for setting, shown in settings.items():
        assert shown["title"]
        assert shown["title"] == context.model_fields[setting].title, "not made up from the name"
        assert shown["description"].endswith(".")
        assert bool(nodes_of(graph).intersection(shown.get("langgraph_nodes", ()))) != (setting in OF_NO_NODE), setting
        assert shown["default"] == context.model_fields[setting].default
        assert shown.get("resource") == marks_of(context.model_fields[setting]).get("resource")
        if hints[setting] in (int, float):
            assert {"minimum", "maximum"} <= set(shown), f"{setting} has no range"
        if getattr(hints[setting], "__origin__", None) is Literal:
            assert shown["enum"] == list(get_args(hints[setting]))
        assert shown["type"] in {"string", "integer", "number", "boolean"} or setting == "prompts", (
            "the form can show it"
        )


@cache
def nodes_of(graph: Any) -> set[str]:
    return {node.rpartition(":")[2] for node in graph.get_graph(xray=True).nodes}


def test_importing_the_graphs_opens_nothing() -> None:
    modules = {path.partition(":")[0] for path in EXPORTED.values()}
    code = (
        f"import sys, {', '.join(sorted(modules))}\n"
        "print([m for m in ('torch', 'transformers', 'sentence_transformers', 'faiss', 'openai') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("name", ["llm", "encoder", "corpus"])
@pytest.mark.parametrize("url", ["http://me:canary@host/v1", "https://host/v1?key=canary"])
def test_a_url_that_may_hold_a_key_is_refused_and_not_quoted(name, url):
    values = {"llm": f"vllm:http://host/v1#m&states={url}", "encoder": f"openai:{url}#m", "corpus": f"qdrant:{url}#c"}
    value = values[name]
    with pytest.raises(ValidationError) as raised:
        VanillaRagContext.model_validate({name: value})
    assert "canary" not in str(raised.value)
    with pytest.raises(UserFault) as caught:
        context_for(graph_named("vanilla_rag"), {name: value}, [])
    assert str(caught.value).endswith("as HOST=KEY, and leave it out of the URL.")
    assert "canary" not in str(caught.value)


@pytest.mark.parametrize(
    "place", ["user:canary@host/db", ":canary@host/db", "host/db?password=canary", "u:ca/nary@h/d"]
)
def test_a_database_url_with_a_password_is_refused_and_not_quoted(place):
    with pytest.raises(UserFault, match="put it into the environment variable PGPASSWORD") as raised:
        VanillaRagContext(corpus=f"pgvector:postgresql://{place}#c")
    assert "canary" not in str(raised.value)
    VanillaRagContext(corpus="pgvector:postgresql://user@host:5432/db?sslmode=require#c")
