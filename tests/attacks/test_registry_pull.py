"""Hostile registries: A16 (digests as paths), A17 (ambiguity), A18 (credentials), A19 (requests from inside), A20 (poison)."""

from __future__ import annotations

import json
import os

import pytest
from support import bad_registry as bad
from support import make_image as make
from support.make_image import file
from support.pulling import SINGLE, TIMEOUTS, Configuration, Credentials, fetch, holds, one_layer, pull, spool

from dockless.errors import BadDigest, BadImage, ImageError, RegistryError
from dockless.images import Store
from dockless.images.model import digest
from dockless.images.registry.credentials import Login
from dockless.images.transfer.partial import Partial


@pytest.fixture
def registry():
    with bad.BadRegistry() as server:
        yield server


@pytest.fixture
def attacker():
    with bad.BadRegistry() as server:
        yield server


class Known(Credentials):
    """A login for every registry that is asked for: the worst case."""

    def find(self, *_: object) -> Login:
        return Login("ann", "secret")


def basic(registry):
    """The registry wants a password for everything."""

    def guard(exchange):
        if exchange.headers.get("Authorization", "").startswith("Basic "):
            exchange.behave()
        else:
            exchange.refuse(401, "UNAUTHORIZED", {"WWW-Authenticate": 'Basic realm="x"'})

    registry.script(guard, "GET", "/v2/app/manifests", times=1000)
    registry.script(guard, "GET", "/v2/", times=1)


def leaked(server):
    return [seen for seen in server.log if "authorization" in seen.headers or "cookie" in seen.headers]


def test_a18_a_blob_elsewhere_gets_no_credentials(registry, attacker):
    """R4: as with storage at another host; the same for every range of it."""
    layer = one_layer(registry)
    basic(registry)
    attacker.blobs.update(registry.blobs)
    registry.script(bad.redirected(f"http://{attacker.host}"), part="/blobs/", times=1000)
    assert holds(fetch(registry, credentials=Known()))
    assert len(attacker.requests("GET", layer)) == 1
    assert leaked(attacker) == []
    assert leaked(registry) != []


def test_a18_foreign_layers_are_not_fetched_from_where_they_point(registry, attacker):
    """CVE-2020-15157"""
    layer = one_layer(registry)
    document = json.loads(registry.manifests["app:1"][0])
    document["layers"][0] |= {
        "mediaType": "application/vnd.docker.image.rootfs.foreign.diff.tar.gzip",
        "urls": [f"http://{attacker.host}/v2/app/blobs/{layer}"],
    }
    registry.serve("app:1", make.to_json(document), make.OCI_MANIFEST)
    attacker.blobs[layer] = registry.blobs.pop(layer)
    basic(registry)
    with pytest.raises(BadImage, match="foreign"):
        fetch(registry, credentials=Known())
    assert attacker.log == []


@pytest.mark.parametrize(
    "to", ["http://169.254.169.254/latest/…", "http://[fe80::1]/…", "http://0.0.0.0:1/…", "file:///etc/passwd…", "http://10.0.0.1/…"]
)
@pytest.mark.parametrize("part", ["/manifests/", "/blobs/"])
def test_a19_redirects_into_the_private_network(registry, to, part):
    one_layer(registry)
    registry.script(bad.redirected(to), part=part, times=1000)
    with pytest.raises(RegistryError) as caught:
        fetch(registry)
    assert caught.value.code == "unsafe_request"


@pytest.mark.parametrize("link", ["<http://169.254.169.254/v2/x>", "<http://127.0.0.2:1/v2/app/tags/list>"])
def test_a19_pages_elsewhere(registry, link):
    from dockless.images.registry import Endpoint, Registry
    from dockless.images.registry.remote import RemoteRepository

    registry.script(bad.sending(b'{"tags": ["a"]}', {"Link": f'{link}; rel="next"'}), part="/tags/")
    with Registry(Endpoint(registry.host, "app")) as connection, pytest.raises(BadImage, match="another host"):
        RemoteRepository(connection).tags()


@pytest.mark.parametrize("where", ["config", "layer", "index"])
@pytest.mark.parametrize("name", ["sha256:../../../../victim", "sha256:" + "../" * 21 + "x", "sha256:" + "0" * 62 + "/x"])
def test_a16_digests_are_never_paths(registry, tmp_path, where, name):
    """CVE-2024-3727"""
    one_layer(registry)
    document = json.loads(registry.manifests["app:1"][0])
    if where == "index":
        document = {"schemaVersion": 2, "manifests": [{"mediaType": make.OCI_MANIFEST, "digest": name, "size": 1}]}
    else:
        (document["config"] if where == "config" else document["layers"][0])["digest"] = name
    registry.serve("app:1", make.to_json(document), "")
    with pytest.raises(BadDigest):
        fetch(registry)
    assert list(tmp_path.rglob("*victim*")) == []
    assert len(registry.log) <= 2


