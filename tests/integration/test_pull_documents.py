"""Rows R8 to R20: what documents, digests, sizes and bodies may be; the table of all rows stands in test_pull_rows."""

from __future__ import annotations

import asyncio
import base64
import json
import threading

import pytest
from support import bad_registry as bad
from support import make_image as make
from support.boxes import DEADLINE
from support.pulling import CHUNK, CONTENT, QUICK, SINGLE, fetch, holds, one_layer, sent, torn

from dockless import aio
from dockless.errors import BadDigest, BadImage, NoRoom, NotRunnable, RegistryError
from dockless.images import Store


@pytest.fixture
def registry():
    with bad.BadRegistry() as server:
        yield server


# -- R8, R10 -------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["", "application/json", "text/plain; charset=utf-8", make.OCI_MANIFEST + "; charset=utf-8", "nonsense"])
@pytest.mark.parametrize("inside", [True, False])
def test_content_types_that_say_nothing(registry, kind, inside):
    one_layer(registry, manifest={} if inside else {"mediaType": None})
    raw, _ = registry.manifests["app:1"]
    document = {key: value for key, value in json.loads(raw).items() if value is not None}
    registry.serve("app:1", make.to_json(document), kind)
    assert holds(fetch(registry))


def ambiguous(registry, **changes):
    one_layer(registry)
    document = json.loads(registry.manifests["app:1"][0]) | changes
    return make.to_json(document)


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        (make.OCI_INDEX, {}),
        (make.OCI_MANIFEST, {"mediaType": make.OCI_INDEX}),
        (make.OCI_MANIFEST, {"manifests": []}),
        ("", {"manifests": []}),
        ("", {"mediaType": make.OCI_INDEX, "manifests": []}),
    ],
)
def test_contradictions_are_refused(registry, kind, changes):
    """CVE-2021-41190"""
    registry.serve("app:1", ambiguous(registry, **changes), kind)
    with pytest.raises(BadImage, match="ambiguous"):
        fetch(registry)


def test_schema_1(registry):
    registry.serve("app:1", b'{"schemaVersion":1,"name":"app","fsLayers":[]}', "application/vnd.docker.distribution.manifest.v1+prettyjws")
    with pytest.raises(BadImage, match="schema 1"):
        fetch(registry)


# -- R9 ------------------------------------------------------------------------------------------------------------------------------


def index(registry, *entries, name="app:1", **more):
    raw = make.to_json({"schemaVersion": 2, "mediaType": make.OCI_INDEX, "manifests": list(entries), **more})
    return registry.serve(name, raw, make.OCI_INDEX)


def image_for(registry, text, content, **platform):
    platform = {"os": "linux", "architecture": make.architecture()} | platform
    entry = registry.blobs.image([[make.file("a", content)]], {}, platform=platform)
    registry.serve(f"app:{text}", registry.blobs[entry["digest"]], entry["mediaType"])
    return entry


def test_platforms_are_chosen_the_same_way_every_time(registry):
    other = image_for(registry, "o", "other", architecture="s390x")
    own = image_for(registry, "h", "here")
    attestation = image_for(registry, "u", "unknown", os="unknown", architecture="unknown")
    strange = {"mediaType": "application/vnd.example+json", "digest": make.digest_of(b""), "size": 0}
    whole = index(registry, attestation, strange, other, own)
    assert holds(fetch(registry), b"here")
    assert holds(fetch(registry, platform="linux/s390x"), b"other")
    assert holds(fetch(registry), b"here")
    before = len(registry.log)
    assert holds(fetch(registry, f"app@{whole}"), b"here")
    assert len(registry.log) == before, "all of it was there"
    assert holds(Store().get(registry.name(f"app@{own['digest']}")), b"here")


def test_platforms_that_are_not_there(registry):
    index(
        registry, image_for(registry, "o", "other", architecture="s390x"), image_for(registry, "p", "p", architecture="arm", variant="v6")
    )
    with pytest.raises(NotRunnable) as caught:
        fetch(registry, platform="linux/riscv64")
    assert "linux/s390x" in caught.value.hint
    assert "linux/arm/v6" in caught.value.hint


def test_a_single_image_of_another_platform(registry):
    registry.image("app:1", [[make.file("a", "x")]], architecture="s390x")
    with pytest.raises(NotRunnable, match="linux/s390x"):
        fetch(registry, platform="linux/riscv64")
    assert fetch(registry).architecture == "s390x"  # nobody asked for another: it can be looked at


