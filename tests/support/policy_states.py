"""States of a queue for GPUs of several classes, as chance has them."""

from __future__ import annotations

import random

from dockless.sched.policy.policy import QueueState, RunningJob, WaitingJob, order
from dockless.sched.policy.quotas import Quota, Quotas

GPUS = ("g0", "g1", "g2", "g3", "s0", "s1", "s2", "t0")
SLICES = frozenset(("s0", "s1", "s2", "t0"))
CLASSES = {
    "1g.10gb": ("s0", "s1", "s2"),
    "3g.40gb": ("t0",),
    "memory=10G": ("s0", "s1", "s2", "t0", "g0", "g1", "g2", "g3"),
    "H100": ("g0", "g1"),
    "A100": ("g2", "g3"),
    "whole": ("g0", "g1", "g2", "g3"),
    "none": (),
}


def state(dice: random.Random) -> QueueState:
    gpus = tuple(dice.sample(GPUS, dice.randint(2, len(GPUS))))
    classes = {name: tuple(gpu for gpu in of if gpu in gpus) for name, of in CLASSES.items()}
    users = dice.sample(("anna", "bob", "carl"), dice.randint(1, 3))
    group = {"anna": ("vision",), "bob": ("vision",), "carl": ()}
    names = [*dice.sample(sorted(CLASSES), dice.randint(1, 3)), ""]
    lengths = [0.0, *(dice.choice((1.0, 5.0, 10.0, 50.0, dice.random() * 100)) for _ in range(4))]
    waiting = []
    for number in range(1, dice.choice((6, 15, 30))):
        user, name = dice.choice(users), dice.choice(names)
        devices = frozenset(dice.sample(gpus, 1)) if not name and dice.random() < 0.2 else frozenset()
        count = len(devices) or (1 if name == "memory=10G" else dice.randint(0 if not name else 1, 4))
        limit, priority = dice.choice(lengths), dice.choice((0, 0, 0, 1, -1))
        waiting.append(WaitingJob(number, user, count, group[user], devices, priority, limit, -100 * dice.random(), name))
    free, running = dice.sample(gpus, len(gpus)), []
    for number in range(dice.randint(0, 4)):
        count, user = dice.randint(0, min(len(free), 3)), dice.choice(users)
        running.append(RunningJob(100 + number, user, frozenset(free[:count]), group[user], dice.choice((None, 3.0, 7.0, 30.0, 60.0))))
        free = free[count:]

    def quota() -> Quota:
        of = {name: dice.randint(0, 3) for name in CLASSES if dice.random() < 0.2}
        guarantee = dice.choice((None, 1, 3)) if guaranteed else None
        return Quota(dice.choice((None, None, dice.randint(0, 8))), classes=of, guarantee=guarantee)

    guaranteed = dice.random() < 0.2
    quotas = Quotas({user: quota() for user in users if dice.random() < 0.5}, {"vision": quota()} if dice.random() < 0.4 else {})
    usage = {f"user {user}": dice.choice((0.0, 600.0)) for user in users} if dice.random() < 0.3 else None
    outside = frozenset(free[:1]) if dice.random() < 0.15 else frozenset()
    return QueueState(gpus, sorted(waiting, key=order), running, quotas, {}, outside, SLICES.intersection(gpus), 2, usage, classes=classes)
