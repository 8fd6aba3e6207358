"""What the sandboxes of one user have in common: a group above theirs.

::

    dockless/user-1001/job-7-1-…     a sandbox
    dockless/user-1001/_keepers      the processes that look after her sandboxes, and write down what those say

Processors, disks and memory are shared between such groups first, and then between what is in each. Nobody counts that: whoever removes a
sandbox's group tries to remove the one above, which the kernel refuses while something is left there. So it may go at any moment in
which nothing is in it, and who is about to use it makes it again.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Iterator, Set

from dockless.base.typing import TypeVar
from dockless.cgroups.delegation import find_delegation, switch_on
from dockless.cgroups.limits import format_list

T = TypeVar("T")
KEEPERS = "_keepers"
TRIES = 100
"""How often somebody may remove an empty group in the moment in which it is about to be used."""
WEIGHT = 100
"""cpu.weight of a core, which is also that of a group that says nothing; cgroup-v2.rst, Weights."""


def group_of(uid: int) -> str:
    """The name of a user's group."""
    return f"user-{uid}"


def above(path: str) -> str:
    """The path of the user's group that a sandbox's group lies in; empty for one that lies in none."""
    parent = os.path.dirname(path)
    return parent if _is_group(os.path.basename(parent)) else ""


def _is_group(name: str) -> bool:
    number = name.removeprefix("user-")
    return number != name and number.isascii() and number.isdigit()


def all_of(home: str) -> list[str]:
    """The paths of the users' groups below a ``dockless`` directory."""
    with contextlib.suppress(OSError), os.scandir(home) as entries:
        return [entry.path for entry in entries if _is_group(entry.name)]
    return []


def make(path: str, controllers: frozenset[str]) -> frozenset[str]:
    """A user's group, made if there is none: those of ``controllers`` that groups in it can have. ``OSError``"""
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, 0o755)
    return switch_on(path, controllers) & controllers


def launch_keeper(path: str, launch: Callable[[int], T]) -> T:
    """What ``launch`` says, called with a descriptor of the group of keepers in a user's group that holds a sandbox's. ``OSError``"""
    for _ in range(TRIES):
        with contextlib.suppress(FileNotFoundError), _keepers(path) as fd:
            try:
                return launch(fd)
            except OSError as error:
                if error.errno != errno.ENODEV:  # it was removed just now
                    raise
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), f"{path}/{KEEPERS}")


@contextlib.contextmanager
def _keepers(path: str) -> Iterator[int]:
    with contextlib.suppress(FileExistsError):
        os.mkdir(f"{path}/{KEEPERS}", 0o755)
    fd = os.open(f"{path}/{KEEPERS}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        yield fd
    finally:
        os.close(fd)


def weigh(uid: int, weight: int) -> None:
    """Set the cpu.weight of a user's group, from 1 to 10,000. Harmless where there is none, or no cpu controller."""
    place = find_delegation(ask_systemd=False)
    if place.path is not None:
        with contextlib.suppress(OSError), open(f"{place.home}/{group_of(uid)}/cpu.weight", "w") as file:
            file.write(f"{weight}")


def confine(uid: int, processors: Set[int]) -> None:
    """Keep what is in a user's group to these processors. Harmless where there is no group, or groups do not have the cpuset controller.
    ``OSError``. To undo it give all processors: the kernel refuses to empty the list of a group in which something runs."""
    place = find_delegation(ask_systemd=False)
    if place.path is None:
        return
    try:
        with open(f"{place.home}/{group_of(uid)}/cpuset.cpus", "r+") as file:  # "w" could make it, which cgroupfs forbids
            file.write(format_list(processors) + "\n")
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENODEV):
            raise


def remove_empty(path: str) -> bool:
    """Remove a user's group if nothing is left in it."""
    try:
        with contextlib.suppress(FileNotFoundError):
            os.rmdir(f"{path}/{KEEPERS}")
        os.rmdir(path)
    except OSError:
        return False
    return True
