"""What registries do that breaks clients, row by row (R1–R21 of the registry behaviours), against a registry that does it on purpose.

======  ==========================================================================================================================
R1 R2   tokens and challenges: test_registry_auth
R3      test_a_token_that_expires_within_a_blob
R4      redirects: test_registry_transport; test_pull_attacks (nothing leaks in a real pull)
R5      waiting: test_registry_transport; test_a_mirror_that_limits_is_left_at_once (test_pull_mirrors)
R6      test_cut_…, test_stalled, test_a_range_…, test_416_…, test_an_etag_…, test_servers_without_ranges_…, test_errors_…, test_given_up_…
R7      test_tags_…
R8      test_content_types_…, test_contradictions_…
R9      test_platforms_…, test_nested_indexes, test_docker_and_oci_types_mixed
R10     test_schema_1
R11     test_a_foreign_layer_…; test_pull_attacks
R12     test_sha512, test_digests_that_are_none
R13     test_a_wrong_size_…, test_trailing_bytes_…, test_wrong_bytes_…
R14     formats of layers: test_image_layer, test_image_store; test_layer_compressions
R15     test_artifacts_…, test_no_layers, test_inline_data_…
R16     test_a_layer_twice, test_counts_that_differ
R17     test_a_manifest_that_is_too_large, test_too_many_tags
R18     test_a_tag_that_moves, test_pull_mirrors
R19     test_registry_transport
R20     test_bodies_without_a_length, test_content_encoding
R21     test_pull_processes
======  ==========================================================================================================================
"""

from __future__ import annotations

import base64
import dataclasses
import json
import os
import threading

import pytest
from support import bad_registry as bad
from support import make_image as make
from support.pulling import CHUNK, CONTENT, HASTY, QUICK, SINGLE, fetch, holds, one_layer, torn

from dockless.errors import BadDigest, BadImage, NoRoom, NotFound, NotRunnable, RegistryError, RegistryUnavailable
from dockless.images import Store
from dockless.images.registry import Endpoint, Registry
from dockless.images.registry.remote import Remote


@pytest.fixture
def registry():
    with bad.BadRegistry() as server:
        yield server


def sent(registry, layer):
    """The ranges that were asked of a blob."""
    return [seen.range for seen in registry.requests("GET", layer)]


# -- R3 ------------------------------------------------------------------------------------------------------------------------------


def test_a_token_that_expires_within_a_blob(registry):
    layer = one_layer(registry)
    asked = bad.tokens(registry, uses=5)
    assert holds(fetch(registry, pace=QUICK))
    assert len(asked()) >= 2
    assert len(sent(registry, layer)) <= 2 * 11  # each range at most twice: with the old token and with the new one


def test_a_token_that_is_never_good_enough(registry):
    one_layer(registry)
    asked = bad.tokens(registry, uses=0)
    with pytest.raises(RegistryError):
        fetch(registry)
    assert len(asked()) <= 2, "asked for tokens in a loop"


# -- R6 ------------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reset", [False, True], ids=["truncated", "reset"])
@pytest.mark.parametrize("at", [0, 1, CHUNK, 5 * CHUNK + 17])
def test_cut_transfers_go_on(registry, at, reset):
    layer = one_layer(registry)
    registry.script(bad.cut_at(at, reset=reset), part=layer)
    assert holds(fetch(registry))
    first, second = sent(registry, layer)
    assert first == ""
    if reset:
        assert second == "" or int(second[6:].partition("-")[0]) <= at  # a reset may throw away what had been sent
    else:
        assert second == (f"bytes={at}-{len(registry.blobs[layer]) - 1}" if at else "")


