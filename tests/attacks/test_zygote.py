"""Hostile calls against the zygote, against other calls and against the host; hostile modules in the zygote."""

from __future__ import annotations

import os
import socket
import subprocess
import threading
from types import SimpleNamespace

import pytest
from support import python_images
from support.boxes import until
from support.make_image import directory, file
from support.requires import requires

import dockless
from dockless import Zygote
from dockless.errors import BadAnswer, CallFailed, CallTimedOut, ZygoteError, ZygoteLost
from dockless.sandbox.zygote import server
from dockless.sandbox.zygote.seats import namespace_id

pytestmark = [requires("userns", "overlay"), pytest.mark.skipif(not python_images.PYTHON.exists(), reason="no Python in /usr")]

# What the kernel lets its caller do: names, and the errno of each, 0 where it succeeded.
TRIES = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
MACHINE = os.uname().machine
NUMBERS = {
    "x86_64": {"clone": 56, "unshare": 272, "setns": 308, "mount": 165, "umount2": 166, "pivot_root": 155, "keyctl": 250, "bpf": 321,
               "ptrace": 101, "add_key": 248, "perf_event_open": 298, "kexec_load": 246, "process_vm_readv": 310},
    "aarch64": {"clone": 220, "unshare": 97, "setns": 268, "mount": 40, "umount2": 39, "pivot_root": 41, "keyctl": 219, "bpf": 280,
                "ptrace": 117, "add_key": 217, "perf_event_open": 241, "kexec_load": 104, "process_vm_readv": 270},
}[MACHINE]
NUMBERS.update(open_tree=428, move_mount=429, fsopen=430, clone3=435, mount_setattr=442, io_uring_setup=425, pidfd_getfd=438)
def tried(name, *arguments):
    ctypes.set_errno(0)
    result = libc.syscall(NUMBERS[name], *arguments)
    if name == "clone" and result == 0:
        os._exit(0)  # the child
    return 0 if result >= 0 else ctypes.get_errno()
def descriptors():
    found = {}
    for number in os.listdir("/proc/self/fd"):
        try:
            found[int(number)] = os.readlink("/proc/self/fd/" + number)
        except OSError:  # that of the listing
            pass
    return found
def socket():
    return next(fd for fd, link in descriptors().items() if fd > 2 and link.startswith("socket"))
def of_the_namespaces():
    found = {}
    own = {name: os.open("/proc/self/ns/" + name, os.O_RDONLY) for name in ("mnt", "pid", "ipc", "net", "user", "uts", "cgroup")}
    for name, kind in (("mnt", 0x20000), ("ipc", 0x8000000), ("net", 0x40000000), ("user", 0x10000000), ("uts", 0x4000000)):
        found["setns " + name] = tried("setns", own[name], kind)
        found["setns any " + name] = tried("setns", own[name], 0)
        found["unshare " + name] = tried("unshare", kind)
        found["clone " + name] = tried("clone", kind | 17, 0, 0, 0, 0)
    found["clone parent"] = tried("clone", 0x8000 | 17, 0, 0, 0, 0)
    for name in ("clone3", "mount", "umount2", "pivot_root", "open_tree", "move_mount", "fsopen", "mount_setattr", "bpf", "keyctl",
                 "add_key", "perf_event_open", "kexec_load", "io_uring_setup"):
        found[name] = tried(name, b"/", b"/", 0, 0, 0)
    for fd in own.values():
        os.close(fd)
    return found
"""
MODULES = {
    "tries": TRIES,
    "early": "import tries\nfound = tries.of_the_namespaces()\nstatus = open('/proc/self/status').read()\n",
    "opens": "import os, socket\nkept = [os.open('/', os.O_RDONLY), *os.pipe(), socket.socket().fileno()]\nnumbers = kept[:]\n",
    "state": "value = ['clean']\n",
    "liar": "import os, tries\nos.write(tries.socket(), b'[[[')\n",
    "records": "raise type('E' * 100000, (Exception,), {'__str__': lambda self: 'm' * (1 << 22)})()\n",
    "greedy": """
import os, tries
seen, fork = [], os.fork
def looking():
    seen.append(sorted(tries.descriptors().values()))
    return fork()
os.fork = looking
""",
    "pretender": """
