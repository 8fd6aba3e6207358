"""An ordinary user's sandbox by pasta, for ``through.py``: three ports of the host from PORT on lead to ``netpeer``; ends with its standard
input.

    network_user.py NETPEER PORT
"""

from __future__ import annotations

import os
import sys
import tempfile


def main() -> int:
    program, port = sys.argv[1], int(sys.argv[2])
    with tempfile.TemporaryDirectory(dir="/var/tmp") as home:
        os.environ["DOCKLESS_HOME"] = f"{home}/dockless"
        import dockless
        from dockless.base import idmaps

        idmaps.find_program = "/usr/bin/{}".format  # root has no number in this user namespace, so nothing belongs to it
        box = dockless.start(["/netpeer"], mounts=[f"{program}:/netpeer:ro"], network="bridge", publish=[f"{port}-{port + 2}:5001-5003"])
        print("ready", flush=True)
        sys.stdin.read()
        box.inner.remove()
    return 0


if __name__ == "__main__":
    sys.exit(main())
