"""Who has a socket is found out from its port."""

from __future__ import annotations

import os
import socket
import sys

import pytest

from support.socket_owner import has_socket, inodes_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells it in this way")


@pytest.fixture
def pair():
    """Both ends of a connection."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        near = socket.create_connection(server.getsockname())
        far, _ = server.accept()
        with near, far:
            yield near, far


def test_the_process_at_this_end_has_it(pair):
    for each in pair:
        assert os.fstat(each.fileno()).st_ino in inodes_of(each.getsockname()[1])
    near, far = pair
    (inode,) = inodes_of(near.getsockname()[1])
    assert inode != os.fstat(far.fileno()).st_ino, "that is the port of its peer"
    assert has_socket(os.getpid(), {inode})
    assert not has_socket(os.getppid(), {inode})


def test_a_socket_that_was_closed_is_nobodys(pair):
    near, _ = pair
    port = near.getsockname()[1]
    inodes = inodes_of(port)
    near.close()
    assert not has_socket(os.getpid(), inodes)
    assert inodes_of(port) == set()


def test_a_process_that_has_ended_has_none():
    assert not has_socket(2**22 + 1, {1})
