"""Answers reach those who wait for them, and answers of others do not."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from liftpy_client.errors import NobodyListensError
from liftpy_client.publisher.ack_inbox import AckInbox
from liftpy_envelope.ack import Ack, AckUnreadableError, PublishRefusedError, encode_ack, encode_error_ack
from liftpy_envelope.errors import AckErrorCode

ACK = encode_ack(Ack(stream="orders", offset=7))
OTHER = encode_ack(Ack(stream="others", offset=7))
REFUSED = encode_error_ack(AckErrorCode.MALFORMED, "no", "orders", None)
REFUSED_BY_OTHERS = encode_error_ack(AckErrorCode.MALFORMED, "no", "others", None)
OF_JETSTREAM = b'{"error": {"code": 503, "err_code": 10077, "description": "maximum messages exceeded"}}'


async def answered(data, stream, *, is_elsewhere=False, headers=None):
    """What somebody is told whose message for a stream is answered; None for nothing."""
    inbox = AckInbox(SimpleNamespace(new_inbox=lambda: "_INBOX.a"))
    subject, future = inbox.expect(stream)
    to = AckInbox.no_responders(subject) if is_elsewhere else subject
    await inbox._arrived(SimpleNamespace(subject=to, data=data, headers=headers))
    if not future.done():
        return None
    return future.exception() or future.result()


@pytest.mark.parametrize(
    ("data", "stream", "told"),
    [
        (ACK, "orders", Ack),
        (ACK, None, Ack),
        (OTHER, "orders", type(None)),
        (REFUSED, "orders", PublishRefusedError),
        (REFUSED, None, PublishRefusedError),
        (REFUSED_BY_OTHERS, "orders", type(None)),
        (OF_JETSTREAM, "orders", PublishRefusedError),
        (b"thanks", "orders", AckUnreadableError),
    ],
)
async def test_answers_on_the_subject_of_the_ack(data, stream, told):
    assert type(await answered(data, stream)) is told


@pytest.mark.parametrize(
    ("data", "stream", "told"),
    [
        (ACK, "orders", type(None)),
        (REFUSED, "orders", PublishRefusedError),
        (REFUSED, None, type(None)),
        (REFUSED_BY_OTHERS, "orders", type(None)),
        (OF_JETSTREAM, "orders", type(None)),
        (OF_JETSTREAM, None, type(None)),
        (b"thanks", "orders", type(None)),
    ],
)
async def test_where_the_ack_comes_elsewhere_only_a_refusal_of_the_stream_counts(data, stream, told):
    """Of a node that can not read the envelope, and so does not know where the ack is to go."""
    assert type(await answered(data, stream, is_elsewhere=True)) is told


@pytest.mark.parametrize("is_elsewhere", [False, True])
async def test_that_nobody_listens_counts_on_both(is_elsewhere):
    found = await answered(b"", "orders", is_elsewhere=is_elsewhere, headers={"Status": "503"})
    assert type(found) is NobodyListensError
