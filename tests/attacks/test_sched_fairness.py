"""A55, one hostile user among three: floods of waits, requests that never end, answers that are never read, connections by the dozen. The
others' calls are answered, and what the daemon keeps for her is bounded."""

from __future__ import annotations

import asyncio
import json
import os
import pwd
import resource
import socket
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from support.boxes import until
from support.desk import ANN, play
from support.scheduling import DaemonProcess, as_user

from dockless.sandbox.run import detached
from dockless.sandbox.spec import Spec
from dockless.sched import Client, JobSpec
from dockless.sched.engine.admission import amounts
from dockless.sched.wire import protocol, server

pytestmark = [pytest.mark.requires("root", "userns")]

MALLORY, ANNA, BOB = (pwd.getpwnam(name).pw_uid for name in ("games", "daemon", "bin"))
PATIENCE = 60.0
SETTINGS = '[host]\ncpu_jobs = 4\n[queue]\nper_user_size = "4M"\n'


@pytest.fixture
def daemon(home: Path):
    """Its one GPU is taken for as long as it serves, so whoever asks for one waits."""
    daemon = DaemonProcess(home, gpus="1x80G", settings=SETTINGS).start()
    with daemon.client() as queue:
        holder = queue.submit(JobSpec(Spec(argv=("sleep", "1000")), gpus="1"))
        assert holder == 1
    yield daemon
    daemon.stop()
    for box in detached.list_all():
        box.remove()


def memory(daemon: DaemonProcess) -> int:
    assert daemon.process is not None
    text = Path(f"/proc/{daemon.process.pid}/statm").read_text()
    return int(text.split()[1]) * resource.getpagesize()


def a_day(queue: Client) -> list[int]:
    """What an ordinary user does; any call that is not answered is an error."""
    queue.timeout = PATIENCE
    ids = [queue.submit(JobSpec(Spec(argv=("true",)))) for _ in range(3)]
    queue.queue()
    queue.info()
    for number in ids:
        queue.job(number)
        queue.cancel(number)
    return [queue.wait(number, timeout=PATIENCE).id for number in ids]


@contextmanager
def mallory(daemon: DaemonProcess, attack: Callable[[], list[socket.socket]]) -> Iterator[None]:
    """A process of hers that carries out ``attack`` and then holds on to what it has."""
    ready, told = os.pipe()
    hold, go = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(go)
            os.chdir(daemon.socket.parent)
            os.setgroups(())
            os.setresgid(MALLORY, MALLORY, MALLORY)
            os.setresuid(MALLORY, MALLORY, MALLORY)
            held = attack()
            os.write(told, b"x")
            os.read(hold, 1)
            del held
        finally:
            os._exit(0)
    os.close(told)
    try:
        assert os.read(ready, 1) == b"x", "the attack itself failed"
        yield
    finally:
        os.close(go)
        os.waitpid(child, 0)
        os.close(ready)
        os.close(hold)


def dial() -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    connection.connect("daemon.sock")
    connection.settimeout(PATIENCE)
    return connection


def ask(connection: socket.socket, **fields) -> None:
    connection.sendall(protocol.encode({"v": protocol.VERSION, **fields}))


def waits() -> list[socket.socket]:
    """Forty waits for one job, each naming it as often as a request can."""
    with Client("daemon.sock") as queue:
        (number,) = queue.submit_many([JobSpec(Spec(argv=("true",)), gpus="1")])
    held = [dial() for _ in range(40)]
    for connection in held:
        ask(connection, op="wait", jobs=[number] * 100_000)
    return held


def many_waits() -> list[socket.socket]:
    """Forty waits for ten thousand jobs."""
    with Client("daemon.sock") as queue:
        queue.timeout = PATIENCE
        numbers = queue.submit_array(JobSpec(Spec(argv=("true",)), gpus="1"), 10_000)
    held = [dial() for _ in range(40)]
    for connection in held:
        ask(connection, op="wait", jobs=numbers)
    return held


