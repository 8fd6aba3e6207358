"""Calls in a Python that has imported its modules: what they get, what they give, how they fail, and that nothing of them is left."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Iterator

import pytest
from support import python_images
from support.boxes import load, own_children, until
from support.make_image import directory, file
from support.requires import requires

import dockless
from dockless import Zygote, aio
from dockless.errors import BadInput, CallFailed, CallTimedOut, SandboxGone, ZygoteError, ZygoteLost
from dockless.sandbox.run.places import root

pytestmark = [requires("userns", "overlay"), pytest.mark.skipif(not python_images.PYTHON.exists(), reason="no Python in /usr")]

MODULES = {
    "slow": "import time\nloaded = time.time()\nstate = []\ndef add(x):\n    state.append(x)\n    return state\n",
    "threads": "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True, name='worker').start()\n",
    "native": "import _thread, time\n_thread.start_new_thread(time.sleep, (1000,))\n",
    "shared": "import mmap\nkept = mmap.mmap(-1, 4096)\n",
    "readable": (
        "import mmap\nwith open('/tmp/kept', 'w+b') as file:\n    file.truncate(4096)\n"
        "    kept = mmap.mmap(file.fileno(), 4096, prot=mmap.PROT_READ)\n"
    ),
    "harmless": "import mmap\nwith open('/opt/slow.py', 'rb') as file:\n    kept = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)\n",
    "broken": "print('said this')\nraise RuntimeError('as it is')\n",
    "dies": "import os, sys\nprint('last words', flush=True)\nos.kill(os.getpid(), 11)\n",
    "breaks": (
        "import os\ndef refuse(*_):\n    raise OSError('as it is')\n"
        "os.register_at_fork(after_in_child=lambda: setattr(os, 'dup2', refuse))\n"
    ),
    "ticking": """
import os, signal, threading
last = []
def tick(*_):
    try:
        thread = threading.Thread(target=lambda: last.append("ran"))
        thread.start()
        thread.join()
    except RuntimeError as error:
        last.append(str(error))
def arm():
    last[:] = []
    signal.setitimer(signal.ITIMER_REAL, 0.2)
signal.signal(signal.SIGALRM, tick)
os.register_at_fork(after_in_parent=arm)
""",
    "opens": "import os\nkept = os.open('/', os.O_RDONLY)\nother = os.pipe()\n",
}


@pytest.fixture
def image(tmp_path) -> str:
    own = [file(f"opt/{name}.py", text) for name, text in MODULES.items()]
    return python_images.load(tmp_path, more=[directory("opt"), *own], env={"PYTHONPATH": "/opt"})


@pytest.fixture(autouse=True)
def leaves_nothing() -> Iterator[None]:
    def places() -> set[str]:
        return {path.name for path in root("running").iterdir()} if root("running").is_dir() else set()

    before = places()
    yield
    until(lambda: places() <= before, "that nothing of a zygote is left")
    assert threading.active_count() == 1


@pytest.mark.parametrize("options", [
    {}, {"profile": "untrusted"}, {"user": "1000:100", "root": "tmpfs", "ulimits": {"nofile": 99}, "umask": 0o77, "workdir": "/opt"},
])  # fmt: skip
def test_a_call_is_what_any_program_of_such_a_sandbox_is(image, options):
    script = """
