"""Whether a sandbox, an event or a volume is one of those that are asked for."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping


def has_labels(known: Mapping[str, str], wanted: Iterable[tuple[str, str | None]]) -> bool:
    """Whether it has all of ``wanted``; None for any value."""
    return all(name in known and value in (None, known[name]) for name, value in wanted)


def is_named(name: str, texts: Collection[str]) -> bool:
    """Whether one of these texts is in its name; without one, every name."""
    return not texts or any(text in name for text in texts)


def is_image(image: str, names: Iterable[str]) -> bool:
    """Whether it is one of these images: ``python`` means every tag and digest of it."""
    return any(image == name or image.startswith((f"{name}:", f"{name}@")) for name in names)
