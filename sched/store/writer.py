"""The one thread that writes the queue, with group commit.

A change is a function of the connection. While one transaction waits for the disk, the changes that arrive meanwhile gather and
go into the next one together: with one client a commit per submit, with eight a commit for about eight. A change's result is
given out only after the commit that holds it (acked means durable).

A change that raises takes back only its own rows: the transaction is begun anew, and each of its changes has a savepoint then. So a change
may be called twice, and does nothing but write rows.
"""

from __future__ import annotations

import sqlite3
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future

from dockless.base.typing import Any, TypeVar
from dockless.errors import SchedError

T = TypeVar("T")
Outcome = list[tuple[Any, Any, BaseException | None]]
Change = Callable[[sqlite3.Connection], T]

MOST = 512
"""Changes in one transaction: bounds how long the first of them waits."""


class QueueWriter:
    """Owns the writing connection. ``done``: called in the writer's thread with the list of (future, result, error) of every
    transaction; by default it resolves the futures right there. A future may be of any kind that ``done`` understands."""

    def __init__(self, db: sqlite3.Connection, done: Callable[[Outcome], None] | None = None) -> None:
        self._db = db
        self._done = done or settle
        self._waiting: deque[tuple[Any, Change[Any]]] = deque()
        self._wake = threading.Condition()
        self._closing = False
        self.transactions = 0
        self._thread = threading.Thread(target=self._run, name="dockless-writer", daemon=True)
        self._thread.start()

    def write(self, change: Change[Any], future: Any = None) -> Any:
        """Queue ``change``; ``future`` (a new ``concurrent.futures.Future`` by default) gets its result after the commit. Changes are
        applied in the order of the calls."""
        future = Future() if future is None else future
        with self._wake:
            if self._closing:
                raise SchedError("the queue is closed", hint="the daemon is ending")
            self._waiting.append((future, change))
            self._wake.notify()
        return future

    def close(self) -> None:
        """Commit what waits, then close the database."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._wake:
                while not self._waiting and not self._closing:
                    self._wake.wait()
                batch = [self._waiting.popleft() for _ in range(min(MOST, len(self._waiting)))]
                if not batch:
                    break
            self._done(self._commit(batch))
        self._db.close()

    def _commit(self, batch: list[tuple[Any, Change[Any]]]) -> Outcome:
        db = self._db
        try:
            try:
                db.execute("BEGIN IMMEDIATE")
                outcome: Outcome = [(future, change(db), None) for future, change in batch]
            except Exception:
                if not db.in_transaction:  # not even begun, or the disk has ended it
                    raise
                db.execute("ROLLBACK")
                db.execute("BEGIN IMMEDIATE")
                outcome = [self._apart(future, change) for future, change in batch]
            db.execute("COMMIT")
            self.transactions += 1
        except Exception as error:
            # Disk full, I/O error: nothing of this batch is durable, so nothing of it is acked.
            if db.in_transaction:
                db.execute("ROLLBACK")
            failure = SchedError(f"the queue cannot be written: {error}", subject="jobs.db", hint="look at the disk it is on")
            outcome = [(future, None, failure) for future, _ in batch]
        return outcome

    def _apart(self, future: Any, change: Change[Any]) -> tuple[Any, Any, BaseException | None]:
        """One of several, of which any may raise."""
        db = self._db
        db.execute("SAVEPOINT change")
        result, failed = None, None
        try:
            result = change(db)
        except Exception as error:
            db.execute("ROLLBACK TO change")
            failed = error
        db.execute("RELEASE change")
        return future, result, failed


def settle(outcome: Outcome) -> None:
    """Resolve futures with what became of them."""
    for future, result, error in outcome:
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)
