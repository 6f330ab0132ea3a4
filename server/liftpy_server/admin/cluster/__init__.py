"""Requests about nodes and replicas: nodes, draining, reassignment, recovery."""