def test_nested_indexes(registry):
    own = image_for(registry, "h", "here")
    entry = own
    for depth in range(4):
        entry = {"mediaType": make.OCI_INDEX, "digest": index(registry, entry, name=f"app:i{depth}"), "size": 0}
        entry["size"] = len(registry.manifests[f"app:{entry['digest']}"][0])
    index(registry, entry)
    assert holds(fetch(registry), b"here")
    deeper = {"mediaType": make.OCI_INDEX, "digest": index(registry, entry, name="app:x"), "size": 0}
    deeper["size"] = len(registry.manifests[f"app:{deeper['digest']}"][0])
    index(registry, deeper, name="app:deep")
    with pytest.raises(BadImage, match="nested"):
        fetch(registry, "app:deep")


def test_docker_and_oci_types_mixed(registry):
    registry.image("app:1", [[make.file("a", "x")], [make.file("b", "y")]])
    document = json.loads(registry.manifests["app:1"][0])
    document["mediaType"] = "application/vnd.docker.distribution.manifest.v2+json"
    document["config"]["mediaType"] = "application/vnd.docker.container.image.v1+json"
    document["layers"][0]["mediaType"] = "application/vnd.docker.image.rootfs.diff.tar.gzip"
    registry.serve("app:1", make.to_json(document), document["mediaType"])
    assert holds(fetch(registry), b"x")


# -- R11, R12, R13 -------------------------------------------------------------------------------------------------------------------


def changed_layer(registry, **changes):
    document = json.loads(registry.manifests["app:1"][0])
    document["layers"][0] |= changes
    registry.serve("app:1", make.to_json(document), make.OCI_MANIFEST)


FOREIGN = "application/vnd.docker.image.rootfs.foreign.diff.tar.gzip"


def test_a_foreign_layer_that_the_registry_has(registry):
    one_layer(registry)
    changed_layer(registry, mediaType=FOREIGN, urls=["http://127.0.0.1:1/x"])
    assert holds(fetch(registry))


def test_a_foreign_layer_that_it_has_not(registry):
    layer = one_layer(registry)
    with bad.BadRegistry() as elsewhere:
        changed_layer(registry, mediaType=FOREIGN, urls=[f"http://{elsewhere.host}/v2/app/blobs/{layer}"])
        elsewhere.blobs[layer] = registry.blobs.pop(layer)
        with pytest.raises(BadImage, match="foreign"):
            fetch(registry)
        assert elsewhere.log == []


def test_sha512(registry):
    one_layer(registry, algorithm="sha512")
    assert registry.layers("app:1")[0].startswith("sha512:")
    assert holds(fetch(registry))


def test_a_manifest_named_by_sha512(registry):
    one_layer(registry)
    raw, kind = registry.manifests["app:1"]
    name = make.digest_of(raw, "sha512")
    registry.manifests[f"app:{name}"] = (raw, kind)
    entry = {"mediaType": kind, "digest": name, "size": len(raw), "platform": {"os": "linux", "architecture": make.architecture()}}
    index(registry, entry, name="app:2")
    for reference in (f"app@{name}", "app:2", "app:2"):
        assert holds(fetch(registry, reference))
    assert len(sent(registry, registry.layers("app:1")[0])) == 1
    assert len(registry.requests("GET", "/blobs/")) == 2


@pytest.mark.parametrize("code", [400, 405, 501])
def test_a_registry_that_does_not_know_head(registry, code):
    one_layer(registry)
    fetch(registry)
    registry.script(lambda exchange: exchange.reply(code), "HEAD", "/manifests/")
    assert holds(fetch(registry))
    assert len(registry.requests("GET", "/manifests/")) == 2


@pytest.mark.parametrize(
    "digest", ["sha256:../../../etc/passwd", "md5:" + "0" * 32, "sha256:" + "A" * 64, "sha256:0", "", None, 7, "sha256:" + "0" * 63 + "/"]
)
def test_digests_that_are_none(registry, digest):
    """A16"""
    one_layer(registry)
    changed_layer(registry, digest=digest)
    with pytest.raises(BadImage if digest == 7 else BadDigest):
        fetch(registry)
    assert len(registry.log) <= 2


@pytest.mark.parametrize("by", [-1, 1, -CHUNK, CHUNK])
@pytest.mark.parametrize("pace", [SINGLE, QUICK], ids=["single", "ranges"])
def test_a_wrong_size_is_refused_and_nothing_kept(registry, by, pace):
    layer = one_layer(registry)
    changed_layer(registry, size=len(registry.blobs[layer]) + by)
    with pytest.raises(BadDigest):
        fetch(registry, pace=pace)
    assert torn() == []


@pytest.mark.parametrize("how", [bad.chunked(b"x"), bad.http10(b"x")], ids=["chunked", "http10"])
def test_trailing_bytes_are_refused(registry, how):
    layer = one_layer(registry)
    registry.script(how, part=layer)
    with pytest.raises(BadDigest, match="at least"):
        fetch(registry)
    assert torn() == []


