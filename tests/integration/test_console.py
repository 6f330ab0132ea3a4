"""The web console over a real node: every page, what it reads, what it changes, and whom it refuses."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from http.client import HTTPConnection
from pathlib import Path
from typing import NamedTuple
from urllib.error import URLError
from urllib.parse import urlencode, urlsplit
from urllib.request import urlopen

import pyarrow.parquet as pq
import pytest

import liftpy
from support import browser
from support.cli import DevProcess

STREAM = "console-orders"
GROUP = "console-billing"
PAGES = ("/", "/streams", f"/streams/{STREAM}", f"/streams/{STREAM}/messages", f"/streams/{STREAM}/tail", "/groups")
PAGES += (f"/groups/{GROUP}", "/nodes", "/nodes/liftpy-1", "/bucket", "/events")


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def text(self):
        return self.body.decode()


class Console:
    """A console as a process of its own, and requests to it."""

    def __init__(self, nats_url, *arguments):
        command = [sys.executable, "-m", "liftpy", "--server", nats_url, "console", "--port", "0", *arguments]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        line = self.process.stderr.readline()
        self.url = re.search(r"http://\S+", line)[0]
        self._host = urlsplit(self.url).netloc

    def ask(self, path, method="GET", fields=None, **headers):
        connection = HTTPConnection(self._host, timeout=30)
        try:
            given = {name.replace("_", "-"): value for name, value in headers.items()}
            connection.request(method, path, None if fields is None else urlencode(fields), given)
            answer = connection.getresponse()
            return Answer(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())
        finally:
            connection.close()

    def send(self, path, **fields):
        """Fill in a form of the console."""
        token = re.search(r'name="token" value="([^"]+)"', self.ask(f"/streams/{STREAM}").text)[1]
        return self.ask(path, "POST", {"token": token, **fields})

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(20) == -signal.SIGTERM
        assert self.process.stderr.read() == ""


@pytest.fixture(scope="module")
def filled(shared_nats, shared_node):
    with liftpy.connect_sync(shared_nats.url, timeout_s=20.0) as lift:
        lift.create_stream(STREAM, subject=f"{STREAM}.>", partitions=2)
        for number in range(40):
            value = json.dumps({"number": number, "text": "<script>alert(1)</script>"}).encode()
            lift.publish(f"{STREAM}.a", value, key=b"k%d" % (number % 4), headers={"Trace": f"<b>{number}</b>"})
        lift.publish(f"{STREAM}.b", b"\x00\xff" * 10, key=b"\xfe")
        lift.publish(f"{STREAM}.b", None, key=b"k1")
        with lift.consume(STREAM, group=GROUP) as consumer:
            for _ in range(10):
                message = consumer.next(10.0)
            consumer.commit(message)
    return shared_nats.url


@pytest.fixture(scope="module")
def reader(filled):
    console = Console(filled)
    yield console
    console.stop()


@pytest.fixture(scope="module")
def changer(filled):
    console = Console(filled, "--allow-changes")
    yield console
    console.stop()


def test_a_live_tail_does_not_hold_up_the_end(filled):
    console = Console(filled)
    connection = HTTPConnection(urlsplit(console.url).netloc, timeout=30)
    try:
        connection.request("GET", f"/streams/{STREAM}/tail/events")
        answer = connection.getresponse()
        assert answer.status == 200
        assert answer.readline() == b": nothing new\n"
        console.stop()  # without a word
        assert set(answer.read().splitlines()) <= {b"", b": nothing new"}
    finally:
        connection.close()


@pytest.mark.parametrize("path", PAGES)
def test_every_page_comes_without_what_strangers_wrote_in_it(reader, path):
    answer = reader.ask(path)
    assert answer.status == 200, answer.text
    assert "<script>alert" not in answer.text
    assert "<b>" not in answer.text
    assert "script-src 'self'" in answer.headers["content-security-policy"]
    assert "style=" not in answer.text, "the policy forbids it"
    for link in re.findall(r'(?:href|src)="(/[^"#]*)"', answer.text):
        assert reader.ask(link.replace("&amp;", "&")).status == 200, link


def offsets(answer):
    """Of the messages that a page shows, the newest first."""
    return [tuple(map(int, found)) for found in re.findall(r"messages/(\d+)/(\d+)\"", answer.text)]


def test_messages_by_place_subject_key_and_content(reader, shared_nats):
    path = f"/streams/{STREAM}/messages?"
    with liftpy.connect_sync(shared_nats.url) as lift:
        ends = {part.partition: part.high_watermark for part in lift.stream_info(STREAM).partitions}
    assert sum(ends.values()) == 42
    assert len(offsets(reader.ask(path))) == 42
    newest = reader.ask(path + "limit=5&partition=0")
    assert offsets(newest) == [(0, ends[0] - 1 - back) for back in range(5)]
    assert offsets(reader.ask(path + "limit=3&partition=1&from=2")) == [(1, 4), (1, 3), (1, 2)]
    assert len(offsets(reader.ask(path + f"subject={STREAM}.b"))) == 2
    assert len(offsets(reader.ask(path + "key=k1"))) == 11
    assert len(offsets(reader.ask(path + "contains=%22number%22%3A+7%2C"))) == 1
    assert len(offsets(reader.ask(path + "from=1h"))) == 42
    assert "No message is there" in reader.ask(path + "from=2100-01-01").text
    for wrong in ("from=99&partition=0", "from=3", "partition=7", "limit=0", "from=yesterdayish", "subject=a..b"):
        answer = reader.ask(path + wrong)
        assert (answer.status, "alarm" in answer.text) == (400, True), wrong


def test_one_message_whole(reader):
    (place,) = offsets(reader.ask(f"/streams/{STREAM}/messages?contains=%22number%22%3A+7%2C"))
    path = "/streams/{}/messages/{}/{}".format(STREAM, *place)
    shown = reader.ask(path).text
    assert "&#34;number&#34;: 7,\n" in shown, "JSON is indented"
    assert "&lt;b&gt;7&lt;/b&gt;" in shown
    value = reader.ask(path + "/value")
    assert json.loads(value.body)["number"] == 7
    assert (value.headers["content-disposition"][:10], value.headers["x-content-type-options"]) == (
        "attachment",
        "nosniff",
    )
    places = offsets(reader.ask(f"/streams/{STREAM}/messages?subject={STREAM}.b"))
    binary = "".join(reader.ask("/streams/{}/messages/{}/{}".format(STREAM, *each)).text for each in places)
    assert "00 ff 00 ff" in binary
    assert "no value: a tombstone" in binary
    for path in (
        f"/streams/{STREAM}/messages/0/999",
        f"/streams/{STREAM}/messages/9/0",
        "/streams/none",
        "/groups/none",
    ):
        answer = reader.ask(path)
        assert answer.status == 404, path
        assert "This did not work" in answer.text


def test_downloads(reader):
    lines = reader.ask(f"/streams/{STREAM}/download?format=jsonl&from=earliest").body.splitlines()
    table = pq.read_table(io.BytesIO(reader.ask(f"/streams/{STREAM}/download?format=parquet&from=earliest").body))
    places = [(row["partition"], row["offset"]) for row in map(json.loads, lines)]
    assert len(set(places)) == 42
    assert places == list(zip(table["partition"].to_pylist(), table["offset"].to_pylist(), strict=True))
    assert reader.ask(f"/streams/{STREAM}/download?format=csv").status == 400


def test_a_live_tail(reader, shared_nats):
    connection = HTTPConnection(urlsplit(reader.url).netloc, timeout=30)
    with liftpy.connect_sync(shared_nats.url) as lift, lift.publisher() as publisher:
        connection.request("GET", f"/streams/{STREAM}/tail/events?subject={STREAM}.tail")
        lines = connection.getresponse()
        published = threading.Event()

        def publish():
            while not published.wait(0.05):  # until the tail has begun
                publisher.publish(f"{STREAM}.tail", b"new")

        thread = threading.Thread(target=publish)
        thread.start()
        line = next(line for line in iter(lines.readline, b"") if line.startswith(b"data: "))
        published.set()
        thread.join()
    connection.close()
    (first, *_) = json.loads(line.removeprefix(b"data: "))
    assert (first["subject"], first["value"]) == (f"{STREAM}.tail", "new")


def test_events(reader):
    assert "stream.created" in reader.ask("/events").text
    assert "stream.created" in reader.ask("/events?kind=stream").text
    assert "stream.created" not in reader.ask("/events?kind=node").text


def test_nodes_tell_how_busy_they_are(reader):
    row = re.search(r"<tr>.*?liftpy-1</a>.*?</tr>", reader.ask("/nodes").text, re.DOTALL)[0]
    assert re.search(r'class="number">[\d.]+ GiB</td><td class="number">[\d.]+ MiB</td>', row), row


def test_nothing_is_changed_without_leave(reader):
    for path in ("/publish", f"/streams/{STREAM}/settings", f"/streams/{STREAM}/pause", f"/groups/{GROUP}/reset"):
        assert reader.ask(path, "POST", {"token": "x"}).status == 403
    assert "Change settings" not in reader.ask(f"/streams/{STREAM}").text


def test_changes(changer, shared_nats):
    with liftpy.connect_sync(shared_nats.url) as lift:
        stored = changer.send("/publish", subject=f"{STREAM}.new", key="k", headers="A: 1\nA: 2", value="from a form")
        partition, offset = map(int, re.search(r"messages/(\d+)/(\d+)\"", stored.text).groups())
        with lift.consume(STREAM, start={partition: offset}, partitions=[partition]) as consumer:
            message = consumer.next(10.0)
        assert (message.value, message.headers.get_all("A")) == (b"from a form", ["1", "2"])
        refused = changer.send("/publish", subject="no.stream.stores.this", value="x")
        assert (refused.status, "alarm" in refused.text) == (400, True)

        stream = lift.stream_info(STREAM)
        fields = {"version": stream.version, "retention_messages": "5000", "acks": "reply"}
        assert changer.send(f"/streams/{STREAM}/settings", **fields).status == 303
        assert lift.stream_info(STREAM).config.retention_messages == 5_000
        for wrong in ({"retention_messages": "many"}, {"replicas": "0"}, {"sync": "sometimes"}):
            answer = changer.send(f"/streams/{STREAM}/settings", version=stream.version + 1, **wrong)
            assert (answer.status, "This did not work" in answer.text) == (400, True), wrong
        assert changer.send(f"/streams/{STREAM}/pause", do="pause").status == 303
        assert lift.stream_info(STREAM).paused
        assert changer.send(f"/streams/{STREAM}/pause", do="resume").status == 303
        assert not lift.stream_info(STREAM).paused

        before = lift.committed(GROUP, STREAM)
        dry = changer.send(f"/groups/{GROUP}/reset", to="earliest", stream="")
        assert (dry.status, "Move it" in dry.text) == (200, True)
        assert lift.committed(GROUP, STREAM) == before
        assert changer.send(f"/groups/{GROUP}/reset", to="earliest", stream="", do="apply").status == 303
        assert {each.offset for each in lift.committed(GROUP, STREAM).values()} == {0}


def test_strangers_are_refused(changer, filled, tmp_path):
    token = re.search(r'name="token" value="([^"]+)"', changer.ask(f"/streams/{STREAM}").text)[1]
    assert changer.ask("/", Host="liftpy.example.com").status == 421, "another name that resolves to this machine"
    assert changer.ask("/publish", "POST", {"token": "guessed", "subject": "a"}).status == 403
    elsewhere = changer.ask("/publish", "POST", {"token": token, "subject": "a"}, Sec_Fetch_Site="cross-site")
    assert elsewhere.status == 403
    assert changer.ask("/publish", "POST", {"value": "x" * 1_100_000}).status == 413
    command = [sys.executable, "-m", "liftpy", "--server", filled, "console", "--port", "0", "--host", "0.0.0.0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, "--password-file" in done.stderr) == (2, True)


def test_a_password(filled, tmp_path):
    password = tmp_path / "password"
    password.write_text("correct horse battery\n")
    console = Console(filled, "--password-file", str(password))
    try:
        assert console.ask("/").status == 401
        assert console.ask("/static/console.css").status == 401
        assert console.ask("/", Authorization="Basic bm9ib2R5Ondyb25n").status == 401
        assert console.ask("/", Authorization="Basic !!").status == 401
        assert console.ask("/", Authorization="Basic eDpjb3JyZWN0IGhvcnNlIGJhdHRlcnk=").status == 200
    finally:
        console.stop()


def test_a_console_beside_dev(tmp_path):
    dev = DevProcess(tmp_path / "data", tmp_path, "--console")
    url = dev.ready["console_url"]
    with urlopen(url, timeout=30) as page:
        assert b"changes allowed" in page.read()
    assert dev.stop()[0] == 0
    with pytest.raises(URLError):
        urlopen(url, timeout=5)


@pytest.mark.skipif(browser.missing() is not None, reason=str(browser.missing()))
def test_a_tour_in_a_browser(changer, shared_nats, tmp_path):
    """Every page in a real browser: nothing is loaded from elsewhere, no script fails, keys work, pages refresh."""
    pictures = Path(os.environ.get("CONSOLE_PICTURES") or tmp_path / "pictures")
    with (
        browser.Browser(tmp_path / "browser") as page,
        liftpy.connect_sync(shared_nats.url) as lift,
        lift.publisher() as publisher,
    ):
        base = changer.url.rstrip("/")
        for dark in (False, True):
            page.dark(dark)
            for path in PAGES:
                page.go(base + path)
                assert page.ask("document.querySelector('h1') !== null"), path
                name = path.strip("/").replace("/", "-").replace(STREAM, "stream").replace(GROUP, "group") or "overview"
                page.picture(pictures / f"{name}{'-dark' if dark else ''}.png")
        background = page.ask("getComputedStyle(document.body).backgroundColor")
        assert background == "rgb(21, 24, 28)", "dark"

        page.go(f"{base}/streams/{STREAM}")
        page.ask("document.querySelector('[name=retention_messages]').value = 77; document.activeElement.blur()")
        time.sleep(4)
        assert page.ask("document.querySelector('[name=retention_messages]').value") == "77", "kept over a refresh"

        page.go(base + "/streams")
        page.press("/")
        assert page.ask("document.activeElement.name") == "q"
        page.press("Escape")
        page.press("g", "n")
        page.until("location.pathname === '/nodes' && document.querySelector('h1')?.textContent === 'Nodes'")

        page.go(f"{base}/streams/{STREAM}")
        before = page.ask("document.querySelector('.tiles').textContent")
        publisher.publish(f"{STREAM}.refresh", b"x")
        publisher.flush()
        page.until(f"document.querySelector('.tiles').textContent !== {json.dumps(before)}")

        page.go(f"{base}/streams/{STREAM}/tail")
        for _ in range(200):
            publisher.publish(f"{STREAM}.seen", b"<i>tail</i>")
            time.sleep(0.05)
            if page.ask("document.querySelectorAll('[data-tail] tr').length"):
                break
        assert page.ask("document.querySelector('[data-tail] tr').textContent").endswith("<i>tail</i>")
        page.picture(pictures / "tail-dark.png")

        page.go(base + "/publish")
        page.ask(
            f"document.querySelector('[name=subject]').value = '{STREAM}.form';"
            "document.querySelector('[name=value]').value = 'by hand';"
            "document.querySelector('main button').click()"
        )
        page.until("document.querySelector('.notice')?.textContent.includes('Stored')")
        page.until("document.querySelector('.notice a').click() || true")
        page.until("document.querySelector('pre')?.textContent === 'by hand'")
        page.picture(pictures / "message-dark.png")
        page.go(base + "/events")
        lines = (
            "Math.max(...[...document.querySelectorAll('.name')].map(cell => { const text = document.createRange();"
            "text.selectNodeContents(cell); return new Set([...text.getClientRects()].map(box => box.top)).size; }))"
        )
        assert page.ask(lines) == 1, "no name goes over two lines"
        assert page.problems == []
