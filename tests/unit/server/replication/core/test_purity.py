"""The core takes values and `now`: it imports nothing that waits, reads a clock, draws lots or does I/O."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from liftpy_server.gaps import gap
from liftpy_server.metadata import (
    changes,
    commands,
    elections,
    gap_commands,
    node_commands,
    partition_commands,
    recovery,
    state,
)
from liftpy_server.replication import core

MODULES = [
    *sorted(Path(core.__file__).parent.glob("*.py")),
    *(
        Path(module.__file__ or "")
        for module in (
            changes,
            commands,
            elections,
            gap,
            gap_commands,
            node_commands,
            partition_commands,
            recovery,
            state,
        )
    ),
]
ALLOWED = {
    "__future__", "collections", "collections.abc", "dataclasses", "enum", "types", "typing", "zlib", "msgpack",
    "liftpy_envelope", "liftpy_log.epochs", "liftpy_log.log_time", "liftpy_server.metadata",
    "liftpy_server.gaps.gap", "liftpy_server.replication.core",
}  # fmt: skip


@pytest.mark.parametrize("path", MODULES, ids=lambda path: f"{path.parent.name}.{path.stem}")
def test_the_core_is_pure(path):
    imported = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            imported.add(node.module)
        elif isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
    impure = {name for name in imported if not any(name == good or name.startswith(f"{good}.") for good in ALLOWED)}
    assert impure == set()
