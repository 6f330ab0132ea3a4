"""The example pipeline: what it writes as a stream is what history says, to the row, whatever is killed on the way."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
from collections import defaultdict
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from liftpy.demo import scenario
from liftpy.demo.bucket import LOCAL_SETTINGS
from liftpy.demo.flights import Flight
from support.cli import Cli
from support.spark_system import eventually

EXAMPLE = Path(__file__).parents[2] / "examples" / "flights_pipeline"
DAYS = 10
FLIGHTS_A_DAY = 120
CARRIERS = ("UA", "B6", "DL", "AA")
FIRST_DAY = datetime(2013, 1, 1, tzinfo=UTC)
END = "2013-02-01T00:00:00"
WAIT_S = 300


def sample(flights_a_day=FLIGHTS_A_DAY):
    """Flights in the order in which they left, by time of the clock; some hours late, some cancelled."""
    rng = random.Random(7)
    flights = []
    for number in range(DAYS * flights_a_day):
        minutes = rng.randrange(5 * 60, 23 * 60)
        at = FIRST_DAY + timedelta(days=number // flights_a_day, minutes=minutes)
        delay = rng.choice((None, -3, 0, 5, 14, 15, 40, 600))
        parts = {name: getattr(at, name) for name in ("year", "month", "day", "hour", "minute")}
        place = {"carrier": rng.choice(CARRIERS), "origin": rng.choice(("EWR", "JFK")), "dest": f"D{rng.randrange(5)}"}
        flights.append((at + timedelta(minutes=delay or 0), parts | place | {"dep_delay": delay}))
    return [flight for _, flight in sorted(flights, key=lambda timed: timed[0])]


def by_window(flights):
    """What the Delta table by carrier is to hold, added up in another way."""
    groups = defaultdict(list)
    for row in flights:
        at = datetime(row["year"], row["month"], row["day"], row["hour"], tzinfo=UTC)
        groups[row["carrier"], at].append(row["dep_delay"])
    found = set()
    for (name, at), delays in groups.items():
        left = [delay for delay in delays if delay is not None]
        sums = (len(delays), len(delays) - len(left), sum(delay >= 15 for delay in left), sum(left))
        found.add((name, at, *sums, max(left, default=None)))
    return found


def in_table(home):
    columns = ("name", "window_start", "flights", "cancelled", "late", "delay_sum_min", "delay_max_min")
    table = DeltaTable(str(home / "tables" / "carrier")).to_pyarrow_table(columns=list(columns))
    rows = list(zip(*(table.column(column).to_pylist() for column in columns), strict=True))
    assert len(rows) == len(set(rows))
    return {(name, at.astimezone(UTC), *rest) for name, at, *rest in rows}


class Pipeline:
    """The two programs, in this process, on streams of their own."""

    def __init__(self, system, name, home, capsys):
        self.system, self.stream, self.home, self._capsys = system, name, home, capsys
        self.common = ["--servers", system.url, "--s3-endpoint", system.server.endpoint, "--home", str(home)]
        self.common += ["--stream", name, "--results", f"{name}-delays", "--json"]
        self.streaming, self.batch = (importlib.import_module(program) for program in ("streaming", "batch"))
        system.lift.create_stream(name, subject=f"{name}.>")

    def publish(self, *messages):
        values = pa.array([json.dumps(message).encode() for message in messages], pa.binary())
        self.system.publish(f"{self.stream}.x", value=values)

    def run(self, program, *arguments, code=0):
        """What it reports, and what it says."""
        self._capsys.readouterr()
        ended = program.main([*self.common, *arguments])
        out, err = self._capsys.readouterr()
        assert ended == code, err
        assert "Traceback" not in err
        return json.loads(out) if out else None, err

    @property
    def stored(self):
        """How many records the stream of results was ever given."""
        return sum(part.log_end for part in self.system.partitions(f"{self.stream}-delays"))


@pytest.fixture
def pipeline_of(spark, system, tmp_path, monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(EXAMPLE))
    return lambda name: Pipeline(system, name, tmp_path / "home", capsys)


def test_the_stream_and_history_agree_to_the_row(pipeline_of, tmp_path):
    pipeline, flights = pipeline_of("year"), sample()
    half = len(flights) // 2
    pipeline.publish(*flights[:half])
    pipeline.system.tiered("year")
    # Windows that may still get flights are not written.
    report, _ = pipeline.run(pipeline.streaming, "--once", "--late-days", "2")
    assert report["carrier"]["records"] == half
    assert in_table(pipeline.home) < by_window(flights[:half])
    # It goes on where it was; what can not be read is no flight, and does not stop it.
    pipeline.publish(*flights[half:], {"clock": END}, ["no flight"], {"hour": "x"})
    report, said = pipeline.run(pipeline.streaming, "--once", "--late-days", "2", "--max-offsets", "400")
    assert {query["records"] for query in report.values()} == {len(flights) - half + 3}
    assert {query["dropped"] for query in report.values()} == {0}
    assert "carrier: batch" in said
    assert in_table(pipeline.home) == by_window(flights)
    picture = tmp_path / "pictures" / "day.png"
    report, said = pipeline.run(pipeline.batch, "--late-days", "2", "--plot", str(picture))
    assert [(each["grouping"], each["where"], each["differ"]) for each in report["compared"]] == [
        (grouping, where, 0) for grouping in ("carrier", "route") for where in ("stream", "table")
    ]
    assert pipeline.stored == report["compared"][0]["rows"] + report["compared"][2]["rows"]
    assert report["flights_by_grouping"] == {"carrier": len(flights), "route": len(flights)}
    assert (report["records"], report["unreadable"]) == (len(flights) + 3, 2)
    assert sum(each["flights"] for each in report["carriers"]) == len(flights)
    assert "all the same" in said
    assert picture.read_bytes().startswith(b"\x89PNG")

    # A flight that comes after its window was closed is not hushed up, by neither of the two.
    pipeline.publish(flights[0])
    report, said = pipeline.run(pipeline.streaming, "--once", "--late-days", "2")
    assert (report["carrier"]["dropped"], report["carrier"]["rows"]) == (1, 0)
    assert "1 rows came more than 2 days late and are in no window" in said
    report, said = pipeline.run(pipeline.batch, "--late-days", "2", code=1)
    assert {each["differ"] for each in report["compared"]} == {2}  # the row as it is, and as it should be
    assert f"not in the stream: {flights[0]['carrier']} 2013-01-01" in said
    assert "only in the table:" in said
    assert "error: 8 rows differ from what history says" in said
    # Before that window all is well.
    assert (
        pipeline.run(pipeline.batch, "--late-days", "2", "--until", "2013-01-01T00:00:00")[0]["compared"][0]["differ"]
        == 0
    )


def test_mistakes_are_told_in_words(pipeline_of, capsys):
    pipeline = pipeline_of("mistakes")
    _, said = pipeline.run(pipeline.batch, code=1)
    assert "error: stream mistakes has no flights yet" in said
    pipeline.publish({"clock": END})
    _, said = pipeline.run(pipeline.batch, code=1)
    assert "there is no Delta table at" in said
    _, said = pipeline.run(pipeline.streaming, "--once", "--stream", "mistook", code=1)
    assert said == "error: there is no stream mistook; liftpy stream ls shows those that there are\n"
    pipeline.publish(*sample()[:20])
    pipeline.home.mkdir(exist_ok=True)
    (pipeline.home / "tables").write_text("this is no directory")
    _, said = pipeline.run(pipeline.streaming, "--once", "--late-days", "2", code=1)
    assert "error: batch " in said
    with pytest.raises(SystemExit):
        pipeline.streaming.main(["--late-days", "0"])
    assert "'0' is no whole number of 1 or more" in capsys.readouterr().err


def test_flights_are_published(pipeline_of, monkeypatch, capsys):
    pipeline, program = pipeline_of("published"), importlib.import_module("publish_flights")
    rows = [json.dumps(row).encode() for row in sample(5)]
    flights = [Flight(f"flights.UA.EWR.D{number % 7}", row) for number, row in enumerate(rows)]
    monkeypatch.setattr(program, "load_flights", lambda: flights)
    monkeypatch.setattr(program, "_AHEAD", 4)
    common = ["--servers", pipeline.system.url, "--subject", "published"]
    assert program.main([*common, "--count", "8"]) == 0
    assert program.main([*common, "--first", "8", "--clock"]) == 0
    assert capsys.readouterr().out == f"8 flights published\n{len(rows) - 8} flights published\n"
    stored = pipeline.system.records("published")
    values, subjects = (stored.column(name).to_pylist() for name in ("value", "subject"))
    assert (values.pop(), subjects.pop()) == (b'{"clock": "2014-02-01T00:00:00"}', "published.clock")
    assert sorted(values) == sorted(rows)
    assert set(subjects) == {f"published.UA.EWR.D{number}" for number in range(7)}
    # Only neighbours change places: windows take what is a little late.
    assert [sorted(values[at : at + 4]) for at in range(0, len(rows), 4)] == [
        sorted(rows[at : at + 4]) for at in range(0, len(rows), 4)
    ]
    assert program.main([*common, "--subject", "nobodys", "--count", "1"]) == 1
    assert capsys.readouterr().err.startswith("error: ")
    with pytest.raises(SystemExit):
        program.main([*common, "--first", "-1"])
    assert "'-1' is no whole number of 0 or more" in capsys.readouterr().err


@pytest.mark.slow
def test_the_demonstration_runs_it(tmp_path, monkeypatch):
    """With these flights, one node, and all the checks."""
    flights = [
        Flight(f"flights.{row['carrier']}.{row['origin']}.{row['dest']}", json.dumps(row).encode())
        for row in sample(1_500)
    ]  # so many that most leave the disk, from a stream of one carrier, too
    monkeypatch.setattr(scenario, "load_flights", lambda: flights)
    monkeypatch.setitem(LOCAL_SETTINGS, "segment_bytes", 65_536)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    picture = tmp_path / "flights.png"
    arguments = ("demo", "--nodes", "1", "--s3", "--pipeline", str(EXAMPLE), "--picture", str(picture))
    result = Cli(None, tmp_path).run(*arguments)
    said = " ".join(result.stdout.split())
    assert "Spark: how long carriers let people wait" in said
    assert "all agree to the row" in said
    assert str(picture) in result.stdout.replace("\n", "")
    assert "windows agree to the row" in result.stderr
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert list(tmp_path.glob("liftpy-demo-*")) == []


def start(pipeline, *arguments):
    return subprocess.Popen(
        [sys.executable, str(EXAMPLE / "streaming.py"), *pipeline.common, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def kill(process):
    """The program, its JVM and their workers."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(30)


@pytest.mark.slow
def test_a_job_that_is_killed_in_the_middle(pipeline_of):
    pipeline, flights = pipeline_of("killed-job"), sample()
    arguments = ("--once", "--late-days", "2", "--max-offsets", "100")
    pipeline.publish(*flights, {"clock": END})
    pipeline.run(pipeline.streaming, "--once", "--late-days", "40")  # makes the stream of results, and writes none
    pipeline.common[pipeline.common.index("--home") + 1] = str(pipeline.home / "killed")
    for _ in range(2):
        before = pipeline.stored
        process = start(pipeline, *arguments)
        try:
            eventually(lambda: process.poll() is not None or pipeline.stored > before, "results come", WAIT_S)  # noqa: B023
            assert process.poll() is None, "it ended before it was killed"
        finally:
            kill(process)
    process = start(pipeline, *arguments)
    try:
        assert process.wait(WAIT_S) == 0
    finally:
        kill(process)
    report, _ = pipeline.run(pipeline.batch, "--late-days", "2")
    assert {each["differ"] for each in report["compared"]} == {0}
    assert in_table(pipeline.home / "killed") == by_window(flights)
    assert pipeline.stored == report["compared"][0]["rows"] + report["compared"][2]["rows"]  # each of them once
