"""Connections between voters: who gets in, what is sealed, and the sockets."""
