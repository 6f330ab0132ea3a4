"""What `mkdocs build` does besides: pages from outside `docs`, pages made from code, and links between all of them."""

from __future__ import annotations

import ast
import posixpath
import re
from pathlib import Path
from typing import Any

from command_line import command_line_page
from mkdocs.structure.files import File
from python_names import errors_page, python_page

ROOT = Path(__file__).parents[1]
BORROWED = {
    "README.md": "index.md",
    "docs/README.md": "pages.md",
    "ARCHITECTURE.md": "internals/architecture.md",
    "CONTRIBUTING.md": "internals/contributing.md",
    "CHANGELOG.md": "changelog.md",
    "examples": "examples/index.md",
    "examples/flights_pipeline/README.md": "examples/flights-pipeline.md",
}
"""Where the site has pages that stand outside `docs`, by their path in the repository."""
MADE = {
    "reference/command-line.md": command_line_page,
    "reference/python.md": python_page,
    "reference/errors.md": errors_page,
}
LINK = re.compile(r"\]\((?!https?://|#)([^)#\s]*)(#[^)\s]*)?\)")


def on_config(config: Any) -> Any:
    """Anchors of headings are those of GitHub, so that a link works in both places."""
    config.mdx_configs["toc"]["slugify"] = _anchor
    return config


def _anchor(heading: str, separator: str) -> str:
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", separator)


def on_files(files: Any, config: Any) -> Any:
    """Add pages that are not in `docs`."""
    for source, target in BORROWED.items():
        content = _examples() if source == "examples" else (ROOT / source).read_text()
        files.append(File.generated(config, target, content=_relinked(content, source, target)))
    for target, make in MADE.items():
        files.append(File.generated(config, target, content=make()))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Turn links that leave `docs` to where the site has their pages."""
    target = page.file.src_uri
    return markdown if page.file.generated_by else _relinked(markdown, f"docs/{target}", target)


def _relinked(markdown: str, source: str, target: str) -> str:
    """A page of the repository as one of the site."""

    def turned(match: re.Match[str]) -> str:
        wanted = posixpath.normpath(posixpath.join(posixpath.dirname(source), match[1]))
        place = BORROWED.get(wanted, wanted.removeprefix("docs/"))
        return f"]({posixpath.relpath(place, posixpath.dirname(target) or '.')}{match[2] or ''})"

    return LINK.sub(turned, markdown)


def _examples() -> str:
    """A page with the programs of `examples`."""
    parts = ["# Examples\n", "Programs that run. The [pipeline](flights_pipeline/README.md) has a page of its own.\n"]
    for path in sorted((ROOT / "examples").glob("*.py")):
        title = (ast.get_docstring(ast.parse(path.read_text())) or "").partition("\n")[0]
        parts += [f"## {path.name}\n", f"{title}\n", f"```python\n{path.read_text()}```\n"]
    return "\n".join(parts).replace("](flights_pipeline", "](examples/flights_pipeline")
