"""TLS and credentials: towards NATS, and on the pull port; what is not allowed fails with a message that says so."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import pytest
import trustme

import liftpy
from support.cluster import NodeProcess, eventually, make_nats
from support.nats_jwt import operator_mode, user_nkey
from support.reading import gaps, stored, values

LISTEN = "listen: 127.0.0.1:4222\n"


class Authority:
    """A certificate authority with a certificate for this machine and one for a client."""

    def __init__(self, home):
        home.mkdir()
        self._ca = trustme.CA()
        self.ca = str(home / "ca.pem")
        self._ca.cert_pem.write_to_path(self.ca)
        self.cert, self.key = self._issue(home, "server", "127.0.0.1", "localhost")
        self.client_cert, self.client_key = self._issue(home, "client", "client@example.org")

    def _issue(self, home, name, *identities):
        issued = self._ca.issue_cert(*identities)
        cert, key = home / f"{name}.pem", home / f"{name}.key"
        issued.private_key_pem.write_to_path(key)
        for number, blob in enumerate(issued.cert_chain_pems):
            blob.write_to_path(cert, append=number > 0)
        return str(cert), str(key)

    def server_tls(self, *lines):
        """A tls block for nats.conf."""
        return f'tls {{ cert_file: "{self.cert}", key_file: "{self.key}", {", ".join(lines)} }}\n'


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("tls") / "ours")


@pytest.fixture(scope="module")
def stranger(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("tls") / "theirs")


def toml(table, **settings):
    lines = [f"{name} = {str(value).lower() if value is True else repr(value)}" for name, value in settings.items()]
    return "\n".join([f"[{table}]", *lines, ""])


@asynccontextmanager
async def running(tmp_path, config, *, url=None, options=None, pull=""):
    """A nats-server, a node and a client that both reach it with the same options."""
    options = options or {}
    server = make_nats(tmp_path / "nats", config=LISTEN + config if "listen:" not in config else config)
    address = url(server.url) if url else server.url
    node = NodeProcess(address, tmp_path / "node", toml=toml("nats", **options) + pull)
    try:
        await asyncio.to_thread(node.start)
        async with liftpy.connect(address, timeout_s=10.0, **options) as lift:
            yield server, node, lift
        assert "Traceback" not in node.log()
    finally:
        node.stop()
        server.stop()


async def assert_useful(lift):
    """Streams can be created, published to and read."""
    await lift.create_stream("s", subject="s.>")
    for number in range(3):
        assert (await lift.publish("s.x", b"%d" % number)).offset == number
    assert await values(lift, "s") == [b"0", b"1", b"2"]


def with_tls(url):
    return url.replace("nats://", "tls://")


@pytest.mark.parametrize("mode", ["upgrade", "mutual", "first"])
async def test_nats_over_tls(tmp_path, authority, mode):
    """With an address that does not say so, with certificates of clients, and with TLS before the server speaks."""
    options = {"tls_ca": authority.ca}
    lines = []
    if mode == "mutual":
        options |= {"tls_cert": authority.client_cert, "tls_key": authority.client_key}
        lines = [f'ca_file: "{authority.ca}"', "verify: true"]
    elif mode == "first":
        options |= {"tls_first": True}
        lines = ["handshake_first: true"]
    url = None if mode == "upgrade" else with_tls
    async with running(tmp_path, authority.server_tls(*lines), url=url, options=options) as (server, _, lift):
        await assert_useful(lift)
        for number in range(5_000):
            await lift.nats.publish("s.y", b"%d" % number)
        await lift.nats.flush()
        await stored(lift, "s", 5_003)
        assert [int(value) for value in (await values(lift, "s"))[3:]] == list(range(5_000))
        server.stop()
        server.start()
        await eventually(lambda: _one_gap(lift))
        assert (await lift.publish("s.x", b"after")).offset == 5_003


async def _one_gap(lift):
    try:
        known = await gaps(lift, "s")
    except liftpy.NodeUnavailableError:
        return False
    return len(known) == 1 and known[0]["until_ns"] is not None


@pytest.mark.parametrize("given", [(), ("tls_ca",)], ids=["no-authority", "other-authority"])
async def test_a_nats_server_that_is_not_trusted(tmp_path, authority, stranger, given):
    """The node waits, and says why; its log has no trace, and nothing was sent that should not have been."""
    options = dict.fromkeys(given, stranger.ca)
    server = make_nats(tmp_path / "nats", config=LISTEN + authority.server_tls())
    node = NodeProcess(with_tls(server.url), tmp_path / "node", toml=toml("nats", **options))
    node.spawn()
    try:
        told = "certificate verify failed"
        await eventually(lambda: told in node.log())
        assert node.is_running
        with pytest.raises(liftpy.UnreachableError, match=told):
            await liftpy.connect(with_tls(server.url), timeout_s=3.0, **options)
        assert node.stop() == 0
        assert "Traceback" not in node.log()
    finally:
        node.kill()
        server.stop()


async def test_a_client_certificate_that_is_missing(tmp_path, authority):
    config = LISTEN + authority.server_tls(f'ca_file: "{authority.ca}"', "verify: true")
    server = make_nats(tmp_path / "nats", config=config)
    node = NodeProcess(with_tls(server.url), tmp_path / "node", toml=toml("nats", tls_ca=authority.ca))
    node.spawn()
    try:
        await eventually(lambda: "WARNING NATS connection" in node.log())
        assert node.is_running
        assert node.stop() == 0
        assert "Traceback" not in node.log()
    finally:
        node.kill()
        server.stop()


async def test_user_and_password_in_the_address(tmp_path):
    """They are used, and shown nowhere."""
    config = "authorization { users = [ {user: u, password: hush-hush} ] }\n"
    url = lambda given: given.replace("//", "//u:hush-hush@")
    async with running(tmp_path, config, url=url) as (server, node, lift):
        await assert_useful(lift)
        assert "hush-hush" not in node.log()
        assert (await lift.node_info())["nats_url"] == server.url
        assert "hush-hush" not in str(await lift.nodes())


async def test_token(tmp_path):
    async with running(tmp_path, "authorization { token: t0ken }\n", options={"token": "t0ken"}) as (_, _, lift):
        await assert_useful(lift)


async def test_nkey(tmp_path):
    path = tmp_path / "user.nk"
    config = f"authorization {{ users = [ {{nkey: {user_nkey(path)}}} ] }}\n"
    async with running(tmp_path, config, options={"nkey": str(path)}) as (_, _, lift):
        await assert_useful(lift)


async def test_credentials_file(tmp_path):
    path = tmp_path / "user.creds"
    async with running(tmp_path, operator_mode(path), options={"creds": str(path)}) as (_, _, lift):
        await assert_useful(lift)


WRONG = {
    "password": ("authorization { users = [ {user: u, password: p} ] }\n", {"user": "u", "password": "hush-hush"}),
    "token": ("authorization { token: t0ken }\n", {"token": "hush-hush"}),
}


@pytest.mark.parametrize(("config", "options"), WRONG.values(), ids=WRONG)
async def test_wrong_credentials_end_the_start(tmp_path, config, options):
    server = make_nats(tmp_path / "nats", config=LISTEN + config)
    node = NodeProcess(server.url, tmp_path / "node", toml=toml("nats", **options))
    try:
        node.spawn()
        assert await asyncio.to_thread(node.process.wait, 60) == 1
        assert "refuses our credentials" in node.log().strip().splitlines()[-1]
        assert "Traceback" not in node.log()
        assert "hush-hush" not in node.log()
    finally:
        node.kill()
        server.stop()


async def test_a_user_who_may_not_ask_for_metadata_reads_nothing(tmp_path):
    """The pull port admits by a token that only those learn who may ask for it over NATS."""
    config = (
        "authorization { users = [ {user: node, password: n}, {user: publisher, password: p, permissions: "
        '{publish: {deny: "LIFT.>"}}}, {user: reader, password: r, permissions: {publish: {deny: "s.>"}}} ] }\n'
    )
    server = make_nats(tmp_path / "nats", config=LISTEN + config)
    node = NodeProcess(server.url.replace("//", "//node:n@"), tmp_path / "node").start()
    try:
        async with liftpy.connect(server.url, user="node", password="n") as lift:
            await assert_useful(lift)
        async with liftpy.connect(server.url, user="publisher", password="p", timeout_s=1.0) as lift:
            with pytest.raises(liftpy.NotPermittedError, match=r"publish to LIFT\.API\.METADATA: grant it"):
                await values(lift, "s")
        async with liftpy.connect(server.url, user="reader", password="r") as lift:
            assert await values(lift, "s")
            with pytest.raises(liftpy.NotPermittedError, match=r"publish to s\.x"):
                await lift.publish("s.x", b"v")
    finally:
        node.stop()
        server.stop()


async def test_pull_port_over_tls(tmp_path, authority, stranger):
    pull = toml("pull", tls_cert=authority.cert, tls_key=authority.key)
    async with running(tmp_path, "", options={"tls_ca": authority.ca}, pull=pull) as (server, node, lift):
        await assert_useful(lift)
        async with liftpy.connect(server.url, tls_ca=stranger.ca) as other:
            with pytest.raises(liftpy.LiftError, match="certificate verify failed"):
                await asyncio.wait_for(values(other, "s"), 40)
        reader, writer = await asyncio.open_connection("127.0.0.1", node.pull_port)
        writer.write(b"\x10\0\0\0" + bytes(16))  # one who does not speak TLS
        async with asyncio.timeout(40):
            assert not (await reader.read(100)).startswith(b"\x10")
        writer.close()
        assert await values(lift, "s") == [b"0", b"1", b"2"]


async def test_pull_port_that_wants_certificates_of_clients(tmp_path, authority, stranger):
    pull = toml("pull", tls_cert=authority.cert, tls_key=authority.key, tls_client_ca=authority.ca)
    options = {"tls_ca": authority.ca, "tls_cert": authority.client_cert, "tls_key": authority.client_key}
    async with running(tmp_path, "", options=options, pull=pull) as (server, _, lift):
        await assert_useful(lift)
        for wrong in ({}, {"tls_cert": stranger.client_cert, "tls_key": stranger.client_key}):
            async with liftpy.connect(server.url, tls_ca=authority.ca, **wrong) as other:
                with pytest.raises((liftpy.LiftError, TimeoutError)):
                    await asyncio.wait_for(values(other, "s"), 1)
        assert await values(lift, "s") == [b"0", b"1", b"2"]
