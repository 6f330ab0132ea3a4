"""What a worker and its node say to each other arrives as it was."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from liftpy_log.compaction.compact import CompactionConfig, CompactionPlan
from liftpy_log.compaction.state import Cleaned, CleanedSegment, SealedSegment
from liftpy_server.compaction import wire
from liftpy_server.compaction.worker import serve
from liftpy_server.workers.json_lines import read_line
from support.examples import examples

NUMBERS = st.integers(0, 2**63 - 1)
PATHS = st.sampled_from(["/data/0/1.log", "/d\xe4ta/\udcff/2.log", "/a b/\n.log"]).map(Path)
SEALED = st.builds(SealedSegment, PATHS, NUMBERS, NUMBERS, NUMBERS, NUMBERS, NUMBERS)
NEW = st.builds(CleanedSegment, PATHS, *[NUMBERS] * 7)
CLEANED = st.builds(Cleaned, NUMBERS, NUMBERS, NUMBERS, st.lists(st.tuples(NUMBERS, NUMBERS), max_size=3).map(tuple))
CONFIG = CompactionConfig(dedupe_window_ns=7, min_lag_ns=5, codec="lz4")


@given(st.lists(SEALED, max_size=3), NEW, CLEANED, NUMBERS)
@examples(50)
def test_what_is_said_arrives(segments, new, cleaned, cuts):
    plan = CompactionPlan(Path("/data/0"), tuple(segments), cleaned, cuts, 7)
    assert wire.decode_pass(read_line(wire.encode_pass(plan, CONFIG))) == (plan, CONFIG)
    asked = read_line(wire.encode_replace(segments, new, cuts))
    assert (wire.decode_sealed(asked["old"]), wire.decode_new_segment(asked["new"])) == (segments, new)
    asked = read_line(wire.encode_save(cleaned, cuts))
    assert (wire.decode_cleaned(asked["cleaned"]), asked["cuts"]) == (cleaned, cuts)
    assert wire.encode_pass(plan, CONFIG).count(b"\n") == 1


def test_a_directory_that_is_gone_ends_the_pass_and_not_the_worker(tmp_path):
    plan = CompactionPlan(tmp_path / "gone", (), Cleaned(), 0, 0)
    said = BytesIO()
    serve(BytesIO(wire.encode_pass(plan, CONFIG) * 2), said)
    answers = [read_line(line) for line in said.getvalue().splitlines()]
    assert [answer["failure"] for answer in answers] == ["passing", "passing"]
