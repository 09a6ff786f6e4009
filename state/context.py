"""The base of every technique's runtime context: plain settings that name models and corpora.

A context is made from the settings that a caller gives. All others are what the operator configured, else the built-in
defaults: see `defaults.configured_values`. So the order is the same wherever a graph is run.
"""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, NamedTuple, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    ModelWrapValidatorHandler,
    PrivateAttr,
    ValidationError,
    ValidationInfo,
    model_validator,
)
from pydantic.config import JsonDict
from pydantic.fields import FieldInfo
from pydantic.json_schema import JsonSchemaValue

from ..config import Configuration, config
from ..errors import UserFault
from ..server_url import refuse_secrets
from .capability import MEANING, Capability, Means
from .defaults import ConfiguredValue, check_names, configured_values
from .wrong_settings import sentence_of

PRESET: Final = "preset"
"""The value of a setting that takes the preset's value."""

PROMPT_FIELD = "_prompt"
"""The end of a setting's name that is a prompt's template in Studio, as in `answer_prompt`."""

FIRST: Final = ("corpus", "llm", "k")
"""The settings that people change in every graph that has them."""

AUTO: Final = "auto"
"""The value of a setting that is chosen by what the opened models can do."""


class Option(NamedTuple):
    """A value that a setting may have. needs: what it cannot do without; because: why `auto` takes it, a clause."""

    value: str
    needs: frozenset[Means]
    because: str


def chat_model_needs(option: Option) -> frozenset[Capability]:
    """The capabilities that an option needs."""
    return frozenset(need for need in option.needs if need != "encoder")


Presets = Mapping[str, Mapping[str, str]]
"""For each preset, the values of the settings whose default is `PRESET`."""

ResourceKind = Literal[
    "chat model", "encoder", "corpus", "judge", "re-ranker", "first stage", "graph encoder", "calibration", "examples"
]


def names_resource(kind: ResourceKind, *built_in: str) -> JsonDict:
    """Mark a text setting that names a resource, for a field's `json_schema_extra`.

    built_in: the values that need no file, folder or server of the user's.
    """
    return {"resource": kind, "built_in": list(built_in)}


def names_no_resource() -> JsonDict:
    """Mark a text setting that cannot name a file, a folder or a server, for a field's `json_schema_extra`."""
    return {"resource": None}


def unused_with(**settings: Sequence[str | int]) -> JsonDict:
    """Mark a setting that has no effect while another setting has one of these values (for `json_schema_extra`)."""
    return {"unused_with": {name: list(values) for name, values in settings.items()}}


def marks_of(field: FieldInfo) -> Mapping[str, Any]:
    """The marks of a setting: `resource` and `built_in`, `unused_with`. Studio's form ignores them."""
    return field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}


