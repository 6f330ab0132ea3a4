"""What the store says when the network, the server or the configuration is not as it should be."""

from __future__ import annotations

import contextlib
import datetime as dt
import logging
import socket
import ssl
import subprocess
import sys
import threading
from hashlib import sha256

import pytest
import trustme

from liftpy_bucket.errors import (
    ManifestCorruptError,
    ObjectMissingError,
    OutcomeUnknownError,
    PreconditionFailedError,
    StoreBusyError,
    StoreDeniedError,
    StoreFullError,
    StoreUnavailableError,
    StoreUnfitError,
    TakenError,
)
from liftpy_bucket.object_log import ObjectLog
from liftpy_bucket.store.conditional import create_once
from liftpy_bucket.store.memory import MemoryStore
from liftpy_bucket.store.memory_reader import MemoryReader
from liftpy_bucket.store.object_store import WHOLE_BYTES_MAX
from liftpy_bucket.store.s3 import S3Store
from liftpy_bucket.store.s3_settings import S3Settings
from liftpy_envelope.errors import ConfigError, LiftError
from support.ports import free_port
from support.s3_proxy import S3Proxy
from support.s3_servers import aws_environment, moto_server

SECRET = "wJalrXUtnFEMI-K7MDENG"
KEYS = {"AWS_ACCESS_KEY_ID": "AKIDEXAMPLE", "AWS_SECRET_ACCESS_KEY": SECRET}
WAYS = ["drop", "stall", "503", "500", "409"]


@pytest.fixture(scope="module")
def moto():
    with moto_server() as server:
        yield server


@pytest.fixture
def proxy(moto):
    with S3Proxy(moto.endpoint) as proxy:
        yield proxy


@pytest.fixture
def store(moto, proxy, name):
    return moto.store(name, endpoint=proxy.endpoint, read_timeout_s=0.5)


def calls(store):
    """Every kind of request."""
    return {
        "create": lambda: store.create("k", b"body", "n"),
        "replace": lambda: store.replace("k", b"body", "0" * 32, "n"),
        "get": lambda: store.get("k"),
        "get_newer": lambda: store.get_newer("k", "0" * 32),
        "get_range": lambda: store.get_range("k", 0, 1),
        "head": lambda: store.head("k"),
        "list": lambda: list(store.list("")),
        "delete": lambda: store.delete(["k"]),
        "delete two": lambda: store.delete(["k", "l"]),
    }


class Passing:
    """A clock on which ten seconds pass between two looks."""

    passed_s = 0.0

    def monotonic(self):
        self.passed_s += 10
        return self.passed_s


def test_credentials_that_are_rotated_in_a_file_are_read_again(moto, proxy, name, tmp_path):
    moto.store(name).create("k", b"body", "n")
    file = tmp_path / "credentials"

    def write(key):
        file.write_text(f"[default]\naws_access_key_id = {key}\naws_secret_access_key = {SECRET}\n")

    write("AKIDONE")
    with aws_environment(AWS_SHARED_CREDENTIALS_FILE=str(file)):
        store = S3Store(moto.settings(name, endpoint=proxy.endpoint), Passing())
        assert store.get("k").body == b"body"
        for number, (kind, call) in enumerate(calls(store).items()):
            proxy.revoked = f"AKID{number}"
            write(proxy.revoked)
            store._renew(store._clients)
            write("AKIDNEXT")
            with contextlib.suppress(ObjectMissingError, PreconditionFailedError):
                call()
            assert store._clients.usual._request_signer._credentials.access_key == "AKIDNEXT", kind
            proxy.revoked = "AKIDNEXT"
            with pytest.raises(StoreDeniedError):
                call()


def test_an_object_is_not_sent_again_to_a_store_that_asks_for_fewer_requests(store, proxy):
    proxy.lose("slow down", count=9)
    with pytest.raises(StoreBusyError):
        create_once(store, "k", memoryview(bytes(2 << 20)), "n")
    assert [method for method, _ in proxy.attempts] == ["PUT"]


