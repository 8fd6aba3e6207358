"""The part of a client that submits jobs: in one request or in parts, and with word of what became of them after an interrupt."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import chain

from dockless.base.checks import checked
from dockless.base.dataclass import replace
from dockless.base.records import differences
from dockless.base.typing import Any
from dockless.errors import BadInput, DaemonUnavailable, SchedError
from dockless.sched.jobs import JobSpec
from dockless.sched.parsing import NONE_QUEUED
from dockless.sched.wire import protocol
from dockless.sched.wire.connection import Connection, request


class Submitting(Connection):
    """A connection with the submitting methods of ``Client``."""

    def submit(self, job: JobSpec) -> int:
        """Queue one job; its id. When this returns, the job is on disk."""
        return self.submit_many([job])[0]

    def submit_many(self, jobs: Iterable[JobSpec], *, progress: Callable[[int, int], None] | None = None) -> list[int]:
        """Queue several in one transaction, all or none; their ids in order. ``progress``: told how many of how many jobs the daemon has,
        where they are more than fit into one request. The text of an interrupt (``KeyboardInterrupt``) says what became of them: none was
        queued, or it came too late. ``DaemonUnavailable`` says where they may be in the queue."""
        specs = tuple(jobs)
        if not specs:
            return []
        with _none_queued():
            self._anew()
            parts = protocol.parts_of(protocol.encode(_plain(job))[:-1] for job in specs)
            begun = list[list[bytes]]()
            while sum(sum(map(len, part)) for part in begun) <= protocol.MAX_REQUEST and (part := next(parts, None)) is not None:
                begun.append(part)
            whole = protocol.submission(chain.from_iterable(begun))
        if sum(map(len, begun)) == len(specs) and protocol.fits(whole, len(specs)):
            return self._queued(whole, len(specs))
        return self._submit_in_parts(chain(begun, parts), len(specs), progress or (lambda sent, of: None))

    def _submit_in_parts(self, parts: Iterable[list[bytes]], count: int, progress: Callable[[int, int], None]) -> list[int]:
        sent = 0
        try:
            with _none_queued():
                for part in parts:
                    kept = self._answered("part", protocol.submission(part, op="part", of=count))["kept"]
                    sent += len(part)
                    if kept != sent:  # this is another connection
                        raise self._lost(None)
                    progress(sent, count)
        except BaseException as error:
            self.close()  # and the daemon forgets them
            if isinstance(error, BadInput) and "unknown operation" in str(error):
                hint = "the daemon is older than this client: restart it, or submit a shorter list"
                raise BadInput(str(error), subject="protocol", hint=hint) from None
            raise
        return self._queued(request("submit", {"of": count}), count)

    def _queued(self, line: bytes, count: int) -> list[int]:
        """Send what queues so many jobs; their ids. After an interrupt the daemon is asked what became of them."""
        timeout = self.timeout + count / 1000
        with _none_queued():
            self._open()
        try:
            self._send_line("submit", line)
            return self._new_ids(timeout, count)
        except KeyboardInterrupt:
            # Our end is closed, which the daemon sees, and not its: it says what became of them.
            assert self._socket is not None
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_WR)
        try:
            first, *others = self._new_ids(timeout, count)
        except DaemonUnavailable as error:
            raise KeyboardInterrupt(f"{error}; {error.hint}") from None
        except SchedError:
            raise KeyboardInterrupt(NONE_QUEUED) from None
        finally:
            self.close()
        queued = f"the jobs are queued, from job {first} on" if others else f"the job is queued, as {first}"
        raise KeyboardInterrupt(f"the interrupt came too late: {queued}") from None

    def _new_ids(self, timeout: float, count: int) -> list[int]:
        """The answer to a submit. ``DaemonUnavailable``: nobody knows what became of it."""
        try:
            answer = self._receive(timeout)
        except DaemonUnavailable as error:
            hint = "what was submitted may be in the queue: look with `dockless queue` before you submit it again"
            raise DaemonUnavailable(str(error), subject=error.subject, hint=hint) from None
        if "first" in answer:
            return list(range(int(answer["first"]), int(answer["first"]) + count))
        return [int(number) for number in answer["ids"]]

    def submit_gang(self, jobs: Iterable[JobSpec]) -> list[int]:
        """Queue jobs that start together, or not at all, each with a ``role``; their ids in order. The first stands for all: what is asked
        of it is asked of all, and it ends as they do."""
        plain = [_plain(job) for job in jobs]
        self._anew()
        return self._queued(request("submit", {"jobs": plain, "gang": True}), len(plain))

    @checked
    def submit_array(self, job: JobSpec, count: int) -> list[int]:
        """Queue ``count`` copies that know their place: DOCKLESS_ARRAY_ID (the first id) and DOCKLESS_ARRAY_INDEX (0 …)."""
        self._anew()
        return self._queued(request("submit", {"jobs": [_plain(job)], "array": count}), count)


@contextmanager
def _none_queued() -> Iterator[None]:
    """An interrupt here leaves nothing in the queue."""
    try:
        yield
    except KeyboardInterrupt:
        raise KeyboardInterrupt(NONE_QUEUED) from None


def _plain(job: JobSpec) -> dict[str, Any]:
    """As it travels. A disk that is named by a path is looked up here, with the rights of whoever asks."""
    return differences(replace(job, spec=replace(job.spec, limits=job.spec.limits.by_number())))
