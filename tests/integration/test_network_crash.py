"""kill -9 of who starts a sandbox, at each of its requests to the kernel: nothing is left after the next reconcile, no address is given
twice, and those who live go on."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.boxes import until
from support.dying_starter import WANTED
from support.networks import links, own_network
from support.requires import requires

import dockless
from dockless import networks
from dockless.sandbox.network import leases
from dockless.sandbox.network.host import Host
from dockless.sandbox.run import reconcile
from dockless.sandbox.run.networks import of as networks_of

pytestmark = requires("root", "netns")
TESTS = Path(__file__).resolve().parent.parent
MOST = 100


def dying(how: str, number: int, when: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "support.dying_starter", how, str(number), when]
    found = os.environ | {"PYTHONPATH": str(TESTS)}
    return subprocess.run(command, env=found, capture_output=True, text=True, timeout=60, check=False)


def living() -> list[leases.Lease]:
    return [lease for name in ("mine", "bridge") for lease in leases.living(Host(), name)]


def ends() -> set[str]:
    return {name for name in links() if name.startswith("dv")}


@pytest.mark.parametrize("how", ["run", "start"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_at_each_request(home, monkeypatch, how, when):
    monkeypatch.setattr(reconcile, "_SETTLED", -1.0)
    with own_network():
        networks.create("mine", subnets=["10.20.0.0/28"])
        witness = dockless.start(["sleep", "1000"], id="witness", network=["mine", "bridge"])
        try:
            kept = living()
            assert len(kept) == 2
            for number in range(1, MOST):
                ended = dying(how, number, when)
                if ended.returncode == 0:
                    assert number > int(ended.stdout) > 5
                    break
                assert ended.returncode == -9, ended.stderr
                until(lambda: len(ends()) == 2 or how == "start", "its links are gone")
                # Another one comes at once, before anybody has looked after what the dead one left.
                other = dockless.start(["sleep", "1000"], id="other", **(WANTED if how == "run" else {"network": WANTED["network"]}))
                try:
                    given = [text for lease in living() for text in lease.addresses]
                    assert len(given) == len(set(given))
                    inside = other.exec("ip", "-o", "address").stdout.decode()
                    assert all(text in inside for lease in networks_of(other.inner) for text in lease.addresses)
                finally:
                    other.inner.remove()
                for box in dockless.list():
                    if box.id == "dying":
                        box.inner.remove()
                until(lambda: len(ends()) == 2, "its links are gone")
                reconcile.reconcile()
                assert [lease for name in ("mine", "bridge") for lease in leases.read(name)] == kept
                assert living() == kept
            else:
                pytest.fail("it never lived")
        finally:
            witness.inner.remove()