def test_a_manifest_is_sent_again_after_pauses_that_grow(store, proxy):
    pauses = []
    store._pause = pauses.append
    proxy.lose("slow down", count=3)
    create_once(store, "k", b"manifest", "n")
    assert store.get("k").body == b"manifest"
    assert all(0.5 <= pause / base <= 1.5 for pause, base in zip(pauses, (0.25, 0.5, 1.0), strict=True))
    proxy.lose("slow down", count=4)
    with pytest.raises(StoreBusyError):
        create_once(store, "l", b"manifest", "n")


@pytest.mark.parametrize("way", WAYS)
def test_an_answer_that_is_lost_leaves_the_outcome_open(store, proxy, way):
    proxy.lose(way)
    with pytest.raises(OutcomeUnknownError, match="whether object k was written is not known"):
        store.create("k", b"body", "n")
    assert proxy.attempts == [("PUT", proxy.attempts[0][1])]  # one attempt, or it would be told 412 for its own
    assert store.head("k").nonce == "n"
    proxy.lose(way)
    with pytest.raises(OutcomeUnknownError):
        store.replace("k", b"body 2", store.head("k").etag, "n2")
    assert store.get("k").body == b"body 2"


@pytest.mark.parametrize("way", WAYS)
def test_a_create_whose_answer_is_lost_is_settled(store, proxy, way):
    proxy.lose(way)
    create_once(store, "k", b"body", "n")
    assert [method for method, _ in proxy.attempts] == ["PUT", "HEAD"]
    proxy.lose(way)
    with pytest.raises(TakenError):
        create_once(store, "k", b"another", "n2")
    assert proxy.lost == 2


@pytest.mark.parametrize("way", WAYS)
def test_an_append_whose_answer_is_lost_is_there_once(store, proxy, way):
    log = ObjectLog(store, "log")
    for number in range(3):
        proxy.lose(way)
        assert log.append(b"%d" % number) == number
    assert list(ObjectLog(store, "log").read_range(0, 3)) == [b"0", b"1", b"2"]
    assert log.end() == 3


@pytest.mark.parametrize("way", ["drop", "503", "half"])
def test_what_may_be_repeated_is_repeated(store, proxy, way):
    store.create("k", b"body" * 1_000, "n")
    proxy.lose(way, method="GET")
    assert store.get("k").body == b"body" * 1_000
    assert proxy.lost == 1
    if way != "half":
        proxy.lose(way, method="HEAD")
        assert store.head("k").nonce == "n"
        proxy.lose(way, method="DELETE")
        store.delete(["k"])
        with pytest.raises(ObjectMissingError):
            store.get("k")


@pytest.mark.parametrize("way", ["stall", "half"])
def test_attempts_are_not_multiplied(moto, proxy, name, way):
    """The library below repeats what is not answered, and we what breaks off; nobody repeats what another has."""
    store = moto.store(name, endpoint=proxy.endpoint, attempts_max=3, read_timeout_s=0.3)
    store.create("k", b"body" * 1_000, "n")
    proxy.lose(way, count=20, method="GET")
    with pytest.raises(StoreUnavailableError):
        store.get("k")
    assert [method for method, _ in proxy.attempts].count("GET") == 3


def test_a_store_that_is_not_well(moto, proxy, name):
    store = moto.store(name, endpoint=proxy.endpoint, attempts_max=2)
    for call in calls(store).values():
        for method in ("GET", "PUT", "HEAD", "POST", "DELETE"):
            proxy.lose("503", count=2, method=method)
        with pytest.raises((StoreUnavailableError, OutcomeUnknownError)) as caught:
            call()
        assert caught.value.retriable


@pytest.mark.parametrize(("status", "kind"), [("507", StoreFullError), ("403", StoreDeniedError), ("301", LiftError)])
def test_other_refusals(store, proxy, status, kind):
    proxy.lose(status)
    with pytest.raises(kind):
        store.create("k", b"body", "n")


