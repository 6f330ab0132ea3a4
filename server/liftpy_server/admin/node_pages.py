"""What a node answers over HTTP.

`/healthz` answers 200 while the event loop turns, `/readyz` while the node works and is in step with its cluster.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from liftpy_server.admin.health import find_problems, find_waits
from liftpy_server.admin.http import health_page, json_page, metrics_page
from liftpy_server.admin.info import node_info
from liftpy_server.admin.metrics import render_metrics

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from liftpy_server.admin.groups.lags import GroupLags
    from liftpy_server.admin.http import Page
    from liftpy_server.admin.node_parts import NodeParts

__all__ = ["node_pages"]


def node_pages(node: NodeParts, group_lags: GroupLags) -> Callable[[str], Awaitable[Page | None]]:
    """The pages of a node, by path."""

    async def page(path: str) -> Page | None:
        match path:
            case "/metrics":
                return metrics_page(render_metrics(node, await group_lags.read()))
            case "/varz":
                return json_page(node_info(node))
            case "/healthz":
                return health_page(find_problems(node), is_ok=True)  # it answers: a restart would mend nothing
            case "/readyz":
                problems = find_problems(node) + find_waits(node)
                return health_page(problems, is_ok=not problems)
        return None

    return page
