"""Streams by pattern: what matches, and members that subscribe to what matches later."""

from __future__ import annotations

import pytest

from liftpy_client.errors import UsageError
from liftpy_client.group.member import GroupMember, JoinOptions
from liftpy_client.group.options import check_streams
from liftpy_client.group.subscriptions import Subscriptions
from liftpy_envelope.errors import NameInvalidError
from liftpy_envelope.groups import SUBSCRIPTIONS_MAX, GroupError, HeartbeatRequest, JoinRequest, MembershipResult


class FakeCluster:
    """Streams, a few at a time."""

    def __init__(self, *names, page=3):
        self.names = names
        self._page = page

    async def request(self, endpoint, body):
        assert endpoint == "STREAM.LIST"
        names = self.names[body["offset"] :][: self._page]
        return {"total": len(self.names), "streams": [{"name": name} for name in names]}


async def test_what_matches():
    cluster = FakeCluster("orders", "orders-eu", "orders-us", "refunds", "refunds-eu", "x")
    assert await Subscriptions(["orders-*"]).find(cluster) == ("orders-eu", "orders-us")
    assert await Subscriptions(["late", "*-eu"]).find(cluster) == ("late", "orders-eu", "refunds-eu")
    assert await Subscriptions(["none*"]).find(cluster) == ()


async def test_streams_beyond_what_a_group_can_have_are_told_once(caplog):
    many = FakeCluster(*(f"s{number}" for number in range(SUBSCRIPTIONS_MAX + 5)), page=100)
    subscriptions = Subscriptions(["*"])
    for _ in range(2):
        assert len(await subscriptions.find(many)) == SUBSCRIPTIONS_MAX
    (record,) = caplog.records
    assert f"5 are not consumed, the first of them s{SUBSCRIPTIONS_MAX}" in record.message


def test_patterns_are_checked():
    assert check_streams(["orders-*", "refunds"]) == ("orders-*", "refunds")
    with pytest.raises(NameInvalidError):
        check_streams(["orders.*"])
    with pytest.raises(UsageError, match="named twice"):
        check_streams(["o*", "o*"])


def test_a_member_that_subscribes_anew_tells_it_with_its_next_join():
    member = GroupMember(JoinOptions("g", "", "me", "", 4_000, 12_000, ()), b"n" * 16, 0.0)
    member.answered(member.request(500), MembershipResult(GroupError.NONE, "", "1-m", 1, None), 0.0)
    assert isinstance(member.request(500), HeartbeatRequest)
    assert member.subscribe(("s",))
    request = member.request(500)
    assert isinstance(request, JoinRequest)
    assert (request.revision, request.subscriptions, request.nonce) == (1, ("s",), b"n" * 16)
    member.answered(request, MembershipResult(GroupError.NONE, "", "1-m", 2, None), 1.0)
    assert isinstance(member.request(500), HeartbeatRequest)
    assert not member.subscribe(("s",))
    assert member.member_id == "1-m", "it stays the member that it is"
