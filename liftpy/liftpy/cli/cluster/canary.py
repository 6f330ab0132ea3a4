"""`liftpy canary`: publish messages, read each back every way, and compare."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Any, Final
from uuid import uuid4

import typer

from liftpy.cli.option_values import seconds_of
from liftpy.cli.run import JsonFlag, fail, open_lift, print_json, run, stdout
from liftpy.cli.tables import Column, make_table
from liftpy.cli.tier.bucket import BucketUrl, Endpoint, Region, Where, open_bucket
from liftpy_envelope.errors import ConfigError
from liftpy_server.settings.canary import CanaryConfig

if TYPE_CHECKING:
    from liftpy_client.client import Lift
    from liftpy_server.canary.canary import ReadBucket
    from liftpy_server.canary.ledger import CanaryCounts

__all__ = ["app", "canary"]

app = typer.Typer(rich_markup_mode=None, add_completion=False)

_MESSAGES_MAX: Final = 10_000
_COLUMNS: Final = (
    Column("way"),
    *(Column(name, right=True) for name in ("fine", "late", "lost", "doubled", "median", "p99")),
)


@app.command()
def canary(
    ctx: typer.Context,
    stream: Annotated[str, typer.Option("--stream", help="Stream to publish to.", show_default=False)],
    subject: Annotated[
        str | None, typer.Option(help="Literal subject; by default that of the stream.", show_default=False)
    ] = None,
    messages: Annotated[int, typer.Option("--messages", "-n", min=1, max=_MESSAGES_MAX, help="How many.")] = 10,
    interval: Annotated[str, typer.Option(help="Time between two messages.")] = "1s",
    timeout: Annotated[str, typer.Option(help="A message that is not read within this time is late.")] = "30s",
    bucket_timeout: Annotated[str, typer.Option(help="The same, from the bucket.")] = "5m",
    no_bucket: Annotated[bool, typer.Option("--no-bucket", help="Do not read the bucket.")] = False,
    bucket: BucketUrl = None,
    endpoint: Endpoint = None,
    region: Region = None,
    as_json: JsonFlag = False,
) -> None:
    """Publish messages, read each back every way, and compare.

    Messages are read by pull, as a group, and from the bucket if the stream has a part there, which waits for the next
    upload. They stay in the stream: give the canary a stream of its own. The exit code is 1 unless every message was
    acknowledged, and came back every way in time, as it was published, and once.
    """
    try:
        config = CanaryConfig(
            stream=stream,
            subject=subject,
            interval_s=seconds_of("--interval", interval, as_json=as_json),
            timeout_s=seconds_of("--timeout", timeout, as_json=as_json),
            bucket_timeout_s=seconds_of("--bucket-timeout", bucket_timeout, as_json=as_json),
        )
    except ConfigError as error:
        name = error.field.rpartition(".")[2].removesuffix("_s").replace("_", "-")
        fail(ConfigError(f"--{name}", str(error).removeprefix(f"{error.field}: ")), as_json=as_json)
    where = None if no_bucket else Where(bucket, endpoint, region)

    async def work() -> CanaryCounts:
        from liftpy_server.canary.canary import Canary

        async with open_lift(ctx, "liftpy canary") as lift:
            look = None if where is None else await _look(lift, stream, where)
            runner = Canary(lift, config, f"liftpy-canary-{uuid4().hex[:12]}", look, lambda _ledger: None)
            await runner.run(messages)
            return runner.ledger.counts

    counts = run(work(), as_json=as_json)
    told = _told(stream, counts)
    if as_json:
        print_json(told)
    else:
        _print(told)
    if not counts.is_well:
        raise typer.Exit(1)


async def _look(lift: Lift, stream: str, where: Where) -> ReadBucket | None:
    """What reads the bucket; None if the stream has no part there."""
    if not (await lift.stream_info(stream)).config.tier:
        return None
    status = await lift.tier_status(limit=1)
    if status.url is None:
        return None
    found = Where(where.url or status.url, where.endpoint or status.endpoint, where.region or status.region)
    opened = await asyncio.to_thread(open_bucket, found)
    from liftpy_server.canary.bucket import BucketLook

    return BucketLook(opened.store)


def _told(stream: str, counts: CanaryCounts) -> dict[str, Any]:
    plain = counts.to_plain()
    seconds = plain.pop("seconds")
    ways = {way: numbers | _times(seconds, way) for way, numbers in plain["ways"].items()}
    return {"ok": counts.is_well, "stream": stream} | plain | {"ack": _times(seconds, "ack"), "ways": ways}


def _times(seconds: list[tuple[str, float]], wanted: str) -> dict[str, float | None]:
    durations = sorted(duration_s for what, duration_s in seconds if what == wanted)
    if not durations:
        return {"median_s": None, "p99_s": None}
    p99 = durations[min(len(durations) - 1, len(durations) * 99 // 100)]
    return {"median_s": round(durations[len(durations) // 2], 6), "p99_s": round(p99, 6)}


def _print(told: dict[str, Any]) -> None:
    acks = {"way": "ack", "fine": str(told["acked"]), "late": str(told["unacked"]), "lost": "", "doubled": ""}
    rows = [acks | _shown(told["ack"])]
    for way, numbers in told["ways"].items():
        counts = {name: str(numbers[name]) for name in ("late", "lost", "doubled")}
        rows.append({"way": way, "fine": str(numbers["read"])} | counts | _shown(numbers))
    title = f"{told['stream']}: {'every message came back' if told['ok'] else 'not every message came back'}"
    stdout.print(make_table(title, _COLUMNS, rows, stdout.width))


def _shown(numbers: dict[str, Any]) -> dict[str, str]:
    return {
        name: "-" if numbers[f"{name}_s"] is None else f"{numbers[f'{name}_s'] * 1e3:,.1f} ms"
        for name in ("median", "p99")
    }
