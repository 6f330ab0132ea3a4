"""Which logs are not there any more."""

from __future__ import annotations

import pytest

from liftpy_log.disk import OsDisk
from liftpy_log.errors import DataDirError
from liftpy_server.replicas.standing import Standing
from support.metadata_commands import UUIDS, Cluster, config


@pytest.fixture
def state():
    return Cluster("a", "b", "c").state


@pytest.fixture
def directory(tmp_path):
    path = tmp_path / "streams" / f"orders.{UUIDS[0]}" / "0"
    path.mkdir(parents=True)
    return path


@pytest.fixture
def standing(tmp_path):
    return Standing(OsDisk(), tmp_path / "standing.json", "boot", is_new=False)


def test_a_log_with_a_segment_is_there(standing, state, directory):
    (directory / f"{0:020}.log").touch()
    assert standing.lost_logs(state, "a") == []


@pytest.mark.parametrize("left", [["00000000000000000000.index"], []])
def test_a_directory_without_a_segment_is_no_log(standing, state, directory, left):
    for name in left:
        (directory / name).touch()
    assert standing.lost_logs(state, "a") == [(UUIDS[0], 0)]


def test_a_directory_that_was_moved_away_is_missed(standing, state, directory):
    directory.rename(directory.parent / "aside")
    assert standing.lost_logs(state, "a") == [(UUIDS[0], 0)]


def test_a_log_that_had_failed_proves_nothing_until_the_metadata_knows(standing, state, directory, tmp_path):
    (directory / f"{0:020}.log").touch()
    standing.log_failed(UUIDS[0], 0)
    again = Standing(OsDisk(), tmp_path / "standing.json", "boot", is_new=False)
    assert again.lost_logs(state, "a") == [(UUIDS[0], 0)]
    again.settled()
    again = Standing(OsDisk(), tmp_path / "standing.json", "boot", is_new=False)
    assert again.lost_logs(state, "a") == []


@pytest.mark.parametrize("content", ["[]", '{"boot_id": 1, "doubtful": 0, "failed": [5]}', "{"])
def test_a_damaged_file_is_refused(tmp_path, content):
    path = tmp_path / "standing.json"
    path.write_text(content)
    with pytest.raises(DataDirError, match=r"standing\.json is damaged"):
        Standing(OsDisk(), path, "boot", is_new=False)


def test_who_does_not_count_misses_nothing(standing, tmp_path):
    cluster = Cluster("a", "b", "c")
    cluster.change_isr("a", "b")
    assert standing.lost_logs(cluster.state, "c") == []
    assert standing.lost_logs(Cluster("a", min_isr=1).state, "a") == []  # nobody else has it either


def test_a_stream_of_one_replica_that_is_being_moved_counts_as_one_of_several(standing, tmp_path):
    cluster = Cluster("a", "b", streams=0, min_isr=1)
    made = config("orders", replicas=1, sync="interval")
    cluster.do("create_stream", uuid=UUIDS[0], config=made, assignment=[["a"]])
    standing.settled()
    restarted = Standing(OsDisk(), tmp_path / "standing.json", "another boot", is_new=False)
    assert restarted.is_proven(cluster.state, "a", was_clean=False), "nobody has more than it has"
    cluster.reassign("b")
    assert not restarted.is_proven(cluster.state, "a", was_clean=False)
