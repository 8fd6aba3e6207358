"""The first inputs of every target, made here: ``python tests/fuzz/seeds.py <directory>`` writes <directory>/<target>/….

They come from what the tests know to be sound or hostile.
"""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import struct
import sys
import tarfile
import zlib
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent)] * (str(HERE.parent) not in sys.path)

from fuzz import kept  # noqa: E402
from fuzz.mutators import fix_checksum  # noqa: E402
from support import make_image as make  # noqa: E402
from support.requires import shared  # noqa: E402

D = "sha256:" + "1" * 64
CONFIG = {"mediaType": make.OCI_CONFIG, "digest": D, "size": 2}
LAYER = {"mediaType": make.OCI_LAYER + "+gzip", "digest": D, "size": 3, "annotations": {"a": "b"}}
PLATFORM = {"os": "linux", "architecture": "arm", "variant": "v7"}
IMAGE = {"schemaVersion": 2, "mediaType": make.OCI_MANIFEST, "config": CONFIG, "layers": [LAYER, LAYER]}
INDEX = {
    "schemaVersion": 2,
    "manifests": [
        {"mediaType": make.OCI_MANIFEST, "digest": D, "size": 1, "platform": PLATFORM, "data": "e30="},
        {"mediaType": make.OCI_INDEX, "digest": D, "size": 1, "annotations": {"vnd.docker.reference.type": "attestation-manifest"}},
    ],
}
RUN = {
    "os": "linux",
    "architecture": "amd64",
    "created": "2024-01-01T00:00:00Z",
    "rootfs": {"type": "layers", "diff_ids": [D, D]},
    "config": {
        "Env": ["PATH=/bin", "A=b=c", "X="],
        "Entrypoint": ["/bin/sh", "-c"],
        "Cmd": "true",
        "WorkingDir": "/w",
        "User": "1000:staff",
        "Volumes": {"/data": {}, "/a/./b": {}},
        "StopSignal": "SIGRTMIN+3",
        "Labels": {"k": "v"},
    },
    "history": [{"created_by": "RUN x", "empty_layer": True}],
}

SECTIONS = {
    "oci": b"""=== oci-layout
{"imageLayoutVersion":"1.0.0"}
=== index.json
{"schemaVersion":2,"manifests":[{"mediaType":"application/vnd.oci.image.index.v1+json","digest":"@D:i@","size":@S:i@,"annotations":{"org.opencontainers.image.ref.name":"1.37"}}]}
=== #i
{"schemaVersion":2,"manifests":[{"mediaType":"application/vnd.oci.image.manifest.v1+json","digest":"@D:m@","size":@S:m@,"platform":{"os":"linux","architecture":"amd64"}},{"mediaType":"application/vnd.oci.image.manifest.v1+json","digest":"@D:m@","size":@S:m@,"platform":{"os":"unknown","architecture":"unknown"}}]}
=== #m
{"schemaVersion":2,"config":{"mediaType":"application/vnd.oci.image.config.v1+json","digest":"@D:c@","size":@S:c@},"layers":[{"mediaType":"application/vnd.oci.image.layer.v1.tar","digest":"@D:l@","size":@S:l@}]}
=== #c
{"os":"linux","architecture":"amd64","rootfs":{"type":"layers","diff_ids":["@D:l@"]},"config":{"Env":["A=b"]}}
=== #l
layer""",
    "docker": b"""=== manifest.json
[{"Config":"@H:c@.json","RepoTags":["busybox:1","bad tag"],"Layers":["x/layer.tar"]}]
=== @H:c@.json
{"os":"linux","architecture":"amd64","rootfs":{"type":"layers","diff_ids":["@D:l@"]}}
=== x/layer.tar
layer
=== #c
{"os":"linux","architecture":"amd64","rootfs":{"type":"layers","diff_ids":["@D:l@"]}}
=== #l
layer""",
    "linked": b"""=== index.json
{"schemaVersion":2,"manifests":[{"mediaType":"application/vnd.oci.image.manifest.v1+json","digest":"@D:m@","size":@S:m@}]}
=== blobs/sha256/@H:m@
../../image-manifest.json
=== #m
{"schemaVersion":2,"config":{"mediaType":"application/vnd.oci.image.config.v1+json","digest":"@D:c@","size":@S:c@,"data":"e30="},"layers":[]}
=== #c
{}""",
    "rootfs": b"=== bin/sh\nx\n=== etc/passwd\nroot\n",
    "old": b"=== repositories\n{}\n",
}
REFERENCES = """
    busybox busybox:1 docker.io/library/busybox:latest localhost/a localhost:5000/a/b:c [::1]:5000/a quay.io/a/b@sha256:%s a/b:c@sha256:%s
    docker.io/library/a/b index.docker.io/a UPPER/a a__b/c--d.e registry.example.com/x_y:z library/localhost/x docker.io/localhost/x
""".replace("%s", "2" * 64).split()