@pytest.mark.parametrize("status", ["501", "405"])
def test_a_store_that_deletes_one_by_one_only(store, proxy, status):
    for key in ("a", "b", "c"):
        store.create(key, b"", "n")
    proxy.lose(status, method="POST")
    store.delete(["a", "b", "never there"])
    assert [entry.key for entry in store.list("")] == ["c"]
    proxy.lose("404", method="DELETE")
    store.delete(["c"])
    assert proxy.lost == 2


def test_nobody_is_there(moto):
    store = moto.store(endpoint=f"http://127.0.0.1:{free_port()}", attempts_max=1)
    for name, call in calls(store).items():
        with pytest.raises(StoreUnavailableError, match=r"can not be reached \(.*refused\); check endpoint") as caught:
            call()
        assert "127.0.0.1" in str(caught.value), name
    store = moto.store(endpoint="http://store.invalid", attempts_max=1)
    with pytest.raises(StoreUnavailableError, match=r"can not be reached \(.*store.invalid"):
        store.create("k", b"", "n")


def test_someone_is_there_and_says_nothing(moto):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        store = moto.store(endpoint=f"http://127.0.0.1:{silent.getsockname()[1]}", attempts_max=1, read_timeout_s=0.2)
        with pytest.raises(OutcomeUnknownError, match="timed out"):
            store.create("k", b"", "n")
        with pytest.raises(StoreUnavailableError, match="timed out"):
            store.head("k")


def test_a_bucket_that_is_missing(moto):
    store = moto.store(url="s3://no-such-bucket")
    for name, call in calls(store).items():
        if name != "head":  # its answer has no words, and 404 is what an object that is missing looks like
            with pytest.raises(StoreDeniedError, match="has no such bucket; create it, or correct the url"):
                call()


def test_no_credentials():
    with aws_environment():
        store = S3Store(S3Settings(url="s3://bucket", endpoint="http://127.0.0.1:1"))
        with pytest.raises(StoreDeniedError, match="AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"):
            store.create("k", b"", "n")
    with aws_environment(AWS_PROFILE="gone"), pytest.raises(StoreDeniedError, match="gone"):
        S3Store(S3Settings(url="s3://bucket"))
    half = aws_environment(AWS_ACCESS_KEY_ID="AKIDEXAMPLE")
    with half, pytest.raises(StoreDeniedError, match="no credentials that can be used"):
        S3Store(S3Settings(url="s3://bucket")).create("k", b"", "n")


