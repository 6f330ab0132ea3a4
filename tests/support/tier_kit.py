"""What tests of nodes with a bucket share."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from support.s3_servers import S3Server

__all__ = ["tier_toml"]


def tier_toml(server: S3Server, prefix: str = "liftpy", **settings: float) -> str:
    """Settings of a node that moves things to the bucket quickly, and looks at retention often.

    What they have left in the bucket is audited when the tests of the module are through.
    """
    server.prefixes.add(prefix)
    usual = {"upload_age_s": 0.4, "upload_bytes": 262_144, "set_member_bytes_max": 65_536, "gc_interval_s": 0.5}
    lines = [f"{name} = {value}" for name, value in (usual | settings).items()]
    return "\n".join(
        [
            "[storage]",
            "retention_interval_s = 0.2",
            "[tier]",
            f'url = "{server.url(prefix)}"',
            f'endpoint = "{server.endpoint}"',
            *lines,
            "",
        ]
    )
