"""dockless as a whole process for ``images.py``, and the least that anybody has to do.

image_worker.py load LAYOUT HOME [written|indexed]        Store.load into a store of its own
image_worker.py pull REFERENCE HOME [written|indexed]     pull it into such a store
image_worker.py floor BLOB...                             decompress and hash (blob and content), as many layers at a time as processors
image_worker.py run REFERENCE HOME [written|indexed]      run the image's own program in a sandbox
image_worker.py list REFERENCE HOME [written|indexed]     list all files as a sandbox sees them
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

_FORMS = {"written": False, "indexed": True}


def _store(home: str, form: str):
    from dockless.images import Store

    return Store(Path(home) / "store", index=_FORMS[form])


def load(layout: str, home: str, form: str) -> None:
    print(_store(home, form).load(layout, name="bench")[0].digest)


def pull(reference: str, home: str, form: str) -> None:
    from dockless.images.transfer.pull import pull as pulled

    print(pulled(_store(home, form), reference).digest)


def run(reference: str, home: str, form: str) -> None:
    os.environ["DOCKLESS_HOME"] = home
    import dockless

    times = []
    for _ in range(5):
        before = time.perf_counter()
        dockless.run(reference, ["/bin/true"], check=True)
        times.append(f"{(time.perf_counter() - before) * 1e3:.1f}")
    result = dockless.run(reference, capture_output=True, text=True)
    print(f"/bin/true in it takes {', '.join(times)} ms; its own program says {result.stdout.strip()!r}, exit {result.returncode}")


LIST = """
import hashlib, os, stat, sys
put = sys.stdout.buffer.write
given = {b"/proc", b"/sys", b"/dev", b"/etc/hosts", b"/etc/hostname", b"/etc/resolv.conf", b"/etc/mtab", b"/run"}
def walk(folder):
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
        if entry.path in given:
            continue
        about, content = entry.stat(follow_symlinks=False), b""
        if stat.S_ISLNK(about.st_mode):
            content = os.readlink(entry.path)
        elif stat.S_ISREG(about.st_mode):
            content = hashlib.sha256(open(entry.path, "rb").read()).hexdigest().encode()
        folders = stat.S_ISDIR(about.st_mode)
        numbers = about.st_mode, about.st_uid, about.st_gid, *((0, 0, 0) if folders else (about.st_size, about.st_mtime_ns, about.st_nlink))
        put(entry.path.replace(b"\\n", b"?") + b"|%o %d %d %d %d %d " % numbers + content.replace(b"|", b"?") + b"\\n")
        if folders:
            walk(entry.path)
walk(b"/")
"""
"""A Python program that lists what the root it runs in holds; what a sandbox brings along is left out."""


def listed(reference: str, home: str, form: str) -> None:
    os.environ["DOCKLESS_HOME"] = home
    import dockless

    sys.exit(dockless.run(reference, ["/usr/bin/python3", "-c", LIST]).returncode)


def floor(*blobs: str) -> None:
    """isal and the hashes of both streams: two threads for a layer, as many layers at a time as there are processors."""
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        print(*pool.map(_floor, sorted(blobs, key=os.path.getsize, reverse=True)))


def _floor(blob: str) -> str:
    import hashlib
    import queue
    import threading

    from isal import isal_zlib

    content: queue.Queue[bytes | None] = queue.Queue(8)
    packed, unpacked = hashlib.sha256(), hashlib.sha256()

    def hashing() -> None:
        while (data := content.get()) is not None:
            unpacked.update(data)

    thread = threading.Thread(target=hashing)
    thread.start()
    inflate = isal_zlib.decompressobj(31)
    with open(blob, "rb", buffering=0) as stream:
        while data := stream.read(1 << 18):
            packed.update(data)
            content.put(inflate.decompress(data))
    content.put(None)
    thread.join()
    return f"{packed.hexdigest()} {unpacked.hexdigest()}"


def main() -> None:
    what, *words = sys.argv[1:]
    jobs: dict[str, Callable[..., None]] = {"load": load, "pull": pull, "floor": floor, "run": run, "list": listed}
    jobs[what](*words)


if __name__ == "__main__":
    main()
