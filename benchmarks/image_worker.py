"""dockless as a whole process for ``images.py``, and the least that anybody has to do.

image_worker.py load LAYOUT HOME [written|indexed]        Store.load into a store of its own
image_worker.py pull REFERENCE HOME [written|indexed]     pull it into such a store
image_worker.py floor BLOB...                             decompress and hash (blob and content), as many layers at a time as processors
image_worker.py run REFERENCE HOME [written|indexed]      run the image's own program in a sandbox
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

_FORMS = {"written": False, "indexed": True}


def _store(home: str, form: str):
    from dockless.images import Store

    return Store(Path(home) / "store", index=_FORMS[form])


def load(layout: str, home: str, form: str) -> None:
    print(_store(home, form).load(layout, name="bench")[0].digest)


def pull(reference: str, home: str, form: str) -> None:
    from dockless.images.pull import pull as pulled

    print(pulled(_store(home, form), reference).digest)


def run(reference: str, home: str, form: str) -> None:
    os.environ["DOCKLESS_HOME"] = home
    import dockless

    result = dockless.run(reference, capture_output=True)
    print(result.stdout.decode(), result.returncode)


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
    jobs: dict[str, Callable[..., None]] = {"load": load, "pull": pull, "floor": floor, "run": run}
    jobs[what](*words)


if __name__ == "__main__":
    main()
