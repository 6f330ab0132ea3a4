"""Segments: the files that a log is made of, their indexes, and what a crash leaves of them."""
