"""The coordinator takes values and the time: it imports nothing that waits, reads a clock, draws lots or does I/O."""

import ast
from pathlib import Path

import pytest

from liftpy_server.groups import core

ALLOWED = {
    "__future__", "collections.abc", "dataclasses", "heapq", "struct", "typing", "msgpack", "pyarrow",
    "liftpy_envelope", "liftpy_server.groups.core",
}  # fmt: skip


@pytest.mark.parametrize("path", sorted(Path(core.__file__).parent.glob("*.py")), ids=lambda path: path.stem)
def test_the_core_is_pure(path):
    imported = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            imported.add(node.module)
        elif isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
    impure = {name for name in imported if not any(name == good or name.startswith(f"{good}.") for good in ALLOWED)}
    assert impure == set()
