"""The reference of the command line, from the commands themselves."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import typer

from liftpy.cli.app import SUMMARIES, app

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["command_line_page"]

INTRODUCTION = """# Command line

Every command of `liftpy` with its options, as `--help` shows them. [The command line](../howto/command-line.md) has
examples, and what all commands have in common.
"""


def command_line_page() -> str:
    """The page, in Markdown."""
    root = typer.main.get_command(app)
    parts = [INTRODUCTION, "## liftpy\n", "Options before the name of a command.\n", _options(root)]
    for name in SUMMARIES:
        parts += _command(root.commands[name], f"liftpy {name}")
    return "\n".join(parts)


def _command(command: Any, name: str) -> Iterator[str]:
    yield f"## {name}\n"
    yield _text(command.help or "")
    for child, nested in getattr(command, "commands", {}).items():
        if not nested.hidden:
            yield from (part.replace("## ", "### ", 1) for part in _command(nested, f"{name} {child}"))
    if not hasattr(command, "commands"):
        usage = " ".join([name, *command.collect_usage_pieces(_context(command))])
        yield f"```text\n{usage}\n```\n"
        yield _options(command)


def _context(command: Any) -> Any:
    return command.make_context("liftpy", [], resilient_parsing=True)


def _options(command: Any) -> str:
    """A table of the options; nothing if there is none."""
    context = _context(command)
    rows = []
    for parameter in command.params:
        if parameter.param_type_name != "option" or parameter.hidden or parameter.name == "help":
            continue
        said = parameter.get_help_record(context)
        if said is not None:
            names, text = said
            rows.append(f"| {_cell(names)} | {_plain(text)} |")
    return "\n".join(["| option | |", "|---|---|", *rows, ""]) if rows else ""


def _text(text: str) -> str:
    """Help as Markdown: examples, which are indented lines, as a block."""
    paragraphs = []
    for paragraph in text.replace("\b\n", "").strip().split("\n\n"):
        lines = paragraph.splitlines()
        if all(line.startswith("  ") for line in lines):
            paragraphs.append("```sh\n" + "\n".join(line[2:] for line in lines) + "\n```")
        else:
            paragraphs.append(_escaped(paragraph))
    return "\n\n".join(paragraphs) + "\n"


def _cell(text: str) -> str:
    return f"`{text}`".replace("|", "\\|")


def _plain(text: str) -> str:
    return _escaped(re.sub(r"\s+", " ", text)).replace("|", "\\|")


def _escaped(text: str) -> str:
    """What Markdown would take for markup stands as it is."""
    return re.sub(r"([*_<>\[\]`])", r"\\\1", text)
