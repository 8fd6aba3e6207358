"""``make demo``: everything in half a minute, on this machine, with nothing but what is on it.

::

    image from the host's own programs ─► store ─► a sandbox of it
    daemon with quotas ─► two users submit ─► the queue, and why each job waits ─► the daemon is killed; the jobs are not
    ─► the gate opens ─► logs, exit codes, who had which GPU ─► everything is removed

Every statement that it prints was checked; anything that is off makes the exit code 1. It keeps to a temporary directory
(``DOCKLESS_HOME``) and touches nothing else. Without GPUs it simulates four, and says so.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from dockless.base.dataclass import dataclass, field
from dockless.base.exit_codes import INTERRUPTED
from dockless.base.typing import TYPE_CHECKING, Any
from dockless.cli.output import err, out
from dockless.errors import DaemonUnavailable, DocklessError, Refused

if TYPE_CHECKING:
    from dockless.sched import Client, Job, JobSpec

IMAGE = "dockless-demo:1"
PATIENCE = 20.0  # seconds for any one thing to happen
_INERT = ("games", "news", "uucp", "lp", "mail", "man", "backup", "www-data")
_SHOW = (
    'echo "job $DOCKLESS_JOB_ID as $(id -u):$(id -g) inside, host name $(hostname)"; '
    'echo "GPUs: $(echo $DOCKLESS_GPUS | sed "s/,/ /g")"; echo "nodes: $(echo $(ls /dev | grep "^nvidia[0-9]"))"; '
    "while [ ! -e /gate/open ]; do sleep 0.05; done"
)


class Off(Exception):
    """Something is not as it must be."""


@dataclass(slots=True)
class Stage:
    """Where the demo plays. ``users``: (name, uid, gid) on whose behalf jobs are submitted."""

    home: Path
    users: list[tuple[str, int, int]] = field(default_factory=list)
    root_mode: str = "disk"
    gpus: int = 0
    simulated: bool = False
    daemon: subprocess.Popen[bytes] | None = None

    @property
    def gate(self) -> Path:
        return self.home / "gate"

    def quota(self, name: str) -> int:
        """GPUs at once: half of them for the first user, one less for the second, so that one stays free while jobs wait for a quota."""
        half = max(1, self.gpus // 2)
        return half if name == self.users[0][0] else max(1, half - 1)


def main(argv: Sequence[str] = ()) -> int:
    return run_demo(keep="--keep" in argv)


def run_demo(*, keep: bool = False) -> int:
    """0 if everything was as it must be."""
    began = time.monotonic()
    before = {name: os.environ.get(name) for name in ("DOCKLESS_HOME", "DOCKLESS_SOCKET", "DOCKLESS_SIMULATED_GPUS")}
    # Not /tmp: where that is a tmpfs, kernels before 6.3 cannot map owners in it.
    stage = Stage(Path(tempfile.mkdtemp(prefix="dockless-demo-", dir="/var/tmp")))
    os.environ["DOCKLESS_HOME"] = str(stage.home)
    os.environ.pop("DOCKLESS_SOCKET", None)
    signal.signal(signal.SIGTERM, _terminated)
    try:
        _play(stage)
        code = 0
    except (Off, DocklessError, TimeoutError) as error:
        hint = (f"  hint: {error.hint}",) if isinstance(error, DocklessError) and error.hint else ()
        err("", f"demo: OFF: {error}", *hint)
        _daemon_log(stage)
        code = 1
    except KeyboardInterrupt:
        err("", "demo: interrupted; cleaning up")
        code = INTERRUPTED
    finally:
        left = _strike(stage, keep)
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
    if left:
        err(f"demo: OFF: left behind: {', '.join(left)}")
        code = code or 1
    elif code == 0:
        out("", f"Nothing is left behind. The demo took {time.monotonic() - began:.1f} s.")
    return code


def _terminated(number: int, frame: object) -> None:
    raise KeyboardInterrupt


def _play(stage: Stage) -> None:
    _cast(stage)
    _image(stage)
    _settings(stage)
    _start_daemon(stage)
    from dockless.sched import connect

    with _act("5. Jobs"):
        jobs = _submit_all(stage)
    with connect() as queue, _act("6. The queue: who runs, who waits, and why"):
        _show_queue(stage, queue, jobs)
    with _act("7. The daemon dies (kill -9). Its jobs do not"):
        _crash(stage)
    with connect() as queue, _act("8. The gate opens: the jobs finish, the next ones start"):
        _finish(stage, queue, jobs)


# -- 1: who and what


def _cast(stage: Stage) -> None:
    if os.geteuid() == 0:
        os.chmod(stage.home, 0o711)  # the other users have to reach the socket
        stage.users = _two_users()
    else:
        import pwd

        stage.users = [(_own_name(pwd), os.geteuid(), os.getegid())]
    stage.gate.mkdir(mode=0o755)
    _gpus(stage)
    with _act("1. This machine"):
        out(f"Linux {os.uname().release}, {'root' if os.geteuid() == 0 else 'user ' + stage.users[0][0]}, everything below {stage.home}")
        if stage.simulated:
            out(f"NO NVIDIA GPU TO USE HERE: {stage.gpus} GPUs ARE SIMULATED.")
            out("Queue, quotas, leases and device nodes are real, computing is not.")
        else:
            out(f"{stage.gpus} NVIDIA GPUs")
        if len(stage.users) == 2:
            out(f"two users of this host will submit jobs: {stage.users[0][0]} and {stage.users[1][0]}")
        else:
            out(
                f"one user only, {stage.users[0][0]}: an ordinary user's daemon serves her alone, and only root can submit as two people.",
                "Run it as root to see two. Here her jobs meet her own quota, and that of a group of hers.",
            )
        _limits_note()


def _own_name(pwd: Any) -> str:
    try:
        return str(pwd.getpwuid(os.geteuid()).pw_name)
    except KeyError:
        return f"uid-{os.geteuid()}"


def _two_users() -> list[tuple[str, int, int]]:
    """Two accounts that belong to nobody in particular, or else two ordinary ones."""
    import pwd

    known = {entry.pw_name: entry for entry in pwd.getpwall()}
    names = [name for name in _INERT if name in known]
    names += [entry.pw_name for entry in known.values() if 1000 <= entry.pw_uid < 60000 and entry.pw_name not in names]
    if len(names) < 2:
        raise Off(f"this host has not two accounts besides root (found {names}): useradd anna; useradd bob")
    return [(name, known[name].pw_uid, known[name].pw_gid) for name in names[:2]]


def _gpus(stage: Stage) -> None:
    from dockless.sandbox.gpus import gpu

    if not os.environ.get("DOCKLESS_SIMULATED_GPUS"):
        try:
            free = [unit for unit in gpu.inventory(links=False) if not unit.used_by and not unit.mig_enabled]
        except DocklessError:
            free = []
        if len(free) >= 2:
            stage.gpus = len(free)
            return
        os.environ["DOCKLESS_SIMULATED_GPUS"] = "4x80G"
    stage.simulated = True
    stage.gpus = len(gpu.inventory(links=False))
    if stage.gpus < 2:
        os.environ["DOCKLESS_SIMULATED_GPUS"] = "4x80G"
        stage.gpus = 4


def _limits_note() -> None:
    from dockless.cgroups import find_delegation

    place = find_delegation(ask_systemd=False)
    missing = [name for name in ("memory", "cpu", "pids") if name not in place.controllers]
    if missing:
        out(f"limits: no {', '.join(missing)} controller for us here, so the jobs ask for none (dockless doctor says what to do)")


# -- 2 and 3: an image and a sandbox of it


def _image(stage: Stage) -> None:
    from dockless import demo_image
    from dockless._call import run
    from dockless.errors import LaunchFailed
    from dockless.images import Store

    with _act("2. An image"):
        layout, kind = demo_image.build(stage.home / "layout", IMAGE)
        (image,) = Store().load(layout)
        _says("dockless load layout", f"{image.name}, {image.size >> 10} KiB, built from {kind}")
    with _act("3. A sandbox"):
        args = ["sh", "-c", "echo hello from $(uname -s), pid $$, $(ls / | wc -l) entries in /, $(ls /proc | grep -c '^[0-9]') processes"]
        try:
            result = run(IMAGE, args, capture_output=True, text=True, stdin=-3, timeout=PATIENCE)
        except LaunchFailed as error:
            # Typical inside a container: overlayfs takes no upper on overlayfs.
            out(f"(no private layer on this disk: {error}; using memory)")
            stage.root_mode = "tmpfs"
            result = run(IMAGE, args, capture_output=True, text=True, stdin=-3, timeout=PATIENCE, root="tmpfs")
        _check(result.returncode == 0 and result.stdout.startswith("hello"), f"the sandbox said {result.stdout!r} {result.stderr!r}")
        again = run(IMAGE, ["true"], stdin=-3, timeout=PATIENCE, root="disk" if stage.root_mode == "disk" else "tmpfs")
        _says(f"dockless run {IMAGE} -- sh -c …", result.stdout.strip())
        out(f"    start to exit of `true` in a sandbox of its own: {again.duration * 1000:.1f} ms")


# -- 4: settings and daemon


def _settings(stage: Stage) -> None:
    from dockless.base import paths

    lines = ["[quota.users]", *(f'"{name}" = {stage.quota(name)}' for name, _, _ in stage.users)]
    if len(stage.users) == 1:
        name = stage.users[0][0]
        lines += ["[quota.groups]", f"vision = {stage.quota(name)}", "[groups]", f'vision = ["{name}"]']
    paths.config_file().write_text("\n".join(lines) + "\n")


def _start_daemon(stage: Stage) -> None:
    with _act("4. The daemon"):
        _launch_daemon(stage)
        quotas = ", ".join(f"{name} {stage.quota(name)}" for name, _, _ in stage.users)
        _says("dockless daemon &", f"{stage.gpus} GPUs{' (simulated)' if stage.simulated else ''}; GPUs at once by quota: {quotas}")


def _launch_daemon(stage: Stage) -> None:
    from dockless.sched import connect

    log = (stage.home / "daemon.log").open("ab")
    with log:
        stage.daemon = subprocess.Popen(
            [sys.executable, "-m", "dockless", "daemon"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, "PYTHONSAFEPATH": "1"},
            start_new_session=True,
        )

    def answers() -> bool:
        assert stage.daemon is not None
        _check(stage.daemon.poll() is None, f"the daemon ended with {stage.daemon.returncode}")
        try:
            with connect(timeout=2.0) as queue:
                return queue.ping().pid == stage.daemon.pid
        except DaemonUnavailable:
            return False

    _until(answers, "the daemon to answer")


# -- 5: jobs


def _submit_all(stage: Stage) -> dict[str, list[int]]:
    """Each user asks for more than her quota. What each one submits, in order: {name: ids}."""
    jobs: dict[str, list[int]] = {}
    for name, uid, gid in stage.users:
        quota = stage.quota(name)
        wide = _job(stage, f"{name}-wide", quota, 3 if name == stage.users[0][0] else 0)
        jobs[name] = [_submit_as(uid, gid, job) for job in (wide, *(_job(stage, f"{name}-{n}", 1, 0) for n in (2, 3)))]
        out(f"  {name}$ dockless submit --gpus {quota} {IMAGE} -- …   → job {jobs[name][0]}")
        for number in jobs[name][1:]:
            out(f"  {name}$ dockless submit --gpus 1 {IMAGE} -- …   → job {number}")
    name, uid, gid = stage.users[0]
    try:
        _submit_as(uid, gid, _job(stage, "too-wide", stage.quota(name) + 1, 0))
    except Refused as error:
        out(f"  {name}$ dockless submit --gpus {stage.quota(name) + 1} {IMAGE} -- …", f"    dockless: {error}", f"      hint: {error.hint}")
    else:
        raise Off("a job above its user's quota was accepted")
    return jobs


def _job(stage: Stage, name: str, gpus: int, code: int) -> JobSpec:
    from dockless._submitting import make_job

    options: dict[str, Any] = {"gpus": gpus, "mounts": [f"{stage.gate}:/gate:ro"], "root": stage.root_mode, "hostname": "demo"}
    return make_job(IMAGE, ["sh", "-c", f"{_SHOW}; exit {code}"], options, name=name, time_limit=60)


def _submit_as(uid: int, gid: int, job: JobSpec) -> int:
    """Submit through the socket from a child process of that user: the daemon believes the kernel about who asks, nobody else."""
    from dockless.base.records import differences
    from dockless.sched import connect

    if uid == os.geteuid():
        with connect() as queue:
            return queue.submit(job)
    differences(job)  # everything that the child will need is imported here, where it can be read
    reader, writer = os.pipe()
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        _child(uid, gid, job, writer)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        said = pipe.read().decode()
    os.waitpid(pid, 0)
    kind, _, text = said.partition("\n")
    if kind == "refused":
        message, _, hint = text.partition("\n")
        raise Refused(message, hint=hint)
    _check(kind == "job" and text.isdecimal(), f"the submit as user {uid} said {said!r}")
    return int(text)


def _child(uid: int, gid: int, job: JobSpec, writer: int) -> None:
    from dockless.sched import connect

    try:
        os.setgroups([])
        os.setresgid(gid, gid, gid)
        os.setresuid(uid, uid, uid)
        with connect() as queue:
            said = f"job\n{queue.submit(job)}"
    except Refused as error:
        said = f"refused\n{error}\n{error.hint}"
    except BaseException as error:
        said = f"error\n{type(error).__name__}: {error}"
    os.write(writer, said.encode())
    os._exit(0)


# -- 6, 7, 8: the queue at work


def _show_queue(stage: Stage, queue: Client, jobs: dict[str, list[int]]) -> None:
    first = {ids[0] for ids in jobs.values()}
    _until(lambda: first <= {job.id for job in queue.queue() if job.state == "RUNNING"}, "each user's first job to run")
    now = {job.id: job for job in queue.queue()}
    from dockless.cli.jobs import print_queue

    out("$ dockless queue")
    print_queue(list(now.values()), stage.simulated)
    _check(set(now) == {number for ids in jobs.values() for number in ids}, f"the queue shows {sorted(now)}")
    for name, ids in jobs.items():
        held = [job for number in ids if (job := now[number]).state == "RUNNING"]
        _check(sum(job.gpu_count for job in held) <= stage.quota(name), f"{name} holds more than the quota")
        _check(now[ids[0]].state == "RUNNING", f"the first job of {name} does not run")
        waiting = [now[number] for number in ids[1:]]
        _check(all(job.state == "PENDING" and job.reason for job in waiting), f"a waiting job of {name} has no reason")
    _check(
        len({uuid for job in now.values() for uuid in job.devices}) == sum(len(job.devices) for job in now.values()),
        "a GPU has two holders",
    )
    for name, uid, _ in stage.users:
        owner = _host_uid(queue.job(jobs[name][0]))
        _check(owner == uid, f"job {jobs[name][0]} of {name} runs as uid {owner}, not {uid}")
        out(f"job {jobs[name][0]} is root inside; on the host its processes are those of {name} (uid {uid})")
    out("$ dockless info")
    from dockless.cli.host import print_gpus

    print_gpus(queue.info())


def _host_uid(job: Job) -> int:
    """The uid of a running job's init, as the host sees it."""
    from dockless.sandbox.run import detached

    box = detached.find(job.attempts[-1].sandbox)
    _check(box is not None, f"job {job.id} has no sandbox")
    assert box is not None
    status = Path(f"/proc/{box.init_pid}/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("Uid:")))


def _crash(stage: Stage) -> None:
    from dockless.sched import connect

    assert stage.daemon is not None
    with connect() as queue:
        before = [job.id for job in queue.queue() if job.state == "RUNNING"]
    stage.daemon.kill()
    stage.daemon.wait()
    _launch_daemon(stage)
    with connect() as queue:
        after = {job.id: job for job in queue.queue()}
    _check(all(after[number].state == "RUNNING" and after[number].attempt == 1 for number in before), f"not all of {before} still run")
    out(f"  the new daemon took up jobs {', '.join(map(str, before))}, still in their first attempt")


def _finish(stage: Stage, queue: Client, jobs: dict[str, list[int]]) -> None:
    (stage.gate / "open").touch(mode=0o644)
    ids = [number for own in jobs.values() for number in own]
    ended = {job.id: queue.job(job.id) for job in queue.wait_many(ids, timeout=PATIENCE)}
    last = ids[0]
    out(f"$ dockless logs {last}")
    lines = [line.text for line in queue.logs(last)]
    out(*(f"  {line}" for line in lines))
    out("$ dockless queue --all")
    from dockless.cli.jobs import print_queue

    print_queue([ended[number] for number in ids], stage.simulated)
    for name, own in jobs.items():
        for number in own:
            _judge(stage, name, ended[number], 3 if number == ids[0] else 0, [line.text for line in queue.logs(number)])
    _check(not any(gpu.job for gpu in queue.info().gpus), "a GPU is still leased")
    note = " (simulated)" if stage.simulated else ""
    out(f"All {len(ids)} jobs ran once, as their users, with exactly the GPUs{note} that they were leased.")
    out("Exit codes: 3 for the first, as its program said, and 0 for the others.")


def _judge(stage: Stage, user: str, job: Job, code: int, lines: list[str]) -> None:
    _check(job.user == user and len(job.attempts) == 1, f"job {job.id} is of {job.user}, with {len(job.attempts)} attempts")
    _check(job.exit_code == code, f"job {job.id} ended with {job.exit_code}, not {code} ({job.reason})")
    _check(str(job.state) == ("COMPLETED" if code == 0 else "FAILED"), f"job {job.id} is {job.state}")
    given = next((line.removeprefix("GPUs: ").split() for line in lines if line.startswith("GPUs: ")), [])
    nodes = next((line.removeprefix("nodes: ").split() for line in lines if line.startswith("nodes: ")), [])
    _check(
        sorted(given) == sorted(job.devices) and len(nodes) == job.gpu_count,
        f"job {job.id} saw {given} {nodes}, it was leased {job.devices}",
    )


# -- the end, and small things


def _strike(stage: Stage, keep: bool) -> list[str]:
    """End what runs, remove everything; what could not be removed."""
    from dockless.images.files import remove_tree
    from dockless.sandbox.run import detached

    left: list[str] = []
    if stage.daemon is not None and stage.daemon.poll() is None:
        stage.daemon.terminate()
        try:
            stage.daemon.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            stage.daemon.kill()
            stage.daemon.wait()
            left.append("the daemon (it did not end by itself)")
    for box in detached.list_all():
        try:
            box.remove()
        except Exception as error:
            left.append(f"sandbox {box.id} ({error})")
    if keep:
        out(f"kept: {stage.home} (DOCKLESS_HOME={shlex.quote(str(stage.home))} dockless images)")
        return left
    with contextlib.suppress(OSError):
        remove_tree(stage.home)
    if stage.home.exists():
        left.append(str(stage.home))
    return left


def _daemon_log(stage: Stage) -> None:
    try:
        text = (stage.home / "daemon.log").read_text(errors="replace")
    except OSError:
        return
    if text:
        err("the daemon's last words:", *(f"  {line}" for line in text.splitlines()[-15:]))


@contextlib.contextmanager
def _act(title: str) -> Iterator[None]:
    out("", title, "─" * len(title))
    yield


def _says(command: str, answer: str) -> None:
    out(f"$ {command}", *(f"    {line}" for line in answer.splitlines()))


def _check(true: bool, otherwise: str) -> None:
    if not true:
        raise Off(otherwise)


def _until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            raise Off(f"waited {PATIENCE:g} s for {what}")
        time.sleep(0.02)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
