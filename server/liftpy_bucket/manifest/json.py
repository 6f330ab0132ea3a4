"""JSON of manifests: written canonically, read with suspicion.

Canonical is UTF-8 without spaces, `format` first, all other keys sorted and the checksum last, so that equal values
are equal bytes. What is read is checked field by field, and an unknown field is refused: whoever adds one raises the
format. Formats below `FORMAT` were never released, and are not read. A root may have a format of its own, see
`liftpy_bucket.manifest.root.format`.

The checksum is of every byte before it (see `liftpy_log.storage.checked_json`). It can be checked without reading the
JSON, in any language. Every manifest ends with it but one whose name is the SHA-256 of its bytes: a snapshot.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final

from liftpy_bucket.errors import BucketVersionError, ManifestCorruptError, TierError
from liftpy_bucket.objects.setsum import Setsum
from liftpy_bucket.store.object_store import WHOLE_BYTES_MAX
from liftpy_log.storage.checked_json import CHECKSUM, find_checksum, with_checksum

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

__all__ = [
    "CHECKSUM",
    "DIGEST",
    "FORMAT",
    "ID",
    "INT64_MAX",
    "INT64_MIN",
    "MANIFEST_BYTES_MAX",
    "NODE",
    "PUT_BACK",
    "UUID",
    "Fields",
    "Row",
    "encode",
    "encode_named_by_digest",
    "with_checksum",
]

PUT_BACK: Final = "Put back the version of it that was there before it was changed"
"""What to do about a manifest that is not as it was written; nothing else says what it said."""


def _is_checked(key: str, body: bytes) -> bool:
    """Whether a manifest ends with a checksum, which then is right.

    Args:
        key: Key of the manifest.
        body: Bytes of the manifest.

    Raises:
        ManifestCorruptError: it ends with a wrong one.
    """
    found = find_checksum(body)
    if found is False:
        raise ManifestCorruptError(
            key, f"its checksum is not that of its bytes, so these are not what was written. {PUT_BACK}"
        )
    return found is True


FORMAT: Final = 3
MANIFEST_BYTES_MAX: Final = WHOLE_BYTES_MAX
INT64_MAX: Final = 2**63 - 1
INT64_MIN: Final = -(2**63)

UUID: Final = re.compile(r"[0-9a-f]{32}")
NODE: Final = re.compile(r"[A-Za-z0-9_-]{1,128}")
ID: Final = re.compile(r"[A-Za-z0-9_-]{1,128}")
DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_SETSUM: Final = re.compile(r"[0-9a-f]{64}")


def encode(key: str, plain: Mapping[str, Any], format_: int = FORMAT) -> bytes:
    """The bytes of a manifest.

    Args:
        key: Where it is to be written.
        plain: Fields of the manifest but `format`; at least one.
        format_: Format of the manifest.

    Raises:
        TierError: it has more bytes than a reader would take.
    """
    return _measured(key, with_checksum(_canonical(plain, format_)))


def encode_named_by_digest(key: str, plain: Mapping[str, Any]) -> bytes:
    """The bytes of a manifest whose name is the digest of them, so that it needs no checksum. See `encode`.

    Raises:
        TierError: it has more bytes than a reader would take.
    """
    return _measured(key, _canonical(plain, FORMAT))


def _canonical(plain: Mapping[str, Any], format_: int) -> bytes:
    fields = json.dumps(plain, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return f'{{"format":{format_},{fields[1:]}'.encode()


def _measured(key: str, body: bytes) -> bytes:
    if len(body) > MANIFEST_BYTES_MAX:
        raise TierError(
            f"{key} would have {len(body)} bytes, more than the {MANIFEST_BYTES_MAX} that a manifest may have: "
            f"what it names must be merged before more is added"
        )
    return body


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")


_DECODER: Final = json.JSONDecoder(parse_constant=_refuse)


class Row:
    """A list of values that is being read, by position.

    Args:
        key: Key of the manifest.
        where: The list within it, for messages.
        value: What stands there.
        length: How many values it must have.
    """

    __slots__ = ("_key", "_values", "_where")

    def __init__(self, key: str, where: str, value: object, length: int) -> None:
        if type(value) is not list or len(value) != length:
            raise ManifestCorruptError(key, f"{where} is not a list of {length} values")
        self._key = key
        self._where = where
        self._values: Any = value

    def bad(self, at: Any, why: str) -> ManifestCorruptError:
        """An error that names the field."""
        return ManifestCorruptError(self._key, f"{self._where}[{at}] {why}")

    def number(self, at: Any, least: int = 0, most: int = INT64_MAX) -> int:
        """An integer between `least` and `most`, both included."""
        value = self._values[at]
        if type(value) is not int or not least <= value <= most:
            raise self.bad(at, f"is not an integer from {least} to {most}")
        return value

    def text(self, at: Any, pattern: re.Pattern[str]) -> str:
        """A string that is what `pattern` says from end to end."""
        value = self._values[at]
        if type(value) is not str or pattern.fullmatch(value) is None:
            raise self.bad(at, f"is not a string like {pattern.pattern}")
        return value

    def flag(self, at: Any) -> bool:
        """True or false."""
        value = self._values[at]
        if type(value) is not bool:
            raise self.bad(at, "is neither true nor false")
        return value

    def is_null(self, at: Any) -> bool:
        """Whether there is no value."""
        return self._values[at] is None

    def setsum(self, at: Any) -> Setsum:
        """A setsum, 64 hexadecimal digits."""
        text = self.text(at, _SETSUM)
        try:
            return Setsum.from_hex(text)
        except ValueError as error:
            raise self.bad(at, "is not a setsum") from error

    def list(self, at: Any) -> list[Any]:
        """A list of anything."""
        value = self._values[at]
        if type(value) is not list:
            raise self.bad(at, "is not a list")
        return value

    def texts(self, at: Any, pattern: re.Pattern[str]) -> tuple[str, ...]:
        """A list of strings that are what `pattern` says."""
        values = self.list(at)
        if any(type(value) is not str or pattern.fullmatch(value) is None for value in values):
            raise self.bad(at, f"is not a list of strings like {pattern.pattern}")
        return tuple(values)

    def mapping(self, at: Any) -> dict[str, Any]:
        """An object of anything."""
        value = self._values[at]
        if type(value) is not dict:
            raise self.bad(at, "is not an object")
        return value

    def row(self, at: Any, length: int) -> Row:
        """A list of `length` values."""
        return Row(self._key, f"{self._where}[{at}]", self._values[at], length)

    def rows(self, at: Any, length: int) -> Iterator[Row]:
        """The lists in a list, each of `length` values."""
        for number, value in enumerate(self.list(at)):
            yield Row(self._key, f"{self._where}[{at}][{number}]", value, length)

    def objects(self, at: Any, names: Collection[str], optional: Collection[str] = ()) -> Iterator[Fields]:
        """The objects in a list, each with the fields `names`."""
        for number, value in enumerate(self.list(at)):
            yield Fields(self._key, f"{self._where}[{at}][{number}]", value, names, optional)


class Fields(Row):
    """An object that is being read, by the names of its fields.

    Args:
        key: Key of the manifest.
        where: The object within it, for messages.
        value: What stands there.
        names: The fields that it must have.
        optional: Fields that it may have.
    """

    __slots__ = ()

    def __init__(
        self, key: str, where: str, value: object, names: Collection[str], optional: Collection[str] = ()
    ) -> None:
        if type(value) is not dict:
            raise ManifestCorruptError(key, f"{where} is not an object")
        for name in names:
            if name not in value:
                raise ManifestCorruptError(key, f"{where}[{name}] is missing")
        if len(value) > len(names):
            for name in value:
                if name not in names and name not in optional:
                    raise ManifestCorruptError(key, f"{where}[{name!r:.40}] is not a field that belongs there")
        self._key = key
        self._where = where
        self._values = value

    @classmethod
    def of_body(
        cls,
        key: str,
        body: bytes,
        names: Collection[str],
        *,
        optional: Collection[str] = (),
        is_named_by_digest: bool = False,
        newest: int = FORMAT,
    ) -> Fields:
        """Begin to read a manifest.

        Args:
            key: Key of the manifest.
            body: Bytes of the manifest.
            names: The fields that it must have, without `format` and the checksum.
            optional: Fields that it may have.
            is_named_by_digest: Whether it has no checksum; who reads it has compared its name with the digest of its
                bytes.
            newest: The newest format of such a manifest.

        Raises:
            ManifestCorruptError: its checksum is wrong, it is not JSON, too long, too old, or has other fields.
            BucketVersionError: its format is newer than ours.
        """
        if len(body) > MANIFEST_BYTES_MAX:
            raise ManifestCorruptError(key, f"{len(body)} bytes are more than a manifest may have")
        # First of all, so that one whose format was changed is not taken for that of a newer program.
        has_checksum = _is_checked(key, body)
        try:
            value = _DECODER.decode(body.decode())
        except (ValueError, RecursionError) as error:
            raise ManifestCorruptError(key, f"it is not JSON ({error}). {PUT_BACK}") from error
        found = value.get("format") if type(value) is dict else None
        if type(found) is not int or found < 1:
            raise ManifestCorruptError(key, "manifest[format] is not an integer above 0")
        if found > newest:
            raise BucketVersionError(
                f"{key} was written by a newer liftpy, in format {found}; this one reads format {newest}: upgrade it"
            )
        if found < FORMAT:
            raise ManifestCorruptError(
                key, f"it has format {found}, of before the first release; this liftpy reads format {newest}"
            )
        if is_named_by_digest:
            return cls(key, "manifest", value, ("format", *names), optional)
        if not has_checksum:
            raise ManifestCorruptError(key, f"it does not end with a checksum, as format {found} must. {PUT_BACK}")
        return cls(key, "manifest", value, ("format", *names, CHECKSUM), optional)

    def has(self, name: str) -> bool:
        """Whether an optional field is there."""
        return name in self._values
