"""`connect` and `Lift`, the client that users hold."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, TypeVar, overload

from liftpy_client.admin.admin import Admin
from liftpy_client.connection.connecting import Connecting
from liftpy_client.connection.nats_options import NatsOptions
from liftpy_client.connection.session import Session
from liftpy_client.consumer.consumer import BatchConsumer, ConsumeOptions, Consumer
from liftpy_client.consumer.filtering import SubjectFilter
from liftpy_client.consumer.ranges import check_columns, check_pandas, read_range, to_frame
from liftpy_client.errors import UsageError
from liftpy_client.group.consumer import GroupConsumer
from liftpy_client.group.offsets import committed, reset_group
from liftpy_client.group.options import GroupOptions
from liftpy_client.publisher.ack_inbox import AckInbox
from liftpy_client.publisher.delivery import MessageDelivery, OutgoingMessage
from liftpy_client.publisher.options import PublisherOptions, check_ack_policy
from liftpy_client.publisher.publisher import Publisher
from liftpy_client.publisher.resender import Resender
from liftpy_client.table.table import Table

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import pyarrow as pa
    from nats.aio.client import Client

    from liftpy_client.consumer.positions import Start, Stop
    from liftpy_client.group.offsets import Committed
    from liftpy_client.message import Message
    from liftpy_client.table.following import DivergedCallback
    from liftpy_envelope.ack import Ack, AckPolicy

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

    @property
    def nats(self) -> Client:
        """The connection to NATS, for whatever else one does with NATS."""
        return self._session.nats

    @property
    def is_closed(self) -> bool:
        """Whether the connection is closed: by `close`, or for good by NATS, where it takes our credentials no more."""
        return self._session.nats.is_closed

    async def close(self) -> None:
        """Close the connection."""
        if not self._session.nats.is_closed:
            await self._session.nats.close()

    async def publish(
        self,
        subject: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        message_id: str | None = None,
        expected_offset: int | None = None,
        ack_policy: AckPolicy | str | None = None,
        stream: str | None = None,
        timeout_s: float = 5.0,
        retries: int = 2,
    ) -> Ack:
        """Publish one message and wait until it is stored.

        It is sent again under the same id, and so stored once, while its partition does not answer, for instance
        because its leader fails: several times a second, for `timeout_s` times `1 + retries`. The same goes for a
        leader that does not know what became of it, or has too few replicas. With `retries=0`, and to streams that keep
        no ids, it is sent again only when nobody can have stored it.

        Args:
            subject: a literal subject that a stream stores.
            value: payload; None is a tombstone.
            key: of the record.
            headers: NATS headers.
            message_id: for deduplication; by default that of a `Nats-Msg-Id` header, else a random one.
            expected_offset: refuse the message unless it gets this offset.
            ack_policy: overrides that of the stream: `leader` or `all`.
            stream: the stream whose ack counts, where several store the subject.
            timeout_s: without an ack for so long it is sent again in any case.
            retries: how many times longer to try; 0 to send it only once.

        Returns:
            Where the message is.

        Raises:
            NoStreamError: no stream stores the subject.
            PublishRefusedError: the node refuses the message, and says why; what may pass is raised when time is up.
            PublishTimeoutError: no ack came; it says whether the message may be stored.
            UsageError: an argument has no meaning, or the message is larger than NATS takes.
        """
        if not timeout_s > 0 or retries < 0:
            raise UsageError(f"timeout_s must be above 0 and retries 0 or more, not {timeout_s} and {retries}")
        message = OutgoingMessage(
            value,
            key=key,
            headers=headers,
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
    ) -> Publisher:
        """A publisher for many messages, to be used in an `async with`; see `PublisherOptions` for the arguments."""
        options = PublisherOptions(
            linger_s=linger_s,
            batch_bytes=batch_bytes,
            in_flight_bytes=in_flight_bytes,
            ack_timeout_s=ack_timeout_s,
            delivery_timeout_s=delivery_timeout_s,
            ack_policy=check_ack_policy(ack_policy),
        )
        return Publisher(self._session, self._inbox, self._resender, options, stream)

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
            stream: its name, or the names of several.
            start: `earliest`, `latest` (the last committed message), `new` (only what comes after now), an offset, a
                time with a time zone, or an offset per partition. In a group: where to begin in partitions for which
                it has committed nothing: `earliest`, `latest` or `new`.
            stop: `latest` (what is committed now), an offset or a time to stop before; None goes on for ever.
            partitions: which; by default all.
            subjects: only messages on these NATS subjects, wildcards included; up to 64. By default all.
            options: how to fetch.
            group: consume as a member of this group, which shares the partitions out among its members and remembers
                how far it is. It takes no `stop` and no `partitions`.
            group_options: how to be a member.

        Raises:
            UsageError, SubjectInvalidError: an argument has no meaning. What the cluster says is raised later, on
                entering or iterating the result.
        """
        names, options = _names(stream), _options(options, subjects)
        if group is not None:
            wanted = _group_options(group_options, start, stop, partitions)
            return GroupConsumer(self._session, names, group, options, wanted, batches=False)
        _check_no_group(group_options)
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
        """Consume streams in Arrow record batches, each of one partition; arguments as for `consume`."""
        names, options = _names(stream), _options(options, subjects)
        if group is not None:
            wanted = _group_options(group_options, start, stop, partitions)
            return GroupConsumer(self._session, names, group, options, wanted, batches=True)
        _check_no_group(group_options)
        return BatchConsumer(self._session, names, start, stop, partitions, options)

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
        """A range of a stream as an Arrow table, partition after partition.

        Args:
            stream: its name.
            start: as for `consume`.
            stop: as for `consume`; a range ends somewhere.
            partitions: which; by default all.
            subjects: only messages on these NATS subjects, wildcards included. By default all.
            columns: some of offset, timestamp, partition, subject, key, headers, value; by default all.
            bytes_max: how large the table may be.
            options: how to fetch.

        Raises:
            RangeTooLargeError: the table would be larger than `bytes_max`.
            UsageError: an argument has no meaning.
            LiftError: as from a consumer.
        """
        if stop is None:
            raise UsageError("stop: a table ends somewhere; give 'latest', an offset or a time")
        if bytes_max < 1:
            raise UsageError(f"bytes_max must be 1 or more, not {bytes_max}")
        names = check_columns(columns)
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
        """A range of a stream as a pandas frame; arguments and errors as for `to_arrow`.

        `bytes_max` bounds the data as Arrow has it; as Python objects keys and values may take several times as much.

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
        """A live view of a stream: the last value of every key. To be used in an `async with`.

        Args:
            stream: its name.
            decode: makes a value of bytes; by default they stay bytes.
            partitions: which; by default all.
            bytes_max: about how much memory the rows may take.
            fill_timeout_s: how long entering it may take.
            options: how to fetch; `on_lost` has no meaning here.
            on_diverged: told when the cluster has lost what the table shows (see `LogDivergedError`), before the table
                is read anew; a plain function, or one that is awaited. What it raises ends the table.
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

    async def committed(self, group: str, stream: str) -> dict[int, Committed]:
        """What a group has committed, by partition; partitions for which it has committed nothing are left out."""
        return await committed(self._session, group, stream)

    async def reset_group(self, group: str, offsets: Mapping[str, Mapping[int, int]]) -> None:
        """Have a group that has no members go on from other offsets.

        Args:
            group: its name.
            offsets: by stream and partition.

        Raises:
            GroupRefusedError: the group has members, or an offset can not be.
            UsageError: an argument has no meaning.
        """
        await reset_group(self._session, group, offsets)


