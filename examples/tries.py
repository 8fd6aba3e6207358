"""An agent tries several changes at once: each on a fork of one sandbox, with the files that it has got so far. The first that passes wins.

    python examples/tries.py [IMAGE]

A fork is a sandbox of its own: what one change breaks no other sees. Forking a sandbox that runs takes a cgroup v2 of its own
(``dockless doctor``); where there is none, stop it first.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack

import dockless

PROGRAM = "echo $(($1 - $2))\n"
CHECK = 'test "$(sh add.sh 2 3)" = 5 && test "$(sh add.sh -1 1)" = 0\n'
CHANGES = ("rm add.sh", "echo echo 5 > add.sh", "sed -i s/-/+/ add.sh")
"""What a model might propose."""


def tried(fork: dockless.Sandbox[bytes], change: str) -> bool:
    """Whether the check passes after this change. Neither may take longer than ten seconds."""
    fork.shell(change, workdir="/work", timeout=10)
    return fork.shell("sh check.sh", workdir="/work", timeout=10).returncode == 0


def main(image: str = "busybox") -> None:
    with ExitStack() as opened:
        box = dockless.start(image, ["sleep", "infinity"], network="none", labels={"example": "tries"})
        opened.callback(box.rm, force=True)
        box.files.mkdir("/work")
        box.files.write_text("/work/add.sh", PROGRAM)
        box.files.write_text("/work/check.sh", CHECK)
        forks = box.fork(len(CHANGES))
        for fork in forks:
            opened.callback(fork.rm, force=True)
        for fork, change in zip(forks, CHANGES, strict=True):
            passed = tried(fork, change)
            print(f"{change}: {'passed' if passed else 'failed'}")
            if passed:
                print(fork.files.read_text("/work/add.sh"), end="")
                kept = fork.snapshot("tries:best")  # an image: what comes next starts from it
                print("kept as", kept.name)
                return


if __name__ == "__main__":
    main(*sys.argv[1:])
