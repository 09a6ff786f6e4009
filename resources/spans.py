"""The exported spans, in OpenInference conventions.

OpenInference's instrumentor of LangChain makes the spans of LangGraph's nodes. Model calls do not go through LangChain:
this module adds their spans, and those of evidence, below the span of their node.
"""

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
from ..models.metering import watchers
from ..state.messages import Call

MOST_ATTRIBUTES = 10_000
"""The maximum number of attributes of a span. OpenTelemetry's default of 128 would cut twenty samples or a hundred
documents."""

BATCH = 64
"""The number of spans in a request. Prompts are long, and collectors limit the size of a request."""

DELAY_MS = 1000
"""The longest wait of a finished span for others, in milliseconds. A process that is killed loses waiting spans."""

_TEXTS = {"messages", "options", "continuations"}

_logger = logging.getLogger(__name__)


def begin_for(endpoint: str, headers: Mapping[str, str] | None) -> Callable[[], None]:
    """Export to the collector at this URL. The returned function sends the last spans and ends the export."""
    if LangChainInstrumentor().is_instrumented_by_opentelemetry:
        raise UserFault(
            "LangChain is already instrumented with another provider: give that provider to export_spans, "
            "export_spans(provider=...)."
        )
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
    """Export through a provider. The returned function ends the export."""
    instrumentor = LangChainInstrumentor()
    foreign = instrumentor.is_instrumented_by_opentelemetry
    if not foreign:
        instrumentor.instrument(tracer_provider=provider)
    # the tracer honours OPENINFERENCE_HIDE_INPUTS and similar variables
    spans = _Spans(OITracer(provider.get_tracer("dubito", version("dubito")), config=TraceConfig()))
    watchers.call, watchers.evidence = spans.call, spans.evidence

    def stop() -> None:
        watchers.call = watchers.evidence = None
        if not foreign:
            instrumentor.uninstrument()

    return stop


class _Spans:
    """Makes the spans of model calls and of evidence."""

    def __init__(self, tracer: OITracer) -> None:
        self._tracer = tracer

    @contextmanager
    def call(self, verb: str, model: str, request: Mapping[str, Any]) -> Iterator[Callable[[Call], None]]:
        """The span of a model call. A fault ends the span as an error."""
        short = model.rpartition("#")[2]
        given = {**_request_attributes(request), **get_metadata_attributes(metadata={"llm": model, "verb": verb})}
        given |= get_llm_attributes(model_name=short)
        given |= get_span_kind_attributes("llm")
        span = self._tracer.start_as_current_span(f"{verb} {short}", context=_of_node(), attributes=given)
        # without this, a LangChain model makes a second span of the call, and its tokens count twice
        with span as current, suppress_tracing():
            yield lambda call: current.set_attributes(_reply_attributes(call))
            current.set_status(StatusCode.OK)

    def evidence(self, state: Any, chunks: Sequence[Mapping[str, Any]], seconds: float) -> None:  # noqa: ANN401
        """The evidence of a node, as the span of a retriever with the duration of the node."""
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
    """The context of the running node's span; None: the current span's."""
    span = get_current_span()
    return None if span is None else set_span_in_context(span)


def _request_attributes(request: Mapping[str, Any]) -> dict[str, Any]:
    asked = {name: value for name, value in request.items() if name in _TEXTS}
    parameters = {name: value for name, value in request.items() if name not in _TEXTS}
    messages = [Message(role=one["role"], content=one["content"]) for one in request["messages"]]
    return {
        **get_input_attributes(json.dumps(asked, ensure_ascii=False), mime_type="application/json"),
        **get_llm_attributes(input_messages=messages, invocation_parameters=parameters),
    }


def _reply_attributes(call: Call) -> dict[str, Any]:
    """The attributes of a reply: texts and a chosen option as messages; scores as output only."""
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
    """Posts spans to a collector. The first failure is logged in one sentence; spans that cannot be sent are lost."""

    def __init__(self, endpoint: str, headers: Mapping[str, str] | None) -> None:
        """endpoint: the URL to which spans are posted."""
        self._endpoint = endpoint
        self._exporter = OTLPSpanExporter(endpoint=endpoint, headers=dict(headers) if headers else None)
        self._trouble = self._warned = self._hurries = self._closed = False
        self._thread = 0
        # the exporter retries for seconds and reports this in its log only
        self._log = logging.getLogger(OTLPSpanExporter.__module__)
        self._log.addFilter(self._filter)

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Send a batch."""
        if self._closed:
            return SpanExportResult.FAILURE
        self._thread = threading.get_ident()
        try:
            result = self._exporter.export(spans)
        except Exception as fault:  # some releases of the exporter raise errors that others log
            self._warn_once(str(fault))
            result = SpanExportResult.FAILURE
        self._trouble = result is not SpanExportResult.SUCCESS
        return result

    def hurry(self) -> None:
        """The process ends: send each batch once, without retries."""
        self._hurries = True
        if self._trouble:
            self._close()

    def shutdown(self) -> None:
        """End the export."""
        self._close()
        self._log.removeFilter(self._filter)

    def _close(self) -> None:
        if not self._closed:
            self._closed = True
            self._exporter.shutdown()  # type: ignore[no-untyped-call] # also ends the wait for a retry

    def _filter(self, record: logging.LogRecord) -> bool:
        """Filter the exporter's log records about our spans; those about other spans stay."""
        if record.thread != self._thread:
            return True
        self._trouble = True
        self._warn_once(record.getMessage())
        if self._hurries:
            self._close()
        return False

    def _warn_once(self, trouble: str) -> None:
        if not self._warned:
            self._warned = True
            _logger.warning(
                "Spans do not reach %s (%s): the run goes on without them; start the collector or correct the address.",
                self._endpoint,
                _reason(trouble),
            )


def _reason(message: str) -> str:
    """The system's or the server's words in a message of the exporter."""
    for words in (
        r"\[Errno -?\d+\] ([\w ,]+)",
        r"Transient error ([\w ]+) encountered",
        r"code: (\d+(?:, reason: [\w ]+)?)",
    ):
        if found := re.search(words, message):
            return found[1].strip()
    return message[:200]