import os, socket, tries
fork = os.fork
def first():
    for fd, link in tries.descriptors().items():
        if link.startswith("socket"):
            with socket.socket(fileno=os.dup(fd)) as one:
                if one.type == socket.SOCK_STREAM:
                    one.send(b"h")  # in the place of the child
    return fork()
os.fork = first
""",
    "numbers": "import os, tries\nos.write(tries.socket(), b'{\"threads\": 3}')\n",
}


@pytest.fixture
def image(tmp_path) -> str:
    own = [file(f"opt/{name}.py", text) for name, text in MODULES.items()]
    return python_images.load(tmp_path, more=[directory("opt"), *own], env={"PYTHONPATH": "/opt"})


def channel_of(code: str) -> str:
    """Code that has the descriptor of the call's socket."""
    return f"import os, tries\nfd = tries.socket()\n{code}"


@pytest.mark.parametrize("options", [{}, {"user": "1000:1000"}, {"profile": "untrusted"}], ids=["root", "user", "untrusted"])
def test_a_call_has_the_rights_of_a_program_of_such_a_sandbox(image, options):
    script = "import tries\nfound = tries.of_the_namespaces()"
    plain = dockless.run(image, ["python3", "-c", f"{script}\nprint(found)"], capture_output=True, text=True, check=True, **options).stdout
    with Zygote(image, ["early", "tries"], **options) as zygote:
        found = zygote.run_code(f"{script}\nfound").value
        status = zygote.run_code("open('/proc/self/status').read()").value
        early = zygote.run_code("import early\n(early.found, early.status)").value
    as_program = eval(plain)
    different = {name for name, errno in found.items() if errno != as_program[name]}
    assert different <= {"clone parent"}  # refused, so that no child is the zygote's to collect
    assert found["clone parent"] == 1
    assert not [name for name, errno in found.items() if errno == 0]
    assert "NoNewPrivs:\t1" in status
    # The modules: setns into namespaces that they have descriptors of, which are their own, and nothing else besides.
    mine, _ = early
    assert {name for name, errno in mine.items() if errno == 0} <= {"setns mnt", "setns ipc", "setns net", "setns uts"}


@pytest.mark.parametrize("user", ["0:0", "1000:1000"])
def test_a_call_finds_nobody_else(image, user):
    script = """
import os, tries
processes = sorted(int(name) for name in os.listdir('/proc') if name.isdigit())
signalled, traced = [], []
for pid in range(1, 3000):
    if pid in processes:
        continue
    for kill in (os.kill, os.killpg):
        try:
            kill(pid, 0)
            signalled.append(pid)
        except OSError:
            pass
    if tries.tried('ptrace', 16, pid, 0, 0) == 0:
        traced.append(pid)
(processes, os.getppid(), signalled, traced, tries.tried('ptrace', 16, 1, 0, 0))
"""
    with Zygote(image, ["tries"], user=user) as zygote:
        other = threading.Thread(target=lambda: _quietly(zygote, "import time; time.sleep(3)"))
        other.start()
        processes, parent, signalled, traced, of_init = zygote.run_code(script).value
        other.join()
    assert processes == [1, 2]
    assert (parent, signalled, traced) == (0, [], [])
    assert of_init != 0


def _quietly(zygote: Zygote, code: str) -> None:
    try:
        zygote.run_code(code)
    except (CallFailed, ZygoteLost):
        pass


def test_nothing_that_a_call_does_is_seen_by_another_or_by_the_zygote(image):
    leaves = """
import ctypes, mmap, os, socket, state
state.value.append('dirty')
libc = ctypes.CDLL(None, use_errno=True)
open('/opt/state.py', 'w').write('value = ["changed"]')
open('/tmp/here', 'w').write('x')
open('/dev/shm/here', 'w').write('x')
segment = libc.shmget(4711, 4096, 0o1666)
queue = libc.msgget(4711, 0o1666)
kept = socket.socket(socket.AF_UNIX)
kept.bind('\\0here')
kept.listen()
import time
print('ready', flush=True)
time.sleep(seconds)
(segment >= 0, queue >= 0)
"""
    looks = """
import ctypes, os, socket, state
libc = ctypes.CDLL(None, use_errno=True)
found = [os.path.exists('/tmp/here'), os.path.exists('/dev/shm/here'), libc.shmget(4711, 4096, 0) >= 0, libc.msgget(4711, 0) >= 0]
try:
    socket.socket(socket.AF_UNIX).connect('\\0here')
    found.append(True)
except OSError:
    found.append(False)
(found, state.value, open('/opt/state.py').read())
"""
    with Zygote(image, ["state"], size=3) as zygote:
        assert zygote.run_code(leaves, {"seconds": 0}).value[1]
        results: list[object] = []
        other = threading.Thread(target=lambda: results.append(zygote.run_code(leaves, {"seconds": 4}).stdout))
        other.start()
        for _ in range(4):
            assert zygote.run_code(looks).value == ([False] * 5, ["clean"], "value = ['clean']\n")
        other.join()
        assert results == ["ready\n"]
        with zygote.branch(["json"], size=1) as branch:
            assert branch.run_code(looks).value == ([False] * 5, ["clean"], "value = ['clean']\n")


