"""Times rounds, looks, plans, actions and calls to backends, for traces and for metrics.

Without a listener a span costs nothing. Traces go through OpenTelemetry, which is imported only if its
environment variables ask for it.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, ParamSpec, TypeVar

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.trace import Tracer

P = ParamSpec("P")
T = TypeVar("T")
SpanListener = Callable[[str, Mapping[str, str], float, BaseException | None], None]
"""Gets each ended span: its name, its attributes, its seconds, and the error that ended it."""
ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
"""OpenTelemetry's variables for where traces are sent."""

_listeners: list[SpanListener] = []
_tracers: list[Tracer] = []


@contextmanager
def span(name: str, **attributes: str) -> Iterator[None]:
    """Time the block as a span, below the span that is open in this thread; as a decorator, each call of a
    function. Attributes never hold secrets.
    """
    if not _listeners and not _tracers:
        yield
        return
    started, fault = time.perf_counter(), None
    with ExitStack() as stack:
        for tracer in _tracers:
            prefixed = {f"fleetform.{key}": value for key, value in attributes.items()}
            # Error messages may quote a backend, so only the failure is traced.
            entered = tracer.start_as_current_span(name, attributes=prefixed, record_exception=False)
            stack.enter_context(entered)
        try:
            yield
        except BaseException as error:
            fault = error
            raise
        finally:
            for listener in _listeners:
                listener(name, attributes, time.perf_counter() - started, fault)


def timed(method: Callable[P, T]) -> Callable[P, T]:
    """Make each call of a method a span, with the `backend` of its object."""

    @functools.wraps(method)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        with span(f"backend.{method.__name__}", backend=getattr(args[0], "backend", "")):
            return method(*args, **kwargs)

    return run


def on_span_end(listener: SpanListener) -> Callable[[], None]:
    """Call `listener` for each span that ends, in any thread; call the result to stop that."""
    _listeners.append(listener)
    return lambda: _listeners.remove(listener)


def is_traced(environ: Mapping[str, str]) -> bool:
    """Whether the environment asks for traces."""
    off = environ.get("OTEL_SDK_DISABLED", "").lower() == "true"
    return not off and any(environ.get(name) for name in ENDPOINTS)


def trace(exporter: SpanExporter | None = None) -> Callable[[], None]:
    """Send traces until the result is called; `ImportError` if OpenTelemetry is not installed."""
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    if exporter is None:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

        exporter = OTLPSpanExporter()
    provider = TracerProvider(resource=Resource.create({"service.name": "fleetform"}))
    provider.add_span_processor(BatchSpanProcessor(exporter))
    tracer = provider.get_tracer("fleetform")
    _tracers.append(tracer)

    def end() -> None:
        _tracers.remove(tracer)
        provider.shutdown()

    return end
