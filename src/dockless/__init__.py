"""dockless: run jobs from OCI images on one GPU host, with no Docker and no engine.

::

    import dockless

    result = dockless.run("python:3.12", ["python", "-c", "print(1)"], capture_output=True, text=True, gpus=1, memory="4G")
    result.stdout, result.returncode, result.oom_killed, result.timed_out, result.usage

    with dockless.Sandbox(["cat"], stdin=dockless.PIPE, stdout=dockless.PIPE) as box: ...
    job = dockless.submit("python:3.12", ["python", "train.py"], gpus=2, time_limit="2h"); job.wait()

Importing this package costs next to nothing: every name below is fetched when it is first used (PEP 562).
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dockless._box import Sandbox as Sandbox
    from dockless._call import arun as arun
    from dockless._call import run as run
    from dockless._committing import commit as commit
    from dockless._committing import diff as diff
    from dockless._keywords import Options as Options
    from dockless._result import Result as Result
    from dockless._stdio import DEVNULL as DEVNULL
    from dockless._stdio import PIPE as PIPE
    from dockless._stdio import STDOUT as STDOUT
    from dockless._submitting import Submitted as Submitted
    from dockless._submitting import submit as submit
    from dockless._version import __version__ as __version__
    from dockless.cgroups import IoMax as IoMax
    from dockless.cgroups import Limits as Limits
    from dockless.cgroups import Usage as Usage
    from dockless.errors import BadDigest as BadDigest
    from dockless.errors import BadImage as BadImage
    from dockless.errors import BadInput as BadInput
    from dockless.errors import CgroupError as CgroupError
    from dockless.errors import CheckFailed as CheckFailed
    from dockless.errors import CommandNotExecutable as CommandNotExecutable
    from dockless.errors import CommandNotFound as CommandNotFound
    from dockless.errors import DaemonUnavailable as DaemonUnavailable
    from dockless.errors import DocklessError as DocklessError
    from dockless.errors import GpuDriverMissing as GpuDriverMissing
    from dockless.errors import GpuError as GpuError
    from dockless.errors import IdMapError as IdMapError
    from dockless.errors import ImageError as ImageError
    from dockless.errors import ImageInUse as ImageInUse
    from dockless.errors import LaunchFailed as LaunchFailed
    from dockless.errors import LimitError as LimitError
    from dockless.errors import LimitUnavailable as LimitUnavailable
    from dockless.errors import NoRoom as NoRoom
    from dockless.errors import NotEnded as NotEnded
    from dockless.errors import NotEnoughGpus as NotEnoughGpus
    from dockless.errors import NotFound as NotFound
    from dockless.errors import NotPermitted as NotPermitted
    from dockless.errors import NotRunnable as NotRunnable
    from dockless.errors import OutputLost as OutputLost
    from dockless.errors import RateLimited as RateLimited
    from dockless.errors import Refused as Refused
    from dockless.errors import RegistryError as RegistryError
    from dockless.errors import RegistryUnavailable as RegistryUnavailable
    from dockless.errors import SandboxError as SandboxError
    from dockless.errors import SandboxGone as SandboxGone
    from dockless.errors import SchedError as SchedError
    from dockless.errors import Unauthorized as Unauthorized
    from dockless.errors import UnknownGpu as UnknownGpu
    from dockless.errors import UnknownImage as UnknownImage
    from dockless.errors import UnknownJob as UnknownJob
    from dockless.errors import UnsafeLayer as UnsafeLayer
    from dockless.errors import UnsafeRequest as UnsafeRequest
    from dockless.errors import Unsupported as Unsupported
    from dockless.errors import Unwritable as Unwritable
    from dockless.images import Image as Image
    from dockless.images import Store as Store
    from dockless.images.archive.diff import Change as Change
    from dockless.sandbox.run.process import Exit as Exit
    from dockless.sandbox.spec import Bind as Bind
    from dockless.sandbox.spec import Mount as Mount
    from dockless.sandbox.spec import Namespaces as Namespaces
    from dockless.sandbox.spec import Rlimit as Rlimit
    from dockless.sandbox.spec import Spec as Spec
    from dockless.sandbox.spec import Tmpfs as Tmpfs
    from dockless.sandbox.spec import Volume as Volume
    from dockless.sched import Job as Job
    from dockless.sched import JobSpec as JobSpec

_HOME = {
    "_version": ("__version__",),
    "_box": ("Sandbox",),
    "_call": ("arun", "run"),
    "cgroups": ("IoMax", "Limits", "Usage"),
    "_committing": ("commit", "diff"),
    "errors": (
        "BadDigest", "BadImage", "BadInput", "CgroupError", "CheckFailed", "CommandNotExecutable", "CommandNotFound", "DaemonUnavailable",
        "DocklessError", "GpuDriverMissing", "GpuError", "IdMapError", "ImageError", "ImageInUse", "LaunchFailed", "LimitError",
        "LimitUnavailable", "NoRoom", "NotEnded", "NotEnoughGpus", "NotFound", "NotPermitted", "NotRunnable", "OutputLost",
        "RateLimited", "Refused", "RegistryError", "RegistryUnavailable", "SandboxError", "SandboxGone", "SchedError",
        "Unauthorized", "UnknownGpu", "UnknownImage", "UnknownJob", "UnsafeLayer", "UnsafeRequest", "Unsupported", "Unwritable",
    ),
    "images": ("Image", "Store"),
    "images.archive.diff": ("Change",),
    "_keywords": ("Options",),
    "_result": ("Result",),
    "sandbox.run.process": ("Exit",),
    "sandbox.spec": ("Bind", "Mount", "Namespaces", "Rlimit", "Spec", "Tmpfs", "Volume"),
    "sched": ("Job", "JobSpec"),
    "_stdio": ("DEVNULL", "PIPE", "STDOUT"),
    "_submitting": ("Submitted", "submit"),
}  # fmt: skip
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}
_ROOMS = frozenset(("cgroups", "errors", "images", "native", "sandbox", "sched"))

__all__ = sorted(_MODULE_OF)


def __getattr__(name: str) -> object:
    import importlib

    if name in _MODULE_OF:
        value = getattr(importlib.import_module(f"dockless.{_MODULE_OF[name]}"), name)
    elif name in _ROOMS:
        return importlib.import_module(f"dockless.{name}")
    else:
        raise AttributeError(f"module 'dockless' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_ROOMS})