def never_read() -> list[socket.socket]:
    """Long answers that nobody takes."""
    with Client("daemon.sock") as queue:
        queue.timeout = PATIENCE
        queue.submit_array(JobSpec(Spec(argv=("true",)), gpus="1"), 10_000)
    held = [dial() for _ in range(60)]
    for connection in held:
        for _ in range(20):
            ask(connection, op="queue", limit=100_000)
    return held


def half_requests() -> list[socket.socket]:
    """Almost a megabyte on each connection, and no end of line."""
    held = [dial() for _ in range(60)]
    for connection in held:
        try:
            connection.sendall(b'{"v":1,"op":"submit","jobs":["' + b"x" * ((1 << 20) - 100))
        except OSError:  # refused meanwhile
            continue
    return held


def connections() -> list[socket.socket]:
    held = []
    for _ in range(300):
        connection = dial()
        held.append(connection)
    return held


@pytest.mark.parametrize("attack", [waits, many_waits, never_read, half_requests, connections], ids=lambda attack: attack.__name__)
def test_the_others_are_served(daemon, attack):
    before = memory(daemon)
    with mallory(daemon, attack):
        for uid in (ANNA, BOB):
            kind, ids = as_user(uid, daemon.socket.parent, a_day)
            assert kind == "ok" and len(ids) == 3, ids
        assert memory(daemon) - before < 150 << 20
    with daemon.client() as queue:
        assert queue.ping().pid


def test_a_wait_costs_what_it_names_once(daemon):
    with daemon.client() as queue:
        number = queue.submit(JobSpec(Spec(argv=("true",))))
        jobs = queue.wait_many([number, number, number], timeout=PATIENCE)
        assert [job.id for job in jobs] == [number] * 3
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(daemon.socket))
            ask(connection, op="wait", jobs=[number] * protocol.MAX_JOBS_PER_REQUEST)
            with connection.makefile("rb") as answer:
                assert len(json.loads(answer.readline())["jobs"]) == 1
            ask(connection, op="wait", jobs=[number] * (protocol.MAX_JOBS_PER_REQUEST + 1))
            with connection.makefile("rb") as answer:
                assert json.loads(answer.readline())["error"]["code"] == "bad_input"


def test_at_the_limit_her_next_call_says_so(daemon):
    def several(queue: Client) -> tuple[str, str, str]:
        held = [dial() for _ in range(server.PER_USER)]
        for connection in held:  # each is served
            ask(connection, op="ping")
            assert connection.recv(10)
        try:
            queue.queue()
        except Exception as error:
            return type(error).__name__, str(error), error.hint
        return "", "", ""

    kind, (name, text, hint) = as_user(ANNA, daemon.socket.parent, several)
    assert kind == "ok" and name == "Refused"
    assert "user daemon" in text and str(server.PER_USER) in text and "wait" in hint


def test_all_connections_taken_leave_each_user_some(daemon, monkeypatch):
    """Five users with all that they may have; a sixth is served, and what she has beyond her own few is refused."""

    def hog(queue: Client) -> None:
        held = [dial() for _ in range(server.PER_USER)]
        os.write(told, b"x" * len(held))
        os.read(hold, 1)

    ready, told = os.pipe()
    hold, go = os.pipe()
    children = []
    for name in ("sync", "man", "lp", "mail", "news"):
        child = os.fork()
        if child == 0:
            os.close(go)
            as_user(pwd.getpwnam(name).pw_uid, daemon.socket.parent, hog)
            os._exit(0)
        children.append(child)
    try:
        count = 0
        while count < len(children) * server.PER_USER:
            count += len(os.read(ready, 4096))

        def greedy(queue: Client) -> tuple[int, str]:
            ids = a_day(queue)
            held = [dial() for _ in range(server.OWN)]
            for connection in held:
                ask(connection, op="ping")
            return len(ids), held[-1].makefile("rb").readline().decode()

        kind, (done, last) = as_user(ANNA, daemon.socket.parent, greedy)
        assert kind == "ok" and done == 3 and f"{server.IN_ALL} connections" in last
    finally:
        os.close(go)
        for child in children:
            os.waitpid(child, 0)
        for fd in (ready, told, hold):
            os.close(fd)


