"""What a node and its tier workers say to each other: one JSON object per line, over the worker's two pipes.

The node first sends `settings`; then calls, `{"id", "job", "arguments"}`, which are answered in any order with
`{"id", "result"}` or `{"id", "error"}`; a job that takes long says `{"id", "progress"}` now and then, with a part of
what it has done or with nothing. Both ends are of the same version. Arguments, parts and results are dataclasses of
`liftpy_server.tier.requests` as plain values.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from liftpy_server.tier.errors import plain_error
from liftpy_server.workers.json_lines import to_line

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["encode_call", "encode_error", "encode_progress", "encode_result"]


def encode_call(number: int, job: str, arguments: Mapping[str, Any]) -> bytes:
    """The line that asks for a job."""
    return to_line({"id": number, "job": job, "arguments": arguments})


def encode_result(number: int, result: Mapping[str, Any]) -> bytes:
    """The line that ends a job well."""
    return to_line({"id": number, "result": result})


def encode_progress(number: int, part: Mapping[str, Any] | None = None) -> bytes:
    """The line that says that a job still runs, and maybe what it has done by now."""
    return to_line({"id": number, "progress": part or {}})


def encode_error(number: int, error: Exception) -> bytes:
    """The line that ends a job badly."""
    return to_line({"id": number, "error": plain_error(error)})