def archives() -> dict[str, bytes]:
    """Small tars of every kind that layers and images come in."""
    entries = [
        make.directory("d/", 0o1777, uid=7),
        make.file("d/f", b"x" * 700, 0o4755),
        make.symlink("d/s", "../t"),
        make.hardlink("h", "d/f"),
        make.device("c", 1, 3),
        make.device("b", 8, 0, block=True),
        make.fifo("p"),
        make.whiteout("d/gone"),
        make.opaque("d"),
        make.file("n/o/p", b"q", pax={"mtime": "12.5", "SCHILY.xattr.user.a": "v", "LIBARCHIVE.xattr.user.b": "aGk"}),
    ]
    found = {}
    for number, how in enumerate(("ustar", "gnu", "pax")):
        found[how] = make.layer_tar(entries, number)
    long = [make.file("a/" * 70 + "b"), make.symlink("l", "t/" * 60), make.file("x", uid=2**31, gid=2**32 - 2, mtime=-5), make.file("ä\n")]
    found["gnu-long"], found["pax-long"] = make.layer_tar(long, tarfile.GNU_FORMAT), make.layer_tar(long, tarfile.PAX_FORMAT)
    sparse = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.name": "s", "GNU.sparse.realsize": "9000"}
    data = b"2\n0\n3\n8000\n4\n".ljust(512, b"\0") + b"abcdefg"
    found["sparse-1.0"] = make.layer_tar([make.file("GNUSparseFile/s", data, pax=sparse)])
    sparse = {"GNU.sparse.size": "9000", "GNU.sparse.numblocks": "2", "GNU.sparse.name": "s", "GNU.sparse.map": "0,3,8000,4"}
    found["sparse-0.1"] = make.layer_tar([make.file("s", b"abcdefg", pax=sparse)])
    found["links"] = make.layer_tar(
        [make.symlink("index.json", "x"), make.symlink("x", "y/../z"), make.hardlink("z", "w"), make.file("w", b"{}")]
    )
    found["escape"] = make.layer_tar([make.symlink("a", "/"), make.file("a/etc/x"), make.file("../y"), make.hardlink("q", "/etc/passwd")])
    image = [make.file("index.json", json.dumps(INDEX)), make.file("oci-layout", '{"imageLayoutVersion":"1.0.0"}')]
    found["layout"] = make.layer_tar(image, tarfile.USTAR_FORMAT)
    found["link-removes-its-target"] = make.layer_tar([make.file("low/f"), make.hardlink("low", "low/f")])
    found["link-to-a-whiteout"] = make.layer_tar([make.symlink("a", ".wh.a"), make.file("a/f")])
    found["docker"] = make.layer_tar([make.file("manifest.json", '[{"Config":"c","Layers":["l"]}]'), make.file("c", json.dumps(RUN))])
    return {name: strip(raw) for name, raw in found.items()}


def strip(raw: bytes) -> bytes:
    """Without tarfile's padding to 10 KiB: small inputs are quick ones."""
    return raw.rstrip(b"\0") + bytes(-len(raw.rstrip(b"\0")) % 512) + bytes(1024)


def changed(raw: bytes, at: int, value: bytes) -> bytes:
    """The first header with other bytes at ``at`` and a checksum that fits."""
    return fix_checksum(raw[:at] + value + raw[at + len(value) :])[:512] + raw[512:]


def v7_sparse() -> bytes:
    """A PAX header with a sparse map in front of a member in the oldest format."""
    sparse = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.name": "s", "GNU.sparse.realsize": "9"}
    raw = make.layer_tar([make.file("x", b"1\n9\n0\n".ljust(512, b"\0"), pax=sparse), make.file("next")])
    at = 1024  # behind the PAX header and its records
    assert raw[at : at + 2] == b"x\0"
    return raw[:at] + fix_checksum(raw[at : at + 257] + bytes(8) + raw[at + 265 : at + 512]) + raw[at + 512 :]


