"""Real images made by real tools: every sound one loads, everything else is refused with one clear error. Also the odd and hostile tars."""

import base64
import io
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from support.layers import members
from support.requires import requires, shared

from dockless.errors import BadImage, DocklessError
from dockless.images import Store
from dockless.images.layers.compression import Decompressed

pytestmark = requires("shared")

ROOTFS = "BadImage: a root file system, not an image"
NO_MANIFEST = "BadImage: without manifest.json"
ARTIFACT = "Artifact: not a container image but an artifact"
LACKS = "BadImage: lacks the blob"
PROGRAM = "BadImage: a program, not an image"
NOT = "BadImage: is not an image: it holds"

# File -> the references it loads as (None: without a name), or the error it is refused with.
TABLE: dict[str, list[str | None] | str] = {
    "alpine/alpine-minirootfs-3.10.9-x86_64.tar.gz": ROOTFS,
    "alpine/alpine-minirootfs-3.20.3-aarch64.tar.gz": ROOTFS,
    "alpine/alpine-minirootfs-3.20.3-x86_64.tar.gz": ROOTFS,
    "busybox/amd64-glibc": ["docker.io/library/busybox:1.37.0-glibc"],
    "busybox/amd64-musl": ["docker.io/library/busybox:1.37.0-musl"],
    "busybox/arm64v8-glibc": ["docker.io/library/busybox:1.37.0-glibc"],
    "containers-common/artifact-blobs-only": ARTIFACT,
    "containers-common/artifact-config-only": ARTIFACT,
    "containers-common/artifact-index": ARTIFACT,
    "containers-common/artifact-no-blobs": ARTIFACT,
    "containers-common/buildkit-docker.tar": ["github.com/buildkit/archive:docker"],
    "containers-common/buildkit-oci.tar": ["github.com/buildkit/archive:oci"],
    "containers-common/docker-name-only.tar.xz": ["docker.io/library/pretty-empty:latest"],
    "containers-common/docker-registry-name.tar.xz": ["example.com/empty:latest"],
    "containers-common/docker-two-images.tar.xz": ["example.com/empty:latest", "example.com/empty/but:different"],
    "containers-common/docker-two-names.tar.xz": ["docker.io/library/pretty-empty:latest", "example.com/empty:latest"],
    "containers-common/docker-unnamed.tar.xz": [None],
    "containers-common/exported-container.tar": ROOTFS,
    "containers-common/oci-name-only.tar.gz": ["docker.io/library/pretty-empty:latest"],
    "containers-common/oci-non-docker-name.tar.gz": ["docker.io/library/oci-non-docker-name:UPPERCASE-IS-INVALID"],
    "containers-common/oci-registry-name.tar.gz": ["example.com/empty:latest"],
    "containers-common/oci-unnamed.tar.gz": [None],
    "dive/test-docker-image.tar": ["docker.io/library/dive-test:latest"],
    "dive/test-estargz-image.tar": NOT,
    "dive/test-gzip-image.tar": NOT,
    "dive/test-kaniko-image.tar": ["docker.io/library/dive-test:kaniko-latest"],
    "dive/test-oci-estargz-image.tar": [None],
    "dive/test-oci-gzip-image.tar": [None],
    "dive/test-oci-uncompressed-image.tar": [None],
    "dive/test-oci-zstd-image.tar": [None],
    "dive/test-uncompressed-image.tar": NOT,
    "dive/test-zstd-image.tar": NOT,
    "ggcr/hello-world-v25.tar": [None],
    "ggcr/no_manifest.tar": NO_MANIFEST,
    "ggcr/null_manifest.tar": "BadImage: lists no images",
    "ggcr/overwritten_file.tar": ["docker.io/bazel/pkg/v1/mutate:overwritten_file"],
    "ggcr/source_image.tar": ["docker.io/bazel/pkg/v1/mutate:source_image"],
    "ggcr/source_image_with_empty_layer_history.tar": ["docker.io/bazel/pkg/v1/mutate:source_image"],
    "ggcr/test_bundle.tar": ["docker.io/library/test_image_2:latest", "docker.io/library/test_image_1:latest"],
    "ggcr/test_gc_index": [f"docker.io/library/test_gc_index:{number}" for number in (1, 3, 4)],
    "ggcr/test_index": [f"docker.io/library/test_index:{number}" for number in (1, 3, 4)],
    "ggcr/test_index_media_type": ARTIFACT,
    "ggcr/test_index_one_image": [None],
    "ggcr/test_link.tar": ["docker.io/bazel/v1/tarball:test_image_1", "docker.io/bazel/v1/tarball:test_image_3"],
    "ggcr/whiteout_dir.tar": ["localhost:5000/whiteout:latest"],
    "ggcr/whiteout_image.tar": ["docker.io/bazel/pkg/v1/mutate:whiteout_image"],
    "hello-world/hello-amd64": PROGRAM,
    "hello-world/hello-arm64": PROGRAM,
    "imgutil/busybox": [None],
    "imgutil/busybox-multi-platform": LACKS,
    "imgutil/busybox-sparse": LACKS,
    "imgutil/index-with-docker-media-type": LACKS,
    "moby/collision-0.tar": NOT,
    "moby/collision-1.tar": NOT,
    "moby/collision-2.tar": NOT,
    "moby/collision-3.tar": NOT,
    "moby/emptyLayer.tar": NO_MANIFEST,
    "moby/xattr-layer.tar": NOT,
    "oras/hello-world-prefixed-path.tar": ["docker.io/library/hello-world:latest"],
    "oras/hello-world.tar": ["docker.io/library/hello-world:latest"],
}


