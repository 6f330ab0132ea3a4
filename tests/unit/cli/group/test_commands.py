"""`liftpy group` and the groups in `liftpy status`, with the answers of a cluster that is not there."""

from __future__ import annotations

import asyncio
import json

import pytest

from liftpy.cli.group.overview import GroupsLook
from liftpy.cli.text import show_numbers, show_text
from liftpy_client.admin.groups import GroupSummary
from liftpy_client.errors import AdminError, NodeUnavailableError
from liftpy_envelope.errors import ErrorCode
from support.cli import Cli, line_with
from support.fake_cluster import (
    STARTED_NS,
    FakeCluster,
    cluster_answer,
    node_answer,
    partition_answer,
    stream_answer,
    told_by_node,
)

UUID = "0" * 32


class Groups(FakeCluster):
    """Knows several groups and streams by name, which the table of answers alone can not."""

    def __init__(self, groups, streams):
        self.groups = {group["group"]: group for group in groups}
        self.streams = {stream["name"]: stream for stream in streams}
        cluster = cluster_answer([node_answer("node-1", metadata_leader=True)])
        super().__init__(
            {
                "CLUSTER.INFO": {"cluster": cluster},
                "NODE.INFO": {"node": node_answer("node-1", metadata_leader=True) | told_by_node("node-1")},
                "STREAM.LIST": {"total": len(streams), "streams": list(self.streams.values())},
                "GROUP.LIST": {"groups": list(map(summary, groups)), "more": False, "unreachable": []},
                "GROUP.DELETE": {"deleted": True},
            }
        )

    async def request(self, endpoint, body, timeout_s=None):
        found = {"GROUP.INFO": self.groups, "STREAM.INFO": self.streams}.get(endpoint)
        if found is None:
            return await super().request(endpoint, body, timeout_s)
        self.asked.append((endpoint, body))
        what, name = ("group", body.get("group")) if endpoint == "GROUP.INFO" else ("stream", body.get("name"))
        if name not in found:
            code = ErrorCode.UNKNOWN_GROUP if what == "group" else ErrorCode.UNKNOWN_STREAM
            raise AdminError(code, f"there is no {what} {name!r}")
        return found[name] if what == "group" else {"stream": found[name]}


def summary(group):
    names = ("group", "state", "coordinator", "generation")
    counts = {"members": len(group["members"]), "partitions": len(group["offsets"]), "size_bytes": 1_000}
    return {name: group[name] for name in names} | counts


def group(name, *, members=(), offsets=()):
    return {
        "group": name, "state": "active" if members else "empty", "coordinator": "node-1", "generation": 7,
        "members": list(members), "offsets": list(offsets), "offsets_total": len(offsets),
    }  # fmt: skip


def member(number, assigned, *, instance_id="", subscriptions=("orders",)):
    return {
        "member_id": f"{number}-abc", "instance_id": instance_id, "client": "app[/]", "rack": "",
        "subscriptions": list(subscriptions), "session_timeout_ms": 10_000,
        "assigned": [{"stream": stream, "partitions": numbers} for stream, numbers in assigned.items()],
    }  # fmt: skip


def offset(stream, partition, at, uuid=UUID):
    return {"stream": stream, "uuid": uuid, "partition": partition, "offset": at, "committed_ns": STARTED_NS,
            "metadata": ""}  # fmt: skip


BILLING = group(
    "billing[/]",
    members=[member(1, {"orders": [0, 1]}), member(2, {"orders": [2]}, instance_id="b")],
    offsets=[offset("orders", 0, 400), offset("orders", 1, 50), offset("gone", 0, 3), offset("orders", 2, 9, "f" * 32)],
)
ORDERS = stream_answer(
    "orders",
    partition_answer(0, ["node-1"]),
    partition_answer(1, ["node-1"], log_start=100),
    partition_answer(2, ["node-1"], log_start=10),
)


@pytest.fixture
def fake(monkeypatch):
    fake = Groups([BILLING], [ORDERS])
    fake.stands_in(monkeypatch)
    return fake


@pytest.fixture
def cli(fake, tmp_path):
    return Cli(None, tmp_path)


