"""The house stays tidy: small functions, nothing dead, nothing unfinished, nothing of this machine."""

from __future__ import annotations

import ast
import importlib
import re
import tomllib
from pathlib import Path

import pytest

from liftpy.cli.app import MODULES as COMMAND_MODULES

ROOT = Path(__file__).parents[1]
SOURCES = [ROOT / name for name in ("liftpy", "envelope", "server", "clients")]
MODULES = sorted(path for source in SOURCES for path in source.rglob("*.py"))
FUNCTION_LINES_MAX = 70
LINE_COLUMNS_MAX = 120
ENTRY_POINTS = {"liftpy.__main__", "liftpy_server.canary.child", "liftpy_server.compaction.worker"}


def name_of(path: Path) -> str:
    parts = path.relative_to(next(source for source in SOURCES if path.is_relative_to(source))).with_suffix("").parts
    return ".".join(parts).removesuffix(".__init__")


def texts() -> list[Path]:
    tops = (
        "README.md",
        "ARCHITECTURE.md",
        "CONTRIBUTING.md",
        "CHANGELOG.md",
        "Makefile",
        "pyproject.toml",
        "nats.conf",
    )
    folders = (*SOURCES, ROOT / "tests", ROOT / "bench", ROOT / "docs", ROOT / "examples", ROOT / ".ci")
    files = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
    wanted = {".py", ".md", ".toml", ".conf", ""}
    return [ROOT / top for top in tops] + [
        path for path in files if path.suffix in wanted and "results" not in path.parts
    ]


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_functions_are_small(path):
    too_long = [
        f"{node.name} ({node.end_lineno - node.lineno + 1} lines)"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        and node.end_lineno - node.lineno + 1 > FUNCTION_LINES_MAX
    ]
    assert too_long == []


def test_every_module_is_used():
    imported = set()
    for path in [*MODULES, *(ROOT / "tests").rglob("*.py"), *(ROOT / "bench").rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module:
                imported.add(node.module)
                imported |= {f"{node.module}.{alias.name}" for alias in node.names}
            elif isinstance(node, ast.Import):
                imported |= {alias.name for alias in node.names}
    imported |= set(COMMAND_MODULES.values())  # when they are called
    packages = {name_of(path) for path in MODULES if path.name == "__init__.py"}
    dead = [name for name in map(name_of, MODULES) if name not in imported | packages | ENTRY_POINTS]
    assert dead == []


@pytest.mark.parametrize("room", ["simulation", "support"])
def test_what_tests_share_can_be_imported(room):
    """Also what no quick test imports: the worlds of the simulations are run by hand and in long runs."""
    for path in sorted((ROOT / "tests" / room).glob("*.py")):
        importlib.import_module(f"{room}.{path.stem}".removesuffix(".__init__"))


def test_only_one_module_decodes_msgpack():
    """Whatever comes from outside is bounded before it is decoded: see liftpy_envelope.unpacking."""
    decoder = re.compile(r"\bmsgpack\.(unpack|load|Unpacker|fallback)|\bfrom msgpack\b")
    found = {name_of(path) for path in MODULES if decoder.search(path.read_text())}
    assert found == {"liftpy_envelope.unpacking"}


def test_every_package_is_typed_and_shipped():
    packages = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"][
        "packages"
    ]
    found = {str(path.parent.relative_to(ROOT)) for source in SOURCES for path in source.glob("*/__init__.py")}
    assert set(packages) == found
    assert all((ROOT / package / "py.typed").is_file() for package in packages)


def pages() -> list[Path]:
    """Every page: those that begin at the top, and those below the folders of `docs` and `examples`."""
    return sorted(
        path for top in (".", "docs", "examples") for path in (ROOT / top).glob("*.md" if top == "." else "**/*.md")
    )


def without_code(page: Path) -> str:
    return re.sub(r"^ *```.*?^ *```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_lines_of_the_pages_are_of_usual_width(page):
    """Tables and what programs print excepted."""
    lines = re.sub(r"^ *\|.*$|^ {7}.*$", "", without_code(page), flags=re.MULTILINE).splitlines()
    assert [line for line in lines if len(line) > LINE_COLUMNS_MAX] == []


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    found: set[str] = set()
    for heading in re.findall(r"^#+ +(.*?) *$", without_code(page), re.MULTILINE):
        slug = re.sub(r"[^\w -]", "", re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower()).replace(" ", "-")
        found.add(slug if slug not in found else f"{slug}-1")
    return found


def links(page: Path) -> list[tuple[Path, str]]:
    """File and anchor of each link of a page that is not to another host."""
    found = re.findall(r"\]\((?!https?://)([^)#\s]*)(?:#([^)\s]*))?\)", without_code(page))
    return [((page.parent / target).resolve() if target else page, anchor) for target, anchor in found]


def test_every_page_of_the_docs_is_linked():
    linked = {target for page in pages() for target, _ in links(page) if target != page}
    assert {page for page in pages() if page.parent != ROOT} - linked == set()


def test_every_page_of_the_docs_is_in_a_menu_of_the_site():
    menus = set(re.findall(r"([\w/-]+\.md)", (ROOT / "mkdocs.yml").read_text()))
    found = {str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")}
    assert found - menus - {"README.md"} == set()  # which is there as pages.md


def test_links_of_the_pages_lead_somewhere():
    broken = [
        f"{page.relative_to(ROOT)}: {target.relative_to(ROOT)}#{anchor}"
        for page in pages()
        for target, anchor in links(page)
        if not target.exists() or (anchor and anchor not in anchors(target))
    ]
    assert broken == []


def test_pages_that_are_named_are_there():
    """Code, errors and tests name a page by its path from the top."""
    missing = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in texts()
        for name in re.findall(r"(?<![\w/.])docs/[\w/-]+\.\w+", path.read_text(errors="replace"))
        if not (ROOT / name).is_file()
    ]
    assert missing == []


def test_every_test_of_a_promise_is_there():
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", (ROOT / "CONTRIBUTING.md").read_text())
    assert named
    missing = [f"{path}::{name}" for path, name in named if f"def {name}(" not in (ROOT / path).read_text()]
    assert missing == []


@pytest.mark.parametrize("page", ["ARCHITECTURE.md", "CONTRIBUTING.md"])
def test_paths_of_the_maps_lead_somewhere(page):
    """A word in backticks that begins with a folder of the repository is a path in it."""
    folders = "|".join(re.escape(path.name) for path in ROOT.iterdir() if path.is_dir() and path.name != "build")
    named = re.findall(rf"`((?:{folders})/[^`\s:]+)", (ROOT / page).read_text())
    assert named
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_nothing_is_unfinished_or_of_one_machine():
    marks = re.compile(r"\b(TO" + r"DO|FIX" + r"ME|XX" + r"X)\b|(?<!\w)/" + r"(work/|root/|tmp/lab)")
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in texts()
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1)
        if marks.search(line)
    ]
    assert found == []
