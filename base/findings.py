"""What is wrong with a file, or with jobs, told all at once: the first error, with a note for each of the others."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from dockless.errors import BadInput, DocklessError

MOST = 20
"""Errors that are told at once."""


class Findings:
    """Gathers what is wrong. Whoever reads a file goes on behind an error, and asks ``refuse`` at the end. ``closing``: the last note."""

    def __init__(self, closing: str = "") -> None:
        self.errors: list[DocklessError] = []
        self.closing = closing
        self._noted = False

    @contextlib.contextmanager
    def noted(self) -> Iterator[None]:
        """What is wrong here is told with all else."""
        found: BadInput | None = None
        try:
            yield
        except BadInput as error:
            found = error
        if found is not None:
            self.add(found)

    def add(self, error: DocklessError) -> None:
        """Raises all of them where there are enough. What an error holds on to, the frames that it came through, is let go."""
        error.__traceback__ = error.__context__ = error.__cause__ = None
        if self.told(error) not in map(self.told, self.errors):
            self.errors.append(error)
        if self.many:
            self.refuse()

    @property
    def many(self) -> bool:
        """Whether there are as many as are told at once."""
        return sum(1 + len(_notes(error)) for error in self.errors) >= MOST

    def refuse(self) -> None:
        """Raises, where something is wrong, the first that was found, with a note for each of the others."""
        if not self.errors:
            return
        first, *others = self.errors
        if not self._noted:
            self._noted = True
            said, many = [self.told(first), *_notes(first)], self.many
            for error in others:
                for note in (self.told(error), *_notes(error)):
                    if note not in said and len(said) < MOST:
                        said.append(note)
                        first.add_note(note)
            for note in ("there may be more: correct these first" if many else "", self.closing):
                if note and note not in said:
                    first.add_note(note)
        raise first

    def told(self, error: DocklessError) -> str:
        """An error as one line."""
        return f"{error} ({error.hint})" if error.hint else str(error)


def _notes(error: DocklessError) -> list[str]:
    return getattr(error, "__notes__", [])
