"""Every error dockless raises, in one tree.

::

    DocklessError                   code, subject, hint
     ├── BadInput                   a value that is not valid (also a ValueError)
     ├── Unwritable                 a file of dockless's own: no room, an I/O error, a read-only file system
     │    └── OutputLost            what the command line prints: its standard output cannot be written
     ├── ImageError
     │    ├── UnknownImage          no such image in the store
     │    ├── BadDigest             the bytes are not what their digest says
     │    ├── BadImage              torn, malformed or not an image at all
     │    ├── UnsafeLayer           a layer entry that tries to leave its root
     │    ├── NotRunnable           sound, but nothing this host can run
     │    ├── NoRoom                the file system of the store, or of a file to be written, is full, or would be
     │    ├── ImageInUse            a sandbox uses it
     │    └── RegistryError         what a registry answered, or that it did not
     │         ├── Unauthorized     it wants a login, or that login may not do this
     │         ├── NotFound         it has no such repository, tag or blob
     │         ├── RateLimited      too many requests, and waiting did not help
     │         ├── RegistryUnavailable   no connection, a broken one, or 5xx to the last try
     │         └── UnsafeRequest    it sent us where no registry may send a client
     ├── LimitError
     │    ├── LimitUnavailable      this host cannot enforce it; names the controller
     │    └── CgroupError           the kernel refused an operation on a cgroup
     ├── SandboxError
     │    ├── LaunchFailed          operation N of the plan failed: step, object, errno
     │    ├── CommandNotFound       exit code 127
     │    ├── CommandNotExecutable  exit code 126
     │    ├── Unsupported           this kernel or this user cannot do it
     │    ├── IdMapError            an id that the user namespace does not map
     │    ├── SandboxGone           no such sandbox, or it has ended
     │    ├── UnknownVolume         no volume of that name
     │    ├── VolumeInUse           a sandbox has it
     │    ├── NotEnded              it was killed, and still something of it lives
     │    ├── BadAnswer             what a sandbox says about its own files, or a call answers, makes no sense
     │    └── ZygoteError           a zygote cannot be made: an import, threads, no Python in the image
     │         ├── ZygoteLost       it has ended
     │         └── CallFailed       a call raised an exception, or ended without an answer
     │              └── CallTimedOut   its time was up
     ├── GpuError
     │    ├── GpuDriverMissing      no NVIDIA driver on this host
     │    ├── UnknownGpu            no GPU of that index or UUID
     │    └── NotEnoughGpus         more than the host has, or more than are free
     ├── NetworkError              the kernel, or another program, refused something of a network
     │    ├── UnknownNetwork        no network of that name
     │    ├── NetworkInUse          a sandbox is on it
     │    └── AddressTaken          an address or a port of the host that something else has
     ├── SchedError
     │    ├── DaemonUnavailable     nobody answers on the socket
     │    ├── UnknownJob            no job of that id
     │    ├── NotPermitted          another user's job
     │    └── Refused               a submit the policy can never start
     └── CheckFailed                ``run(check=True)`` and the command did not return 0
          ├── TimedOut              a deadline passed: timeout, idle_timeout, ttl
          ├── OutOfMemory           the kernel killed something inside for memory
          ├── Killed                a signal ended it
          └── SandboxLost           nobody saw how it ended: its keeper was killed

Each class has a stable ``code`` for scripts; each instance names the ``subject`` it is about and, in ``hint``, what to do next. Errors go
through ``pickle`` and ``copy`` with all their fields and notes, and with their cause where that is one of ours or the operating system's.
"""

from __future__ import annotations

from dockless.base import exit_codes
from dockless.base.typing import Any, ClassVar


class DocklessError(Exception):
    """Base of all errors. ``str(error)`` says what failed; ``error.hint`` says what to do about it."""

    code: ClassVar[str] = "error"
    exit_code: ClassVar[int] = exit_codes.ERROR
    number: int = 0
    """Of jobs that are submitted together, the one that it is about, counted from 1; 0 where it is about none."""

    def __init__(self, message: str, *, subject: str = "", hint: str = "") -> None:
        super().__init__(message)
        self.subject = subject
        self.hint = hint

    def __reduce__(self) -> tuple[Any, ...]:
        # An exception is by default made again by calling its class with its message alone, which loses every field given by keyword.
        state = dict(self.__dict__)  # the fields, and the notes
        if isinstance(self.__cause__, (DocklessError, OSError)):  # of others nobody knows whether they can be pickled
            state["__cause__"] = self.__cause__
        state["__suppress_context__"] = self.__suppress_context__  # after the cause, which sets it
        return _made_again, (type(self), self.args), state

    def as_dict(self) -> dict[str, Any]:
        """The error as the CLI prints it with ``--json``."""
        return {"error": self.code, "message": str(self), "subject": self.subject, "hint": self.hint}


