"""``dockless.events``: what happens to this user's sandboxes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from dockless.base.checks import checked
from dockless.base.typing import TYPE_CHECKING
from dockless.errors import BadInput
from dockless.sandbox.filters import has_labels, is_image

if TYPE_CHECKING:
    from dockless.sandbox.run.events import Event, Events


@checked
def events(
    *,
    since: float | None = None,
    until: float | None = None,
    kinds: str | Iterable[str] = (),
    ids: str | Iterable[str] = (),
    images: str | Iterable[str] = (),
    labels: Mapping[str, str | None] | None = None,
) -> Events:
    """What happens to the sandboxes of this user from now on, one ``Event`` after the other, whoever does it.

    ``since``: also what records still tell of it, in seconds since 1970; ``until``: no later than that, and then it ends. ``kinds``: these
    alone, see ``Event``; ``ids``, ``images``: of these; ``labels``: of those that have all of them, None for any value. To be iterated
    over, which waits, or asked by ``read()`` when ``fileno()`` is readable; ``with`` or ``close()`` lets go of it. Raises ``BadInput``,
    ``SandboxError``.
    """
    from dockless.sandbox.run.events import Events

    return Events(since, until, wanted(_several(kinds), _several(ids), _several(images), labels or {}))


def _several(given: str | Iterable[str]) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given)


def wanted(
    kinds: tuple[str, ...], ids: tuple[str, ...], images: tuple[str, ...], labels: Mapping[str, str | None]
) -> Callable[[Event], bool]:
    """Whether an event is one of those. ``BadInput`` for a kind that is none."""
    from dockless.sandbox.run.events import KINDS

    for kind in kinds:
        if kind not in KINDS:
            raise BadInput(f"there are no events {kind[:40]!r}", subject="kinds", hint=f"kinds are {', '.join(KINDS)}")

    def fits(event: Event) -> bool:
        return (
            (not kinds or event.kind in kinds)
            and (not ids or event.id in ids or event.details.get("old") in ids)
            and (not images or is_image(event.image, images))
            and has_labels(event.labels, labels.items())
        )

    return fits
