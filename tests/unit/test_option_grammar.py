"""Mounts and resource limits as people write them."""

from __future__ import annotations

import pytest

from dockless.errors import BadInput
from dockless.options import make_spec, parse_mount
from dockless.sandbox.spec import Bind, Rlimit, Volume


@pytest.mark.parametrize(
    ("text", "mount"),
    [
        ("/a:/b", Bind("/a", "/b")),
        ("/a:/b:ro", Bind("/a", "/b", readonly=True)),
        ("/a:/b:rw", Bind("/a", "/b")),
        ("/a:/b:rbind", Bind("/a", "/b")),
        ("/a:/b:bind", Bind("/a", "/b", recursive=False)),
        ("/a:/b:norecursive", Bind("/a", "/b", recursive=False)),
        ("/a:/b:ro,bind,idmap", Bind("/a", "/b", readonly=True, recursive=False, idmap=True)),
        ("cache:/b", Volume("cache", "/b")),
        ("cache:/b:ro", Volume("cache", "/b", readonly=True)),
    ],
)
def test_mounts(text, mount):
    assert parse_mount(text) == mount


@pytest.mark.parametrize("text", ["/a", ":/b", "/a:", "/a:/b:ro,rw", "/a:/b:wat", "cache:/b:idmap", ""])
def test_mounts_that_cannot_be_meant(text):
    with pytest.raises(BadInput):
        parse_mount(text)


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("nofile=5", (5, 5)), ("nofile=5:5", (5, 5)), ("nofile=5:6", (5, 6)), ("nofile=5:unlimited", (5, -1)),
        ("nofile=unlimited", (-1, -1)), ("RLIMIT_NOFILE=0:-1", (0, -1)),
    ],
)  # fmt: skip
def test_resource_limits(text, limit):
    assert make_spec("host", ("true",), ulimits=[text]).rlimits == (Rlimit("nofile", *limit),)


@pytest.mark.parametrize("text", ["nofile=6:5", "nofile=unlimited:5", "nofile=1:2:3", "nofile=", "=5", "nofile=five", "nofile=-2"])
def test_resource_limits_that_cannot_be_meant(text):
    with pytest.raises(BadInput):
        make_spec("host", ("true",), ulimits=[text])
