"""Requests over NATS: how they are bounded, answered and refused, and those from node to node, which prove a key."""
