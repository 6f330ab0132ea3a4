"""Which node a data directory is of, when the file that says so is damaged."""

from __future__ import annotations

import pytest

from liftpy_log.data_dir import DataDir
from liftpy_log.errors import DataDirError
from support.damage import bit_flips


def test_a_damaged_identity_is_refused_with_a_remedy_that_works(tmp_path):
    DataDir.open(tmp_path, "n1").close()
    path = tmp_path / "liftpy.json"
    for damaged in bit_flips(path.read_bytes().rstrip()):
        path.write_bytes(damaged)
        with pytest.raises(DataDirError, match=r"liftpy\.json is damaged") as refused:
            DataDir.open(tmp_path, "n1")
    told = str(refused.value).partition("its content by ")[2].partition(" and start again")[0]
    path.write_text(told)
    DataDir.open(tmp_path, "n1").close()
    with pytest.raises(DataDirError, match="belongs to node 'n1'"):
        DataDir.open(tmp_path, "n2")
