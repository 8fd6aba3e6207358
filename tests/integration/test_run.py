"""``dockless.run`` and ``Sandbox``, also those of ``aio``, with real sandboxes: what subprocess would do, and what only a sandbox does."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from support.make_image import busybox_image
from support.requires import requires

import dockless
from dockless import DEVNULL, PIPE, STDOUT, Bind, aio
from dockless.errors import (
    BadInput,
    CheckFailed,
    CommandNotExecutable,
    CommandNotFound,
    LaunchFailed,
    NotEnoughGpus,
    SandboxError,
    UnknownGpu,
    UnknownImage,
)

pytestmark = requires("userns")


def sh(script: str, **options):
    return dockless.run(["sh", "-c", script], stdin=options.pop("stdin", DEVNULL) if "input" not in options else None, **options)


# -- as subprocess


def test_captured_text_and_exit_code():
    result = sh("echo out; echo err >&2; exit 3", capture_output=True, text=True)
    assert (result.stdout, result.stderr, result.returncode, result.signal) == ("out\n", "err\n", 3, None)
    assert result.args == ("sh", "-c", "echo out; echo err >&2; exit 3") and result.image == "host"
    assert 0 < result.duration < 30 and result.usage is not None and result.usage.cpu_seconds is not None


def test_bytes_by_default_and_nothing_captured_is_none():
    assert sh("printf x", capture_output=True).stdout == b"x"
    result = sh("true")
    assert result.stdout is None and result.stderr is None


def test_input_and_big_output_without_deadlock():  # tee opens /dev/stderr anew: the pipe must let it
    data = os.urandom(3 << 20)
    result = dockless.run(["tee", "/dev/stderr"], input=data, capture_output=True)
    assert result.stdout == data and result.stderr == data


def test_a_program_that_does_not_read_its_input():
    assert dockless.run(["true"], input=b"x" * (4 << 20)).returncode == 0


def test_stderr_joined_and_files(tmp_path):
    assert sh("echo a; echo b >&2", stdout=PIPE, stderr=STDOUT, text=True).stdout == "a\nb\n"
    with open(tmp_path / "out", "w+b") as file, open("/etc/hostname", "rb") as source:
        dockless.run(["cat"], stdin=source, stdout=file)
        file.seek(0)
        assert file.read() == Path("/etc/hostname").read_bytes()


def test_a_signal_is_a_negative_return_code():
    result = sh("kill -USR1 $$")
    assert (result.returncode, result.signal, result.exit_code) == (-signal.SIGUSR1, signal.SIGUSR1, 128 + signal.SIGUSR1)


def test_check():
    with pytest.raises(CheckFailed) as caught:
        sh("echo no >&2; exit 4", check=True, capture_output=True, text=True)
    assert caught.value.result.returncode == 4 and caught.value.result.stderr == "no\n"
    assert sh("true", check=True).returncode == 0


def test_input_and_capture_conflicts():
    with pytest.raises(BadInput):
        dockless.run(["cat"], input=b"x", stdin=DEVNULL)
    with pytest.raises(BadInput):
        dockless.run(["cat"], capture_output=True, stdout=DEVNULL)
    with pytest.raises(BadInput) as caught:
        dockless.run(["cat"], input="text")
    assert "'text'" not in str(caught.value)  # it may be a password


# -- what only a sandbox does


def test_a_timeout_kills_the_whole_tree_and_is_told():
    result = sh("(trap '' TERM; sleep 300) & setsid sleep 300 & echo started; sleep 300", timeout=2.0, capture_output=True, text=True)
    assert result.timed_out and result.returncode == -signal.SIGKILL and result.exit_code == 124
    assert result.stdout == "started\n"
    with pytest.raises(CheckFailed, match="timed out"):
        sh("sleep 300", timeout=0.1, check=True)


def test_environment_directory_user_and_mounts(tmp_path):
    (tmp_path / "file").write_text("from the host")
    tmp_path.chmod(0o755)
    result = sh(
        "pwd; echo $A; hostname; cat /in/file; echo x 2>/dev/null > /in/file || echo read-only; umask",
        env={"A": "1"}, workdir="/tmp", hostname="box", mounts=[Bind(str(tmp_path), "/in", readonly=True)], umask="027",
        capture_output=True, text=True,
    )  # fmt: skip
    assert result.stdout.splitlines() == ["/tmp", "1", "box", "from the hostread-only", "0027"]


def test_nobody_outlives_the_call():
    mark = f"77{os.getpid()}"
    sh(f"setsid sleep {mark} & sleep 0.05")
    assert not [p for p in os.listdir("/proc") if p.isdigit() and mark.encode() in _command(p)]


def _command(pid: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


@requires("overlay")
def test_an_image_of_the_store(tmp_path):
    dockless.Store().load(busybox_image(tmp_path, cmd=("echo", "by default")))
    assert dockless.run("busybox", capture_output=True, text=True, stdin=DEVNULL).stdout == "by default\n"
    result = dockless.run("busybox", ["sh", "-c", "echo x > /new && cat /new"], capture_output=True, stdin=DEVNULL)
    assert result.stdout == b"x\n"
    assert dockless.run("busybox", ["ls", "/new"], capture_output=True, stdin=DEVNULL).returncode != 0


# -- bad input: one clear error each, nothing left behind (the fixture looks)


@pytest.mark.parametrize(
    ("error", "arguments", "options"),
    [
        (UnknownImage, ("no-such-image", ["true"]), {"pull": "never"}),
        (CommandNotFound, (["no-such-program"],), {}),
        (CommandNotFound, (["/no/such/program"],), {}),
        (CommandNotExecutable, (["/etc/passwd"],), {}),
        (LaunchFailed, (["true"],), {"mounts": ["/no/such/source:/x"]}),
        (BadInput, (["true"],), {"memory": "many"}),
        (BadInput, (["true"],), {"cpu_affinity": [99999]}),
    ],
)
def test_bad_input(error, arguments, options):
    with pytest.raises(error) as caught:
        dockless.run(*arguments, stdin=DEVNULL, **options)
    assert str(caught.value) and caught.value.hint


@requires("hybrid")
def test_a_limit_that_cannot_be_enforced_is_an_error_that_names_the_controller():
    with pytest.raises(dockless.LimitUnavailable) as caught:
        dockless.run(["true"], memory="1G", stdin=DEVNULL)
    assert caught.value.controller == "memory" and caught.value.hint
    result = dockless.run(["true"], memory="1G", best_effort=True, stdin=DEVNULL)
    assert result.returncode == 0 and result.warnings


@requires("cgroup2:memory")
def test_out_of_memory_is_told():
    result = sh("head -c 200M /dev/zero | tail", memory="32M", swap=0, capture_output=True)
    assert result.oom_killed and result.returncode != 0
    assert result.usage is not None and result.usage.memory_peak is not None


# -- GPUs without a daemon


@pytest.fixture
def two_gpus(monkeypatch):
    monkeypatch.setenv("DOCKLESS_SIMULATED_GPUS", "2x80G")


def test_two_runs_never_share_a_gpu(two_gpus):
    found: list[tuple[str, ...]] = []
    with dockless.Sandbox(["sleep", "300"], gpus=1, stdin=DEVNULL) as one:
        thread = threading.Thread(target=lambda: found.append(sh("true", gpus=1).gpus))
        thread.start()
        thread.join()
        assert len(one.gpus) == 1 and len(found) == 1 and found[0] != one.gpus
        with dockless.Sandbox(["sleep", "300"], gpus=1, stdin=DEVNULL), pytest.raises(NotEnoughGpus, match="simulated"):
            sh("true", gpus=1)
        with pytest.raises(NotEnoughGpus):
            sh("true", gpus=f"{one.gpus[0]}")
    assert len(sh("true", gpus="all").gpus) == 2
    with pytest.raises(UnknownGpu):
        sh("true", gpus="device=7")
    with pytest.raises(NotEnoughGpus):
        sh("true", gpus=3)


def test_a_lease_goes_with_its_process(two_gpus):
    code = "import dockless._gpus, os; lease = dockless._gpus.lease('all'); print('held', flush=True); os.read(0, 1)"
    child = subprocess.Popen([sys.executable, "-P", "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdout is not None and child.stdout.readline() == b"held\n"
    with pytest.raises(NotEnoughGpus):
        sh("true", gpus=1)
    child.kill()
    child.communicate()
    assert len(sh("true", gpus=2).gpus) == 2


# -- Sandbox


def test_sandbox_with_pipes():
    with dockless.Sandbox(["cat"], stdin=PIPE, stdout=PIPE, text=True, id="my-box") as box:
        assert box.id == "my-box" and box.pid > 0 and box.poll() is None and box.returncode is None
        assert box.stdin is not None and box.stdout is not None
        box.stdin.write("hello\n")
        box.stdin.flush()
        assert box.stdout.readline() == "hello\n"
        with pytest.raises(TimeoutError):
            box.wait(0.01)
        box.stdin.close()
        assert box.wait().code == 0 and box.returncode == 0


def test_communicate_and_its_timeout():
    with dockless.Sandbox(["cat"], stdin=PIPE, stdout=PIPE, stderr=PIPE) as box:
        assert box.communicate(b"x") == (b"x", b"")
    with dockless.Sandbox(["sleep", "300"], stdout=PIPE, stdin=DEVNULL) as box, pytest.raises(TimeoutError):
        box.communicate(timeout=0.05)


def test_leaving_the_block_ends_it():
    with dockless.Sandbox(["sleep", "300"], stdin=DEVNULL) as box:
        pid = box.pid
        box.send_signal(signal.SIGCONT)
    assert not os.path.exists(f"/proc/{pid}")
    with pytest.raises(dockless.SandboxGone):
        dockless.Sandbox(["true"]).wait()


def test_terminate_and_kill():
    with dockless.Sandbox(["sleep", "300"], stdin=DEVNULL) as box:
        box.terminate()
        assert box.wait().signal == signal.SIGTERM
    with dockless.Sandbox(["sh", "-c", "trap '' TERM; sleep 300"], stdin=DEVNULL) as box:
        box.kill()
        assert box.wait().signal == signal.SIGKILL
        box.kill()


def test_a_spec_of_ones_own():
    with dockless.Sandbox(dockless.Spec(argv=("true",)), stdin=DEVNULL) as box:
        assert box.wait().code == 0
    with pytest.raises(BadInput):
        dockless.Sandbox(dockless.Spec(argv=("true",)), memory="1G")


def test_an_interrupt_ends_everything_and_is_raised_again():
    timer = threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        sh("sleep 300", capture_output=True)
    timer.join()


# -- asyncio


def test_many_at_once_in_one_loop():
    async def main():
        many = [aio.run(["sh", "-c", f"cat; echo {i}"], input=b"in ", capture_output=True) for i in range(6)]
        results = await asyncio.gather(*many)
        assert [r.stdout for r in results] == [f"in {i}\n".encode() for i in range(6)]

    asyncio.run(main())


def test_the_loop_goes_on_meanwhile():
    async def main():
        ticks = 0

        async def tick():
            nonlocal ticks
            while True:
                await asyncio.sleep(0.01)
                ticks += 1

        ticking = asyncio.create_task(tick())
        result = await aio.run(["sleep", "0.5"], stdin=DEVNULL)
        ticking.cancel()
        return result, ticks

    result, ticks = asyncio.run(main())
    assert result.returncode == 0 and ticks >= 10


def test_a_cancelled_task_leaves_nothing():
    async def main():
        task = asyncio.create_task(aio.run(["sleep", "300"], capture_output=True, stdin=DEVNULL))
        await asyncio.sleep(0.3)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        task = asyncio.create_task(aio.run(["sleep", "300"], stdin=DEVNULL))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())


def test_async_with():
    async def main():
        async with aio.Sandbox(["cat"], stdin=PIPE, stdout=PIPE, text=True) as box:
            assert await box.communicate("hi") == ("hi", None)
            assert (await box).code == 0
        async with aio.Sandbox(["sleep", "300"], stdin=DEVNULL) as box:
            with pytest.raises(asyncio.TimeoutError):
                await box.wait(0.05)
        with pytest.raises(CommandNotFound):
            await aio.run(["no-such-program"], stdin=DEVNULL)
        with pytest.raises(CheckFailed):
            await aio.run(["false"], stdin=DEVNULL, check=True)

    asyncio.run(main())


def test_arguments_as_subprocess_takes_them():
    """Paths and bytes, behind an image's name as well as alone, and as the entry point."""
    for given in (["host", [Path("/bin/echo"), "a", Path("b"), b"c"]], [[Path("/bin/echo"), b"a", "b", Path("c")]]):
        assert dockless.run(*given, capture_output=True, text=True).stdout == "a b c\n"
    for entry in (Path("/bin/echo"), b"/bin/echo", [Path("/bin/echo")]):
        assert dockless.run("host", ["x"], entrypoint=entry, capture_output=True, text=True).stdout == "x\n"
    with dockless.Sandbox("host", [Path("/bin/echo")], stdout=PIPE) as box:
        assert box.communicate()[0] == b"\n"
    with pytest.raises(dockless.BadInput, match=r"args\[0\] is 1") as caught:
        dockless.run("host", [1])  # type: ignore[list-item]
    assert "each item a text or bytes or a path" in caught.value.hint


def test_a_child_of_ours_cannot_take_a_sandbox_from_us():
    """What the keeper says once is for whoever started it; leaving the block in a forked child ends nothing."""
    with dockless.Sandbox(["sh", "-c", "cat; exit 7"], stdin=PIPE, stdout=PIPE) as box:
        calls = (box.wait, box.poll, box.kill, box.terminate, box.communicate, lambda: box.process.wait(0), lambda: box.inner.wait(0))
        child = os.fork()
        if child == 0:
            code = 1
            try:
                refused = 0
                for call in calls:
                    try:
                        call()
                    except SandboxError as error:
                        refused += "forked" in str(error) and bool(error.hint)
                box.__exit__(None, None, None)
                code = 0 if refused == len(calls) else 2
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert box.poll() is None
        assert box.communicate(b"still here")[0] == b"still here"
        assert box.wait(60).code == 7
