"""Metadata consensus of one to five voters: pysyncobj's core, hardened so that no acknowledged command is lost."""

import socket
from _socket import inet_ntop

import pysyncobj  # noqa: F401 - here, so that what it does to `socket` is undone before anything else comes in

# The library puts a function for Windows in the place of this one, on every system, and that fails on all others.
socket.inet_ntop = inet_ntop
