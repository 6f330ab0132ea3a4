"""One connection: what it says and hears, when it is whole, and when it is given up."""

from __future__ import annotations

import asyncio
import ssl

import pytest
import trustme

from liftpy_client.connection.nats_options import NatsOptions
from liftpy_log.clock import SystemClock
from liftpy_server.nats.connection import NatsConnection, NatsConnectionError, TlsUse
from liftpy_server.nats.credentials import connect_line
from liftpy_server.nats.server_pool import ServerAddress
from liftpy_server.settings.limits import SILENT_QUESTIONS_MAX
from support.scripted_nats import ScriptedNats

TICK_S = 0.02


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr("liftpy_server.nats.connection.CONFIRM_INTERVAL_S", TICK_S)


async def opened(nats, connection=None, url=None, timeout_s=5.0, options=None):
    connection = connection or NatsConnection(SystemClock())
    options = options or NatsOptions(url=url or nats.url)
    address = ServerAddress.parse(options.servers[0])
    await connection.open(
        address,
        lambda info: connect_line(options, "test", address, info),
        TlsUse(options.tls_context, options.tls_first, options.prefers_tls),
        timeout_s,
    )
    return connection


async def ended(connection):
    async with asyncio.timeout(30):
        while not connection.cause:
            await asyncio.sleep(TICK_S)
    return connection.cause


async def test_it_says_who_it_is():
    async with ScriptedNats() as nats:
        connection = await opened(nats)
        assert connection.is_open
        assert connection.info["server_id"] == "S"
        said = (await nats.client(0)).connect
        assert (said["name"], said["echo"], said["verbose"], said["headers"], said["protocol"]) == (
            *("test", False, False, True),
            1,
        )
        connection.end("done")
        assert not connection.write(b"PING\r\n")
        assert await connection.ask() is False


async def test_a_question_is_confirmed_by_its_own_answer_alone():
    async with ScriptedNats() as nats:
        nats.answers = True
        connection = await opened(nats)
        client = await nats.client(0)
        nats.answers = False
        first, second = connection.ask(), connection.ask()
        await nats.until(lambda: client.unanswered >= 2)
        earlier = list(connection.questions).index(next(q for q in connection.questions if q.answered is first))
        client.send(b"PONG\r\n" * (earlier + 1))
        assert await first is True
        assert not second.done()
        client.answer()
        assert await second is True
        connection.end("done")


async def test_answers_that_nobody_asked_for_confirm_nothing():
    async with ScriptedNats() as nats:
        connection = await opened(nats)
        client = await nats.client(0)
        await nats.until(lambda: client.unanswered == 0)
        nats.answers = False
        client.send(b"PONG\r\n" * 50 + b"PING\r\n")
        await nats.until(lambda: b"PONG" in client.lines)  # those were read before anything was asked, or soon after
        asked = connection.ask()
        connection.end("the host died")
        assert await asked is False


async def test_a_connection_that_ends_confirms_nothing():
    """Neither what was asked before nor what is asked afterwards."""
    async with ScriptedNats() as nats:
        connection = await opened(nats)
        nats.answers = False
        asked = connection.ask()
        await nats.leave()
        assert await asked is False
        assert await connection.ask() is False
        assert connection.cause == "the NATS connection was lost"


async def test_a_silent_server_is_given_up():
    async with ScriptedNats() as nats:
        connection = await opened(nats)
        nats.answers = False
        ends = []
        connection.on_end = lambda: ends.append(connection.cause)
        asked = connection.ask()
        assert "did not answer" in await ended(connection)
        assert await asked is False
        assert len(ends) == 1


async def test_a_server_that_sends_is_not_given_up_although_it_owes_an_answer():
    """The answer comes behind everything that the server holds for us."""
    async with ScriptedNats() as nats:
        connection = await opened(nats)
        client = await nats.client(0)
        nats.answers = False
        async with asyncio.timeout(30):
            while connection.is_open and len(connection.questions) <= 2 * SILENT_QUESTIONS_MAX:
                client.send(b"+OK\r\n")
                await asyncio.sleep(TICK_S / 4)
        assert connection.is_open
        connection.end("done")


async def test_the_clock_stands_still_while_nothing_is_read():
    """Answers that wait in the socket because we do not look are no fault of the server."""
    async with ScriptedNats() as nats:
        connection = await opened(nats)
        connection.pause()
        async with asyncio.timeout(30):
            while connection.is_open and len(connection.questions) <= 2 * SILENT_QUESTIONS_MAX:
                await asyncio.sleep(TICK_S / 4)
        assert connection.is_open
        nats.answers = False
        connection.resume()
        assert "did not answer" in await ended(connection)