@contextlib.contextmanager
def tls_server(authority):
    """Takes TLS connections and ends them."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    server = socket.create_server(("127.0.0.1", 0))
    ends = threading.Event()

    def serve():
        while not ends.is_set():
            try:
                connection, _ = server.accept()
                with context.wrap_socket(connection, server_side=True) as wrapped:
                    wrapped.recv(1)
            except OSError:
                continue

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield f"https://127.0.0.1:{server.getsockname()[1]}"
    finally:
        ends.set()
        server.shutdown(socket.SHUT_RDWR)
        server.close()
        thread.join()


@pytest.mark.filterwarnings("ignore:Unverified HTTPS request")
def test_tls(moto, tmp_path):
    authority, other = trustme.CA(), trustme.CA()
    for ca, name in ((authority, "right.pem"), (other, "wrong.pem")):
        ca.cert_pem.write_to_path(str(tmp_path / name))
    with tls_server(authority) as endpoint:
        for ca_file in (None, str(tmp_path / "wrong.pem")):
            store = moto.store(endpoint=endpoint, ca_file=ca_file, attempts_max=1)
            for call in (calls(store)["create"], calls(store)["get"]):
                with pytest.raises(StoreDeniedError, match=r"certificate of the store is not trusted.*set ca_file"):
                    call()
        for options in ({"ca_file": str(tmp_path / "right.pem")}, {"verify": False}):
            with pytest.raises(OutcomeUnknownError):  # it is let through, and the server hangs up
                moto.store(endpoint=endpoint, **options).create("k", b"", "n")
    with pytest.raises(ConfigError, match=r"there is no file .*gone\.pem"):
        moto.store(endpoint="https://127.0.0.1:1", ca_file=str(tmp_path / "gone.pem"))
    plain = moto.endpoint.replace("http:", "https:")
    with pytest.raises(StoreDeniedError, match="speaks no TLS there; begin endpoint with http://"):
        moto.store(endpoint=plain, attempts_max=1).create("k", b"", "n")


def test_no_secret_is_said_or_logged(moto, proxy, caplog):
    caplog.set_level(logging.DEBUG)
    with aws_environment(**KEYS):
        stores = [
            S3Store(moto.settings("secret", endpoint=proxy.endpoint)),
            S3Store(moto.settings(url="s3://no-such-bucket")),
            S3Store(moto.settings(endpoint="http://127.0.0.1:1", attempts_max=1)),
        ]
    said = []
    for store in stores:
        for call in calls(store).values():
            proxy.lose("drop")
            try:
                call()
            except LiftError as error:
                said += [str(error), repr(error), repr(error.__cause__), repr(error.__context__)]
    said += [record.getMessage() for record in caplog.records]
    assert len(said) > 100
    assert not [text for text in said if SECRET in text]
    assert SECRET not in repr([vars(store) for store in stores])


def test_etags_can_go_without_quotes(moto, name):
    sent = []
    with S3Proxy(moto.endpoint) as proxy:
        store = moto.store(name, endpoint=proxy.endpoint, quoted_etags=False)
        etag = store.create("k", b"1", "n")
        ask = proxy.ask
        proxy.ask = lambda method, path, headers, body: sent.append(headers) or ask(method, path, headers, body)
        store.replace("k", b"2", etag, "n2")
    assert [headers.get("If-Match") for headers in sent] == [etag]


def test_memory_is_sent_as_it_is(store):
    body = memoryview(bytearray(range(256)) * (40 << 10))[1_000:]
    etag = store.create("large", body, "n")
    assert store.get("large").body == body
    assert store.head("large").etag == etag


def test_memory_is_not_read_to_be_sent(store, monkeypatch):
    """Without a checksum or a signature of it, nothing copies it before the socket does."""
    for name in ("read", "readinto"):
        monkeypatch.setattr(MemoryReader, name, None)
    body = memoryview(bytearray(range(256)) * (12 << 10))
    store.create("large", body, "n")
    assert store.get("large").body == body


def test_an_object_is_copied_by_the_store(moto, proxy, name):
    source, target = moto.store(f"{name}/from"), moto.store(f"{name}/to", endpoint=proxy.endpoint)
    etag = source.create("k", b"body", "theirs")
    assert not target.copy_from(source, "k", etag, "n"), "another endpoint may be another store"
    assert not target.copy_from(MemoryStore(), "k", etag, "n")
    source = moto.store(f"{name}/from", endpoint=proxy.endpoint)
    assert target.copy_from(source, "k", etag, "n")
    assert target.get("k").body == b"body"
    assert target.head("k")[:3] == (4, etag, "n")
    assert not any(method == "GET" and "/from/" in path for method, path in proxy.attempts), "no bytes came here"
    assert not target.copy_from(source, "l", etag, "n"), "it is not there"
    other = source.create("o", b"other", "theirs")
    for way in ("503", "500", "drop"):
        proxy.lose(way)
        assert not target.copy_from(source, "o", other, "n")
        create_once(target, "o", b"other", "n")  # also where the copy was made, and its answer was lost
        target.delete(["o"])
    assert target.copies_from(source)
    proxy.lose("403")
    assert not target.copy_from(source, "o", other, "n")
    assert not target.copies_from(source), "it would say so of every object"


@pytest.mark.parametrize("sign_payload", [None, True, False])
@pytest.mark.parametrize("body", [b"body", memoryview(bytes(range(256)) * 2_000), b""])
def test_what_a_signature_covers(moto, proxy, name, sign_payload, body):
    """On this machine nothing is between a store and us."""
    store = moto.store(name, endpoint=proxy.endpoint, sign_payload=sign_payload)
    sent = []
    ask = proxy.ask
    proxy.ask = lambda method, path, headers, content: sent.append(headers) or ask(method, path, headers, content)
    etag = store.create("k", body, "n")
    store.replace("k", bytes(body), etag, "n2")
    assert store.get("k").body == body
    covered = sha256(body).hexdigest() if sign_payload else "UNSIGNED-PAYLOAD"
    assert [headers.get("X-Amz-Content-SHA256") for headers in sent[:2]] == [covered] * 2


def test_credentials_of_a_profile(moto, proxy, name, tmp_path):
    """They come before those of the environment, which may be of another store."""
    file = tmp_path / "credentials"
    file.write_text("[backup]\naws_access_key_id = AKIDOFBACKUP\naws_secret_access_key = s\n")
    sent = []
    ask = proxy.ask
    proxy.ask = lambda method, path, headers, content: sent.append(headers) or ask(method, path, headers, content)
    with aws_environment(**moto.environment, AWS_SHARED_CREDENTIALS_FILE=str(file)):
        S3Store(moto.settings(name, endpoint=proxy.endpoint, profile="backup")).create("k", b"", "n")
        assert "Credential=AKIDOFBACKUP/" in sent.pop()["Authorization"]
        S3Store(moto.settings(name, endpoint=proxy.endpoint)).create("k2", b"", "n")
        assert "Credential=moto/" in sent.pop()["Authorization"]
        with pytest.raises(StoreDeniedError, match=r"no credentials that can be used .*backups"):
            S3Store(moto.settings(name, profile="backups"))


def test_times_are_those_of_the_store(moto, name):
    store = moto.store(name)
    store.create("k", b"", "n")
    now_ns = int(dt.datetime.now(dt.UTC).timestamp() * 1e9)
    assert abs(store.head("k").modified_ns - now_ns) < 60e9
    assert next(store.list("")).modified_ns == store.head("k").modified_ns


def test_the_library_is_imported_only_for_a_bucket():
    code = (
        "import sys; import liftpy, liftpy_log, liftpy_bucket.store.memory, liftpy_bucket.store.s3_settings, "
        "liftpy.cli.app, liftpy_server.node.node; print([name for name in sys.modules if name.startswith('boto')])"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert ended.stdout.strip() == "[]"


class Endless:
    """A body that never ends, and how much of it was read."""

    taken = 0

    def read(self, size=None):
        assert size is not None, "nobody has so much memory"
        self.taken += size
        return bytes(size)

    def close(self):
        pass


def test_what_is_too_large_is_not_read(moto, name, monkeypatch):
    store, body = moto.store(name), Endless()
    about = {"ETag": '"e"', "LastModified": dt.datetime.now(dt.UTC), "Body": body}
    monkeypatch.setattr(store, "_answer", lambda key, asked: {**about, "ContentLength": WHOLE_BYTES_MAX + 1})
    for read in (lambda: store.get("k"), lambda: store.get_newer("k", "another")):
        with pytest.raises(ManifestCorruptError, match="bytes are more than the"):
            read()
    assert body.taken == 0
    with pytest.raises(StoreUnfitError, match="5 bytes were asked for, and more came"):
        store.get_range("k", 0, 5)
    assert body.taken == 6


def test_what_is_read_whole_has_a_bound_in_every_store(moto, name):
    for store in (MemoryStore(), moto.store(name)):
        store.create("large", bytes(WHOLE_BYTES_MAX + 1), "n")
        with pytest.raises(ManifestCorruptError, match="large"):
            store.get("large")
        assert len(store.get_range("large", 5, WHOLE_BYTES_MAX)) == WHOLE_BYTES_MAX - 4