class BaseContext(BaseModel):
    """The settings that every graph has. Studio shows them as a form; the CLI takes each as `--set name=value`."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, hide_input_in_errors=True)

    graph: ClassVar[str] = ""
    """The graph of these settings, whose table in a configuration file they read; each class names its own."""
    presets: ClassVar[Presets] = {}
    always_used: ClassVar[frozenset[str]] = frozenset()
    """Settings that a subclass uses although their mark `unused_with` says otherwise."""

    _because: dict[str, str] = PrivateAttr(default_factory=dict)

    preset: Literal["embedded", "paper"] = Field(
        default="embedded",
        title="Preset",
        description="embedded: small models that are installed with dubito; no server is needed. "
        "paper: the models and sizes of the paper. The preset sets every setting whose value is 'preset'.",
    )
    llm: str = Field(
        default=PRESET,
        title="Chat model",
        description="embedded, ollama:MODEL, http://host:port for any OpenAI-compatible server, "
        "vllm:http://host:8000/v1#model (&states=URL adds a server for hidden states), "
        "engine:FOLDER-OR-HUB-NAME (vLLM inside this process), openai:https://host/v1#model, hf:FOLDER-OR-HUB-NAME or "
        "gguf:/file.gguf.",
        json_schema_extra=names_resource("chat model", "embedded"),
    )
    max_answer_tokens: int = Field(
        default=64, ge=1, le=32768, title="Longest answer", description="The maximum length of the answer, in tokens."
    )
    concurrency: int = Field(
        default=16, ge=1, le=1024, title="Concurrency", description="The maximum number of model calls at a time."
    )
    prompts: dict[str, str] = Field(
        default={},
        title="Own prompts",
        description="Your templates by the names of the prompts that they replace (dubito prompts GRAPH shows all).",
    )

    if not TYPE_CHECKING:  # type checkers know the settings of each class

        def __init__(self, /, **values: Any) -> None:  # noqa: ANN401
            """Make a context; `UserFault` for a wrong setting, in one sentence."""
            with self._one_sentence(values):
                super().__init__(**values)

        __init__.__pydantic_base_init__ = True  # pydantic validates without it, as with its own

    @classmethod
    @contextmanager
    def _one_sentence(cls, values: Mapping[str, Any]) -> Iterator[None]:
        try:
            yield
        except ValidationError as fault:
            places = {name: found.place for name, found in cls.configured().items() if name not in values}
            raise UserFault(sentence_of(fault, cls.model_fields, cls._own_graph(), places)) from fault

    @classmethod
    def _own_graph(cls) -> str:
        return str(vars(cls).get("graph", ""))

    @classmethod
    def configured(cls) -> dict[str, ConfiguredValue]:
        """The values that the operator gave these settings; `UserFault` for a wrong entry of the configuration file."""
        _check_file(config())
        return configured_values(cls._own_graph(), cls.model_fields)

    @model_validator(mode="wrap")
    @classmethod
    def _add_configured(cls, values: object, handler: ModelWrapValidatorHandler[Self]) -> Self:
        if not isinstance(values, dict) or cls.model_fields.keys() <= values.keys():
            return handler(values)
        added = {name: found.value for name, found in cls.configured().items() if name not in values}
        while True:
            context = handler({**added, **values})
            without_effect = context.unused().keys() & added.keys()  # they are for other graphs, or other settings
            if not without_effect:
                return context
            added = {name: value for name, value in added.items() if name not in without_effect}

    @classmethod
    def in_order(cls) -> list[str]:
        """The settings as forms show them: those that people change in every graph, the technique's own, all others.

        A technique's own settings have the order of its class, which begins with those that people change.
        """
        introduced = {name: base for base in cls.__mro__ for name in vars(base).get("__annotations__", ())}
        shared = (__name__, f"{__package__}.mixins")
        own = [name for name, base in introduced.items() if base.__module__ not in shared]
        return [name for name in dict.fromkeys([*FIRST, *own, *cls.model_fields]) if name in cls.model_fields]

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: Any, handler: GetJsonSchemaHandler) -> JsonSchemaValue:  # noqa: ANN401
        """The schema of Studio's form: its fields in order, with the operator's values in place of the defaults."""
        schema = handler(core_schema)
        form = handler.resolve_ref_schema(schema)
        form["properties"] = {name: form["properties"][name] for name in cls.in_order()}
        if found := cls.configured():
            context = cls()
            for name in found:
                form["properties"][name]["default"] = getattr(context, name)
        return schema

    @model_validator(mode="before")
    @classmethod
    def _fill_from_preset(cls, values: object) -> object:
        if not isinstance(values, dict):
            return values
        chosen = cls.presets.get(str(values.get("preset", "embedded")), {})
        given = {name: values.get(name, cls.model_fields[name].default) for name in chosen}
        return {**values, **{name: chosen[name] for name, value in given.items() if value == PRESET}}

    def __hash__(self) -> int:
        """Equal contexts have equal hashes; pydantic's own hash fails for a mapping."""
        return hash(self.model_dump_json())

    @model_validator(mode="before")
    @classmethod
    def _gather_prompts(cls, values: object) -> object:
        """Read prompts that are typed, as JSON; take Studio's fields NAME_prompt, except those left as they are."""
        if isinstance(values, dict) and isinstance(typed := values.get("prompts"), str):
            with suppress(ValueError, RecursionError):  # no JSON is no mapping, and is refused as such
                values = {**values, "prompts": json.loads(typed)}
        own = {name for name in values if str(name).endswith(PROMPT_FIELD)} if isinstance(values, dict) else set()
        if not isinstance(values, dict) or not own:
            return values
        from ..prompt_templates import prompt  # noqa: PLC0415 - seldom needed

        given = {name.removesuffix(PROMPT_FIELD): values[name] for name in sorted(own)}
        changed = {name: text for name, text in given.items() if text not in ("", prompt(name).source)}
        rest = {name: value for name, value in values.items() if name not in own}
        named = rest.get("prompts", {})
        return {**rest, "prompts": {**named, **changed} if isinstance(named, dict) else named}

    @model_validator(mode="after")
    def _check_prompts(self) -> Self:
        if self.prompts:
            from ..prompt_templates import own_template  # noqa: PLC0415 - seldom needed

            try:
                for name, text in self.prompts.items():
                    own_template(name, text)
            except UserFault as fault:
                raise ValueError(str(fault).removesuffix(".")) from None
        return self

    @model_validator(mode="after")
    def _refuse_secrets(self) -> Self:
        for name, field in type(self).model_fields.items():
            if marks_of(field).get("resource"):
                try:
                    refuse_secrets(getattr(self, name))
                except UserFault as fault:
                    raise ValueError(str(fault).removesuffix(".")) from None
        return self

    @model_validator(mode="after")
    def _refuse_unused(self, info: ValidationInfo) -> Self:
        if info.context is not UNCHECKED:
            for name, cause in self.unused().items():
                raise ValueError(
                    f"{name} has no effect with {cause}={as_typed(getattr(self, cause))}: change {cause}, or leave "
                    f"{name} at its default"
                )
        return self

    @classmethod
    def unchecked(cls, values: Mapping[str, Any]) -> Self:
        """A context whose settings may have no effect, such as those that a graph takes over from its parent graph."""
        with cls._one_sentence(values):
            return cls.model_validate(dict(values), context=UNCHECKED)

    def for_part(self, part: type["BaseContext"]) -> Mapping[str, Any]:
        """The settings of a subgraph whose context is of the type `part`: those that both have."""
        return self.model_dump(include=set(part.model_fields))

    def parts(self) -> Iterator[tuple["BaseContext", Collection[str]]]:
        """The contexts of subgraphs with settings of their own, and the names of these settings."""
        yield from ()

    def unused(self) -> dict[str, str]:
        """Each setting that differs from its default and has no effect, with the setting that is the cause."""
        preset = self.presets.get(self.preset, {})
        return {
            name: cause
            for name, field in type(self).model_fields.items()
            if getattr(self, name) not in (field.default, preset.get(name)) and (cause := self.made_useless_by(name))
        }

    def is_used(self, name: str) -> bool:
        """Has this setting an effect under the others?"""
        return self.made_useless_by(name) is None

    def made_useless_by(self, name: str) -> str | None:
        """The setting under whose value this setting has no effect, None if it has one."""
        marks = marks_of(type(self).model_fields[name]).get("unused_with", {})
        causes = [cause for cause, values in marks.items() if getattr(self, cause) in values]
        return causes[0] if causes and name not in self.always_used else None

    def options(self) -> Mapping[str, Sequence[Option]]:
        """The values of each setting that may be `auto`, the preferred one first, under the other settings."""
        return {}

    def fitted(self, means: frozenset[Means]) -> Self:
        """These settings with a value for each `auto` with an effect: the first that has what it needs, else the first.

        means: what there is.
        """
        because: dict[str, str] = {}
        values: dict[str, str] = {}
        for name, options in self.options().items():
            # a setting may have no effect under what was chosen before
            if getattr(self, name) == AUTO and self.model_copy(update=values).is_used(name):
                chosen = next((option for option in options if option.needs <= means), options[0])
                values[name] = chosen.value
                if chosen.because:
                    because[name] = chosen.because
        if not values:
            return self
        fitted = self.unchecked(self.model_dump() | values)
        fitted._because = because
        return fitted

    @property
    def chosen(self) -> dict[str, dict[str, str]]:
        """The settings that were `auto`: the value that was chosen, and why."""
        return {name: {"value": getattr(self, name), "because": why} for name, why in self._because.items()}

    def needs(self) -> frozenset[Capability]:
        """The capabilities that the chat model must have beyond plain completion."""
        return frozenset(need for option in self._selected() for need in chat_model_needs(option))

    def uses(self) -> frozenset[Capability]:
        """The capabilities that are needed, and those that are used if the chat model has them."""
        return self.needs()

    def _selected(self) -> list[Option]:
        """The option of each setting that has an effect."""
        return [
            option
            for name, options in self.options().items()
            for option in options
            if option.value == getattr(self, name) and self.is_used(name)
        ]

    def refusal(self, llm: str, capabilities: frozenset[Capability]) -> str:
        """Why a chat model of that name with these capabilities cannot serve these settings; empty if it can.

        The sentence names the one setting to change.
        """
        for name, options in self.options().items():
            option = next((option for option in options if option.value == getattr(self, name)), None)
            if option is None or not self.is_used(name):
                continue
            missing = [need for need in sorted(chat_model_needs(option)) if need not in capabilities]
            if not missing:
                continue
            lacks = f"{name}={option.value} needs {_listed(missing)}, which the chat model '{llm}' does not give"
            possible = next((other.value for other in options if chat_model_needs(other) <= capabilities), None)
            if possible is not None:
                return f"{lacks}: set {name}={possible}."
            return f"{lacks}: set llm to a model that gives them, {MODELS_WITH[missing[0]]}."
        if missing := sorted(self.needs() - capabilities):
            return (
                f"These settings need {_listed(missing)}, which the chat model '{llm}' does not give: set llm to a "
                f"model that gives them, {MODELS_WITH[missing[0]]}."
            )
        return ""


