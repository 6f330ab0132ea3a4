"""Options as Spark hands them over, text by text, checked one by one: a mistake is named, and what would be right."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, overload

from liftpy_envelope.errors import LiftError
from liftpy_spark.options.hints import hint_for

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["OptionError", "Options", "UnknownOptionError"]

_SHOWN_CHARS_MAX: Final = 80
_BOOLEANS: Final = {"true": True, "false": False}
_EMPTY: Final = "it is empty; leave it out, or give it a value"
_LONG_MAX: Final = 2**63 - 1


class OptionError(LiftError):
    """An option that a user gave means nothing; the message names it, its value, and what would be right.

    Args:
        option: Name of the option, as the documentation spells it.
        message: What is wrong with it.

    Attributes:
        option: Name of the option.
    """

    def __init__(self, option: str, message: str) -> None:
        super().__init__(f"option {option!r}: {message}")
        self.option = option


class UnknownOptionError(OptionError):
    """There is no option of this name.

    Args:
        option: Name of the option.
        hint: What may have been meant.
    """

    def __init__(self, option: str, hint: str) -> None:
        LiftError.__init__(self, f"unknown option {option!r}; {hint}")
        self.option = option


class Options:
    """Options by name; upper and lower case are the same, since Spark hands names over in lower case.

    Args:
        given: Options, as Spark hands them over.
        known: Names that mean something, as the documentation spells them.
        aliases: Other names for some of them.

    Raises:
        OptionError: one is unknown, or is given by two of its names.
    """

    def __init__(
        self, given: Mapping[str, str], known: Sequence[str], aliases: Mapping[str, str] | None = None
    ) -> None:
        spelled = {name.lower(): name for name in known}
        spelled |= {other.lower(): name for other, name in (aliases or {}).items()}
        self._values: dict[str, str] = {}
        for key, value in given.items():
            name = spelled.get(key.lower())
            if name is None:
                raise UnknownOptionError(key, hint_for(key, spelled))
            if name in self._values:
                raise OptionError(name, f"it is given twice, also as {key!r}; give it once")
            self._values[name] = value

    def __contains__(self, name: str) -> bool:
        return name in self._values

    @overload
    def text(self, name: str, default: str) -> str: ...
    @overload
    def text(self, name: str, default: None = None) -> str | None: ...
    def text(self, name: str, default: str | None = None) -> str | None:
        """The text of an option.

        Raises:
            OptionError: it is empty.
        """
        value = self._values.get(name)
        if value is None:
            return default
        if not value.strip():
            raise OptionError(name, _EMPTY)
        return value.strip()

    def exact(self, name: str) -> str | None:
        """The text of an option as it was given: spaces count.

        Raises:
            OptionError: it is empty.
        """
        value = self._values.get(name)
        if value == "":
            raise OptionError(name, _EMPTY)
        return value

    @overload
    def integer(self, name: str, default: int, least: int = ..., most: int = ...) -> int: ...
    @overload
    def integer(self, name: str, default: None = None, least: int = ..., most: int = ...) -> int | None: ...
    def integer(self, name: str, default: int | None = None, least: int = 0, most: int = _LONG_MAX) -> int | None:
        """The whole number of an option.

        Raises:
            OptionError: it is none, or is less than `least` or more than `most`.
        """
        text = self.text(name)
        if text is None:
            return default
        try:
            value = int(text)
        except ValueError:
            raise OptionError(name, f"{_shown(text)} is not a whole number") from None
        if not least <= value <= most:
            raise OptionError(name, f"{_shown(text)} is not between {least} and {most}")
        return value

    def boolean(self, name: str, default: bool) -> bool:  # noqa: FBT001 (an option's default stands beside its name)
        """Whether an option says true.

        Raises:
            OptionError: it says neither `true` nor `false`.
        """
        text = self.text(name)
        if text is None:
            return default
        if text.lower() not in _BOOLEANS:
            raise OptionError(name, f"{_shown(text)} is neither true nor false")
        return _BOOLEANS[text.lower()]

    def json(self, name: str) -> Any:
        """What the JSON of an option says; None when it is not given.

        Raises:
            OptionError: it is not JSON.
        """
        text = self.text(name)
        if text is None:
            return None
        try:
            return json.loads(text, object_pairs_hook=_without_doubles)
        except _DoubleKeyError as error:
            raise OptionError(name, f"{_shown(text)} names {error} twice") from None
        except (ValueError, RecursionError) as error:
            raise OptionError(name, f"{_shown(text)} is not JSON: {error}") from None

    def millis(self, name: str, default: int, least: int = 0, *, since: str = "") -> int:
        """Milliseconds: a span, or a time.

        Args:
            name: Name of the option.
            default: Where it is not given.
            least: The least number that means something.
            since: What a time is counted from, for messages.

        Raises:
            OptionError: it is not a whole number, or is less than `least`.
        """
        try:
            return self.integer(name, default, least)
        except OptionError as error:
            raise OptionError(name, f"{_message(error)}; it is in milliseconds{since}") from None


class _DoubleKeyError(Exception):
    """A JSON object has a key twice."""


def _without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise _DoubleKeyError(next(repr(key) for at, (key, _) in enumerate(pairs) if key in dict(pairs[:at])))
    return found


def _shown(text: str) -> str:
    return repr(text) if len(text) <= _SHOWN_CHARS_MAX else repr(text[:_SHOWN_CHARS_MAX]) + "..."


def _message(error: OptionError) -> str:
    return str(error).removeprefix(f"option {error.option!r}: ")