def connect(
    url: str | None = None, *, name: str = "liftpy client", context: str | None = None, **options: Any
) -> Connecting[Lift]:
    """Connect to liftpy through NATS.

    What is not given comes from the nats CLI's environment variables (`NATS_URL`, `NATS_CREDS`, ...) and contexts.

    Args:
        url: one or more NATS addresses, separated by commas.
        name: of this client, as NATS shows it.
        context: name of a context of the nats CLI.
        options: fields of `NatsOptions`: user, password, token, creds, nkey, tls_ca, tls_cert, tls_key, timeout_s.

    Raises:
        ConfigError: an option can not be used.
        UnreachableError: NATS can not be reached (raised when entering or awaiting the result).
    """
    return connect_as(NatsOptions.resolve(context=context, url=url, **options), name=name)


def connect_as(options: NatsOptions, *, name: str = "liftpy client") -> Connecting[Lift]:
    """Connect with these options alone, whatever environment variables and contexts say."""
    return Connecting(options, name, lambda nats: Lift(Session(nats, options, name)))


def _names(stream: str | Sequence[str]) -> list[str]:
    return [stream] if isinstance(stream, str) else list(stream)


def _options(options: ConsumeOptions | None, subjects: str | Sequence[str] | None) -> ConsumeOptions:
    options = options or ConsumeOptions()
    return options if subjects is None else replace(options, subjects=SubjectFilter(subjects).patterns)


def _check_no_group(group_options: GroupOptions | None) -> None:
    if group_options is not None:
        raise UsageError("group_options: they need a group")


def _group_options(given: GroupOptions | None, start: object, stop: object, partitions: object) -> GroupOptions:
    if stop is not None or partitions is not None:
        raise UsageError("stop, partitions: a group goes on for ever, and its coordinator shares out the partitions")
    if given is None:
        return GroupOptions(start=start)  # type: ignore[arg-type]  # it is checked there
    if start not in {"earliest", given.start}:
        raise UsageError(f"start: {start!r} is given here, and {given.start!r} in group_options")
    return given
