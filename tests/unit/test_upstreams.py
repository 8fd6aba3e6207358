"""The order in which the name servers of this host are asked."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from dockless.sandbox.network import upstreams
from dockless.sandbox.network.upstreams import NameServers

FIRST, SECOND = ("192.0.2.1", 53), ("192.0.2.2", 53)
ONE, OTHER = bytes(4), b"\1\1\1\1"


@pytest.fixture
def servers(tmp_path: Path) -> NameServers:
    (tmp_path / "resolv.conf").write_text("nameserver 192.0.2.1\nnameserver 192.0.2.2\n")
    return NameServers(str(tmp_path / "resolv.conf"))


def test_silence_counts_for_who_asked_alone(servers):
    servers.failed(FIRST, ONE)
    assert servers.in_order(ONE) == [SECOND, FIRST]
    assert servers.in_order(OTHER) == [FIRST, SECOND]
    servers.failed(SECOND, ONE)
    assert servers.in_order(ONE) == [FIRST, SECOND]  # all are asked, whatever has failed


def test_one_that_cannot_be_reached_comes_last_for_everybody(servers):
    servers.failed(FIRST, ONE, OSError(errno.ECONNREFUSED, ""))
    assert servers.in_order(ONE) == servers.in_order(OTHER) == [SECOND, FIRST]


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ECONNRESET])
def test_other_errors_say_nothing_of_the_server(servers, number):
    servers.failed(FIRST, ONE, OSError(number, ""))
    assert servers.in_order(OTHER) == [FIRST, SECOND]


def test_what_is_over_is_not_kept(servers, monkeypatch):
    monkeypatch.setattr(upstreams, "_AVOIDED", 0.0)
    for number in range(1000):
        servers.failed(FIRST, number.to_bytes(4, "big"))
    assert len(servers._failed) < 2
