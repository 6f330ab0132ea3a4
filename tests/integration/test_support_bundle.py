"""A bundle for support has what helps, and no secret, wherever secrets stand."""

from __future__ import annotations

import asyncio
import json
import stat
import tarfile

import nkeys
import pytest

import liftpy
from liftpy.cli.dev.nats_server import shipped_config
from support.cli import Cli
from support.cluster import NodeProcess, make_nats
from support.ports import free_port

PASSWORD = "correct.horse-battery"
SEED = nkeys.encode_seed(bytes(range(32)), nkeys.PREFIX_BYTE_USER).decode()
S3_ID, S3_KEY, OTHER_S3_KEY = "AKIAIOSFODNN7EXAMPLE", "/wJalrXUtnFEMI/K7MDENG", "bPxRfiCYEXAMPLEKEYbPxRfi"
TOKEN = "a-token-of-nats-0815"
SECRETS = (PASSWORD, SEED, S3_ID, S3_KEY, OTHER_S3_KEY, TOKEN)
LOG = f"""
connecting to nats://ann:{PASSWORD}@127.0.0.1:4222
the seed is {SEED}, the key {OTHER_S3_KEY}, the password {PASSWORD}
S3: {S3_ID} {S3_KEY}
{{"token": "{TOKEN}"}}
the last line
"""


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A nats-server that wants a password, a node with a bucket's settings in a file, and a log with secrets."""
    home = tmp_path_factory.mktemp("bundle")
    users = f'authorization {{ user: ann, password: "{PASSWORD}" }}\n'
    server = make_nats(home / "nats", config=shipped_config().read_text() + users)
    url = server.url.replace("nats://", f"nats://ann:{PASSWORD}@")
    http_port = free_port()
    node = NodeProcess(url, home / "node", "--http-port", str(http_port)).start()
    (home / "seed.nk").write_text(SEED)
    (home / "aws").write_text(f"[default]\naws_access_key_id = {S3_ID}\naws_secret_access_key = {OTHER_S3_KEY}\n")
    (home / "node.log").write_text(LOG)
    (home / "liftpy.toml").write_text(
        f'[nats]\nurl = "{url}"\n'
        f'[http]\nport = {http_port}\n[tier]\nurl = "s3://bucket/prefix"\nendpoint = "http://127.0.0.1:9"\n'
    )
    yield home, url
    node.stop()
    server.stop()


@pytest.fixture
def cli(world, tmp_path):
    home, _ = world
    credentials = {"AWS_SHARED_CREDENTIALS_FILE": str(home / "aws"), "AWS_SECRET_ACCESS_KEY": S3_KEY}
    return Cli(None, tmp_path, AWS_ACCESS_KEY_ID=S3_ID, **credentials)


def unpacked(path):
    with tarfile.open(path) as tar:
        return {member.name.partition("/")[2]: tar.extractfile(member).read().decode() for member in tar}


async def collect(cli, home, path, *more):
    options = ("--config", str(home / "liftpy.toml"), "--log", str(home / "node.log"), "-o", str(path), *more)
    return await asyncio.to_thread(cli.json, "support-bundle", *options)


async def test_everything_is_there_and_no_secret(world, cli, tmp_path):
    home, url = world
    async with liftpy.connect(url) as lift:
        await lift.create_stream("orders", subject="orders")
        await lift.publish("orders", b"what is in a message stays here")
    told = await collect(cli, home, tmp_path / "bundle.tar.gz")
    assert told["problems"] == []
    files = unpacked(tmp_path / "bundle.tar.gz")
    assert set(told["files"]) == set(files)
    assert {"settings.json", "versions.json", "cluster.json", "streams.json", "readyz.json", "groups.json"} <= set(
        files
    )
    assert "liftpy_stream_messages_total" in files["metrics.txt"]
    assert "the last line" in files["logs/0-node.log"]
    assert "orders" in [stream["name"] for stream in json.loads(files["streams.json"])]
    assert json.loads(files["settings.json"])["tier"]["url"] == "s3://bucket/prefix"
    assert json.loads(files["versions.json"])["packages"]["liftpy"]
    everything = "\n".join(files.values())
    assert [secret for secret in (*SECRETS, "what is in a message") if secret in everything] == []
    assert stat.S_IMODE((tmp_path / "bundle.tar.gz").stat().st_mode) == 0o600


async def test_a_bundle_is_made_without_a_cluster_and_replaces_nothing(world, cli, tmp_path):
    home, _ = world
    settings = tmp_path / "liftpy.toml"
    settings.write_text(
        f'[nats]\nurl = "nats://ann:{PASSWORD}@127.0.0.1:{free_port()}"\ntimeout_s = 0.5\n'
        f'nkey = "{home}/seed.nk"\ntoken = "{TOKEN}"\n'
    )
    path, missing, log = tmp_path / "bundle.tar.gz", tmp_path / "nowhere.log", tmp_path / "plain.log"
    log.write_text(f"{PASSWORD} {TOKEN} {SEED}")
    options = ("--config", str(settings), "-o", str(path), "--log", str(missing), "--log", str(log))
    told = await asyncio.to_thread(cli.json, "support-bundle", *options)
    assert [problem.partition(":")[0] for problem in told["problems"]] == [str(missing), "NATS"]
    files = unpacked(path)
    assert files["problems.txt"].splitlines() == told["problems"]
    assert files["logs/1-plain.log"] == "[hidden] [hidden] [hidden]"
    assert [secret for secret in SECRETS if secret in "\n".join(files.values())] == []
    before = path.read_bytes()
    assert str(path) in await asyncio.to_thread(cli.error, "support-bundle", *options)
    assert path.read_bytes() == before
