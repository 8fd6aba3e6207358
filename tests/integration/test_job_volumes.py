"""Directories that the settings give to every job: with its user's rights, and no more."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

import pytest
from support.orders import job_of
from support.scheduling import DaemonProcess, as_user

from dockless._jobfiles import keywords
from dockless.base.dataclass import replace
from dockless.sandbox.spec import Spec
from dockless.sched import Client, JobSpec, State
from dockless.sched.formats import read

pytestmark = pytest.mark.requires("userns")


def shell(script: str) -> JobSpec:
    return JobSpec(Spec(argv=("sh", "-c", script)))


@pytest.fixture
def data(tmp_path_factory, passable):
    """Where every user may come to."""
    place = tmp_path_factory.mktemp("data")
    place.chmod(0o755)
    (place / "users").mkdir(mode=0o755)
    return place


def ended(queue: Client, script: str):
    number = queue.submit(shell(script))
    return queue.wait(number, timeout=30), [line.text for line in queue.logs(number)]


def test_the_only_user_of_a_daemon(home, data):
    user = pwd.getpwuid(os.geteuid()).pw_name
    (data / "users" / user).mkdir()
    (data / "users" / user / "there").write_text("read\n")
    daemon = DaemonProcess(home, settings=f'[volumes]\n"/mnt/$USER" = "{data}/users/$USER"\n').start()
    try:
        with daemon.client() as queue:
            assert ended(queue, f"cat /mnt/{user}/there")[1] == ["read"]
            (data / "users" / user).rename(data / "users" / "gone")
            job, _ = ended(queue, "true")
            setting = f'[volumes] "/mnt/$USER" = "{data}/users/$USER"'
            what = f"the directory {data}/users/{user}, which every job has at /mnt/$USER, is not there"
            assert job.state is State.FAILED
            assert job.reason == f"not started: {what} (make it, or open it to her; the setting is {setting})"
    finally:
        daemon.stop()


@pytest.mark.requires("root")
def test_each_of_two_users_has_her_own(home, data):
    """And none that she could not open herself, though root's daemon mounts it."""
    users = [pwd.getpwnam(name) for name in ("daemon", "bin")]
    for user in users:
        (data / "users" / user.pw_name).mkdir(mode=0o700)
        os.chown(data / "users" / user.pw_name, user.pw_uid, user.pw_gid)
    (data / "secret" / "closed").mkdir(parents=True)
    (data / "secret").chmod(0o700)
    daemon = DaemonProcess(home, settings=f'[volumes]\n"/mnt/user" = "{data}/users/$USER"\n').start()
    try:
        for user in users:
            outcome, (job, _) = as_user(user.pw_uid, daemon.socket.parent, lambda q: ended(q, "echo kept >/mnt/user/made"))
            assert (outcome, job.state, job.reason) == ("ok", State.COMPLETED, "")
            made = data / "users" / user.pw_name / "made"
            assert (made.read_text(), made.stat().st_uid, made.stat().st_gid) == ("kept\n", user.pw_uid, user.pw_gid)
            assert [path.name for path in (data / "users" / user.pw_name).iterdir()] == ["made"]
    finally:
        daemon.stop()
    daemon = DaemonProcess(home, settings=f'[volumes]\n"/mnt/user" = "{data}/secret/closed"\n').start()
    try:
        outcome, (job, _) = as_user(users[0].pw_uid, daemon.socket.parent, lambda q: ended(q, "true"))
        assert (outcome, job.state) == ("ok", State.FAILED) and f"may not be opened by user {users[0].pw_name}" in job.reason
        with daemon.client() as queue:
            assert ended(queue, "true")[0].state is State.COMPLETED
    finally:
        daemon.stop()


@pytest.fixture
def members(tmp_path):
    """Two groups of the user ``daemon``'s, of which one has a directory, and one that is not hers: in /etc/group of the daemon alone."""
    known = Path("/etc/group").read_text()
    (tmp_path / "group").write_text(f"{known}lab:x:4321:daemon,root\nclub:x:4322:daemon\nothers:x:4323:bin\n")
    script = f"import os; os.execvp('unshare', ['unshare', '--mount', 'sh', '-c', {MOUNT!r}, {str(tmp_path / 'group')!r}, sys.executable])"
    return ("-c", f"import sys; {script}")


MOUNT = 'mount --bind "$0" /etc/group && exec "$1" -m dockless.sched.daemon'
WITH_GROUPS = """
id -G; stat -c "%a %g" /share/lab; cat /share/lab/there
echo made >/share/lab/new && mkdir /share/lab/below && echo and >/share/lab/below/file
chgrp "$(stat -c %g /share/lab)" /mine/file && echo changed; ls /share; cat /closed/file
"""


