"""What workloads with a bucket count, and what they simulate."""

from __future__ import annotations

from bench.report import target_of
from bench.row import Row
from bench.tier_logs import LogFile
from bench.tier_rig import asked_text, puts
from bench.tier_sim import Simulated, idle_state
from bench.tier_workloads import TIER_WORKLOADS

from liftpy_envelope.batch import HEADER_SIZE, check_body, read_header

MIB = 1 << 20


def test_puts_are_creates_and_replaces():
    asked = {"create": 3, "replace": 2, "get": 7, "delete": 0}
    assert puts(asked) == 5
    assert asked_text(asked, {"create": 1, "get": 7}) == "2 create, 2 replace"
    assert asked_text({}) == "none"


def test_a_log_is_made_of_batches_that_follow_on_one_another(tmp_path):
    log = LogFile(tmp_path / "log", 1_024)
    assert log.write(1)[:2] == (0, 1_024)
    base, end, (piece,) = log.write(2)
    assert (base, end) == (1_024, 3_072)
    data = log.path.read_bytes()[piece["position"] : piece["position"] + piece["length"]]
    position, offset = 0, base
    while position < len(data):
        header = read_header(data, position)
        check_body(header, data[position + HEADER_SIZE : position + header.length])
        assert header.base_offset == offset
        offset, position = header.next_offset, position + header.length
    assert offset == end
    log.start_over()
    assert log.write(1)[0] == end
    assert log.path.stat().st_size == log.bytes


def test_a_simulated_stream_is_in_the_bucket_as_a_whole(tmp_path):
    simulated = Simulated(tmp_path, 10 * MIB)
    simulated.run(70 * MIB)
    asked = simulated.context.store.counts
    (place,) = simulated.schedule.places.values()
    assert place.tiered_end == 70 * 1_024
    assert place.trouble is None
    assert asked["create"] >= 3, "a root, an object, and the shared one with the rest"
    assert 5 <= puts(asked) <= 12


def test_quiet_streams_ask_for_nothing():
    state, jobs = idle_state(300)
    assert 0 < state.median("liftpy") < 300 * 2_000 / MIB
    assert jobs.median("liftpy") == 0
    assert target_of(jobs) == ("jobs at most", 0.0)


def test_goals_of_rows_with_a_bucket_are_theirs():
    goals = {
        "tier, cold consume in Arrow batches, 1 KiB": ("of hot", 0.5),
        "tier, ingest at 10 MiB/s, 1 KiB": ("of no bucket", 0.95),
        "tier, ingest at 10 MiB/s, 1 KiB: not in the bucket at the end": ("MiB at most", 64.0),
        "tier, ingest flat out, 128 B": ("of no bucket", 0.5),
        "tier, ingest flat out, 128 B: not in the bucket at the last ack": None,
        "tier, consume again what was cold, in Arrow batches, 1 KiB": None,
    }
    assert {name: target_of(Row(name, "-", "")) for name in goals} == goals
    assert all(name.startswith("tier-") for name in TIER_WORKLOADS)