def folder() -> Path:
    found = shared()
    assert found is not None
    return found


@pytest.mark.parametrize("name", TABLE)
def test_every_image_of_the_folder(name):
    path, expected = folder() / "images" / name, TABLE[name]
    if isinstance(expected, list):
        images = Store().load(path)
        assert [image.reference for image in images] == expected
        for image in images:
            assert Store().get(image.name) == image
            assert all(layer.path.exists() for layer in image.layers)
    else:
        kind, _, why = expected.partition(": ")
        with pytest.raises(BadImage, match=re.escape(why)) as caught:
            Store().load(path)
        assert type(caught.value).__name__ == kind
        assert Store().list() == []


def test_the_table_is_complete():
    root = folder() / "images"
    found = {path.parent for path in root.glob("*/*/index.json")} | {path for path in root.glob("*/*") if path.is_file()}
    assert {str(path.relative_to(root)) for path in found} == set(TABLE)


PROGRAMS = {
    "busybox/amd64-glibc": (["/bin/busybox", "echo", "hello"], "hello"),
    "busybox/amd64-musl": (["/bin/busybox", "echo", "hello"], "hello"),
    "imgutil/busybox": (["/bin/busybox", "echo", "hello"], "hello"),
    "dive/test-docker-image.tar": (["/bin/busybox", "echo", "hello"], "hello"),
    "dive/test-kaniko-image.tar": (["/bin/busybox", "echo", "hello"], "hello"),
    "oras/hello-world.tar": (["/hello"], "Hello from Docker!"),
}


@requires("root", "arch:x86_64")
@pytest.mark.parametrize("name", PROGRAMS)
def test_the_programs_in_them_run(name):
    """Without a sandbox: what was unpacked is what runs."""
    image = Store(index=False).load(folder() / "images" / name)[0]
    image.check_runnable()
    command, expected = PROGRAMS[name]
    result = subprocess.run(
        ["chroot", image.layers[0].path, *command], capture_output=True, text=True, check=True, env={"PATH": os.environ["PATH"]}
    )
    assert expected in result.stdout


# -- tars ----------------------------------------------------------------------------------------------------------------------------


def tars() -> list[str]:
    found = shared()
    return sorted(str(path.relative_to(found)) for path in (found / "corpus").glob("*/*.tar*")) if found is not None else []


def content(name: str) -> bytes:
    raw = (folder() / name).read_bytes()
    if name.endswith(".base64"):
        return base64.b64decode(raw)
    stream = Decompressed(io.BytesIO(raw), name)
    return b"".join(iter(lambda: stream.read(1 << 18), b""))


@pytest.mark.skipif(shutil.which("tar") is None, reason="needs GNU tar to compare with")
@pytest.mark.parametrize("name", tars())
def test_a13_the_member_list_is_gnu_tars_or_refused(name):
    """A13: no two readers may see different members in one archive."""
    raw = content(name)
    gnu = subprocess.run(
        ["tar", "--quoting-style=literal", "-tf", "-"], input=raw, capture_output=True, env={"LC_ALL": "C", "PATH": os.environ["PATH"]}
    )
    try:
        found = [
            member.name + (b"/" if member.kind == "directory" and not member.name.endswith(b"/") else b"") for member, _ in members(raw)
        ]
    except DocklessError as error:
        assert "not a sound tar archive" in str(error)
        return
    assert gnu.returncode == 0
    assert found == [line for line in gnu.stdout.split(b"\n") if line]
