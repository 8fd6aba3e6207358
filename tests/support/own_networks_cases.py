"""What is tried of an ordinary user's own networks on a host of its own, as user 1001 there: see support/pasta.py. Each function is a
case."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator

from support.pasta_cases import BIND, FAR4, FAR6, HOST4, HOST6, SCRIPT, pastas, programs, said_in, until

import dockless
from dockless import networks
from dockless.base import idmaps

HOLDER = "own_host import main"


@contextlib.contextmanager
def box(id: str, network: object, *echoes: str, **options: object) -> Iterator[dockless.Sandbox]:
    """A sandbox that answers, and from which one can ask."""
    made = dockless.start(["python3", SCRIPT, *echoes] if echoes else ["sleep", "1000"], id=id, network=network, mounts=[BIND], **options)
    try:
        for echo in echoes:
            until(lambda echo=echo: f":{int(echo.split('/')[2]):04X} " in said_in(made, "sh", "-c", "cat /proc/net/tcp /proc/net/tcp6"))
        yield made
    finally:
        made.inner.remove()


def asks(one: dockless.Sandbox, protocol: str, address: str, port: int) -> str:
    source = f"import sys; sys.path.insert(0, '/'); from far import ask; print(ask({protocol!r}, {address!r}, {port}))"
    return said_in(one, "python3", "-c", source).strip()


def names_of(one: dockless.Sandbox, name: str) -> list[str]:
    return sorted({line.split()[0] for line in said_in(one, "getent", "ahosts", name).splitlines()})


def nothing_is_left() -> None:
    until(lambda: not pastas() and not programs(HOLDER) and not programs("resolver import main"))


def two_meet() -> None:
    networks.create("lab")
    with box("one", "lab") as one, box("two", "lab:alias=db", "echo/0.0.0.0/8000", "echo/::/8001") as two:
        addresses = names_of(one, "db")
        assert len(addresses) == 2 and addresses == names_of(one, "two") == names_of(one, "two.lab")
        assert len(names_of(two, "one")) == 2
        own4, own6 = (networks.get("lab").sandboxes[0].addresses)
        for name in ("db", "two"):
            assert asks(one, "tcp", name, 8000) == f"tcp {own4}", asks(one, "tcp", name, 8000)
        four, six = sorted(addresses, key=lambda text: ":" in text)
        assert asks(one, "tcp", four, 8000) == f"tcp {own4}" and asks(one, "udp", four, 8000) == f"udp {own4}"
        assert asks(one, "tcp", six, 8001) == f"tcp {own6}"
        assert asks(one, "tcp", FAR4, 7000) == f"tcp {HOST4}" and asks(one, "tcp", FAR6, 7000) == f"tcp {HOST6}"
        assert asks(one, "udp", FAR4, 7000) == f"udp {HOST4}"
        assert [len(pastas()), len(programs(HOLDER)) > 0] == [1, True]
    nothing_is_left()


if __name__ == "__main__":
    assert os.geteuid() == 1001
    idmaps.find_program = "/usr/bin/{}".format  # as in pasta_cases
    globals()[sys.argv[1]]()
