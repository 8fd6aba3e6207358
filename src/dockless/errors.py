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
     │    └── NotEnded              it was killed, and still something of it lives
     ├── GpuError
     │    ├── GpuDriverMissing      no NVIDIA driver on this host
     │    ├── UnknownGpu            no GPU of that index or UUID
     │    └── NotEnoughGpus         more than the host has, or more than are free
     ├── SchedError
     │    ├── DaemonUnavailable     nobody answers on the socket
     │    ├── UnknownJob            no job of that id
     │    ├── NotPermitted          another user's job
     │    └── Refused               a submit the policy can never start
     └── CheckFailed                ``run(check=True)`` and the command did not return 0

Each class has a stable ``code`` for scripts; each instance names the ``subject`` it is about and, in ``hint``, what to do next. Errors go
through ``pickle`` and ``copy`` with all their fields and notes, and with their cause where that is one of ours or the operating system's.
"""

from __future__ import annotations

from typing import Any, ClassVar

from dockless.base import exit_codes


class DocklessError(Exception):
    """Base of all errors. ``str(error)`` says what failed; ``error.hint`` says what to do about it."""

    code: ClassVar[str] = "error"
    exit_code: ClassVar[int] = exit_codes.ERROR

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
    code = "bad_input"


class Unwritable(DocklessError):
    """A file of dockless's own cannot be written. ``errno``: what the kernel said, 0 where nobody passed it on."""

    code = "unwritable"
    errno: int = 0


class OutputLost(Unwritable):
    code = "output_lost"


class ImageError(DocklessError):
    code = "image"


class UnknownImage(ImageError):
    code = "unknown_image"


class BadDigest(ImageError):
    code = "bad_digest"


class BadImage(ImageError):
    code = "bad_image"


class UnsafeLayer(ImageError):
    code = "unsafe_layer"


class NotRunnable(ImageError):
    code = "not_runnable"


class NoRoom(ImageError):
    """``missing``: bytes that would have to be freed, 0 where the file system did not say."""

    code = "no_room"
    missing: int = 0


class ImageInUse(ImageError):
    code = "image_in_use"


class RegistryError(ImageError):
    """A registry's refusal. ``status`` is the HTTP status (0: there was none), ``codes`` the error codes of its own answer."""

    code = "registry"

    def __init__(self, message: str, *, status: int = 0, codes: tuple[str, ...] = (), subject: str = "", hint: str = "") -> None:
        super().__init__(message, subject=subject, hint=hint)
        self.status = status
        self.codes = codes


class Unauthorized(RegistryError):
    code = "unauthorized"


class NotFound(RegistryError):
    code = "not_in_registry"


class RateLimited(RegistryError):
    """``retry_after``: seconds the registry asks to wait, None where it does not say."""

    code = "rate_limited"
    retry_after: float | None = None


class RegistryUnavailable(RegistryError):
    code = "registry_unavailable"


class UnsafeRequest(RegistryError):
    code = "unsafe_request"


class LimitError(DocklessError):
    code = "limit"


class LimitUnavailable(LimitError):
    """A limit that this host cannot enforce. ``controller`` is the cgroup v2 controller that is missing."""

    code = "limit_unavailable"

    def __init__(self, message: str, *, controller: str, subject: str = "", hint: str = "") -> None:
        super().__init__(message, subject=subject or controller, hint=hint)
        self.controller = controller


class CgroupError(LimitError):
    code = "cgroup"


class SandboxError(DocklessError):
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
    code = "command_not_found"
    exit_code = exit_codes.NOT_FOUND


class CommandNotExecutable(SandboxError):
    code = "command_not_executable"
    exit_code = exit_codes.NOT_EXECUTABLE


class Unsupported(SandboxError):
    code = "unsupported"


class IdMapError(SandboxError):
    code = "id_map"


class SandboxGone(SandboxError):
    code = "sandbox_gone"


class NotEnded(SandboxError):
    code = "not_ended"


class GpuError(DocklessError):
    code = "gpu"


class GpuDriverMissing(GpuError):
    code = "gpu_driver_missing"


class UnknownGpu(GpuError):
    code = "unknown_gpu"


class NotEnoughGpus(GpuError):
    code = "not_enough_gpus"


class SchedError(DocklessError):
    code = "sched"


class DaemonUnavailable(SchedError):
    code = "daemon_unavailable"


class UnknownJob(SchedError):
    code = "unknown_job"


class NotPermitted(SchedError):
    code = "not_permitted"


class Refused(SchedError):
    code = "refused"


class CheckFailed(DocklessError):
    """``run(check=True)``: the command ended with something other than 0. ``result`` is the whole result."""

    code = "check_failed"

    def __init__(self, message: str, *, result: Any, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.result = result