def two_minded() -> dict[str, bytes]:
    """What GNU tar and Go's archive/tar read differently, each once found by differential.py in what we accepted."""
    entry = make.layer_tar([make.file("name", b"data")], tarfile.USTAR_FORMAT)
    long = make.layer_tar([make.file("x" * 110)], tarfile.GNU_FORMAT)
    sparse = sparse_header()
    described = make.layer_tar([make.file("p", pax={"GNU.sparse.name": "q"})])
    label = make.layer_tar([make.file("label", pax={"path": "p"}), make.file("f")])
    at = label.index(b"label")
    return {
        "long-name-without-end": changed(long, 124, b"00000000005\0"),
        "long-name-empty": long[:512] + bytes(512) + long[1024:],
        "number-behind-nuls": changed(entry, 124, b"\0\0\0" + b"00000004\0"),
        "sparse-map-with-a-hole": changed(sparse, 410, bytes(24)),
        "sparse-described-twice": described[:1024] + sparse[:1024] + sparse[1024:],
        "link-with-data": make.layer_tar([make.hardlink("h", "f", pax={"size": "512"}), make.file("hidden")]),
        "sparse-in-an-old-header": v7_sparse(),
        "label-described": label[:at] + fix_checksum(label[at : at + 156] + b"V" + label[at + 157 : at + 512]) + label[at + 512 :],
    }


PARTIAL = b"\xdb\x05" + bytes(1504) + struct.pack("<8sQIIII", b"dl-part1", 1500, 1000, 0, 700, 100)
"""1,500 bytes in chunks of 1,000; the first 700 of the one and 100 of the other are there."""


def sparse_header() -> bytes:
    """An old GNU sparse member: four segments in the header, one in a block behind it."""
    info = tarfile.TarInfo("sparse")
    info.size, info.type = 12, b"S"
    block = bytearray(info.tobuf(tarfile.GNU_FORMAT))
    block[386:482] = b"".join(b"%011o\0" % number for number in (0, 3, 10, 1, 20, 2, 0o1000, 3))
    block[482:495] = b"\1" + b"%011o\0" % 0o10000
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    more = b"".join(b"%011o\0" % number for number in (0o4000, 3)).ljust(512, b"\0")
    return bytes(block) + more + b"abcdefghijkl".ljust(512, b"\0") + bytes(1024)


def streams() -> dict[str, bytes]:
    text = b"some text " * 40
    found = {
        "none": text,
        "gzip": gzip.compress(text, mtime=0),
        "xz": lzma.compress(text),
        "bzip2": bz2.compress(text),
        "zstd": make.compress(text, "zstd"),
    }
    found["two"] = found["gzip"] * 2 + bytes(5)
    found["skippable"] = b"\x52\x2a\x4d\x18\x03\0\0\0abc" + found["zstd"]
    found["named"] = _named()
    found["bomb"] = gzip.compress(bytes(1 << 20), mtime=0)
    return {name: b"\7" + data for name, data in found.items()}


def _named() -> bytes:
    buffer = io.BytesIO()
    with gzip.GzipFile("a name", "wb", fileobj=buffer, mtime=0) as stream:
        stream.write(b"x")
    return buffer.getvalue()


TALKS = {
    "pull": b"""=== 401
WWW-Authenticate: Bearer realm="https://auth.example/token",service="s",scope="repository:a/b:pull"
=== 200

{"token":"t","expires_in":300}
=== 200
Content-Type: application/json
Link: </v2/a/b/tags/list?last=x>; rel="next"

{"tags":["a","b"]}
=== 200

{"tags":["c"]}""",
    "basic": b"=== 401\nWWW-Authenticate: Basic realm=x\n=== 200\nContent-Type: application/vnd.oci.image.index.v1+json\n\n{}",
    "redirect": b"=== 307\nLocation: https://cdn.example/x?sig=1\n=== 200\n\n{}",
    "limited": b'=== 429\nRetry-After: 1\n\n{"errors":[{"code":"TOOMANYREQUESTS","message":"slow"}]}\n=== 200\nContent-Encoding: gzip\n\n',
}
TRANSFERS = {
    "whole": b"\1=== 200\nContent-Length: 150\nETag: e\n\n" + b"x" * 150,
    "cut": b"\1=== 200\n\n" + b"x" * 50 + b"\n=== 206\nContent-Range: bytes 51-149/150\n\n" + b"x" * 99,
    "refused": b"\1=== 416\nContent-Range: bytes */150\n=== 200\n\n" + b"x" * 150,
}
UPLOADS = {
    "sent": b"\x20=== 404\n=== 202\nLocation: /v2/u?_state=x\n=== 202\nLocation: /v2/u\nRange: 0-999\n=== 201\n",
    "mounted": b"\1=== 404\n=== 201\n",
    "lost": b"\x20=== 404\n=== 202\nLocation: /v2/u\n=== 416\n=== 204\nLocation: /v2/u\nRange: 0-499\n=== 404\n",
}
CONFIGURATION = b"""unqualified-search-registries = ["docker.io", "quay.io"]
short-name-mode = "permissive"
[aliases]
"busybox" = "docker.io/library/busybox"
[[registry]]
prefix = "docker.io"
location = "mirror.example.com/hub"
[[registry.mirror]]
location = "localhost:5000"
insecure = true
pull-from-mirror = "digest-only"
[[registry]]
prefix = "*.example.com"
blocked = true
"""
AUTH = {
    "auths": {"docker.io": {"auth": "dXNlcjpwYXNz"}, "https://index.docker.io/v1/": {"identitytoken": "x"}, "quay.io/a": {"username": "u"}},
    "credHelpers": {"a.example:5000": "none"},
    "credsStore": "none",
}