def test_the_program_s_own_file_leads_nowhere_that_could_be_changed(image):
    script = """
import os
tried = []
for change in (
    lambda path: os.chmod(path, 0o700), lambda path: os.chown(path, 5, 5), lambda path: os.utime(path, (1, 1)),
    lambda path: os.setxattr(path, 'user.x', b'y'), lambda path: open(path, 'ab'), lambda path: os.truncate(path, 0),
):
    try:
        change('/proc/self/exe')
        tried.append(0)
    except OSError as error:
        tried.append(error.errno)
(tried, os.stat('/proc/self/exe').st_mode)
"""
    with Zygote(image) as zygote:
        tried, mode = zygote.run_code(script).value
        assert 0 not in tried
        assert zygote.run_code("import os\nos.stat('/proc/self/exe').st_mode").value == mode


def test_no_descriptor_of_the_zygote_or_its_modules_is_in_a_call(image):
    with Zygote(image, ["opens"], size=2) as zygote:
        found = zygote.run_code("import tries\ntries.descriptors()").value
    assert [found[fd].split(":")[0] for fd in sorted(found)] == ["/dev/null", "pipe", "pipe", "socket"]


def test_a_zygote_has_no_descriptor_of_a_cgroup(image):
    with Zygote(image, ["greedy"], size=1) as zygote:
        seen = zygote.run_code("import greedy\ngreedy.seen").value
    assert any(link.startswith("pipe:") for links in seen for link in links)
    assert not [link for links in seen for link in links if "cgroup.procs" in link]


def test_a_zygote_that_names_another_process_than_the_call_s_has_no_call(image):
    with Zygote(image, ["pretender"], size=1) as zygote:
        process = zygote._process
        if process._box.cgroup is None:
            pytest.skip("no place for cgroups")
        before = process._box.cgroup.pids()
        with pytest.raises((CallFailed, BadAnswer)):
            zygote.run_code("1")
        group = process._box.cgroup
        until(lambda: group.pids() == before, "the child that was not let into a group has ended, and nobody else was moved")


def test_a_process_whose_number_is_anothers_by_now_has_no_call(monkeypatch):
    """Who says that it is there may end before it is looked at, and its number be given to another process of the same namespace."""
    added = []
    box = SimpleNamespace(cgroup=SimpleNamespace(add=added.append))
    ended = subprocess.Popen(["true"])
    for process, is_it in ((os.getpid(), True), (ended.pid, False)):
        held = os.pidfd_open(process)
        if not is_it:
            ended.wait()
        monkeypatch.setattr(server, "hold", lambda pid, held=held: held)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours, theirs:
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
            theirs.send(b"h")
            assert server.ZygoteProcess.settled(None, box, ours, namespace_id("/proc/self/ns/pid")) is is_it
            ours.send(b"request")
            assert ours.getsockname() == "", "what it is asked comes from a socket without a name, as it was"


def test_what_one_call_was_given_is_in_no_memory_of_another(image):
    secret = "sesame-" + "7" * 24
    search = """
found = 0
with open('/proc/self/maps') as maps, open('/proc/self/mem', 'rb', 0) as memory:
    for line in maps:
        span, rights = line.split()[:2]
        if 'r' in rights and 'v' not in line.split()[-1][:2]:
            begin, end = (int(part, 16) for part in span.split('-'))
            try:
                memory.seek(begin)
                found += memory.read(end - begin).count(bytes(wanted))
            except (OSError, ValueError):
                pass
found
"""
    with Zygote(image, size=2) as zygote:
        parts = [*secret.encode()]
        assert zygote.run_code("len(kept)", {"kept": secret}).value == len(secret)
        own = zygote.run_code("kept = bytes(wanted)\n" + search, {"wanted": parts}).value
        assert own  # the search finds what is there
        for _ in range(5):
            other = zygote.run_code(search.replace("bytes(wanted)", "bytes(reversed(wanted))"), {"wanted": parts[::-1]}).value
            assert other <= 2  # its own, made for the search


