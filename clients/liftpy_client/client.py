"""`connect` and `Lift`, the client that users hold."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, TypeVar, overload

from liftpy_client.admin.admin import Admin
from liftpy_client.connection.connecting import Connecting
from liftpy_client.connection.nats_options import NatsOptions
from liftpy_client.connection.session import Session
from liftpy_client.consumer.consumer import BatchConsumer, ConsumeOptions, Consumer
from liftpy_client.consumer.decode import EXTRA_COLUMNS
from liftpy_client.consumer.divergence import epoch_ends
from liftpy_client.consumer.filtering import SubjectFilter
from liftpy_client.consumer.ranges import check_columns, check_pandas, read_range, to_frame
from liftpy_client.errors import UsageError
from liftpy_client.group.consumer import GroupConsumer
from liftpy_client.group.offsets import committed, reset_group
from liftpy_client.group.options import GroupOptions, check_group_name, check_streams
from liftpy_client.group.subscriptions import is_pattern
from liftpy_client.processing.options import ProcessOptions, Retry, check_group_options
from liftpy_client.processing.process import Process
from liftpy_client.publisher.ack_inbox import AckInbox
from liftpy_client.publisher.delivery import MessageDelivery, OutgoingMessage
from liftpy_client.publisher.options import PublisherOptions, check_ack_policy
from liftpy_client.publisher.ordered import OrderedDelivery
from liftpy_client.publisher.publisher import Publisher
from liftpy_client.publisher.resender import Resender
from liftpy_client.publisher.routes import find_route
from liftpy_client.table.table import Table
from liftpy_client.typed.streams import TypedStream

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Mapping, Sequence
    from typing import Unpack

    import pyarrow as pa
    from nats.aio.client import Client

    from liftpy_client.connection.nats_options import ConnectOptions
    from liftpy_client.consumer.positions import Start, Stop
    from liftpy_client.group.offsets import Committed
    from liftpy_client.message import Message
    from liftpy_client.processing.options import Batch, By
    from liftpy_client.table.following import DivergedCallback
    from liftpy_client.tracing.interceptors import Interceptor
    from liftpy_client.typed.codecs import Codec
    from liftpy_client.typed.streams import OnUndecodable
    from liftpy_envelope.ack import Ack, AckPolicy
    from liftpy_envelope.errors import LiftError

__all__ = ["Lift", "connect", "connect_as"]

_RANGE_BYTES_MAX: Final = 1024**3
_TABLE_BYTES_MAX: Final = 1024**3
_V = TypeVar("_V")


class Lift(Admin):
    """A connection to liftpy: publish, consume, administer. Made by `connect`."""

    def __init__(self, session: Session) -> None:
        super().__init__(session.cluster)
        self._session = session
        self._inbox = AckInbox(session.nats)
        self._resender = Resender(session, self._inbox)
        self._delivery = MessageDelivery(session, self._inbox, self._resender)
        self._ordered = OrderedDelivery(session, self._inbox, self._resender)

    @property
    def nats(self) -> Client:
        """The connection to NATS, for other uses of NATS."""
        return self._session.nats

    @property
    def is_closed(self) -> bool:
        """Whether the connection is closed: by `close`, or for good by NATS, after it revoked our credentials."""
        return self._session.nats.is_closed

    async def close(self) -> None:
        """End consumers and tables, and close the connection. Group members commit what was processed, and leave."""
        await self._session.close()

    async def publish(
        self,
        subject: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Mapping[str, str | Sequence[str]] | None = None,
        message_id: str | None = None,
        expected_offset: int | None = None,
        ack_policy: AckPolicy | str | None = None,
        stream: str | None = None,
        timeout_s: float = 5.0,
        retries: int = 2,
    ) -> Ack:
        """Publish one message and wait for its ack.

        While the partition does not answer, for instance because its leader failed, the message is sent again several
        times a second, for `timeout_s` times `1 + retries`. It keeps its id, so it is stored once. It is also sent
        again when the leader does not know the outcome, or has too few in-sync replicas. With `retries=0`, and to
        streams without a dedupe window, it is sent again only when no node can have stored it.

        Args:
            subject: A literal subject that a stream stores.
            value: Payload. None is a tombstone.
            key: Key of the record.
            headers: NATS headers. One with several values has a list of them.
            message_id: Id for deduplication; by default that of the `Nats-Msg-Id` header, or else a random one.
            expected_offset: Refuse the message unless it gets this offset.
            ack_policy: `leader` or `all`; overrides that of the stream.
            stream: Stream whose ack counts, where several store the subject.
            timeout_s: Seconds without an ack after which the message is sent again in any case.
            retries: How many times `timeout_s` is added to the attempt; 0 to send once.

        Returns:
            The ack, with partition and offset of the message.

        Raises:
            NoStreamError: No stream stores the subject.
            PublishRefusedError: A node refused the message. Refusals that a retry can fix are raised when time is up.
            PublishTimeoutError: No ack came in time. The error says whether the message may be stored.
            UsageError: An argument is invalid, or the message exceeds `max_payload` of the NATS server.
        """
        if not timeout_s > 0 or retries < 0:
            raise UsageError(f"timeout_s must be above 0 and retries 0 or more, not {timeout_s} and {retries}")
        with self._session.interceptors.publishing(subject, headers) as sent:
            message = OutgoingMessage(
                value,
                key=key,
                headers=sent,
                message_id=message_id,
                expected_offset=expected_offset,
                ack_policy=check_ack_policy(ack_policy),
            )
            return await self._delivery.deliver(subject, message, stream, timeout_s, retries)

    def publisher(
        self,
        *,
        stream: str | None = None,
        linger_s: float = 0.005,
        batch_bytes: int = 512 * 1024,
        in_flight_bytes: int = 16 * 1024 * 1024,
        ack_timeout_s: float = 5.0,
        delivery_timeout_s: float = 60.0,
        ack_policy: AckPolicy | str | None = None,
        envelope: bool = True,
        on_error: Callable[[LiftError], object] | None = None,
    ) -> Publisher:
        """Return a publisher for many messages, for use in an `async with`; arguments as in `PublisherOptions`."""
        options = PublisherOptions(
            linger_s=linger_s,
            batch_bytes=batch_bytes,
            in_flight_bytes=in_flight_bytes,
            ack_timeout_s=ack_timeout_s,
            delivery_timeout_s=delivery_timeout_s,
            ack_policy=check_ack_policy(ack_policy),
            envelope=envelope,
            on_error=on_error,
        )
        return Publisher(self._session, self._inbox, self._resender, options, stream, self._session.interceptors)

    @overload
    def consume(
        self,
        stream: str | Sequence[str],
        *,
        start: Start | Mapping[int, int] = "earliest",
        stop: Stop | None = None,
        partitions: Sequence[int] | None = None,
        subjects: str | Sequence[str] | None = None,
        options: ConsumeOptions | None = None,
        group: None = None,
        group_options: None = None,
    ) -> Consumer: ...
    @overload
    def consume(
        self,
        stream: str | Sequence[str],
        *,
        start: Start | Mapping[int, int] = "earliest",
        stop: Stop | None = None,
        partitions: Sequence[int] | None = None,
        subjects: str | Sequence[str] | None = None,
        options: ConsumeOptions | None = None,
        group: str,
        group_options: GroupOptions | None = None,
    ) -> GroupConsumer[Message]: ...
    def consume(
        self,
        stream: str | Sequence[str],
        *,
        start: Start | Mapping[int, int] = "earliest",
        stop: Stop | None = None,
        partitions: Sequence[int] | None = None,
        subjects: str | Sequence[str] | None = None,
        options: ConsumeOptions | None = None,
        group: str | None = None,
        group_options: GroupOptions | None = None,
    ) -> Consumer | GroupConsumer[Message]:
        """Consume streams message by message, with `async for`.

        Args:
            stream: Name of the stream, or a list of names. In a group, a `*` stands for any characters: all streams
                that match are consumed, also those that are created later.
            start: `earliest`, `latest` (the last committed message), `new` (messages committed from now on), an offset,
                a time with a time zone, or an offset per partition. In a group, where to start in partitions without a
                committed offset: `earliest`, `latest` or `new`.
            stop: `latest` (the last message committed now), or an offset or time to stop before. None never stops.
            partitions: Numbers of the partitions; by default all.
            subjects: Deliver only messages on these NATS subjects, up to 64, wildcards included; by default all.
            options: Fetch options.
            group: Consume as a member of this group. The group divides the partitions among its members and stores
                committed offsets. It accepts no `stop` and no `partitions`.
            group_options: Options of the member.

        Raises:
            UsageError, SubjectInvalidError: An argument is invalid. Errors of the cluster are raised later, when the
                result is entered or iterated.
        """
        names, options = _names(stream), _options(options, subjects)
        if group is not None:
            wanted = _group_options(group_options, start, stop, partitions)
            return GroupConsumer(*(self._session, names, group, options, wanted), batches=False, ordered=self._ordered)
        _check_no_group(names, group_options)
        return Consumer(self._session, names, start, stop, partitions, options)

    @overload
    def consume_batches(
        self,
        stream: str | Sequence[str],
        *,
        start: Start | Mapping[int, int] = "earliest",
        stop: Stop | None = None,
        partitions: Sequence[int] | None = None,
        subjects: str | Sequence[str] | None = None,
        options: ConsumeOptions | None = None,
        group: None = None,
        group_options: None = None,
    ) -> BatchConsumer: ...
    @overload
    def consume_batches(
        self,
        stream: str | Sequence[str],
        *,
        start: Start | Mapping[int, int] = "earliest",
        stop: Stop | None = None,
        partitions: Sequence[int] | None = None,
        subjects: str | Sequence[str] | None = None,
        options: ConsumeOptions | None = None,
        group: str,
        group_options: GroupOptions | None = None,
    ) -> GroupConsumer[pa.RecordBatch]: ...
    def consume_batches(
        self,
        stream: str | Sequence[str],
        *,
        start: Start | Mapping[int, int] = "earliest",
        stop: Stop | None = None,
        partitions: Sequence[int] | None = None,
        subjects: str | Sequence[str] | None = None,
        options: ConsumeOptions | None = None,
        group: str | None = None,
        group_options: GroupOptions | None = None,
    ) -> BatchConsumer | GroupConsumer[pa.RecordBatch]:
        """Consume streams as Arrow record batches, each of one partition. Arguments as for `consume`."""
        names, options = _names(stream), _options(options, subjects)
        if group is not None:
            wanted = _group_options(group_options, start, stop, partitions)
            return GroupConsumer(self._session, names, group, options, wanted, batches=True)
        _check_no_group(names, group_options)
        return BatchConsumer(self._session, names, start, stop, partitions, options)

    async def process(
        self,
        stream: str | Sequence[str],
        handle: Callable[..., Any],
        *,
        group: str,
        concurrency: int = 16,
        by: By = "key",
        retry: Retry | None = None,
        dead_letter: str | None = None,
        handler_timeout_s: float = 60.0,
        batch: Batch | None = None,
        subjects: str | Sequence[str] | None = None,
        in_flight_messages: int = 10_000,
        in_flight_bytes: int = 64 * 1024 * 1024,
        shutdown_timeout_s: float = 20.0,
        atomic: bool = False,
        run: str = "",
        stop: asyncio.Event | None = None,
        options: ConsumeOptions | None = None,
        group_options: GroupOptions | None = None,
    ) -> None:
        """Call a handler for each message of streams, as a member of a group, until it is stopped.

        Each message is handled at least once. Messages with the same key are handled in order, one at a time. SIGTERM,
        `stop` and a cancellation end it: it waits for the handlers that run, commits, and leaves the group.

        `handle` takes a `Message`, or an Arrow record batch if `batch` is given. A coroutine function runs in the event
        loop, a plain function in a thread. With `atomic=True` it also takes a `Transaction`, and what it publishes with
        that is stored once, however often it is called. `stream`, `subjects`, `options` and `group_options` are those
        of `consume`. The other arguments are those of `ProcessOptions`.

        Raises:
            HandlerFailedError: A handler failed, and there is no `dead_letter`.
            HandlerStuckError: A handler did not end in twice its time.
            NoStreamError: A stream does not exist, or no stream stores the dead letters.
            UsageError: An argument is invalid.
            LiftError: As from a consumer in a group.
        """
        wanted = ProcessOptions(
            concurrency=concurrency,
            by=by,
            retry=retry or Retry(attempts=1),
            dead_letter=dead_letter,
            handler_timeout_s=handler_timeout_s,
            batch=batch,
            in_flight_messages=in_flight_messages,
            in_flight_bytes=in_flight_bytes,
            shutdown_timeout_s=shutdown_timeout_s,
            atomic=atomic,
            run=run,
        )
        process = Process(
            self._session,
            self.publish,
            check_streams(_names(stream)),
            check_group_name(group),
            handle,
            wanted,
            _options(options, subjects),
            check_group_options(group_options, handler_timeout_s),
            self._ordered,
        )
        if dead_letter is not None:
            await find_route(self._session.cluster, dead_letter, None)  # rather now than with the first dead letter
        await process.run(stop)

    def typed(self, stream: str, codec: Codec[_V], *, on_undecodable: OnUndecodable = "raise") -> TypedStream[_V]:
        """Return a stream whose values are objects.

        Args:
            stream: Name of the stream.
            codec: Codec of the values: `liftpy.json`, `liftpy.msgpack`, `liftpy.protobuf`, `liftpy.avro`, or an object
                with the methods `encode` and `decode`.
            on_undecodable: What to do with a message whose value cannot be decoded: `raise`, `skip`, or `dead_letter`,
                for `process` only.

        Raises:
            UsageError: There is no such choice.
        """
        return TypedStream(self, stream, codec, on_undecodable)

    async def to_arrow(
        self,
        stream: str,
        *,
        start: Start | Mapping[int, int] = "earliest",
        stop: Stop = "latest",
        partitions: Sequence[int] | None = None,
        subjects: str | Sequence[str] | None = None,
        columns: Sequence[str] | None = None,
        bytes_max: int = _RANGE_BYTES_MAX,
        options: ConsumeOptions | None = None,
    ) -> pa.Table:
        """Return a range of a stream as an Arrow table, partition after partition.

        Args:
            stream: Name of the stream.
            start: Start, as for `consume`.
            stop: Stop, as for `consume`, but required.
            partitions: Numbers of the partitions; by default all.
            subjects: Only messages on these NATS subjects, wildcards included; by default all.
            columns: Some of offset, timestamp, partition, subject, key, headers, value, message_id, leader_epoch; by
                default all but the last two, which the `extra_columns` of `options` add.
            bytes_max: Limit of the table's size.
            options: Fetch options.

        Raises:
            RangeTooLargeError: The table would exceed `bytes_max`.
            UsageError: An argument is invalid.
            LiftError: As from a consumer.
        """
        if stop is None:
            raise UsageError("stop: a table needs an end; give 'latest', an offset or a time")
        if bytes_max < 1:
            raise UsageError(f"bytes_max must be 1 or more, not {bytes_max}")
        options = options or ConsumeOptions()
        names = check_columns(columns, options.extra_columns)
        options = replace(options, extra_columns=tuple(name for name in EXTRA_COLUMNS if name in names))
        consumer = self.consume_batches(
            stream, start=start, stop=stop, partitions=partitions, subjects=subjects, options=options
        )
        async with consumer:
            return await read_range(stream, consumer, names, bytes_max)

    async def to_pandas(
        self,
        stream: str,
        *,
        start: Start | Mapping[int, int] = "earliest",
        stop: Stop = "latest",
        partitions: Sequence[int] | None = None,
        subjects: str | Sequence[str] | None = None,
        columns: Sequence[str] | None = None,
        bytes_max: int = _RANGE_BYTES_MAX,
        options: ConsumeOptions | None = None,
    ) -> Any:
        """Return a range of a stream as a pandas frame. Arguments and errors as for `to_arrow`.

        `bytes_max` limits the Arrow data. As Python objects, keys and values can take several times as much.

        Raises:
            PandasMissingError: pandas is not installed.
        """
        check_pandas()
        table = await self.to_arrow(
            stream,
            start=start,
            stop=stop,
            partitions=partitions,
            subjects=subjects,
            columns=columns,
            bytes_max=bytes_max,
            options=options,
        )
        return to_frame(table)

    @overload
    def table(
        self,
        stream: str,
        *,
        decode: None = None,
        partitions: Sequence[int] | None = None,
        bytes_max: int = _TABLE_BYTES_MAX,
        fill_timeout_s: float = 300.0,
        options: ConsumeOptions | None = None,
        on_diverged: DivergedCallback | None = None,
    ) -> Table[bytes]: ...
    @overload
    def table(
        self,
        stream: str,
        *,
        decode: Callable[[bytes], _V],
        partitions: Sequence[int] | None = None,
        bytes_max: int = _TABLE_BYTES_MAX,
        fill_timeout_s: float = 300.0,
        options: ConsumeOptions | None = None,
        on_diverged: DivergedCallback | None = None,
    ) -> Table[_V]: ...
    def table(
        self,
        stream: str,
        *,
        decode: Callable[[bytes], Any] | None = None,
        partitions: Sequence[int] | None = None,
        bytes_max: int = _TABLE_BYTES_MAX,
        fill_timeout_s: float = 300.0,
        options: ConsumeOptions | None = None,
        on_diverged: DivergedCallback | None = None,
    ) -> Table[Any]:
        """Return a live table of a stream: the last value of every key. Use it in an `async with`.

        Args:
            stream: Name of the stream.
            decode: Function that decodes a value; by default values stay bytes.
            partitions: Numbers of the partitions; by default all.
            bytes_max: Approximate limit of the rows' memory.
            fill_timeout_s: Time limit for entering the table, which reads the stream.
            options: Fetch options. `on_lost` has no effect here.
            on_diverged: Function, plain or async, that is called when the cluster lost records that the table shows
                (see `LogDivergedError`), before the table is read again. Its errors end the table.
        """
        return Table(
            self._session,
            stream,
            decode=decode,
            partitions=partitions,
            bytes_max=bytes_max,
            fill_timeout_s=fill_timeout_s,
            options=options or ConsumeOptions(),
            on_diverged=on_diverged,
        )

    async def epoch_ends(self, stream: str, epochs: Mapping[int, int]) -> dict[int, int]:
        """Return where the logs of partitions left a leader epoch, or the largest one before it.

        Records up to an offset, read while a leader of an epoch had them, are still those of the log unless that epoch
        ended before the offset: after a restore from the bucket, or an unclean election.

        Args:
            stream: Name of the stream.
            epochs: Leader epochs by partition, as `stream_info` shows them.

        Returns:
            By partition, the offset after the last record of the epoch.

        Raises:
            NoStreamError: There is no such stream.
            NodeUnavailableError: A leader cannot be found or asked.
        """
        return await epoch_ends(self._session, stream, epochs)

    async def committed(self, group: str, stream: str) -> dict[int, Committed]:
        """Return the committed offsets of a group by partition. Partitions without one are left out."""
        return await committed(self._session, group, stream)

    async def reset_group(self, group: str, offsets: Mapping[str, Mapping[int, int]]) -> None:
        """Change a group's committed offsets. The group must have no members.

        Args:
            group: Name of the group.
            offsets: New offsets by stream and partition.

        Raises:
            GroupRefusedError: The group has members, or an offset is out of range.
            UsageError: An argument is invalid.
        """
        await reset_group(self._session, group, offsets)


def connect(
    url: str | None = None,
    *,
    name: str = "liftpy client",
    context: str | None = None,
    interceptors: Sequence[Interceptor] = (),
    **options: Unpack[ConnectOptions],
) -> Connecting[Lift]:
    """Connect to liftpy through NATS.

    Missing options come from the nats CLI's environment variables (`NATS_URL`, `NATS_CREDS`, ...) and contexts.

    Args:
        url: One or more NATS addresses, separated by commas.
        name: Name of this client, as NATS shows it.
        context: Name of a context of the nats CLI.
        interceptors: Hooks around publishes, handlers and commits, such as `liftpy.otel()`.
        options: Fields of `NatsOptions`: user, password, token, creds, nkey, tls_ca, tls_cert, tls_key, timeout_s.

    Raises:
        ConfigError: An option is invalid or unknown.
        UnreachableError: NATS is not reachable (raised when the result is entered or awaited).
    """
    return connect_as(NatsOptions.resolve(context=context, url=url, **options), name=name, interceptors=interceptors)


def connect_as(
    options: NatsOptions, *, name: str = "liftpy client", interceptors: Sequence[Interceptor] = ()
) -> Connecting[Lift]:
    """Connect with these options only; environment variables and contexts are ignored."""
    return Connecting(options, name, lambda nats, may: Lift(Session(nats, options, name, interceptors, may)))


def _names(stream: str | Sequence[str]) -> list[str]:
    return [stream] if isinstance(stream, str) else list(stream)


def _options(options: ConsumeOptions | None, subjects: str | Sequence[str] | None) -> ConsumeOptions:
    options = options or ConsumeOptions()
    return options if subjects is None else replace(options, subjects=SubjectFilter(subjects).patterns)


def _check_no_group(names: Sequence[str], group_options: GroupOptions | None) -> None:
    if group_options is not None:
        raise UsageError("group_options: pass group='...', the name of the group, as well")
    for name in names:
        if is_pattern(name):
            raise UsageError(f"stream: {name} is a pattern, which only a group consumes; name a group as well")


def _group_options(given: GroupOptions | None, start: object, stop: object, partitions: object) -> GroupOptions:
    if stop is not None or partitions is not None:
        raise UsageError(
            "stop, partitions: leave them out; a group has no end, and its coordinator assigns the partitions"
        )
    if given is None:
        return GroupOptions(start=start)  # type: ignore[arg-type]  # it is checked there
    if start not in {"earliest", given.start}:
        raise UsageError(f"start: {start!r} is given here, and {given.start!r} in group_options; give one of them")
    return given
