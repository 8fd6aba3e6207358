"""What the tests of pull and push share: no waiting, small chunks, nothing of this user's configuration."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from support.bad_registry import BadRegistry
from support.make_image import file

from dockless.images import Image, Store
from dockless.images.model.digest import parse as parse_digest
from dockless.images.model.manifest import Descriptor
from dockless.images.registry import Configuration, Credentials
from dockless.images.registry.transport import Timeouts
from dockless.images.transfer.fetch import spool_path
from dockless.images.transfer.pull import pull
from dockless.images.transfer.transfer import Pace

CHUNK = 64 << 10
QUICK = Pace(connections=3, split_from=4 * CHUNK, chunk=CHUNK, tries=4, wait=0.001, wait_max=0.01)
SINGLE = Pace(connections=1, chunk=CHUNK, tries=4, wait=0.001, wait_max=0.01)
TIMEOUTS = Timeouts(connect=5.0, read=10.0, head=10.0)
HASTY = Timeouts(connect=5.0, read=0.3, head=10.0)
"""For where a stall is meant."""
CONTENT = os.urandom(10 * CHUNK + 1234)
"""More than ten chunks, and nothing that compresses."""


def fetch(registry: BadRegistry, name: str = "app:1", *, store: Store | None = None, **how: Any) -> Image:
    how = {"pace": SINGLE, "timeouts": TIMEOUTS, "configuration": Configuration(), "credentials": Credentials()} | how
    return pull(store or Store(), registry.name(name), **how)


def without_waiting(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Requests are tried as often as ever, at once. The list grows with the seconds that would have been waited."""
    from dockless.images.registry.transport import Registry

    waits: list[float] = []
    monkeypatch.setattr(Registry.__init__, "__kwdefaults__", {**(Registry.__init__.__kwdefaults__ or {}), "pause": waits.append})
    return waits


def one_layer(registry: BadRegistry, name: str = "app:1", **how: Any) -> str:
    """Serve an image with one large file in one layer; the layer's digest."""
    how = {"compression": "none"} | how
    registry.image(name, [[file("a", CONTENT)]], **how)
    return registry.layers(name)[0]


def holds(image: Image, content: bytes = CONTENT) -> bool:
    return image.read_file("/a", 1 << 26) == content


def spool(layer: str, size: int, store: Store | None = None) -> Path:
    """Where a blob of that digest and size is gathered."""
    entry = Descriptor("", parse_digest(layer), size)
    store = store or Store()
    store.prepare()
    return spool_path(store, entry)


def torn(store: Store | None = None) -> list[str]:
    """What lies in the store for downloads that have not ended."""
    place = (store or Store()).root / "partial"
    return sorted(path.name for path in place.rglob("*") if path.is_file())


def sent(registry: BadRegistry, layer: str) -> list[str]:
    """The ranges that were asked of a blob."""
    return [seen.range for seen in registry.requests("GET", layer)]
