"""What is queued of a job, and what is refused at once: by rights, by quotas, by what the host can do."""

from __future__ import annotations

import contextlib
import os
from types import SimpleNamespace

import pytest
from support.quotas import limits

from dockless import cgroups
from dockless.cgroups import IoMax, Limits
from dockless.errors import BadInput, LimitUnavailable, NotPermitted, Refused, UnknownImage, UnknownNetwork, Unsupported
from dockless.sandbox.network import records
from dockless.sandbox.network.model import Endpoint, Port
from dockless.sandbox.spec import HostDevice, Spec
from dockless.sched.callers import Caller, Callers
from dockless.sched.config import Config
from dockless.sched.engine.admission.admission import Admission
from dockless.sched.engine.admission.gang_admission import check_network, check_networks
from dockless.sched.engine.admission.per_user import PerUser
from dockless.sched.engine.lifecycle import gang_networks
from dockless.sched.jobs import JobSpec
from dockless.sched.policy.quotas import Quota
from dockless.sched.store.queue import NewJob

ROOT = Caller(0, "root", frozenset(), True)
ANN = Caller(1001, "ann", frozenset({"vision", "students"}), False)
BOSS = Caller(1002, "boss", frozenset(), True)


def desk(config: Config | None = None, check_image=lambda reference: None) -> Admission:
    config = config or Config()
    gpus = SimpleNamespace(
        resolve=lambda text: (2, ("GPU-a", "GPU-b")) if text.startswith("device") else (int(text or 0), ()), class_of=lambda text: ""
    )
    return Admission(config, gpus, Callers(config), check_image)


@pytest.fixture
def as_root(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 0)


def test_what_is_queued():
    images = []
    config = Config(limits(groups={"vision": 5, "other": 1, "students": 9}))
    spec = Spec(argv=("a b", "\udcff"), entrypoint=("env",), image="img", env=(("A", "1"),))
    job = JobSpec(spec, gpus="device=0,1", priority=-3, time_limit=4.5, name="n", group="vision", on_reboot="requeue")
    assert desk(config, images.append).admit(ANN, job) == NewJob(
        uid=1001, user="ann", name="n", group="vision", image="img", command=r"env 'a b' '\xff'", gpus="device=0,1", gpu_count=2,
        wanted=("GPU-a", "GPU-b"), quota_groups=("vision", "students"), priority=-3, time_limit=4.5, on_reboot="requeue",
        spec=r'{"spec":{"argv":["a b","\udcff"],"image":"img","entrypoint":["env"],"env":[["A","1"]]},'
        '"gpus":"device=0,1","priority":-3,"time_limit":4.5,"name":"n","group":"vision","on_reboot":"requeue"}',
    )  # fmt: skip
    assert images == ["img"]


def test_an_image_that_is_not_here():
    def check_image(reference):
        raise UnknownImage(f"no {reference}")

    with pytest.raises(UnknownImage, match="no host"):
        desk(check_image=check_image).admit(ANN, JobSpec())


@pytest.mark.parametrize("spec", [Spec(cdi=("example.com/gpu=0",)), Spec(devices=(HostDevice("/dev/fuse", "/dev/fuse"),))])
def test_devices_that_are_no_gpus_are_roots(spec):
    for caller in (ANN, BOSS):
        with pytest.raises(NotPermitted, match=r"device (example.com/gpu=0|/dev/fuse), which is not leased, is for root"):
            desk().admit(caller, JobSpec(spec))
    assert desk().admit(ROOT, JobSpec(spec))


def test_no_jobs_without_gpus_is_no_word_about_those_with():
    of = desk(Config(limits({"ann": Quota(cpu_jobs=0)})))
    assert of.admit(ANN, JobSpec(gpus="1"))
    with pytest.raises(Refused, match="user ann may run no jobs without GPUs"):
        of.admit(ANN, JobSpec())


def test_who_has_no_account_runs_nothing():
    """But root is root, whatever the list of users says."""
    nobody = Caller(5, "uid-5", frozenset(), True, account=False)
    with pytest.raises(NotPermitted, match="uid 5 has no account on this host, so nothing can run as it") as caught:
        desk().admit(nobody, JobSpec())
    assert caught.value.subject == "uid-5"
    assert desk().admit(Caller(0, "uid-0", frozenset(), True, account=False), JobSpec()).user == "uid-0"


