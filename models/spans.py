"""What is exported: spans in OpenInference conventions. LangGraph's own runs come from OpenInference's instrumentor of
LangChain; model calls, which do not go through LangChain, and evidence are added here, below the span of their node."""

from __future__ import annotations

import json
import logging
import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from typing import Any

from openinference.instrumentation import (
    Document,
    Message,
    OITracer,
    TokenCount,
    TraceConfig,
    get_input_attributes,
    get_llm_attributes,
    get_metadata_attributes,
    get_output_attributes,
    get_retriever_attributes,
    get_span_kind_attributes,
    suppress_tracing,
)
from openinference.instrumentation.langchain import LangChainInstrumentor, get_current_span
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanLimits, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import StatusCode, set_span_in_context

from ..errors import UserFault
from .metering import Call, watchers

MOST_ATTRIBUTES = 10_000
"""Of a span: OpenTelemetry's own limit of 128 would cut twenty samples or a hundred documents."""

BATCH = 64
"""Spans that are sent together: prompts are long, and collectors limit the size of what is posted."""

DELAY_MS = 1000
"""How long a finished span waits for others at most, and so is lost if the process is killed."""

_said = logging.getLogger(__name__)


def begin_for(endpoint: str, headers: Mapping[str, str] | None) -> Callable[[], None]:
    """Export to the collector that takes posts at this URL; what is returned sends what is left and ends it."""
    _refuse_foreign()
    collector = Collector(endpoint, headers)
    name = {"service.name": os.environ.get("OTEL_SERVICE_NAME", "dubito"), "service.version": version("dubito")}
    limits = SpanLimits(max_span_attributes=MOST_ATTRIBUTES)
    provider = TracerProvider(resource=Resource.create(name), span_limits=limits, shutdown_on_exit=False)
    provider.add_span_processor(
        BatchSpanProcessor(collector, schedule_delay_millis=DELAY_MS, max_export_batch_size=BATCH)
    )
    end = begin(provider)

    def stop() -> None:
        end()
        collector.hurry()
        provider.shutdown()

    return stop


def begin(provider: TracerProvider) -> Callable[[], None]:
    """Export through a provider; what is returned ends it."""
    instrumentor = LangChainInstrumentor()
    foreign = instrumentor.is_instrumented_by_opentelemetry
    if not foreign:
        instrumentor.instrument(tracer_provider=provider)
    # masks what OPENINFERENCE_HIDE_INPUTS and its like say
    spans = _Spans(OITracer(provider.get_tracer("dubito", version("dubito")), config=TraceConfig()))
    watchers.call, watchers.evidence = spans.call, spans.evidence

    def stop() -> None:
        watchers.call = watchers.evidence = None
        if not foreign:
            instrumentor.uninstrument()

    return stop


def _refuse_foreign() -> None:
    if LangChainInstrumentor().is_instrumented_by_opentelemetry:
        raise UserFault(
            "LangChain is instrumented already, so its spans go elsewhere: give export_spans the provider they go to, "
            "export_spans(provider=...)."
        )


class _Spans:
    """Makes the spans that the instrumentor does not."""

    def __init__(self, tracer: OITracer) -> None:
        self._tracer = tracer

    @contextmanager
    def call(self, verb: str, model: str, request: Mapping[str, Any]) -> Iterator[Callable[[Call], None]]:
        """A model call; a fault ends the span as an error."""
        short = model.rpartition("#")[2]
        given = {**_asked(request), **get_metadata_attributes(metadata={"llm": model, "verb": verb})}
        given |= get_llm_attributes(model_name=short, invocation_parameters=_parameters(request))
        given |= get_span_kind_attributes("llm")
        span = self._tracer.start_as_current_span(f"{verb} {short}", context=_of_node(), attributes=given)
        # a LangChain model would make a second span of the same call, and its tokens would count twice
        with span as current, suppress_tracing():
            yield lambda call: current.set_attributes(_answered(call))
            current.set_status(StatusCode.OK)

    def evidence(self, state: Any, chunks: Sequence[Mapping[str, Any]], seconds: float) -> None:  # noqa: ANN401
        """What a node found, as a retriever's span that lasts as long as the node."""
        documents = [
            Document(content=str(chunk["text"]), id=str(chunk["id"]), metadata={"title": str(chunk["title"])})
            | ({"score": float(chunk["score"])} if "score" in chunk else {})
            for chunk in chunks
        ]
        asked = state.get("question") if isinstance(state, Mapping) else None
        given = {**get_retriever_attributes(documents=documents), **get_span_kind_attributes("retriever")}
        given |= get_input_attributes(str(asked)) if asked else {}
        start = time.time_ns() - int(seconds * 1e9)
        span = self._tracer.start_span("evidence", context=_of_node(), start_time=start, attributes=given)
        span.set_status(StatusCode.OK)
        span.end()