@pytest.mark.parametrize("code", [
    "os.write(fd, (1 << 40).to_bytes(8, 'big'))\nos._exit(0)",
    "raw = b'[' * 100000\nos.write(fd, len(raw).to_bytes(8, 'big') + raw)\nos._exit(0)",
    "raw = b'{\"value\": ' + b'[' * 50000 + b']' * 50000 + b'}'\nos.write(fd, len(raw).to_bytes(8, 'big') + raw)\nos._exit(0)",
    "raw = b'{\"value\": NaN}'\nos.write(fd, len(raw).to_bytes(8, 'big') + raw)\nos._exit(0)",
    "raw = b'{\"raised\": 3}'\nos.write(fd, len(raw).to_bytes(8, 'big') + raw)\nos._exit(0)",
    "raw = b'\"text\"'\nos.write(fd, len(raw).to_bytes(8, 'big') + raw)\nos._exit(0)",
    "raw = b'{}xx'\nos.write(fd, (2).to_bytes(8, 'big') + raw)\nos._exit(0)",
])  # fmt: skip
def test_an_answer_that_makes_no_sense_is_an_error(image, code):
    with Zygote(image, size=2) as zygote:
        with pytest.raises(BadAnswer):
            zygote.run_code(channel_of(code))
        assert zygote.run_code("1").value == 1


def test_a_call_that_answers_nothing_and_floods_its_streams_ends_in_time(image):
    with Zygote(image, size=2) as zygote:
        flood = "import os\nwhile True: os.write(1, b'x' * 65536)"
        with pytest.raises(CallTimedOut) as caught:
            zygote.run_code(flood, timeout=1)
        assert 0 < len(caught.value.stdout) <= 16 << 20
        half = "os.write(fd, (1000).to_bytes(8, 'big') + b'{')\nimport time\ntime.sleep(1000)"
        with pytest.raises(CallTimedOut):
            zygote.run_code(channel_of(half), timeout=1)
        many = "import os, time\nfor _ in range(6): os.fork()\nos.getpid() % 2 and os.setsid()\ntime.sleep(1000)"
        with pytest.raises(CallTimedOut):
            zygote.run_code(many, timeout=1)
        assert zygote.run_code("1").value == 1


@pytest.mark.parametrize(("module", "error"), [("liar", BadAnswer), ("numbers", BadAnswer), ("records", ZygoteError)])
def test_what_a_module_says_in_the_zygote_s_place_is_judged(image, module, error):
    with pytest.raises(error) as caught, Zygote(image, [module]):
        pass
    assert len(str(caught.value)) < 2000


def test_modules_cannot_reach_what_no_program_of_a_sandbox_reaches(image):
    with Zygote(image, ["early"]) as zygote:
        found, status = zygote.run_code("import early\n(early.found, early.status)").value
    allowed = {name for name, errno in found.items() if errno == 0}
    assert not allowed & {
        "mount",
        "umount2",
        "bpf",
        "keyctl",
        "clone3",
        "open_tree",
        "fsopen",
        "mount_setattr",
        "setns user",
        "unshare mnt",
        "clone mnt",
    }
    assert not {name for name in allowed if name.startswith(("setns any", "unshare", "clone"))}
    held = int(next(line.split()[1] for line in status.splitlines() if line.startswith("CapEff")), 16)
    plain = 0x800405FB
    assert held & ~plain == 1 << 21  # CAP_SYS_ADMIN, in the zygote's own user namespace
    assert "NoNewPrivs:\t1" in status


def test_a_zygote_is_alone_in_its_user_namespace(image):
    import os

    with Zygote(image) as zygote, Zygote(image) as other, dockless.Sandbox(image, ["sleep", "100"]) as box:
        until(lambda: zygote._process._seats._waiting and other._process._seats._waiting, "that sandboxes for calls wait")
        inits = [one._box.process.pid for one in (zygote._process, other._process)] + [box.process.pid]
        spaces = [os.readlink(f"/proc/{pid}/ns/user") for pid in inits] if os.geteuid() == 0 else []
        assert len({*spaces}) == len(spaces)
