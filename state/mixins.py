"""Settings that several techniques share. Each is described once; a technique may give another default and title."""

from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo, model_validator

from .capability import Capability
from .context import AUTO, PRESET, UNCHECKED, BaseContext, Option, names_no_resource, names_resource, unused_with
from .where import as_text, condition_of

JUDGE = names_resource("judge", "auto", "embedded", "llm", "llm:calibrated")

Judge = Annotated[
    str,
    Field(
        title="Entailment judge",
        description="The model that decides whether one answer entails another. llm: the chat model itself; "
        "llm:calibrated: without its preference for one of the labels. nli:FOLDER-OR-HUB-NAME: an NLI cross-encoder. "
        "embedded: the similarity of the answers' embeddings, an approximation; similarity:T is the same with the "
        "threshold T. auto: the preset's; the chat model if no encoder is installed.",
        json_schema_extra=JUDGE,
    ),
]
Diversity = Literal["gmmr", "mmr_centroid", "mmr"]
"""The functions that select diverse chunks: see `retrieval.gmmr`."""
UnitInterval = Annotated[float, Field(ge=0.0, le=1.0)]
Samples = Annotated[int, Field(le=1000, title="Samples")]
Temperature = Annotated[
    float, Field(ge=0.01, le=5.0, title="Temperature", description="The temperature at which samples are drawn.")
]
TopP = Annotated[
    float,
    Field(
        ge=0.01,
        le=1.0,
        title="Top-p",
        description="Sample among the most likely tokens that together have this probability.",
    ),
]
TopK = Annotated[
    int,
    Field(
        ge=0,
        le=1_000_000,
        title="Top-k",
        description="Sample among this many of the most likely tokens; 0: among all.",
    ),
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


def _checked_filter(text: str) -> str:
    if text:
        condition_of(text)
    return text


class CorpusContext(EncoderContext):
    """A corpus, and how it is read and cut into chunks."""

    corpus: str = Field(
        default="sample",
        title="Corpus",
        description="sample, an index folder made by `dubito index`, a corpus file or folder to index, or "
        "a collection of a vector database: qdrant:URL#collection, pgvector:URL#collection or milvus:URL#collection.",
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
    where: Annotated[str, BeforeValidator(as_text), AfterValidator(_checked_filter)] = Field(
        default="",
        title="Filter",
        description='Search only the chunks whose metadata pass, as JSON: {"year": {"$gte": 2020}}. Empty: all chunks.',
        json_schema_extra=names_no_resource(),
    )


class RetrievalContext(CorpusContext):
    """A corpus, and how many chunks of it the answer is generated from."""

    k: K = 5


FIRST_STAGE = names_resource("first stage", "bm25", "dense", "hybrid")

FirstStage = Annotated[
    str,
    Field(
        title="First stage",
        description="The search: bm25, dense (the encoder's index), splade:FOLDER-OR-HUB-NAME, or hybrid (bm25 and "
        "dense, with their ranks fused).",
        json_schema_extra=FIRST_STAGE,
    ),
]
TopN = Annotated[int, Field(ge=1, le=100_000, title="Candidates (N)")]


class FirstStageContext(CorpusContext):
    """A first stage that searches the corpus."""

    first_stage: FirstStage = PRESET

    @property
    def uses_vectors(self) -> bool:
        """Are the chunks' vectors needed, whatever finds the chunks?"""
        return False


class DocumentGraphContext(FirstStageContext):
    """A first stage, and a document graph over the corpus."""

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

    @property
    def uses_vectors(self) -> bool:
        """The graph is made from vectors."""
        return True


RERANKER = names_resource("re-ranker", "auto", "embedded", "likelihood")


class RerankerContext(EncoderContext):
    """A re-ranker."""

    reranker: str = Field(
        default=AUTO,
        title="Re-ranker",
        description="The model that scores documents for a question. embedded: cosine under the encoder. "
        "cross:FOLDER-OR-HUB-NAME: a cross-encoder. likelihood: how likely the chat model finds the question after the "
        "document. auto: the preset's; likelihood if no encoder is installed.",
        json_schema_extra=RERANKER,
    )

    def options(self) -> Mapping[str, Sequence[Option]]:
        """The preset's re-ranker, else the chat model's likelihoods."""
        likelihood = Option("likelihood", frozenset({"score"}), NO_ENCODER)
        return {**super().options(), "reranker": [*_of_preset(self, "reranker"), likelihood]}


RerankN = Annotated[
    int,
    Field(
        ge=0,
        le=100_000,
        title="Chunks re-ranked",
        description="Re-rank this many of the best chunks of the first stage, and keep the best k; 0: no re-ranking.",
    ),
]


class SearchContext(RerankerContext, FirstStageContext, RetrievalContext):
    """A search for the question, whose best chunks may be re-ranked (SePer, section 5.5)."""

    first_stage: FirstStage = "dense"
    rerank_n: RerankN = 0
    reranker: str = Field(
        default=AUTO,
        title="Re-ranker",
        description="The model that scores chunks for the question. cross:FOLDER-OR-HUB-NAME: a cross-encoder. "
        "likelihood: how likely the chat model finds the question after the chunk. embedded: the encoder's similarity, "
        "if the first stage is another. auto: the preset's, else likelihood.",
        json_schema_extra=RERANKER | unused_with(rerank_n=[0]),
    )

    def options(self) -> Mapping[str, Sequence[Option]]:
        """The preset's re-ranker if it is not the search's own similarity, else the chat model's likelihoods."""
        own = self.presets.get(self.preset, {}).get("reranker")
        papers = [Option(own, frozenset(), "it is the paper's")] if own else []
        likelihood = Option("likelihood", frozenset({"score"}), "it needs no further model")
        return {**super().options(), "reranker": [*papers, likelihood]}

    def made_useless_by(self, name: str) -> str | None:
        """Where nothing is re-ranked, there is nothing for a re-ranker."""
        return (super().made_useless_by("rerank_n") if name == "reranker" else None) or super().made_useless_by(name)

    @model_validator(mode="after")
    def _reranks_something_else(self, info: ValidationInfo) -> Self:
        if info.context is not UNCHECKED and self.rerank_n and self.is_used("reranker"):
            if self.rerank_n < self.k:
                raise ValueError(f"rerank_n is {self.rerank_n} and k is {self.k}: re-rank at least k chunks")
            if self.reranker == "embedded" and self.first_stage == "dense":
                raise ValueError(
                    "reranker=embedded scores chunks by the similarity that found them: set reranker to "
                    "cross:FOLDER-OR-HUB-NAME or likelihood, or another first_stage"
                )
        return self


class JudgeContext(EncoderContext):
    """An entailment judge, which may be the chat model or use the encoder."""

    judge: Judge = AUTO

    def options(self) -> Mapping[str, Sequence[Option]]:
        """The preset's judge, else the chat model."""
        chat_model = [
            Option("llm:calibrated", frozenset({"option_probabilities"}), NO_ENCODER),
            Option("llm", frozenset(), NO_ENCODER),
        ]
        return {**super().options(), "judge": [*_of_preset(self, "judge"), *chat_model]}


UNSAMPLED = ["own", "likelihood"]
"""The values of the setting `uncertainty` for which no answers are sampled."""


class AnsweringContext(JudgeContext):
    """How the uncertainty of an answer is measured, and whether the answer is given then.

    measures_itself: does the technique measure an uncertainty of its own?
    """

    measures_itself: ClassVar[bool] = False

    uncertainty: Literal["own", "likelihood", "semantic_entropy", "disagreement", "combined"] = Field(
        default="own",
        title="Uncertainty of the answer",
        description="own: what the technique itself measures. likelihood: the negative log-likelihood of the answer "
        "that the model writes from the evidence. semantic_entropy: the entropy over the meanings of answers sampled "
        "from the evidence. disagreement: the share of these that mean something else than the answer. combined: all "
        "of these, from which a calibration finds the probability of an error; the entropy until then.",
    )
    answer_samples: int = Field(
        default=10,
        ge=2,
        le=1000,
        title="Answers sampled",
        description="The number of answers that are sampled to measure the uncertainty.",
        json_schema_extra=unused_with(uncertainty=UNSAMPLED),
    )
    answer_temperature: Temperature = Field(default=1.0, json_schema_extra=unused_with(uncertainty=UNSAMPLED))
    judge: Judge = Field(default=AUTO, json_schema_extra=JUDGE | unused_with(uncertainty=UNSAMPLED))
    calibration: str = Field(
        default="",
        title="Calibration",
        description="A file made by `dubito calibrate`: answers that are less certain than it allows are withheld. "
        "Empty: every answer is given.",
        json_schema_extra=names_resource("calibration", ""),
    )

    def made_useless_by(self, name: str) -> str | None:
        """Sampled answers are judged, also where the technique itself judges nothing or has no use for an encoder."""
        sampled = self.uncertainty not in UNSAMPLED
        if name == "judge" and sampled:
            return None
        if name == "encoder" and not sampled and "corpus" not in type(self).model_fields:
            return "uncertainty"
        return super().made_useless_by(name)

    @model_validator(mode="after")
    def _decides_by_something(self, info: ValidationInfo) -> Self:
        if (
            info.context is not UNCHECKED
            and self.calibration
            and self.uncertainty == "own"
            and not self.measures_itself
        ):
            raise ValueError(
                f"calibration needs an uncertainty, and {self.graph} measures none of its own: set uncertainty to what "
                "the calibration was made with"
            )
        return self

    def needs(self) -> frozenset[Capability]:
        """Log-probabilities, to measure the likelihood."""
        return super().needs() | (frozenset({"logprobs"}) if self.uncertainty == "likelihood" else frozenset())


class CitingContext(AnsweringContext):
    """Citations of an answer that is made from chunks.

    writes_marks: does the model write the marks with the answer, which they may then change? Elsewhere it repeats the
    finished answer with marks.
    """

    writes_marks: ClassVar[bool] = False

    cite: bool = Field(
        default=False,
        title="Citations",
        description="Put marks such as [1] behind what a passage supports. The entailment judge checks whether it "
        "does; a judge that measures similarity cannot.",
    )

    def made_useless_by(self, name: str) -> str | None:
        """Citations are judged, also where nothing else is."""
        return None if name == "judge" and self.cite else super().made_useless_by(name)


class ExamplesContext(BaseContext):
    """In-context examples of reasoning."""

    examples: str = Field(
        default="10",
        title="In-context examples",
        description="How many of the ten built-in examples the prompts show, 0 to 10; or a JSON file of others, a list "
        "of objects with question, facts (a list of sentences) and answer.",
        json_schema_extra=names_resource("examples", *map(str, range(11))),
    )


class ThinkingContext(BaseContext):
    """A reasoning model's thinking."""

    thinking: bool = Field(
        default=False,
        title="Thinking",
        description="Let a reasoning model think before it replies. The thinking is never part of the answer.",
    )
