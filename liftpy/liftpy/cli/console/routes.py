"""The URLs of the console."""

from __future__ import annotations

from typing import Final

from liftpy.cli.console import changes, pages, reading
from liftpy.cli.console.application import Page

__all__ = ["PAGES"]

PAGES: Final = (
    Page("/", pages.overview),
    Page("/streams", pages.streams),
    Page("/streams/{name}", pages.stream),
    Page("/streams/{name}/messages", reading.messages),
    Page("/streams/{name}/messages/{partition:int}/{offset:int}", reading.message),
    Page("/streams/{name}/messages/{partition:int}/{offset:int}/value", reading.value),
    Page("/streams/{name}/download", reading.download),
    Page("/streams/{name}/tail", reading.tail),
    Page("/streams/{name}/tail/events", reading.tail_events),
    Page("/streams/{name}/settings", changes.settings, "POST"),
    Page("/streams/{name}/pause", changes.pause, "POST"),
    Page("/groups", pages.groups),
    Page("/groups/{name}", pages.group),
    Page("/groups/{name}/reset", changes.reset, "POST"),
    Page("/nodes", pages.nodes),
    Page("/nodes/{name}", pages.node),
    Page("/nodes/{name}/drain", changes.drain, "POST"),
    Page("/bucket", pages.bucket),
    Page("/events", reading.events),
    Page("/publish", changes.publish_form),
    Page("/publish", changes.publish, "POST"),
)
