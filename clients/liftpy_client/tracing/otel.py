"""Traces with OpenTelemetry: spans of publishes, handlers and commits, and `traceparent` in the headers of messages."""

from __future__ import annotations

from contextlib import AbstractContextManager, contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any

from liftpy_client.errors import UsageError
from liftpy_client.message import Message
from liftpy_client.tracing.interceptors import Interceptor

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

__all__ = ["otel"]


def otel(tracer_provider: Any = None) -> Interceptor:
    """Return an interceptor for `connect(interceptors=[...])` that traces with OpenTelemetry.

    Args:
        tracer_provider: Provider of tracers; by default the global one.

    Raises:
        UsageError: opentelemetry-api is not installed.
    """
    try:
        trace, propagate = import_module("opentelemetry.trace"), import_module("opentelemetry.propagate")
    except ImportError as error:
        raise UsageError("otel needs opentelemetry-api: pip install 'liftpy[otel]'") from error
    return _Otel(trace, propagate, tracer_provider)


class _Otel(Interceptor):
    def __init__(self, trace: Any, propagate: Any, tracer_provider: Any) -> None:
        self._kinds = trace.SpanKind
        self._propagate = propagate
        self._tracer = trace.get_tracer("liftpy", tracer_provider=tracer_provider)

    def _span(
        self, what: str, where: str, kind: Any, *, context: Any = None, **more: Any
    ) -> AbstractContextManager[Any]:
        attributes = {"messaging.system": "liftpy", "messaging.operation.name": what}
        attributes |= {f"messaging.{name.replace('__', '.')}": value for name, value in more.items()}
        span: AbstractContextManager[Any] = self._tracer.start_as_current_span(
            f"{what} {where}", context=context, kind=kind, attributes=attributes
        )
        return span

    @contextmanager
    def publishing(
        self, subject: str, headers: Mapping[str, str | Sequence[str]] | None
    ) -> Iterator[Mapping[str, str | Sequence[str]] | None]:
        with self._span("publish", subject, self._kinds.PRODUCER, operation__type="send", destination__name=subject):
            carrier = dict(headers or {})
            self._propagate.inject(carrier)
            yield carrier or headers

    def processing(self, group: str, item: Any) -> AbstractContextManager[Any]:
        kind, more = self._kinds.CONSUMER, {"operation__type": "process", "consumer__group__name": group}
        if not isinstance(item, Message):  # a batch: its messages have many parents
            return self._span("process", group, kind, batch__message_count=item.num_rows, **more)
        return self._span(
            "process",
            item.stream,
            kind,
            context=self._propagate.extract(item.headers),
            destination__name=item.stream,
            destination__partition__id=str(item.partition),
            liftpy__offset=item.offset,
            **more,
        )

    def committing(self, group: str) -> AbstractContextManager[Any]:
        return self._span("commit", group, self._kinds.CLIENT, operation__type="settle", consumer__group__name=group)
