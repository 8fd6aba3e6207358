"""States of a queue for GPUs of several classes, as chance has them."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import replace

from dockless.sched.policy.policy import QueueState, RunningJob, WaitingJob, decide, order
from dockless.sched.policy.quotas import ClassQuota, Quota, Quotas
from dockless.sched.policy.state import Preemption

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
        of = {name: ClassQuota(dice.randint(0, 3)) for name in CLASSES if dice.random() < 0.2}
        guarantee = dice.choice((None, 1, 3)) if guaranteed else None
        return Quota(dice.choice((None, None, dice.randint(0, 8))), classes=of, guarantee=guarantee)

    guaranteed = dice.random() < 0.2
    quotas = Quotas({user: quota() for user in users if dice.random() < 0.5}, {"vision": quota()} if dice.random() < 0.4 else {})
    usage = {f"user {user}": dice.choice((0.0, 600.0)) for user in users} if dice.random() < 0.3 else None
    outside = frozenset(free[:1]) if dice.random() < 0.15 else frozenset()
    return QueueState(gpus, sorted(waiting, key=order), running, quotas, {}, outside, SLICES.intersection(gpus), 2, usage, classes=classes)


def guaranteed(given: QueueState, dice: random.Random) -> QueueState:
    """The same where GPUs of classes are guaranteed, and weighted, beside or without guarantees of any; jobs run for some time."""
    often = dice.choice((0.3, 0.6))

    def quota(had: Quota) -> Quota:
        classes = dict(had.classes)
        for name in CLASSES:
            if dice.random() < often:
                limit = classes[name].limit if name in classes else None
                classes[name] = ClassQuota(limit, dice.choice((None, 0, 1, 1, 2, 3)), dice.choice((None, 1, 4)))
        return replace(had, classes=classes, guarantee=dice.choice((None, None, 1, 2, 4)), weight=dice.choice((None, 2)))

    users = {user: quota(given.quotas.users.get(user, Quota())) for user in ("anna", "bob", "carl") if dice.random() < 0.7}
    groups = {"vision": quota(given.quotas.groups.get("vision", Quota()))} if dice.random() < 0.5 else {}
    running = []
    for job in given.running:
        since, stops = dice.choice((-50.0, -20.0, -5.0, -1.0)), dice.random() < 0.15
        running.append(replace(job, since=since, stopping=stops, ends=5.0 if stops else job.ends))
    usage = {f"user {user}": dice.choice((0.0, 600.0, 2000.0)) for user in ("anna", "bob", "carl")} if dice.random() < 0.5 else None
    after = Preemption(dice.choice((0.0, 10.0)), 30.0)
    return replace(given, quotas=Quotas(users, groups), running=running, usage=usage, preemption=after)


def play(state: QueueState, length: Mapping[int, float]) -> Iterator[tuple[float, list[RunningJob]]]:
    """The queue as the daemon has it, to its end: yields the moment and what runs. Who is preempted takes its grace, and waits again."""
    now, waiting = 0.0, {job.id: job for job in state.waiting}
    running: dict[int, tuple[RunningJob, float]] = {}
    for _ in range(1000):
        decision = decide(replace(state, waiting=sorted(waiting.values(), key=order), running=[job for job, _ in running.values()]), now)
        for start in decision.starts:
            job = waiting.pop(start.job)
            ends = now + job.time_limit if job.time_limit else None
            there = RunningJob(job.id, job.user, frozenset(start.gpus), job.groups, ends, now)
            running[job.id] = there, now + min(length[job.id], job.time_limit or 1000)
        for one in decision.preempts:
            job, end = running[one.job]
            until = now + state.preemption.grace
            running[one.job] = replace(job, stopping=True, ends=until), until
        yield now, [job for job, _ in running.values()]
        if not running:
            assert not waiting, "a host with nothing running must start something"
            return
        moments = [end for _, end in running.values()]
        now = min([*moments, decision.again] if decision.again is not None else moments)
        for number, (job, end) in list(running.items()):
            if end <= now:
                del running[number]
                if job.stopping:
                    waiting[number] = next(one for one in state.waiting if one.id == number)
    raise AssertionError("it does not come to an end")
