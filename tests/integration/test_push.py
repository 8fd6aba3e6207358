"""Push: what is there is not sent, what can be mounted is mounted, what was cut goes on; real registries and one that misbehaves."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from typing import Any

import pytest
from support import bad_registry as bad
from support import make_image as make
from support.make_image import file
from support.pulling import CHUNK, CONTENT, SINGLE, TIMEOUTS, Configuration, Credentials, fetch, holds, pull
from support.registries import TokenServer, docker_registry
from support.requires import requires

from dockless.errors import BadImage, BadInput, NotFound, RateLimited, RegistryError, RegistryUnavailable, Unauthorized, UnknownImage
from dockless.images import Store
from dockless.images.registry.credentials import Login
from dockless.images.transfer.push import Pushed, push
from dockless.images.transfer.upload import UploadPace

WHOLE = UploadPace(remembered_from=1 << 40, tries=4, wait=0.001, wait_max=0.01)
CHUNKS = UploadPace(chunk=CHUNK, remembered_from=CHUNK, tries=4, wait=0.001, wait_max=0.01)
paces = pytest.mark.parametrize("pace", [WHOLE, CHUNKS], ids=["whole", "chunks"])


@pytest.fixture
def registry():
    with bad.BadRegistry() as server:
        yield server


@pytest.fixture
def image(tmp_path):
    """An image of the store with one large layer; the layer's digest."""
    layout = make.make_oci_layout(tmp_path / "l", [[file("a", CONTENT)], [file("b", "small")]], {}, "app:1", compression="none")
    Store().load(layout)
    raw = Store().documents(Store().get("app:1").digest, "app")[0]
    return json.loads(raw)["layers"][0]["digest"]


def send(registry, to="new:1", ref="app:1", **how: Any) -> Pushed:
    how = {"pace": WHOLE, "timeouts": TIMEOUTS, "configuration": Configuration(), "credentials": Credentials()} | how
    host = registry.host if isinstance(registry, bad.BadRegistry) else registry.netloc
    return push(Store(), ref, f"{host}/{to}", **how)


def arrived(registry, to="new:1"):
    repository, _, tag = to.rpartition(":")
    raw, kind = registry.manifests[f"{repository}:{tag}"]
    assert make.digest_of(raw) == Store().get("app:1").digest
    assert kind == make.OCI_MANIFEST
    return all(entry["digest"] in registry.blobs for entry in [json.loads(raw)["config"], *json.loads(raw)["layers"]])


@paces
def test_everything_is_sent_once(registry, image, pace):
    done = send(registry, pace=pace)
    assert (done.uploaded, done.mounted, done.there) == (3, 0, 0)
    assert arrived(registry)
    assert registry.log[-1].method == "PUT"
    assert "/manifests/1" in registry.log[-1].path
    again = send(registry, pace=pace)
    assert (again.uploaded, again.mounted, again.there, again.sent) == (0, 0, 3, 0)


def asked(registry) -> list[str]:
    return [f"{seen.method} {seen.path.partition('?')[0].split('/')[-2]}" for seen in registry.log]


def test_what_is_there_with_its_manifest_takes_two_requests(registry, image):
    """Under another tag, too: none for each blob."""
    send(registry)
    steps: list[Any] = []
    for tag in ("1", "2"):
        registry.log.clear()
        assert send(registry, f"new:{tag}", progress=steps.append).there == 3
        assert asked(registry) == ["HEAD manifests", "PUT manifests"] and arrived(registry, f"new:{tag}")
    assert [(step.layer, step.layers, step.state) for step in steps] == [(at, 3, "shared") for at in (1, 2, 3)] * 2


def test_a_blob_that_the_registry_has_lost_since_is_sent_again(registry, image):
    send(registry)
    registry.blobs.pop(image)
    again = send(registry)
    assert (again.uploaded, again.there) == (1, 2) and arrived(registry)


@pytest.mark.parametrize(
    "answer",
    [bad.status(500), bad.status(405), bad.status(429), bad.status(403, error="DENIED"), lambda exchange: exchange.reply(200, b"{}")],
)
def test_a_registry_that_does_not_say_whether_it_has_a_manifest(registry, image, answer):
    """Also one that says yes to everything, and gives no digest."""
    registry.script(answer, "HEAD", "/manifests/", times=1000)
    assert send(registry).uploaded == 3 and arrived(registry)


