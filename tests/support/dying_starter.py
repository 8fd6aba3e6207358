"""Starts a sandbox on two networks and ends it again, and is killed at one of its requests to the kernel.

python -m support.dying_starter start|run N before|after      N: of its requests; one that there is not lets it live, and it says how many
"""

from __future__ import annotations

import os
import signal
import sys

import dockless
from dockless.sandbox.network import netlink

WANTED = {"network": ["mine", "bridge"], "publish": ["8080:80"]}


def dies_at(number: int, when: str) -> list[int]:
    """``when``: it sends the request of that number. What is returned counts them."""
    real, count = netlink._send, [0]

    def send(opened, messages):
        count[0] += 1
        if count[0] == number and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        real(opened, messages)
        if count[0] == number and when == "after":
            os.kill(os.getpid(), signal.SIGKILL)

    netlink._send = send
    return count


def main() -> int:
    how, number, when = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    count = dies_at(number, when)
    if how == "run":
        dockless.run(["true"], **WANTED)
    else:
        box = dockless.start(["sleep", "1000"], id="dying", **WANTED)
        box.kill()
        box.inner.remove()
    print(count[0])
    return 0


if __name__ == "__main__":
    sys.exit(main())
