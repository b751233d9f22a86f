"""Traces: rounds, looks, plans, actions and calls to backends; without a collector nothing is imported."""

from __future__ import annotations

import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from declarative import spans
from tests.support.cli import fleet, task


def test_spans_lie_in_one_another_and_say_what_failed():
    exporter = InMemorySpanExporter()
    heard: list[tuple[str, bool]] = []
    end = spans.trace(exporter)
    deaf = spans.on_span_end(
        lambda name, _attributes, _seconds, error: heard.append((name, error is not None))
    )
    try:
        with spans.span("round"), pytest.raises(ValueError, match="quoted secret"), spans.span("plan", a="b"):
            raise ValueError("quoted secret")
    finally:
        deaf()
        end()
    plan, whole = exporter.get_finished_spans()
    assert (plan.name, whole.name) == ("plan", "round")
    assert plan.parent is not None
    assert whole.context is not None
    assert plan.parent.span_id == whole.context.span_id
    assert dict(plan.attributes or {}) == {"fleetform.a": "b"}
    assert heard == [("plan", True), ("round", False)]
    with spans.span("unheard"):
        pass
    assert len(heard) == 2


def test_nothing_is_imported_where_nobody_asks():
    code = (
        "import sys\n"
        "from declarative import spans\n"
        "with spans.span('x'): pass\n"
        "assert not [name for name in sys.modules if name.startswith('opentelemetry')]"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    assert not spans.is_traced({})
    asked = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318"}
    assert spans.is_traced(asked)
    assert not spans.is_traced({**asked, "OTEL_SDK_DISABLED": "true"})


@pytest.mark.slow
def test_a_collector_gets_the_spans_of_an_apply(project):
    got: list[str] = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            request = ExportTraceServiceRequest.FromString(body)
            got.extend(s.name for r in request.resource_spans for c in r.scope_spans for s in c.spans)
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Collector)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    env = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{server.server_address[1]}",
        "OTEL_EXPORTER_OTLP_COMPRESSION": "none",
        "NO_PROXY": "127.0.0.1",
    }
    project.declare(fleet(nodes=1), task("hello", "true"))
    project.run("reconcile", "--once", env=env)
    server.shutdown()
    server.server_close()
    assert {"round", "look", "plan", "action.create", "backend.create", "backend.start"} <= set(got)
