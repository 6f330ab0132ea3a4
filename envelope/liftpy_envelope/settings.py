"""Build a configuration dataclass from what a person or a program wrote, with errors that name the field.

Understands fields of type `str`, `int`, `float`, `bool`, a `StrEnum`, `tuple[str, ...]`, any of them `| None`, and
nested dataclasses. Values are checked, never guessed: `"yes"` is not a boolean and `1.5` is not a whole number. From
an environment or a flag everything arrives as text; `from_text` converts that first.
"""

from __future__ import annotations

import difflib
import json
from dataclasses import MISSING, fields, is_dataclass
from enum import StrEnum
from functools import cache
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, TypeVar, Union, get_args, get_origin, get_type_hints

from liftpy_envelope.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["check_names", "describe", "from_text", "parse_settings", "to_plain"]

T = TypeVar("T")


def parse_settings(kind: type[T], given: object, path: str = "") -> T:
    """Build a dataclass from a mapping.

    Args:
        kind: A dataclass whose fields are of the types named above.
        given: The mapping, for example from TOML or JSON.
        path: Where the mapping stands, for the messages.

    Raises:
        ConfigError: a field is unknown (the nearest known one is named), missing, or of the wrong type.
    """
    if not isinstance(given, dict):
        raise ConfigError(path or "settings", f"must be a table of settings, not {_with_type(given)}")
    prefix = f"{path}." if path else ""
    known = {field.name: field for field in fields(kind)}  # type: ignore[arg-type]
    check_names(kind, given, prefix)
    hints = _hints(kind)  # type: ignore[arg-type]  # mypy takes a class for something that has no hash
    values = {name: _convert(hints[name], value, prefix + name) for name, value in given.items()}
    for name, field in known.items():
        if name not in values and field.default is MISSING and field.default_factory is MISSING:
            raise ConfigError(prefix + name, "is missing")
    return kind(**values)


@cache  # a snapshot of the metadata holds thousands of configurations
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


def to_plain(settings: object) -> dict[str, Any]:
    """The mapping that `parse_settings` would read back."""
    plain: dict[str, Any] = {}
    for field in fields(settings):  # type: ignore[arg-type]
        value = getattr(settings, field.name)
        if is_dataclass(value):
            value = to_plain(value)
        elif isinstance(value, StrEnum):
            value = value.value
        elif isinstance(value, tuple):
            value = list(value)
        plain[field.name] = value
    return plain


def from_text(kind: type, name: str, text: str) -> Any:
    """Convert the text of an environment variable or flag to the plain type of a field.

    Raises:
        ConfigError: the text does not spell a value of that type.
    """
    accepted = _alternatives(_hints(kind)[name])
    if NoneType in accepted and text.lower() in {"", "none"}:
        return None
    if any(choice is str or (isinstance(choice, type) and issubclass(choice, StrEnum)) for choice in accepted):
        return text
    if any(get_origin(choice) is tuple for choice in accepted):
        return [item.strip() for item in text.split(",") if item.strip()]
    try:
        value = json.loads(text.lower())
    except (ValueError, RecursionError):
        raise ConfigError(name, f"{text!r:.60} is not {_wanted(accepted)}") from None
    return value


def _alternatives(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in {Union, UnionType} else (hint,)


def _convert(hint: Any, value: Any, path: str) -> Any:
    accepted = _alternatives(hint)
    for choice in accepted:
        if choice is NoneType and value is None:
            return None
        if isinstance(choice, type) and is_dataclass(choice):
            return value if isinstance(value, choice) else parse_settings(choice, value, path)
        if isinstance(choice, type) and issubclass(choice, StrEnum) and isinstance(value, str):
            return _choose(choice, value, path)
        if get_origin(choice) is tuple and isinstance(value, (list, tuple)) and all(isinstance(v, str) for v in value):
            return tuple(value)
        if choice is float and isinstance(value, (int, float)) and not isinstance(value, bool):
            return _to_float(value, path)
        if choice in {str, int, bool} and type(value) is choice:
            return value
    raise ConfigError(path, f"must be {_wanted(accepted)}, not {_with_type(value)}")


def _to_float(value: float, path: str) -> float:
    try:
        return float(value)
    except OverflowError:
        raise ConfigError(path, f"{describe(value)} is too large for a number") from None


def _choose(kind: type[StrEnum], value: str, path: str) -> StrEnum:
    try:
        return kind(value)
    except ValueError:
        choices = ", ".join(kind)
        raise ConfigError(path, f"{value!r:.60} is not one of {choices}{_nearest(value, list(kind))}") from None


_WANTED = {str: "a string", int: "a whole number", float: "a number", bool: "true or false", NoneType: "none"}


def _wanted(accepted: tuple[Any, ...]) -> str:
    names = []
    for choice in accepted:
        if get_origin(choice) is tuple:
            names.append("a list of strings")
        elif isinstance(choice, type) and issubclass(choice, StrEnum):
            names.append(f"one of {', '.join(choice)}")
        else:
            names.append(_WANTED.get(choice, "a table of settings"))
    return " or ".join(names)


def describe(value: object) -> str:
    """A value in an error message, whatever it is and at no great length."""
    try:
        return f"{value!r:.60}"
    except (ValueError, RecursionError):  # an integer of thousands of digits, or lists in lists without end
        return "a value too large to print"


def _with_type(value: object) -> str:
    return f"{describe(value)} ({type(value).__name__})"


def check_names(kind: type[Any], names: Iterable[object], prefix: str = "") -> None:
    """Refuse names that are not fields of a dataclass.

    Raises:
        ConfigError: a name is unknown; the nearest known one is named.
    """
    known = [field.name for field in fields(kind)]
    for name in names:
        if name not in known:
            shown = name if isinstance(name, str) else describe(name)
            raise ConfigError(f"{prefix}{shown:.80}", f"unknown setting{_nearest(shown, known)}")


def _nearest(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {close[0]}?" if close else ""
