"""The `liftpy` command: every verb, for people and for scripts, and what it says when something is wrong."""

from __future__ import annotations

import asyncio
import functools
import json
import subprocess

import nats
import pytest

from support.cli import COMMAND, Cli, environment_of, run_process
from support.cluster import make_nats


@pytest.fixture
def cli(shared_nats, shared_node, tmp_path):
    return Cli(shared_nats.url, tmp_path)


def test_a_stream_from_add_to_rm(cli, name):
    added = cli.json("stream", "add", name, "--subject", f"{name}.>", "--max-age", "7d", "--max-bytes", "1GiB")
    assert added["config"]["retention_age_s"] == 604_800
    assert added["config"]["retention_bytes"] == 2**30
    assert "request-reply" in added["warnings"][0]
    assert cli.json("stream", "add", name, "--subject", f"{name}.>", "--max-age", "7d", "--max-bytes", "1GiB")
    assert cli.out("stream", "edit", name, "--max-msg-size", "1KiB") == (
        f"stream {name} is changed\n  message_bytes_max: 1.0 KiB (was 64.0 MiB)\n"
    )
    assert name in cli.out("stream", "list")
    assert f"{name}\t{name}.>\t0\t" in cli.out("stream", "ls")
    assert name in cli.out("stream", "ls", "--names").split()
    assert name in cli.json("stream", "ls", "--names")
    assert [stream for stream in cli.json("stream", "ls") if stream["name"] == name]
    assert f"Partitions of {name}" in cli.out("stream", "report")
    assert [stream for stream in cli.json("stream", "report") if stream["name"] == name]
    assert cli.out("stream", "find", f"{name}.x") == f"{name}\n"
    assert cli.json("stream", "find", f"{name}.x") == [name]
    assert cli.json("stream", "find", "nobody.stores.this") == []
    assert "no stream stores nobody.[/]" in cli.out("stream", "find", "nobody.[/]")
    info = cli.out("stream", "info", name)
    assert f"Stream {name}" in info
    assert "retention_age_s" in info
    assert cli.json("stream", "info", name)["name"] == name
    assert f"stream {name} is deleted" in cli.out("stream", "rm", name, "--force")
    assert "there is no stream" in cli.error("stream", "info", name)


def test_looking_into_a_stream(cli, name):
    cli.run("stream", "add", name, "--subject", f"{name}.>", "--partitions", "2")
    for number in range(6):
        cli.run("publish", f"{name}.{'ab'[number % 2]}", f"v{number}", "--key", "k" * (1 + number % 3))
    cli.run("publish", f"{name}.c", "last", "--key", "k")
    places = {row["value"]: row for row in cli.lines("consume", name, "--stop", "latest")}
    got = cli.json("stream", "get", name, str(places["v3"]["offset"]), "-p", str(places["v3"]["partition"]))
    assert got == places["v3"]
    assert cli.json("stream", "get", name, "--last-for", f"{name}.b") == places["v5"]
    assert cli.json("stream", "get", name, "--last-for", f"{name}.*")["value"] == "last"
    assert cli.out("stream", "get", name, "--last-for", f"{name}.c", "--raw") == "last"
    assert f"has no message on {name}.d" in cli.error("stream", "get", name, "--last-for", f"{name}.d")
    counts = cli.json("stream", "subjects", name)
    assert [(row["subject"], row["messages"]) for row in counts] == [
        (f"{name}.{each}", n) for each, n in zip("abc", (3, 3, 1), strict=True)
    ]
    assert [(row["partition"], row["offset"]) for row in counts[1:2]] == [
        (places["v5"]["partition"], places["v5"]["offset"])
    ]
    assert cli.out("stream", "subjects", name, "*.c", "--names") == f"{name}.c\n"
    assert len(cli.out("stream", "view", name).splitlines()) == 7
    assert "messages\t7" in cli.out("stream", "state", name)