import os, re, resource
status = [line for line in open('/proc/self/status') if re.match('Umask|Uid|Gid|Groups|Cap|NoNew|Threads|SigBlk', line)]
mounts = sorted(line.split()[4] for line in open('/proc/self/mountinfo'))
limits = open('/proc/self/limits').read()
own = [os.stat('/proc/self/' + name).st_uid for name in ('environ', 'maps', 'fd/1', 'fd/2')], [os.fstat(fd).st_uid for fd in (1, 2)]
open('/proc/self/environ').close(), open('/dev/stderr', 'a').close()
found = [os.getcwd(), sorted(os.environ.items()), status, mounts, limits, sorted(os.listdir('/')), os.uname().nodename, own]
"""
    plain = dockless.run(image, ["python3", "-c", f"{script}\nprint(found)"], capture_output=True, text=True, check=True, **options).stdout
    with Zygote(image, ["json"], **options) as zygote:
        found = zygote.run_code(f"{script}\nprint(found)")
    assert found.stdout == plain
    assert found.value is None


def test_values_streams_and_the_time(image):
    with Zygote(image, ["slow"]) as zygote:
        called = zygote.call("slow:add", {"a": (1, b"x", 2j)})
        assert called.value == [{"a": (1, b"x", 2j)}]
        assert 0 < called.seconds < 20
        assert zygote.call("slow:add", 2).value == [2]  # nothing of another call
        first, second = (zygote.run_code("import slow\nslow.loaded").value for _ in range(2))
        assert first == second
        code = "import os, sys\nprint('out', n)\nprint('err', file=sys.stderr)\nos.system('echo child')\nn + 1"
        called = zygote.run_code(code, {"n": 41})
        assert called.value == 42
        assert sorted(called.stdout.splitlines()) == ["child", "out 41"]
        assert called.stderr == "err\n"
        assert zygote.run_code("import random\nrandom.random()").value != zygote.run_code("import random\nrandom.random()").value


def test_much_comes_whole_and_too_much_is_said(image):
    with Zygote(image) as zygote:
        called = zygote.run_code("print('x' * n)\n'y' * n", {"n": 3 << 20})
        assert len(called.stdout) == (3 << 20) + 1
        assert len(called.value) == 3 << 20
        with pytest.raises(CallFailed, match="are the most"):
            zygote.run_code("'y' * (17 << 20)")
        assert zygote.run_code("len(text)", {"text": "z" * (5 << 20)}).value == 5 << 20


def test_exceptions_come_as_records(image):
    with Zygote(image) as zygote:
        with pytest.raises(CallFailed) as caught:
            zygote.run_code("print('before')\ndef f(x):\n    return 1 / x\nf(0)")
        error = caught.value
        assert (error.kind, error.text, error.stdout) == ("ZeroDivisionError", "division by zero", "before\n")
        assert "return 1 / x" in error.traceback
        assert "_execute" not in error.traceback
        for code, kind in (
            ("import sys; sys.exit(3)", "SystemExit"),
            ("x =", "SyntaxError"),
            ("import json; json.loads('{')", "json.decoder.JSONDecodeError"),
        ):
            with pytest.raises(CallFailed) as caught:
                zygote.run_code(code)
            assert caught.value.kind == kind
        for function in ("math:nothing", "nothing:nothing"):
            with pytest.raises(CallFailed, match="nothing"):
                zygote.call(function)


def test_a_call_that_dies_is_told_and_the_next_one_runs(image):
    with Zygote(image) as zygote:
        for code, message in (
            ("import os; os._exit(3)", "exit code 3"),
            ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "SIGKILL"),
            ("import os; os.closerange(0, 100)", "without an answer"),
            ("import os\nos.kill(-1, 9)\nos.kill(os.getpid(), 9)", "SIGKILL|ProcessLookupError"),
        ):
            with pytest.raises(CallFailed, match=message):
                zygote.run_code(code)
        assert zygote.run_code("1").value == 1


def test_a_timeout_kills_all_that_the_call_has_started(image):
    with Zygote(image, timeout=30) as zygote:
        assert zygote.spec.timeout == 30
        began = time.monotonic()
        child = "import subprocess\nprint('begun', flush=True)\nsubprocess.Popen(['sh', '-c', 'exec setsid sleep 4321.5'])\n"
        code = child + "import time\ntime.sleep(1000)"
        with pytest.raises(CallTimedOut, match=r"0\.5 seconds") as caught:
            zygote.run_code(code, timeout="500ms")
        assert time.monotonic() - began < 20
        assert caught.value.stdout == "begun\n"
        assert caught.value.exit_code == 124
        until(lambda: not _processes(b"4321.5"), "that what it has started is dead")
        zygote.run_code("import subprocess\nsubprocess.Popen(['sleep', '4321.6']).pid")
        until(lambda: not _processes(b"4321.6"), "that what a call has left is dead")


def _processes(argument: bytes) -> list[str]:
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as stream:
                if argument in stream.read().split(b"\0"):
                    found.append(pid)
        except OSError:
            pass
    return found


@pytest.mark.parametrize(("preload", "message", "note"), [
    ("nothing.there", "cannot import nothing.there: ModuleNotFoundError", "Traceback"),
    ("broken", "cannot import broken: RuntimeError: as it is", "opt/broken.py"),
    ("threads", "threads are running after the imports: worker", ""),
    ("native", "threads are running after the imports: python3", ""),
    ("shared", "memory is shared after the imports", ""),
    ("readable", "memory is shared after the imports: /tmp/kept", ""),  # a call could make it writable, mprotect(2)
])  # fmt: skip
def test_what_cannot_be_preloaded_is_said(image, preload, message, note):
    with pytest.raises(ZygoteError, match=message) as caught, Zygote(image, ["json", preload]):
        pass
    assert caught.value.hint
    assert note in "".join(getattr(caught.value, "__notes__", ()))


def test_a_file_that_is_mapped_to_be_read_is_no_shared_memory(image):
    with Zygote(image, ["harmless"], size=1) as zygote:
        assert zygote.run_code("import harmless\nharmless.kept[:6]").value == b"import"


def test_a_child_that_cannot_begin_is_said(image):
    with Zygote(image, ["breaks"], size=1) as zygote:
        with pytest.raises(CallFailed, match="could not begin: OSError: as it is"):
            zygote.run_code("1")
        with pytest.raises(ZygoteError, match="could not begin: OSError: as it is"), zygote.branch(["json"]):
            pass


def test_processes_that_a_call_has_forked_do_not_answer_for_it(image):
    code = "import os, time\nchild = not os.fork()\ntime.sleep(0 if child else 0.5)\n'child' if child else 'the call'"
    with Zygote(image, size=1) as zygote:
        for _ in range(3):
            assert zygote.run_code(code).value == "the call"


def test_a_module_may_have_threads_for_a_moment_between_calls(image):
    """The zygote is where it was when it has forked: no thread is born where a call is."""
    with Zygote(image, ["ticking"], size=1) as zygote:
        said = []
        for _ in range(5):
            time.sleep(0.5)  # so long after one process of a call another one is made
            said.append(zygote.run_code("import ticking\nticking.last").value)
        assert ["ran"] in said[2:], said


def test_what_is_rehearsed_leaves_nothing_behind(image):
    with Zygote(image, size=1) as zygote:
        assert zygote.run_code("import linecache\nlen(linecache.cache)").value == 1  # its own
        assert zygote.run_code("import sys\nsorted(name for name in vars(sys.modules['__main__']) if name != 'sys')").value == [
            "__builtins__", "__doc__", "__loader__", "__name__", "__package__", "__spec__",
        ]  # fmt: skip


def test_nothing_is_done_to_a_call_that_is_over(image):
    with Zygote(image, size=1) as zygote:
        running = zygote._begin({"code": "1", "variables": {"d": []}}, None)
        assert running.wait().outcome == {"value": 1}
        del running.box  # its descriptors are others' by now
        running.kill()


def test_nobody_enters_the_sandbox_of_a_call(image):
    with Zygote(image, size=1) as zygote:
        until(lambda: zygote._process._seats._waiting, "that one waits")
        assert not (zygote._process._seats._waiting[0].directory / "door").exists()


def test_a_module_that_kills_its_zygote_is_said(image):
    with pytest.raises(ZygoteLost, match="signal 11, before its imports were done") as caught, Zygote(image, ["dies"]):
        pass
    assert "last words" in caught.value.hint


def test_an_image_without_python_is_said(tmp_path):
    with pytest.raises(ZygoteError, match="has no python3") as caught, Zygote(load(tmp_path)):
        pass
    assert "image with Python" in caught.value.hint


def test_a_zygote_that_has_ended_is_said(image):
    with Zygote(image) as zygote:
        assert zygote.run_code("1").value == 1
        running = threading.Thread(target=lambda: lost.append(_error(zygote, "import time; time.sleep(1000)")))
        lost: list[Exception] = []
        running.start()
        until(lambda: not zygote._process._seats._waiting or len(zygote._process._seats._waiting) >= 4, "that its sandboxes wait")
        init = zygote._process._box.process.pid
        os.kill(init, signal.SIGKILL)
        running.join(30)
        assert isinstance(lost[0], (ZygoteLost, CallFailed)), lost
        until(lambda: isinstance(_error(zygote, "1"), ZygoteLost), "that it is lost")
    with pytest.raises(SandboxGone, match="not open"):
        zygote.run_code("1")
    with pytest.raises(BadInput, match="once"):
        zygote.__enter__()


def _error(zygote: Zygote, code: str) -> Exception | None:
    try:
        zygote.run_code(code)
    except Exception as error:
        return error
    return None


def test_a_tree_of_zygotes(image):
    code = "import sys\n[name in sys.modules for name in ('slow', 'opens', 'wave')]"
    with Zygote(image, ["slow"], size=1) as base:
        loaded = base.run_code("import slow\nslow.loaded").value
        with base.branch(["opens"], size=1) as middle, middle.branch(["wave"], size=1) as top:
            assert base.run_code(code).value == [True, False, False]
            assert middle.run_code(code).value == [True, True, False]
            assert top.run_code(code).value == [True, True, True]
            assert top.run_code("import slow\nslow.loaded").value == loaded
            assert base.run_code(code, needs=["opens", "slow"]).value == [True, True, False]
            assert base.run_code(code, needs=["opens", "wave", "json"]).value == [True, True, True]
            assert base.run_code(code, needs=["wave"]).value == [True, False, False]
            with pytest.raises(ZygoteError, match="cannot import broken"), middle.branch(["broken"]):
                pass
            assert middle.run_code("1").value == 1
        with pytest.raises(SandboxGone):
            top.run_code("1")
        assert base.run_code(code, needs=["opens"]).value == [True, False, False]


def test_sandboxes_that_end_while_the_zygote_forks_into_them_do_it_no_harm(image):
    with Zygote(image, size=1) as zygote:
        seats = zygote._process._seats
        for _ in range(20):
            box = seats.begin()
            box.take(zygote._process)
            seats.end(box)
        assert zygote.run_code("1").value == 1


def test_calls_from_several_threads(image):
    with Zygote(image, ["json"], size=3) as zygote:
        found: list[int] = []

        def work(number: int) -> None:
            found.extend(zygote.run_code("n * 2", {"n": number * 10 + each}).value for each in range(6))

        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(found) == sorted((number * 10 + each) * 2 for number in range(4) for each in range(6))


def test_the_same_to_be_awaited(image):
    async def main() -> None:
        async with aio.Zygote(image, ["slow"], size=2) as zygote:
            assert (await zygote.call("slow:add", 1)).value == [1]
            found = await asyncio.gather(*[zygote.run_code("n", {"n": n}) for n in range(4)])
            assert [one.value for one in found] == [0, 1, 2, 3]
            async with zygote.branch(["json"], size=1) as other:
                assert (await other.run_code("1")).value == 1
            began = time.monotonic()
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(zygote.run_code("import time; time.sleep(1000)"), 1)
            assert time.monotonic() - began < 20
            assert (await zygote.run_code("2")).value == 2

    asyncio.run(main())
    until(lambda: threading.active_count() == 1 or _no_executor(), "that its threads have ended")


def _no_executor() -> bool:
    return all("asyncio" in thread.name for thread in threading.enumerate()[1:])


def test_no_descriptor_and_no_process_of_it_stays(image):
    counts = []
    for _ in range(3):
        with Zygote(image, ["json"], size=2) as zygote, zygote.branch(["slow"], size=1) as branch:
            assert zygote.run_code("1").value == branch.run_code("1").value == 1
            with pytest.raises(CallTimedOut):
                zygote.run_code("import time; time.sleep(100)", timeout=0.1)
        counts.append((len(os.listdir("/proc/self/fd")), own_children()))
    assert counts[2] == counts[1]
    assert not counts[2][1]


@requires("cgroup2:memory")
def test_memory_of_a_call_is_limited_by_itself(image):
    with Zygote(image, memory="64M") as zygote:
        with pytest.raises(CallFailed, match="for memory"):
            zygote.run_code("x = bytearray(200 << 20)")
        assert zygote.run_code("1").value == 1


@requires("root")
def test_a_call_is_in_the_cgroup_of_its_own_sandbox(image):
    with Zygote(image, size=1) as zygote:
        until(lambda: zygote._process._seats._waiting, "that one waits")
        box = zygote._process._seats._waiting[0]
        if box.cgroup is None:
            pytest.skip("no place for cgroups")
        until(lambda: len((box.cgroup.path / "cgroup.procs").read_text().split()) == 2, "that its process is in the group")
