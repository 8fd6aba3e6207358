"""dockless: run jobs from OCI images on one GPU host, with no Docker and no engine.

::

    import dockless

    result = dockless.run("python:3.12", ["python", "-c", "print(1)"], capture_output=True, text=True, gpus=1, memory="4G")
    result.stdout, result.returncode, result.oom_killed, result.timed_out, result.usage

    with dockless.Sandbox(["cat"], stdin=dockless.PIPE, stdout=dockless.PIPE) as box: ...
    box = dockless.start("python:3.12", ["python", "serve.py"], id="web"); box.pause(); dockless.Sandbox.open("web").stop()
    job = dockless.submit("python:3.12", ["python", "train.py"], gpus=2, time_limit="2h"); job.wait()
    jobs = dockless.submit(["./step"], array="0-99%4"); jobs = dockless.submit_file("job.toml")

Importing this package costs next to nothing: every name below is fetched when it is first used (PEP 562).
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dockless import aio as aio
    from dockless import cgroups as cgroups
    from dockless import errors as errors
    from dockless import images as images
    from dockless import native as native
    from dockless import networks as networks
    from dockless import sandbox as sandbox
    from dockless import sched as sched
    from dockless import volumes as volumes
    from dockless._attaching import Attachment as Attachment
    from dockless._box import Sandbox as Sandbox
    from dockless._call import run as run
    from dockless._committing import commit as commit
    from dockless._committing import diff as diff
    from dockless._events import events as events
    from dockless._executing import Execution as Execution
    from dockless._finding import create as create
    from dockless._finding import list as list
    from dockless._finding import start as start
    from dockless._keywords import Options as Options
    from dockless._keywords import QueueOptions as QueueOptions
    from dockless._pool import Pool as Pool
    from dockless._result import Result as Result
    from dockless._stdio import DEVNULL as DEVNULL
    from dockless._stdio import PIPE as PIPE
    from dockless._stdio import STDOUT as STDOUT
    from dockless._submitting import Submitted as Submitted
    from dockless._submitting import submit as submit
    from dockless._submitting import submit_file as submit_file
    from dockless._version import __version__ as __version__
    from dockless._zygote import Called as Called
    from dockless._zygote import Zygote as Zygote
    from dockless.aio import arun as arun
    from dockless.base.healthcheck import HealthCheck as HealthCheck
    from dockless.cgroups import IoMax as IoMax
    from dockless.cgroups import Limits as Limits
    from dockless.cgroups import Usage as Usage
    from dockless.errors import AddressTaken as AddressTaken
    from dockless.errors import BadAnswer as BadAnswer
    from dockless.errors import BadDigest as BadDigest
    from dockless.errors import BadImage as BadImage
    from dockless.errors import BadInput as BadInput
    from dockless.errors import CallFailed as CallFailed
    from dockless.errors import CallTimedOut as CallTimedOut
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
    from dockless.errors import Killed as Killed
    from dockless.errors import LaunchFailed as LaunchFailed
    from dockless.errors import LimitError as LimitError
    from dockless.errors import LimitUnavailable as LimitUnavailable
    from dockless.errors import NetworkError as NetworkError
    from dockless.errors import NetworkInUse as NetworkInUse
    from dockless.errors import NoRoom as NoRoom
    from dockless.errors import NotEnded as NotEnded
    from dockless.errors import NotEnoughGpus as NotEnoughGpus
    from dockless.errors import NotFound as NotFound
    from dockless.errors import NotPermitted as NotPermitted
    from dockless.errors import NotRunnable as NotRunnable
    from dockless.errors import OutOfMemory as OutOfMemory
    from dockless.errors import OutputLost as OutputLost
    from dockless.errors import RateLimited as RateLimited
    from dockless.errors import Refused as Refused
    from dockless.errors import RegistryError as RegistryError
    from dockless.errors import RegistryUnavailable as RegistryUnavailable
    from dockless.errors import SandboxError as SandboxError
    from dockless.errors import SandboxGone as SandboxGone
    from dockless.errors import SandboxLost as SandboxLost
    from dockless.errors import SchedError as SchedError
    from dockless.errors import TimedOut as TimedOut
    from dockless.errors import Unauthorized as Unauthorized
    from dockless.errors import UnknownGpu as UnknownGpu
    from dockless.errors import UnknownImage as UnknownImage
    from dockless.errors import UnknownJob as UnknownJob
    from dockless.errors import UnknownNetwork as UnknownNetwork
    from dockless.errors import UnknownVolume as UnknownVolume
    from dockless.errors import UnsafeLayer as UnsafeLayer
    from dockless.errors import UnsafeRequest as UnsafeRequest
    from dockless.errors import Unsupported as Unsupported
    from dockless.errors import Unwritable as Unwritable
    from dockless.errors import VolumeInUse as VolumeInUse
    from dockless.errors import ZygoteError as ZygoteError
    from dockless.errors import ZygoteLost as ZygoteLost
    from dockless.images import Image as Image
    from dockless.images import Store as Store
    from dockless.images.archive.diff import Change as Change
    from dockless.sandbox.files.files import FileInfo as FileInfo
    from dockless.sandbox.files.files import Files as Files
    from dockless.sandbox.files.tree import Copied as Copied
    from dockless.sandbox.files.watching import FileEvent as FileEvent
    from dockless.sandbox.files.watching import Watch as Watch
    from dockless.sandbox.network.model import Egress as Egress
    from dockless.sandbox.network.model import Endpoint as Endpoint
    from dockless.sandbox.network.model import Port as Port
    from dockless.sandbox.network.model import Rule as Rule
    from dockless.sandbox.run.events import Event as Event
    from dockless.sandbox.run.events import Events as Events
    from dockless.sandbox.run.health import Health as Health
    from dockless.sandbox.run.logfile import Row as Row
    from dockless.sandbox.run.networks import NetworkInfo as NetworkInfo
    from dockless.sandbox.run.process import Exit as Exit
    from dockless.sandbox.run.volumes import VolumeInfo as VolumeInfo
    from dockless.sandbox.spec import Bind as Bind
    from dockless.sandbox.spec import Mount as Mount
    from dockless.sandbox.spec import Namespaces as Namespaces
    from dockless.sandbox.spec import Rlimit as Rlimit
    from dockless.sandbox.spec import Spec as Spec
    from dockless.sandbox.spec import Tmpfs as Tmpfs
    from dockless.sandbox.spec import Volume as Volume
    from dockless.sandbox.state import State as State
    from dockless.sched import Job as Job
    from dockless.sched import JobSpec as JobSpec

_HOME = {
    "_version": ("__version__",),
    "_attaching": ("Attachment",),
    "_box": ("Sandbox",),
    "aio": ("arun",),
    "_call": ("run",),
    "base.healthcheck": ("HealthCheck",),
    "cgroups": ("IoMax", "Limits", "Usage"),
    "_committing": ("commit", "diff"),
    "_finding": ("create", "list", "start"),
    "errors": (
        "AddressTaken",
        "BadAnswer", "BadDigest", "BadImage", "BadInput", "CallFailed", "CallTimedOut",
        "CgroupError", "CheckFailed", "CommandNotExecutable", "CommandNotFound",
        "DaemonUnavailable",
        "DocklessError", "Killed", "OutOfMemory", "SandboxLost", "TimedOut",
        "GpuDriverMissing", "GpuError", "IdMapError", "ImageError", "ImageInUse", "LaunchFailed", "LimitError",
        "LimitUnavailable", "NetworkError", "NetworkInUse",
        "NoRoom", "NotEnded", "NotEnoughGpus", "NotFound", "NotPermitted", "NotRunnable", "OutputLost",
        "RateLimited", "Refused", "RegistryError", "RegistryUnavailable", "SandboxError", "SandboxGone", "SchedError",
        "Unauthorized", "UnknownGpu", "UnknownImage", "UnknownJob", "UnknownNetwork",
        "UnknownVolume", "UnsafeLayer", "UnsafeRequest", "Unsupported",
        "Unwritable", "VolumeInUse", "ZygoteError", "ZygoteLost",
    ),
    "images": ("Image", "Store"),
    "images.archive.diff": ("Change",),
    "_keywords": ("Options", "QueueOptions"),
    "_events": ("events",),
    "_executing": ("Execution",),
    "_pool": ("Pool",),
    "_zygote": ("Called", "Zygote"),
    "_result": ("Result",),
    "sandbox.files.files": ("FileInfo", "Files"),
    "sandbox.files.tree": ("Copied",),
    "sandbox.files.watching": ("FileEvent", "Watch"),
    "sandbox.network.model": ("Egress", "Endpoint", "Port", "Rule"),
    "sandbox.run.events": ("Event", "Events"),
    "sandbox.run.health": ("Health",),
    "sandbox.run.logfile": ("Row",),
    "sandbox.run.networks": ("NetworkInfo",),
    "sandbox.run.process": ("Exit",),
    "sandbox.run.volumes": ("VolumeInfo",),
    "sandbox.spec": ("Bind", "Mount", "Namespaces", "Rlimit", "Spec", "Tmpfs", "Volume"),
    "sandbox.state": ("State",),
    "sched": ("Job", "JobSpec"),
    "_stdio": ("DEVNULL", "PIPE", "STDOUT"),
    "_submitting": ("Submitted", "submit", "submit_file"),
}  # fmt: skip
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}
_PACKAGES = frozenset(("aio", "cgroups", "errors", "images", "native", "networks", "sandbox", "sched", "volumes"))

__all__ = sorted(_MODULE_OF)


def _fetched(name: str) -> object:
    import importlib

    if name in _MODULE_OF:
        value = getattr(importlib.import_module(f"dockless.{_MODULE_OF[name]}"), name)
    elif name in _PACKAGES:
        return importlib.import_module(f"dockless.{name}")
    else:
        raise AttributeError(f"module 'dockless' has no attribute {name!r}")
    globals()[name] = value
    return value


if not TYPE_CHECKING:  # for a type checker every name that is not above is a mistake
    __getattr__ = _fetched


def __dir__() -> tuple[str, ...]:
    return (*sorted({*globals(), *__all__, *_PACKAGES}),)
