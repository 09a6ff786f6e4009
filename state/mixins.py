"""Settings that several techniques share. Each is described once; a technique may give another default and title."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

from pydantic import Field

from .context import AUTO, PRESET, BaseContext, Option, names_no_resource, names_resource, unused_with

Judge = Annotated[
    str,
    Field(
        title="Entailment judge",
        description="The model that decides whether one answer entails another. llm: the chat model itself. "
        "nli:FOLDER-OR-HUB-NAME: an NLI cross-encoder. embedded: the similarity of the answers' embeddings, an "
        "approximation; similarity:T is the same with the threshold T. auto: the preset's; llm if no encoder is "
        "installed.",
        json_schema_extra=names_resource("judge", "auto", "embedded", "llm"),
    ),
]
UnitInterval = Annotated[float, Field(ge=0.0, le=1.0)]
Samples = Annotated[int, Field(le=1000, title="Samples")]
Temperature = Annotated[
    float, Field(ge=0.01, le=5.0, title="Temperature", description="The temperature at which samples are drawn.")
]
ReasoningTokens = Annotated[
    int,
    Field(
        ge=1,
        le=4096,
        title="Longest reasoning",
        description="The maximum length of a reasoning that ends in an answer, in tokens.",
    ),
]
K = Annotated[
    int,
    Field(ge=1, le=1000, title="Chunks (k)", description="The number of chunks from which the answer is generated."),
]


NO_ENCODER = "no encoder is installed"


def _of_preset(context: BaseContext, name: str) -> list[Option]:
    """The preset's value of a setting, in which `embedded` stands for the encoder."""
    value = context.presets[context.preset].get(name, "embedded")
    if value == "embedded":
        return [Option(value, frozenset({"encoder"}), "it needs no further model")]
    return [Option(value, frozenset(), "it is the paper's")]


class EncoderContext(BaseContext):
    """An encoder."""

    encoder: str = Field(
        default=PRESET,
        title="Encoder",
        description="The model that embeds texts: embedded, st:FOLDER-OR-HUB-NAME or openai:https://host/v1#model.",
        json_schema_extra=names_resource("encoder", "embedded"),
    )


class CorpusContext(EncoderContext):
    """A corpus, and how it is read and cut into chunks."""

    corpus: str = Field(
        default="sample",
        title="Corpus",
        description="sample, an index folder made by `dubito index`, a corpus file or folder to index, or "
        "qdrant:URL#collection.",
        json_schema_extra=names_resource("corpus", "sample"),
    )
    chunker: str = Field(
        default=PRESET,
        title="Chunker",
        description="words:N: windows of N words. tokens:SIZE/OVERLAP: recursive splitting. semantic:TAU/TMAX: "
        "neighbouring sentences stay together while their cosine is at least TAU, up to TMAX tokens.",
        json_schema_extra=names_no_resource(),
    )
    on_bad_record: Literal["refuse", "skip"] = Field(
        default="refuse",
        title="Broken records",
        description="refuse: a corpus with a broken record is not used. skip: broken records are left out.",
    )


class RetrievalContext(CorpusContext):
    """A corpus, and how many chunks of it the answer is generated from."""

    k: K = 5


class FirstStageContext(CorpusContext):
    """A first stage that searches the corpus."""

    first_stage: str = Field(
        default=PRESET,
        title="First stage",
        description="The search: bm25, dense (the encoder's index), splade:FOLDER-OR-HUB-NAME, or hybrid (bm25 and "
        "dense, with their ranks fused).",
        json_schema_extra=names_resource("first stage", "bm25", "dense", "hybrid"),
    )


class DocumentGraphContext(CorpusContext):
    """A document graph over the corpus."""

    graph_neighbours: int = Field(
        default=10,
        ge=0,
        le=1000,
        title="Neighbours",
        description="The number of neighbours of each document in the document graph; 0: no graph.",
    )
    graph_encoder: str = Field(
        default=PRESET,
        title="Encoder of the graph",
        description="The model whose vectors decide which documents are neighbours; best not the first stage's. "
        "embedded, st:FOLDER-OR-HUB-NAME, openai:https://host/v1#model, or colbert:FOLDER-OR-HUB-NAME, which re-scores "
        "by late interaction the nearest documents under the setting encoder.",
        json_schema_extra=names_resource("graph encoder", "embedded") | unused_with(graph_neighbours=[0]),
    )


class RerankerContext(EncoderContext):
    """A re-ranker."""

    reranker: str = Field(
        default=AUTO,
        title="Re-ranker",
        description="The model that scores documents for a question. embedded: cosine under the encoder. "
        "cross:FOLDER-OR-HUB-NAME: a cross-encoder. likelihood: how likely the chat model finds the question after the "
        "document. auto: the preset's; likelihood if no encoder is installed.",
        json_schema_extra=names_resource("re-ranker", "auto", "embedded", "likelihood"),
    )

    def options(self) -> Mapping[str, Sequence[Option]]:
        """The preset's re-ranker, else the chat model's likelihoods."""
        likelihood = Option("likelihood", frozenset({"score"}), NO_ENCODER)
        return {**super().options(), "reranker": [*_of_preset(self, "reranker"), likelihood]}


class JudgeContext(EncoderContext):
    """An entailment judge, which may be the chat model or use the encoder."""

    judge: Judge = AUTO

    def options(self) -> Mapping[str, Sequence[Option]]:
        """The preset's judge, else the chat model."""
        return {**super().options(), "judge": [*_of_preset(self, "judge"), Option("llm", frozenset(), NO_ENCODER)]}


class ThinkingContext(BaseContext):
    """A reasoning model's thinking."""

    thinking: bool = Field(
        default=False,
        title="Thinking",
        description="Let a reasoning model think before it replies. The thinking is never part of the answer.",
    )
