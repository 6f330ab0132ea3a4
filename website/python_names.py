"""The references of the Python API and of its errors, from docstrings."""

from __future__ import annotations

import inspect
import re
from typing import TYPE_CHECKING, Any

import liftpy

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["errors_page", "python_page"]

PYTHON = """# Python

Every name of `import liftpy`, from its docstring. [Publish](../howto/publish.md) and [consume](../howto/consume.md)
begin with examples. [Errors](errors.md) have a page of their own. `connect_sync` returns a `SyncLift`, which has the
methods of `Lift` without `await`.
"""
ERRORS = """# Errors

Every error that `import liftpy` offers. All of them are `LiftError`. Errors that may pass have `retriable = True`: the
same call may succeed later. [Refusals of messages](publish-protocol.md#ack-error-codes) have numbers of their own.
"""
SECTIONS = {
    "Connect": ["connect", "Lift", "connect_sync", "SyncLift"],
    "Publish": ["Publisher", "PendingAck", "Ack", "AckPolicy", "SyncPublisher"],
    "Consume": ["Consumer", "BatchConsumer", "Message", "ConsumeOptions", "SyncConsumer"],
    "Groups": ["GroupConsumer", "GroupOptions", "Committed", "Retry", "Batch", "SyncGroupConsumer"],
    "Tables": ["Table", "Changes", "Change", "SyncTable"],
    "Typed streams": ["TypedStream", "TypedConsumer", "TypedMessage", "Codec", "json", "msgpack", "protobuf", "avro"],
    "Tracing": ["Interceptor", "otel"],
}
OTHERS = "Streams, nodes and settings"
HEADINGS = ("Args", "Attributes", "Raises", "Returns", "Yields")


def python_page() -> str:
    """The page of all names but errors, in Markdown."""
    placed = {name for names in SECTIONS.values() for name in (*names, "SyncTypedStream")}
    rest = sorted(name for name in liftpy.__all__ if name not in placed and not _is_error(getattr(liftpy, name)))
    parts = [PYTHON]
    for title, names in {**SECTIONS, OTHERS: rest}.items():
        parts.append(f"## {title}\n")
        for name in [*names, "SyncTypedStream"] if title == "Typed streams" else names:
            parts += _entry(name, getattr(liftpy, name))
    return "\n".join(parts)


def errors_page() -> str:
    """The page of errors, in Markdown."""
    parts = [ERRORS]
    for name in sorted(liftpy.__all__):
        error = getattr(liftpy, name)
        if _is_error(error):
            bases = ", ".join(f"`{base.__name__}`" for base in error.__bases__)
            parts += [f"## {name}\n", f"Is a {bases}.{' **Retriable.**' if error.retriable else ''}\n"]
            parts.append(_doc(error))
    return "\n".join(parts)


def _is_error(value: Any) -> bool:
    return inspect.isclass(value) and issubclass(value, liftpy.LiftError)


def _entry(name: str, value: Any) -> Iterator[str]:
    yield f"### {name}\n"
    if not inspect.isclass(value):
        yield f"```python\n{name}{_signature(value)}\n```\n"
    yield _doc(value)
    if inspect.isclass(value):
        for member, found in _members(value):
            yield f"#### {name}.{member}\n"
            called = "async " if inspect.iscoroutinefunction(found) else ""
            if inspect.isfunction(found):
                yield f"```python\n{called}{member}{_signature(found)}\n```\n"
            yield _doc(found)


def _members(value: type) -> Iterator[tuple[str, Any]]:
    """Public methods and properties that have a docstring, in the order of the class, inherited ones behind."""
    seen = set()
    for owner in value.__mro__:
        if owner.__module__.startswith("liftpy"):
            for name, found in vars(owner).items():
                plain = found.__func__ if isinstance(found, (classmethod, staticmethod)) else found
                is_member = inspect.isfunction(plain) or isinstance(plain, property)
                if is_member and not name.startswith("_") and name not in seen and plain.__doc__:
                    seen.add(name)
                    yield name, plain


def _signature(function: Any) -> str:
    """The signature, one parameter a line if it is long, without `self` and quotes."""
    signature = inspect.signature(function)
    kept = [parameter for name, parameter in signature.parameters.items() if name not in {"self", "cls"}]
    signature = signature.replace(parameters=kept)
    short = re.sub(r"'([^']*)'", r"\1", str(signature))
    if len(short) <= 90:
        return short
    parts, stars = [], False
    for parameter in kept:
        if parameter.kind is parameter.KEYWORD_ONLY and not stars:
            parts.append("*")
        stars = stars or parameter.kind in {parameter.KEYWORD_ONLY, parameter.VAR_POSITIONAL}
        parts.append(re.sub(r"(?<=: )'([^']*)'", r"\1", str(parameter)))
    returns = short.rpartition(" -> ")[2]
    return "(\n" + "".join(f"    {part},\n" for part in parts) + f") -> {returns}"


def _doc(value: Any) -> str:
    """A docstring as Markdown: its sections as lists."""
    lines, inside = [], False
    for line in (inspect.getdoc(value) or "").splitlines():
        if line.rstrip(":") in HEADINGS and line.endswith(":"):
            lines += [f"**{line}**", ""]
            inside = True
        elif inside and line.strip():
            found = re.match(r"    (\S[\w*, .]*): (.*)", line)
            if found is not None:
                lines.append(f"- `{found[1]}`: {found[2]}")
            elif lines[-1].startswith(("- ", "  ")):
                lines.append(f"  {line.strip()}")
            else:
                lines.append(line.strip())
        else:
            inside = inside and not line.strip()
            lines.append(line)
    return "\n".join(lines) + "\n"