def test_an_array_counts_as_one_job_and_others_are_bounded(daemon, home):
    big = JobSpec(Spec(argv=("true",), env=(("X", "x" * 900_000),)), gpus="1")

    def flood(queue: Client) -> tuple[int, str]:
        queue.timeout = PATIENCE
        queue.submit_array(big, 1000)
        for done in range(1, 20):
            try:
                queue.submit(big)
            except Exception as error:
                return done, f"{type(error).__name__}: {error}"
        return 0, ""

    kind, (done, text) = as_user(MALLORY, daemon.socket.parent, flood)
    assert kind == "ok" and done == 4 and text.startswith("Refused: user games has")
    assert sum(path.stat().st_size for path in (home / "state").glob("jobs.db*")) < 20 << 20
    assert as_user(ANNA, daemon.socket.parent, a_day)[0] == "ok"


def test_ended_jobs_are_forgotten_while_it_runs(home):
    from dockless.sched.engine.lifecycle import housekeeping

    daemon = DaemonProcess(home, settings="[queue]\nkeep_jobs = 5\n").start()
    try:
        with daemon.client() as queue:
            queue.timeout = PATIENCE
            ids = queue.submit_array(JobSpec(Spec(argv=("true",)), gpus=""), 3)
            queue.wait_many(ids, timeout=PATIENCE)
            many = queue.submit_array(JobSpec(Spec(argv=("true",))), housekeeping.AFTER_ENDS - len(ids))
            queue.cancel_many(many[:-1], grace=0)
            queue.cancel(many[-1], grace=0)  # by itself: the others may be forgotten before anybody is told of them
            until(lambda: len(queue.queue(ended=True, limit=100_000)) <= 5, "the oldest are forgotten")
    finally:
        daemon.stop()