def test_a_bench_measures_and_leaves_nothing(cli):
    phases = cli.json("bench", "--messages", "300", "--size", "1KiB", "--partitions", "2")
    assert [phase["messages"] for phase in phases] == [300, 300, 300, 900, 900]
    assert all(phase["messages_per_s"] > 0 for phase in phases)
    assert phases[0]["p50_ms"] <= phases[0]["p99_ms"]
    assert not [name for name in cli.json("stream", "ls", "--names") if name.startswith("bench")]
    assert "--size: '1GiB' is not between" in cli.error("bench", "--size", "1GiB", code=2)


def test_queue_group_is_left_again(cli, name):
    assert cli.json("stream", "add", name, "--subject", name, "--group", "workers")["config"]["group"] == "workers"
    assert cli.json("stream", "edit", name, "--group", "")["config"]["group"] is None
    assert "offset 0" in cli.out("publish", name, "x")


def test_states(cli, name):
    cli.run("stream", "add", name, "--subject", name)
    assert "paused" in cli.out("stream", "pause", name)
    assert "paused" in cli.error("publish", name, "x")
    assert json.loads(cli.error("publish", name, "x", "--json"))["error"]["code"] == 20003
    cli.run("stream", "readonly", name)
    assert (
        f"stream {name} is read-only and refuses messages; to accept them again: liftpy stream readonly {name} --off"
        in cli.out("stream", "resume", name)
    )
    assert cli.json("stream", "resume", name)["paused"] is False
    assert cli.json("stream", "readonly", name)["read_only"] is True
    assert "read-only" in cli.error("publish", name, "x")
    assert cli.json("stream", "readonly", name, "--off")["read_only"] is False
    assert "offset 0" in cli.out("publish", name, "x")


def test_deleting_asks_first_even_a_script(cli, name):
    cli.run("stream", "add", name, "--subject", name)
    cli.run("publish", name, "x")
    for verb in ("rm", "purge"):
        assert cli.run("stream", verb, name, answer="n\n", code=1)
        assert cli.run("stream", verb, name, "--json", code=1).stdout.strip() == ""
    assert cli.json("stream", "info", name)["messages"] == 1
    assert cli.run("stream", "purge", name, answer="y\n")
    assert cli.json("stream", "info", name)["messages"] == 0
    assert cli.json("stream", "rm", name, "--force") == {"deleted": name}


def test_keys_are_purged_by_the_subject_of_their_last_message(cli, name):
    cli.run("stream", "add", name, "--subject", f"{name}.>", "--compact", "--partitions", "2")
    for number in range(12):
        cli.run("publish", f"{name}.{number % 3}", "v", "--key", f"k{number % 4}")
    cli.run("publish", f"{name}.2", "no key")
    both = ("--subject", f"{name}.1", "--keep", "1", "--force")
    assert "leave --offset, --keep" in cli.error("stream", "purge", name, *both, code=2)
    assert cli.json("stream", "purge", name, "--subject", f"{name}.1", "--force")["deleted_keys"] == 1
    assert cli.json("stream", "purge", name, "--subject", f"{name}.*", "--force")["deleted_keys"] == 3
    assert "0 keys are deleted" in cli.out("stream", "purge", name, "--subject", f"{name}.>", "--force")
    assert cli.out("table", name).strip() == ""
    messages = cli.lines("consume", name, "--stop", "latest")
    assert len(messages) == 17
    assert {m["key"]: m["value"] for m in messages if m.get("key")} == dict.fromkeys(("k0", "k1", "k2", "k3"))
    cli.run("stream", "add", f"{name}-plain", "--subject", f"{name}-plain")
    assert "not compacted by key" in cli.error("stream", "purge", f"{name}-plain", "--subject", ">", "--force", code=2)


