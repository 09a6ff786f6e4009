"""Switches the export of runs as OpenTelemetry spans on and off. It costs nothing while it is off."""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..config import PROCESS, config
from ..errors import UserFault, extra_command
from ..server_url import checked_url
from ..settings import Settings

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

PATH = "/v1/traces"
"""The path at which a collector receives spans."""

DEFAULT_ENDPOINT = "http://localhost:4318"
"""OpenTelemetry's default address of a collector."""


@dataclass
class _Exporting:
    """target: the collector's URL or the caller's provider, None without an export; stop: ends the export."""

    target: str | TracerProvider | None = None
    stop: Callable[[], None] = lambda: None


_exporting = _Exporting()


def export_spans(
    endpoint: str | None = None, *, headers: Mapping[str, str] | None = None, provider: TracerProvider | None = None
) -> None:
    """Export the later runs of this process as spans: graph > node > model call, and the retrieved evidence.

    endpoint: the URL of a collector that receives OTLP over HTTP, with or without /v1/traces at its end. The default is
    OTEL_EXPORTER_OTLP_TRACES_ENDPOINT, then OTEL_EXPORTER_OTLP_ENDPOINT, then http://localhost:4318.
    headers: HTTP headers, such as a key; the default is OTEL_EXPORTER_OTLP_HEADERS.
    provider: receives the spans in place of an endpoint, in a process that has its own pipeline.
    The other environment variables of OpenTelemetry and OpenInference apply too (OTEL_SERVICE_NAME,
    OTEL_TRACES_SAMPLER, OPENINFERENCE_HIDE_INPUTS, ...).

    The last spans are sent when the process ends. If the collector does not answer, the run goes on and there is one
    warning. A second call for the same target changes nothing.
    Raises `UserFault` if the endpoint is not a URL, if an earlier call has another target, if the extra `trace` is not
    installed, and if LangChain is instrumented already and no provider is given.
    """
    if provider is not None and (endpoint is not None or headers is not None):
        raise UserFault("Spans go to an endpoint or to a provider: give only one of the two.")
    target = provider if provider is not None else _endpoint(endpoint)
    if _exporting.target is not None:
        if target != _exporting.target:
            raise UserFault(f"Spans of this process already go to {_exporting.target}: call stop_exporting() first.")
        return
    try:
        from .spans import begin, begin_for  # noqa: PLC0415 - an extra, and slow to import
    except ImportError as fault:
        raise UserFault(f"Exporting spans needs OpenTelemetry: {extra_command('trace')}.") from fault
    _exporting.stop = begin_for(target, headers) if isinstance(target, str) else begin(target)
    _exporting.target = target
    atexit.register(stop_exporting)


def stop_exporting() -> None:
    """Send the last spans and end the export. Without an export this does nothing."""
    atexit.unregister(stop_exporting)
    stop, _exporting.target, _exporting.stop = _exporting.stop, None, lambda: None
    stop()


def export_if_asked() -> None:
    """Export to the endpoint of the environment or of the configuration file if there is one and no export yet."""
    is_set = "DUBITO_OTLP_ENDPOINT" in os.environ or "otlp_endpoint" in config().tables.get(PROCESS, {})
    # `settings()` would cache the environment too early: this runs when a graph is built
    if _exporting.target is None and is_set and (endpoint := Settings.read().otlp_endpoint):
        export_spans(endpoint)


def _endpoint(given: str | None) -> str:
    """The URL to which spans are posted."""
    if given is None and (whole := os.environ.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")):
        return checked_url(whole, DEFAULT_ENDPOINT)
    url = given if given is not None else os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT") or DEFAULT_ENDPOINT
    url = checked_url(url, DEFAULT_ENDPOINT)
    return url if url.endswith(PATH) else url + PATH