def test_trailing_bytes_without_end_are_not_read(registry):
    layer = one_layer(registry)
    written = []

    def endless(exchange):
        exchange.wfile.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + exchange.blob())
        try:
            for _ in range(1000):
                exchange.wfile.write(bytes(CHUNK))
                written.append(CHUNK)
        finally:
            exchange.close_connection = True

    registry.script(endless, part=layer)
    with pytest.raises(BadDigest):
        fetch(registry)
    assert sum(written) < 32 << 20


@pytest.mark.parametrize("pace", [SINGLE, QUICK], ids=["single", "ranges"])
def test_wrong_bytes_are_refused_and_not_asked_for_again(registry, pace):
    layer = one_layer(registry)
    registry.script(bad.spoiled, part=layer, times=1000)
    with pytest.raises(BadDigest):
        fetch(registry, pace=pace)
    assert torn() == []
    assert len(sent(registry, layer)) <= 11
    assert Store().list() == []


def test_a_wrong_configuration(registry):
    one_layer(registry)
    config = json.loads(registry.manifests["app:1"][0])["config"]["digest"]
    registry.script(bad.spoiled, part=config)
    with pytest.raises(BadDigest):
        fetch(registry)


@pytest.mark.parametrize("size", [1 << 50, 1 << 62, 1 << 70])
def test_room_is_asked_for_before_anything_comes(registry, size):
    layer = one_layer(registry)
    changed_layer(registry, size=size)
    with pytest.raises((NoRoom, BadImage)):
        fetch(registry)
    assert sent(registry, layer) == []
    assert torn() == []


def test_progress_is_told_one_event_at_a_time(registry):
    registry.image("app:1", [[make.file("a", CONTENT)], [make.file("b", CONTENT[:-1])]], compression="none")
    events, inside = [], threading.Lock()

    def tell(event):
        assert inside.acquire(blocking=False), "two at once"
        events.append(event)
        inside.release()

    fetch(registry, pace=QUICK, progress=tell)
    for at, layer in enumerate(registry.layers("app:1"), 1):
        own = [event for event in events if event.layer == at]
        assert {event.digest for event in own} == {layer}
        assert {event.layers for event in own} == {2}
        downloaded = [event.done for event in own if event.state == "downloading"]
        assert downloaded == sorted(downloaded)
        assert downloaded[-1] == own[0].total == len(registry.blobs[layer])
        assert own[-1].state == "done"
    events.clear()
    fetch(registry, progress=tell)
    assert events == []


def test_an_error_in_the_progress_of_the_caller_is_hers(registry):
    one_layer(registry)

    class Enough(Exception):
        pass

    def tell(event):
        raise Enough

    with pytest.raises(Enough):
        fetch(registry, progress=tell)
    assert holds(fetch(registry))


# -- R14, R15, R16 -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compression", ["none", "gzip", "zstd", "xz", "bzip2"])
def test_layer_compressions(registry, compression):
    registry.image("app:1", [[make.file("a", "x")]], compression=compression)
    assert holds(fetch(registry), b"x")


@pytest.mark.parametrize("kind", ["application/vnd.oci.empty.v1+json", "application/vnd.cncf.helm.config.v1+json"])
def test_artifacts_are_named(registry, kind):
    empty = registry.blobs.add(b"{}", kind)
    raw = make.to_json(
        {"schemaVersion": 2, "mediaType": make.OCI_MANIFEST, "artifactType": "application/x", "config": empty, "layers": [empty]}
    )
    registry.serve("app:1", raw, make.OCI_MANIFEST)
    with pytest.raises(BadImage, match="artifact"):
        fetch(registry)
    assert registry.requests("GET", "/blobs/") == []


def test_no_layers(registry):
    registry.image("app:1", [])
    assert fetch(registry).layers == ()


def test_inline_data_is_used_and_verified(registry):
    registry.image("app:1", [[make.file("a", "x")]])
    layer = registry.layers("app:1")[0]
    changed_layer(registry, data=base64.b64encode(registry.blobs[layer]).decode())
    assert holds(fetch(registry), b"x")
    assert registry.requests("GET", layer) == []


@pytest.mark.parametrize("data", ["AAAA", "not base64!", ""])
def test_inline_data_that_is_wrong(registry, data):
    registry.image("app:1", [[make.file("a", "x")]])
    changed_layer(registry, data=data)
    with pytest.raises((BadDigest, BadImage)):
        fetch(registry)


def test_a_layer_twice(registry):
    """The same blob at two places of one image: fetched once, applied twice."""
    same = [make.file("a", CONTENT)]
    registry.image("app:1", [same, [make.whiteout("a")], same], compression="none")
    image = fetch(registry)
    assert holds(image)
    assert len(image.layers) == 3
    assert len(sent(registry, registry.layers("app:1")[0])) == 1


def test_a_layer_of_two_images(registry):
    registry.image("app:1", [[make.file("a", CONTENT)]])
    registry.image("app:2", [[make.file("a", CONTENT)], [make.file("b", "new")]])
    fetch(registry)
    assert holds(fetch(registry, "app:2"))
    assert len(sent(registry, registry.layers("app:1")[0])) == 1


