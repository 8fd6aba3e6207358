"""The daemon as a service of a real systemd, root's and a user's: what runs goes on while the service is stopped, killed, started again and
replaced by another version, and after a reboot each job ends by its policy.

``service_life.py BOOT``: in the guest, as root. Ends with 64 where the machine is to be rebooted and this called again.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from support import scheduling

from dockless.sandbox.spec import Bind, Spec
from dockless.sched import Client, JobSpec, State, connect
from dockless.sched.wire.client import ROOT_SOCKET

REBOOT = 64
MARKS = Path("/scratch/marks")
OTHER = Path("/scratch/other-version")
USER, HOME = 1000, Path("/scratch/home")
USERS = (USER, 1001)
"""Each has jobs in root's queue when the host is rebooted."""
UNTIL = "until [ -e /marks/{go} ]; do sleep 0.1; done; exit {code}"


def until(found: Callable[[], object], what: str, seconds: float = 300.0) -> None:
    deadline = time.monotonic() + seconds
    while not found():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


def said(*words: str, check: bool = True) -> str:
    done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=600)
    assert not check or done.returncode == 0, (words, done.returncode, done.stdout, done.stderr)
    return done.stdout.strip()


def dockless(*words: str) -> str:
    return said(sys.executable, "-P", "-m", "dockless", *words)


def as_user(*words: str) -> str:
    enter = ("setpriv", f"--reuid={USER}", f"--regid={USER}", "--init-groups", "env", "-i")
    environment = (f"HOME={HOME}", f"XDG_RUNTIME_DIR=/run/user/{USER}", f"PATH={os.environ['PATH']}", "LC_ALL=C.UTF-8")
    return said(*enter, *environment, *words)


def shell(script: str, **more: object) -> JobSpec:
    return JobSpec(Spec(argv=("sh", "-c", script), mounts=(Bind(str(MARKS), "/marks"),)), **more)


def main_pid() -> int:
    return int(said("systemctl", "show", "--value", "--property=MainPID", "dockless"))


def running(number: int) -> None:
    def is_running() -> bool:
        with connect() as queue:
            return queue.job(number).state is State.RUNNING

    until(is_running, f"job {number} runs")


def started(code: int, **more: object) -> int:
    """A job that ends with ``code`` once the mark of that name is there."""
    with connect() as queue:
        number: int = queue.submit(shell(UNTIL.format(go=code, code=code), **more))
    running(number)
    return number


def ends_with(number: int, code: int) -> None:
    """It has gone on, in its first attempt, and its end is not lost."""
    with connect() as queue:
        job = queue.job(number)
        assert (job.state, job.attempt) == (State.RUNNING, 1), job
        (MARKS / str(code)).touch()
        job = queue.wait(number, timeout=200)
        assert (job.state, job.exit_code, job.attempt) == (State.FAILED, code, 1), job


def root_service() -> None:
    file = Path(dockless("daemon", "--install").rpartition(": ")[2])
    assert file.read_text().strip() == dockless("daemon", "--install", "--print")
    assert said("systemctl", "is-enabled", "dockless") == "enabled"

    jobs = [started(code) for code in (11, 12, 13, 14)]
    first = main_pid()
    said("systemctl", "restart", "dockless")
    assert main_pid() != first
    ends_with(jobs[0], 11)
    print("restarted: the job went on")

    before = main_pid()
    os.kill(before, 9)
    until(lambda: main_pid() not in (0, before) and said("systemctl", "is-active", "dockless", check=False) == "active", "it is back")
    ends_with(jobs[1], 12)
    print("killed: started again by systemd, the job went on")

    said("systemctl", "stop", "dockless")
    (MARKS / "13").touch()
    time.sleep(1.0)
    said("systemctl", "start", "dockless")
    with connect() as queue:
        job = queue.wait(jobs[2], timeout=200)
        assert (job.state, job.exit_code, job.attempt) == (State.FAILED, 13, 1), job
    print("stopped: a job ended meanwhile, its exit code is known")

    OTHER.mkdir()
    shutil.copytree("/payload/site/dockless", OTHER / "dockless")
    version = OTHER / "dockless" / "_version.py"
    version.write_text(version.read_text() + '\n__version__ = "99.0"\n')
    Path("/usr/lib/python3/dist-packages/a-newer.pth").write_text(f"{OTHER}\n")
    dockless("daemon", "--install")
    with connect() as queue:
        assert queue.ping().version == "99.0", queue.ping()
    ends_with(jobs[3], 14)
    print("another version: the job went on")


def user_service() -> None:
    said("systemctl", "start", f"user@{USER}.service")
    said("loginctl", "enable-linger", "tester")
    as_user(sys.executable, "-P", "-m", "dockless", "daemon", "--install")
    bind = "/scratch/marks:/marks"
    submit = (sys.executable, "-P", "-m", "dockless", "submit", "-v", bind, "host", "--", "sh", "-c")
    number = as_user(*submit, "echo up > /marks/up; " + UNTIL.format(go="user", code=21)).split()[-1]
    until((MARKS / "up").exists, "the user's job runs")
    for _ in range(2):  # the second finds what the first left
        as_user("systemctl", "--user", "restart", "dockless")
    (MARKS / "user").touch()
    as_user("sh", "-c", f"{sys.executable} -P -m dockless wait {number}; test $? = 21")
    print("a user's service restarted: the job went on")