def test_cut_over_and_over(registry):
    """Progress sets the number of tries back: ten cuts are no problem where four failures in a row would be."""
    layer = one_layer(registry)
    store_of = len(registry.blobs[layer])
    registry.script(bad.cut_at(store_of // 10), part=layer, times=8)
    big = os.urandom(6 << 20)
    registry.image("big:1", [[make.file("a", big)]], compression="none")
    registry.script(bad.cut_at(1 << 20), part=registry.layers("big:1")[0], times=5)
    assert holds(fetch(registry, "big:1"), big)


def test_a_trickle_is_no_progress(registry):
    layer = one_layer(registry)
    registry.script(bad.cut_at(100), part=layer, times=1000)
    with pytest.raises(RegistryUnavailable, match="broke off 4 times"):
        fetch(registry)
    assert len(sent(registry, layer)) == 4
    assert torn() == [f"{layer.partition(':')[2]}-{len(registry.blobs[layer])}"]
    registry._rules.clear()
    assert holds(fetch(registry))
    assert sent(registry, layer)[-1].startswith("bytes=400-")


def test_stalled(registry):
    layer = one_layer(registry)
    registry.script(bad.stalled_at(3 * CHUNK), part=layer)
    assert holds(fetch(registry, timeouts=HASTY))
    assert sent(registry, layer) == ["", f"bytes={3 * CHUNK}-{len(registry.blobs[layer]) - 1}"]


def test_a_drip_is_a_stall(registry):
    """A byte now and then keeps no connection for ever."""
    layer = one_layer(registry)

    def drip(exchange):
        exchange.head(200, length=len(exchange.blob()))
        for at in range(10_000):
            exchange.write(exchange.blob()[at : at + 1])
            if exchange.registry.released.wait(0.01):
                break

    registry.script(drip, part=layer)
    assert holds(fetch(registry, pace=dataclasses.replace(SINGLE, window=0.1, slowest=10_000)))
    assert len(sent(registry, layer)) == 2


def test_over_several_connections(registry):
    layer = one_layer(registry)
    assert holds(fetch(registry, pace=QUICK))
    assert len(sent(registry, layer)) == 11
    assert all(sent(registry, layer))


@pytest.mark.parametrize(
    "what", [bad.cut_at(1000), bad.cut_at(1000, reset=True), bad.stalled_at(1000), bad.status(502, {"Retry-After": "0"})]
)
def test_one_of_several_connections_breaks(registry, what):
    layer = one_layer(registry)
    registry.script(what, part=layer, skip=4)
    assert holds(fetch(registry, pace=QUICK, timeouts=HASTY))
    assert len(sent(registry, layer)) == 12


def test_servers_without_ranges_are_read_in_one_go(registry):
    layer = one_layer(registry)
    registry.script(bad.whole, part=layer, times=1000)
    assert holds(fetch(registry, pace=QUICK))
    assert len(sent(registry, layer)) == 1


def test_servers_without_ranges_after_a_cut(registry):
    """What is here already is passed over."""
    layer = one_layer(registry)
    registry.script(bad.cut_at(2 * CHUNK), part=layer)
    registry.script(bad.whole, part=layer, times=1000)
    assert holds(fetch(registry))
    assert len(sent(registry, layer)) == 2


def test_ranges_that_work_only_at_first(registry):
    layer = one_layer(registry)
    registry.script(bad.whole, part=layer, times=1000, skip=3)
    assert holds(fetch(registry, pace=QUICK))


@pytest.mark.parametrize("stated", ["", "bytes 0-99/*", "bytes 1-0/*", "items 0-5/9", "bytes 18446744073709551616-5/*", "bytes=0-5/6"])
def test_a_range_that_was_not_asked_for(registry, stated):
    layer = one_layer(registry)
    registry.script(bad.cut_at(2 * CHUNK), part=layer)
    registry.script(bad.ranged(stated), part=layer)
    assert holds(fetch(registry))
    assert sent(registry, layer)[2] == ""  # no more ranges from this one


def test_a_range_of_another_size(registry):
    layer = one_layer(registry)
    registry.script(bad.cut_at(2 * CHUNK), part=layer)
    registry.script(bad.ranged(f"bytes {2 * CHUNK}-{3 * CHUNK}/{3 * CHUNK + 1}"), part=layer)
    with pytest.raises(BadDigest, match=rf"{3 * CHUNK + 1} bytes"):
        fetch(registry)
    assert torn() == []


def test_a_range_shorter_than_asked_for(registry):
    layer = one_layer(registry)
    size = len(registry.blobs[layer])

    def short(exchange):
        begin, _ = exchange.wanted(size)
        exchange.reply(206, exchange.blob()[begin : begin + 1000], {"Content-Range": f"bytes {begin}-{begin + 999}/{size}"})

    registry.script(bad.cut_at(CHUNK), part=layer)
    registry.script(short, part=layer)
    assert holds(fetch(registry))
    assert sent(registry, layer)[1:] == [f"bytes={CHUNK}-{size - 1}", f"bytes={CHUNK + 1000}-{size - 1}"]


@pytest.mark.parametrize("stated", ["bytes */{size}", "", "nonsense"])
def test_416_is_answered_with_the_whole_blob(registry, stated):
    layer = one_layer(registry)
    registry.script(bad.cut_at(2 * CHUNK), part=layer)
    registry.script(bad.status(416, {"Content-Range": stated.format(size=len(registry.blobs[layer]))}), part=layer)
    assert holds(fetch(registry))
    assert sent(registry, layer)[2] == ""


def test_416_because_the_blob_is_shorter(registry):
    layer = one_layer(registry)
    registry.script(bad.cut_at(2 * CHUNK), part=layer)
    registry.script(bad.status(416, {"Content-Range": "bytes */77"}), part=layer)
    with pytest.raises(BadDigest, match="77 bytes"):
        fetch(registry)


def test_an_etag_goes_with_every_further_range(registry):
    layer = one_layer(registry)
    assert holds(fetch(registry, pace=QUICK))
    conditions = [seen.headers.get("if-range") for seen in registry.requests("GET", layer)]
    assert conditions[0] is None
    assert set(conditions[1:]) == {f'"{layer}"'}


def test_an_etag_that_changes_makes_the_answer_whole(registry):
    layer = one_layer(registry)

    def renamed(exchange):
        data = exchange.blob()
        exchange.head(200, {"ETag": '"old"'}, length=len(data))
        exchange.write(data[: 2 * CHUNK])
        exchange.hang_up()

    registry.script(renamed, part=layer)
    assert holds(fetch(registry))
    assert registry.requests("GET", layer)[1].headers["if-range"] == '"old"'


def test_a_weak_etag_is_no_condition(registry):
    layer = one_layer(registry)

    def weak(exchange):
        exchange.head(200, {"ETag": 'W/"x"'}, length=len(exchange.blob()))
        exchange.write(exchange.blob()[:1000])
        exchange.hang_up()

    registry.script(weak, part=layer)
    assert holds(fetch(registry))
    assert "if-range" not in registry.requests("GET", layer)[1].headers


@pytest.mark.parametrize("code", [500, 502, 503, 504, 429])
def test_errors_that_pass(registry, code):
    layer = one_layer(registry)
    registry.script(bad.status(code, {"Retry-After": "0"}), part=layer, times=2)
    registry.script(bad.status(code, {"Retry-After": "0"}), part="/manifests/")
    assert holds(fetch(registry))


def test_a_manifest_that_is_cut(registry):
    one_layer(registry)

    def cut(exchange):
        exchange.head(200, {"Content-Type": make.OCI_MANIFEST}, length=500)
        exchange.write(b'{"schemaVersion": 2')
        exchange.hang_up()

    registry.script(cut, part="/manifests/")
    assert holds(fetch(registry))


def test_given_up_and_gone_on_with(registry):
    layer = one_layer(registry)
    registry.script(bad.cut_at(4 * CHUNK), part=layer)
    registry.script(bad.status(404), part=layer)
    with pytest.raises(NotFound):
        fetch(registry)
    assert torn() != []
    assert holds(fetch(registry))
    assert sent(registry, layer)[2].startswith(f"bytes={4 * CHUNK}-")
    assert torn() == []


# -- R7 ------------------------------------------------------------------------------------------------------------------------------


def tags(registry, limit=100_000):
    with Registry(Endpoint(registry.host, "app")) as connection:
        return Remote(connection).tags(limit)


def pages(registry, *answers):
    for link, names in answers:
        body = json.dumps({"name": "app", "tags": names}).encode()
        registry.script(bad.sending(body, {"Link": link} if link else {}), part="/tags/")


def test_tags_page_by_page(registry):
    pages(
        registry,
        ('</v2/app/tags/list?n=1&last=a>; rel="next"', ["a"]),
        (f'<http://{registry.host}/v2/app/tags/list?n=1&last=b>; rel="next"', ["b", 7, "not a tag"]),
        ("<list?n=1&last=c>; rel=next", None),
        ('</v2/else>; rel="prev"', ["d"]),
    )
    assert tags(registry) == ["a", "b", "d"]
    assert len(registry.requests("GET", "/tags/")) == 4


@pytest.mark.parametrize("link", ["<http://127.0.0.1:1/v2/app/tags/list>", "<//127.0.0.2/v2/x>", "<https://evil.example/v2/x>", "</other>"])
def test_tags_that_go_on_elsewhere(registry, link):
    pages(registry, (f'{link}; rel="next"', ["a"]))
    with pytest.raises(BadImage, match="another host"):
        tags(registry)


def test_tags_in_a_circle(registry):
    pages(registry, *(('</v2/app/tags/list?last=a>; rel="next"', ["a"]) for _ in range(3)))
    with pytest.raises(BadImage, match="circle"):
        tags(registry)


def test_too_many_tags(registry):
    pages(registry, *((f'</v2/app/tags/list?last={n}>; rel="next"', [f"t{n}"]) for n in range(50)))
    assert tags(registry, 20) == [f"t{n}" for n in range(20)]
    assert len(registry.requests("GET", "/tags/")) == 20


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
    with pytest.raises(BadDigest):
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
    from dockless.images import digest

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
