"""The base of every technique's runtime context: plain settings that name models and corpora."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final, Literal, NamedTuple, Self

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, ValidationInfo, model_validator
from pydantic.config import JsonDict
from pydantic.fields import FieldInfo

from ..errors import UserFault
from ..server_url import refuse_secrets
from .capability import MEANING, Capability, Means

PRESET = "preset"
"""The value of a setting that takes the preset's value."""

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
    "chat model", "encoder", "corpus", "judge", "re-ranker", "first stage", "graph encoder", "calibration"
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

    @model_validator(mode="before")
    @classmethod
    def _fill_from_preset(cls, values: object) -> object:
        if not isinstance(values, dict):
            return values
        chosen = cls.presets.get(str(values.get("preset", "embedded")), {})
        given = {name: values.get(name, cls.model_fields[name].default) for name in chosen}
        return {**values, **{name: chosen[name] for name, value in given.items() if value == PRESET}}

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
                    f"{name} has no effect with {cause}={_as_typed(getattr(self, cause))}: change {cause}, or leave "
                    f"{name} at its default"
                )
        return self

    @classmethod
    def unchecked(cls, values: Mapping[str, Any]) -> Self:
        """A context whose settings may have no effect, such as those that a graph takes over from its parent graph."""
        return cls.model_validate(dict(values), context=UNCHECKED)

    def unused(self) -> dict[str, str]:
        """Each setting that differs from its default and has no effect, with the setting that is the cause."""
        preset = self.presets.get(self.preset, {})
        return {
            name: cause
            for name, field in type(self).model_fields.items()
            if getattr(self, name) not in (field.default, preset.get(name)) and (cause := self._made_useless_by(name))
        }

    def is_used(self, name: str) -> bool:
        """Has this setting an effect under the others?"""
        return self._made_useless_by(name) is None

    def _made_useless_by(self, name: str) -> str | None:
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
            if getattr(self, name) == AUTO and self.is_used(name):
                chosen = next((option for option in options if option.needs <= means), options[0])
                values[name], because[name] = chosen.value, chosen.because
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
    "hidden_states": f"such as {_LOCAL}, engine:, or a vllm: server started by `dubito serve --hidden-states`",
    "energy": f"which are {_LOCAL}",
}
"""The names of models with a capability, for messages."""


def _listed(capabilities: Sequence[Capability]) -> str:
    return " and ".join(MEANING[capability] for capability in capabilities)


def _as_typed(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def on_local_server(model: str) -> str:
    """The name of a chat model on a vLLM server of this machine, as the paper presets use it."""
    return f"vllm:http://127.0.0.1:8000/v1#{model}"
