"""Codecs: between values of an application and the bytes of a message. Libraries are imported when they are used."""

from __future__ import annotations

import io
import json as stdlib_json
from importlib import import_module
from typing import Any, Generic, Protocol, TypeVar, overload

import msgspec

from liftpy_client.errors import UsageError

__all__ = ["Codec", "avro", "json", "msgpack", "protobuf"]

_T = TypeVar("_T")
_M = TypeVar("_M", bound="ProtobufMessage")


class Codec(Protocol[_T]):
    """Encodes and decodes values. Any object with these two methods is one."""

    def encode(self, value: _T) -> bytes:
        """Return the bytes of a value."""

    def decode(self, data: bytes) -> _T:
        """Return the value of some bytes. May raise anything."""


class ProtobufMessage(Protocol):
    """A message class that protoc made."""

    def SerializeToString(self) -> bytes:  # noqa: N802 - protobuf's name
        """Return the message's bytes."""

    @classmethod
    def FromString(cls, data: bytes) -> Any:  # noqa: N802 - protobuf's name
        """Return the message of some bytes."""


@overload
def json(kind: None = None) -> Codec[Any]: ...
@overload
def json(kind: type[_T]) -> Codec[_T]: ...
def json(kind: type[Any] | None = None) -> Codec[Any]:
    """JSON. Without `kind`, values are dicts, lists, strings and numbers.

    Args:
        kind: A pydantic model, a dataclass, a TypedDict or a msgspec Struct.
    """
    if kind is None:
        return _Json()
    if hasattr(kind, "model_validate_json") and hasattr(kind, "model_dump_json"):
        return _Pydantic(kind)
    return _Msgspec(msgspec.json, kind)


def msgpack(kind: type[_T]) -> Codec[_T]:
    """MessagePack of a dataclass, a TypedDict or a msgspec Struct."""
    return _Msgspec(msgspec.msgpack, kind)


def protobuf(kind: type[_M]) -> Codec[_M]:
    """Protobuf messages of a class that protoc made.

    Raises:
        UsageError: it is no such class.
    """
    if not hasattr(kind, "FromString") or not hasattr(kind, "SerializeToString"):
        raise UsageError(f"kind: {kind!r:.60} is not a class that protoc made")
    return _Protobuf(kind)


def avro(schema: Any) -> Codec[Any]:
    """Avro records of one schema, without a header, as dicts.

    Args:
        schema: The schema as Avro's JSON describes it, parsed.

    Raises:
        UsageError: fastavro is not installed.
    """
    try:
        fastavro = import_module("fastavro")
    except ImportError as error:
        raise UsageError("this codec needs fastavro: pip install 'liftpy[avro]'") from error
    return _Avro(fastavro, schema)


class _Json:
    def encode(self, value: Any) -> bytes:
        return stdlib_json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()

    def decode(self, data: bytes) -> Any:
        return stdlib_json.loads(data)


class _Pydantic:
    def __init__(self, kind: Any) -> None:
        self._kind = kind

    def encode(self, value: Any) -> bytes:
        text: str = value.model_dump_json()
        return text.encode()

    def decode(self, data: bytes) -> Any:
        return self._kind.model_validate_json(data)


class _Msgspec(Generic[_T]):
    def __init__(self, form: Any, kind: type[_T]) -> None:
        self._encoder = form.Encoder()
        self._decoder = form.Decoder(kind)

    def encode(self, value: _T) -> bytes:
        encoded: bytes = self._encoder.encode(value)
        return encoded

    def decode(self, data: bytes) -> _T:
        value: _T = self._decoder.decode(data)
        return value


class _Protobuf(Generic[_M]):
    def __init__(self, kind: type[_M]) -> None:
        self._kind = kind

    def encode(self, value: _M) -> bytes:
        return value.SerializeToString()

    def decode(self, data: bytes) -> _M:
        value: _M = self._kind.FromString(data)
        return value


class _Avro:
    def __init__(self, fastavro: Any, schema: Any) -> None:
        self._fastavro = fastavro
        self._schema = fastavro.parse_schema(schema)

    def encode(self, value: Any) -> bytes:
        out = io.BytesIO()
        self._fastavro.schemaless_writer(out, self._schema, value)
        return out.getvalue()

    def decode(self, data: bytes) -> Any:
        source = io.BytesIO(data)
        value = self._fastavro.schemaless_reader(source, self._schema, None)
        if source.read(1):
            raise ValueError("bytes are left after the record")
        return value