@pytest.mark.requires("root", "two-accounts")
def test_directories_of_groups(home, data, members):
    """A job has those of its user's groups with the rights of a member, in and with the files that it makes; no others."""
    user = pwd.getpwnam("daemon")
    for name, gid in (("lab", 4321), ("others", 4323)):
        (data / "share" / name).mkdir(parents=True)
        os.chown(data / "share" / name, 0, gid)
        (data / "share" / name).chmod(0o2770)
    (data / "share/lab/there").write_text("read\n")
    os.chown(data / "share/lab/there", 0, 4321)
    (data / "share/lab/there").chmod(0o640)
    (data / "mine").mkdir()
    (data / "mine/file").write_text("")
    for path in (data / "mine", data / "mine/file"):
        os.chown(path, user.pw_uid, user.pw_gid)
    (data / "closed").mkdir()
    (data / "closed/file").write_text("closed")
    os.chown(data / "closed/file", 0, 4322)
    (data / "closed/file").chmod(0o640)
    settings = f'[volumes]\n"/share/$GROUP" = "{data}/share/$GROUP"\n"/mine" = "{data}/mine"\n"/closed" = "{data}/closed"\n'
    daemon = DaemonProcess(home, settings=settings, program=members).start()
    try:

        def work(queue: Client):
            spec = Spec(argv=("sh", "-c", WITH_GROUPS), host_groups=(4322,))
            number = queue.submit(JobSpec(spec))
            job = queue.wait(number, timeout=30)
            return job, [line.text for line in queue.logs(number)]

        _, (job, said) = as_user(user.pw_uid, home / "run", work)
        inside = said[0].split()
        assert said[1] == f"2770 {inside[-1]}" and said[2:5] == ["read", "changed", "lab"], said
        assert "Permission denied" in "".join(said[5:]) and job.exit_code == 1
        for name in ("new", "below", "below/file"):
            made = (data / "share/lab" / name).stat()
            assert (made.st_uid, made.st_gid) == (user.pw_uid, 4321), name
        assert (data / "mine/file").stat().st_gid == 4321

        def together(queue: Client):
            """They share a network, and with it a user namespace; one of them is in no group."""
            spec = Spec(argv=("sh", "-c", "id -G; cat /share/lab/there"))
            jobs = [JobSpec(replace(spec, profile="untrusted"), role="master", min_failed=0), JobSpec(spec, role="worker", min_failed=0)]
            numbers = queue.submit_gang(jobs)
            queue.wait_many(numbers, timeout=60)
            return [[line.text for line in queue.logs(number)] for number in numbers]

        _, (none, all_of_them) = as_user(user.pw_uid, home / "run", together)
        assert len(none[0].split()) == 1 and all_of_them == [" ".join(inside), "read"]

        def untrusted(queue: Client):
            number = queue.submit(JobSpec(Spec(argv=("sh", "-c", "id -G; ls /share"), profile="untrusted")))
            return queue.wait(number, timeout=30), [line.text for line in queue.logs(number)]

        _, (_, said) = as_user(user.pw_uid, home / "run", untrusted)
        assert len(said[0].split()) == 1 and "No such file" in "".join(said)
        with daemon.client() as queue:
            job, said = untrusted(queue)
            assert (job.reason, "No such file" in "".join(said)) == ("exit code 2", True), "root's own job is in no group of the host"
    finally:
        daemon.stop()


PARAMS = """
{{"jobName": "one", "image": "host", "dataDir": "{data}", "outputDir": "{data}/out", "taskRoles": [{{"name": "main", "taskNumber": 1,
  "cpuNumber": 1, "memoryMB": 512, "gpuNumber": 0,
  "command": "cat $PAI_DATA_DIR/there; echo no >$PAI_DATA_DIR/new; echo made >$PAI_OUTPUT_DIR/result"}}]}}
"""


def test_directories_that_a_job_file_names(home, data):
    """Data are read, results written, with the rights of whoever submits it."""
    user = pwd.getpwuid(os.geteuid()) if os.geteuid() else pwd.getpwnam("daemon")
    for place in (data / "files", data / "files/out"):
        place.mkdir()
        os.chown(place, user.pw_uid, user.pw_gid)
    (data / "files/there").write_text("read\n")
    (data / "files").chmod(0o755)
    (data / "files/out").chmod(0o700)
    job = job_of(read(PARAMS.format(data=data / "files"), "job.json", keywords=keywords()), "job.json")
    job = replace(job, spec=replace(job.spec, best_effort=True))
    daemon = DaemonProcess(home).start()

    def work(queue: Client):
        (number,) = queue.submit_gang([job])
        return queue.wait(number, timeout=30), "".join(line.text for line in queue.logs(number))

    try:
        if os.geteuid():
            with daemon.client() as queue:
                ended, said = work(queue)
        else:
            _, (refused, said) = as_user(pwd.getpwnam("bin").pw_uid, home / "run", work)
            assert refused.state is State.FAILED and "Permission denied" in said and not (data / "files/out/result").exists()
            _, (ended, said) = as_user(user.pw_uid, home / "run", work)
        assert ended.state is State.COMPLETED, ended.reason
        assert said.startswith("read") and "Read-only file system" in said
        assert (data / "files/out/result").read_text() == "made\n" and (data / "files/out/result").stat().st_uid == user.pw_uid
        assert not (data / "files/new").exists()
    finally:
        daemon.stop()
