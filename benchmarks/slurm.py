"""Debian's Slurm, really running: slurmctld, slurmd and munged of one node with eight GPUs that are plain files.

In a root of its own that mmdebstrap makes once, in the cache; its processes are this one's children and end with it. No cgroups: the
host's may be v1. Root.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pickle
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dockless-slurm"
PACKAGES = "slurm-wlm,munge,strace,python3"
CONFIG = """\
ClusterName=beside
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
StateSaveLocation=/run/state
SlurmdSpoolDir=/run/spool
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd.pid
SlurmctldLogFile=/run/slurmctld.log
SlurmdLogFile=/run/slurmd.log
JobCompType=jobcomp/filetxt
JobCompLoc=/run/ended
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=default_queue_depth={depth},bf_max_job_test={depth}
MaxJobCount=300000
MaxArraySize=100001
SlurmdParameters=config_overrides
ReturnToService=2
GresTypes=gpu
NodeName={host} NodeAddr=127.0.0.1 CPUs=64 RealMemory=1000 Gres=gpu:8
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
NEW_MOUNTS, REAPER = 0x20000, 36


class Slurm:
    """``depth``: how many waiting jobs a pass looks at. Slurm's own default is 100 of the main pass and 500 of the backfill."""

    def __init__(self, depth: int = 100) -> None:
        self.root = CACHE / "root"
        self.run = self.root / "run"
        self.depth = depth
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Slurm:
        try:
            self._start_all()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _start_all(self) -> None:
        _make_root(self.root)
        libc = ctypes.CDLL(None, use_errno=True)
        libc.prctl(REAPER, 1, 0, 0, 0)
        if libc.unshare(NEW_MOUNTS) != 0:
            raise OSError(ctypes.get_errno(), "unshare")
        for words in (
            ("mount", "--make-rprivate", "/"),
            ("mount", "-t", "proc", "proc", str(self.root / "proc")),
            ("mount", "--bind", "/dev", str(self.root / "dev")),
        ):
            subprocess.run(words, check=True)
        self.host = socket.gethostname().partition(".")[0]
        self.fresh()
        self.start("munged", "--foreground")
        self._until(lambda: self._works("munge", "-n"), "munge answers")
        self.start("slurmctld", "-D")
        self._until(lambda: self._works("squeue"), "slurmctld answers")
        self.start("slurmd", "-D")
        self._until(lambda: self.said("sinfo", "-h", "-o", "%t").strip() == "idle", "the node is there")

    def __exit__(self, *_: object) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait()
        for child in _children():  # slurmstepd and jobs, which are ours now
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
        for place in ("proc", "dev"):
            subprocess.run(["umount", "-l", str(self.root / place)], check=False)

    def fresh(self) -> None:
        """Empty directories, and the configuration."""
        shutil.rmtree(self.run, ignore_errors=True)
        for name in ("state", "spool", "munge", "marks", "gpu"):
            (self.run / name).mkdir(parents=True)
        (self.run / "marks").chmod(0o777)
        etc = self.root / "etc"
        (etc / "slurm").mkdir(exist_ok=True)
        (etc / "slurm" / "slurm.conf").write_text(CONFIG.format(host=self.host, depth=self.depth))
        (etc / "slurm" / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
        for number in range(8):
            (self.run / "gpu" / str(number)).touch()
        (etc / "slurm" / "gres.conf").write_text("Name=gpu File=/run/gpu/[0-7]\n")
        (etc / "hosts").write_text(f"127.0.0.1 localhost {self.host}\n")
        for path in (self.run / "munge", etc / "munge", self.root / "var/lib/munge", self.root / "var/log/munge"):
            subprocess.run(["chroot", self.root, "chown", "-R", "munge:", f"/{path.relative_to(self.root)}"], check=True)

    def start(self, name: str, *words: str, before: tuple[str, ...] = ()) -> None:
        user = ("setpriv", "--reuid=munge", "--regid=munge", "--clear-groups") if name == "munged" else ()
        with open(self.run / f"{name}.err", "ab") as errors:
            program = ["chroot", self.root, *user, *before, f"/usr/sbin/{name}", *words]
            self.processes[name] = subprocess.Popen(program, stdin=subprocess.DEVNULL, stdout=errors, stderr=errors, cwd="/")

    def answers(self, seconds: float = 60.0) -> None:
        """Return when slurmctld does."""
        self._until(lambda: self._works("squeue", "-h", "-j", "1") or self._works("sinfo"), "slurmctld answers", seconds)

    def inside(self, work: Callable[[], Any]) -> Any:
        """What ``work`` gives in a process that has Slurm's root; the time of a program that it starts is that of the program alone."""
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            code = 1
            try:
                os.chroot(self.root)
                os.chdir("/")
                with os.fdopen(writer, "wb") as stream:
                    pickle.dump(work(), stream)
                code = 0
            except BaseException as error:
                print(f"in Slurm's root: {error!r}", file=sys.stderr)
            finally:
                os._exit(code)
        os.close(writer)
        with os.fdopen(reader, "rb") as stream:
            raw = stream.read()
        os.waitpid(child, 0)
        return pickle.loads(raw)

    def said(self, *words: str) -> str:
        return subprocess.run(["chroot", self.root, *words], capture_output=True, text=True, check=True).stdout

    def processor_time(self) -> float:
        """Seconds of processor time of slurmctld, slurmd and munged, with what they have waited for."""
        ticks = 0
        for process in self.processes.values():
            fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
            ticks += sum(map(int, fields[11:15]))
        return ticks / os.sysconf("SC_CLK_TCK")

    def _works(self, *words: str) -> bool:
        return subprocess.run(["chroot", self.root, *words], capture_output=True).returncode == 0

    def _until(self, found: Callable[[], bool], what: str, seconds: float = 60.0) -> None:
        deadline = time.monotonic() + seconds
        while not found():
            if time.monotonic() > deadline:
                said = [path.read_text(errors="replace")[-1500:] for path in self.run.glob("*.[le][or][gr]")]
                raise SystemExit(f"slurm: not seen: {what}\n" + "\n".join(said))
            time.sleep(0.02)


def _children() -> Iterator[int]:
    for path in Path("/proc/self/task").glob("*/children"):
        yield from map(int, path.read_text().split())


def _make_root(root: Path) -> None:
    if (root / "usr/sbin/slurmctld-wlm").exists():
        return
    if not shutil.which("mmdebstrap"):
        raise SystemExit("slurm: mmdebstrap is missing: apt-get install mmdebstrap")
    print(f"slurm: making {root}, once", file=sys.stderr)
    root.parent.mkdir(parents=True, exist_ok=True)
    new = root.with_name("root.new")
    shutil.rmtree(new, ignore_errors=True)
    paths = [f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in ("doc", "man", "locale")]
    subprocess.run(["mmdebstrap", "--quiet", "--variant=apt", f"--include={PACKAGES}", *paths, "bookworm", new], check=True)
    new.rename(root)
