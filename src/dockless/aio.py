"""``dockless`` for programs with an event loop, asyncio's or trio's (also by way of anyio): the same names, to be awaited.

::

    from dockless import PIPE, aio

    result = await aio.run("python:3.12", ["python", "-V"], capture_output=True, text=True)

    async with aio.Sandbox(["cat"], stdin=PIPE, stdout=PIPE, text=True) as box:
        await box.stdin.write("a line\\n")
        async for line in box.stdout: ...

    job = await aio.submit(["python3", "train.py"], gpus=1); await job.wait()

Streams and ends are waited for by the loop itself, without threads; what only blocks for a moment, like a start, is called in one. Whoever
is cancelled ends what it started: nothing is left when the cancellation arrives.
"""

from __future__ import annotations

import builtins
import threading
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from functools import partial, wraps
from typing import ParamSpec

from dockless import _async_networks as networks
from dockless import _async_volumes as volumes
from dockless import _box, _call, _committing, _events, _finding, _submitting
from dockless._async_attaching import Attachment
from dockless._async_box import Sandbox
from dockless._async_events import AsyncEvents
from dockless._async_executing import Execution
from dockless._async_pool import Pool
from dockless._async_submitting import Submitted
from dockless._async_zygote import Zygote
from dockless._call import box_for, result_from
from dockless._loop import in_thread, unless_cancelled
from dockless._opening import Opening
from dockless.base.typing import TYPE_CHECKING, Any, TypeVar, overload

if TYPE_CHECKING:
    from typing import Unpack

    from dockless._keywords import SubmitOptions
    from dockless.base.paths import Argument
    from dockless.images import Image
    from dockless.images.archive.diff import Change
    from dockless.images.progress import Progress
    from dockless.images.pull_policy import PullPolicy

__all__ = [
    "Attachment", "Execution", "Pool", "Sandbox", "Submitted", "Zygote",
    "commit", "create", "diff", "events", "list", "networks", "pull", "run", "start",
    "submit", "submit_file", "volumes",
]  # fmt: skip

P = ParamSpec("P")
T = TypeVar("T")


def _awaited(run: Callable[P, T]) -> Callable[P, Coroutine[Any, Any, T]]:
    """``dockless.run`` with its overloads, to be awaited."""

    @wraps(run)
    async def call(*args: P.args, **kwargs: P.kwargs) -> T:
        result: T = await _run(*args, **kwargs)  # type: ignore[arg-type]
        return result

    return call


async def _run(image: Any = None, args: Any = None, *, input: Any = None, check: bool = False, **options: Any) -> Any:
    async with box_for(Sandbox, image, args, input=input, **options) as box:
        out, err = await box.communicate(input)
        result = result_from(box, out, err)
    if check:
        result.check_returncode()
    return result


run = _awaited(_call.run)
arun = run
"""Its name in ``dockless``."""


def _found(start: Callable[P, _box.Sandbox[bytes]]) -> Callable[P, Opening[Sandbox[bytes]]]:
    """A function that gives a handle, to be awaited, or for ``async with``, which lets go of it. Who is cancelled meanwhile leaves no
    sandbox that nobody has a handle of."""

    @wraps(start)
    def call(*args: P.args, **kwargs: P.kwargs) -> Opening[Sandbox[bytes]]:
        return Opening(unless_cancelled(lambda: Sandbox.of(start(*args, **kwargs)), partial(Sandbox.rm, force=True)))

    return call


create = _found(_finding.create)
start = _found(_finding.start)


@wraps(_committing.diff)
async def diff(sandbox: str | Sandbox[Any], *, pause: bool = True) -> Sequence[Change]:
    return await in_thread(partial(_committing.diff, _blocking(sandbox), pause=pause))


@wraps(_committing.commit)
async def commit(sandbox: str | Sandbox[Any], reference: str | None = None, **options: Any) -> Image:
    return await in_thread(partial(_committing.commit, _blocking(sandbox), reference, **options))


def _blocking(sandbox: str | Sandbox[Any]) -> str | _box.Sandbox[Any]:
    return sandbox.box if isinstance(sandbox, Sandbox) else sandbox


async def list(*, labels: Mapping[str, str | None] | None = None, state: str | Iterable[str] | None = None) -> Sequence[Sandbox[bytes]]:
    """The sandboxes of this user: see ``dockless.list``."""
    return [Sandbox.of(box) for box in await in_thread(partial(_finding.list, labels=labels, state=state))]


async def pull(
    image: str, *, platform: str | None = None, policy: PullPolicy = "always", progress: Callable[[Progress], None] | None = None
) -> Image:
    """Bring an image into the store: see ``Store.pull``. A cancellation ends it; what has come is kept. A thread calls ``progress``."""
    given_up = threading.Event()

    def told(step: Progress) -> None:
        if given_up.is_set():
            raise _box.Cancelled(image)
        if progress is not None:
            progress(step)

    def bring() -> Image:
        from dockless.images import Store

        return Store().pull(image, platform=platform, policy=policy, progress=told)

    return await in_thread(bring, given_up.set)


def events(
    *,
    since: float | None = None,
    until: float | None = None,
    kinds: str | Iterable[str] = (),
    ids: str | Iterable[str] = (),
    images: str | Iterable[str] = (),
    labels: Mapping[str, str | None] | None = None,
) -> AsyncEvents:
    """As ``dockless.events``, for ``async for`` or ``async with``: from the first step or from the ``with`` on, until it is closed."""
    return AsyncEvents(partial(_events.events, since=since, until=until, kinds=kinds, ids=ids, images=images, labels=labels))


@overload
async def submit(
    image: str | Sequence[Argument] | None = None, args: Sequence[Argument] | None = None, **options: Unpack[SubmitOptions]
) -> Submitted: ...
@overload
async def submit(
    image: str | Sequence[Argument] | None = None,
    args: Sequence[Argument] | None = None,
    *,
    array: str | int,
    **options: Unpack[SubmitOptions],
) -> builtins.list[Submitted]: ...
@overload
async def submit(
    image: str | Sequence[Argument] | None = None,
    args: Sequence[Argument] | None = None,
    *,
    array: str | int | None,
    **options: Unpack[SubmitOptions],
) -> Submitted | builtins.list[Submitted]: ...
@wraps(_submitting.submit)
async def submit(*args: Any, array: str | int | None = None, **options: Any) -> Submitted | builtins.list[Submitted]:
    """A cancellation meanwhile cancels the jobs, too."""
    if array is None:
        return (await _submitted(lambda: [_submitting.submit(*args, **options)]))[0]
    return await _submitted(lambda: _submitting.submit(*args, array=array, **options))


@wraps(_submitting.submit_file)
async def submit_file(*args: Any, **options: Any) -> builtins.list[Submitted]:
    import warnings

    order, notes = await in_thread(partial(_submitting.order_of_file, *args, **options))
    for note in notes:
        warnings.warn(note, stacklevel=2)
    return await _submitted(partial(_submitting.submitted, order))


async def _submitted(submit: Callable[[], builtins.list[_submitting.Submitted]]) -> builtins.list[Submitted]:
    async def undo(jobs: builtins.list[_submitting.Submitted]) -> None:
        await in_thread(partial(_submitting.cancel_all, jobs))

    return [Submitted(job.id) for job in await unless_cancelled(submit, undo)]