UNCHECKED = "unchecked"

_LOCAL = "embedded, hf: or gguf:"
MODELS_WITH: Mapping[Capability, str] = {
    "logprobs": f"such as vllm:URL, {_LOCAL}",
    "option_probabilities": f"such as vllm:URL, {_LOCAL}",
    "score": f"such as vllm:URL, {_LOCAL}",
    "seed": f"such as vllm:URL, {_LOCAL}",
    "pattern": "such as vllm:URL or engine:",
    "hidden_states": f"such as {_LOCAL}, engine:, or a vllm: server started by `dubito serve --hidden-states`",
    "inner_states": f"such as {_LOCAL} or engine:",
    "energy": f"which are {_LOCAL}",
}
"""The names of models with a capability, for messages."""


def _listed(capabilities: Sequence[Capability]) -> str:
    return " and ".join(MEANING[capability] for capability in capabilities)


def as_typed(value: object) -> str:
    """A value as it is typed behind `--set name=`."""
    return value if isinstance(value, str) else json.dumps(value)


def on_local_server(model: str) -> str:
    """The name of a chat model on a vLLM server of this machine, as the paper presets use it."""
    return f"vllm:http://127.0.0.1:8000/v1#{model}"


def all_contexts() -> list[type[BaseContext]]:
    """The settings of all techniques, and the mixins that they are made of."""
    package = str(__package__)
    for module in iter_modules(import_module(package).__path__):
        import_module(f"{package}.{module.name}")
    found: list[type[BaseContext]] = [BaseContext]
    for context in found:  # grows while it is read
        found += [below for below in context.__subclasses__() if below not in found]
    return found


@lru_cache(maxsize=1)
def _check_file(file: Configuration) -> None:
    """Check each file once; without a file nothing is imported."""
    if file.path:
        file.variables_of_keys()
        check_names({name: context.model_fields for context in all_contexts() if (name := context._own_graph())})