def test_large_blobs_go_in_chunks(registry, image):
    send(registry, pace=CHUNKS)
    ranges = [seen.headers["content-range"] for seen in registry.requests("PATCH", "/uploads/")]
    size = len(registry.blobs[image])
    assert ranges == [f"{begin}-{min(begin + CHUNK, size) - 1}" for begin in range(0, size, CHUNK)]
    assert all("%3A" in seen.path for seen in registry.requests("PUT", "digest="))


def test_blobs_are_mounted_where_the_image_came_from(registry):
    registry.image("app:1", [[file("a", CONTENT)]])
    fetch(registry)
    done = send(registry, "team/copy:1", registry.name("app:1"))
    assert (done.uploaded, done.mounted, done.sent) == (0, 0, 0) or done.mounted == 2
    posts = registry.requests("POST", "mount=")
    assert all("from=app" in seen.path for seen in posts)


@requires("program:docker-registry")
def test_mounted_in_a_real_registry(tmp_path, image):
    with docker_registry(tmp_path) as registry:
        assert send(registry, "one:1").uploaded == 3
        done = send(registry, "two:1")
        assert (done.uploaded, done.mounted, done.there, done.sent) == (0, 3, 0, 0)
        assert send(registry, "two:2").there == 3


def test_a_mount_that_is_refused(registry, image):
    send(registry, "one:1")
    registry.blobs.pop(image)
    registry.script(bad.status(401, error="DENIED"), "POST", "mount=", times=2)
    registry.script(lambda exchange: exchange.refuse(404, "BLOB_UNKNOWN"), "HEAD", image)
    assert send(registry, "two:1").uploaded == 1


