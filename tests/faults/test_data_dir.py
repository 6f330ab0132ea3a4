"""A node that can not use what it was given ends with one clear line and an exit code, and changes nothing."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import socket

import pytest

import liftpy
from liftpy_server.consensus.storage import journal_frames
from liftpy_server.consensus.storage.journal import JOURNAL_NAMES
from support.cluster import NodeProcess
from support.reading import values

ENDS_WITHIN_S = 60
FAILURE, USAGE = 1, 2
LOG_LINE = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} (?:DEBUG|INFO|WARNING) ")


def error_of(node, code=FAILURE):
    """Start a node that can not; its error, which is one line."""
    seen = len(node.log())
    node.spawn()
    try:
        assert node.process.wait(ENDS_WITHIN_S) == code, node.log()
        assert node.process.stdout.read() == ""
    finally:
        node.kill()
    lines = [line for line in node.log()[seen:].splitlines() if not LOG_LINE.match(line)]
    assert len(lines) == 1, lines
    return json.loads(lines[0])["error"]["message"]


def snapshot(directory):
    """Names and contents of everything below a directory."""
    return {
        str(path.relative_to(directory)): path.read_bytes() if path.is_file() else None
        for path in sorted(directory.rglob("*"))
        if path.name != "lock"
    }


@pytest.fixture
def make_node(shared_nats, tmp_path):
    """Makes nodes that share a data directory."""
    nodes = []

    def make(*arguments, **options):
        nodes.append(NodeProcess(shared_nats.url, tmp_path / "node", *arguments, **options))
        return nodes[-1]

    yield make
    for node in nodes:
        node.stop()


@pytest.fixture(scope="module")
def template(shared_nats, tmp_path_factory):
    """The data directory of a node that was stopped, with a record in it."""
    node = NodeProcess(shared_nats.url, tmp_path_factory.mktemp("template")).start()

    async def fill():
        async with liftpy.connect(shared_nats.url) as lift:
            await lift.create_stream("kept", subject="kept")
            await lift.publish("kept", b"kept")

    try:
        asyncio.run(fill())
    finally:
        assert node.stop() == 0
    return node.data


@pytest.fixture
def used(make_node, template):
    """A node with such a data directory."""
    node = make_node()
    shutil.copytree(template, node.data)
    return node


async def assert_kept(node, url):
    """The node starts, and has what it had."""
    await asyncio.to_thread(node.start)
    async with liftpy.connect(url) as lift:
        assert await values(lift, "kept") == [b"kept"]


@pytest.mark.parametrize("strangers", [["thesis.tex"], ["a", "b", "c", "d"], [".git"]])
def test_directory_that_is_not_ours(make_node, strangers):
    node = make_node()
    node.data.mkdir(parents=True)
    for stranger in strangers:
        (node.data / stranger).write_text("precious")
    before = snapshot(node.data)
    error = error_of(node)
    assert str(node.data) in error
    assert "not a liftpy data directory" in error
    assert strangers[0] in error
    assert "--data-dir" in error
    assert snapshot(node.data) == before


def test_file_instead_of_a_directory(make_node):
    node = make_node()
    node.data.write_text("precious")
    error = error_of(node)
    assert str(node.data) in error
    assert "--data-dir" in error
    assert node.data.read_text() == "precious"


def test_directory_that_can_not_be_made(make_node, tmp_path):
    (tmp_path / "file").write_text("")
    error = error_of(make_node("--data-dir", str(tmp_path / "file" / "data")))
    assert str(tmp_path / "file" / "data") in error


async def test_directory_of_a_newer_version(used, shared_nats):
    path = used.data / "liftpy.json"
    ours = path.read_text()
    path.write_text(json.dumps({"format": 99, "node_id": json.loads(ours)["node_id"]}))
    before = snapshot(used.data)
    error = error_of(used)
    assert "newer liftpy" in error
    assert "99" in error
    assert snapshot(used.data) == before
    path.write_text(ours)
    await assert_kept(used, shared_nats.url)


async def test_identity_that_can_not_be_read(used, shared_nats):
    path = used.data / "liftpy.json"
    ours = path.read_text()
    for content in ("", "[]", '{"format": "x", "node_id": "liftpy-1"}'):
        path.write_text(content)
        before = snapshot(used.data)
        assert str(used.data) in error_of(used)
        assert snapshot(used.data) == before
    path.write_text(ours)
    await assert_kept(used, shared_nats.url)


async def test_directory_of_another_node(used, make_node, shared_nats):
    before = snapshot(used.data)
    error = error_of(make_node("--node-id", "other"))
    assert "'liftpy-1'" in error
    assert "'other'" in error
    assert snapshot(used.data) == before
    await assert_kept(used, shared_nats.url)


async def test_directory_in_use(used, make_node, shared_nats):
    """The running node does not notice."""
    await asyncio.to_thread(used.start)
    error = await asyncio.to_thread(error_of, make_node())
    assert str(used.data) in error
    assert "in use by a running node" in error
    async with liftpy.connect(shared_nats.url) as lift:
        assert (await lift.publish("kept", b"more")).offset == 1
    assert await asyncio.to_thread(used.stop) == 0


async def test_directory_of_a_node_that_was_killed_is_free(used, shared_nats):
    await asyncio.to_thread(used.start)
    used.kill()
    await assert_kept(used, shared_nats.url)


needs_plain_user = pytest.mark.skipif(
    os.geteuid() == 0 and not shutil.which("setpriv"), reason="root may write everywhere"
)


def make_read_only(path, node):
    path.chmod(0o500)
    if os.geteuid() == 0:
        node.command = ["setpriv", "--bounding-set=-dac_override,-dac_read_search", *node.command]


@needs_plain_user
async def test_directory_that_is_read_only(used, shared_nats):
    make_read_only(used.data, used)
    try:
        error = error_of(used)
    finally:
        used.data.chmod(0o700)
    assert str(used.data) in error
    assert "make it writable" in error
    await assert_kept(used, shared_nats.url)


@needs_plain_user
@pytest.mark.parametrize("which", ["streams", "wal"])
async def test_part_of_it_that_is_read_only(used, shared_nats, which):
    """The streams that are there go on; one that can not be made says so."""
    path = used.data / which
    make_read_only(path, used)
    try:
        await assert_kept(used, shared_nats.url)
        async with liftpy.connect(shared_nats.url) as lift:
            assert (await lift.publish("kept", b"more")).offset == 1
            if which == "streams":
                with pytest.raises(liftpy.AdminError, match="Permission denied"):
                    await lift.create_stream("another", subject="another")
                assert [stream.name async for stream in lift.streams()] == ["kept"]
            assert (await lift.publish("kept", b"more")).offset == 2
        assert await asyncio.to_thread(used.stop) == 0
    finally:
        path.chmod(0o700)
    assert "Traceback" not in used.log()


async def test_something_else_in_the_place_of_what_is_ours(used, shared_nats):
    """A file where a directory belongs, or a directory where a file does."""
    for which in ("streams", "wal", "metadata", "checkpoint", "lock", "liftpy.json"):
        path = used.data / which
        aside = used.data.with_name("aside")
        path.rename(aside)
        if aside.is_dir():
            path.write_text("")
        else:
            path.mkdir()
        assert str(used.data) in error_of(used), which
        if path.is_dir():
            path.rmdir()
        else:
            path.unlink()
        aside.rename(path)
    await assert_kept(used, shared_nats.url)


async def test_damaged_metadata(used, shared_nats):
    """Streams without their metadata are not touched: what the node is not sure of it leaves alone."""
    paths = [used.data / "metadata" / name for name in JOURNAL_NAMES]
    ours = [path.read_bytes() for path in paths]
    for path in paths:
        path.write_bytes(b"nonsense" * 1_000)
    streams = snapshot(used.data / "streams")
    assert str(paths[0]) in error_of(used)
    assert snapshot(used.data / "streams") == streams
    paths[1].write_bytes(ours[1])  # either one is enough
    await assert_kept(used, shared_nats.url)


async def test_metadata_of_a_newer_version(used, shared_nats):
    paths = [used.data / "metadata" / name for name in JOURNAL_NAMES]
    ours = [path.read_bytes() for path in paths]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(journal_frames, "_VERSION", 99)
        for path in paths:
            path.write_bytes(journal_frames.encode_frame(b"", generation=1, position=0, previous_crc=0)[0])
    error = error_of(used)
    assert str(paths[0]) in error
    assert "newer liftpy (format 99)" in error
    for path, content in zip(paths, ours, strict=True):
        path.write_bytes(content)
    await assert_kept(used, shared_nats.url)


async def test_metadata_that_is_gone(used, shared_nats):
    """The records of a stream that nobody knows any more are put aside, and never deleted."""
    records = snapshot(used.data / "streams")
    assert records
    shutil.rmtree(used.data / "metadata")
    await asyncio.to_thread(used.start)
    async with liftpy.connect(shared_nats.url) as lift:
        assert [stream.name async for stream in lift.streams()] == []
    assert snapshot(used.data / "quarantine") == records
    assert "no stream knows" in used.log()


WRONG = {
    "no toml": ("node_id = ", "is not TOML"),
    "an unknown setting": ("[pull]\nprot = 1", "pull.prot: unknown setting; did you mean port?"),
    "a wrong type": ("[pull]\nport = '4270'", "pull.port: must be a whole number"),
    "a bad value": ("[storage]\nsync_interval_s = 0", "storage.sync_interval_s: must be between"),
    "a bad address": ("[nats]\nurl = 'http://x'", "nats.url:"),
    "a certificate that is not there": (
        "[pull]\ntls_cert = '/nowhere/c.pem'\ntls_key = '/nowhere/k.pem'",
        "pull.tls_cert:",
    ),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_configuration(tmp_path, make_node, wrong):
    text, expected = WRONG[wrong]
    node = make_node(toml=text)
    node.command = [word for word in node.command if word not in {"--pull-port", "0", "-s", node.command[4]}]
    error = error_of(node, USAGE)
    assert expected in error
    if "certificate" not in wrong:  # found out later, when the file was read long ago
        assert str(tmp_path / "node" / "liftpy.toml") in error
    assert not node.data.exists() or "certificate" in wrong


def test_configuration_that_is_not_there(make_node, tmp_path):
    error = error_of(make_node("--config", str(tmp_path / "nothing.toml")), USAGE)
    assert str(tmp_path / "nothing.toml") in error


@pytest.mark.parametrize(
    ("variable", "value"), [("LIFTPY_PULL_PORT", "x"), ("LIFTPY_LOG_LEVEL", "loud"), ("LIFTPY_NATS_TIMEOUT_S", "0")]
)
def test_wrong_variable(make_node, variable, value):
    node = make_node(environment={variable: value})
    if variable == "LIFTPY_PULL_PORT":
        node.command = [word for word in node.command if word not in {"--pull-port", "0"}]
    assert error_of(node, USAGE).startswith(f"{variable}: ")


async def test_port_that_is_taken(used, make_node, shared_nats):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for flag in ("--pull-port", "--http-port"):
            assert f"127.0.0.1:{port}" in error_of(make_node(flag, str(port))), flag
    await assert_kept(used, shared_nats.url)
