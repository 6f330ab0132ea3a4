"""What a node moved out of the way is listed with what it was, how large it is, and why it is there."""

from __future__ import annotations

from liftpy_log.quarantine import WHY_FILE, find_quarantined

UUID = "0123456789abcdef" * 2


def test_nothing_was_ever_moved(tmp_path):
    assert list(find_quarantined(tmp_path / "quarantine")) == []


def test_a_replica_that_was_copied_anew_says_why(tmp_path):
    aside = tmp_path / f"my-orders_2.{UUID}.13.1700000000000000000"
    aside.mkdir()
    (aside / "0.log").write_bytes(bytes(1_000))
    (aside / WHY_FILE).write_text("copied anew from node b\n")
    (found,) = find_quarantined(tmp_path)
    assert (found.stream, found.uuid, found.partition) == ("my-orders_2", UUID, 13)
    assert (found.size_bytes, found.why, found.name) == (1_024, "copied anew from node b", aside.name)
    assert found.moved_ns == aside.stat().st_ctime_ns


def test_a_stream_that_nobody_knew_a_damaged_file_and_what_people_put_there(tmp_path):
    stream = tmp_path / f"orders.{UUID}"
    (stream / "0").mkdir(parents=True)
    (stream / "0" / "0.log").write_bytes(bytes(7))
    (stream / "1").mkdir()
    (stream / "1" / "0.log").write_bytes(bytes(5))
    (tmp_path / "checkpoint.0").write_bytes(bytes(3))
    (tmp_path / "by.hand").mkdir()
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    found = {each.name: each for each in find_quarantined(tmp_path)}
    assert found.keys() == {stream.name, "checkpoint.0", "by.hand", "dangling"}
    assert (found[stream.name].stream, found[stream.name].partition, found[stream.name].size_bytes) == (
        "orders",
        None,
        12,
    )
    assert "no stream of the cluster knew it" in found[stream.name].why
    assert (found["checkpoint.0"].stream, found["checkpoint.0"].why) == (None, "the file was damaged")
    assert (found["by.hand"].stream, found["by.hand"].size_bytes) == (None, 0)


def test_the_newest_comes_first(tmp_path):
    for name in ("a", "b", "c"):
        (tmp_path / name).mkdir()
    found = [each.moved_ns for each in find_quarantined(tmp_path)]
    assert found == sorted(found, reverse=True)
