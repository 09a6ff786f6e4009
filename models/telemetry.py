"""Runs exported as OpenTelemetry spans to any collector: the switch, which costs nothing while it is off."""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from ..errors import UserFault
from ..settings import Settings

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

PATH = "/v1/traces"
"""Where a collector takes spans."""

DEFAULT_ENDPOINT = "http://localhost:4318"
"""Where OpenTelemetry looks for a collector unless told otherwise."""


@dataclass
class _Exporting:
    """target: the collector's URL or the caller's provider, None while nothing is exported; stop: ends it."""

    target: str | TracerProvider | None = None
    stop: Callable[[], None] = lambda: None


_exporting = _Exporting()


def export_spans(
    endpoint: str | None = None, *, headers: Mapping[str, str] | None = None, provider: TracerProvider | None = None
) -> None:
    """Export every run of this process from now on as spans: graph > node > model call, and the evidence found.

    endpoint: URL of a collector that takes OTLP over HTTP, with or without /v1/traces at its end. Where none is given,
    OTEL_EXPORTER_OTLP_TRACES_ENDPOINT or OTEL_EXPORTER_OTLP_ENDPOINT has it, else it is http://localhost:4318.
    headers: sent along, such as a key; where none are given, OTEL_EXPORTER_OTLP_HEADERS has them.
    provider: takes the spans in place of an endpoint, in a process that has its own pipeline.
    Whatever else OpenTelemetry and OpenInference read from the environment holds too (OTEL_SERVICE_NAME,
    OTEL_TRACES_SAMPLER, OPENINFERENCE_HIDE_INPUTS, ...).

    What is left is sent when the process ends. A collector that does not answer costs a run nothing: a warning says so
    once. A second call for the same target changes nothing.
    Raises `UserFault` for an endpoint that is no URL, for another target than that of an earlier call, without the
    extra `trace`, and where something else instruments LangChain already and no provider is given.
    """
    if provider is not None and (endpoint is not None or headers is not None):
        raise UserFault("Spans go to an endpoint or to a provider of your own: give one of them.")
    target = provider if provider is not None else _endpoint(endpoint)
    if _exporting.target is not None:
        if target != _exporting.target:
            raise UserFault(f"Spans of this process go to {_exporting.target} already: call stop_exporting() first.")
        return
    try:
        from .spans import begin, begin_for  # noqa: PLC0415 - an extra, and slow to import
    except ImportError as fault:
        raise UserFault("Exporting spans needs OpenTelemetry: pip install 'dubito[trace]'.") from fault
    _exporting.stop = begin_for(target, headers) if isinstance(target, str) else begin(target)
    _exporting.target = target
    atexit.register(stop_exporting)


def stop_exporting() -> None:
    """Send what is left and export no more; nothing to do where nothing is exported."""
    atexit.unregister(stop_exporting)
    stop, _exporting.target, _exporting.stop = _exporting.stop, None, lambda: None
    stop()


def export_if_asked() -> None:
    """Export to DUBITO_OTLP_ENDPOINT if it is set and nothing is exported yet."""
    # read anew, as the settings of a process are read when they are first needed and not when a graph is built
    if _exporting.target is None and "DUBITO_OTLP_ENDPOINT" in os.environ and (asked := Settings().otlp_endpoint):
        export_spans(asked)


def _endpoint(given: str | None) -> str:
    """The URL that spans are posted to."""
    if given is None and (whole := os.environ.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")):
        return _checked(whole)
    url = given if given is not None else os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT") or DEFAULT_ENDPOINT
    url = _checked(url).rstrip("/")
    return url if url.endswith(PATH) else url + PATH


def _checked(url: str) -> str:
    try:
        parts = urlsplit(url)
        usable = parts.scheme in {"http", "https"} and parts.hostname and (parts.port is None or parts.port > 0)
    except ValueError:
        usable = False
    if not usable or any(character.isspace() for character in url):
        raise UserFault(
            f"'{url}' is no address of a collector of spans: give its URL, such as {DEFAULT_ENDPOINT} or "
            "http://127.0.0.1:6006."
        )
    return url
