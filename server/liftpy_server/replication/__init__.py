"""Replication of partitions: a pure core, the host that drives it on a node, and the link to leaders on the wire."""