def test_publish_and_consume(cli, name):
    cli.run("stream", "add", name, "--subject", f"{name}.>")
    headers = ("-H", "A:b: c", "-H", "D:")
    acked = cli.json("publish", f"{name}.a", "one", "--key", "k", *headers, "--message-id", "1")
    assert acked == {"stream": name, "partition": 0, "offset": 0, "duplicate": False}
    assert "duplicate" in cli.out("publish", f"{name}.a", "one", "--message-id", "1")
    assert cli.json("publish", f"{name}.a", "--tombstone", "--expected-offset", "1")["offset"] == 1
    assert "wrong last sequence" in cli.error("publish", f"{name}.a", "x", "--expected-offset", "9")
    assert cli.json("publish", f"{name}.a", "many", "--count", "5")["last_offset"] == 6
    assert cli.json("publish", f"{name}.a", "--tombstone", "--count", "2")["published"] == 2
    messages = cli.lines("consume", name, "--stop", "latest")
    assert [message["value"] for message in messages] == ["one", None, *["many"] * 5, None, None]
    assert messages[0]["headers"] == {"A": "b: c", "D": "", "Nats-Msg-Id": "1", "Lift-Key": "k"}
    assert messages[0]["key"] == "k"
    assert [m["offset"] for m in cli.lines("consume", name, "--start", "3", "--count", "2")] == [3, 4]
    assert [m["offset"] for m in cli.lines("consume", name, "--start", "latest", "--stop", "latest")] == [8]
    assert [m["offset"] for m in cli.lines("consume", name, "--start", "1h", "--stop", "1")] == [0]
    assert cli.lines("consume", name, "--start", "2050-01-01T00:00Z", "--stop", "latest") == []
    assert [m["offset"] for m in cli.lines("consume", name, "--start", "-1h", "--stop", "1")] == [0]
    assert [m["offset"] for m in cli.lines("consume", name, "--last", "2", "--idle", "200ms")] == [7, 8]
    assert len(cli.lines("consume", name, "--group", "g", "--idle", "2s")) == 9
    assert cli.out("consume", name, "--stop", "1", "--raw") == "one\n"
    assert cli.out("consume", name, "--stop", "1", "--format", "{offset} {key}={value}") == "0 k=one\n"
    assert "{A: b: c; D: ; Nats-Msg-Id: 1} k one" in cli.out("consume", name, "--stop", "1", "--headers")
    shown = cli.out("consume", name, "--stop", "2")
    assert "k one" in shown
    assert "(tombstone)" in shown
    assert cli.json("stream", "purge", name, "--offset", "4", "--force")["messages"] == 5
    assert "is out of range" in cli.error("consume", name, "--start", "0", "--stop", "latest")


async def test_other_subscribers_see_plain_messages(cli, name, shared_nats, tmp_path):
    await asyncio.to_thread(cli.run, "stream", "add", name, "--subject", f"{name}.>")
    other = await nats.connect(shared_nats.url)
    try:
        heard = await other.subscribe(f"{name}.>")
        await other.flush()
        run = functools.partial(asyncio.to_thread, run_process, "-s", shared_nats.url, "publish", home=tmp_path)
        assert (await run(f"{name}.a", "-K", "=", "-H", "A:1", "-H", "A:2", data=b"k=one\nl=two\n")).returncode == 0
        assert (await run(f"{name}.b", "three", "--count", "2")).returncode == 0
        found = [await heard.next_msg(10) for _ in range(4)]
        assert [message.data for message in found] == [b"one", b"two", b"three", b"three"]
        assert found[0].headers["Lift-Key"] == "k"
        lines = (await asyncio.to_thread(cli.run, "consume", name, "--stop", "latest", "--json")).stdout
        assert json.loads(lines.splitlines()[0])["headers"]["A"] == ["1", "2"]
        assert (await run(f"{name}.c", "--from-json", "-", data=lines.encode())).returncode == 0
        again = await asyncio.to_thread(cli.lines, "consume", name, "--start", "4", "--stop", "latest")
        assert [(m["subject"], m["key"], m["value"]) for m in again] == [
            (f"{name}.c", "k", "one"), (f"{name}.c", "l", "two"), *[(f"{name}.c", None, "three")] * 2,
        ]  # fmt: skip
        assert again[0]["headers"]["A"] == ["1", "2"]
        for _ in range(4):
            await heard.next_msg(10)
        assert (await run(f"{name}.d", "four", "--count", "2", "--batch")).returncode == 0
        assert (await heard.next_msg(10)).data != b"four"
    finally:
        await other.close()


