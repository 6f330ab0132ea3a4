"""The site of the documentation: pages made from code have everything, and the build finds links that lead nowhere."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer

import liftpy
from liftpy.cli.app import app

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A folder with the built site."""
    pytest.importorskip("material", reason="mkdocs-material is not installed")
    folder = tmp_path_factory.mktemp("site")
    build(ROOT / "mkdocs.yml", folder)
    return folder


def build(settings, folder):
    """Not with `--quiet`, which also silences what `strict` counts."""
    command = [sys.executable, "-m", "mkdocs", "build", "--config-file", settings, "--site-dir", folder]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)


def headings(page):
    return {re.sub(r"<[^>]*>|&para;|¶", "", text) for text in re.findall(r"<h[234][^>]*>(.*?)</h[234]>", page)}


def commands(command, name):
    yield name
    for child, nested in getattr(command, "commands", {}).items():
        if not nested.hidden:
            yield from commands(nested, f"{name} {child}")


def test_every_command_and_option_is_in_the_reference(site):
    page = (site / "reference" / "command-line.html").read_text()
    assert headings(page) == {*commands(typer.main.get_command(app), "liftpy")}
    assert "--unclean-leader-election" in page
    assert "--on-lost" in page


def test_every_name_is_in_the_reference(site):
    names = headings((site / "reference" / "python.html").read_text())
    errors = headings((site / "reference" / "errors.html").read_text())
    assert {*liftpy.__all__} == errors | ({*liftpy.__all__} & names)
    assert errors.isdisjoint(names)
    assert {"Lift.publish", "Lift.consume", "Table.get", "Publisher.flush"} <= names


def test_pages_outside_the_folder_are_on_the_site(site):
    start = (site / "index.html").read_text()
    assert 'href="concepts/guarantees.html"' in start
    assert 'href="internals/architecture.html"' in start
    assert (site / "examples" / "index.html").read_text().count("<code>") > 3


def test_a_link_that_leads_nowhere_ends_the_build(tmp_path):
    pytest.importorskip("material", reason="mkdocs-material is not installed")
    pages = tmp_path / "pages"
    pages.mkdir()
    (pages / "index.md").write_text("# A page\n\n[nowhere](index.md#nowhere)\n")
    plain = re.sub(
        r"^(hooks|nav|docs_dir|plugins).*\n(?:  .*\n)*", "", (ROOT / "mkdocs.yml").read_text(), flags=re.MULTILINE
    )
    (tmp_path / "mkdocs.yml").write_text(f"{plain}\ndocs_dir: {pages}\n")
    with pytest.raises(subprocess.CalledProcessError) as failed:
        build(tmp_path / "mkdocs.yml", tmp_path / "site")
    assert "#nowhere" in failed.value.stderr
