"""What is wrong with a file, told all at once: the first error, with a note for each of the others."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from dockless.errors import BadInput

MOST = 20
"""Errors that are told at once."""


class Findings:
    """Gathers what is wrong. Whoever reads a file goes on behind an error, and asks ``refuse`` at the end."""

    def __init__(self) -> None:
        self.errors: list[BadInput] = []
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

    def add(self, error: BadInput) -> None:
        """``BadInput`` with all of them where there are enough."""
        if self.told(error) not in map(self.told, self.errors):
            self.errors.append(error)
        if len(self.errors) >= MOST:
            self.refuse()

    def refuse(self) -> None:
        """``BadInput`` where something is wrong: the first that was found, with a note for each of the others."""
        if not self.errors:
            return
        first, *others = self.errors
        if not self._noted:
            self._noted = True
            said = [self.told(first), *getattr(first, "__notes__", ())]
            for error in others:
                for note in (self.told(error), *getattr(error, "__notes__", ())):
                    if note not in said:
                        said.append(note)
                        first.add_note(note)
            if len(self.errors) >= MOST:
                first.add_note("there may be more: correct these first")
        raise first

    def told(self, error: BadInput) -> str:
        """An error as one line."""
        return f"{error} ({error.hint})" if error.hint else str(error)
