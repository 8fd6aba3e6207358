"""Mutations that know the format: what a blind one breaks (JSON's brackets, a tar header's checksum, a gzip member's) stays whole.

Each takes bytes, a source of randomness and ``blind`` (the fuzzer's own mutation of bytes), and returns new bytes.
"""

from __future__ import annotations

import bz2
import contextlib
import gzip
import json
import lzma
import random
import re
from collections.abc import Callable
from typing import Any

from fuzz.words import ANSWERS, LINES

Blind = Callable[[bytes], bytes]
Mutator = Callable[[bytes, random.Random, Blind], bytes]

WORDS: tuple[Any, ...] = (
    *(
        None,
        True,
        False,
        0,
        -1,
        1,
        2,
        1 << 31,
        1 << 63,
        1 << 64,
        10**40,
        0.5,
        1e308,
        "",
        [],
        {},
        [[]],
        [{}],
        "\0",
        "\ud800",
        "\udcff",
        "\x1b[2J",
    ),
    *(
        "sha256:" + "0" * 64,
        "sha512:" + "a" * 128,
        "SHA256:" + "0" * 64,
        "sha256:../../../../etc/passwd",
        "linux",
        "amd64",
        "arm",
        "v7",
        "unknown",
    ),
    *("application/vnd.oci.image.manifest.v1+json", "application/vnd.oci.image.index.v1+json", "application/vnd.oci.image.config.v1+json"),
    *("application/vnd.docker.distribution.manifest.v2+json", "application/vnd.docker.distribution.manifest.list.v2+json"),
    *("application/vnd.docker.container.image.v1+json", "application/vnd.docker.distribution.manifest.v1+prettyjws"),
    *(
        "application/vnd.oci.empty.v1+json",
        "application/vnd.oci.image.layer.v1.tar+gzip",
        "e30=",
        "A=b",
        "=",
        "PATH=/bin",
        "/..",
        "/a/./b//c",
        "/",
    ),
    *("SIGTERM", "SIGRTMIN+3", "SIGRTMAX-1", "9", "65", "²", "layers", "../x", "/etc/passwd", "a:b@c", "localhost:5000/a/b:c", "busybox"),
)
KEYS = """
    schemaVersion mediaType config layers manifests digest size data annotations platform os architecture variant
    artifactType subject fsLayers signatures history rootfs type diff_ids created Config Env Cmd Entrypoint WorkingDir
    User Volumes StopSignal Labels ExposedPorts RepoTags Layers Config imageLayoutVersion
    org.opencontainers.image.ref.name io.containerd.image.name vnd.docker.reference.type empty_layer urls os.version
    token access_token expires_in issued_at auths auth identitytoken credHelpers credsStore errors code message detail
    Username Secret ServerURL
""".split()


def json_mutator(data: bytes, rng: random.Random, blind: Blind) -> bytes:
    """One to three changes to the tree; blind bytes where it is no JSON, and now and then anyway."""
    try:
        tree = json.loads(data)
    except (ValueError, RecursionError):
        return blind(data)
    if rng.random() < 0.15:
        return blind(data)
    holder = [tree]
    for _ in range(rng.randint(1, 3)):
        _change(holder, rng, blind)
    with contextlib.suppress(ValueError, RecursionError):
        return json.dumps(holder[0], ensure_ascii=rng.random() < 0.5, separators=(",", ":")).encode("utf-8", "surrogatepass")
    return blind(data)


def _places(tree: Any, found: list[tuple[Any, Any]], depth: int = 0) -> list[tuple[Any, Any]]:
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in items:
        found.append((tree, key))
        if depth < 40 and len(found) < 5000:
            _places(value, found, depth + 1)
    return found


def _copy(value: Any) -> Any:
    """A tree of its own: one node in two places would double with every change, or hold itself. None where it is large."""
    words = json.dumps(value)
    return json.loads(words) if len(words) < 8192 else None


