"""The guard of `conftest.py`: tests reach this machine and no other."""

from __future__ import annotations

import os
import socket

import pytest


@pytest.mark.parametrize("address", [("192.0.2.1", 80), ("example.org", 443)])
def test_other_machines_are_refused(address: tuple[str, int]) -> None:
    with socket.socket() as sock, pytest.raises(pytest.fail.Exception, match=address[0]):
        sock.connect(address)


def test_this_machine_is_reached() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket() as sock:
        sock.connect(server.getsockname())
        assert sock.getpeername() == server.getsockname()


def test_the_hub_library_is_offline() -> None:
    assert os.environ["HF_HUB_OFFLINE"] == "1"
