"""R21: several processes and one image, a pull killed or interrupted anywhere: one download, nothing lost, nothing half done."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from support import bad_registry as bad
from support import make_image as make
from support.make_image import file
from support.pulling import CHUNK, CONTENT, QUICK, SINGLE, fetch, holds, one_layer, spool, torn
from support.registries import docker_registry
from support.requires import requires

from dockless.images import Store
from dockless.images.transfer.partial import Partial
from dockless.images.transfer.transfer import PIECE

PULL = """
import sys
from support.pulling import SINGLE, QUICK, Configuration, Credentials, TIMEOUTS, pull, Store
pace = QUICK if sys.argv[2] == "quick" else SINGLE
try:
    print(pull(Store(), sys.argv[1], pace=pace, timeouts=TIMEOUTS, configuration=Configuration(), credentials=Credentials()).digest)
except KeyboardInterrupt:
    import threading
    print("interrupted", [thread.name for thread in threading.enumerate() if thread.name.startswith("dockless-")])
"""
DEADLINE = 30.0


@pytest.fixture
def registry():
    with bad.BadRegistry() as server:
        yield server


def start(name, pace="single") -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": ":".join(sys.path)}
    return subprocess.Popen(
        [sys.executable, "-c", PULL, name, pace], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )


def wait_for(condition, process):
    end = time.monotonic() + DEADLINE
    while not condition():
        if process.poll() is not None:
            assert process.returncode == 0, process.communicate()
            return
        assert time.monotonic() < end, "it never came so far"
        time.sleep(0.005)


def counted(layer, size, chunk=CHUNK) -> int:
    """Bytes that the bookkeeping of the torn blob claims, read as the next pull would: nobody may hold it."""
    held = Partial.take(spool(layer, size), size, chunk)
    assert held is not None
    try:
        return held.have
    finally:
        held.close()


def on_disk(layer) -> int:
    """Bytes of the torn blob as another process sees them grow."""
    place = (Store().root / "partial" / layer.replace(":", "/")).parent
    return sum(path.stat().st_blocks * 512 for path in place.glob(f"{layer.partition(':')[2]}-*"))


@pytest.mark.parametrize("pace", ["single", "quick"])
def test_killed_in_the_middle_of_a_blob(registry, pace):
    layer = one_layer(registry)
    size = len(registry.blobs[layer])
    at = random.Random(pace).randrange(CHUNK // 2, CHUNK)
    registry.script(bad.stalled_at(at), part=layer, skip=0 if pace == "single" else 4, times=1)
    process = start(registry.name("app:1"), pace)
    expected = at if pace == "single" else 4 * CHUNK + at
    wait_for(lambda: on_disk(layer) >= expected, process)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    have = counted(layer, size)
    assert Store().list() == []
    before = len(registry.requests("GET", layer))
    assert holds(fetch(registry, pace=QUICK if pace == "quick" else SINGLE))
    again = sum(
        int(seen.range.removeprefix("bytes=").partition("-")[2]) - int(seen.range.removeprefix("bytes=").partition("-")[0]) + 1
        for seen in registry.requests("GET", layer)[before:]
    )
    assert again == size - have
    assert again <= size - expected + 3 * PIECE
    assert torn() == []


def test_killed_between_download_and_store(registry):
    """All bytes have come, but the blob was not taken over: nothing is fetched again."""
    layer = one_layer(registry)
    held = Partial.take(spool(layer, len(registry.blobs[layer])), len(registry.blobs[layer]), CHUNK)
    held.write(0, registry.blobs[layer])
    held.close()
    assert holds(fetch(registry))
    assert registry.requests("GET", layer) == []


def test_torn_bytes_after_a_crash_of_the_machine(registry):
    """A20: the counts reached the disk, the bytes did not. The digest says so; only then everything comes anew."""
    layer = one_layer(registry)
    size = len(registry.blobs[layer])
    held = Partial.take(spool(layer, size), size, CHUNK)
    held.write(0, bytes(size - 1000))
    held.close()
    assert holds(fetch(registry))
    assert [seen.range for seen in registry.requests("GET", layer)] == [f"bytes={size - 1000}-{size - 1}", ""]


def test_a_whole_file_of_other_bytes(registry):
    layer = one_layer(registry)
    size = len(registry.blobs[layer])
    spool(layer, size).write_bytes(bytes(size))
    assert holds(fetch(registry))
    assert len(registry.requests("GET", layer)) == 1


def test_interrupted_by_ctrl_c(registry):
    layer = one_layer(registry)
    registry.script(bad.stalled_at(3 * CHUNK), part=layer, times=1000)
    process = start(registry.name("app:1"))
    wait_for(lambda: on_disk(layer) >= 3 * CHUNK, process)
    process.send_signal(signal.SIGINT)
    said, errors = process.communicate(timeout=DEADLINE)
    assert said == "interrupted []\n", errors
    registry._rules.clear()
    registry.released.set()
    assert holds(fetch(registry))
    assert registry.requests("GET", layer)[-1].range.startswith(f"bytes={3 * CHUNK}-")


def test_processes_that_want_the_same_image(registry):
    registry.image("app:1", [[file("a", CONTENT)], [file("b", CONTENT[1:])], [file("c", "x")]], compression="none")
    processes = [start(registry.name("app:1")) for _ in range(4)]
    said = [process.communicate(timeout=DEADLINE) for process in processes]
    assert {digest for digest, _ in said} == {Store().get(registry.name("app:1")).digest + "\n"}, said
    for layer in registry.layers("app:1"):
        assert len(registry.requests("GET", layer)) == 1
    assert torn() == []


def test_threads_that_want_images_with_a_layer_in_common(registry):
    for number in range(4):
        registry.image(f"app:{number}", [[file("a", CONTENT)], [file("b", f"own {number}")]], compression="none")
    found = []
    threads = [threading.Thread(target=lambda number=number: found.append(fetch(registry, f"app:{number}"))) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE)
    assert len(found) == 4
    assert all(holds(image) for image in found)
    assert len(registry.requests("GET", registry.layers("app:0")[0])) == 1


def test_processes_with_one_layer_at_different_places(registry):
    """The same blob in several images, each time on top of something else: fetched once, unpacked for each."""
    for number in range(4):
        registry.image(f"app:{number}", [[file("b", f"own {number}")], [file("a", CONTENT)]], compression="none")
    processes = [start(registry.name(f"app:{number}")) for number in range(4)]
    said = [process.communicate(timeout=DEADLINE) for process in processes]
    assert all(digest for digest, _ in said), said
    assert all(holds(Store().get(registry.name(f"app:{number}"))) for number in range(4))
    assert len(registry.requests("GET", registry.layers("app:0")[1])) == 1
    assert torn() == []


def test_who_waits_goes_on_when_the_other_dies(registry):
    layer = one_layer(registry)
    registry.script(bad.stalled_at(5 * CHUNK), part=layer)
    first = start(registry.name("app:1"))
    wait_for(lambda: on_disk(layer) >= 5 * CHUNK, first)
    second = start(registry.name("app:1"))
    wait_for(lambda: len(registry.requests("GET", "/manifests/")) == 2, second)
    first.send_signal(signal.SIGKILL)
    first.communicate()
    assert second.communicate(timeout=DEADLINE)[0] == Store().get(registry.name("app:1")).digest + "\n"
    assert [seen.range for seen in registry.requests("GET", layer)][1:] == [f"bytes={5 * CHUNK}-{len(registry.blobs[layer]) - 1}"]


@requires("program:docker-registry")
def test_killed_again_and_again(tmp_path):
    """A real registry, real moments: the store is sound after each, and no blob starts over."""
    dice = random.Random(5)
    layers = [make.layer_tar([file(f"f{number}", os.urandom(3 << 20))]) for number in range(4)]
    with docker_registry(tmp_path) as registry:
        registry.put("app", "1", layers)
        name = f"{registry.netloc}/app:1"
        kills = 0
        for _ in range(6):
            process = start(name, "quick")
            wait_for(lambda: torn(), process)
            try:
                process.wait(dice.uniform(0.0, 0.05))
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGKILL)
                kills += 1
            _, errors = process.communicate()
            assert "Traceback" not in errors
        process = start(name, "quick")
        _, errors = process.communicate(timeout=DEADLINE)
        assert process.returncode == 0, errors
        image = Store().get(name)
        assert [len(image.read_file(f"/f{number}", 1 << 23)) for number in range(4)] == [3 << 20] * 4
        assert torn() == []
        if "http.response.written" in registry.log.read_text():
            written = sum(_written(line) for line in registry.log.read_text().splitlines() if "GET" in line and "/blobs/" in line)
            assert written < sum(map(len, layers)) + kills * 9 * (PIECE + (1 << 20))


def _written(line: str) -> int:
    _, found, rest = line.partition("http.response.written=")
    return int(rest.split()[0]) if found else 0


@requires("program:docker-registry")
def test_processes_and_a_real_registry(tmp_path):
    layer = make.layer_tar([file("a", CONTENT)])
    with docker_registry(tmp_path) as registry:
        registry.put("app", "1", [layer])
        name = f"{registry.netloc}/app:1"
        processes = [start(name) for _ in range(3)]
        said = [process.communicate(timeout=DEADLINE) for process in processes]
        assert len({digest for digest, _ in said}) == 1, said
        assert holds(Store().get(name))
        asked = [line for line in registry.log.read_text().splitlines() if f"blobs/{make.digest_of(layer)} HTTP" in line and '"GET' in line]
        assert len(asked) == 1
    assert not list((Path(Store().root) / "tmp").iterdir())