def test_what_strangers_publish_does_not_act_on_the_terminal(cli, name):
    cli.run("stream", "add", name, "--subject", f"{name}.[/x].:smile:.>")
    cli.run("publish", f"{name}.[/x].:smile:.[red]", "\x1b[2J [bold] :smile: [/] \n two")
    cli.run("publish", f"{name}.[/x].:smile:.a\\", "x" * 500)
    shown = cli.out("consume", name, "--stop", "latest")
    assert r"[red] \x1b[2J [bold] :smile: [/] \n two" in shown
    assert "x" * 500 in shown  # it is no terminal
    for verb in (("stream", "ls"), ("stream", "info", name), ("status",)):
        assert f"{name}.[/x].:smile:.>" in cli.out(*verb)
    cli.run("stream", "rm", name, "-f")


def test_bytes_that_are_no_text(cli, name, shared_nats, tmp_path):
    cli.run("stream", "add", name, "--subject", name)
    run_process("-s", shared_nats.url, "publish", name, home=tmp_path, data=b"\xff\xfe\r\n\nlast without an end")
    assert [(m.get("value_base64"), m.get("value")) for m in cli.lines("consume", name, "--stop", "latest")] == [
        ("//4=", None), (None, ""), (None, "last without an end"),
    ]  # fmt: skip


def test_lines_leave_as_they_come(cli, name, shared_nats, tmp_path):
    """A pipe that is slow must not hold back what it brought."""
    cli.run("stream", "add", name, "--subject", name)
    command = [*COMMAND, "-s", shared_nats.url, "publish", name]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment_of(tmp_path)) as pipe:
        for number in range(2):
            pipe.stdin.write(b"%d\n" % number)
            pipe.stdin.flush()
            assert cli.lines("consume", name, "--start", str(number), "--count", "1")[0]["value"] == str(number)
        said, _ = pipe.communicate(timeout=60)
    assert b"published 2" in said


@pytest.mark.parametrize("mode", ["--json", "--raw", ""])
def test_a_reader_that_has_seen_enough(cli, name, shared_nats, tmp_path, mode):
    cli.run("stream", "add", name, "--subject", name)
    cli.run("publish", name, "x" * 1_000, "--count", "2000")
    command = [*COMMAND, "-s", shared_nats.url, "consume", name, "--stop", "latest", *([mode] if mode else [])]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment_of(tmp_path)
    ) as pipe:
        pipe.stdout.readline()
        pipe.stdout.close()
        said = pipe.stderr.read()
        assert pipe.wait(60) in {0, 1}
    assert said == b""


