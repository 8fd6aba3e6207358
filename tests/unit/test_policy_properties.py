"""What holds for every state: no GPU twice, no quota broken, nobody starved, nothing idle without a reason."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from support.policy_states import play

from dockless.sched.policy import ranks
from dockless.sched.policy.places import Places
from dockless.sched.policy.policy import decide
from dockless.sched.policy.quotas import Quota, Quotas, counts_jobs
from dockless.sched.policy.state import HOST, Preemption, QueueState, RunningJob
from dockless.sched.policy.supplies import CORES, MEMORY, Supply
from dockless.sched.policy.waiting import WaitingJob, WaitingList, order

USERS = ("anna", "bob", "carl")
GROUP = {"anna": ("vision",), "bob": ("vision",), "carl": ()}


@st.composite
def hosts(draw):
    size = draw(st.integers(1, 8))
    gpus = tuple(f"g{i}" for i in range(size))
    links = {(a, b): draw(st.sampled_from((0.0, 1.0, 100.0))) for i, a in enumerate(gpus) for b in gpus[i + 1 :]}
    return gpus, draw(st.sampled_from(({}, links)))


LIMITS = st.sampled_from((0.0, 10.0, 50.0, 200.0))
PRIORITIES = st.integers(-1, 1)


@st.composite
def jobs(draw, gpus, *, limits=LIMITS, priorities=PRIORITIES, named=True):
    out = []
    for number in range(1, draw(st.integers(1, 14)) + 1):
        user = draw(st.sampled_from(USERS))
        devices = frozenset(draw(st.sets(st.sampled_from(gpus), max_size=2))) if named and draw(st.integers(0, 5)) == 0 else frozenset()
        count = len(devices) or draw(st.integers(0, len(gpus)))
        out.append(WaitingJob(number, user, count, GROUP[user], devices, draw(priorities), draw(limits)))
    return sorted(out, key=order)


NUMBER = st.one_of(st.none(), st.integers(0, 8))
QUOTA = st.builds(Quota, limit=NUMBER, jobs=NUMBER, cpu_jobs=NUMBER, guarantee=NUMBER, weight=st.one_of(st.none(), st.integers(1, 3)))
quotas = st.builds(
    Quotas,
    users=st.dictionaries(st.sampled_from(USERS), QUOTA, max_size=3),
    groups=st.dictionaries(st.just("vision"), QUOTA, max_size=1),
    default=QUOTA,
)


@st.composite
def states(draw):
    gpus, links = draw(hosts())
    waiting = draw(jobs(gpus))
    limits = draw(quotas)
    running, free = [], list(gpus)
    for number in range(draw(st.integers(0, 4))):
        count = draw(st.integers(0, len(free)))
        user = draw(st.sampled_from(USERS))
        taken, free = free[:count], free[count:]
        stopping = draw(st.integers(0, 4)) == 0
        ends = 5.0 if stopping else draw(st.sampled_from((None, 5.0, 60.0)))
        since = draw(st.sampled_from((-50.0, -20.0, -5.0)))
        running.append(RunningJob(100 + number, user, frozenset(taken), GROUP[user], ends, since, stopping))
    outside = frozenset(draw(st.sets(st.sampled_from(gpus), max_size=1)))
    usage = draw(st.one_of(st.none(), st.dictionaries(st.sampled_from([f"user {user}" for user in USERS]), st.floats(0, 5000))))
    preemption = Preemption(draw(st.sampled_from((0.0, 10.0))), 30.0)
    return QueueState(gpus, waiting, running, limits, links, outside, cpu_jobs=draw(st.integers(0, 4)), usage=usage, preemption=preemption)


def usage(state, starts):
    """What is used of each pool after ``starts``, and the pools that these drew on."""
    by_id = {job.id: job for job in state.waiting}
    used, drawn = Counter(), {}
    held = [(job, len(job.gpus)) for job in state.running] + [(by_id[start.job], len(start.gpus)) for start in starts]
    for job, count in held:
        pools = state.quotas.pools(job.user, job.groups, gpus=count > 0, job=job.id > 0)
        for pool in pools:
            used[pool] += 1 if counts_jobs(pool) else count
        if isinstance(job, WaitingJob):
            drawn |= pools
    return used, drawn


@settings(max_examples=400, deadline=None)
@given(states())
def test_grants_are_sound(state):
    decision = decide(state, 0.0)
    by_id = {job.id: job for job in state.waiting}
    taken = [g for job in state.running for g in job.gpus] + [g for start in decision.starts for g in start.gpus]
    assert len(taken) == len(set(taken)) <= len(state.gpus)
    assert len({start.job for start in decision.starts}) == len(decision.starts)
    for start in decision.starts:
        job = by_id[start.job]
        assert len(start.gpus) == job.gpus
        assert not set(start.gpus) & state.unusable
        assert not job.devices or set(start.gpus) == job.devices
    used, limits = usage(state, decision.starts)
    assert all(used[pool] <= limit for pool, limit in limits.items())
    cpu = sum(1 for job in state.running if not job.gpus)
    assert sum(1 for s in decision.starts if not s.gpus) <= max(0, state.cpu_jobs - cpu)


@settings(max_examples=300, deadline=None)
@given(states())
def test_deciding_is_pure_and_has_a_reason_for_all(state):
    before = (list(state.waiting), list(state.running))
    one, two = decide(state, 0.0), decide(state, 0.0)
    assert (one.starts, one.preempts, one.again) == (two.starts, two.preempts, two.again)
    assert before == (list(state.waiting), list(state.running))
    going = {start.job for start in one.starts}
    for job in state.waiting:
        if job.id not in going:
            reason = one.reason(job)
            assert reason.text and reason.code in {"quota", "resources", "reserved", "jobs", "order", "guarantee"}


@settings(max_examples=300, deadline=None)
@given(states())
def test_first_come_first_served_among_equals(state):
    decision = decide(state, 0.0)
    going = {start.job for start in decision.starts}
    for i, earlier in enumerate(state.waiting):
        for later in state.waiting[i + 1 :]:
            if (earlier.kind, earlier.time_limit) == (later.kind, later.time_limit) and later.id in going:
                assert earlier.id in going


@settings(max_examples=400, deadline=None)
@given(states())
def test_only_what_is_borrowed_is_taken_and_only_for_a_guarantee(state):
    decision = decide(state, 0.0)
    jobs, running = {job.id: job for job in state.waiting}, {job.id: job for job in state.running}
    starts = {start.job for start in decision.starts}
    assert len({one.job for one in decision.preempts}) == len(decision.preempts)

    def holds(pool, jobs):
        return sum(len(job.gpus) for job in jobs if pool in state.quotas.guarantees(job.user, job.groups))

    for one in decision.preempts:
        taken, by = running[one.job], jobs[one.by]
        assert by.id not in starts and not taken.stopping and taken.since <= -state.preemption.after
        older = [job for job in state.running if (job.since, job.id) <= (taken.since, taken.id)]
        for pool, (_, count) in state.quotas.guarantees(taken.user, taken.groups).items():
            assert holds(pool, older) > count
        guarantees = state.quotas.guarantees(by.user, by.groups)
        assert any(holds(pool, state.running) + by.gpus <= count for pool, (_, count) in guarantees.items())


@settings(max_examples=300, deadline=None)
@given(states())
def test_nothing_idle_without_a_reservation(state):
    decision = decide(state, 0.0)
    if decision.reservations or decision._promised:
        return
    going = {start.job for start in decision.starts}
    after, _ = usage(state, decision.starts)
    free = [g for g in state.gpus if g not in state.unusable]
    for holder in (*(j.gpus for j in state.running), *(s.gpus for s in decision.starts)):
        free = [g for g in free if g not in holder]
    for job in state.waiting:
        if job.id in going or not job.gpus:
            continue
        fits = job.devices <= set(free) if job.devices else job.gpus <= len(free)
        pools = state.quotas.pools(job.user, job.groups, gpus=True)
        assert not fits or any(after[pool] + (1 if counts_jobs(pool) else job.gpus) > limit for pool, limit in pools.items())


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_everybody_comes_to_an_end(data):
    """With quotas, a fair order and guarantees: who is told to end runs again later, and whoever could ever start has run."""
    gpus, links = data.draw(hosts())
    waiting = data.draw(jobs(gpus))
    number = st.one_of(st.none(), st.integers(len(gpus), 9))
    quota = st.builds(Quota, number, st.one_of(st.none(), st.integers(1, 4)), guarantee=st.one_of(st.none(), st.integers(0, len(gpus))))
    quotas = Quotas(data.draw(st.dictionaries(st.sampled_from(USERS), quota)), data.draw(st.dictionaries(st.just("vision"), quota)))
    usage = data.draw(st.sampled_from((None, {}, {"user anna": 500.0})))
    state = QueueState(gpus, waiting, (), quotas, links, cpu_jobs=2, usage=usage, preemption=Preemption(5.0, 1.0))
    length = {job.id: data.draw(st.integers(1, 20)) for job in waiting}
    ended = set()
    for now, running in play(state, length):
        held = [gpu for job in running for gpu in job.gpus]
        assert len(held) == len(set(held)), now
        ended |= {job.id for job in running}
    assert ended == set(length)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_newcomers_keep_nobody_from_starting(data):
    """Whoever waits starts in a time that follows from those before, however many come later: first come, or in the fair order, where
    another who has had less comes first until she has had as much."""
    gpus, links = data.draw(hosts())
    first = data.draw(jobs(gpus, priorities=st.just(0)))
    had = data.draw(st.sampled_from((None, {}, {"user anna": 50.0})))
    chance = data.draw(st.randoms(use_true_random=False))
    state = QueueState(gpus, first, links=links, cpu_jobs=2, usage=None if had is None else dict(had))
    longest = 10
    length = {job.id: chance.randint(1, longest) for job in first}
    within = len(USERS) * len(first) * 2 * longest
    if had is not None:  # each start counts ENTRY of every GPU at once, and those that have had less may have as much before
        within = len(USERS) * (within + ranks.ENTRY)
    waiting, running, left, now = {job.id: job for job in first}, {}, {job.id for job in first}, 0.0
    while left:
        assert now <= within, (now, sorted(left))
        for _ in range(chance.randint(1, 3)):
            user, number = chance.choice(USERS), len(length) + 1
            narrow = chance.choice((0, 1, 1, 1))  # as fits beside a wide one again and again
            waiting[number] = WaitingJob(number, user, narrow, GROUP[user], time_limit=chance.choice((0.0, 10.0)))
            length[number] = chance.randint(1, longest)
        decision = decide(replace(state, waiting=sorted(waiting.values(), key=order), running=[job for job, _ in running.values()]), now)
        for start in decision.starts:
            job = waiting.pop(start.job)
            ends = now + job.time_limit if job.time_limit else None
            there = RunningJob(job.id, job.user, frozenset(start.gpus), job.groups, ends, now)
            running[job.id] = there, now + min(length[job.id], job.time_limit or longest)
            left.discard(job.id)
        then, now = now, min(end for _, end in running.values())
        for number, (job, end) in list(running.items()):
            if state.usage is not None:
                state.usage[f"user {job.user}"] = state.usage.get(f"user {job.user}", 0.0) + len(job.gpus) * (now - then)
            if end <= now:
                del running[number]


def simulate(state, length):
    """Run the queue to its end; yields (now, decision) per pass. ``length(job)``: how long it really runs."""
    now, waiting, running = 0.0, list(state.waiting), []
    by_id = {job.id: job for job in waiting}
    while waiting or running:
        decision = decide(replace(state, waiting=waiting, running=[r for r, _ in running]), now)
        yield now, decision, waiting
        for start in decision.starts:
            job = by_id[start.job]
            ends = now + job.time_limit if job.time_limit else None
            there = RunningJob(job.id, job.user, frozenset(start.gpus), job.groups, ends, cores=job.cores, memory=job.memory)
            running.append((there, now + length(job)))
            waiting = [w for w in waiting if w.id != job.id]
        if not running:
            assert not waiting, "a host with nothing running must start something"
            return
        now = min(end for _, end in running)
        running = [(r, end) for r, end in running if end > now]


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_the_head_never_slips(data):
    """Once told a start time, the first of those that want the same starts by then, whoever backfills; early ends only make it earlier.
    With priorities, jobs that name their GPUs, which are promised nothing, and cores and memory.

    It does not hold with quotas: others of its user backfill within the quota that it needs, and while that is short the GPUs go to others.
    Nor where jobs without GPUs ask for cores: of these it is a user's turn who has fewest running. Hence neither is drawn here."""
    gpus, links = data.draw(hosts())
    waiting = data.draw(jobs(gpus, limits=st.sampled_from((10.0, 50.0, 200.0))))
    supplies = data.draw(st.sampled_from(({}, {CORES: Supply(4000), MEMORY: Supply(4)})))
    if supplies:
        needs = st.sampled_from((0, 0, 1, 2, 4))
        waiting = [replace(job, cores=1000 * data.draw(needs), memory=data.draw(needs)) for job in waiting if job.gpus]
    early = data.draw(st.sampled_from((1.0, 0.5, 0.1)))
    state = QueueState(gpus, waiting, links=links, cpu_jobs=2, supplies=supplies)
    promised: dict[int, float] = {}
    for now, decision, left in simulate(state, lambda job: job.time_limit * (early if job.id % 2 else 1.0)):
        going = {start.job for start in decision.starts}
        assert all(now <= promised.get(job.id, now) + 1e-9 for job in left)
        still = [job for job in left if job.id not in going]
        places = Places(replace(state, waiting=WaitingList(still)), decision.one_queue)
        for job in still:
            reason = decision.reason(job)
            if reason.latest and places.place(job)[0] == 1:
                assert not job.devices and reason.starts_at <= promised.get(job.id, reason.starts_at) + 1e-9
                promised.setdefault(job.id, reason.starts_at)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_bounded_bypass(data):
    """Even with no time limit known, at most as many later jobs pass the head as fit beside it in one go."""
    gpus, links = data.draw(hosts())
    waiting = data.draw(jobs(gpus, limits=st.just(0.0), priorities=st.just(0), named=False))
    lengths = data.draw(st.lists(st.integers(1, 50), min_size=len(waiting), max_size=len(waiting)))
    limits = data.draw(st.sampled_from((Quotas(), Quotas(users={u: Quota(len(gpus)) for u in USERS}))))
    state = QueueState(gpus, waiting, quotas=limits, links=links)
    need = {job.id: job.gpus for job in waiting}
    finished = set()
    for _, decision, left in simulate(state, lambda job: float(lengths[job.id - 1])):
        head = next((r for r in decision.reservations if r.pool == HOST), None)
        if head is not None:
            # What passed beside the head in this pass never amounts to more than what is over once the head runs.
            passed = sum(need[s.job] for s in decision.starts if s.job > head.job)
            assert passed <= len(gpus) - need[head.job]
        finished |= {start.job for start in decision.starts}
        assert len(left) >= len(decision.starts)
    assert finished == set(need)