def test_a_layer_whose_blob_was_given_up_is_not_fetched_again(registry):
    from dockless.images.model import digest

    registry.image("app:1", [[make.file("a", CONTENT)]])
    registry.image("app:2", [[make.file("a", CONTENT)], [make.file("b", "new")]])
    fetch(registry)
    layer = registry.layers("app:1")[0]
    Store().blob_path(digest.parse(layer)).unlink()
    assert holds(fetch(registry, "app:2"))
    assert len(sent(registry, layer)) == 1


def test_counts_that_differ(registry):
    registry.image("app:1", [[make.file("a", "x")]], rootfs={"type": "layers", "diff_ids": []})
    with pytest.raises(BadImage, match="names 0 layers"):
        fetch(registry)
    assert len(registry.requests("GET", "/blobs/")) == 1


# -- R17, R18, R20 -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("long", [False, True])
def test_a_manifest_that_is_too_large(registry, long):
    one_layer(registry)
    body = b'{"schemaVersion": 2, "padding": "' + bytes(5 << 20) + b'"}'
    registry.script(bad.sending(body) if long else endless_json, part="/manifests/")
    with pytest.raises((BadImage, RegistryError), match="larger"):
        fetch(registry)


def endless_json(exchange):
    exchange.wfile.write(b"HTTP/1.0 200 OK\r\n\r\n{")
    exchange.close_connection = True
    for _ in range(1000):
        exchange.wfile.write(b" " * 65536)


def test_a_tag_that_moves(registry):
    """Between HEAD and GET: what counts is the body that came."""
    registry.image("app:1", [[make.file("a", "old")]])
    old = fetch(registry)
    new = registry.image("app:1", [[make.file("a", "new")]])
    lie = make.digest_of(b"what no body has")
    registry.script(lambda exchange: exchange.reply(200, b"", {"Docker-Content-Digest": lie}), "HEAD", "/manifests/")
    image = fetch(registry)
    assert (image.digest, old.digest != new) == (new, True)
    assert holds(image, b"new")


@pytest.mark.parametrize("stated", ["", "sha256:../../x", make.digest_of(b"other")])
def test_a_digest_header_that_is_wrong(registry, stated):
    one_layer(registry)
    raw, kind = registry.manifests["app:1"]
    registry.script(bad.sending(raw, {"Content-Type": kind, "Docker-Content-Digest": stated}), part="/manifests/")
    assert fetch(registry).digest == make.digest_of(raw)


def test_a_manifest_that_is_not_what_its_digest_says(registry):
    one_layer(registry)
    other = registry.image("app:2", [])
    raw = registry.manifests["app:1"][0]
    registry.manifests[f"app:{other}"] = (raw, make.OCI_MANIFEST)
    with pytest.raises(BadDigest):
        fetch(registry, f"app@{other}")


@pytest.mark.parametrize("how", [bad.chunked(), bad.http10()], ids=["chunked", "http10"])
def test_bodies_without_a_length(registry, how):
    layer = one_layer(registry)
    registry.script(how, part=layer)
    assert holds(fetch(registry))
    assert len(sent(registry, layer)) == 1


@pytest.mark.parametrize("pace", [SINGLE, QUICK], ids=["single", "ranges"])
def test_content_encoding(registry, pace):
    layer = one_layer(registry)
    registry.script(bad.compressed, part=layer, times=1000)
    registry.script(bad.compressed, part="/manifests/")
    assert holds(fetch(registry, pace=pace))
    assert registry.requests("GET", layer)[0].headers["accept-encoding"] == "identity"


# -- from a loop ---------------------------------------------------------------------------------------------------------------------


def test_a_loop_pulls_for_another_platform_and_hears_how_far_it_is(registry):
    index(registry, image_for(registry, "o", "other", architecture="s390x"), image_for(registry, "h", "here"))
    steps = []
    image = asyncio.run(aio.pull(registry.name("app:1"), platform="linux/s390x", progress=steps.append))
    assert holds(image, b"other") and steps


def test_a_pull_that_a_loop_cancels_ends_and_brings_nothing(registry):
    index(registry, image_for(registry, "h", "here"))
    begun, go_on = threading.Event(), threading.Event()

    def progress(step: object) -> None:
        begun.set()
        assert go_on.wait(DEADLINE)

    async def main() -> None:
        pulling = asyncio.create_task(aio.pull(registry.name("app:1"), progress=progress))
        while not begun.is_set():
            await asyncio.sleep(0.005)
        pulling.cancel()
        await asyncio.sleep(0)  # it hears of it
        await asyncio.sleep(0)
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await pulling

    asyncio.run(main())
    assert Store().list() == []
