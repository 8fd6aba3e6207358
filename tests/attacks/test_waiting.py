"""Who reaches a sandbox that waits for its program, and what he can make it run. Row A77 of the list of attacks."""

from __future__ import annotations

import fcntl
import os
import re
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from socket import send_fds

import pytest
from support.boxes import load, until
from support.requires import requires

from dockless.errors import LaunchFailed
from dockless.sandbox.plan.plan import HEADER_SIZE, Command, Op, Plan, decode, encode, in_memory
from dockless.sandbox.run.pool import Pool, WaitingSandbox
from dockless.sandbox.spec import Bind, Spec

pytestmark = requires("userns", "overlay")

MARK = Command(("/bin/touch",), ("touch", "/outside/mark"), ("PATH=/bin",))


@contextmanager
def waiting(where: Path) -> Iterator[WaitingSandbox]:
    (where / "outside").mkdir(mode=0o777)
    (where / "outside").chmod(0o777)
    spec = Spec(image=load(where, []), argv=("true",), mounts=(Bind(str(where / "outside"), "/outside"),))
    with Pool(spec, size=1) as pool:
        yield pool._waiting[0]


def sent(box: WaitingSandbox, raw: bytes, *, sealed: bool = True, streams: int = 3) -> tuple[int, ...]:
    """What the launcher says of this plan: kind, operation, errno."""
    assert box._owner is not None
    begin = in_memory(raw, sealed=sealed)
    null = os.open("/dev/null", os.O_RDWR)
    send_fds(box._owner, [b"t"], [begin, *[null] * streams])
    os.close(null)
    os.close(begin)
    return struct.unpack("<HHi", os.read(box.process._report_fd, 16)[:8])


def beginning(*ops: Op, command: Command = MARK) -> bytes:
    return encode(Plan(ops or (Op("CHDIR", a="/"),), command), take=True)


def test_what_is_sent_must_be_a_sealed_command_and_nothing_else(tmp_path: Path):
    """No operation of the plan can be taken away, replaced or added by who takes it, and what was checked cannot change."""
    ids, cap = Op("SET_IDS"), Op("CAPS", x=(1 << 41) - 1)
    whole = encode(Plan((Op("CLONE"), Op("SPAWN")), MARK))
    good = beginning()
    cases = {
        "open": (good, {"sealed": False}),
        "an operation more": (beginning(ids, Op("CHDIR", a="/")), {}),
        "another operation": (beginning(cap), {}),
        "none": (encode(Plan((Op("CHDIR", a="/"),), None), take=True), {}),
        "a whole plan": (whole, {}),
        "an errand": (encode(Plan((Op("CHDIR", a="/"),), None)), {}),
        "not marked": (encode(Plan((Op("CHDIR", a="/"),), MARK)), {}),
        "cut": (good[:-8], {}),
        "empty": (b"", {}),
        "offsets": (good[: HEADER_SIZE + 16] + b"\xff" * 8 + good[HEADER_SIZE + 24 :], {}),
        "two streams": (good, {"streams": 2}),
        "four streams": (good, {"streams": 4}),
        "no streams": (good, {"streams": 0}),
    }
    for number, (name, (raw, how)) in enumerate(cases.items()):
        (tmp_path / str(number)).mkdir()
        with waiting(tmp_path / str(number)) as box:
            kind, op, error = sent(box, raw, **how)
            assert kind == 2 and error in (1, 22) and box.plan.ops[op].name == "BARRIER", name
            assert list((tmp_path / str(number) / "outside").iterdir()) == [], name
    with waiting(tmp_path) as box:
        assert sent(box, good)[0] == 1, "and the plan that is right runs"
        until((tmp_path / "outside/mark").exists, "that its command has run")


