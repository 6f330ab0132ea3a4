"""Runs the unit tests that a change reaches, nearest first, for as long as a developer waits: `make quick`.

`python -m support.affected` compares the working tree with the commit that it grew from, finds every unit test that
imports a changed module, directly or through others, and gives them to pytest. What the time does not suffice for is
skipped and counted, never passed over in silence.
"""

from __future__ import annotations

import argparse
import ast
import os
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).parents[2]
SOURCES = ("liftpy", "envelope", "server", "clients", "tests")
HELPERS = ("support", "simulation")
UNITS = ROOT / "tests" / "unit"
TIDY = ROOT / "tests" / "test_tidy.py"
DEADLINE = "LIFTPY_QUICK_UNTIL"
NOTHING_FAILED = 5  # pytest's exit status where no test was selected


def git(*arguments: str) -> list[str]:
    """The lines that a git command prints."""
    done = subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True)
    return done.stdout.splitlines()


def changed_since(base: str | None) -> tuple[str, list[str]]:
    """The commit that the working tree is compared with, and the paths that differ from it or are new.

    Without `base` it is where the branch left its upstream; without an upstream, the commit before the last one where
    nothing is uncommitted, else the last one.
    """
    if base is None:
        upstream = subprocess.run(
            ["git", "merge-base", "HEAD", "@{upstream}"], cwd=ROOT, check=False, capture_output=True, text=True
        )
        base = upstream.stdout.strip() or ("HEAD" if git("status", "--porcelain") else "HEAD~1")
    return base, git("diff", "--name-only", base) + git("ls-files", "--others", "--exclude-standard")


def module_of(path: str) -> str | None:
    """The dotted name of a source file, None where it is none."""
    for source in SOURCES:
        if path.startswith(f"{source}/") and path.endswith(".py"):
            name = path.removeprefix(f"{source}/").removesuffix(".py").replace("/", ".").removesuffix(".__init__")
            return name if source != "tests" or name.split(".")[0] in HELPERS else None
    return None


def imports_of(test: Path, modules: set[str]) -> set[str]:
    """The modules that a test imports."""
    found = set()
    for node in ast.walk(ast.parse(test.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found & modules


def distances(graph: grimp.ImportGraph, changed: set[str]) -> dict[str, int]:
    """How many imports each module is away from a changed one."""
    away = dict.fromkeys(changed & graph.modules, 0)
    ring = set(away)
    while ring:
        further = {importer for module in ring for importer in graph.find_modules_that_directly_import(module)}
        ring = further - away.keys()
        away |= dict.fromkeys(ring, max(away.values()) + 1)
    return away


def reached(paths: list[str]) -> list[str]:
    """The unit tests that a change of `paths` reaches, nearest first."""
    packages = [Path(name).name for name in wheel_packages()]
    sys.path[:0] = [str(ROOT / source) for source in SOURCES]
    graph = grimp.build_graph(*packages, *HELPERS, cache_dir=str(ROOT / ".import_linter_cache"))
    away = distances(graph, {name for path in paths if (name := module_of(path))})
    near: dict[str, int] = {}
    for test in sorted(UNITS.rglob("test_*.py")):
        name = str(test.relative_to(ROOT))
        steps = [away[module] + 1 for module in imports_of(test, graph.modules) if module in away]
        if name in paths:
            near[name] = 0
        elif steps:
            near[name] = min(steps)
    return sorted(near, key=lambda name: (near[name], name))


def wheel_packages() -> list[str]:
    """The packages of the project, as paths."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    return list(project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"])


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what there is no time for."""
    if time.time() > float(os.environ.get(DEADLINE, "inf")):
        pytest.skip(f"no time left: {item.path.name} runs with `make test`")


def main() -> int:
    """Run what a change reaches; the exit status is pytest's."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--since", help="compare with this commit (default: where the branch left its upstream)")
    parser.add_argument("--seconds", type=float, default=60, help="start no test after so many seconds (default 60)")
    given = parser.parse_args()
    base, paths = changed_since(given.since or None)
    tests = reached(paths)
    print(f"{len(paths)} files differ from {base[:12]}: {len(tests)} files of unit tests are reached", flush=True)
    os.environ[DEADLINE] = str(time.time() + given.seconds)
    options = ["-n", "logical", "--dist", "load", "--maxschedchunk", "1", "-m", "not slow", "--examples", "few"]
    status = pytest.main(["-p", "support.affected", *options, str(TIDY), *tests])
    return 0 if status == NOTHING_FAILED else int(status)


if __name__ == "__main__":
    sys.exit(main())