@pytest.mark.parametrize(
    ("target", "right"),
    [
        ("8:0", True), ("1234:1234567", True),
        ("12345:0", False), ("8:12345678", False), ("8:", False), ("/", False), ("/dev/sda", False), ("8:0 ", False),
    ],
)  # fmt: skip
def test_a_disk_is_named_by_its_number(target, right):
    """A path would be followed with root's rights. The client looks it up with its user's."""
    job = JobSpec(Spec(limits=Limits(io_max=(IoMax("8:16", rbps=5), IoMax(target, rbps=5))), best_effort=True))
    assert desk().admit(ROOT, job)
    if right:
        assert desk().admit(ANN, job)
    else:
        for caller in (ANN, BOSS):
            with pytest.raises(NotPermitted, match="an io limit names its disk by a path") as caught:
                desk().admit(caller, job)
            assert caught.value.subject == "io_max"


@pytest.mark.parametrize("best_effort", [False, True])
@pytest.mark.parametrize("limits", [Limits(), Limits(pids_max=5)])
def test_limits_that_this_host_cannot_keep(monkeypatch, limits, best_effort):
    """Are told at submit and not hours later."""
    asked = []
    error = LimitUnavailable("pids cannot be limited", controller="pids")
    monkeypatch.setattr(cgroups, "find_delegation", lambda: "the place")
    monkeypatch.setattr(cgroups, "unavailable", lambda *of: asked.append(of) or (error, LimitUnavailable("more", controller="io")))
    job = JobSpec(Spec(limits=limits, best_effort=best_effort))
    if limits == Limits() or best_effort:
        assert desk().admit(ANN, job) and asked == []
        return
    with pytest.raises(LimitUnavailable) as caught:
        desk().admit(ANN, job)
    assert caught.value is error and asked == [(limits, "the place")]
    monkeypatch.setattr(cgroups, "unavailable", lambda *of: ())
    assert desk().admit(ANN, job)


@pytest.mark.parametrize(
    ("quotas", "asked", "said"),
    [
        (limits({"ann": 2}), "2", ""),
        (limits({"ann": 2}), "3", "needs 3 GPUs, the quota of user ann is 2: this could never start"),
        (limits(default=1), "2", "needs 2 GPUs, the quota of user ann is 1: this could never start"),
        (limits(groups={"vision": 2, "other": 1}), "2", ""),
        (limits(groups={"students": 4, "vision": 2}), "3", "needs 3 GPUs, the quota of group vision is 2: this could never start"),
        (limits({"ann": 0}), "", ""),
    ],
)
def test_more_than_a_quota_can_never_start(quotas, asked, said):
    if not said:
        assert desk(Config(quotas)).admit(ANN, JobSpec(gpus=asked))
        return
    with pytest.raises(Refused) as caught:
        desk(Config(quotas)).admit(ANN, JobSpec(gpus=asked))
    assert (str(caught.value), caught.value.subject) == (said, asked)


@pytest.mark.parametrize(
    ("per_job", "per_user", "asked", "said"),
    [
        (10 << 30, 0, 10 << 30, ""),
        (0, 0, 1 << 50, ""),
        (10 << 30, 0, (10 << 30) + 1, "10737418241 is more than the 10G that a job may write: ask for 10G or less,"),
        (10 << 30, 5 << 30, 6 << 30, "6G is more than the 5G that a job may write: ask for 5G or less,"),
    ],
)
@pytest.mark.parametrize("best_effort", [False, True])
def test_a_larger_disk_than_the_settings_let_a_job_have(monkeypatch, per_job, per_user, asked, said, best_effort):
    monkeypatch.setattr("os.geteuid", lambda: 0)
    of, job = desk(Config(disk_per_job=per_job, disk_per_user=per_user)), JobSpec(Spec(disk=asked, best_effort=best_effort))
    if not said:
        assert of.admit(ANN, job)
        return
    with pytest.raises(Refused) as caught:
        of.admit(ANN, job)
    key = "per_user" if per_user else "per_job"
    assert f"{caught.value}: {caught.value.hint}" == f"the disk limit {said} or leave --disk out; the setting is disk.{key}"


def test_how_much_more_a_user_may_queue():
    queued = PerUser()
    for uid, jobs, size in ((1001, 3, 90), (1002, 1000, 1000)):
        queued.jobs[uid], queued.size[uid] = jobs, size
    of = desk(Config(per_user=5, per_user_size=100))
    of.refuse_too_many(ANN, queued, 2)
    of.refuse_too_large(ANN, queued, 10)
    with pytest.raises(Refused, match=r"^user ann has 3 jobs in the queue; 3 more would pass the limit of 5$"):
        of.refuse_too_many(ANN, queued, 3)
    with pytest.raises(Refused, match=r"^user ann has 90 B of jobs in the queue; 11 B more would pass the limit of 100 B$"):
        of.refuse_too_large(ANN, queued, 11)


