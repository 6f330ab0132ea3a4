"""Bodies of the pull protocol: each is the msgpack array of the fields of its class, in their order.

The class says what each field may hold, and msgspec checks that while it decodes: a body that lies about its lengths
or its depth is refused before memory and time are spent on it. What fields must not say together, a method `check` of
the class finds. A version adds fields with a default at the end.
"""

import re
from collections.abc import Callable
from functools import cache
from types import UnionType
from typing import Annotated, Any, Final, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec

from liftpy_envelope.errors import FrameError, LiftError

__all__ = ["Epoch", "Mark", "Number", "PartitionNumber", "Signed", "Uuid", "pack_body", "unpack_body"]

_I64_MAX: Final = 2**63 - 1

Uuid = Annotated[bytes, msgspec.Meta(min_length=16, max_length=16)]
PartitionNumber = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
Number = Annotated[int, msgspec.Meta(ge=0, le=_I64_MAX)]
Mark = Annotated[int, msgspec.Meta(ge=-1, le=_I64_MAX)]  # -1: there is none
Epoch = Annotated[int, msgspec.Meta(ge=-1, le=2**31 - 1)]  # -1: it is not known
Signed = Annotated[int, msgspec.Meta(ge=-(2**63), le=_I64_MAX)]

_Body = TypeVar("_Body")
_ENCODER: Final = msgspec.msgpack.Encoder()
_PLACE: Final = re.compile(r" - at .*`\$([^`]*)`$")

pack_body: Final = _ENCODER.encode
"""The bytes of a body, or of anything else that msgpack has a type for."""


def unpack_body(kind: type[_Body], data: bytes | memoryview | msgspec.Raw) -> _Body:
    """The body in `data`.

    Args:
        kind: Class of the message.
        data: All of it.

    Raises:
        FrameError: it is malformed; the message names the field.
    """
    decode, check = _reader(kind)  # type: ignore[arg-type]  # mypy takes a class for something that has no hash
    try:
        body: _Body = decode(data)
        if check is not None:
            check(body)
    except (msgspec.DecodeError, ValueError, RecursionError, LiftError) as error:
        raise FrameError(f"malformed {_spelled(kind)}: {_explained(kind, str(error))}") from None
    return body


@cache
def _reader(kind: Any) -> tuple[Callable[[Any], Any], Callable[[Any], None] | None]:
    return msgspec.msgpack.Decoder(kind).decode, getattr(kind, "check", None)


def _spelled(kind: type) -> str:
    """`fetch request` for `FetchRequest`."""
    return re.sub(r"(?<!^)(?=[A-Z])", " ", kind.__name__).lower()


def _explained(kind: Any, message: str) -> str:
    """What msgspec says, with the field's name before it, in place of its number: `partitions[3].offset`."""
    found = _PLACE.search(message)
    if found is None:
        return message
    name = ""
    for place in re.findall(r"\[(\d+)\]", found[1]):
        kind = next(each for each in _alternatives(kind) if each is not type(None))
        fields = getattr(kind, "_fields", None)
        if fields is None:
            name += f"[{place}]"
            kind = next(iter(get_args(kind)), None)
        else:
            name += f".{fields[int(place)]}"
            kind = get_type_hints(kind)[fields[int(place)]]
    return f"{name[1:]}: {message[: found.start()]}"


def _alternatives(kind: Any) -> tuple[Any, ...]:
    return get_args(kind) if get_origin(kind) in {Union, UnionType} else (kind,)
