"""Every test in this repository runs without a network and in a fixed environment."""

from __future__ import annotations

import ipaddress
import os
import socket

import pytest

# Read when the libraries are imported, so it is set before any test module is.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"


def _is_local(family: int, address: object) -> bool:
    if family not in (socket.AF_INET, socket.AF_INET6) or not isinstance(address, tuple):
        return True
    host = str(address[0])
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail a test that connects anywhere but to this machine."""
    connect = socket.socket.connect

    def guarded(self: socket.socket, address: object) -> None:
        if not _is_local(self.family, address):
            pytest.fail(f"a test tried to connect to {address!r}", pytrace=True)
        connect(self, address)  # type: ignore[arg-type]

    monkeypatch.setattr(socket.socket, "connect", guarded)