def test_following_ends_with_an_interrupt(cli, name, shared_nats, tmp_path):
    cli.run("stream", "add", name, "--subject", name)
    cli.run("publish", name, "x")
    with subprocess.Popen(
        [*COMMAND, "-s", shared_nats.url, "consume", name, "--raw"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment_of(tmp_path),
    ) as process:
        assert process.stdout.readline() == b"x\n"
        process.send_signal(2)
        assert process.wait(60) == 130
        assert process.stderr.read() == b""


def test_status(cli):
    shown = cli.out("status")
    assert "Node liftpy-1" in shown
    assert "connected" in shown
    assert cli.json("status")["node"]["node_id"] == "liftpy-1"


def test_nodes(cli, shared_node):
    assert "liftpy-1" in cli.out("node", "list")
    (node,) = cli.json("node", "list")
    assert (node["node_id"], node["state"]) == ("liftpy-1", "up")
    assert "Node liftpy-1" in cli.out("node", "info")
    assert cli.json("node", "info", "liftpy-1")["nats_connected"] is True
    assert "there is no node 'x'" in cli.error("node", "info", "x")
    assert "there is no node 'x'" in cli.error("node", "drain", "x", "--wait")
    assert "node 'liftpy-1'" in cli.error("node", "remove", "liftpy-1", "--force")
    assert shared_node.ready["cluster_port"] is None


def test_copies_that_a_single_node_can_not_keep(cli, name):
    assert "node" in cli.error("stream", "add", name, "--subject", name, "--replicas", "3")
    cli.run("stream", "add", name, "--subject", name)
    assert "3 replicas need 3 nodes; the cluster has 1" in cli.error(
        "stream", "reassign", name, "--replicas", "3", "--dry-run"
    )
    assert "nothing to move" in cli.out("stream", "reassign", name, "--replicas", "1")


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (("stream", "edit", "s"), "nothing to change"),
        (("stream", "add", "s", "--subject", "s", "--max-age", "soon"), "is not a time span"),
        (("stream", "add", "s", "--subject", "s", "--max-bytes", "many"), "is not a size"),
        (("stream", "add", "s", "--subject", "s..x"), "subject"),
        (("stream", "add", "a b", "--subject", "s"), "name"),
        (("stream", "add", "s", "--subject", "s", "--acks", "replies"), "did you mean reply"),
        (("publish", "s", "x", "-H", "no colon"), "Name:Value"),
        (("publish", "s", "x", "--tombstone"), "leave out the payload"),
        (("publish", "s", "--count", "3"), "name its payload"),
        (("publish", "s", "x", "--count", "3", "--message-id", "1"), "single message"),
        (("publish", "s", "x", "--ack-policy", "none"), "no ack to wait for"),
        (("publish",), "a subject is missing"),
        (("publish", "s", "x", "-K", ":"), "-K"),
        (("publish", "s", "x", "--from-json", "-"), "--from-json"),
        (("publish", "s", "x", "--batch"), "--batch"),
        (("consume", "s", "--start", "yesterday"), "--start"),
        (("consume", "s", "--stop", "never"), "--stop"),
        (("consume", "s", "--start", "-5"), "--start"),
        (("consume", "s", "--last", "5", "--start", "1"), "--last"),
        (("consume", "s", "t", "--last", "5"), "--last"),
        (("consume", "s", "--idle", "0"), "--idle"),
        (("consume", "s", "--format", "{value"), "--format"),
        (("consume", "s", "--format", "{value}", "--dead-letter"), "--dead-letter"),
    ],
)
def test_mistakes_are_explained(cli, arguments, what):
    assert what in cli.error(*arguments, code=2)
    if arguments[0] != "publish" or "-H" not in arguments:
        assert json.loads(cli.error(*arguments, "--json", code=2))["error"]["message"]


def test_things_that_are_not_there(cli, shared_nats, tmp_path):
    for arguments in (("consume", "nothing"), ("stream", "info", "nothing"), ("stream", "rm", "nothing", "-f")):
        assert "there is no stream 'nothing'" in cli.error(*arguments)
    assert "no stream stores 'nothing'" in cli.error("publish", "nothing", "x")
    away = Cli("nats://127.0.0.1:1", tmp_path)
    assert "nats://127.0.0.1:1 cannot be reached" in away.error("--timeout", "500ms", "status")
    assert json.loads(away.error("--timeout", "500ms", "status", "--json"))["error"]["kind"] == "UnreachableError"
    assert "is not a time span" in away.error("--timeout", "soon", "status", code=2)


def test_the_way_to_nats(shared_nats, shared_node, tmp_path):
    (tmp_path / "nats" / "context").mkdir(parents=True)
    (tmp_path / "nats" / "context" / "here.json").write_text(json.dumps({"url": shared_nats.url}))
    (tmp_path / "nats" / "context" / "away.json").write_text(json.dumps({"url": "nats://127.0.0.1:1"}))
    assert Cli(None, tmp_path, NATS_URL=shared_nats.url).json("status")
    assert Cli(None, tmp_path).json("--context", "here", "status")
    assert Cli(None, tmp_path, NATS_CONTEXT="here").json("status")
    assert Cli(None, tmp_path, NATS_CONTEXT="away", NATS_URL=shared_nats.url).json("status")
    (tmp_path / "nats" / "context.txt").write_text("here")
    assert Cli(None, tmp_path).json("status")
    assert "no NATS context 'gone'" in Cli(None, tmp_path).error("--context", "gone", "status", code=2)
    for variable in ("NATS_CREDS", "NATS_CA", "NATS_NKEY"):
        assert "there is no file" in Cli(shared_nats.url, tmp_path, **{variable: "gone"}).error("status", code=2)
    assert "neither a nats:// nor a tls:// address" in Cli("http://x", tmp_path).error("status", code=2)


