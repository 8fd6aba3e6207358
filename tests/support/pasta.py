"""A host of its own for sandboxes of an ordinary user: network, mount and PID namespaces in which she is user 1001, and another host.

::

    here, user 1001                       far
      up0  203.0.113.2, 2001:db8:1::2 ──── 203.0.113.1, 2001:db8:1::1
      lo   172.31.0.1, 127.0.0.53 :53       198.51.100.7, 2001:db8:9::7: an echo on port 7000, and one that asks others on 7100;
                                             1.2.3.4, an echo, which is every name at 203.0.113.1, port 53

``python -m support.pasta_cases NAME`` is what runs here, or another module beside it. Root makes itself a /dev/net/tun; an ordinary user
has the host's.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
FAR = TESTS / "support" / "pasta_far.py"

_SETUP = r"""
set -e
if [ "$REAL_ROOT" = yes ]; then
  mount -t tmpfs tmpfs /dev/net
  mknod -m 666 /dev/net/tun c 10 200
fi
ip link set lo up
if [ "$NETWORK" = yes ]; then
  unshare --net sleep 600 & far=$!
  while [ "$(readlink /proc/$far/ns/net)" = "$(readlink /proc/self/ns/net)" ]; do sleep 0.01; done
  ip link add up0 type veth peer name far0 netns $far
  ip address add 203.0.113.2/24 dev up0
  ip address add 2001:db8:1::2/64 dev up0 nodad
  ip address add 172.31.0.1/32 dev lo
  ip link set up0 up
  in_far="nsenter --net=/proc/$far/ns/net"
  $in_far ip link set lo up
  $in_far ip address add 203.0.113.1/24 dev far0
  $in_far ip address add 2001:db8:1::1/64 dev far0 nodad
  $in_far ip address add 198.51.100.7/32 dev lo
  $in_far ip address add 1.2.3.4/32 dev lo
  $in_far ip address add 2001:db8:9::7/128 dev lo nodad
  $in_far ip link set far0 up
  ip route add default via 203.0.113.1
  ip -6 route add default via 2001:db8:1::1 dev up0
  echo "$RESOLV_CONF" >"$PLACE/resolv.conf"
  mount --bind "$PLACE/resolv.conf" /etc/resolv.conf
  while ip -6 address show dev up0 | grep -q tentative || $in_far ip -6 address show dev far0 | grep -q tentative; do sleep 0.05; done
  $in_far "$PYTHON" "$FAR" echo/198.51.100.7/7000 echo/2001:db8:9::7/7000 ask/198.51.100.7/7100 \
    echo/1.2.3.4/7000 names/203.0.113.1/53 &
  "$PYTHON" "$FAR" echo/127.0.0.1/9000 echo/::1/9000 echo/127.0.0.53/53 echo/172.31.0.1/9000 echo/203.0.113.2/9000 echo/::/9001 &
fi
exec unshare --user --map-user=1001 --map-group=1001 -- "$PYTHON" -m "$CASES" "$@"
"""


def run(home: Path, case: str, *, network: bool = True, resolv_conf: str = "nameserver 127.0.0.53", cases: str = "pasta_cases") -> None:
    """One case, in a host of its own. ``network``: it has one. ``cases``: the module with it."""
    root = os.geteuid() == 0
    command = [
        "unshare",
        *(() if root else ("--user", "--map-root-user")),
        "--net",
        "--mount",
        "--pid",
        "--fork",
        "--kill-child",
        "--mount-proc",
    ]
    words = {
        "REAL_ROOT": "yes" if root else "no", "NETWORK": "yes" if network else "no", "RESOLV_CONF": resolv_conf, "PLACE": str(home),
        "CASES": f"support.{cases}", "PYTHON": sys.executable, "FAR": str(FAR),
        "PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path]), "PYTHONSAFEPATH": "1", "DOCKLESS_HOME": str(home),
        "HOME": str(home), "PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
    }  # fmt: skip
    done = subprocess.run(
        [*command, "sh", "-c", _SETUP, "sh", case],
        env=words,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, f"{case}:\n{done.stdout}\n{done.stderr}"
