"""Mirrors: asked first, left at the first trouble, never believed more than the registry itself (R5, R6, R13, R18)."""

from __future__ import annotations

import pytest
from support import bad_registry as bad
from support import make_image as make
from support.make_image import file
from support.pulling import CHUNK, CONTENT, QUICK, SINGLE, fetch, holds, one_layer, torn, without_waiting
from support.registries import docker_registry, free_port
from support.requires import requires

from dockless.errors import BadDigest, NotFound, RegistryUnavailable
from dockless.images import Store
from dockless.images.registry import Configuration
from dockless.images.registry.configuration import Mirror, RegistrySettings


@pytest.fixture
def registry():
    with bad.BadRegistry() as server:
        yield server


@pytest.fixture
def mirror():
    with bad.BadRegistry() as server:
        yield server


def mirrored(registry, *mirrors):
    """What registries.conf would say: these mirrors of the registry, in this order."""
    entry = RegistrySettings(prefix=registry.host, location=registry.host, mirrors=tuple(Mirror(host) for host in mirrors))
    return Configuration(entries=(entry,))


def both(registry, mirror, **how):
    layer = one_layer(registry, **how)
    mirror.blobs.update(registry.blobs)
    mirror.manifests.update(registry.manifests)
    return layer


def pulled(registry, *mirrors, name="app:1", **how):
    return fetch(registry, name, configuration=mirrored(registry, *mirrors), **how)


def test_a_mirror_is_enough(registry, mirror):
    both(registry, mirror)
    image = pulled(registry, mirror.host)
    assert holds(image)
    assert image.reference == registry.name("app:1")
    assert [seen for seen in registry.log if seen.path != "/v2/"] == []


def test_a_mirror_that_is_down(registry, monkeypatch):
    waits = without_waiting(monkeypatch)
    one_layer(registry)
    assert holds(pulled(registry, f"127.0.0.1:{free_port()}"))
    assert waits == []


@pytest.mark.parametrize("code", [401, 403, 404, 429, 500, 503])
def test_a_mirror_that_limits_is_left_at_once(registry, mirror, monkeypatch, code):
    waits = without_waiting(monkeypatch)
    layer = both(registry, mirror)
    for part in ("/manifests/", "/blobs/"):
        mirror.script(bad.status(code, {"Retry-After": "30"}), part=part, times=1000)
    assert holds(pulled(registry, mirror.host))
    assert waits == []
    assert len(mirror.requests("GET", layer)) <= 1


def test_a_mirror_without_the_blob(registry, mirror):
    layer = both(registry, mirror)
    del mirror.blobs[layer]
    assert holds(pulled(registry, mirror.host))
    assert len(mirror.requests("GET", layer)) == len(registry.requests("GET", layer)) == 1


@pytest.mark.parametrize("pace", [SINGLE, QUICK], ids=["single", "ranges"])
def test_a_mirror_that_breaks_within_a_blob(registry, mirror, pace):
    """The registry itself goes on where the mirror stopped."""
    layer = both(registry, mirror)
    mirror.script(bad.cut_at(2 * CHUNK + 5), part=layer)
    mirror.script(bad.status(503), part=layer, times=1000)
    assert holds(pulled(registry, mirror.host, pace=pace))
    assert registry.requests("GET", layer)[0].range.startswith("bytes=")
    if pace is SINGLE:
        assert registry.requests("GET", layer)[0].range.startswith(f"bytes={2 * CHUNK + 5}-")


def test_the_second_mirror(registry, mirror):
    with bad.BadRegistry() as other:
        both(registry, mirror)
        other.script(bad.status(404), part="/v2/", times=1000)
        assert holds(pulled(registry, other.host, mirror.host))
        assert other.log != []
    assert registry.requests("GET", "/blobs/") == []


def test_a_mirror_with_wrong_bytes(registry, mirror):
    layer = both(registry, mirror)
    mirror.script(bad.spoiled, part=layer, times=1000)
    assert holds(pulled(registry, mirror.host))
    assert len(mirror.requests("GET", layer)) == 1
    assert [seen.range for seen in registry.requests("GET", layer)] == [""]


def test_a_mirror_with_a_blob_of_another_size(registry, mirror):
    layer = both(registry, mirror)
    mirror.blobs[layer] += b"more"
    assert holds(pulled(registry, mirror.host))


def test_wrong_bytes_everywhere(registry, mirror):
    layer = both(registry, mirror)
    for server in (mirror, registry):
        server.script(bad.spoiled, part=layer, times=1000)
    with pytest.raises(BadDigest):
        pulled(registry, mirror.host)
    assert len(mirror.requests("GET", layer)) == len(registry.requests("GET", layer)) == 1
    assert torn() == []