@paces
@pytest.mark.parametrize("reset", [False, True])
def test_cut_uploads_go_on(registry, image, pace, reset):
    """The registry keeps what had come; only the rest is sent."""
    method = "PUT" if pace is WHOLE else "PATCH"
    registry.script(keeping(2 * CHUNK // 3, reset=reset), method, "/uploads/", times=1000, skip=0 if pace is WHOLE else 3)
    done = send(registry, pace=pace)
    assert arrived(registry)
    status = registry.requests("GET", "/uploads/")
    assert len(status) == 1
    assert registry.requests("PATCH", "/uploads/")[-1].headers["content-range"].endswith(f"-{len(registry.blobs[image]) - 1}")
    assert done.uploaded == 3


def keeping(count, *, reset):
    """Take ``count`` bytes of one upload that has so many, then hang up without an answer."""
    left = [count]

    def script(exchange):
        name = exchange.path.partition("?")[0].rpartition("/")[2]
        if exchange._length() < count or not left:
            exchange.behave()
            return
        exchange.registry.uploads[name] += exchange.rfile.read(left.pop())
        exchange.hang_up(reset=reset)

    return script


@paces
def test_an_upload_that_the_registry_has_lost(registry, image, pace):
    def lost(exchange):
        exchange.registry.uploads.clear()
        exchange.behave()

    registry.script(lost, "PATCH" if pace is CHUNKS else "PUT", "/uploads/", skip=2 if pace is CHUNKS else 0)
    send(registry, pace=pace)
    assert arrived(registry)


def test_chunks_that_are_too_large(registry, image):
    """413, as a proxy with a limit answers: smaller ones."""

    def limited(exchange):
        if exchange._length() > 1 << 20:
            exchange.rfile.read(exchange._length())
            exchange.refuse(413, "SIZE_INVALID")
        else:
            exchange.behave()

    big = os.urandom(3 << 20)
    Store().load(make.make_oci_layout(Store().root.parent / "big", [[file("a", big)]], {}, "big:1", compression="none"))
    for method in ("PUT", "PATCH"):
        registry.script(limited, method, "/uploads/", times=1000)
    assert send(registry, ref="big:1").uploaded == 2
    assert len(registry.requests("PATCH", "/uploads/")) == 4


def test_a_registry_without_chunks(registry, image):
    registry.script(lambda exchange: (exchange.rfile.read(exchange._length()), exchange.refuse(405, "UNSUPPORTED")), "PATCH", times=1000)
    send(registry, pace=CHUNKS)
    assert arrived(registry)


@paces
def test_a_chunk_out_of_order(registry, image, pace):
    """416: ask how far it has got."""
    registry.script(
        lambda exchange: (exchange.rfile.read(exchange._length()), exchange.refuse(416, "RANGE_INVALID")), "PATCH", "/uploads/", skip=1
    )
    send(registry, pace=CHUNKS)
    assert arrived(registry)


def test_relative_and_absolute_locations(registry, image):
    def absolute(exchange):
        exchange.rfile.read(exchange._length())
        name = f"abs{len(exchange.registry.log)}"
        exchange.registry.uploads[name] = bytearray()
        headers = exchange.upload_headers("new", name)
        exchange.reply(202, b"", headers | {"Location": f"http://{exchange.registry.host}{headers['Location']}"})

    registry.script(absolute, "POST", "/uploads/", times=2)
    send(registry, pace=CHUNKS)
    assert arrived(registry)
    assert all("_state=a%2Fb" in seen.path for seen in registry.requests("PATCH", "/uploads/"))


def test_a_location_that_leads_astray(registry, image):
    registry.script(lambda exchange: exchange.reply(202, b"", {"Location": "http://169.254.169.254/latest"}), "POST", times=1000)
    with pytest.raises(RegistryError, match=r"169\.254"):
        send(registry)


def test_no_location(registry, image):
    registry.script(lambda exchange: exchange.reply(202, b""), "POST", times=1000)
    with pytest.raises(RegistryError, match="where to send"):
        send(registry)


@paces
@pytest.mark.parametrize("unread", [False, True])
def test_tokens_that_expire_in_mid_upload(registry, image, pace, unread):
    asked = bad.tokens(registry, uses=8, unread=unread)
    send(registry, pace=pace)
    assert arrived(registry)
    assert len(asked()) >= 2


def test_errors_that_pass(registry, image):
    registry.script(bad.status(503, {"Retry-After": "0"}), "POST", "/uploads/")
    registry.script(slurped(500), "PUT", "/uploads/")
    registry.script(slurped(429, {"Retry-After": "0"}), "PUT", "/uploads/", skip=1)
    registry.script(slurped(502, {"Retry-After": "0"}), "PUT", "/manifests/")
    send(registry)
    assert arrived(registry)


def slurped(code, headers=None):
    def script(exchange):
        exchange.rfile.read(exchange._length())
        exchange.refuse(code, "UNKNOWN", headers or {})

    return script


def test_a_registry_that_takes_a_byte_of_each_try(registry, image):
    def nibble(exchange):
        name = exchange.path.partition("?")[0].rpartition("/")[2]
        if exchange._length() < CHUNK:
            return exchange.behave()  # the small blobs
        exchange.registry.uploads[name] += exchange.rfile.read(1)
        exchange.hang_up()

    registry.script(nibble, "PUT", "/uploads/", times=1 << 30)
    registry.script(nibble, "PATCH", "/uploads/", times=1 << 30)
    with pytest.raises(RegistryUnavailable):
        send(registry)
    assert len(registry.requests("PUT", "/uploads/") + registry.requests("PATCH", "/uploads/")) < 30


def test_no_tries_without_end_while_nothing_goes_out(registry, image):
    """The registry is gone after it has said where to send to."""

    def last(exchange):
        exchange.behave()
        exchange.registry._server.socket.close()

    registry.script(last, "POST", "/uploads/")
    for method in ("HEAD", "GET", "PUT"):  # over connections that are kept
        registry.script(lambda exchange: exchange.hang_up(), method, "/uploads/", times=1 << 30)
    with pytest.raises(RegistryUnavailable):
        send(registry, pace=UploadPace(remembered_from=1 << 40, tries=1 << 30, wait=0.01, wait_max=0.02, patience=0.5))


@pytest.mark.parametrize(("code", "error"), [(500, RegistryUnavailable), (429, RateLimited), (403, Unauthorized), (400, RegistryError)])
def test_given_up(registry, image, code, error):
    registry.script(slurped(code, {"Retry-After": "0"}), "PUT", "/uploads/", times=1000)
    with pytest.raises(error):
        send(registry)
    assert registry.manifests == {}, "a manifest without its blobs"
    assert len(registry.requests("PUT", "/uploads/")) < 30


def test_a_registry_that_stores_another_manifest(registry, image):
    registry.script(lambda exchange: exchange.reply(201, b"", {"Docker-Content-Digest": make.digest_of(b"x")}), "PUT", "/manifests/")
    with pytest.raises(Exception, match="another manifest"):
        send(registry)


def test_the_answer_to_the_last_request_gets_lost(registry, image):
    def silent(exchange):
        exchange.wfile = open(os.devnull, "wb")  # noqa: SIM115
        exchange.behave()
        exchange.hang_up()

    registry.script(silent, "PUT", "digest=", times=3)
    send(registry, pace=CHUNKS)
    assert arrived(registry)


PUSH = """
import sys
from support.pulling import *
from dockless.images.transfer.push import push
from dockless.images.transfer.upload import UploadPace
pace = UploadPace(chunk=CHUNK, remembered_from=CHUNK)
push(Store(), sys.argv[1], sys.argv[2], pace=pace, timeouts=TIMEOUTS, configuration=Configuration(), credentials=Credentials())
"""


def test_killed_and_gone_on_with(registry, image):
    """kill -9 in the middle of a large blob: the next push sends the rest."""
    stuck = []

    def stall(exchange):
        stuck.append(exchange.path)
        exchange.registry.released.wait(30)
        exchange.hang_up()

    registry.script(stall, "PATCH", "/uploads/", skip=4)
    environment = {**os.environ, "PYTHONPATH": ":".join(sys.path)}
    process = subprocess.Popen([sys.executable, "-c", PUSH, "app:1", f"{registry.host}/new:1"], env=environment)
    end = time.monotonic() + 20
    while not stuck:
        assert process.poll() is None
        assert time.monotonic() < end
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()
    before = len(registry.requests("PATCH", "/uploads/"))
    done = send(registry, pace=CHUNKS)
    assert arrived(registry)
    ranges = [seen.headers["content-range"] for seen in registry.requests("PATCH", "/uploads/")[before:]]
    assert ranges[0].startswith(f"{4 * CHUNK}-")
    assert done.sent < len(registry.blobs[image]) - 3 * CHUNK
    assert list((Store().root / "uploads").iterdir()) == []


def test_killed_after_the_registry_had_lost_the_first_try(registry, image):
    """What is remembered is the upload that is running, not one that was given up."""
    from dockless.images.transfer.upload import _Memory

    kept = []
    plain = _Memory.keep

    def keep(self, location):
        plain(self, location)
        if self._fd >= 0:
            kept.append(sorted(path.stat().st_size > 0 for path in (Store().root / "uploads").iterdir()))

    registry.script(lambda exchange: (exchange.registry.uploads.clear(), exchange.behave()), "PATCH", "/uploads/", skip=2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_Memory, "keep", keep)
        send(registry, pace=CHUNKS)
    assert all(True in there for there in kept)
    assert list((Store().root / "uploads").iterdir()) == []


def test_what_cannot_be_pushed(registry, image):
    with pytest.raises(UnknownImage):
        send(registry, ref="nothing:1")
    with pytest.raises(BadInput, match="host"):
        send(registry, ref="host")
    with pytest.raises(BadInput, match="digest"):
        send(registry, f"new@{image}")
    with pytest.raises(BadInput):
        push(Store(), Store().get("app:1").digest, configuration=Configuration())
    assert registry.log == []


def test_a_blob_that_the_store_does_not_keep_any_more(registry, image):
    Store().blob_path(parse(image)).unlink()
    with pytest.raises(BadImage, match="not in the store any more"):
        send(registry)
    assert registry.manifests == {}
    registry.blobs[image] = b""  # it is there already
    assert send(registry).there >= 1


def parse(text):
    from dockless.images.model import digest

    return digest.parse(text)


def test_progress(registry, image):
    events = []
    send(registry, pace=CHUNKS, progress=events.append)
    assert {event.state for event in events} == {"uploading", "done"}
    assert {event.layer for event in events} == {1, 2, 3}
    events.clear()
    send(registry, progress=events.append)
    assert {event.state for event in events} == {"shared"}


# -- real registries -----------------------------------------------------------------------------------------------------------------


SLOW = """
    ssl hashlib tomllib typing signal base64 subprocess shutil queue encodings.idna re enum socket threading pathlib urllib ipaddress json
    warnings dockless.native dockless.images.layers.pipeline dockless.images.transfer.sending
"""


@requires("program:docker-registry")
@pytest.mark.parametrize("verb", ["push", "pull"])
def test_what_is_there_already_costs_few_imports(tmp_path, image, verb):
    """Most of the time that it took was once theirs."""
    with docker_registry(tmp_path) as registry:
        name = f"{registry.netloc}/app:1"
        Store().tag("app:1", name)
        send(registry, "app:1")
        program = f"import sys; had = set(sys.modules)\nfrom dockless.cli import main\nassert main([{verb!r}, '-q', {name!r}]) == 0"
        program += "\nprint(*(name for name in sys.modules if name not in had))"
        done = subprocess.run([sys.executable, "-P", "-c", program], check=True, capture_output=True, text=True)
    said, modules = done.stdout.splitlines()
    assert said == (Store().get(name).digest if verb == "push" else name)
    assert sorted(set(SLOW.split()) & set(modules.split())) == []


@requires("program:docker-registry")
@paces
def test_there_and_back(tmp_path, image, pace):
    with docker_registry(tmp_path) as registry:
        digest = send(registry, "deep/er/name:1", pace=pace).digest
        other = Store(tmp_path / "other")
        name = f"{registry.netloc}/deep/er/name:1"
        back = pull(other, name, pace=SINGLE, timeouts=TIMEOUTS, configuration=Configuration(), credentials=Credentials())
        assert (back.digest, holds(back)) == (digest, True)


@requires("program:docker-registry", "program:htpasswd", "program:openssl")
def test_with_tokens(tmp_path, image):
    class Known(Credentials):
        def find(self, *_: object) -> Login:
            return Login("ann", "secret")

    with TokenServer(tmp_path, {"ann": "secret"}) as tokens, docker_registry(tmp_path, tokens=tokens) as registry:
        with pytest.raises(Unauthorized):
            send(registry, "public/app:1")
        assert send(registry, "public/app:1", credentials=Known()).uploaded == 3
        assert send(registry, "team/app:1", credentials=Known()).mounted == 3
        with pytest.raises((Unauthorized, NotFound)):
            pull(Store(), f"{registry.netloc}/team/app:1", configuration=Configuration(), credentials=Credentials(), timeouts=TIMEOUTS)
        how = {"configuration": Configuration(), "timeouts": TIMEOUTS, "credentials": Known()}
        assert holds(pull(Store(tmp_path / "o"), f"{registry.netloc}/team/app:1", **how))


@requires("program:docker-registry", "program:skopeo")
def test_skopeo_reads_what_we_push_and_we_read_what_it_pushes(tmp_path, image, monkeypatch):
    with docker_registry(tmp_path) as registry:
        done = send(registry, "ours:1", pace=CHUNKS)
        (tmp_path / "logins.json").write_text("{}")
        monkeypatch.setenv("REGISTRY_AUTH_FILE", str(tmp_path / "logins.json"))  # skopeo would look where a user without a session may not
        copy = ["skopeo", "copy", "-q", "--src-tls-verify=false", "--dest-tls-verify=false"]
        seen = json.loads(subprocess.check_output(["skopeo", "inspect", "--tls-verify=false", f"docker://{registry.netloc}/ours:1"]))
        assert seen["Digest"] == done.digest
        subprocess.run([*copy, f"docker://{registry.netloc}/ours:1", f"oci:{tmp_path}/out:1"], check=True)
        for kind in ("oci", "v2s2"):
            subprocess.run([*copy, "--format", kind, f"oci:{tmp_path}/out:1", f"docker://{registry.netloc}/theirs:{kind}"], check=True)
            name = f"{registry.netloc}/theirs:{kind}"
            how = {"configuration": Configuration(), "timeouts": TIMEOUTS, "credentials": Credentials()}
            assert holds(pull(Store(tmp_path / kind), name, **how))