def test_the_list(cli, fake):
    assert "node-1" in line_with(cli.out("group", "list"), "billing[/]", "active", " 2 ")
    assert cli.out("group", "list", "--names") == "billing[/]\n"
    assert cli.json("group", "list", "--names") == ["billing[/]"]
    (shown,) = cli.json("group", "list")
    assert shown == summary(BILLING)
    fake.answers["GROUP.LIST"]["groups"] = []
    assert "No consumer groups yet: liftpy consume STREAM --group NAME" in cli.out("group", "list")
    assert cli.json("group", "list") == []
    fake.answers["GROUP.LIST"]["unreachable"] = ["node-2"]
    assert "do not answer: node-2" in cli.error("group", "list")


def test_a_group_with_all_it_has_and_lags(cli):
    shown = cli.json("group", "describe", "billing[/]")
    rows = {(row["stream"], row["uuid"], row["partition"]): row for row in shown["partitions"]}
    assert len(rows) == 5
    first = rows["orders", UUID, 0]
    assert (first["committed"], first["end"], first["lag"], first["member_id"]) == (400, 1_000, 600, "1-abc")
    behind = rows["orders", UUID, 1]
    assert (behind["lag"], behind["note"]) == (900, "50 offsets were removed unread")
    uncommitted = rows["orders", UUID, 2]
    assert (uncommitted["committed"], uncommitted["lag"], uncommitted["member_id"]) == (None, 990, "2-abc")
    assert rows["gone", UUID, 0]["note"] == "the stream is deleted"
    assert rows["orders", "f" * 32, 2]["note"] == "of a deleted stream"
    assert shown["lag"] == 600 + 900 + 990
    assert [one["assigned"] for one in shown["members"]] == [{"orders": [0, 1]}, {"orders": [2]}]


def test_a_group_for_people(cli):
    shown = cli.out("group", "describe", "billing[/]")
    assert "Group billing[/]" in shown
    assert "2,490" in line_with(shown, "total lag")
    assert "do not answer" not in shown
    assert "app[/]" in line_with(shown, "1-abc", "orders 0-1", "10s")
    line_with(shown, "orders", " 400 ", " 1,000 ", " 600 ", "2023-11-14 22:13:20")
    line_with(shown, "gone", "the stream is deleted")


def test_leaders_that_do_not_answer_are_no_lag_of_zero(cli, fake):
    silent = dict.fromkeys(("log_start", "high_watermark", "log_end", "bytes", "segments"))
    fake.streams["orders"] = stream_answer("orders", partition_answer(0, ["node-1"], unreachable=True, **silent))
    shown = cli.json("group", "describe", "billing[/]")
    row = next(row for row in shown["partitions"] if row["uuid"] == UUID and row["stream"] == "orders")
    assert (row["lag"], row["note"]) == (None, "its leader does not answer")
    assert "1 partitions whose leaders do not answer" in line_with(cli.out("group", "describe", "billing[/]"), "total")


def test_a_stream_that_is_subscribed_and_not_assigned_yet_counts(cli, fake):
    fake.groups["new"] = group("new", members=[member(1, {})])
    shown = cli.json("group", "describe", "new")
    assert [(row["partition"], row["lag"]) for row in shown["partitions"]] == [(0, 1_000), (1, 900), (2, 990)]
    assert "nothing" in line_with(cli.out("group", "describe", "new"), "1-abc")


@pytest.mark.parametrize("width", ["40", "60", "80", "100", "200"])
def test_what_matters_is_there_on_narrow_terminals(fake, tmp_path, width):
    cli = Cli(None, tmp_path, COLUMNS=width)
    for verb in (("group", "list"), ("status",)):
        assert "active" in line_with(cli.out(*verb), "billing[/]", "active")
    shown = cli.out("group", "describe", "billing[/]")
    for word in ("1-abc", "orders", "600"):
        assert word in shown


def test_the_status_tells_the_lag(cli, fake):
    assert "2,490" in line_with(cli.out("status"), "billing[/]", "active")
    plain = cli.json("status")
    assert plain["groups"] == [summary(BILLING) | {"lag": 2_490}]
    assert plain["groups_error"] is None
    fake.answers["GROUP.LIST"]["unreachable"] = ["node-2"]
    assert "do not answer: node-2" in cli.out("status")
    assert "do not answer: node-2" in cli.json("status")["groups_error"]