def descriptors(daemon: DaemonProcess, most: int) -> tuple[int, int]:
    """Let the daemon have so many; returns what its limit was."""
    assert daemon.process is not None
    before = resource.prlimit(daemon.process.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(daemon.process.pid, resource.RLIMIT_NOFILE, (most, before[1]))
    return before


def subordinate() -> list[socket.socket]:
    """Connections of ids that a user namespace of hers could map; no account has them."""
    os.setresuid(0, 0, 0)
    resource.setrlimit(resource.RLIMIT_NOFILE, (4096, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    held = []
    for uid in range(3_000_000_000, 3_000_000_300):
        os.setresuid(uid, uid, 0)
        for _ in range(4):
            held.append(dial())
            with held[-1].makefile("rb") as answer:
                assert b"no account" in answer.readline() and not answer.read()
        os.setresuid(0, 0, 0)
    return held


def test_ids_without_an_account_have_no_connections(daemon, monkeypatch):
    descriptors(daemon, 1024)
    monkeypatch.setitem(globals(), "MALLORY", 0)  # so that the child can take one id after the other
    with mallory(daemon, subordinate):
        with daemon.client() as queue:
            assert queue.job(1).state.value == "RUNNING"
        assert as_user(ANNA, daemon.socket.parent, a_day)[0] == "ok"
    assert "open files" not in daemon.errors()


def test_descriptors_are_kept_back_for_root(daemon):
    def sixty(queue: Client) -> bytes:
        held = [dial() for _ in range(60)]
        for connection in held[:-1]:
            with suppress(ConnectionError):  # one that is refused may be closed by now
                ask(connection, op="ping")
        os.write(told, b"x")
        os.read(hold, 1)
        with held[-1].makefile("rb") as answer:
            return answer.readline()

    descriptors(daemon, server.KEPT_BACK + 50)
    ready, told = os.pipe()
    hold, go = os.pipe()
    child = os.fork()
    if child == 0:
        kind, last = "", b""
        try:
            os.close(go)
            kind, last = as_user(ANNA, daemon.socket.parent, sixty)
        finally:  # whatever happens: two processes must not go on as one test
            os._exit(0 if kind == "ok" and b"as many connections as it can serve" in last else 1)
    try:
        assert os.read(ready, 1) == b"x"
        with daemon.client() as queue:
            assert len(a_day(queue)) == 3
    finally:
        os.close(go)
        status = os.waitpid(child, 0)[1]
        for fd in (ready, told, hold):
            os.close(fd)
    assert status == 0
    assert "open files" not in daemon.errors()


def test_a_job_is_not_lost_for_want_of_descriptors(daemon):
    with daemon.client() as queue:
        argv = ("sh", "-c", "trap 'exit 7' TERM; echo up; while :; do sleep 0.1; done")
        number = queue.submit(JobSpec(Spec(argv=argv)))
        until(lambda: [line.text for line in queue.logs(number)] == ["up"], "the job runs")
        box = detached.get(queue.job(number).attempts[-1].sandbox)
        before = descriptors(daemon, 3)
        box.send_stop()
        until(lambda: "trying again" in daemon.errors() or queue.job(number).state.ended, "the daemon sees the end")
        descriptors(daemon, before[0])
        job = queue.wait(number, timeout=PATIENCE)
        assert (job.state.value, job.exit_code) == ("FAILED", 7), job
        assert [line.text for line in queue.logs(number)] == ["up"]


@pytest.mark.parametrize("op", ["part", "submit"])
def test_many_submits_at_once_are_one_users_work(tmp_path, monkeypatch, op):
    """However many connections she has: between two of another user's turns as many jobs are looked at as of one submit."""
    connections, jobs = 20, 3 * amounts.JOBS_A_TURN
    job = {"spec": {"image": "host", "argv": ["true"]}, "hold": True}
    line = protocol.encode({"v": protocol.VERSION, "op": op, "jobs": [job] * jobs} | ({"of": jobs} if op == "part" else {}))
    monkeypatch.setenv("DOCKLESS_SIMULATED_GPUS", "1x80G")

    async def story(desk):
        desk.who = ANN
        rounds, looked_at = 0, Counter[int]()
        admit = desk.engine.admission.admit

        def counted(*given):
            looked_at[rounds] += 1
            return admit(*given)

        desk.engine.admission.admit = counted
        wires = [await asyncio.open_unix_connection(desk.path) for _ in range(connections)]
        for _, writer in wires:
            writer.write(line)
        answers = asyncio.gather(*(reader.readline() for reader, _ in wires))
        while not answers.done():
            await asyncio.sleep(0)
            rounds += 1
        assert all(json.loads(answer)["ok"] for answer in answers.result())
        assert looked_at.total() == connections * jobs and max(looked_at.values()) <= amounts.JOBS_A_TURN
        for _, writer in wires:
            writer.close()

    play(tmp_path, story)


def test_a_request_of_very_many_values_is_refused_before_it_is_decoded(daemon):
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(daemon.socket))
        with connection.makefile("rb") as answers:
            for values in (b"[]," * 340_000, b"0," * 500_000, b'{"":0},' * 140_000, b'"\\\\",[],' * 100_000):
                connection.sendall(b'{"v":1,"op":"x","y":[' + values + b"0]}\n")
                answer = json.loads(answers.readline())
                assert answer["error"]["code"] == "bad_input" and str(protocol.MAX_PARTS) in answer["error"]["message"]
    with daemon.client() as queue:
        for text in ("," * 900_000, '"[' * 250_000, "\\,{" * 200_000):  # strings cost nothing
            queue.submit(JobSpec(Spec(argv=("true",), env=(("X", text),)), gpus="1"))