def _made_again(kind: type[DocklessError], args: tuple[Any, ...]) -> DocklessError:
    """An error without its fields, for pickle and copy: they set these."""
    return kind.__new__(kind, *args)


class BadInput(DocklessError, ValueError):
    """A value that is not valid; ``subject`` is its name or what was given. Nothing has been started or changed."""

    code = "bad_input"


class Unwritable(DocklessError):
    """A file of dockless's own cannot be written. ``errno``: what the kernel said, 0 where nobody passed it on."""

    code = "unwritable"
    errno: int = 0


class OutputLost(Unwritable):
    """The command line's standard output cannot be written: a full disk, or a reader that went away."""

    code = "output_lost"


class ImageError(DocklessError):
    """Something is wrong with an image, the store or a registry. Base of the classes that say what."""

    code = "image"


class UnknownImage(ImageError):
    """The store has no image of that name or digest, and nobody brought it there."""

    code = "unknown_image"


class BadDigest(ImageError):
    """The bytes are not what their digest says: damaged on the way, or not what was asked for. Nothing of them was kept."""

    code = "bad_digest"


class BadImage(ImageError):
    """Torn, malformed, or not an image at all."""

    code = "bad_image"


class UnsafeLayer(ImageError):
    """A layer has an entry that would leave its root, or that no layer may have; ``subject`` names it. The image is not taken."""

    code = "unsafe_layer"


class NotRunnable(ImageError):
    """The image is sound, but for another architecture or system, or of a kind that is not run."""

    code = "not_runnable"


class NoRoom(ImageError):
    """``missing``: bytes that would have to be freed, 0 where the file system did not say."""

    code = "no_room"
    missing: int = 0


class ImageInUse(ImageError):
    """The image cannot be removed or replaced while a sandbox or a job uses it."""

    code = "image_in_use"


class RegistryError(ImageError):
    """A registry's refusal. ``status`` is the HTTP status (0: there was none), ``codes`` the error codes of its own answer."""

    code = "registry"

    def __init__(self, message: str, *, status: int = 0, codes: tuple[str, ...] = (), subject: str = "", hint: str = "") -> None:
        super().__init__(message, subject=subject, hint=hint)
        self.status = status
        self.codes = codes


class Unauthorized(RegistryError):
    """The registry wants a login, or this login may not do this: see ``dockless login``."""

    code = "unauthorized"


class NotFound(RegistryError):
    """The registry has no such repository, tag or blob."""

    code = "not_in_registry"


class RateLimited(RegistryError):
    """``retry_after``: seconds the registry asks to wait, None where it does not say."""

    code = "rate_limited"
    retry_after: float | None = None


class RegistryUnavailable(RegistryError):
    """No connection, a broken one, a deadline that passed, or HTTP status 5xx to the last try. Trying later may help."""

    code = "registry_unavailable"


class UnsafeRequest(RegistryError):
    """The registry, or what it sent a redirect to, is where no registry may send a client."""

    code = "unsafe_request"


class LimitError(DocklessError):
    """A limit could not be set. Base of the classes that say why."""

    code = "limit"


class LimitUnavailable(LimitError):
    """A limit that this host cannot enforce. ``controller`` is the cgroup v2 controller that is missing."""

    code = "limit_unavailable"

    def __init__(self, message: str, *, controller: str, subject: str = "", hint: str = "") -> None:
        super().__init__(message, subject=subject or controller, hint=hint)
        self.controller = controller


class CgroupError(LimitError):
    """The kernel refused an operation on a cgroup, cgroups(7); the cause is the operating system's error."""

    code = "cgroup"


class SandboxError(DocklessError):
    """A sandbox could not be started or be acted on. Base of the classes that say why."""

    code = "sandbox"


class LaunchFailed(SandboxError):
    """Operation ``index`` of the plan failed with ``errno``; ``step`` is the operation in plain words."""

    code = "launch_failed"

    def __init__(self, message: str, *, index: int, step: str, errno: int, subject: str = "", hint: str = "") -> None:
        super().__init__(message, subject=subject, hint=hint)
        self.index = index
        self.step = step
        self.errno = errno


class CommandNotFound(SandboxError):
    """The program does not exist inside the sandbox: exit code 127, as a shell has it."""

    code = "command_not_found"
    exit_code = exit_codes.NOT_FOUND


class CommandNotExecutable(SandboxError):
    """The program is there and cannot be executed: exit code 126, as a shell has it."""

    code = "command_not_executable"
    exit_code = exit_codes.NOT_EXECUTABLE


class Unsupported(SandboxError):
    """This kernel, this host or this user cannot do it; ``hint`` says what would be needed."""

    code = "unsupported"