def _change(holder: list[Any], rng: random.Random, blind: Blind) -> None:
    places = _places(holder, [])
    parent, key = rng.choice(places)
    value = parent[key]
    how = rng.randrange(9)
    if how == 0:
        parent[key] = _copy(rng.choice(WORDS))
    elif how == 1 and parent is not holder:
        del parent[key]
    elif how == 2:
        other, at = rng.choice(places)
        parent[key] = _copy(other[at])
    elif how == 3 and isinstance(value, dict):
        value[rng.choice(KEYS)] = _copy(rng.choice(WORDS))
    elif how == 4 and isinstance(value, list):
        value.insert(rng.randint(0, len(value)), _copy(rng.choice([*value, rng.choice(WORDS)])))
    elif how == 5 and isinstance(parent, dict):
        parent[rng.choice([str(key).swapcase(), str(key) + "\u017f", rng.choice(KEYS)])] = parent.pop(key)
    elif how == 6 and isinstance(value, list) and value:
        parent[key] = _copy((value * rng.choice((2, 3, 50)))[:1100])
    elif isinstance(value, str):
        parent[key] = blind(value.encode("utf-8", "surrogatepass")).decode("utf-8", rng.choice(("surrogateescape", "replace")))
    elif isinstance(value, int) and not isinstance(value, bool):
        parent[key] = value + rng.choice((-1, 1, 1 << 16, -value))
    else:
        parent[key] = [value] if rng.random() < 0.5 else {rng.choice(KEYS): value}


def sections_mutator(data: bytes, rng: random.Random, blind: Blind) -> bytes:
    """For the text form of an image source: one section's JSON, its name, or the sections themselves."""
    parts = data.split(b"\n=== ")
    at = rng.randrange(len(parts))
    how = rng.random()
    if how < 0.1:
        return blind(data)
    if how < 0.2:
        parts.insert(rng.randint(0, len(parts)), parts[at])
    elif how < 0.25 and len(parts) > 1:
        del parts[at]
    else:
        name, newline, content = parts[at].partition(b"\n")
        if how < 0.3:
            name = blind(name)
        else:
            # A size stands there without quotes, so its placeholder gets some for as long as the tree is looked at.
            content = json_mutator(re.sub(rb"@S:(\w+)@", rb'"@S:\1@"', content), rng, blind)
            content = re.sub(rb'"@S:(\w+)@"', rb"@S:\1@", content)
        parts[at] = name + newline + content
    return b"\n=== ".join(parts)


def fix_checksum(block: bytes) -> bytes:
    """A tar header whose checksum is right."""
    total = sum(block[:148]) + 8 * 32 + sum(block[156:512])
    return block[:148] + b"%06o\0 " % total + block[156:512]


def tar_mutator(data: bytes, rng: random.Random, blind: Blind) -> bytes:
    """Whole blocks moved, doubled or dropped, fields of headers set to hard values, and the checksums right again, mostly."""
    blocks = [data[at : at + 512].ljust(512, b"\0") for at in range(0, len(data), 512)] or [bytes(512)]
    headers = [at for at, block in enumerate(blocks) if block[257:262] == b"ustar"] or [0]
    at = rng.choice(headers)
    how = rng.randrange(10)
    if how == 0:
        return blind(data)
    if how == 1:
        blocks.insert(rng.randint(0, len(blocks)), blocks[at])
    elif how == 2 and len(blocks) > 1:
        del blocks[rng.randrange(len(blocks))]
    elif how == 3:
        other = rng.randrange(len(blocks))
        blocks[at], blocks[other] = blocks[other], blocks[at]
    elif how == 4:
        body = min(len(blocks) - 1, at + 1)
        blocks[body] = blind(blocks[body])[:512].ljust(512, b"\0")
    else:
        blocks[at] = _field(blocks[at], rng, blind)
    if rng.random() < 0.95:
        blocks = [fix_checksum(block) if block[257:262] == b"ustar" or index == at else block for index, block in enumerate(blocks)]
    result = b"".join(blocks)
    return result[: rng.randrange(len(result) + 1)] if rng.random() < 0.03 else result


