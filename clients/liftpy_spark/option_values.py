"""Options as Spark hands them over, text by text, checked one by one: a mistake is named, and what would be right."""

from __future__ import annotations

import difflib
import json
from typing import TYPE_CHECKING, Any, Final, overload

from liftpy_envelope.errors import LiftError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["OptionError", "Options", "UnknownOptionError"]

_SHOWN_CHARS_MAX: Final = 80
_BOOLEANS: Final = {"true": True, "false": False}
_EMPTY: Final = "it is empty; leave it out, or give it a value"
_LONG_MAX: Final = 2**63 - 1
_NO_GROUP: Final = "a query is no consumer group, and keeps its offsets in its checkpoint; leave it out"
_NO_WAITING: Final = "a batch waits for nothing; let batches begin less often: trigger(processingTime='1 minute')"
_NO_CHOICE: Final = "how long nodes are waited for is fixed; leave it out"
_OF_KAFKA: Final = {
    "kafka.bootstrap.servers": "NATS takes the place of the brokers: the option 'servers' says where it is",
    "topic": "what to write to is said by 'stream', what to read by 'subscribe'",
    "kafka.group.id": _NO_GROUP,
    "groupidprefix": _NO_GROUP,
    "minoffsetspertrigger": _NO_WAITING,
    "maxtriggerdelay": _NO_WAITING,
    "kafkaconsumer.polltimeoutms": _NO_CHOICE,
    "fetchoffset.numretries": _NO_CHOICE,
    "fetchoffset.retryintervalms": _NO_CHOICE,
    "maxrecordsperpartition": "'minPartitions' makes more tasks, and so smaller ones",
    "includeheaders": "headers are written where there is a column headers; leave it out",
}
"""What to do in place of options of Spark's Kafka connector that are none here, by their names in lower case."""


_SECRETS: Final = ("accesskey", "secretkey", "secretaccess", "sessiontoken")
_NO_SECRETS: Final = (
    "credentials of the bucket are no options, which Spark may show: the environment of driver and executors has them, "
    "as AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, AWS_PROFILE, or the role of the machine"
)


class OptionError(LiftError):
    """An option that a user gave means nothing; the message names it, its value, and what would be right.

    Args:
        option: its name, as the documentation spells it.
        message: what is wrong with it.

    Attributes:
        option: its name.
    """

    def __init__(self, option: str, message: str) -> None:
        super().__init__(f"option {option!r}: {message}")
        self.option = option


class UnknownOptionError(OptionError):
    """There is no option of this name.

    Args:
        option: the name.
        hint: what may have been meant.
    """

    def __init__(self, option: str, hint: str) -> None:
        LiftError.__init__(self, f"unknown option {option!r}; {hint}")
        self.option = option


class Options:
    """Options by name; upper and lower case are the same, since Spark hands names over in lower case.

    Args:
        given: as Spark hands them over.
        known: names that mean something, as the documentation spells them.
        aliases: other names for some of them.

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
                raise _unknown(key, spelled)
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
    def integer(self, name: str, default: int, least: int = ...) -> int: ...
    @overload
    def integer(self, name: str, default: None = None, least: int = ...) -> int | None: ...
    def integer(self, name: str, default: int | None = None, least: int = 0) -> int | None:
        """The whole number of an option.

        Raises:
            OptionError: it is none, or is less than `least`.
        """
        return self._integer(name, default, least)

    def _integer(self, name: str, default: int | None, least: int) -> int | None:
        text = self.text(name)
        if text is None:
            return default
        try:
            value = int(text)
        except ValueError:
            raise OptionError(name, f"{_shown(text)} is not a whole number") from None
        if not least <= value <= _LONG_MAX:
            raise OptionError(name, f"{_shown(text)} is not between {least} and {_LONG_MAX}")
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

    @overload
    def millis(self, name: str, default: int, least: int = ...) -> int: ...
    @overload
    def millis(self, name: str, default: None = None, least: int = ...) -> int | None: ...
    def millis(self, name: str, default: int | None = None, least: int = 0) -> int | None:
        """Milliseconds: a span, or a time since 1970-01-01 in UTC.

        Raises:
            OptionError: it is not a whole number, or is less than `least`.
        """
        try:
            return self._integer(name, default, least)
        except OptionError as error:
            raise OptionError(name, f"{_message(error)}; it is in milliseconds") from None


class _DoubleKeyError(Exception):
    """A JSON object has a key twice."""


def _without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise _DoubleKeyError(next(repr(key) for at, (key, _) in enumerate(pairs) if key in dict(pairs[:at])))
    return found


def _unknown(key: str, spelled: Mapping[str, str]) -> OptionError:
    if key.lower() == "path":
        return UnknownOptionError(key, "load() and save() take no path here; streams are named by options of their own")
    habit = _OF_KAFKA.get(key.lower())
    if habit is None and key.lower().startswith("kafka."):
        habit = "options of Kafka's clients mean nothing to NATS; leave it out"
    letters = "".join(filter(str.isalnum, key.lower()))
    if any(secret in letters for secret in _SECRETS):
        habit = _NO_SECRETS
    if habit is not None:
        return UnknownOptionError(key, habit)
    near = difflib.get_close_matches(key.lower(), spelled, n=1)
    known = ", ".join(sorted(set(spelled.values()), key=str.lower))
    hint = f"did you mean {spelled[near[0]]!r}?" if near else f"the options are {known}"
    return UnknownOptionError(key, hint)


def _shown(text: str) -> str:
    return repr(text) if len(text) <= _SHOWN_CHARS_MAX else repr(text[:_SHOWN_CHARS_MAX]) + "..."


def _message(error: OptionError) -> str:
    return str(error).removeprefix(f"option {error.option!r}: ")
