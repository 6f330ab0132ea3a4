"""`liftpy dev --s3`: a bucket of one's own, which is there again at the next start."""

from __future__ import annotations

import json
import signal
import stat
from pathlib import Path

import boto3
import psutil
import pytest
from botocore.exceptions import ClientError

from liftpy.cli.dev.seaweed import SeaweedError, SeaweedServer
from support.cli import Cli, DevProcess


def client_of(shown):
    kept = json.loads(Path(shown["credentials_file"]).read_text())
    return boto3.client(
        "s3",
        endpoint_url=shown["endpoint"],
        region_name="us-east-1",
        aws_access_key_id=kept["access_key"],
        aws_secret_access_key=kept["secret_key"],
    )


def test_the_bucket_is_there_and_survives(tmp_path):
    # What the environment says of buckets and accounts elsewhere is not meant for this one.
    elsewhere = {
        "AWS_PROFILE": "gone",
        "AWS_SESSION_TOKEN": "gone",
        "AWS_ACCESS_KEY_ID": "gone",
        "LIFTPY_TIER_URL": "s3://elsewhere",
    }
    dev = DevProcess(tmp_path / "data", tmp_path, "--s3", **elsewhere)
    shown = dev.ready["s3"]
    assert shown["url"] == "s3://liftpy"
    s3 = client_of(shown)
    s3.put_object(Bucket="liftpy", Key="mine/a", Body=b"kept")
    secret = json.loads((tmp_path / "data" / "s3" / "server.json").read_text())["secret_key"]
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "data" / "s3").iterdir()}
    assert (modes["server.json"], modes["identities.json"]) == (0o600, 0o600)
    assert secret not in json.dumps(dev.ready)
    children = psutil.Process(dev.process.pid).children(recursive=True)
    assert shown["pid"] in {child.pid for child in children}
    command = next(child.cmdline() for child in children if child.pid == shown["pid"])
    assert "-ip.bind=127.0.0.1" in command
    assert "-master.telemetry=false" in command
    assert not [argument for argument in command if secret in argument]
    code, said = dev.stop(signal.SIGINT)
    assert (code, secret.encode() in said, b"Traceback" in said) == (0, False, False)
    assert not any(child.is_running() for child in children)

    again = DevProcess(tmp_path / "data", tmp_path, "--s3")
    try:
        assert again.ready["s3"]["endpoint"] == shown["endpoint"]
        assert s3.get_object(Bucket="liftpy", Key="mine/a")["Body"].read() == b"kept"
        children = psutil.Process(again.process.pid).children(recursive=True)
    finally:
        again.stop(signal.SIGKILL)
    psutil.wait_procs(children, timeout=60)
    assert not any(child.is_running() for child in children)


def test_several_nodes_are_told_of_it(tmp_path):
    dev = DevProcess(tmp_path / "data", tmp_path, "--nodes", "3", "--s3", AWS_PROFILE="gone")
    try:
        shown = dev.ready["s3"]
        kept = json.loads((tmp_path / "data" / "s3" / "server.json").read_text())
        wanted = {
            "LIFTPY_TIER_URL": "s3://liftpy",
            "LIFTPY_TIER_ENDPOINT": shown["endpoint"],
            "AWS_ACCESS_KEY_ID": kept["access_key"],
            "AWS_SECRET_ACCESS_KEY": kept["secret_key"],
        }
        for node in dev.ready["nodes"]:
            told = psutil.Process(node["pid"]).environ()
            assert {name: told.get(name) for name in wanted} == wanted
            assert "AWS_PROFILE" not in told
    finally:
        dev.stop(signal.SIGKILL)


def test_without_it_nothing_is_started(tmp_path):
    dev = DevProcess(tmp_path / "data", tmp_path)
    try:
        assert "s3" not in dev.ready
        assert not (tmp_path / "data" / "s3").exists()
    finally:
        dev.stop(signal.SIGKILL)


def test_mistakes(tmp_path):
    (tmp_path / "data" / "s3").mkdir(parents=True)
    path = tmp_path / "data" / "s3" / "server.json"
    path.write_text("no JSON")
    error = Cli(None, tmp_path).error("dev", "--data-dir", str(tmp_path / "data"), "--port", "0", "--s3")
    assert f"{path} does not say how the S3 server was started" in " ".join(error.split())
    path.unlink()
    (tmp_path / "data" / "s3" / "data").write_text("a file")
    error = Cli(None, tmp_path).error("dev", "--data-dir", str(tmp_path / "data"), "--port", "0", "--s3")
    assert "File exists" in error


def test_ports_that_are_taken_are_changed_and_the_data_stays(tmp_path):
    server = SeaweedServer(tmp_path / "s3", tmp_path / "log")
    server.start()
    try:
        endpoint = server.endpoint
        other = SeaweedServer(tmp_path / "s3", tmp_path / "other.log")
        assert other.endpoint != endpoint
        shown = {"endpoint": endpoint, "credentials_file": str(server.credentials_path)}
        client_of(shown).put_object(Bucket="liftpy", Key="a", Body=b"kept")
    finally:
        server.kill()
    other.start()
    try:
        shown["endpoint"] = other.endpoint
        assert client_of(shown).get_object(Bucket="liftpy", Key="a")["Body"].read() == b"kept"
        with pytest.raises(ClientError, match="NoSuchBucket"):
            client_of(shown).put_object(Bucket="another", Key="a", Body=b"")
    finally:
        other.stop()


def test_a_server_that_does_not_start_says_why(tmp_path):
    server = SeaweedServer(tmp_path / "s3", tmp_path / "log")
    (tmp_path / "s3" / "identities.json").write_text("no JSON")
    with pytest.raises(SeaweedError, match="ended at once"):
        server.start()