def test_how_much_more_a_quota_lets_somebody_queue(monkeypatch):
    queued = PerUser()
    queued.jobs[1001], queued.jobs[1002] = 3, 4
    quotas = limits({"ann": Quota(queued=7)}, {"vision": Quota(queued=10), "others": Quota(queued=0)})
    of = desk(Config(quotas, {"vision": ("ann", "boss"), "others": ("boss",)}, per_user=5))
    monkeypatch.setattr(of.callers, "_look_up", lambda uid: ({1001: "ann", 1002: "boss"}[uid], frozenset(), True))
    of.refuse_too_many(ANN, queued, 3)
    with pytest.raises(Refused, match=r"^group vision has 7 jobs in the queue; 4 more would pass the limit of 10$") as caught:
        of.refuse_too_many(ANN, queued, 4)
    assert caught.value.hint.endswith("ask the administrator to raise the quota")
    with pytest.raises(Refused, match=r"^user ann has 3 jobs in the queue; 5 more would pass the limit of 7$"):
        of.refuse_too_many(ANN, queued, 5)
    with pytest.raises(Refused, match=r"^user boss has 4 jobs in the queue; 2 more would pass the limit of 5$"):
        of.refuse_too_many(BOSS, queued, 2)
    with pytest.raises(Refused, match=r"^group others has 4 jobs in the queue"):
        of.refuse_too_many(BOSS, queued, 1)


def on(*endpoints, **more):
    return JobSpec(Spec(("true",), network="private", endpoints=endpoints or (Endpoint(),), **more))


@pytest.mark.parametrize(
    ("job", "what"),
    [
        (on(ports=(Port(80, 1023),)), "port 1023 of the host"), (on(ports=(Port(80, 8080), Port(80, 53, "udp"))), "port 53 of the host"),
        (on(Endpoint(mac="02:42:0a:01:00:05")), "a MAC address of a job's own"), (on(Endpoint("roots")), "network roots"),
        (on(Endpoint(), Endpoint("roots")), "network roots"), (JobSpec(Spec(network="container:web")), "another sandbox's network"),
    ],
)  # fmt: skip
def test_what_of_networks_is_roots(home, as_root, job, what):
    for name, owner in (("roots", 0), ("anns", ANN.uid)):
        records.create(name, subnets=[f"10.20.{owner % 256}.0/24"], owner=owner)
    for caller in (ANN, BOSS):
        with pytest.raises(NotPermitted, match=f"^{what} is for root$") as caught:
            desk().admit(caller, job)
        assert caught.value.hint
    assert desk().admit(ROOT, job)
    assert desk().admit(ANN, on(Endpoint(), Endpoint("anns"), ports=(Port(80, 1024), Port(1, 8080, "udp", count=9))))


def test_a_port_that_would_never_be_reached_is_told_at_once(home, as_root):
    for caller in (ANN, ROOT):
        with pytest.raises(BadInput, match="not reached by ::1"):
            desk().admit(caller, on(ports=(Port(80, 8080, address="::1"),)))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Port(80, 8080), Port(80, 8080)), (Port(80, 8080, count=5), Port(80, 8084)), (Port(80, 8080), Port(81, 8080, address="127.0.0.1")),
        (Port(80, 8080, address="127.0.0.1"), Port(81, 8080, address="0.0.0.0")),
    ],
)  # fmt: skip
def test_jobs_that_start_together_share_no_port_of_the_host(one, other):
    for first, second in ((one, other), (other, one)):
        with pytest.raises(BadInput, match="published by several jobs") as caught:
            check_networks([on(ports=(first,)).spec, Spec(("true",)), on(ports=(second,)).spec])
        assert "count = 1" in caught.value.hint
    apart = (Port(80, 8080), Port(80, 8080, "udp"), Port(80, 8081, address="127.0.0.1"), Port(80, 8081, address="::"))
    check_networks([on(ports=(port,)).spec for port in apart])


def test_a_network_that_is_not_there_is_told_at_once(home, as_root):
    for caller in (ANN, ROOT):
        with pytest.raises(UnknownNetwork, match="no network lab"):
            desk().admit(caller, on(Endpoint("lab")))


def test_a_users_own_daemon_has_her_networks(home, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1001)
    with pytest.raises(UnknownNetwork, match="no network lab"):
        desk().admit(ANN, on(Endpoint("lab")))
    records.create("lab", owner=1001)
    assert desk().admit(ANN, on(Endpoint("lab")))
    assert desk().admit(ANN, on(ports=(Port(80, 8080),))) and desk().admit(ANN, JobSpec(Spec(("true",), network="host")))
    for can, expected in ((True, contextlib.nullcontext()), (False, pytest.raises(Unsupported, match="share one loopback"))):
        monkeypatch.setattr(gang_networks, "can_make", lambda can=can: can)
        with expected:
            check_network(on().spec)
    check_network(Spec(("true",)))
