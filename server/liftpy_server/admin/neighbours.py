"""Whether another cluster answers on the same NATS, looked up by a node that is new.

Two clusters on one NATS account both answer `LIFT.API.`, each with its own streams. Mostly the second is a mistake:
a node that was to join was started alone.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from nats.errors import Error as NatsError

from liftpy_client.connection.cancelling import KeptCancellation
from liftpy_envelope.errors import LiftError
from liftpy_envelope.limits import ADMIN_ANSWER_ITEMS_MAX
from liftpy_envelope.unpacking import read_json
from liftpy_server.nats.link import NatsLink

if TYPE_CHECKING:
    from liftpy_client.connection.nats_options import NatsOptions

__all__ = ["OtherClusterError", "check_alone"]

logger = logging.getLogger(__name__)

_SUBJECT: Final = "LIFT.API.CLUSTER.INFO"
_ANSWER_S: Final = 3.0


class OtherClusterError(LiftError):
    """Another cluster uses this NATS already."""


async def check_alone(options: NatsOptions, node_id: str, cluster_id: str) -> None:
    """Do nothing when nobody answers, or only nodes of this cluster.

    Args:
        options: How to reach NATS.
        node_id: This node, which answers nothing yet.
        cluster_id: Id of its cluster.

    Raises:
        OtherClusterError: there is another one.
        NatsRefusedError: NATS refuses this node.
    """
    link = NatsLink(options, f"liftpy {node_id} looking round")
    await link.start()
    try:
        with KeptCancellation():
            reply = await link.client.request(_SUBJECT, b"{}", timeout=_ANSWER_S)
        other = read_json(reply.data, items_max=ADMIN_ANSWER_ITEMS_MAX)["cluster"]["cluster_id"]
    except (NatsError, ValueError, LookupError, TypeError) as error:
        logger.debug("no cluster answers %s: %r", _SUBJECT, error)  # as it should be
        return
    finally:
        with suppress(NatsError):
            await link.stop()
    if isinstance(other, str) and other not in {"", cluster_id}:
        raise OtherClusterError(
            f"another liftpy cluster ({other}) answers on NATS at {options.shown_url}, and node {node_id!r} is not "
            "of it: start the node with --join to have it taken in, or give the new cluster a NATS account of its own"
        )