def test_user_and_password(tmp_path):
    config = "listen: 127.0.0.1:4222\nauthorization { user: u, password: right }\n"
    server = make_nats(tmp_path / "nats", config=config)
    try:
        cli = Cli(server.url, tmp_path, NATS_USER="u", NATS_PASSWORD="right", NATS_TIMEOUT="5s")
        assert "no liftpy node answers" in cli.error("status")
        assert "no liftpy node answers" in cli.error("--user", "u", "--password", "right", "status")
        assert "authorization" in cli.error("--password", "wrong", "status").lower()
    finally:
        server.stop()


def test_the_command_itself(tmp_path):
    cli = Cli(None, tmp_path)
    assert cli.out("--version").startswith("liftpy ")
    for arguments in (
        (),
        ("stream",),
        ("node",),
        ("publish",),
        ("consume",),
        ("status",),
        ("server",),
        ("dev",),
        ("demo",),
    ):
        assert "Usage:" in cli.out(*arguments, "--help")
    assert "No such command" in cli.run("strem", code=2).stderr


def test_checking_a_configuration(tmp_path):
    path = tmp_path / "liftpy.toml"
    path.write_text('node_id = "a"\n[pull]\nport = 0\n')
    cli = Cli("nats://user:secret@host:4222", tmp_path, LIFTPY_DATA_DIR="/data")
    settings = cli.json("server", "--config", str(path), "--check", "--http-port", "0")
    assert (settings["node_id"], settings["data_dir"], settings["http"]["port"]) == ("a", "/data", 0)
    assert settings["nats"] == {"url": "nats://host:4222"}
    misspelt = Cli(None, tmp_path, LIFTPY_PUL_PORT="1").run("server", "--config", str(path), "--check")
    assert "LIFTPY_PUL_PORT sets nothing; did you mean LIFTPY_PULL_PORT?" in misspelt.stderr
    path.write_text("[pull]\nprot = 0\n")
    assert "did you mean port" in cli.error("server", "--config", str(path), "--check", code=2)


def test_watching_goes_on(shared_nats, shared_node, tmp_path):
    with subprocess.Popen(
        [*COMMAND, "-s", shared_nats.url, "status", "--watch", "--json"],
        stdout=subprocess.PIPE,
        env=environment_of(tmp_path),
    ) as process:
        first, second = (json.loads(process.stdout.readline()) for _ in range(2))
        process.send_signal(2)
        assert process.wait(60) == 130
    assert first["node"]["now_ns"] < second["node"]["now_ns"]


def test_the_doctor_looks_at_server_nats_and_cluster(cli):
    found = {each["check"]: each for each in cli.json("doctor")["findings"]}
    assert {
        "open files",
        "disk space",
        "fsync",
        "NATS version",
        "NATS round trip",
        "cluster",
        "versions",
        "clocks",
    } <= set(found)
    assert found["cluster"]["text"].startswith("nodes: 1")
    assert found["versions"]["state"] == found["clocks"]["state"] == "ok"
    assert [check for check, each in found.items() if (each["state"] == "ok") != (not each["advice"])] == []


def test_the_doctor_says_what_is_wrong(tmp_path):
    cli = Cli("nats://127.0.0.1:1", tmp_path)
    ended = cli.run("doctor", code=1)
    assert "problem  NATS: " in ended.stdout
    assert "start nats-server, or set nats.url" in ended.stdout
