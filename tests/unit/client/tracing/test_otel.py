"""Spans around publishes, handlers and commits, and the header that joins them."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from liftpy_client.errors import UsageError
from liftpy_client.message import Message
from liftpy_client.tracing.interceptors import Interceptor, Interceptors
from liftpy_client.tracing.otel import otel
from liftpy_envelope.headers import encode_header_block
from support.cluster import eventually
from support.process_kit import FakeWorld, Member

HEADER = "00-" + "a" * 32 + "-" + "b" * 16 + "-01"


class FakeTracing:
    """As much of opentelemetry-api as is used, and the spans that were made."""

    def __init__(self):
        self.spans = []
        self.open = []

    def get_tracer(self, name, tracer_provider=None):
        assert (name, tracer_provider) == ("liftpy", None)
        return self

    @contextmanager
    def start_as_current_span(self, name, *, context, kind, attributes):
        self.open.append(name)
        try:
            yield
        except Exception as error:
            attributes["error"] = str(error)
            raise
        finally:
            self.open.remove(name)
            self.spans.append((name, kind, context, attributes))

    def inject(self, carrier):
        carrier["traceparent"] = HEADER

    def extract(self, carrier):
        return carrier.get("traceparent")


@pytest.fixture
def tracing(monkeypatch):
    fake = FakeTracing()
    kinds = SimpleNamespace(PRODUCER="producer", CONSUMER="consumer", CLIENT="client")
    trace = SimpleNamespace(SpanKind=kinds, get_tracer=fake.get_tracer)
    monkeypatch.setitem(sys.modules, "opentelemetry", SimpleNamespace(trace=trace, propagate=fake))
    monkeypatch.setitem(sys.modules, "opentelemetry.trace", trace)
    monkeypatch.setitem(sys.modules, "opentelemetry.propagate", fake)
    return fake


def message(headers=None):
    block = None if headers is None else encode_header_block(headers)
    return Message("orders", 3, 7, 0, "orders.new", None, block, b"")


def test_headers_that_came_are_passed_on_with_all_values(tracing):
    came = message({"a": ["1", "2"]}).headers
    with Interceptors([otel()]).publishing("orders.new", came) as headers:
        assert headers == {"a": ["1", "2"], "traceparent": HEADER}


def test_a_publish_carries_its_span(tracing):
    with otel().publishing("orders.new", {"a": "b"}) as headers:
        assert headers == {"a": "b", "traceparent": HEADER}
        assert tracing.open == ["publish orders.new"]
    ((name, kind, context, attributes),) = tracing.spans
    assert (name, kind, context) == ("publish orders.new", "producer", None)
    assert attributes["messaging.destination.name"] == "orders.new"


def test_a_handler_is_a_child_of_the_publish(tracing):
    with pytest.raises(ValueError, match="no"), otel().processing("billing", message({"traceparent": HEADER})):
        raise ValueError("no")
    ((name, kind, context, attributes),) = tracing.spans
    assert (name, kind, context) == ("process orders", "consumer", HEADER)
    assert attributes == {
        "messaging.system": "liftpy",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.consumer.group.name": "billing",
        "messaging.destination.name": "orders",
        "messaging.destination.partition.id": "3",
        "messaging.liftpy.offset": 7,
        "error": "no",
    }


@pytest.mark.parametrize("is_plain", [False, True])
async def test_process_and_commit_have_spans(tracing, is_plain):
    world, handled = FakeWorld([5]), []

    async def handle(each):
        handled.append((each.offset, list(tracing.open)))

    def handle_now(each):
        handled.append((each.offset, list(tracing.open)))

    member = Member(world, handle_now if is_plain else handle, interceptors=[otel()])
    await eventually(lambda: len(handled) == 5)
    await member.end()
    assert all("process s" in names for _, names in handled)
    names = [name for name, *_ in tracing.spans]
    assert names.count("process s") == 5
    assert "commit g" in names


def test_the_library_is_named_when_it_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "opentelemetry.trace", None)
    with pytest.raises(UsageError, match=r"pip install 'liftpy\[otel\]'"):
        otel()


def test_interceptors_stand_in_their_order():
    events = []

    class Noted(Interceptor):
        def __init__(self, name):
            self.name = name

        @contextmanager
        def publishing(self, subject, headers):
            events.append(f"+{self.name}")
            yield {**(headers or {}), self.name: subject}
            events.append(f"-{self.name}")

    with Interceptors([Noted("a"), Interceptor(), Noted("b")]).publishing("s", None) as headers:
        assert headers == {"a": "s", "b": "s"}
    assert events == ["+a", "+b", "-b", "-a"]
    with Interceptors().publishing("s", None) as headers:
        assert headers is None
    with pytest.raises(UsageError, match=r"is not a liftpy\.Interceptor"):
        Interceptors([print])


def test_with_the_library():
    pytest.importorskip("opentelemetry.sdk")
    from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor  # noqa: PLC0415
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter  # noqa: PLC0415

    spans, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    tracing = otel(provider)
    with tracing.publishing("orders.new", None) as headers:
        pass
    with tracing.processing("billing", message(headers)):
        pass
    published, processed = spans.get_finished_spans()
    assert processed.parent.span_id == published.context.span_id
