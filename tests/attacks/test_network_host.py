"""What a sandbox, another user or another job of the host can do to networks, with real sandboxes. Row A84 of the list of attacks."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest
from support.boxes import until
from support.networks import own_network, starting
from support.requires import requires

from dockless import networks
from dockless.errors import AddressTaken, Unsupported
from dockless.sandbox.network import leases, records

pytestmark = requires("root", "netns")

TO_THE_HOST_AT_ONCE = """
import socket, struct, sys
own, gateway = sys.argv[1:]
def sum16(b):
    b += bytes(len(b) % 2)
    s = sum(struct.unpack(f"!{len(b) // 2}H", b))
    s = (s >> 16) + (s & 0xFFFF)
    return ~(s + (s >> 16)) & 0xFFFF
out = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
out.bind(("eth0", 0))
mac = out.getsockname()[4]
router, everybody = socket.inet_pton(socket.AF_INET6, "fe80::dead"), socket.inet_pton(socket.AF_INET6, "ff02::1")
prefix = bytes([3, 4, 64, 0xC0]) + struct.pack("!III", 3600, 3600, 0) + socket.inet_pton(socket.AF_INET6, "2001:db8:bad::")
advert = struct.pack("!BBHBBHII", 134, 0, 0, 64, 0, 1800, 0, 0) + bytes([1, 1]) + mac + prefix
total = sum16(router + everybody + struct.pack("!II", len(advert), 58) + advert)
advert = advert[:2] + struct.pack("!H", total) + advert[4:]
for last in range(16):
    to = bytes([0x01, 0x80, 0xC2, 0, 0, last])
    out.send(to + mac + bytes([0x86, 0xDD]) + struct.pack("!IHBB", 6 << 28, len(advert), 58, 255) + router + everybody + advert)
    for sender in (own, "192.0.2.77"):
        said = struct.pack("!4H", 1234, 6668, 13, 0) + b"enter"
        head = struct.pack("!BBHHHBBH4s4s", 69, 0, 33, 1, 0, 64, 17, 0, socket.inet_aton(sender), socket.inet_aton(gateway))
        out.send(to + mac + bytes([8, 0]) + head[:10] + struct.pack("!H", sum16(head)) + head[12:] + said)
"""


@pytest.fixture(autouse=True)
def here(home):
    with own_network():
        yield


@pytest.fixture
def start():
    with starting() as start:
        yield start


def test_frames_that_a_bridge_hands_to_the_host_do_not_arrive(start):
    """Groups that no bridge passes on, 01:80:c2:00:00:0x, come to the host by the port itself, past the bridge. CVE-2020-13401"""
    for name in ("all", "default"):
        with open(f"/proc/sys/net/ipv6/conf/{name}/forwarding", "w") as setting:
            setting.write("0")  # or the host believes no router at all
    box = start("sleep", "1000", network="bridge", allow_out=[], cap_add=["NET_RAW"])
    (lease,) = leases.of(box.inner.directory)
    before = subprocess.run(["ip", "-6", "route"], capture_output=True, text=True, check=True).stdout
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as listening:
        listening.bind(("0.0.0.0", 6668))
        listening.settimeout(1)
        sent = box.exec("python3", "-c", TO_THE_HOST_AT_ONCE, lease.addresses[0], records.find("bridge").gateways[0])
        assert sent.exit_code == 0, sent.stderr
        with pytest.raises(TimeoutError):
            listening.recvfrom(100)
    after = subprocess.run(["ip", "-6", "route"], capture_output=True, text=True, check=True).stdout
    assert after == before and "bad" not in subprocess.run(["ip", "-6", "address"], capture_output=True, text=True, check=True).stdout


CALL = "import socket, sys; print(socket.create_connection((sys.argv[1], 80), 3).recv(9))"
SERVE = "import socket; s = socket.create_server(('', 80))\nwhile True: c = s.accept()[0]; c.sendall(b'mine'); c.close()"


def test_the_jobs_network_of_a_user_is_closed_to_other_users_processes(start):
    records.create("job-7", internal=True, named=False, owner=4321)
    box = start("python3", "-c", SERVE, network="job-7")
    (lease,) = leases.of(box.inner.directory)

    def called(uid: int) -> bool:
        command = ["setpriv", f"--reuid={uid}", "--clear-groups", sys.executable, "-I", "-S", "-c", CALL, lease.addresses[0]]
        return subprocess.run(command, capture_output=True, check=False, cwd="/").returncode == 0

    until(lambda: called(0), "it listens")
    assert called(4321) and not called(4322)


def test_a_rate_is_refused_to_what_could_lift_it(start):
    with pytest.raises(Unsupported, match="NET_ADMIN"):
        start("sleep", "1000", network="bridge", net_rate="1M", cap_add=["NET_ADMIN"])


def test_two_that_ask_for_one_address_at_once_do_not_both_get_it(start):
    networks.create("mine", subnets=["10.20.0.0/24", "fd00:20::/64"])
    code = """if True:
        import dockless, sys
        asked = "mine:ip6=fd00:20::9,mac=02:00:00:00:00:09"
        try:
            print(dockless.start(["sleep", "1000"], id=sys.argv[1], network=asked).id)
        except dockless.DocklessError as error:
            print(type(error).__name__)
    """
    both = [subprocess.Popen([sys.executable, "-c", code, f"box{n}"], stdout=subprocess.PIPE, text=True) for n in range(4)]
    said = sorted(one.communicate(timeout=60)[0].strip() for one in both)
    boxes = [name for name in said if name.startswith("box")]
    try:
        assert len(boxes) == 1 and said.count("AddressTaken") == 3, said
        with pytest.raises(AddressTaken, match="MAC address"):
            start("sleep", "1000", network="mine:mac=02:00:00:00:00:09")
    finally:
        for name in boxes:
            subprocess.run([sys.executable, "-m", "dockless", "rm", "-f", name], check=True, stdout=subprocess.DEVNULL)
