"""``Sandbox`` and ``run``, also of ``aio``, around a plain child in the sandbox's place: what is asked, handed on, and given back."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
import subprocess

import pytest

from dockless import DEVNULL, PIPE, STDOUT, Sandbox, aio, run
from dockless import _box as box
from dockless._options import make_spec
from dockless.errors import BadInput, CheckFailed, SandboxGone, UnknownImage
from dockless.sandbox.gpus import lease as gpu_lease
from dockless.sandbox.run import foreground as sandbox
from dockless.sandbox.run.process import Exit


class Child:
    """What ``Sandbox`` needs of a process."""

    def __init__(self, child: subprocess.Popen[bytes]) -> None:
        self.child, self.pid, self._fd, self.owners = child, child.pid, os.pidfd_open(child.pid), 0

    def fileno(self) -> int:
        return self._fd

    def poll(self) -> int | None:
        return self.child.poll()

    def wait(self, timeout: float | None = None) -> int:
        if not select.select([self], [], [], timeout)[0]:
            raise TimeoutError
        return self.child.wait()

    def check_owner(self) -> None:
        self.owners += 1


class Inner:
    """``dockless.sandbox.ForegroundSandbox`` with a child of ours, which runs the command on this host."""

    made: list[Inner]

    def __init__(self, spec, *, id, stdin, stdout, stderr, times, labels, size, leased):
        self.labels, self.leased = labels, leased
        self.spec, self.given, self.times, self.streams, self.warnings = spec, id, times, (stdin, stdout, stderr), ("odd",)
        self.left: list[object] = []
        self.made.append(self)

    @property
    def id(self):
        return self.given or "s-1"

    def __enter__(self):
        self.kept = [one.dup() for one in self.leased]  # as its keeper does
        streams = dict(zip(("stdin", "stdout", "stderr"), self.streams, strict=True))
        self.process = Child(subprocess.Popen(self.spec.argv, **streams))
        return self

    def __exit__(self, kind, error, trace):
        self.left.append(error)
        self.kill()
        self.process.child.wait()
        os.close(self.process.fileno())
        for one in self.kept:
            one.close()

    def wait(self, timeout=None):
        try:
            code = self.process.child.wait(timeout)
        except subprocess.TimeoutExpired:
            raise TimeoutError("it still runs") from None
        return Exit(code, None, started=5.0, ended=7.0) if code >= 0 else Exit(None, -code, started=5.0, ended=7.0)

    def send_signal(self, number):
        self.process.child.send_signal(number)

    def kill(self):
        self.process.child.kill()


@pytest.fixture(autouse=True)
def made(monkeypatch):
    """The inner sandboxes, in order. ``asked``: of which image, by which policy."""
    Inner.made = []
    monkeypatch.setattr(sandbox, "ForegroundSandbox", Inner)
    return Inner.made


def sh(script: str, **how) -> Sandbox:
    return Sandbox(["sh", "-c", script], **how)


def aio_sh(script: str, **how) -> aio.Sandbox:
    return aio.Sandbox(["sh", "-c", script], **how)


# -- what is started


def test_what_is_asked_and_handed_on(made, monkeypatch):
    asked = []

    def present(image, policy, progress, platform):
        asked.append((image, policy, callable(progress)))
        return image if image == "host" else "there:1"

    monkeypatch.setattr(box, "present", present)
    with Sandbox("img", ["true"], workdir="/w", id="night", pull="always", measure=True):
        pass
    with Sandbox(["true"]) as plain:
        assert (plain.id, plain.gpus, plain.simulated, plain.warnings) == ("s-1", (), False, ("odd",))
        assert (plain.stdin, plain.stdout, plain.stderr, plain.inner, plain.pid) == (None, None, None, made[1], plain.process.pid)
    assert asked == [("img", "always", True), ("host", "missing", True)]
    assert made[0].spec == make_spec("there:1", ["true"], workdir="/w") and (made[0].given, made[0].times) == ("night", True)
    assert made[1].spec == make_spec("host", ["true"]) and (made[1].given, made[1].times, made[1].streams) == (None, False, (0, 1, 2))


def test_a_ready_spec(made):
    spec = make_spec("host", ["true"], workdir="/w")
    with Sandbox(spec):
        assert made[0].spec is spec
    for wrong in ({"args": ["x"]}, {"cpus": 1}):
        with pytest.raises(BadInput, match="a ready Spec takes no further keywords"):
            Sandbox(spec, **wrong)


def test_it_runs_once_and_not_before_it_has_begun():
    it = Sandbox(["true"], id="night")
    for early in (lambda: it.id, it.poll, it.kill, lambda: it.returncode, lambda: it.warnings):
        with pytest.raises(SandboxGone, match="the sandbox is not running"):
            early()
    with it:
        pass
    with pytest.raises(BadInput, match="a Sandbox runs once") as caught:
        it.__enter__()
    assert caught.value.subject == "night"


def test_gpus_are_held_as_long_as_it_lives(made, monkeypatch):
    monkeypatch.setenv("DOCKLESS_SIMULATED_GPUS", "2x80G")
    with Sandbox(["true"], gpus=1) as it:
        assert len(it.gpus) == 1 and it.simulated is True and made[0].spec.gpus == it.gpus
        assert it.warnings == ("the GPUs are simulated: nothing computes on them", "odd")
        assert gpu_lease.holders(it.gpus).keys() == set(it.gpus)
    assert gpu_lease.holders(it.gpus) == {}
    monkeypatch.setattr(gpu_lease.GpuLease, "simulated", False)
    with Sandbox(["true"], gpus=1) as it:
        assert it.warnings == ("odd",)


def test_a_start_that_fails_leaves_nothing(made, monkeypatch):
    """Neither pipes nor GPUs."""
    monkeypatch.setenv("DOCKLESS_SIMULATED_GPUS", "1x80G")

    def broken(self):
        assert gpu_lease.holders(self.spec.gpus).keys() == set(self.spec.gpus)
        raise UnknownImage("there is none")

    monkeypatch.setattr(Inner, "__enter__", broken)
    it = Sandbox(["true"], gpus=1, stdin=PIPE, stdout=PIPE)
    with pytest.raises(UnknownImage):
        it.__enter__()
    assert gpu_lease.holders(made[0].spec.gpus) == {} and len(made[0].spec.gpus) == 1
    with pytest.raises(UnknownImage):
        run(["true"], capture_output=True)


def test_a_pull_that_nobody_waits_for_ends():
    it = Sandbox(["true"])

    class Step:
        image = "img"

    it._pulling(Step)
    it._given_up = True
    with pytest.raises(box.Cancelled, match="img"):
        it._pulling(Step)


# -- streams


def test_file_objects_of_ones_own():
    with sh("read line; echo got $line; echo err >&2; cat", stdin=PIPE, stdout=PIPE, stderr=PIPE, text=True) as it:
        it.stdin.write("a\n")
        it.stdin.flush()
        assert it.stdout.readline() == "got a\n"
        assert it.communicate("more") == ("more", "err\n") and it.returncode == 0
        assert (it.stdin, it.stdout, it.stderr) == (None, None, None)


def test_a_stream_that_was_closed_is_neither_fed_nor_read():
    with sh("cat; echo end", stdin=PIPE, stdout=PIPE) as it:
        it.stdin.close()
        assert it.communicate() == (b"end\n", None)
    with sh("cat >/dev/null; echo end >&2", stdin=PIPE, stdout=PIPE, stderr=PIPE) as it:
        it.stdout.close()
        assert it.communicate(b"x") == (None, b"end\n")


def test_input_wants_a_pipe(made):
    with Sandbox(["true"]) as it, pytest.raises(BadInput, match="input without a pipe to write it to"):
        it.communicate(b"x")
    assert it.process.owners == 1
    with Sandbox(["cat"], stdin=DEVNULL, stdout=PIPE, stderr=STDOUT) as it:
        assert it.communicate() == (b"", None)


def test_what_was_still_buffered_has_no_reader_any_more():
    with sh("exec <&-; exit 0", stdin=PIPE) as it:
        it.wait()
        it.stdin.write(b"x")


def test_leaving_closes_the_streams():
    with sh("echo out; cat", stdin=PIPE, stdout=PIPE, stderr=PIPE) as it:
        streams = (it.stdin, it.stdout, it.stderr)
    assert all(stream.closed for stream in streams)


# -- waiting, signals


def test_waiting_and_its_time():
    with Sandbox(["sleep", "1000"], stdin=PIPE, stdout=PIPE) as it:
        assert it.poll() is None and it.returncode is None
        with pytest.raises(TimeoutError):
            it.wait(0)
        with pytest.raises(TimeoutError, match="sandbox s-1 still runs after 0 s"):
            it.communicate(timeout=0)


def test_how_it_ended():
    with sh("exit 3") as it:
        assert it.wait() == Exit(3, None, started=5.0, ended=7.0)
        assert it.poll() == it.wait() and it.returncode == 3


@pytest.mark.parametrize(
    ("act", "number"),
    [(Sandbox.terminate, signal.SIGTERM), (Sandbox.kill, signal.SIGKILL), (lambda it: it.send_signal(signal.SIGUSR1), signal.SIGUSR1)],
)
def test_signals(act, number):
    with Sandbox(["sleep", "1000"]) as it:
        act(it)
        assert it.wait().signal == number and it.returncode == -number


def test_what_goes_wrong_inside_is_told_to_the_sandbox(made):
    error = ValueError("oh")
    with pytest.raises(ValueError, match="oh"), Sandbox(["true"]):
        raise error
    assert made[0].left == [error]


# -- run


def test_run(made):
    result = run(["sh", "-c", "cat; echo err >&2; exit 3"], input="caf\xe9", capture_output=True, text=True, id="night")
    assert (result.stdout, result.stderr, result.returncode, result.gpus, result.warnings) == ("caf\xe9", "err\n", 3, (), ("odd",))
    assert (result.args, result.image, made[0].given, made[0].left) == (("sh", "-c", "cat; echo err >&2; exit 3"), "host", "night", [None])
    result = run(["sh", "-c", "cat"], input="\xe9", capture_output=True, encoding="latin-1")
    assert result.stdout == "\xe9"
    assert run(["printf", r"\377"], capture_output=True, text=True, errors="replace").stdout == "\ufffd"
    assert run(["cat"], stdin=PIPE, stdout=PIPE).stdout == b"" and run(["true"]).stdout is None
    assert run(["sh", "-c", "echo err >&2"], stdout=PIPE, stderr=STDOUT).stdout == b"err\n"
    assert run(["sh", "-c", "echo err >&2"], stderr=PIPE, stdout=DEVNULL).stderr == b"err\n"
    with pytest.raises(CheckFailed) as caught:
        run(["false"], check=True)
    assert caught.value.result.returncode == 1 and run(["false"]).returncode == 1 and run(["true"], check=True).returncode == 0


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"input": b"x", "stdin": DEVNULL}, "input and stdin together"),
        ({"input": b"x", "stdin": PIPE}, "input and stdin together"),
        ({"capture_output": True, "stdout": PIPE}, "capture_output with stdout or stderr"),
        ({"capture_output": True, "stderr": DEVNULL}, "capture_output with stdout or stderr"),
        ({"input": "text"}, "input is a text, not bytes"),
        ({"input": b"bytes", "text": True}, "input is bytes, not a text"),
    ],
)
def test_what_run_refuses_before_anything_starts(made, wrong, said):
    for call in (run, lambda *words, **how: asyncio.run(aio.run(*words, **how))):
        with pytest.raises(BadInput, match=said):
            call(["true"], **wrong)
    assert made == []


def test_an_interrupt_ends_it_and_is_raised_again(made, monkeypatch):
    def interrupted(self, *_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(Sandbox, "communicate", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(["sleep", "1000"])
    assert isinstance(made[0].left[0], KeyboardInterrupt) and made[0].process.child.returncode == -9


# -- asyncio


def test_run_in_a_loop(made):
    result = asyncio.run(aio.run(["sh", "-c", "cat; exit 3"], input="x", capture_output=True, text=True, id="night"))
    assert (result.stdout, result.stderr, result.returncode, made[0].given, made[0].left) == ("x", "", 3, "night", [None])
    with pytest.raises(CheckFailed):
        asyncio.run(aio.run(["false"], check=True))
    assert asyncio.run(aio.run(["false"])).returncode == 1


def test_async_with(made):
    async def main():
        async with aio_sh("read line; echo got $line; cat", stdin=PIPE, stdout=PIPE, text=True) as it:
            await it.stdin.write("a\n")
            assert await it.stdout.readline() == "got a\n"
            with pytest.raises(TimeoutError):
                await it.wait(0)
            assert await it.communicate("more") == ("more", None)
            assert (await it).code == 0 and (await it.wait()).code == 0
        with contextlib.suppress(ValueError):
            async with aio.Sandbox(["sleep", "1000"]):
                raise ValueError("oh")

    asyncio.run(main())
    assert made[0].left == [None] and str(made[1].left[0]) == "oh"


def test_a_start_that_is_cancelled_arrives_and_is_ended(made, monkeypatch):
    """Who cancels twice waits all the same."""
    begin = Inner.__enter__

    async def main():
        loop = asyncio.get_running_loop()
        starting, go_on = asyncio.Event(), asyncio.Event()

        def slow(self):
            loop.call_soon_threadsafe(starting.set)
            asyncio.run_coroutine_threadsafe(go_on.wait(), loop).result(20)
            return begin(self)

        monkeypatch.setattr(Inner, "__enter__", slow)
        it = aio.Sandbox(["sleep", "1000"], stdout=PIPE)
        task = asyncio.ensure_future(it.__aenter__())
        await starting.wait()
        for _ in range(2):
            task.cancel()
            await asyncio.sleep(0)
        assert not task.done()
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert it.box._given_up

    asyncio.run(main())
    assert [type(error) for error in made[0].left] == [asyncio.CancelledError] and made[0].process.child.returncode == -9


def test_a_start_that_is_cancelled_and_fails_has_nothing_to_end(made, monkeypatch):
    async def main():
        loop = asyncio.get_running_loop()
        starting, go_on = asyncio.Event(), asyncio.Event()

        def broken(self):
            loop.call_soon_threadsafe(starting.set)
            asyncio.run_coroutine_threadsafe(go_on.wait(), loop).result(20)
            raise UnknownImage("there is none")

        monkeypatch.setattr(Inner, "__enter__", broken)
        task = asyncio.ensure_future(aio.Sandbox(["true"], stdout=PIPE).__aenter__())
        await starting.wait()
        task.cancel()
        await asyncio.sleep(0)
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert made[0].left == []
