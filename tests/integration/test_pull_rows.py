"""What registries do that breaks clients, row by row (R1–R21 of the registry behaviours), against a registry that does it on purpose.

======  ==========================================================================================================================
R1 R2   tokens and challenges: test_registry_challenge, test_registry_servers
R3      test_a_token_that_expires_within_a_blob
R4      redirects: test_registry_transport; attacks/test_registry_pull (nothing leaks in a real pull)
R5      waiting: test_registry_transport; test_a_mirror_that_limits_is_left_at_once (test_pull_mirrors)
R6      test_cut_…, test_stalled, test_a_range_…, test_416_…, test_an_etag_…, test_servers_without_ranges_…, test_errors_…, test_given_up_…
R7      test_tags_…
R8      (from here on: test_pull_documents) test_content_types_…, test_contradictions_…
R9      test_platforms_…, test_nested_indexes, test_docker_and_oci_types_mixed
R10     test_schema_1
R11     test_a_foreign_layer_…; attacks/test_registry_pull
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

import json
import os

import pytest
from support import bad_registry as bad
from support import make_image as make
from support.pulling import CHUNK, HASTY, QUICK, fetch, holds, one_layer, sent, torn

from dockless.errors import BadDigest, BadImage, NotFound, RegistryError, RegistryUnavailable
from dockless.images.registry import Endpoint, Registry
from dockless.images.registry.remote import RemoteRepository


@pytest.fixture
def registry():
    with bad.BadRegistry() as server:
        yield server


# -- R3 ------------------------------------------------------------------------------------------------------------------------------


def test_a_token_that_expires_within_a_blob(registry):
    layer = one_layer(registry)
    asked = bad.tokens(registry, uses=8)  # the second one is not used up by the others before one of them has tried again
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
    assert holds(fetch(registry, timeouts=HASTY))
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
        return RemoteRepository(connection).tags(limit)


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
