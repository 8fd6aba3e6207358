"""Several processes and one store: one unpacks, the others wait; a process killed anywhere leaves the store sound."""

import os
import random
import signal
import subprocess
import sys
import threading
import time

from support import make_image as make
from support.boxes import until
from support.layers import tree

from dockless.images import Store, files

LOAD = "import sys; from dockless.images import Store; print(*[image.digest for image in Store().load(sys.argv[1])])"


def start(path) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": ":".join(sys.path)}
    return subprocess.Popen([sys.executable, "-c", LOAD, path], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def image_of(tmp_path, files=400):
    layers = [[make.file(f"d{layer}/f{n}", os.urandom(2000)) for n in range(files)] for layer in range(3)]
    return make.make_oci_layout(tmp_path / "big", layers, make.config(), "big:1")


def test_processes_that_load_one_image_at_once(tmp_path):
    path = image_of(tmp_path)
    loaders = [start(path) for _ in range(4)]
    said = {loader.communicate(timeout=60) for loader in loaders}
    assert all(loader.returncode == 0 for loader in loaders), said
    assert len(said) == 1
    assert len(tree(Store().get("big:1").layers)) == 3 * 401
    assert list((Store().root / "tmp").iterdir()) == []


def test_threads_that_load_different_images(tmp_path):
    shared = [make.file(f"shared{n}", "x" * 100) for n in range(200)]
    paths = [make.make_oci_layout(tmp_path / f"i{n}", [shared, [make.file(f"own{n}")]], {}, f"i{n}:1") for n in range(4)]
    errors: list[BaseException] = []

    def load(path):
        try:
            Store().load(path)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=load, args=(path,)) for path in paths]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert errors == []
    images = Store().list()
    assert [image.reference for image in images] == [f"docker.io/library/i{n}:1" for n in range(4)]
    assert len({image.layers[0] for image in images}) == 1


def test_a20_kill_9_at_any_moment_leaves_a_sound_store(tmp_path):
    """A20: a partial blob or layer of a killed loader is never taken for a whole one."""
    path = image_of(tmp_path, 300)
    dice = random.Random(3)
    began = time.monotonic()
    loader = start(path)
    assert loader.wait(60) == 0
    took = time.monotonic() - began
    expected = tree(Store().get("big:1").layers)
    for _ in range(8):
        store = Store(tmp_path / f"store{dice.random()}")
        environment = {**os.environ, "PYTHONPATH": ":".join(sys.path)}
        code = LOAD.replace("Store()", f"Store(__import__('pathlib').Path({str(store.root)!r}))")
        process = subprocess.Popen([sys.executable, "-c", code, path], stdout=subprocess.DEVNULL, env=environment)
        deadline = dice.uniform(0.1, took)
        try:
            process.wait(deadline)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()
        for image in store.list():
            assert tree(image.layers) == expected
        (image,) = store.load(path)
        assert tree(image.layers) == expected
        # An ordinary user's writers see that their loader is gone when they next read: one of them may have been in use during this load.
        until(lambda place=store.root / "tmp": files.sweep(place) or not os.listdir(place), "what the killed loader left is swept")