async def test_questions_are_bounded_while_nothing_is_read(monkeypatch):
    monkeypatch.setattr("liftpy_server.nats.connection.QUESTIONS_OPEN_MAX", 3)
    tick, ticks = NatsConnection._tick, []

    def counted(self):
        ticks.append(len(self.questions))
        tick(self)

    monkeypatch.setattr(NatsConnection, "_tick", counted)
    async with ScriptedNats() as nats:
        connection = await opened(nats)
        connection.pause()
        async with asyncio.timeout(30):
            while ticks.count(3) < 3:
                await asyncio.sleep(TICK_S / 4)
        assert len(connection.questions) == 3
        connection.resume()
        assert await connection.ask() is True
        connection.end("done")


@pytest.mark.parametrize(
    ("refusal", "is_refused"), [("Authorization Violation", True), ("maximum connections exceeded", False)]
)
async def test_a_server_that_refuses(refusal, is_refused):
    async with ScriptedNats(refusal=refusal) as nats:
        with pytest.raises(NatsConnectionError, match=refusal) as error:
            await opened(nats)
        assert bool(error.value.refused) is is_refused


@pytest.mark.parametrize(
    "said", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"INFO {\r\n", b"INFO []\r\n", b"x" * 3_000_000]
)
async def test_what_is_no_nats_server(said):
    async def speak(reader, writer):
        writer.write(said)
        if said:
            await reader.read()
        writer.close()

    async with await asyncio.start_server(speak, "127.0.0.1", 0) as server:
        host, port = server.sockets[0].getsockname()
        connection = NatsConnection(SystemClock())
        with pytest.raises(NatsConnectionError, match=f"{host}:{port}"):
            await opened(None, connection, f"nats://{host}:{port}")
        assert not connection.is_open


async def test_a_server_that_says_nothing_is_not_waited_for():
    async def silence(reader, writer):
        await reader.read()
        writer.close()

    async with await asyncio.start_server(silence, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(NatsConnectionError, match=r"does not answer within 0\.1 s"):
            await opened(None, url=f"nats://127.0.0.1:{port}", timeout_s=0.1)


async def test_an_address_that_says_tls_is_not_used_without():
    """The password would be sent for all to read."""
    async with ScriptedNats() as nats:
        with pytest.raises(NatsConnectionError, match="does not speak TLS"):
            await opened(nats, url=nats.url.replace("nats://", "tls://"))
        assert nats.clients == []


async def test_errors_and_news_are_passed_on():
    async with ScriptedNats() as nats:
        connection = NatsConnection(SystemClock())
        errors, news = [], []
        connection.on_error, connection.on_info = errors.append, news.append
        await opened(nats, connection)
        client = await nats.client(0)
        client.send(b'-ERR \'no "q"\'\r\nINFO {"ld')
        client.send(b"m\":true}\r\n-ERR 'Stale Connection'\r\n")
        client.writer.close()
        assert await ended(connection) == "the NATS server closed the connection: Stale Connection"
        assert errors == ['no "q"', "Stale Connection"]
        assert news == [{"ldm": True}]


async def test_a_dead_host_behind_tls_holds_nobody_up(tmp_path):
    """It takes no farewell, and confirms nothing."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    async with ScriptedNats(tls=context) as nats:
        options = NatsOptions(url=nats.url, tls_ca=str(tmp_path / "ca.pem"), tls_first=True)
        connection = await opened(nats, options=options)
        client = await nats.client(0)
        assert await connection.ask() is True
        client.writer.transport.pause_reading()
        asked = connection.ask()
        async with asyncio.timeout(5):
            assert "did not answer" in await ended(connection)
            assert await asked is False


async def introduced(port, options):
    connection = NatsConnection(SystemClock())
    tls = TlsUse(options.tls_context, options.tls_first, options.prefers_tls)
    return await connection.introduce(ServerAddress.parse(f"127.0.0.1:{port}"), tls, 0.3), connection.was_taken


@pytest.mark.parametrize("tls_first", [False, True])
async def test_a_server_that_stands_still_has_taken_the_connection(tmp_path, tls_first):
    trustme.CA().cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    options = NatsOptions(url="nats://127.0.0.1", tls_ca=str(tmp_path / "ca.pem"), tls_first=tls_first)
    async with await asyncio.start_server(lambda _reader, _writer: None, "127.0.0.1", 0) as server:
        assert await introduced(server.sockets[0].getsockname()[1], options) == (None, True)
        server.close()


async def test_a_server_whose_certificate_is_for_another_name_does_not_stand_still(tmp_path):
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("nats.example").configure_cert(context)
    async with ScriptedNats(tls=context) as nats:
        options = NatsOptions(url=nats.url, tls_ca=str(tmp_path / "ca.pem"), tls_first=True)
        assert await introduced(int(nats.url.rpartition(":")[2]), options) == (None, False)


async def test_an_error_in_this_node_leaves_nobody_waiting():
    """What is asked is answered all the same, and the connection is not used on in a state that nobody knows."""
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)
    async with ScriptedNats() as nats:
        connection = await opened(nats)
        connection.on_answer = lambda _: 1 / 0
        async with asyncio.timeout(5):
            await connection.ask()
            await ended(connection)
