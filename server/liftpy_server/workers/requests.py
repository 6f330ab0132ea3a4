"""Requests to a worker process and their results: a dataclass each, which crosses the pipe as plain values.

Both ends are of the same version, so nothing is there for compatibility: a value that is missing, unknown or of another
kind than its field says is an error of ours, and is refused.
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, ClassVar, Generic, TypeVar, Union, get_args, get_origin, get_type_hints

__all__ = ["WorkerRequest", "from_plain", "to_plain"]

R = TypeVar("R")
T = TypeVar("T")


class WorkerRequest(Generic[R]):
    """Something to be done by a worker process.

    Attributes:
        job: The name of what is to be done.
        result: Kind of the result.
        part: Kind of what is told of it while it is done.
    """

    __slots__ = ()

    job: ClassVar[str]
    result: ClassVar[type[Any]]
    part: ClassVar[type[Any]] = NoneType


def to_plain(value: Any) -> Any:
    """A value as JSON can say it."""
    if is_dataclass(value):
        return {each.name: to_plain(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, (list, tuple)):
        return [to_plain(each) for each in value]
    if isinstance(value, dict):
        return {key: to_plain(each) for key, each in value.items()}
    return value


def from_plain(kind: type[T], plain: Any) -> T:
    """A value of a kind, from what JSON said.

    Raises:
        TypeError: it is not of that kind.
    """
    found: T = _read(kind, plain)
    return found


@cache
def _hints(kind: type[Any]) -> dict[str, Any]:
    return {each.name: get_type_hints(kind)[each.name] for each in fields(kind)}


def _read(kind: Any, plain: Any) -> Any:
    origin = get_origin(kind)
    if kind is Any:
        return plain
    if origin is None and is_dataclass(kind):
        return _read_dataclass(kind, plain)
    if origin in {Union, UnionType}:
        (wanted,) = (each for each in get_args(kind) if each is not NoneType)
        return None if plain is None else _read(wanted, plain)
    if origin is tuple:
        return _read_tuple(kind, plain)
    if not isinstance(plain, origin or kind) or (kind is int and isinstance(plain, bool)):
        raise TypeError(f"{plain!r:.100} came where {kind} must")
    return plain


def _read_dataclass(kind: Any, plain: Any) -> Any:
    hints = _hints(kind)
    if not isinstance(plain, dict) or plain.keys() - hints.keys():
        raise TypeError(f"{plain!r:.100} came where {kind.__name__} must")
    return kind(**{name: _read(hints[name], each) for name, each in plain.items()})


def _read_tuple(kind: Any, plain: Any) -> tuple[Any, ...]:
    kinds = get_args(kind)
    if not isinstance(plain, (list, tuple)):
        raise TypeError(f"{plain!r:.100} came where {kind} must")
    if kinds[1:] == (Ellipsis,):
        return tuple(_read(kinds[0], each) for each in plain)
    return tuple(_read(each, value) for each, value in zip(kinds, plain, strict=True))
