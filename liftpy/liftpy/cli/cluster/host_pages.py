"""What a host answers over HTTP: the pages of all of its nodes as one.

`/metrics` has the metrics of every node with the label `host_node`, and those of the host itself. `/readyz` is 200
while every node's is.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any, Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from liftpy_server.admin.http import health_page, json_page, metrics_page

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping

    from prometheus_client.metrics_core import Metric

    from liftpy.cli.cluster.host import Host, HostNode
    from liftpy_server.admin.http import Page

__all__ = ["LABEL", "host_pages", "merged_metrics"]

LABEL: Final = "host_node"
_TIMEOUT_S: Final = 3.0
_ANSWER_BYTES_MAX: Final = 64 * 1024 * 1024


def host_pages(host: Host) -> Callable[[str], Awaitable[Page | None]]:
    """The pages of a host, by path."""

    async def page(path: str) -> Page | None:
        match path:
            case "/metrics":
                texts = {node_id: body.decode() for node_id, body in (await _ask_all(host, path)).items()}
                return metrics_page(merged_metrics(host, texts))
            case "/varz":
                shown = [json.loads(body) for body in (await _ask_all(host, path)).values()]
                return json_page({"host": host.host_id, "status": host.status, "nodes": shown})
            case "/healthz" | "/readyz":
                problems = await _problems(host, path)
                return health_page(problems, is_ok=path == "/healthz" or not problems)
        return None

    return page


async def _problems(host: Host, path: str) -> list[str]:
    answers = await _ask_all(host, path)
    problems = []
    for node in host.nodes:
        if node.node_id in answers:
            told = json.loads(answers[node.node_id])["problems"]
        else:
            told = ["it is not up" if node.http_port is None else f"it does not answer within {_TIMEOUT_S:g} s"]
        problems += [f"{node.node_id}: {problem}" for problem in told]
    return problems


async def _ask_all(host: Host, path: str) -> dict[str, bytes]:
    """The answers of the nodes that are up and answer in time, by node."""
    answers = await asyncio.gather(*(_ask(node, path) for node in host.nodes))
    return {node.node_id: body for node, body in zip(host.nodes, answers, strict=True) if body is not None}


async def _ask(node: HostNode, path: str) -> bytes | None:
    if node.http_port is None:
        return None
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            reader, writer = await asyncio.open_connection("127.0.0.1", node.http_port)
            try:
                writer.write(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().split(b"content-length:", 1)[1].split(b"\r\n", 1)[0])
                return await reader.readexactly(min(length, _ANSWER_BYTES_MAX))
            finally:
                writer.close()
    except (OSError, TimeoutError, asyncio.IncompleteReadError):
        return None  # it ends, or stands still; the page says that it is missing


def merged_metrics(host: Host, texts: Mapping[str, str]) -> bytes:
    """The metrics of several nodes as one text, each sample with its node.

    Args:
        host: Tells which nodes are up, and how often they were started again.
        texts: What the nodes told, in the text format of Prometheus, by node.
    """
    registry = CollectorRegistry()
    registry.register(_Merged(host, texts))
    return generate_latest(registry)


class _Merged(Collector):
    def __init__(self, host: Host, texts: Mapping[str, str]) -> None:
        self._host = host
        self._texts = texts

    def collect(self) -> Iterator[Metric]:
        yield from self._of_host()
        merged: dict[str, Any] = {}
        for node_id, text in self._texts.items():
            for family in text_string_to_metric_families(text):
                samples = [
                    sample._replace(labels=sample.labels | {LABEL: node_id})
                    for sample in family.samples
                    if not sample.name.endswith("_created")
                ]
                known = merged.setdefault(family.name, family)
                known.samples = samples if known is family else known.samples + samples
        yield from merged.values()

    def _of_host(self) -> Iterator[Metric]:
        up = GaugeMetricFamily("liftpy_host_node_up", "1 while the node is up", labels=[LABEL])
        restarts = CounterMetricFamily("liftpy_host_node_restarts", "times the node was started again", labels=[LABEL])
        for node in self._host.nodes:
            up.add_metric([node.node_id], node.http_port is not None)
            restarts.add_metric([node.node_id], node.restarts)
        yield from (up, restarts)
