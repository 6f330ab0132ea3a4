"""`liftpy spark ...`: what is found is told, what is right ends with 0, mistakes end in words."""

from __future__ import annotations

import json
import os
import sys

import pyarrow.parquet as pq
import pytest

from support.cli import Cli, run_process
from support.job_bucket import STREAM, JobBucket
from support.ports import free_port
from support.tier_rows import plain_records


@pytest.fixture
def bucket(s3):
    made = JobBucket(s3, 2)
    for base in (0, 100):
        made.append(plain_records(100, base=base), row_group_bytes=4_000)
    return made


@pytest.fixture
def cli(bucket, tmp_path):
    aws = {name: text for name, text in os.environ.items() if name.startswith("AWS_")}
    where = {"LIFTPY_TIER_URL": bucket.url, "LIFTPY_TIER_ENDPOINT": bucket.settings.endpoint}
    return Cli(None, tmp_path, **where, **aws)


def test_scrub(spark, bucket, cli):
    assert "orders/0: offsets 0 to 200, 200 records in 2 objects" in cli.out("spark", "scrub")
    assert cli.json("spark", "scrub", STREAM) == cli.json("tier", "scrub", STREAM)
    assert cli.json("spark", "scrub", "--dry-run", "--task-bytes", "1k")["tasks"] == 2
    key = bucket.paths[0].fragment(bucket.root().fragments[1].name)
    bucket.damage(key, 500)
    result = cli.run("spark", "scrub", STREAM, code=1)
    assert f"corrupt {key}: offset 100:" in result.stdout
    assert "1 problem in" in result.stderr
    assert cli.run("tier", "scrub", STREAM, code=1).stdout == result.stdout


def test_export(spark, cli, tmp_path):
    target = str(tmp_path / "out")
    assert "1 file of" in cli.out("spark", "export", STREAM, target, "--dry-run")
    assert cli.json("spark", "export", STREAM, target, "--headers")["records"] == 200
    assert pq.read_table(target).schema.names[-1] == "headers"
    assert cli.out("spark", "export", STREAM, target) == "nothing is new\n"
    assert cli.json("spark", "export", STREAM, str(tmp_path / "d"), "--format", "delta")["files"] == 1


def test_merge(spark, bucket, cli):
    before = bucket.records()
    assert f"{STREAM}/0 is tiered by node n1" in cli.error("spark", "merge", STREAM)
    arguments = ("spark", "merge", STREAM, "--alone")
    assert cli.out(*arguments, "--dry-run") == "2 objects merged into 1; nothing was done (--dry-run)\n"
    assert len(bucket.root().fragments) == 2
    assert cli.json(*arguments)["merged"] == 2
    assert len(bucket.root().fragments) == 1
    assert bucket.records() == before
    assert cli.out(*arguments) == "0 objects merged into 0\n"


def test_restore_says_one_document_however_far_it_comes(spark, bucket, cli, tmp_path):
    nowhere = f"nats://127.0.0.1:{free_port()}"
    arguments = ("spark", "restore", "--servers", nowhere, "--json")
    planned = cli.json(*arguments, "--dry-run")
    assert (planned["copy"], planned["scrub"]["objects"], planned["restore"]) == (None, 2, None)
    failed = cli.run(*arguments, code=1)
    said = json.loads(failed.stdout)
    assert (said["copy"], said["scrub"]["problems"], said["restore"]) == (None, 0, None)
    assert nowhere in json.loads(failed.stderr)["error"]["message"]
    target = f"{bucket.url}-copy"
    failed = cli.run(*arguments, "--from", bucket.url, "--bucket", target, code=1)
    said = json.loads(failed.stdout)
    assert (said["copy"]["copied"], said["scrub"], said["restore"]) == (2, None, None)
    bucket.damage(bucket.paths[0].fragment(bucket.root().fragments[1].name), 500)
    damaged = cli.run(*arguments, code=1)
    said = json.loads(damaged.stdout)
    assert (said["scrub"]["problems"], said["restore"], damaged.stderr) == (1, None, "")
    nothing = cli.run(*arguments, "--from", f"{bucket.url}-nowhere", "--bucket", target, code=1)
    assert nothing.stdout == ""
    assert "has no catalog of liftpy" in json.loads(nothing.stderr)["error"]["message"]


