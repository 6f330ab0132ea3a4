"""The settings that the documentation shows are ones that a node takes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from liftpy_server.settings.config import load_config

DOCS = Path(__file__).parents[3] / "docs"
BLOCK = re.compile(r"^```toml\n(.*?)^```", re.MULTILINE | re.DOTALL)


def examples():
    for page in sorted(DOCS.rglob("*.md")):
        for number, text in enumerate(BLOCK.findall(page.read_text())):
            yield pytest.param(text, id=f"{page.name}:{number}")


@pytest.mark.parametrize("text", list(examples()))
def test_an_example(text, tmp_path):
    path = tmp_path / "liftpy.toml"
    path.write_text(text)
    load_config(path, {}, {})