def seeds() -> dict[str, dict[str, bytes]]:
    encoded = lambda *documents: {str(n): json.dumps(d, separators=(",", ":")).encode() for n, d in enumerate(documents)}  # noqa: E731
    tars = archives() | {"sparse-gnu": sparse_header()} | {name: strip(raw) for name, raw in two_minded().items()}
    return {
        "reference": {str(number): text.encode() for number, text in enumerate(REFERENCES)},
        "digest": {"256": D.encode(), "512": b"sha512:" + b"a" * 128},
        "platform": {"arm": b"linux/arm/7", "amd": b"linux/x86_64/v1", "armhf": b"linux/armhf"},
        "manifest": encoded(IMAGE, INDEX, IMAGE | {"artifactType": "a/b"}, {"schemaVersion": 1, "fsLayers": []}),
        "config": encoded(RUN, {}, {"config": None}),
        "compression": streams(),
        "discover": SECTIONS,
        "challenge": {"bearer": b'Bearer realm="https://a/t",service="s"\nBasic realm="a, \\"b"', "other": b"Negotiate YII=, NTLM, Basic"},
        "header": {
            "date": b"Wed, 21 Oct 2015 07:28:00 GMT",
            "v6": b"[::ffff:127.0.0.1]",
            "json": b'{"errors":[{"code":"A","message":"b"}]}',
        },
        "token": encoded({"token": "t", "expires_in": 60, "issued_at": "x"}, {"access_token": "t"}),
        "encoding": {"gzip": b"\3" + gzip.compress(b"text" * 90, mtime=0), "deflate": b"\2" + zlib.compress(b"text" * 90)},
        "configuration": {"all": CONFIGURATION},
        "credentials": encoded(AUTH, {"auths": {}}),
        "partial": {"cut": PARTIAL},
        "conversation": TALKS,
        "transfer": TRANSFERS,
        "upload": UPLOADS,
        "archive": tars,
        "rewrite": tars,
        "tar": tars,
        "writer": tars,
        "index": tars,
    }


def from_shared(found: dict[str, dict[str, bytes]], limit: int = 24 << 10) -> None:
    place = shared()
    if place is None:
        return
    for path in sorted(place.glob("corpus/**/*.tar")):
        if path.stat().st_size <= limit:
            for target in ("archive", "rewrite", "tar", "writer", "index"):
                found[target][f"corpus-{path.stem}"] = path.read_bytes()
    for path in sorted(place.glob("images/**/*")):
        if path.is_file() and path.stat().st_size <= limit:
            raw = path.read_bytes()
            if raw[:1] == b"{":
                for target in ("manifest", "config"):
                    found[target][f"shared-{path.name[:20]}"] = raw
            elif path.suffix == ".tar":
                found["archive"][f"shared-{path.stem}"] = raw


def write(top: Path, *, with_shared: bool = False) -> None:
    """The seeds and the kept corpus, one directory for each target below ``top``; on request with what lies in the folder of real images,
    from which nothing may get into the kept corpus."""
    found = seeds()
    if with_shared:
        from_shared(found)
    for target, ones in kept.inputs().items():
        for name, data in ones.items():
            found.setdefault(target, {})[f"kept-{name}"] = data
    for target, inputs in found.items():
        place = top / target
        place.mkdir(parents=True, exist_ok=True)
        for name, data in inputs.items():
            (place / f"seed-{name}").write_bytes(data)


if __name__ == "__main__":
    write(Path(sys.argv[1]))
