"""Versions that do not work are told with the one that does."""

from __future__ import annotations

from importlib import metadata

import pytest

from liftpy_spark.versions import VersionError, check_versions


def installed(**versions):
    def version_of(package):
        if package not in versions:
            raise metadata.PackageNotFoundError(package)
        return versions[package]

    return version_of


@pytest.mark.parametrize(
    "versions",
    [
        {},
        {"pyspark": "4.2.0", "pandas": "2.3.3"},
        {"pyspark": "4.3.0.dev1"},
        {"pyspark": "5.0.0", "pandas": "2.2.0rc1"},
    ],
)
def test_these_work(versions):
    check_versions(installed(**versions))


@pytest.mark.parametrize(
    ("versions", "said"),
    [
        ({"pyspark": "4.1.4"}, "pyspark 4.1.4 is too old.*pip install 'pyspark>=4.2,<4.4'"),
        ({"pyspark": "3.5.9"}, "pyspark 3.5.9"),
        ({"pyspark": "4.3.0", "pandas": "3.1.1"}, "pandas 3.1.1 does not work.*pip install 'pandas>=2.2,<3'"),
    ],
)
def test_these_do_not(versions, said):
    with pytest.raises(VersionError, match=said):
        check_versions(installed(**versions))


def test_a_spark_that_pip_knows_nothing_of(monkeypatch):
    """Clusters bring their own."""
    monkeypatch.setattr(metadata, "version", installed(pandas="2.3.3"))
    monkeypatch.setattr("pyspark.__version__", "3.5.9")
    with pytest.raises(VersionError, match=r"pyspark 3.5.9 is too old.*pip install 'pyspark>=4.2,<4.4'"):
        check_versions()
    monkeypatch.setattr("pyspark.__version__", "4.3.1")
    check_versions()


def test_what_is_installed_here_works():
    check_versions()
