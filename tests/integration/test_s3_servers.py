"""The store on servers that are processes of their own: SeaweedFS, and MiniStack where it can be installed."""

from __future__ import annotations

import datetime as dt
import itertools
import logging
import os
import subprocess
import sys
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from unittest import mock

import pytest

from liftpy.cli.child_processes import die_with_parent
from liftpy_bucket.errors import OutcomeUnknownError, PreconditionFailedError, StoreDeniedError, StoreError
from liftpy_bucket.object_log import ObjectLog
from liftpy_bucket.store.conditional import create_once
from liftpy_envelope.errors import LiftError
from support.ports import free_port
from support.s3_proxy import S3Proxy
from support.s3_servers import S3Server, seaweedfs
from support.store_conformance import CHECKS, name_of_check, race_to_create, race_to_replace

PREFIXES = itertools.count()
MINISTACK = "ministack==1.5.33"
INSTALL_S_MAX = 300
START_S_MAX = 30
RACES = 3


@pytest.fixture(scope="module")
def seaweed(tmp_path_factory):
    with seaweedfs(tmp_path_factory.mktemp("seaweedfs")) as server:
        yield server


@pytest.fixture(scope="module")
def ministack(tmp_path_factory):
    """In a virtual environment of its own, because it pins another botocore."""
    home = tmp_path_factory.mktemp("ministack")
    python = home / "venv" / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", str(home / "venv")], check=True, timeout=INSTALL_S_MAX)
    install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", MINISTACK]
    done = subprocess.run(install, capture_output=True, text=True, timeout=INSTALL_S_MAX, check=False)
    if done.returncode:
        unreachable = ("Could not find a version", "Failed to establish", "timed out", "Temporary failure")
        assert any(words in done.stderr for words in unreachable), done.stderr
        pytest.skip(f"{MINISTACK} can not be had from PyPI: {done.stderr.strip().splitlines()[-1]}")
    port = free_port()
    kept = {name: text for name, text in os.environ.items() if not name.startswith("AWS_")}
    kept |= {"BIND_HOST": "127.0.0.1", "GATEWAY_PORT": str(port), "S3_PERSIST": "1", "PERSIST_STATE": "1"}
    kept |= {"S3_DATA_DIR": str(home / "s3"), "STATE_DIR": str(home / "state"), "HOME": str(home)}
    with (home / "log").open("ab") as log:
        process = subprocess.Popen(
            [str(python.parent / "ministack")],
            env=kept, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=home,
            preexec_fn=die_with_parent if sys.platform == "linux" else None,  # noqa: PLW1509 - no threads that matter
        )  # fmt: skip
    try:
        server = S3Server(f"http://127.0.0.1:{port}", {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"})
        wait_until_it_answers(server, process)
        server.client().create_bucket(Bucket=server.bucket)
        yield server
    finally:
        process.kill()
        process.wait()


def wait_until_it_answers(server, process):
    deadline = time.monotonic() + START_S_MAX
    while process.poll() is None and time.monotonic() < deadline:
        try:
            urllib.request.urlopen(server.endpoint, timeout=1).close()
        except OSError as error:
            if hasattr(error, "code"):
                return
            time.sleep(0.1)
        else:
            return
    raise AssertionError("MiniStack did not come up")


@pytest.fixture(params=["seaweed", pytest.param("ministack", marks=pytest.mark.slow)])
def server(request):
    return request.getfixturevalue(request.param)


@pytest.fixture
def store(server):
    return server.store(f"prefix-{next(PREFIXES)}", connections_max=20)


@pytest.mark.parametrize("check", CHECKS, ids=name_of_check)
def test_conformance(store, check):
    check(store)


@pytest.mark.parametrize("sign_payload", [True, False])
@pytest.mark.parametrize("size", [0, 100, 9 << 20])
def test_bodies_are_taken_with_a_signature_and_without(server, sign_payload, size):
    store = server.store(f"prefix-{next(PREFIXES)}", sign_payload=sign_payload)
    body = memoryview(bytes(range(256)) * (size // 256 + 1))[:size]
    etag = store.create("k", body, "n")
    with pytest.raises(PreconditionFailedError):
        store.create("k", body, "n")
    assert store.get("k").body == body
    store.replace("k", b"small", etag, "n2")
    assert store.get("k").body == b"small"


def test_the_store_copies_only_what_is_meant(seaweed):
    place = f"copies-{next(PREFIXES)}"
    source, target = seaweed.store(f"{place}/from"), seaweed.store(f"{place}/to")
    body = os.urandom(9 << 20)
    etag = source.create("a/k", body, "theirs")
    assert target.copy_from(source, "a/k", etag, "n")
    assert target.get("a/k").body == body
    assert target.head("a/k").nonce == "n"
    assert source.head("a/k")[:3] == (len(body), etag, "theirs")
    source.create("l", b"changed", "theirs")
    assert not target.copy_from(source, "l", etag, "n"), "it is not the one that was meant"
    create_once(target, "l", b"other", "n")


@pytest.mark.parametrize("turn", range(RACES))
def test_of_twenty_that_create_one_wins(store, turn):
    race_to_create(store, f"contended/{turn}")


@pytest.mark.parametrize("turn", range(RACES))
def test_of_twenty_that_swap_nobody_is_lost(store, turn):
    race_to_replace(store, f"contended-{turn}")


def test_many_append_to_one_log(store):
    def append(number):
        log = ObjectLog(store, "log", writer=f"w{number}", shared=True)
        return [(log.append(b"%d-%d" % (number, turn)), b"%d-%d" % (number, turn)) for turn in range(5)]

    with ThreadPoolExecutor(4) as pool:
        appended = dict(itertools.chain(*pool.map(append, range(4))))
    log = ObjectLog(store, "log")
    assert [appended[sequence] for sequence in range(20)] == list(log.read_range(0, log.end()))
    log.trim(15)
    assert (log.start(), ObjectLog(store, "log").end()) == (15, 20)


def test_what_was_acknowledged_survives_kill_9(tmp_path):
    with seaweedfs(tmp_path) as server:
        store = server.store("kept", attempts_max=1)
        log = ObjectLog(store, "log")
        acknowledged = []

        def write():
            for number in itertools.count():
                try:
                    log.append(b"%d" % number * 100)
                    create_once(store, f"k/{number:05d}", b"%d" % number, f"n{number}")
                except StoreError:
                    return
                acknowledged.append(number)

        with ThreadPoolExecutor(1) as pool:
            writing = pool.submit(write)
            while len(acknowledged) < 30:
                time.sleep(0.01)
            server.kill()
            writing.result(timeout=60)
        server.start()
        there = [entry.key for entry in store.list("k/")]
        assert set(there) >= {f"k/{number:05d}" for number in acknowledged}
        assert [store.get(f"k/{number:05d}").body for number in acknowledged] == [b"%d" % n for n in acknowledged]
        again = ObjectLog(store, "log")
        end = again.end()
        assert list(again.read_range(0, end)) == [b"%d" % number * 100 for number in range(end)]
        assert end > acknowledged[-1]
        log.resolve()
        log.append(b"and on")
        store.create("k/and-on", b"", "n")


@pytest.mark.parametrize("way", ["drop", "503"])
def test_answers_that_are_lost_are_settled(seaweed, way):
    with S3Proxy(seaweed.endpoint) as proxy:
        store = seaweed.store(f"prefix-{next(PREFIXES)}", endpoint=proxy.endpoint)
        proxy.lose(way)
        with pytest.raises(OutcomeUnknownError):
            store.create("k", b"1", "n")
        log = ObjectLog(store, "log")
        for number in range(5):
            proxy.lose(way)
            assert log.append(b"%d" % number) == number
        assert list(log.read_range(0, 5)) == [b"%d" % number for number in range(5)]
        assert proxy.lost == 6


def refusals(server, **changes):
    """What every kind of request is told."""
    store = server.store("refused", **changes)
    calls = (
        lambda: store.create("k", b"", "n"),
        lambda: store.get("k"),
        lambda: store.head("k"),
        lambda: list(store.list("")),
        lambda: store.delete(["k", "l"]),
    )
    said = []
    for call in calls:
        with pytest.raises(StoreDeniedError) as caught:
            call()
        said.append(str(caught.value))
    return said


def test_refusals_are_told_in_words(seaweed, caplog):
    caplog.set_level(logging.DEBUG)
    keys = seaweed.environment
    unknown = S3Server(seaweed.endpoint, keys | {"AWS_ACCESS_KEY_ID": "unknown"})
    assert all("does not know the access key" in text for text in refusals(unknown))
    wrong = S3Server(seaweed.endpoint, keys | {"AWS_SECRET_ACCESS_KEY": "wrong-secret-of-mine"})
    said = refusals(wrong)
    assert all("the secret key does not fit the access key" in text for text in said)
    late = dt.datetime.now(dt.UTC) + dt.timedelta(hours=1)
    with mock.patch("botocore.auth.get_current_datetime", return_value=late.replace(tzinfo=None)):
        skewed = refusals(seaweed)
    assert all("the clock of this machine is wrong" in text for text in skewed), skewed
    with pytest.raises(LiftError, match="has no such bucket"):
        seaweed.store(url="s3://no-such-bucket").create("k", b"", "n")
    logged = [record.getMessage() for record in caplog.records]
    secrets = ("wrong-secret-of-mine", keys["AWS_SECRET_ACCESS_KEY"])
    assert not [text for text in said + skewed + logged if any(secret in text for secret in secrets)]
