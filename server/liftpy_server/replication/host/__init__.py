"""Replication on a node: the core driven by asyncio, on real logs and links, and the node's session in its cluster."""