def test_many_groups_are_asked_in_bounds(cli, fake):
    fake.groups |= {f"g{n:03}": group(f"g{n:03}", offsets=[offset("orders", 0, n)]) for n in range(120)}
    fake.answers["GROUP.LIST"]["groups"] = list(map(summary, fake.groups.values()))
    shown = cli.out("status")
    lags = 100 * 0 + sum(1_000 - n + 1_890 for n in range(99)) + 2_490
    biggest = sum(1_000 - n + 1_890 for n in range(10))
    assert f"and 111 more, which lag by {lags - biggest:,} in all; 21 were not asked" in shown
    assert "g009" in shown
    assert "g010" not in shown
    assert len(fake.bodies("GROUP.INFO")) == 100
    assert [row["lag"] is None for row in cli.json("status")["groups"]].count(True) == 21


def test_a_group_that_is_deleted_meanwhile(cli, fake):
    fake.groups.clear()
    assert cli.json("status")["groups"] == []
    assert "there is no group 'x'" in cli.error("group", "describe", "x")
    assert json.loads(cli.error("group", "describe", "x", "--json"))["error"]["code"] == ErrorCode.UNKNOWN_GROUP


class Slow:
    """Groups that answer when they are let."""

    def __init__(self):
        self.let = asyncio.Event()
        self.failure = None

    async def groups(self):
        await self.let.wait()
        if self.failure is not None:
            raise self.failure
        return [GroupSummary(group="g", state="empty", members=0, partitions=0, coordinator="n", generation=1)]

    async def group(self, name):
        raise AdminError(ErrorCode.UNKNOWN_GROUP, name)


async def test_slow_groups_hold_nothing_up_and_stay_as_they_were():
    slow = Slow()
    async with GroupsLook(slow) as look:
        assert (await look.look([], 0)) == ([], "the consumer groups have not answered yet")
        slow.let.set()
        assert (await look.look([], 5)) == ([], None)  # it was deleted between the list and the question
        slow.failure = NodeUnavailableError("nobody")
        assert (await look.look([], 5)).error == "consumer groups: nobody"
        slow.let.clear()
        assert (await look.look([], 0)).error == "the consumer groups have not answered yet"
    assert len(asyncio.all_tasks()) == 1


def test_a_reset_that_only_shows(cli, fake):
    fake.groups["idle"] = group("idle", offsets=[offset("orders", 0, 400), offset("orders", 1, 50)])
    latest = cli.json("group", "reset", "idle", "--to", "latest", "--dry-run")["partitions"]
    assert [(row["to"], row["lag"]) for row in latest] == [(999, 1)] * 3  # as consume --start latest begins
    shown = cli.json("group", "reset", "idle", "--to", "new", "--dry-run")
    assert shown["dry_run"] is True
    assert [(row["partition"], row["from"], row["to"], row["lag"]) for row in shown["partitions"]] == [
        (0, 400, 1_000, 0), (1, 50, 1_000, 0), (2, None, 1_000, 0),
    ]  # fmt: skip
    some = cli.json("group", "reset", "idle", "--to", "150", "--partition", "0", "--partition", "1", "--dry-run")
    assert [(row["from"], row["to"]) for row in some["partitions"]] == [(400, 150), (50, 150)]
    people = cli.out("group", "reset", "idle", "--to", "earliest", "--dry-run")
    assert "Group idle would go on" in people
    line_with(people, "orders", " 400 ", " 0 ", "-400", " 1,000 ")
    line_with(people, "orders", " 50 ", " 100 ", "+50", " 900 ")


def test_a_reset_asks_first_and_takes_no_for_an_answer(cli, fake):
    fake.groups["idle"] = group("idle", offsets=[offset("orders", 0, 400)])
    refused = cli.run("group", "reset", "idle", "--to", "latest", answer="n\n", code=1)
    assert "Move group idle?" in refused.stderr
    assert "goes on there" not in refused.stdout
    assert cli.run("group", "reset", "idle", "--to", "latest", "--json", code=1).stdout.strip() == ""


