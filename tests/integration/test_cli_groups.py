"""Consumer groups on the command line, at a real node: consume as a member, look, move, delete; tables, too."""

from __future__ import annotations

import json
import signal
import subprocess
import threading
import time

import pytest

from support.cli import COMMAND, Cli, environment_of

WAIT_S = 60


@pytest.fixture
def cli(shared_nats, shared_node, tmp_path):
    return Cli(shared_nats.url, tmp_path)


@pytest.fixture
def orders(cli, name):
    """A stream of two partitions with three messages or more in each; the numbers of these by partition."""
    cli.run("stream", "add", name, "--subject", f"{name}.>", "--partitions", "2")
    keys = {}
    for number in range(40):
        acked = cli.json("publish", f"{name}.{'eu' if len(keys) % 2 else 'us'}", f"{number}", "--key", f"k{number}")
        keys.setdefault(acked["partition"], []).append(number)
        if len(keys) == 2 and min(map(len, keys.values())) >= 3:
            break
    return keys


class Member:
    """A process of `liftpy consume --group`, and what it has printed."""

    def __init__(self, url, home, *arguments):
        command = [*COMMAND, "-s", url, "consume", *arguments, "--json"]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment_of(home)
        )
        self.seen = []
        self._reading = threading.Thread(target=self._read)
        self._reading.start()

    def _read(self):
        for line in self.process.stdout:
            self.seen.append(json.loads(line))

    def end(self, number):
        """Send a signal; the exit code, and what was said."""
        self.process.send_signal(number)
        code = self.process.wait(WAIT_S)
        self._reading.join(WAIT_S)
        return code, self.process.stderr.read()

    def kill(self):
        self.process.kill()
        self.process.wait(WAIT_S)
        self._reading.join(WAIT_S)
        self.process.stdout.close()
        self.process.stderr.close()


@pytest.fixture
def start_member(shared_nats, shared_node, tmp_path):
    """Starts members, and sees to it that none stays."""
    started = []

    def start(*arguments):
        started.append(Member(shared_nats.url, tmp_path, *arguments))
        return started[-1]

    yield start
    for member in started:
        member.kill()


def wait_for(what, condition):
    deadline_s = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline_s, f"{what} did not happen within {WAIT_S} s"
        time.sleep(0.05)


def rows_of(cli, group):
    return {(row["stream"], row["partition"]): row for row in cli.json("group", "describe", group)["partitions"]}


def total(orders):
    return sum(map(len, orders.values()))


def test_a_group_goes_on_where_it_left_off(cli, name, orders):
    first = cli.lines("consume", name, "--group", name, "--count", "2")
    described = cli.json("group", "describe", name)
    assert (described["state"], described["members"], described["lag"]) == ("empty", [], total(orders) - 2)
    rest = cli.lines("consume", name, "--group", name, "--count", str(total(orders) - 2))
    places = [(message["partition"], message["offset"]) for message in (*first, *rest)]
    assert sorted(places) == sorted((part, at) for part, found in orders.items() for at in range(len(found)))
    assert cli.json("group", "describe", name)["lag"] == 0
    assert next(row for row in cli.json("status")["groups"] if row["group"] == name)["lag"] == 0


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupt_commits_and_leaves(cli, name, orders, start_member, number, code):
    member = start_member(name, "--group", name, "--commit-interval", "1h")
    wait_for("reading", lambda: len(member.seen) == total(orders))
    described = cli.json("group", "describe", name)
    (shown,) = described["members"]
    assert shown["assigned"] == {name: [0, 1]}
    assert f"pid {member.process.pid}" in shown["client"]
    assert described["lag"] == total(orders)
    assert member.end(number) == (code, "")
    described = cli.json("group", "describe", name)
    assert (described["members"], described["lag"]) == ([], 0)


def test_members_share_the_partitions(cli, name, orders, start_member):
    cli.run("stream", "add", f"{name}-2", "--subject", f"{name}-2", "--partitions", "2")
    for instance in ("one", "two"):
        start_member(name, f"{name}-2", "--group", name, "--instance-id", instance)

    def is_shared():
        if name not in cli.json("group", "list", "--names"):
            return False
        assigned = [one["assigned"] for one in cli.json("group", "describe", name)["members"]]
        return [sum(map(len, streams.values())) for streams in assigned] == [2, 2]

    wait_for("sharing", is_shared)
    shown = cli.out("group", "describe", name)
    assert "one" in shown
    assert "two" in shown
    assert "has 2 members: stop them first" in cli.error("group", "reset", name, "--to", "earliest", "--yes")
    assert "stop them first" in cli.error("group", "delete", name, "--yes")


def test_resetting(cli, name, orders):
    cli.lines("consume", name, "--group", name, "--count", str(total(orders)))
    before = rows_of(cli, name)
    shown = cli.json("group", "reset", name, "--to", "earliest", "--dry-run")["partitions"]
    assert [(row["from"], row["to"]) for row in shown] == [(len(orders[part]), 0) for part in (0, 1)]
    assert rows_of(cli, name) == before
    assert "goes on there" in cli.run("group", "reset", name, "--to", "earliest", answer="y\n").stdout
    assert [row["committed"] for row in rows_of(cli, name).values()] == [0, 0]
    assert len(cli.lines("consume", name, "--group", name, "--count", str(total(orders)))) == total(orders)
    cli.json("group", "reset", name, "--to", "1", "--stream", name, "--partition", "1", "--yes")
    assert [row["committed"] for row in rows_of(cli, name).values()] == [len(orders[0]), 1]
    cli.json("group", "reset", name, "--to", "latest", "--yes")
    assert cli.json("group", "describe", name)["lag"] == 2  # the last message of each partition
    cli.json("group", "reset", name, "--to", "new", "--yes")
    assert cli.json("group", "describe", name)["lag"] == 0
    assert "offset 99 is out of range; choose 0 to " in cli.error("group", "reset", name, "--to", "99", "--yes", code=2)


