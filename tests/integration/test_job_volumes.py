"""Directories that the settings give to every job: with its user's rights, and no more."""

from __future__ import annotations

import os
import pwd

import pytest
from support.scheduling import DaemonProcess, as_user

from dockless.sandbox.spec import Spec
from dockless.sched import Client, JobSpec, State

pytestmark = pytest.mark.requires("userns")


def shell(script: str) -> JobSpec:
    return JobSpec(Spec(argv=("sh", "-c", script)))


@pytest.fixture
def data(tmp_path_factory):
    """Where every user may come to."""
    place = tmp_path_factory.mktemp("data")
    for directory in (place, place.parent, place.parent.parent):
        if directory.stat().st_uid == os.geteuid():
            directory.chmod(0o755)
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
            assert job.state is State.FAILED and f"{data}/users/{user} " in job.reason
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
        assert (outcome, job.state) == ("ok", State.FAILED) and "may not be read by this user" in job.reason
        with daemon.client() as queue:
            assert ended(queue, "true")[0].state is State.COMPLETED
    finally:
        daemon.stop()