class IdMapError(SandboxError):
    """A user or group id that the sandbox's user namespace does not map, user_namespaces(7)."""

    code = "id_map"


class SandboxGone(SandboxError):
    """There is no such sandbox, it has not been started, or it has ended."""

    code = "sandbox_gone"


class UnknownVolume(SandboxError):
    """This user has no volume of that name."""

    code = "unknown_volume"


class VolumeInUse(SandboxError):
    """The volume cannot be removed while a sandbox has it, also one that has ended: it can be started again."""

    code = "volume_in_use"


class NotEnded(SandboxError):
    """It was killed with SIGKILL, and something of it still lives: it waits in the kernel, mostly for a device or a file system."""

    code = "not_ended"


class BadAnswer(SandboxError):
    """What a sandbox says about its own files, or answers to a call, makes no sense: something inside changes it."""

    code = "bad_answer"


class ZygoteError(SandboxError):
    """A zygote cannot be made: a module cannot be imported, has started threads or made shared memory; the image has no Python."""

    code = "zygote"


class ZygoteLost(ZygoteError):
    """The zygote has ended, or takes no requests. Calls that ran in it have ended with it."""

    code = "zygote_lost"


class CallFailed(ZygoteError):
    """A call of a zygote raised an exception, ended without an answer, or gave what cannot cross.

    ``kind``: the exception's class by its name inside, ``"ValueError"`` or ``"json.decoder.JSONDecodeError"``; empty where there was none.
    ``text``: its message. ``traceback``: as Python prints it. ``stdout``, ``stderr``: what the call has printed."""

    code = "call_failed"
    kind = ""
    text = ""
    traceback = ""
    stdout = ""
    stderr = ""


class CallTimedOut(CallFailed):
    """The time of a call was up, and all that it had started was killed."""

    code = "call_timed_out"
    exit_code = exit_codes.TIMED_OUT


class GpuError(DocklessError):
    """Something is wrong with GPUs. Base of the classes that say what."""

    code = "gpu"


class GpuDriverMissing(GpuError):
    """This host has no NVIDIA driver, or it does not answer."""

    code = "gpu_driver_missing"


class UnknownGpu(GpuError):
    """There is no GPU of that index or UUID."""

    code = "unknown_gpu"


class NotEnoughGpus(GpuError):
    """More GPUs were asked for than this host has, or than are free now."""

    code = "not_enough_gpus"


class NetworkError(DocklessError):
    """The kernel, or a program that does it, refused something of a network."""

    code = "network"


class UnknownNetwork(NetworkError):
    """No network of that name."""

    code = "unknown_network"


class NetworkInUse(NetworkError):
    """A sandbox is on it."""

    code = "network_in_use"


class AddressTaken(NetworkError):
    """An address, or a port of the host, that something else has."""

    code = "address_taken"


class SchedError(DocklessError):
    """The daemon or its queue could not do it. Base of the classes that say why."""

    code = "sched"


class DaemonUnavailable(SchedError):
    """Nobody answers on the daemon's socket, or it went away meanwhile."""

    code = "daemon_unavailable"


class UnknownJob(SchedError):
    """The queue has no job of that number, or no longer."""

    code = "unknown_job"


class NotPermitted(SchedError):
    """The job belongs to another user, or only root may do this."""

    code = "not_permitted"


class Refused(SchedError):
    """The daemon does not take the job, as its policy or its host could never start it; or its quotas do not allow the GPUs of a start."""

    code = "refused"


class CheckFailed(DocklessError):
    """``run(check=True)``: the command ended with something other than 0. ``result`` is the whole result."""

    code = "check_failed"

    def __init__(self, message: str, *, result: Any, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.result = result


class TimedOut(CheckFailed):
    """``run(check=True)``: a deadline passed and everything inside was killed; ``result.timed_out``, and ``limit`` says which:
    ``timeout``, ``idle_timeout`` or ``ttl``. Its exit code may be 0 all the same, where it caught the stop signal."""

    code = "timed_out"
    exit_code = exit_codes.TIMED_OUT

    @property
    def limit(self) -> str:
        return str(self.result.limit)


class OutOfMemory(CheckFailed):
    """``run(check=True)``: it did not return 0, and the kernel killed something inside for memory; ``result.oom_killed``."""

    code = "out_of_memory"


class Killed(CheckFailed):
    """``run(check=True)``: a signal ended the command, ``result.signal``. ``result.killed``: it was ended through dockless."""

    code = "killed"


class SandboxLost(CheckFailed):
    """``run(check=True)``: the process that watched the sandbox was killed, and the kernel killed everything inside for that. How the
    command would have ended is not known; ``result.lost``."""

    code = "sandbox_lost"
