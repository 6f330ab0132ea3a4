"""A program that does not need pandas does not get it from pyarrow."""

from __future__ import annotations

import subprocess
import sys

import pytest

KEPT_OUT = "from liftpy_envelope.no_pandas import keep_pandas_out; keep_pandas_out();"
LET_IN = KEPT_OUT + "from liftpy_envelope.no_pandas import let_pandas_in; let_pandas_in();"
CONVERT = "import sys, pyarrow; print(pyarrow.array([b'x', None]).to_pylist(), 'pandas' in sys.modules)"


@pytest.mark.parametrize(("before", "is_there"), [("", True), (KEPT_OUT, False), (LET_IN, True)])
def test_pyarrow_converts_without_pandas(before, is_there):
    pytest.importorskip("pandas")
    done = subprocess.run([sys.executable, "-c", before + CONVERT], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == f"[b'x', None] {is_there}"