def test_wrong_bytes_half_and_half(registry, mirror):
    """A mirror's torn bytes stay in the file; when the digest is wrong, all of it comes from the registry."""
    layer = both(registry, mirror)

    def lying_then_gone(exchange):
        exchange.head(200, length=len(CONTENT) + 5000)
        exchange.hang_up()

    def spoiled_start(exchange):
        exchange.head(200, length=len(exchange.blob()))
        exchange.write(bytes(3 * CHUNK))
        exchange.hang_up()

    mirror.script(spoiled_start, part=layer)
    mirror.script(bad.status(503), part=layer, times=1000)
    assert holds(pulled(registry, mirror.host))
    assert [seen.range for seen in registry.requests("GET", layer)][-1] == ""


@pytest.mark.parametrize("spoil", ["nonsense", "ambiguous", "torn"])
def test_a_mirror_with_a_bad_manifest(registry, mirror, spoil):
    both(registry, mirror)
    raw, kind = mirror.manifests["app:1"]
    body = {"nonsense": b"<html>", "ambiguous": raw[:-1] + b',"manifests":[]}', "torn": raw[: len(raw) // 2]}[spoil]
    mirror.script(bad.sending(body, {"Content-Type": kind}), part="/manifests/", times=1000)
    assert holds(pulled(registry, mirror.host))


def test_a_mirror_that_is_behind(registry, mirror):
    """R18: it still has the old image under the tag, whole and sound: that is what its answer says, and what is tagged."""
    registry.image("app:1", [[file("a", "new")]])
    mirror.image("app:1", [[file("a", "old")]])
    image = pulled(registry, mirror.host)
    assert holds(image, b"old")
    assert image.digest == make.digest_of(mirror.manifests["app:1"][0])


def test_a_mirror_that_is_behind_cannot_answer_for_a_digest(registry, mirror):
    new = registry.image("app:1", [[file("a", "new")]])
    mirror.image("app:1", [[file("a", "old")]])
    mirror.manifests[f"app:{new}"] = mirror.manifests["app:1"]
    assert holds(pulled(registry, mirror.host, name=f"app@{new}"), b"new")


def test_nobody_there_but_an_image_in_the_store(registry, mirror):
    both(registry, mirror)
    pulled(registry, mirror.host)
    for server in (registry, mirror):
        for method in ("GET", "HEAD"):
            server.script(bad.cut_at(0), method, "/v2/", times=1000)
    before = len(registry.log)
    assert holds(pulled(registry, mirror.host, policy="missing"))
    assert holds(pulled(registry, mirror.host, policy="never"))
    assert len(registry.log) == before


def test_policy_newer_takes_what_is_there_when_nobody_answers(registry, monkeypatch):
    without_waiting(monkeypatch)
    one_layer(registry)
    fetch(registry)
    name = registry.name("app:1")
    down = Configuration(entries=(RegistrySettings(prefix=registry.host, location=f"127.0.0.1:{free_port()}"),))
    with pytest.raises(RegistryUnavailable):
        fetch(registry, configuration=down)
    assert holds(fetch(registry, configuration=down, policy="newer"))
    assert Store().get(name).reference == name


def test_short_names_are_tried_in_order(registry, mirror):
    """unqualified-search-registries: the first that has it."""
    from support.pulling import TIMEOUTS, Credentials, pull

    one_layer(registry, "library/app:1")
    one_layer(registry, "app:1")
    settings = Configuration(search=(mirror.host, registry.host))
    image = pull(Store(), "app:1", configuration=settings, credentials=Credentials(), timeouts=TIMEOUTS, pace=SINGLE)
    assert image.reference == f"{registry.host}/app:1"
    with pytest.raises(NotFound):
        pull(Store(), "nothing:1", configuration=settings, credentials=Credentials(), timeouts=TIMEOUTS, pace=SINGLE)


@requires("program:docker-registry")
def test_a_real_mirror(tmp_path):
    layer = make.layer_tar([file("a", CONTENT)])
    with docker_registry(tmp_path) as origin:
        origin.put("app", "1", [layer])
        with docker_registry(tmp_path, mirror_of=f"http://{origin.netloc}", name="mirror") as cache:
            settings = Configuration(
                entries=(RegistrySettings(prefix=origin.netloc, location=origin.netloc, mirrors=(Mirror(cache.netloc),)),)
            )
            from support.pulling import TIMEOUTS, Credentials, pull

            name = f"{origin.netloc}/app:1"
            image = pull(Store(), name, configuration=settings, credentials=Credentials(), timeouts=TIMEOUTS, pace=SINGLE)
            assert holds(image)
            log = origin.log.read_text()
            assert "dockless/" not in log, "everything was asked of the mirror"