def test_resetting_to_a_time(cli, name, orders):
    messages = cli.lines("consume", name, "--partition", "0", "--stop", "latest")
    when = messages[2]["timestamp"]
    cli.json("group", "reset", name, "--to", when, "--stream", name, "--partition", "0", "--yes")
    assert rows_of(cli, name)[name, 0]["committed"] == 2
    hour_ago = cli.json("group", "reset", name, "--to", "1h", "--yes")["partitions"]
    assert [row["to"] for row in hour_ago] == [0, 0]
    just_now = cli.json("group", "reset", name, "--to", "1ms", "--yes")["partitions"]
    assert [row["lag"] for row in just_now] == [0, 0]


def test_what_is_gone(cli, name, orders):
    cli.lines("consume", name, "--group", name, "--count", "1")
    for partition in ("0", "1"):
        cli.json("stream", "purge", name, "--offset", "3", "--partition", partition, "--force")
    notes = sorted(row["note"] for row in rows_of(cli, name).values())
    assert notes == ["", "2 offsets were removed unread"]  # a partition without a commit begins where it begins
    assert "is out of range" in cli.error("consume", name, "--group", name, "--count", "1")
    cli.json("publish", f"{name}.x", "after", "--key", "k0")
    (after,) = cli.lines("consume", name, "--group", name, "--on-lost", "earliest", "--count", "1")
    assert (after["offset"], after["value"]) == (3, "after")
    cli.run("stream", "rm", name, "--force")
    described = cli.json("group", "describe", name)
    assert {row["note"] for row in described["partitions"]} == {"the stream is deleted"}
    assert described["lag"] == 0
    assert "are deleted" in cli.error("group", "reset", name, "--to", "earliest", "--yes")
    assert cli.json("group", "delete", name, "--yes") == {"deleted": name}
    assert name not in cli.json("group", "list", "--names")


def test_only_some_subjects(cli, name, orders):
    cli.run("stream", "add", f"{name}-2", "--subject", f"{name}-2.>")
    for token in ("a.x", "b.x", "a.y"):
        cli.run("publish", f"{name}-2.{token}", token)
    some = cli.lines("consume", f"{name}-2", "--subject", f"{name}-2.a.>", "--stop", "latest")
    assert [message["value"] for message in some] == ["a.x", "a.y"]
    both = cli.out("consume", name, f"{name}-2", "--subject", f"{name}-2.b.*", "--stop", "latest")
    assert both.startswith(f"{name}-2 1 ")
    assert both.count("\n") == 1
    of_group = cli.lines("consume", f"{name}-2", "--group", name, "--subject", f"{name}-2.a.*", "--count", "2")
    assert [message["value"] for message in of_group] == ["a.x", "a.y"]
    assert "subject" in cli.error("consume", name, "--subject", "a..b", "--stop", "latest", code=2)


def test_a_group_begins_where_it_is_told_to(cli, name, orders):
    assert "there is no stream" in cli.error("consume", f"{name}-none", "--group", name)
    assert "is named twice" in cli.error("consume", name, name, "--group", name, code=2)
    latest = cli.lines("consume", name, "--group", name, "--start", "latest", "--count", "2")
    assert sorted(message["offset"] for message in latest) == sorted(len(found) - 1 for found in orders.values())


def test_watching_a_group(cli, name, orders, shared_nats, tmp_path):
    cli.lines("consume", name, "--group", name, "--count", "1")
    with subprocess.Popen(
        [*COMMAND, "-s", shared_nats.url, "group", "describe", name, "--watch", "--json"],
        stdout=subprocess.PIPE,
        env=environment_of(tmp_path),
    ) as process:
        first, second = (json.loads(process.stdout.readline()) for _ in range(2))
        process.send_signal(signal.SIGINT)
        assert process.wait(WAIT_S) == 130
    assert first == second


def test_internal_streams_are_listed_when_asked_for(cli, name, orders):
    cli.lines("consume", name, "--group", name, "--count", "1")
    assert "__consumer_offsets" not in cli.json("stream", "ls", "--names")
    assert "__consumer_offsets" in cli.json("stream", "ls", "--names", "--internal")


def test_a_table(cli, name):
    cli.run("stream", "add", name, "--subject", f"{name}.>", "--compact")
    for key, value in (("a", "1"), ("b[/]", "2"), ("a", "3"), ("c", "4")):
        cli.run("publish", f"{name}.x", value, "--key", key)
    cli.run("publish", f"{name}.x", "--tombstone", "--key", "c")
    assert cli.lines("table", name) == [{"key": "a", "value": "3"}, {"key": "b[/]", "value": "2"}]
    assert cli.out("table", name) == "a 3\nb[/] 2\n"
    assert cli.lines("table", name, "--key", "a") == [{"key": "a", "value": "3"}]
    assert "there is no key 'c'" in cli.error("table", name, "--key", "c")
    assert "there is no stream" in cli.error("table", f"{name}-none")