def test_a17_one_document_two_meanings(registry):
    """The same bytes as an index for one client and as a manifest for another."""
    one_layer(registry)
    document = json.loads(registry.manifests["app:1"][0]) | {"manifests": []}
    del document["mediaType"]
    for kind in (make.OCI_MANIFEST, make.OCI_INDEX, ""):
        registry.serve("app:1", make.to_json(document), kind)
        with pytest.raises(BadImage, match="ambiguous"):
            fetch(registry)


def test_a20_a_blob_with_another_diff_id(registry):
    """A manifest that pairs a good layer with the configuration of another image: refused, and the other image stays what it is."""
    registry.image("good:1", [[file("a", "good")]])
    registry.image("evil:1", [[file("a", "evil")]])
    good, evil = (json.loads(registry.manifests[f"{name}:1"][0]) for name in ("good", "evil"))
    registry.serve("mixed:1", make.to_json(good | {"layers": evil["layers"]}), make.OCI_MANIFEST)
    with pytest.raises(ImageError):
        fetch(registry, "mixed:1")
    assert holds(fetch(registry, "good:1"), b"good")
    with pytest.raises(ImageError):
        fetch(registry, "mixed:1")
    assert holds(Store().get(registry.name("good:1")), b"good")


def test_a20_a_partial_blob_of_another_manifest(registry):
    """One manifest lies about a blob's size and leaves torn bytes behind; another that tells the truth is not touched by them."""
    layer = one_layer(registry)
    lie = Partial.take(spool(layer, 99_999), 99_999, SINGLE.chunk)
    lie.write(0, b"x" * 60_000)  # and is still at it
    assert holds(fetch(registry))
    lie.close()


def test_a20_poison_in_place_of_a_blob_in_the_store(registry):
    """Documents are checked whenever they are read: a damaged one is not believed, and fetched again by the next pull."""
    one_layer(registry)
    image = fetch(registry)
    for name in (image.config_digest, image.digest):
        Store().blob_path(digest.parse(name)).write_bytes(b'{"os": "linux"}')
        with pytest.raises(ImageError):
            Store().image(image.digest, None)
        assert holds(fetch(registry))


def test_a20_a_damaged_blob_in_the_store(registry):
    """Another image needs a layer whose blob was damaged on disk: it comes again. A manifest that lies about its size removes nothing."""
    registry.image("app:1", [[file("a", "x")]])
    registry.image("app:2", [[file("b", "y")], [file("a", "x")]])
    fetch(registry)
    layer = registry.layers("app:1")[0]
    path = Store().blob_path(digest.parse(layer))
    document = json.loads(registry.manifests["app:2"][0])
    document["layers"][1]["size"] += 1
    registry.serve("lie:1", make.to_json(document), make.OCI_MANIFEST)
    with pytest.raises(BadDigest):
        fetch(registry, "lie:1")
    assert path.read_bytes() == registry.blobs[layer]
    path.write_bytes(bytes(path.stat().st_size))
    assert holds(fetch(registry, "app:2"), b"x")
    assert path.read_bytes() == registry.blobs[layer]


def test_names_and_words_of_a_registry_do_not_reach_the_terminal(registry):
    registry.script(
        lambda exchange: exchange.reply(404, json.dumps({"errors": [{"code": "X", "message": "\x1b]0;owned\x07\x1b[2J"}]}).encode()),
        part="/manifests/",
    )
    with pytest.raises(RegistryError) as caught:
        fetch(registry)
    assert "\x1b" not in str(caught.value) + caught.value.hint


def test_a_location_of_an_upload_gets_no_credentials(registry, attacker, tmp_path):
    """A18 for push: the registry sends the upload to another host."""
    from dockless.images.transfer.push import push

    Store().load(make.make_oci_layout(tmp_path / "l", [[file("a", "x")]], {}, "app:1"))

    def elsewhere(exchange):
        attacker.uploads["u"] = bytearray()
        exchange.reply(202, b"", {"Location": f"http://{attacker.host}/v2/app/blobs/uploads/u"})

    basic(registry)
    registry.script(elsewhere, "POST", "/uploads/", times=1000)
    with pytest.raises(ImageError):  # the blobs went elsewhere, so the manifest is refused
        push(Store(), "app:1", registry.name("app:1"), configuration=Configuration(), credentials=Known(), timeouts=TIMEOUTS)
    assert leaked(attacker) == []


def test_too_much_is_not_read(registry):
    """A body without an end, where a manifest should be."""

    def endless(exchange):
        exchange.wfile.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        try:
            while True:
                exchange.wfile.write(b"10000\r\n" + os.urandom(65536) + b"\r\n")
        finally:
            exchange.close_connection = True

    registry.script(endless, part="/manifests/")
    with pytest.raises(ImageError, match="larger"):
        pull(Store(), registry.name("app:1"), configuration=Configuration(), credentials=Credentials(), timeouts=TIMEOUTS)