_FIELDS = (
    (0, 100),
    (100, 8),
    (108, 8),
    (116, 8),
    (124, 12),
    (136, 12),
    (156, 1),
    (157, 100),
    (257, 8),
    (265, 32),
    (329, 8),
    (337, 8),
    (345, 155),
)
_NUMBERS = (
    b"",
    b"0",
    b"7777777",
    b"77777777777",
    b"-1",
    b" 12 ",
    b"9",
    b"\x80" + b"\xff" * 7,
    b"\xff" * 12,
    b"\x80\0\0\0\0\0\0\0\0\0\2\0",
    b"1000",
)
_NAMES = (
    b"",
    b".",
    b"..",
    b"/",
    b"../x",
    b"a/../b",
    b"/etc/passwd",
    b"index.json",
    b"manifest.json",
    b".wh.a",
    b".wh..wh..opq",
    b"a/",
    b"././@LongLink",
)


def _field(block: bytes, rng: random.Random, blind: Blind) -> bytes:
    start, size = rng.choice(_FIELDS)
    if start == 156:
        value = bytes([rng.choice(b"01234567xgLKSVADMN\0Z")])
    elif rng.random() < 0.3:
        value = blind(block[start : start + size])
    else:
        value = rng.choice(_NAMES if size >= 100 else _NUMBERS)
    return block[:start] + value[:size].ljust(size, b"\0") + block[start + size :]


def compression_mutator(data: bytes, rng: random.Random, blind: Blind) -> bytes:
    """The first byte stays; then members appended, padded, cut, or the content changed and compressed again."""
    head, body = data[:1] or b"\0", data[1:]
    how = rng.randrange(8)
    if how == 0:
        body += compressed(body[:300], rng)
    elif how == 1:
        body += bytes(rng.choice((1, 3, 4, 5, 511, 70_000)))
    elif how == 2:
        body = body[: rng.randrange(len(body) + 1)]
    elif how == 3:
        body = compressed(blind(body), rng)
    elif how == 4:
        body = compressed(body[:40] * rng.choice((1, 100, 3000)), rng)
    elif how == 5:
        body = (0x184D2A50 + rng.randrange(16)).to_bytes(4, "little") + rng.choice((0, 1, 5, 1 << 31)).to_bytes(4, "little") + body
    elif how == 6:
        body += body
    else:
        return blind(data)
    return head + body


def compressed(data: bytes, rng: random.Random) -> bytes:
    how = rng.randrange(4)
    if how == 0:
        return gzip.compress(data, rng.randint(0, 9), mtime=0)
    if how == 1:
        return bz2.compress(data, 1)
    if how == 2:
        return lzma.compress(data, check=rng.choice((lzma.CHECK_NONE, lzma.CHECK_CRC32, lzma.CHECK_SHA256)), preset=0)
    try:
        from compression import zstd
    except ImportError:
        from backports import zstd
    return zstd.compress(data, rng.choice((1, 19)))


def line_mutator(words: tuple[bytes, ...]) -> Mutator:
    """Whole lines put in, taken out, moved and exchanged for known ones."""

    def mutate(data: bytes, rng: random.Random, blind: Blind) -> bytes:
        if rng.random() < 0.25:
            return blind(data)
        lines = data.split(b"\n")
        for _ in range(rng.randint(1, 4)):
            at, how = rng.randrange(len(lines)), rng.randrange(6)
            if how < 2:
                lines.insert(at, rng.choice(words))
            elif how == 2:
                lines[at] = rng.choice(words)
            elif how == 3 and len(lines) > 1:
                del lines[at]
            elif how == 4:
                lines.insert(rng.randint(0, len(lines)), lines[at])
            else:
                lines[at] = blind(lines[at])
        return b"\n".join(lines)

    return mutate


MUTATORS: dict[str, Mutator] = {
    "manifest": json_mutator,
    "config": json_mutator,
    "discover": sections_mutator,
    "compression": compression_mutator,
    "archive": tar_mutator,
    "rewrite": tar_mutator,
    "token": json_mutator,
    "credentials": json_mutator,
    "configuration": line_mutator(LINES),
    "conversation": line_mutator(ANSWERS),
    "transfer": line_mutator(ANSWERS),
    "upload": line_mutator(ANSWERS),
}
