"""Everything at once: a registry that misbehaves at random, at every second request. Pull and push end rightly or in an error of ours."""

from __future__ import annotations

import os
import random
import threading

import pytest
from support import bad_registry as bad
from support.make_image import digest_of, file, make_oci_layout
from support.pulling import CHUNK, CONTENT, HASTY, Configuration, Credentials, fetch, holds, without_waiting

from dockless.errors import DocklessError
from dockless.images import Store
from dockless.images.transfer.push import push
from dockless.images.transfer.transfer import Pace
from dockless.images.transfer.upload import UploadPace

SEEDS = range(int(os.environ.get("DOCKLESS_CHAOS", "6")))


def chaos(dice):
    """One bad answer to one request for a blob."""
    size = len(CONTENT)
    at = dice.choice([0, 1, 100, CHUNK, dice.randrange(size)])
    return dice.choice(
        [
            bad.cut_at(at),
            bad.cut_at(at, reset=True),
            bad.stalled_at(at),
            bad.whole,
            bad.chunked(),
            bad.http10(),
            bad.compressed,
            bad.status(dice.choice([401, 403, 404, 408, 416, 429, 500, 503]), {"Retry-After": "0"}),
            bad.status(416, {"Content-Range": f"bytes */{dice.choice([0, size])}"}),
            bad.ranged(dice.choice(["", "bytes 0-5/*", f"bytes {at}-{at + 5}/*", "bytes 5-0/1"])),
            bad.spoiled,
        ]
    )


@pytest.mark.parametrize("seed", SEEDS)
def test_a_pull_ends_rightly(seed, monkeypatch):
    without_waiting(monkeypatch)
    dice = random.Random(seed)
    lock = threading.Lock()
    pace = Pace(connections=dice.choice([1, 2, 4]), split_from=dice.choice([1, 1 << 30]), chunk=CHUNK, wait=0.001, wait_max=0.01)
    with bad.BadRegistry() as registry:
        registry.image("app:1", [[file("b", CONTENT[9:])], [file("a", CONTENT)], [file("c", "small")]], compression="none")

        def answer(exchange):
            with lock:
                script = chaos(dice) if dice.random() < 0.5 else bad.behaving
            script(exchange)

        registry.script(answer, part="/blobs/", times=1 << 30)
        outcomes = []
        for _ in range(25):
            try:
                image = fetch(registry, pace=pace, timeouts=HASTY)
            except DocklessError as error:
                outcomes.append(type(error).__name__)
                continue
            assert holds(image)
            assert image.read_file("/b", 1 << 26) == CONTENT[9:]
            break
        else:
            pytest.fail(f"never came through: {outcomes}")
    assert not [thread for thread in threading.enumerate() if thread.name.startswith(("dockless-fetch", "dockless-range"))]


def upload_chaos(dice):
    """One bad answer to one request of an upload."""
    at = dice.choice([0, 1, 100, CHUNK, dice.randrange(len(CONTENT))])

    def taken(exchange):
        """A part of the body is kept, and nobody is told."""
        name = exchange.path.partition("?")[0].rpartition("/")[2]
        data = exchange.rfile.read(min(at, exchange._length()))
        if name in exchange.registry.uploads:
            exchange.registry.uploads[name] += data
        exchange.hang_up(reset=dice.random() < 0.5)

    def forgotten(exchange):
        exchange.registry.uploads.clear()
        exchange.behave()

    def unheard(exchange):
        exchange.wfile = open(os.devnull, "wb")  # noqa: SIM115
        exchange.behave()
        exchange.hang_up()

    def refused(exchange):
        exchange.rfile.read(exchange._length())
        code = dice.choice([404, 413, 416, 429, 500, 502])
        exchange.refuse(code, "UNKNOWN", {"Retry-After": "0"})

    return dice.choice([taken, forgotten, unheard, refused])


@pytest.mark.parametrize("seed", SEEDS)
def test_a_push_ends_rightly(seed, monkeypatch, tmp_path):
    without_waiting(monkeypatch)
    dice = random.Random(seed)
    lock = threading.Lock()
    layers = [[file("b", CONTENT[9:])], [file("a", CONTENT)], [file("c", "small")]]
    Store().load(make_oci_layout(tmp_path / "l", layers, {}, "app:1", compression="none"))
    how = {"configuration": Configuration(), "credentials": Credentials(), "timeouts": HASTY}
    pace = UploadPace(chunk=dice.choice([CHUNK, 1 << 30]), remembered_from=dice.choice([CHUNK, 1 << 30]), wait=0.001, wait_max=0.01)
    with bad.BadRegistry() as registry:

        def answer(exchange):
            with lock:
                script = upload_chaos(dice) if dice.random() < 0.3 else bad.behaving
            script(exchange)

        for method in ("POST", "PUT", "PATCH", "GET"):
            registry.script(answer, method, "/uploads/", times=1 << 30)
        outcomes = []
        for _ in range(40):
            try:
                done = push(Store(), "app:1", registry.name("app:1"), pace=pace, **how)
                break
            except DocklessError as error:
                outcomes.append(f"{type(error).__name__}: {error}")
        else:
            pytest.fail(f"never came through: {outcomes}")
        assert digest_of(registry.manifests["app:1"][0]) == done.digest
        assert all(digest_of(data) == name for name, data in registry.blobs.items())
