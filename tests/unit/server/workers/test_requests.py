"""Requests and results cross the pipe as they are, and what is not of its kind is refused."""

from __future__ import annotations

import json
from dataclasses import MISSING, fields
from typing import Any, get_args, get_origin, get_type_hints

import pytest

from liftpy_server.tier import requests
from liftpy_server.tier.jobs.table import JOBS
from liftpy_server.tier.requests import ClaimJob, FetchChunkJob, FetchChunkResult, Hole, LogSlice, UploadJob
from liftpy_server.workers.requests import WorkerRequest, from_plain, to_plain

KINDS = [
    kind
    for kind in vars(requests).values()
    if isinstance(kind, type) and issubclass(kind, WorkerRequest) and kind is not WorkerRequest
]


def crossed(value):
    return from_plain(type(value), json.loads(json.dumps(to_plain(value))))


def example(kind):
    """A value of a kind, every part of which is there."""
    if kind is Any:
        return [1]
    if hasattr(kind, "__dataclass_fields__"):
        hints = get_type_hints(kind)
        return kind(**{each.name: example(hints[each.name]) for each in fields(kind)})
    origin, inside = get_origin(kind), get_args(kind)
    if origin is tuple:
        return (example(inside[0]),) * 2 if inside[1:] == (Ellipsis,) else tuple(map(example, inside))
    if origin is dict:
        return {"a": example(inside[1])}
    if inside:
        return example(inside[0])
    return {int: 2**60, bool: True, str: "\xe4\udcff"}[kind]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_request_and_its_result_cross_the_pipe(kind):
    for value in (example(kind), example(kind.result)):
        assert crossed(value) == value


def test_what_is_left_out_is_what_it_is_by_default():
    for kind in KINDS:
        plain = to_plain(example(kind))
        given = {each.name: plain[each.name] for each in fields(kind) if each.default is MISSING}
        read = from_plain(kind, given)
        assert {name: to_plain(getattr(read, name)) for name in given} == given


def test_every_request_is_done_by_somebody():
    assert {kind.job: kind for kind in KINDS} == {job: work.kind for job, work in JOBS.items()}


def test_a_hole_is_a_part_of_a_result():
    result = FetchChunkResult(hole=Hole(start=1, end=2, code="missing", message="it is gone"))
    assert crossed(result) == result
    assert crossed(FetchChunkResult(following=(5, 9))).hole is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("partition", "0"),
        ("partition", True),
        ("partition", None),
        ("create", 1),
        ("epochs", [[0]]),
        ("epochs", [[0, "0"]]),
        ("epochs", 5),
        ("cluster_id", 5),
        ("colour", "red"),
    ],
)
def test_what_is_not_of_its_kind_is_refused(name, value):
    with pytest.raises((TypeError, ValueError)):
        from_plain(ClaimJob, to_plain(example(ClaimJob)) | {name: value})


def test_what_is_missing_is_refused():
    plain = to_plain(example(FetchChunkJob))
    del plain["offset"]
    with pytest.raises(TypeError, match="offset"):
        from_plain(FetchChunkJob, plain)
    with pytest.raises(TypeError, match="LogSlice"):
        from_plain(UploadJob, to_plain(example(UploadJob)) | {"slices": ["/data/0.log"]})
    with pytest.raises(TypeError, match="LogSlice"):
        from_plain(LogSlice, [])