def before_the_reboot() -> None:
    twice = "echo $DOCKLESS_ATTEMPT >> /marks/{0}; [ $DOCKLESS_ATTEMPT = 2 ] && exit 5; echo up > /marks/up-{0}; sleep 1000"
    with connect() as queue:
        numbers = {
            "requeued": queue.submit(shell(twice.format("requeued"), on_reboot="requeue")),
            "failing": queue.submit(shell(twice.format("failing"), on_reboot="fail")),
            "ending": queue.submit(
                shell("trap 'exit 0' TERM; echo up > /marks/up-ending; while :; do sleep 0.1; done", on_reboot="requeue")
            ),
            "done": queue.submit(shell("echo up > /marks/up-done; exit 6")),
        }
    for name, number in numbers.items():
        until((MARKS / f"up-{name}").exists, f"{name} runs")
        (MARKS / f"number-{name}").write_text(str(number))
    for uid in USERS:
        script = f"echo secret of {uid}; " + twice
        waiting = shell("exit 7", begin=time.time() + 3600)
        specs = [shell(script.format(f"{way}-{uid}"), on_reboot=way) for way in ("requeue", "fail")]
        mine = by(uid, lambda queue, specs=specs, waiting=waiting: [queue.submit(spec) for spec in (*specs, waiting)])
        for way, number in zip(("requeue", "fail", "waiting"), mine, strict=True):
            (MARKS / f"of-{uid}-{way}").write_text(str(number))
            if way != "waiting":
                until((MARKS / f"up-{way}-{uid}").exists, f"{way} of {uid} runs")


def after_the_reboot() -> None:
    until(lambda: said("systemctl", "is-active", "dockless", check=False) == "active", "the service is back")
    numbers = {path.name.removeprefix("number-"): int(path.read_text()) for path in MARKS.glob("number-*")}
    with connect() as queue:
        ended = {name: queue.wait(number, timeout=300) for name, number in numbers.items()}
        print(*(f"{name}: {job.state} {job.exit_code} attempt {job.attempt} {job.reason!r}" for name, job in ended.items()), sep="\n")
        assert (ended["requeued"].state, ended["requeued"].exit_code, ended["requeued"].attempt) == (State.FAILED, 5, 2)
        assert ended["failing"].state in (State.FAILED, State.LOST) and ended["failing"].attempt == 1
        assert (ended["ending"].state, ended["ending"].attempt) == (State.COMPLETED, 1)
        assert (ended["done"].state, ended["done"].exit_code) == (State.FAILED, 6)
        assert queue.submit(shell("true")) > max(numbers.values())
    for uid in USERS:
        users_jobs(uid)
    assert (MARKS / "requeued").read_text().split() == ["1", "2"] and (MARKS / "failing").read_text().split() == ["1"]
    until(lambda: _users_daemon(), "the user's service is back")
    dockless("daemon", "--uninstall")
    assert said("systemctl", "is-active", "dockless", check=False) == "inactive"
    assert said("systemctl", "is-enabled", "dockless", check=False) != "enabled"


def users_jobs(uid: int) -> None:
    """They are this user's, have the numbers that they had, and ended by their policies; nobody else reads what they said."""
    numbers = {way: int((MARKS / f"of-{uid}-{way}").read_text()) for way in ("requeue", "fail", "waiting")}
    (other,) = set(USERS) - {uid}

    def ended(queue: Client) -> list[Any]:
        return [queue.wait(numbers[way], timeout=300) for way in ("requeue", "fail")] + [queue.job(numbers["waiting"])]

    again, failed, waiting = by(uid, ended)
    print(
        *(f"of {uid}: {job.id} {job.state} {job.exit_code} attempt {job.attempt} {job.reason!r}" for job in (again, failed, waiting)),
        sep="\n",
    )
    assert [job.id for job in (again, failed, waiting)] == list(numbers.values())
    assert {job.uid for job in (again, failed, waiting)} == {uid}
    assert (again.state, again.exit_code, again.attempt) == (State.FAILED, 5, 2)
    assert failed.state in (State.FAILED, State.LOST) and failed.attempt == 1
    assert (waiting.state, waiting.attempt) == (State.PENDING, 0)
    for number in (again.id, failed.id):
        said = by(uid, lambda queue, number=number: [line.text for line in queue.logs(number)])
        assert f"secret of {uid}" in said, said
        outcome, what, _ = scheduling.as_user(other, ROOT_SOCKET.parent, lambda queue, number=number: list(queue.logs(number)))
        assert (outcome, what) == ("error", "NotPermitted"), (outcome, what)
    by(uid, lambda queue: queue.cancel(waiting.id))


def by(uid: int, work: Callable[[Client], Any]) -> Any:
    """What root's daemon answers that user."""
    outcome, found, *text = scheduling.as_user(uid, ROOT_SOCKET.parent, work)
    assert outcome == "ok", (found, text)
    return found


def _users_daemon() -> bool:
    try:
        with Client(Path(f"/run/user/{USER}/dockless/daemon.sock")) as queue:
            return queue.ping().owner_uid == USER
    except Exception:
        return False


def main(boot: int) -> int:
    if boot == 2:
        after_the_reboot()
        return 0
    MARKS.mkdir(mode=0o777)
    MARKS.chmod(0o777)
    said("useradd", "--uid", str(USER), "--home-dir", str(HOME), "--create-home", "tester")
    said("useradd", "--uid", str(USERS[1]), "--no-create-home", "other")
    root_service()
    user_service()
    before_the_reboot()
    return REBOOT


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