def test_mistakes_end_in_words(spark, bucket, cli, tmp_path):
    assert "the bucket has no stream 'order'" in cli.error("spark", "scrub", "order")
    assert "--conf 'spark.x': say NAME=VALUE" in cli.error("spark", "scrub", "--conf", "spark.x", code=2)
    assert "neither s3://bucket/prefix nor a directory" in cli.error("spark", "export", STREAM, "gs://x/y", code=2)
    assert "target: 's3://' is not of the form" in cli.error("spark", "export", STREAM, "s3://", code=2)
    for kind in ("parquet", "delta"):
        inside = ("spark", "export", STREAM, f"{bucket.url}/export", "--format", kind)
        assert "where only liftpy may write" in cli.error(*inside)
    assert not any("export" in entry.key for entry in bucket.store.list(""))
    assert "there is no file nowhere.py" in cli.error("spark", "submit", "nowhere.py", code=2)
    file = tmp_path / "file"
    file.write_text("")
    assert "file" in cli.error("spark", "export", STREAM, str(file))


def test_submit(cli, tmp_path, monkeypatch):
    script, archive = tmp_path / "job.py", tmp_path / "env.tar.gz"
    script.write_text("")
    archive.write_text("")
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    options = ["--master", "spark://h:7077", "--archive", str(archive), "--conf", "a.b=c", "--py-files", "m.py"]
    said = json.loads(cli.out("spark", "submit", "--dry-run", "--json", *options, str(script), "--flag", "x"))
    assert said["command"][1:] == [
        *("--master", "spark://h:7077", "--archives", f"{archive}#environment"),
        *("--py-files", "m.py", "--conf", "a.b=c", str(script), "--flag", "x"),
    ]
    assert said["environment"]["PYSPARK_PYTHON"] == "./environment/bin/python"
    local = json.loads(cli.out("spark", "submit", "--dry-run", "--json", str(script)))
    assert local["environment"] == {
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }


@pytest.mark.slow
def test_submit_runs_a_script_with_tasks(tmp_path):
    script = tmp_path / "job.py"
    script.write_text(
        "import sys\n"
        "from pyspark.sql import SparkSession\n"
        "spark = SparkSession.builder.config('spark.ui.enabled', 'false').getOrCreate()\n"
        "from pyspark.sql.functions import udf\n"
        "rows = spark.range(3).select(udf(lambda n: sys.executable)('id').alias('p')).distinct().collect()\n"
        "print('RAN', *sys.argv[1:], *(row.p for row in rows))\n"
        "spark.stop()\n"
        "sys.exit(3)\n"
    )
    ended = run_process("spark", "submit", "--master", "local[1]", str(script), "--flag", home=tmp_path)
    assert ended.returncode == 3, ended.stderr
    assert f"RAN --flag {sys.executable}".encode() in ended.stdout


def test_where_there_is_no_java_that_is_all_that_is_said(bucket, tmp_path):
    aws = {name: text for name, text in os.environ.items() if name.startswith("AWS_")}
    where = ("--bucket", bucket.url, "--endpoint", bucket.settings.endpoint)
    nowhere = {"JAVA_HOME": str(tmp_path / "no-java"), "TMPDIR": str(tmp_path)}
    ended = run_process("spark", "scrub", *where, "--json", home=tmp_path, **nowhere, **aws)
    assert (ended.returncode, ended.stdout) == (1, b"")
    said = json.loads(ended.stderr)["error"]["message"]
    assert "Spark does not start with master local[*]; it needs Java 17 or newer" in said
    assert f"{tmp_path}/no-java/bin/java" in said
    (kept,) = tmp_path.glob("liftpy-spark-*.log")
    assert said.endswith(f"what Spark said is in {kept}")
    assert "no-java" in kept.read_text()


@pytest.mark.slow
def test_a_session_of_its_own_says_nothing_besides_the_command(bucket, tmp_path):
    aws = {name: text for name, text in os.environ.items() if name.startswith("AWS_")}
    nowhere = f"nats://127.0.0.1:{free_port()}"
    where = ("--bucket", bucket.url, "--endpoint", bucket.settings.endpoint, "--servers", nowhere)
    ended = run_process("spark", "restore", *where, "--master", "local[1]", "--json", home=tmp_path, **aws)
    assert ended.returncode == 1, ended.stderr
    assert json.loads(ended.stdout)["scrub"]["problems"] == 0
    assert nowhere in json.loads(ended.stderr)["error"]["message"]