def test_a_group_in_use_is_not_moved(cli, fake):
    said = cli.error("group", "reset", "billing[/]", "--to", "latest", "--yes")
    assert "has 2 members: stop them first; one with an instance id stays for 10 s" in said
    assert json.loads(cli.error("group", "reset", "billing[/]", "--to", "latest", "--json"))["error"]["code"] == 24
    shown = cli.run("group", "reset", "billing[/]", "--to", "latest", "--stream", "orders", "--dry-run")
    assert "cannot be moved before they are stopped" in shown.stderr


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (("--to", "soon"), "--to: 'soon' is not earliest, latest"),
        (("--to", "-5"), "--to: '-5' is not earliest, latest"),
        (("--to", "2999-01-01"), "is in the future"),
        (("--to", "1001"), "partition 0: offset 1001 is out of range; choose 0 to 1000"),
        (("--to", "9" * 30), "is out of range"),
        (("--to", "50"), "partition 1: offset 50 is out of range; choose 100 to 1000"),
        (("--to", "0", "--partition", "9"), "has partitions 0 to 2, not 9"),
        (("--to", "0", "--partition", "-1"), "greater than or equal to 0"),
        (("--to", "earliest", "--partition", "0", "--stream", "orders", "--stream", "bills"), "of which --stream?"),
    ],
)
def test_places_that_are_none(cli, fake, arguments, what):
    fake.groups["idle"] = group("idle", offsets=[offset("orders", 0, 400)])
    fake.streams["bills"] = stream_answer("bills", partition_answer(0, ["node-1"]))
    said = cli.error("group", "reset", "idle", "--yes", *arguments, code=2)
    assert what in " ".join(said.replace("│", " ").split())


def test_groups_and_streams_that_are_not_there(cli, fake):
    assert "there is no group 'x'; to have it begin" in cli.error("group", "reset", "x", "--to", "latest", code=2)
    fake.groups["idle"] = group("idle")
    assert "nothing is committed yet by group 'idle'" in cli.error("group", "reset", "idle", "--to", "latest", code=2)
    assert "there is no stream 'y'" in cli.error("group", "reset", "x", "--to", "latest", "--stream", "y")
    begins = cli.run("group", "reset", "x", "--to", "latest", "--stream", "orders", "--dry-run")
    assert "there is no group 'x' yet; it begins with this" in begins.stderr
    fake.groups["idle"] = group("idle", offsets=[offset("gone", 0, 1)])
    assert "are deleted: gone" in cli.error("group", "reset", "idle", "--to", "latest")
    assert "there is no group 'x'" in cli.error("group", "delete", "x")


def test_deleting(cli, fake):
    cli.run("group", "delete", "billing[/]", answer="n\n", code=1)
    assert fake.bodies("GROUP.DELETE") == []
    assert "group billing[/] is deleted" in cli.run("group", "delete", "billing[/]", answer="y\n").stdout
    assert cli.json("group", "delete", "billing[/]", "--yes") == {"deleted": "billing[/]"}
    fake.answers["GROUP.DELETE"] = "group 'billing' has members: stop them first"
    assert "stop them first" in cli.error("group", "delete", "billing[/]", "--yes")


@pytest.mark.parametrize("name", ["", "x" * 10_000, "a\nb", "\x1b[2J"])
def test_names_that_no_group_has(cli, fake, name):
    for verb in (("describe",), ("delete", "--yes"), ("reset", "--to", "latest")):
        said = cli.error("group", *verb, name, code=2)
        assert "use 1 to 255 bytes of text" in said
        assert len(said) < 300
        assert "\x1b" not in said
    assert fake.asked == []


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (("--group", "g", "--stop", "latest"), "do not go with --group"),
        (("--group", "g", "--partition", "0"), "do not go with --group"),
        (("--group", "g", "--start", "5"), "liftpy group reset"),
        (("--group", "g", "--commit-interval", "0"), "is not between 10ms and 1d"),
        (("--group", "g", "--commit-interval", "soon"), "is not a time span"),
        (("--group", "g", "--instance-id", ""), "1 to 255 bytes"),
        (("--group", ""), "1 to 255 bytes"),
        (("--group", "x" * 10_000), "1 to 255 bytes"),
        (("--commit-interval", "5s"), "members of a --group"),
        (("--instance-id", "i"), "members of a --group"),
        (("--on-lost", "newest"), "--on-lost: 'newest'"),
    ],
)
def test_consuming_that_means_nothing(cli, fake, arguments, what):
    assert what in cli.error("consume", "orders", *arguments, code=2)
    assert fake.asked == []


def test_every_command_has_help_with_an_example_and_json(cli):
    for verb in ("list", "describe", "reset", "delete"):
        shown = cli.out("group", verb, "--help")
        assert "--json" in shown
        assert f"liftpy group {verb}" in shown
    shown = cli.out("consume", "--help")
    assert "liftpy consume orders refunds --group billing" in shown


def test_numbers_and_names_as_they_are_shown():
    assert show_numbers([5, 0, 2, 1, 3, 9, 8]) == "0-3, 5, 8-9"
    assert show_numbers([]) == ""
    assert show_text("a\u202eb[/]\x1b") == "a\\u202eb\\[/]\\x1b"
