"""Plans for the tests of the validator and the launcher: good ones, and mutations of them by a seed."""

from __future__ import annotations

import random
import struct
from functools import cache

from dockless.base.idmaps import IdMap, Range
from dockless.sandbox.accounts import Account
from dockless.sandbox.compile import compile_plan
from dockless.sandbox.features import Features
from dockless.sandbox.plan.plan import HEADER_SIZE, Command, Op, Plan, encode
from dockless.sandbox.resolved import HostEntry, Resolved
from dockless.sandbox.spec import Rlimit, Spec

OP_SIZE = 32
RUN = Command(("/bin/true",), ("true",), ("A=1", "B=2"))


@cache
def good() -> dict[str, bytes]:
    """Encoded plans that every launcher accepts."""
    errand = Plan((Op("OPEN", slot_out=16, a="/", x=0x200000), Op("CLOSE", 16)), None)
    small = Plan((Op("SETSID"), Op("CLONE"), Op("SPAWN")), RUN)
    idmap = IdMap((Range(0, 100000, 65536),), (Range(0, 100000, 65536),))
    spec = Spec(argv=("true",), rlimits=(Rlimit("nofile", 10, 20),), cpus=(0,), umask=0o22, timeout=1.5, grace=0.5)
    whole = compile_plan(
        Resolved(
            spec=spec,
            features=Features("6.18.0", "x86_64"),
            account=Account(0, 0, (1, 2)),
            command=Command(("/bin/true", "/usr/bin/true"), ("true", "x" * 300), tuple(f"N{i}=v" for i in range(20))),
            host_entries=(HostEntry("/usr"), HostEntry("/bin", "usr/bin")),
            idmap=idmap,
            capabilities=0xFF,
            seccomp=struct.pack("<HBBI", 6, 0, 0, 0x7FFF0000),
            files=(("/etc/hostname", "x\n"),),
            has_cgroup=True,
        )
    )
    return {
        "errand": encode(errand),
        "small": encode(small),
        "small-times": encode(small, times=True),
        "small-detached": encode(small, detached=True),
        "whole": encode(whole),
        "whole-times": encode(whole, times=True),
    }


def mutated(raw: bytes, seed: int) -> bytes:
    """One to four small changes: interesting numbers in header and operations, flipped bits, cut or longer ends."""
    rng = random.Random(seed)
    blob = bytearray(raw)
    interesting = (
        0,
        1,
        2,
        3,
        4,
        7,
        8,
        16,
        31,
        64,
        127,
        128,
        255,
        960,
        0x7FFF,
        0xFFFF,
        0x7FFFFFFF,
        0x80000000,
        0xFFFFFFFF,
        len(raw),
        len(raw) - 1,
        HEADER_SIZE,
    )
    for _ in range(rng.randint(1, 4)):
        kind = rng.random()
        if kind < 0.35 and len(blob) >= HEADER_SIZE:
            struct.pack_into("<I", blob, rng.randrange(0, 96, 4), rng.choice(interesting) & 0xFFFFFFFF)
        elif kind < 0.7 and len(blob) > HEADER_SIZE + OP_SIZE:
            operations = max(1, min(400, (len(blob) - HEADER_SIZE) // OP_SIZE))
            at = HEADER_SIZE + OP_SIZE * rng.randrange(operations) + rng.randrange(0, OP_SIZE, 2)
            if at + 4 <= len(blob):
                wide = rng.random() < 0.7
                struct.pack_into("<I" if wide else "<H", blob, at, rng.choice(interesting) & (0xFFFFFFFF if wide else 0xFFFF))
        elif kind < 0.9 and blob:
            blob[rng.randrange(len(blob))] ^= 1 << rng.randrange(8)
        elif kind < 0.95:
            del blob[rng.randrange(len(blob) + 1) :]
        else:
            blob += bytes(rng.randrange(1, 64))
        if rng.random() < 0.5 and len(blob) >= 12:
            struct.pack_into("<I", blob, 8, len(blob))  # the size is right again, so that the rest is looked at
    return bytes(blob)