def _of_node() -> Context | None:
    """The context whose span is that of the node that runs here; None for whatever span is current."""
    span = get_current_span()
    return None if span is None else set_span_in_context(span)


def _parameters(request: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in request.items() if name not in {"messages", "options", "continuations"}}


def _asked(request: Mapping[str, Any]) -> dict[str, Any]:
    asked = {name: request[name] for name in ("messages", "options", "continuations") if name in request}
    messages = [Message(role=one["role"], content=one["content"]) for one in request["messages"]]
    text = json.dumps(asked, ensure_ascii=False)
    return {
        **get_input_attributes(text, mime_type="application/json"),
        **get_llm_attributes(input_messages=messages),
    }


def _answered(call: Call) -> dict[str, Any]:
    """What came back: texts as messages, an option chosen as one too; scores only as output."""
    texts = call.reply.get("texts")
    if chances := call.reply.get("probabilities"):
        texts = [max(chances, key=lambda option: chances[option])]
    tokens = TokenCount(
        prompt=call.prompt_tokens,
        completion=call.completion_tokens,
        total=call.prompt_tokens + call.completion_tokens,
    )
    messages = [Message(role="assistant", content=text) for text in texts or ()]
    if list(call.reply) == ["texts", "finish"] and len(call.reply["texts"]) == 1:
        output = get_output_attributes(call.reply["texts"][0], mime_type="text/plain")
    else:
        output = get_output_attributes(json.dumps(call.reply, ensure_ascii=False), mime_type="application/json")
    return {**output, **get_llm_attributes(output_messages=messages, token_count=tokens)}


class Collector(SpanExporter):
    """Posts spans to a collector; of trouble it says one sentence, once, and what could not be sent is lost."""

    def __init__(self, endpoint: str, headers: Mapping[str, str] | None) -> None:
        """endpoint: the URL that is posted to."""
        self._endpoint = endpoint
        self._exporter = OTLPSpanExporter(endpoint=endpoint, headers=dict(headers) if headers else None)
        self._trouble = self._told = self._hurries = self._closed = False
        self._thread = 0
        # the exporter waits and tries again for seconds, and tells of it nowhere but in its log
        self._log = logging.getLogger(OTLPSpanExporter.__module__)
        self._log.addFilter(self._overhear)

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Send a batch."""
        if self._closed:
            return SpanExportResult.FAILURE
        self._thread = threading.get_ident()
        try:
            result = self._exporter.export(spans)
        except Exception as fault:  # some releases of the exporter raise what others write to their log
            self._tell(str(fault))
            result = SpanExportResult.FAILURE
        self._trouble = result is not SpanExportResult.SUCCESS
        return result

    def hurry(self) -> None:
        """The process wants to end: try everything once, and wait for nothing that is not there."""
        self._hurries = True
        if self._trouble:
            self._close()

    def shutdown(self) -> None:
        """Nothing more will be sent."""
        self._close()
        self._log.removeFilter(self._overhear)

    def _close(self) -> None:
        if not self._closed:
            self._closed = True
            self._exporter.shutdown()  # type: ignore[no-untyped-call] # which ends a wait for another attempt too

    def _overhear(self, record: logging.LogRecord) -> bool:
        """Keep what the exporter says of our spans out of the log; what it says of others' may stay."""
        if record.thread != self._thread:
            return True
        self._trouble = True
        self._tell(record.getMessage())
        if self._hurries:
            self._close()
        return False

    def _tell(self, trouble: str) -> None:
        if not self._told:
            self._told = True
            _said.warning(
                "Spans do not reach %s (%s): the run goes on without them; start the collector or mend the address.",
                self._endpoint,
                _reason(trouble),
            )


def _reason(message: str) -> str:
    """The system's or the server's words in what the exporter says."""
    for words in (
        r"\[Errno -?\d+\] ([\w ,]+)",
        r"Transient error ([\w ]+) encountered",
        r"code: (\d+(?:, reason: [\w ]+)?)",
    ):
        if found := re.search(words, message):
            return found[1].strip()
    return message[:200]