def test_a_launcher_carries_out_no_such_plan_by_itself(tmp_path: Path):
    """CHDIR and EXEC alone: it would be the host's program, with nothing around it."""
    from dockless import native
    from dockless.sandbox.run import process

    raw = encode(Plan((Op("CHDIR", a="/"),), Command(("/bin/touch",), ("touch", str(tmp_path / "mark")), ())), take=True)
    assert native.validate(raw) == (True, -1)
    with pytest.raises(LaunchFailed, match="refused the plan"):
        process.start(decode(raw), raw, {0: 0, 1: 1, 2: 2})
    assert not (tmp_path / "mark").exists()


def test_a_barrier_is_in_init_alone_and_once():
    from dockless import native

    barrier = Op("BARRIER", 16)
    for ops in (
        (barrier, Op("CLONE"), Op("SPAWN")),
        (Op("CLONE"), Op("SPAWN"), barrier),
        (Op("CLONE"), barrier, barrier, Op("SPAWN")),
    ):
        assert not native.validate(encode(Plan(ops, MARK)))[0]
    assert native.validate(encode(Plan((Op("CLONE"), barrier, Op("SPAWN")), MARK)))[0]
    assert not native.validate(encode(Plan((barrier,), None)))[0]


def test_nobody_else_reaches_it(tmp_path: Path):
    """Its socket has no name; its memory, its descriptors and its namespaces are closed to others of the same user."""
    with waiting(tmp_path) as box:
        owner = box._owner
        assert owner is not None and owner.getsockname() == "" and owner.getpeername() == ""
        keeper = box.process.keeper_pid
        children = Path(f"/proc/{keeper}/task/{keeper}/children").read_text().split()
        assert len(children) == 1
        for pid in (keeper, int(children[0])):
            status = os.stat(f"/proc/{pid}/mem")
            assert status.st_uid == 0, "it is not dumpable: proc_pid(5)"
            if os.geteuid():
                for name in ("mem", "environ", "fd", "ns/mnt", "root"):
                    with pytest.raises(PermissionError):
                        os.listdir(f"/proc/{pid}/{name}") if name in ("fd", "root") else os.open(f"/proc/{pid}/{name}", os.O_RDONLY)
        assert (box.directory.stat().st_mode & 0o777, box.directory.stat().st_uid) == (0o700, os.geteuid())


def test_the_filter_is_the_last_thing_before_the_exec(tmp_path: Path):
    """What limits a program comes behind the wait, in the order of any start."""
    with waiting(tmp_path) as box:
        names = [op.name for op in box.plan.ops]
        behind = names[names.index("BARRIER") + 1 :]
        assert behind[-1] == "SECCOMP" and {"NO_NEW_PRIVS", "CAPS", "BOUNDING", "SET_IDS"} <= {*behind}
        init = Path(f"/proc/{box.process.keeper_pid}/task/{box.process.keeper_pid}/children").read_text().strip()
        assert "Seccomp:\t0" in Path(f"/proc/{init}/status").read_text()


def test_nothing_of_the_owner_is_open_in_it(tmp_path: Path):
    if os.geteuid():
        pytest.skip("only root sees what is open there")
    secret = os.open(tmp_path / "secret", os.O_RDWR | os.O_CREAT)
    os.set_inheritable(secret, True)
    with waiting(tmp_path) as box:
        init = Path(f"/proc/{box.process.keeper_pid}/task/{box.process.keeper_pid}/children").read_text().strip()
        for pid in (str(box.process.keeper_pid), init):
            links = [os.readlink(entry) for entry in Path(f"/proc/{pid}/fd").iterdir()]
            assert not [link for link in links if "secret" in link], links
        streams = {os.readlink(f"/proc/{init}/fd/{fd}") for fd in range(3)}
        assert streams == {"/dev/null"} or all(re.search("null", one) for one in streams)
    os.close(secret)


def test_seals_hold():
    fd = in_memory(b"plan", sealed=True)
    for write in (lambda: os.pwrite(fd, b"x", 0), lambda: os.ftruncate(fd, 1), lambda: os.ftruncate(fd, 99)):
        with pytest.raises(PermissionError):
            write()
    with pytest.raises(PermissionError):
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)
    os.close(fd)
