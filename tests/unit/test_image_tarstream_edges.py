"""The tar reader at each of its limits: the last value that is taken and the first that is not."""

import tarfile

import pytest
from support.layers import members

from dockless.errors import BadImage
from dockless.native.layers import Fault, TarLister

BLOCK = 512
UID, GID, SIZE, MTIME, KIND, LINK, MAGIC, MAJOR, MINOR, PREFIX = 108, 116, 124, 136, 156, 157, 257, 329, 337, 345
GNU_MAP, GNU_MORE, GNU_SIZE = 386, 482, 483
HUGE = 1 << 44  # bytes that a member may have


def header(*changes: tuple[int, bytes], name: bytes = b"f", kind: bytes = b"0", size: int = 0, form: int = tarfile.USTAR_FORMAT) -> bytes:
    """A header with these bytes at these places, and the checksum that fits."""
    info = tarfile.TarInfo(name.decode("latin-1"))
    info.type, info.size = kind, size
    raw = bytearray(info.tobuf(form, "latin-1"))
    for at, new in changes:
        raw[at : at + len(new)] = new
    return checked(raw)


def checked(raw: bytearray, high: int = 0) -> bytes:
    raw[148:156] = b" " * 8
    raw[148:156] = b"%06o\0 " % (sum(raw) - high)
    return bytes(raw)


def padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % BLOCK)


def record(key: bytes, value: bytes) -> bytes:
    rest = b" " + key + b"=" + value + b"\n"
    length = len(rest)
    while len(b"%d" % length) + len(rest) != length:
        length = len(b"%d" % length) + len(rest)
    return b"%d" % length + rest


def extended(body: bytes, kind: bytes = b"x") -> bytes:
    return header(name=b"extended", kind=kind, size=len(body)) + padded(body)


def pax(*records: tuple[bytes, bytes], kind: bytes = b"x") -> bytes:
    return extended(b"".join(record(key, value) for key, value in records), kind)


def member(raw: bytes):
    ((found, _),) = members(raw)
    return found


def refused(raw: bytes) -> str:
    with pytest.raises(BadImage) as caught:
        members(raw)
    assert isinstance(caught.value.__cause__, Fault)
    assert caught.value.__cause__.errno == 0, "the archive's fault, and no call's"
    return str(caught.value)


def base256(value: int, size: int) -> bytes:
    raw = bytearray(value.to_bytes(size, "big", signed=True))
    raw[0] |= 0x80
    return bytes(raw)


# -- numbers -------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("raw", "number"),
    [
        (b"0000017\0", 0o17),
        (b"00000017", 0o17),
        (b"17\0\0\0\0\0\0", 0o17),
        (b"17 \0\0\0\0\0", 0o17),
        (b"     17 ", 0o17),
        (b"\0000017\0\0", 0o17),
        (b"\0   17\0\0", 0o17),
        (b"17\0junk!", 0o17),
        (b"17 junk!", 0o17),
        (b"77777777", 0o77777777),
        (b"        ", 0),
        (b"\0\0\0\0\0\0\0\0", 0),
        (b"  \0\0 \0 \0", 0),
        (base256(0, 8), 0),
        (base256(0xFFFFFFFE, 8), 0xFFFFFFFE),
    ],
)
def test_numbers_in_headers(raw, number):
    assert member(header((UID, raw))).uid == member(header((GID, raw))).gid == number


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (b"\0\00017\0\0\0\0", "a header's owner is not a number"),
        (b" \0    17", "a header's owner is not a number"),
        (b"1817\0\0\0\0", "a header's owner is not a number"),
        (b"/17\0\0\0\0\0", "a header's owner is not a number"),
        (b"-1\0\0\0\0\0\0", "a header's owner is not a number"),
        (b"0000001x", "a header's owner is not a number"),
        (base256(0xFFFFFFFF, 8), "a member's owner is not a user or group id"),
        (base256(-1, 8), "a member's owner is not a user or group id"),
    ],
)
def test_what_is_no_number_in_a_header(raw, why):
    assert why in refused(header((UID, raw)))
    assert why in refused(header((GID, raw)))


def test_a_member_is_as_large_as_16_tib_at_most():
    lister = TarLister(9)
    lister.feed(header((SIZE, base256(HUGE, 12))))
    assert (lister.left, lister.members[0].size) == (HUGE, HUGE)
    too_large = "a member's size is not between 0 and 17592186044416"
    for size in (HUGE + 1, (1 << 63) - 1, -1, -(1 << 63)):
        assert too_large in refused(header((SIZE, base256(size, 12))))
        assert too_large in refused(header((SIZE, base256(size, 12)), kind=b"x"))
        assert too_large in refused(header((SIZE, base256(size, 12)), kind=b"V"))
    for size in (1 << 63, -(1 << 63) - 1, 1 << 90):
        assert "a header's size is out of range" in refused(header((SIZE, base256(size, 12))))
    lister = TarLister(9)
    lister.feed(pax((b"size", b"%d" % HUGE)) + header())
    assert lister.left == HUGE
    assert too_large in refused(pax((b"size", b"%d" % (HUGE + 1))) + header())


FURTHEST = 9223372035  # seconds: as many nanoseconds as fit 64 bits, short of the last second


@pytest.mark.parametrize("time", [FURTHEST, -FURTHEST])
def test_the_furthest_times(time):
    assert member(header((MTIME, base256(time, 12)))).mtime == time * 10**9
    assert member(pax((b"mtime", b"%d" % time)) + header()).mtime == time * 10**9
    beyond = time + (1 if time > 0 else -1)
    assert "the time of 'f' is out of range" in refused(header((MTIME, base256(beyond, 12))))
    assert "the time of 'f' is out of range" in refused(pax((b"mtime", b"%d" % beyond)) + header())


@pytest.mark.parametrize(
    ("text", "nanoseconds"),
    [
        (b"1", 1_000_000_000),
        (b"-1", -1_000_000_000),
        (b"0", 0),
        (b"1.", 1_000_000_000),
        (b"1.5", 1_500_000_000),
        (b"1.05", 1_050_000_000),
        (b"1.123456789", 1_123_456_789),
        (b"1.1234567899", 1_123_456_789),
        (b"1.9999999999999999999999", 1_999_999_999),
        (b"-1.5", -1_500_000_000),
        (b"-0.000000001", -1),
        (b"-1.0", -1_000_000_000),
        (b"000000000000000012", 12_000_000_000),
        (b"9.876543210", 9_876_543_210),
    ],
)
def test_times_in_pax_headers(text, nanoseconds):
    assert member(pax((b"mtime", text)) + header()).mtime == nanoseconds


@pytest.mark.parametrize("text", [b"-", b".5", b"-.5", b"1.5x", b"1x", b"+1", b"1,5", b"1.5.5", b"1:", b"/1", b"1" * 19, b"1" * 30, b"1 "])
def test_what_is_no_time(text):
    assert f"the time '{text.decode()}' is malformed" in refused(pax((b"mtime", text)) + header())
    assert "out of range" in refused(pax((b"mtime", b"1" * 18)) + header())


def test_numbers_in_pax_headers():
    assert member(pax((b"uid", b"4294967294"), (b"gid", b"007")) + header()).uid == 4294967294
    assert member(pax((b"uid", b"4294967294"), (b"gid", b"007")) + header()).gid == 7
    assert member(pax((b"uid", b"0" * 19 + b"9")) + header()).uid == 9
    for text in (b"0" * 20 + b"9", b"1/", b"1:", b"-1", b"+1", b" 1", b"0x1"):
        assert f"'{text.decode()}' is not a number" in refused(pax((b"uid", text)) + header())
    for text in (b"4294967295", b"18446744073709551615", b"18446744073709551617", b"99999999999999999999"):
        assert "owner is not a user or group id" in refused(pax((b"gid", text)) + header())


def test_modes_have_twelve_bits():
    assert member(header((100, b"7777777\0"))).mode == 0o7777
    assert member(header((100, b"0100644\0"))).mode == 0o644


# -- headers -------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flag", "kind"),
    [
        *[(b"\0", "file"), (b"0", "file"), (b"7", "file"), (b"1", "hardlink"), (b"2", "symlink")],
        *[(b"3", "char"), (b"4", "block"), (b"5", "directory"), (b"6", "fifo")],
    ],
)
def test_kinds(flag, kind):
    found = member(header((LINK, b"target"), (MAJOR, b"0000012\0"), (MINOR, b"0000034\0"), kind=flag))
    assert found.kind == kind
    assert found.link == (b"target" if kind in ("hardlink", "symlink") else b"")
    assert (found.major, found.minor) == ((0o12, 0o34) if kind in ("char", "block") else (0, 0))


@pytest.mark.parametrize("flag", [b"8", b"9", b"/", b"A", b"D", b"N", b"\xff", b"\x01"])
def test_other_kinds(flag):
    assert "a member has the type" in refused(header(kind=flag))


def test_a_name_that_ends_in_a_slash_is_a_directorys():
    assert member(header(name=b"d/")).kind == "directory"
    assert member(header(name=b"d/", kind=b"6")).kind == "fifo"
    assert member(header((LINK, b"f"), name=b"d/", kind=b"1")).kind == "hardlink"
    assert "the directory 'd/' claims to have 3 bytes of data" in refused(header(name=b"d/", size=3))


@pytest.mark.parametrize(("at", "kind"), [(MAJOR, b"3"), (MINOR, b"4")])
def test_device_numbers(at, kind):
    for value in (0, 1, 0xFFFFFFFF):
        found = member(header((at, base256(value, 8)), kind=kind))
        assert (found.major if at == MAJOR else found.minor) == value
    for value in (-1, 1 << 32):
        assert "device is out of range" in refused(header((at, base256(value, 8)), kind=kind))
    assert member(header((at, b"junk"))).kind == "file"
    assert "device is not a number" in refused(header((at, b"junk"), kind=kind))


def test_a_device_of_the_old_format_has_no_numbers():
    found = member(header((MAGIC, bytes(8)), (MAJOR, b"0000012\0"), (MINOR, b"junk"), kind=b"3"))
    assert (found.kind, found.major, found.minor) == ("char", 0, 0)


def test_names_that_fill_their_fields():
    name, prefix = b"n" * 100, b"p" * 155
    assert member(header((0, name))).name == name
    assert member(header((0, name), (PREFIX, prefix + b"behind"))).name == prefix + b"/" + name
    assert member(header((0, name), (PREFIX, prefix[:5]))).name == b"ppppp/" + name
    assert member(header((LINK, name), kind=b"2")).link == name
    star = header((0, name), (PREFIX, b"p" * 131), (PREFIX + 131, b"0" * 24), (508, b"tar\0"))
    assert member(star).name == b"p" * 131 + b"/" + name
    assert member(header((0, name), (PREFIX, prefix), (MAGIC, b"ustar  \0"))).name == name, "GNU's format has no prefix"
    assert member(header((0, name), (PREFIX, prefix), (MAGIC, bytes(8)))).name == name, "nor has the old one"


def test_checksums_of_signed_bytes():
    """Some old writers added them: each byte from 0x80 counts 256 less."""
    raw = bytearray(header(name=b"\xe4\xf6\xfc"))
    assert member(checked(raw, 3 * 256)).name == b"\xe4\xf6\xfc"
    for high in (1, 256, 2 * 256, 4 * 256):
        assert "checksum is wrong" in refused(checked(raw, high))
    for high in (0, 3 * 256):
        raw[148:156] = b" " * 8
        raw[148:156] = base256(sum(raw) - high, 8)
        assert member(bytes(raw)).name == b"\xe4\xf6\xfc"
    raw[148:156] = b"\xff" * 8  # what stands in the sum's own place is not added
    assert "checksum" in refused(bytes(raw))


def test_the_size_of_a_hard_links_file_is_passed_over():
    found = members(header((LINK, b"a"), kind=b"1", size=700) + header(name=b"next"))
    assert [(one.name, one.size, one.stored) for one, _ in found] == [(b"f", 0, 0), (b"next", 0, 0)]
    assert "a hard link is given data by a PAX header" in refused(pax((b"size", b"700")) + header((LINK, b"a"), kind=b"1"))
    assert member(pax((b"size", b"0")) + header((LINK, b"a"), kind=b"1")).kind == "hardlink"


@pytest.mark.parametrize(("flag", "word"), [(b"2", "symlink"), (b"3", "char"), (b"4", "block"), (b"5", "directory"), (b"6", "fifo")])
def test_only_files_have_data(flag, word):
    assert f"the {word} 'f' claims to have 1 bytes of data" in refused(header((KIND, flag), size=1))


def test_a_volumes_label_is_no_member():
    for size in (0, 512, 700):
        found = members(header(name=b"label", kind=b"V", size=size) + padded(b"x" * size) + header())
        assert [one.name for one, _ in found] == [b"f"]
    for before in (pax((b"path", b"a")), extended(b"a\0", b"L"), extended(b"a\0", b"K")):
        assert "in front of a volume's label" in refused(before + header(kind=b"V") + header())
    lister = TarLister(9)
    lister.feed(header(kind=b"V", size=700))
    assert lister.left == 700
    lister.skip(700)
    lister.feed(bytes(2 * BLOCK - 700) + header())
    lister.finish()
    assert [(one.name, one.offset) for one in lister.members] == [(b"f", 4 * BLOCK)]


# -- from one member to the next -----------------------------------------------------------------------------------------------------


def test_extended_headers_describe_one_member():
    """Nothing of a member's is left for the next one."""
    described = pax((b"path", b"a"), (b"uid", b"7"), (b"mtime", b"8.5"), (b"SCHILY.xattr.user.x", b"v"), (b"size", b"3"))
    sparse = pax((b"GNU.sparse.map", b"0,3"), (b"GNU.sparse.size", b"9"), (b"GNU.sparse.name", b"s"))
    old = extended(b"long\0", b"L") + extended(b"to\0", b"K") + header(kind=b"2")
    plain = header()
    found = members(described + header(size=9) + padded(b"abc") + plain + sparse + header(size=3) + padded(b"abc") + plain + old + plain)
    assert [one.name for one, _ in found] == [b"a", b"f", b"s", b"f", b"long", b"f"]
    first, second = found[0][0], found[1][0]
    assert (first.uid, first.mtime, first.xattrs, first.size, found[0][1]) == (7, 8_500_000_000, {b"user.x": b"v"}, 3, b"abc")
    assert found[2][0].sparse == ((0, 3),) and found[4][0].link == b"to"
    for other in (found[3][0], found[5][0]):
        assert (other.uid, other.mtime, other.xattrs, other.size, other.sparse, other.link) == (0, 0, {}, 0, None, b"")
    assert (second.uid, second.xattrs, second.size) == (0, {}, 0)


@pytest.mark.parametrize("size", [1, 511, 512, 513, 1024])
def test_padding(size):
    data = b"d" * size
    raw = header(size=size) + padded(data) + header(name=b"next")
    assert [(one.name, content) for one, content in members(raw)] == [(b"f", data), (b"next", b"")]
    assert [one.offset for one, _ in members(raw)] == [BLOCK, len(raw)]
    assert members(raw, 7) == members(raw)
    name = b"n" * (size - 1)
    found = members(extended(name + b"\0", b"L") + header() + header(name=b"next")) if size > 1 else []
    assert [one.name for one, _ in found] == [name, b"next"][: len(found)]


def test_the_largest_extended_header():
    room = 1 << 20
    key = b"SCHILY.xattr.user.x"
    body = record(key, b"v" * (room - len(b"1048576  =\n" + key) + 1))
    assert len(body) == room
    assert len(member(extended(body) + header()).xattrs[b"user.x"]) > 10**6
    assert "an extended header is 1048577 bytes long, more than 1048576" in refused(extended(body + b"x") + header())


@pytest.mark.parametrize("sizes", [(4094, 4095, 4096, 4097), (1, 9000, 1), (4097, 4096, 9000)])
def test_extended_headers_of_many_sizes(sizes):
    raw = b"".join(extended(b"n" * size + b"\0", b"L") + header() for size in sizes)
    assert [len(one.name) for one, _ in members(raw)] == list(sizes)


def test_gnu_long_names_end_with_a_nul():
    assert member(extended(b"abc", b"L") + header()).name == b"abc", "its padding has one"
    assert member(extended(b"a\0junk", b"L") + header()).name == b"a"
    torn = bytearray(extended(b"abc", b"L"))
    torn[BLOCK + 3] = ord("d")
    for kind in (b"L", b"K"):
        assert "a GNU long name has no end" in refused(header(name=b"x", kind=kind, size=3) + bytes(torn[BLOCK:]) + header())
    torn[BLOCK + 1] = 0
    assert member(bytes(torn) + header()).name == b"a", "what stands behind an end does not matter"
    body = record(b"path", b"p")
    assert member(header(kind=b"x", size=len(body)) + body + b"junk".ljust(BLOCK - len(body), b"j") + header()).name == b"p"
    for kind in (b"L", b"K"):
        assert "a GNU long name is empty" in refused(extended(b"\0", kind) + header())
        assert "a GNU long name is empty" in refused(extended(b"", kind) + header())
    assert member(extended(b"", b"x") + header()).name == b"f"


def test_one_description_of_a_kind():
    long, link, path, target = extended(b"n\0", b"L"), extended(b"t\0", b"K"), pax((b"path", b"p")), pax((b"linkpath", b"q"))
    assert "two GNU long names" in refused(link + link + header(kind=b"2"))
    assert "names one member twice" in refused(link + target + header(kind=b"2"))
    found = member(long + target + header(kind=b"2"))
    assert (found.name, found.link) == (b"n", b"q")
    found = member(link + path + header(kind=b"2"))
    assert (found.name, found.link) == (b"p", b"t")
    glob = pax((b"comment", b"c"), kind=b"g")
    assert member(glob + glob + header()).name == b"f"
    for pending in (long, link, path):
        assert "it ends after an extended header" in refused(pending + bytes(2 * BLOCK))
        assert "it ends after an extended header" in refused(pending + bytes(BLOCK))
        assert "it ends after an extended header" in refused(pending)
    assert members(glob) == []


def test_where_an_archive_may_end():
    raw = header(size=3) + b"abc"
    assert len(members(raw)) == len(members(padded(raw))) == len(members(raw + bytes(9))) == 1
    assert "middle of a member" in refused(raw[:-1])
    assert "middle of a member" in refused(padded(raw) + header()[:1])
    assert "middle of a member" in refused(extended(b"abc\0", b"L")[: BLOCK + 4])
    assert len(members(padded(raw) + bytes(BLOCK + 9))) == 1
    assert "lone zero block" in refused(padded(raw) + bytes(BLOCK) + b"x")
    assert "lone zero block" in refused(padded(raw) + bytes(2 * BLOCK - 1) + b"x")
    assert len(members(padded(raw) + bytes(2 * BLOCK) + b"x")) == 1


def test_a_lister_says_where_it_stands():
    lister = TarLister(2)
    assert (lister.left, lister.ended, lister.full) == (0, False, False)
    lister.feed(header(size=3))
    with pytest.raises(Fault, match="more was skipped than there is"):
        lister.skip(4)
    lister = TarLister(2)
    lister.feed(header(size=3))
    lister.skip(0)
    lister.skip(2)
    assert lister.left == 1
    lister.skip(1)
    assert (lister.left, lister.full) == (0, False)
    lister.feed(bytes(BLOCK - 3))
    assert not lister.ended
    lister.feed(header() + bytes(BLOCK))
    assert not lister.ended
    lister.feed(bytes(BLOCK))
    assert lister.ended and not lister.full
    lister.finish()
    assert len(lister.members) == 2


def test_a_lister_that_failed_has_failed():
    lister = TarLister(9)
    with pytest.raises(Fault, match="checksum"):
        lister.feed(b"x" * BLOCK)
    with pytest.raises(Fault, match="checksum"):
        lister.feed(header())
    with pytest.raises(Fault, match="checksum"):
        lister.finish()


def test_a_full_lister_reads_on_nothing():
    lister = TarLister(1)
    lister.feed(header(name=b"a", size=3))
    assert not lister.full and not lister.ended
    lister.feed(padded(b"abc") + header(name=b"b") + b"junk" * 500)
    assert lister.full and lister.ended
    for go_on in (lambda: lister.feed(b"junk" * 500), lambda: lister.skip(10**6), lister.finish):
        go_on()
        assert lister.full and lister.ended
    assert [one.name for one in lister.members] == [b"a"]


def test_more_than_a_lister_starts_with(tmp_path):
    """One feed's members in memory that grows: by one and by far."""
    raw = b"".join(pax((b"SCHILY.xattr.user.x", b"v" * size)) + header() for size in (60_000, 6_000, 1, 300_000, 70_000))
    assert [len(one.xattrs[b"user.x"]) for one, _ in members(raw)] == [60_000, 6_000, 1, 300_000, 70_000]


# -- PAX records ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"5 a=\n6 b", "a PAX record's length is wrong"),
        (b"13 comment=c\n5", "a PAX record has no length"),
        (b"x6 a=b\n", "a PAX record has no length"),
        (b" 6 a=b\n", "a PAX record has no length"),
        (b"6\ta=b\n", "a PAX record has no length"),
        (b"0" * 21 + b" a=b\n", "a PAX record has no length"),
        (b"5 a=b\n", "a PAX record's length is wrong"),
        (b"7 a=b\n", "a PAX record's length is wrong"),
        (b"1 a=b\n", "a PAX record's length is wrong"),
        (b"2 a=b\n", "a PAX record's length is wrong"),
        (b"0 a=b\n", "a PAX record's length is wrong"),
        (b"99999999999999999999 a=b\n", "a PAX record's length is wrong"),
        (b"3 \n", "a PAX record has no key"),
        (b"5 =a\n", "a PAX record has no key"),
        (b"7 a\0=b\n", "a PAX record has no key"),
        (b"5 ab\n", "a PAX record has no key"),
        (b"5 ab\n6 a=b\n", "a PAX record has no key"),
    ],
)
def test_records_that_are_none(body, why):
    assert why in refused(extended(body) + header())
    assert why in refused(extended(body, b"g") + header())


def test_records():
    assert member(extended(b"0" * 18 + b"31 path=name\n") + header()).name == b"name"
    assert member(extended(b"5 a=\n8 b=c=d\n" + record(b"path", b"x=y\nz")) + header()).name == b"x=y\nz"
    assert member(pax((b"path", b"first"), (b"path", b"second")) + header()).name == b"second"
    assert member(pax((b"path", b"first"), (b"path", b"")) + header()).name == b"f"
    assert member(pax((b"uid", b"5"), (b"uid", b"")) + header()).uid == 0
    assert member(pax((b"unknown", b"\0"), (b"path", b"p")) + header()).name == b"p"
    for key in (b"path", b"linkpath", b"GNU.sparse.name"):
        assert "a PAX name has a NUL byte" in refused(pax((key, b"a\0b")) + header())
    assert member(pax((b"linkpath", b"there")) + header(kind=b"2")).link == b"there"


@pytest.mark.parametrize(
    ("key", "value", "fine"),
    [
        *[(key, b"v", True) for key in (b"comment", b"charset", b"hdrcharset", b"mtime", b"atime", b"ctime", b"uname", b"gname")],
        (b"VENDOR.key", b"v", True),
        (b"path", b"", True),
        *[(key, b"v", False) for key in (b"path", b"linkpath", b"size", b"uid", b"gid", b"commented", b"vendor")],
        *[(key, b"v", False) for key in (b"GNU.sparse.major", b"RHT.security", b"SCHILY.xattr.user.a", b"LIBARCHIVE.xattr.user.a")],
        *[(key, b"", False) for key in (b"GNU.sparse.major", b"RHT.security", b"SCHILY.xattr.user.a", b"LIBARCHIVE.xattr.user.a")],
    ],
)
def test_global_headers(key, value, fine):
    raw = pax((b"comment", b"c"), (key, value), kind=b"g") + header()
    if fine:
        assert member(raw).name == b"f"
    else:
        assert f"a global PAX header sets '{key.decode()}'" in refused(raw)


# -- extended attributes -------------------------------------------------------------------------------------------------------------

RAW, CODED = b"SCHILY.xattr.user.", b"LIBARCHIVE.xattr.user."


@pytest.mark.parametrize(
    ("records", "found"),
    [
        ([(RAW + b"a", b"one"), (RAW + b"a", b"two")], {b"user.a": b"two"}),
        ([(CODED + b"a", b"b25l"), (CODED + b"a", b"dHdv")], {b"user.a": b"two"}),
        ([(RAW + b"a", b"raw"), (CODED + b"a", b"b25l")], {b"user.a": b"raw"}),
        ([(CODED + b"a", b"b25l"), (RAW + b"a", b"raw")], {b"user.a": b"raw"}),
        ([(RAW + b"a", b"1"), (RAW + b"b", b"2"), (RAW + b"a", b"3")], {b"user.a": b"3", b"user.b": b"2"}),
        ([(RAW + b"a", b"\0=\n\xff")], {b"user.a": b"\0=\n\xff"}),
        ([(RAW + b"%41", b"v")], {b"user.%41": b"v"}),
        ([(CODED + b"%41%4a%4F%3D", b"")], {b"user.AJO=": b""}),
        ([(CODED + b"%4", b"")], {b"user.%4": b""}),
        ([(CODED + b"%", b"")], {b"user.%": b""}),
        ([(CODED + b"%4g%g4%%41", b"")], {b"user.%4g%g4%A": b""}),
        ([(CODED + b"%af%FA%09%90", b"")], {b"user.\xaf\xfa\x09\x90": b""}),
        ([(CODED + b"%/0%:0%@0%G0%`0", b"")], {b"user.%/0%:0%@0%G0%`0": b""}),
        ([(CODED + b"a", b"aA==")], {b"user.a": b"h"}),
        ([(CODED + b"a", b"aA")], {b"user.a": b"h"}),
        ([(CODED + b"a", b"aGk=")], {b"user.a": b"hi"}),
        ([(CODED + b"a", b"aG\nk\0=aGk")], {b"user.a": b"hi"}),
        ([(CODED + b"a", b"/+9Az")], {}),
        ([(CODED + b"a", b"/+9A")], {b"user.a": b"\xff\xef\x40"}),
        ([(CODED + b"a", b"a")], {}),
        ([(CODED + b"a", b"")], {b"user.a": b""}),
        ([(b"SCHILY.xattr.", b"v"), (b"LIBARCHIVE.xattr.", b"aGk")], {}),
        ([(b"SCHILY.xattr", b"v"), (b"LIBARCHIVE.xattr", b"aGk")], {}),
    ],
)
def test_extended_attributes(records, found):
    assert member(pax(*records) + header()).xattrs == found


def test_as_many_extended_attributes_as_a_member_may_have():
    many = [(RAW + b"%d" % n, b"v") for n in range(1024)]
    assert len(member(pax(*many, many[5]) + header()).xattrs) == 1024
    assert "a member has more than 1024 extended attributes" in refused(pax(*many, (RAW + b"x", b"v")) + header())
    assert "an extended attribute's name has a NUL byte" in refused(pax((CODED + b"a%00b", b"")) + header())


# -- sparse files --------------------------------------------------------------------------------------------------------------------


def sparse(*records: tuple[bytes, bytes], data: bytes = b"", size: bytes = b"100") -> bytes:
    """A member in PAX format with these sparse records."""
    return pax((b"GNU.sparse.size", size), *records) + header(size=len(data)) + padded(data)


def pairs(*numbers: int) -> list[tuple[bytes, bytes]]:
    """Version 0.0: offset, length, offset, length."""
    return [(b"GNU.sparse.numbytes" if at % 2 else b"GNU.sparse.offset", b"%d" % number) for at, number in enumerate(numbers)]


@pytest.mark.parametrize(
    ("numbers", "stored", "kept"),
    [
        ((0, 5), 5, ((0, 5),)),
        ((0, 5, 5, 5), 10, ((0, 5), (5, 5))),
        ((95, 5), 5, ((95, 5),)),
        ((0, 0, 1, 4, 100, 0), 4, ((1, 4),)),
        ((100, 0), 0, ()),
        ((), 0, ()),
        ((0, 100), 100, ((0, 100),)),
    ],
)
def test_sparse_maps(numbers, stored, kept):
    text = b",".join(b"%d" % number for number in numbers)
    lines = b"%d\n" % (len(numbers) // 2) + b"".join(b"%d\n" % number for number in numbers)
    one = ((b"GNU.sparse.major", b"1"), (b"GNU.sparse.minor", b"0"), (b"GNU.sparse.realsize", b"100"))
    for raw in (
        sparse(*pairs(*numbers), data=b"x" * stored),
        sparse(*pairs(*numbers), (b"GNU.sparse.major", b"0"), data=b"x" * stored),
        sparse((b"GNU.sparse.map", text), data=b"x" * stored),
        pax(*one) + header(size=BLOCK + stored) + padded(padded(lines) + b"x" * stored),
    ):
        ((found, data),) = members(raw)
        assert (found.sparse, found.size, found.stored, data) == (kept, 100, stored, b"x" * stored)


@pytest.mark.parametrize(
    ("numbers", "stored", "why"),
    [
        ((0, 5, 4, 5), 10, "out of order or leaves the file"),
        ((5, 5, 0, 5), 10, "out of order or leaves the file"),
        ((96, 5), 5, "out of order or leaves the file"),
        ((101, 0), 0, "out of order or leaves the file"),
        ((1, 1 << 63, (1 << 63) + 1, (1 << 63) - 1), 0, "out of order or leaves the file"),
        ((0, 5), 4, "does not cover its 4 stored bytes"),
        ((0, 5), 6, "does not cover its 6 stored bytes"),
        ((), 1, "does not cover its 1 stored bytes"),
    ],
)
def test_maps_that_do_not_fit(numbers, stored, why):
    assert why in refused(sparse((b"GNU.sparse.map", b",".join(b"%d" % number for number in numbers)), data=b"x" * stored))
    assert why in refused(sparse(*pairs(*numbers), data=b"x" * stored))


@pytest.mark.parametrize(
    "records",
    [
        pairs(0),
        pairs(0, 5, 7),
        [*pairs(0, 5), (b"GNU.sparse.numbytes", b"5")],
        [(b"GNU.sparse.numbytes", b"5"), *pairs(0)],
        [(b"GNU.sparse.numbytes", b"5")],
        [(b"GNU.sparse.offset", b"0"), *pairs(0, 5)],
    ],
)
def test_offsets_and_lengths_alternate(records):
    assert "do not alternate" in refused(sparse(*records, data=b"x" * 5))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"0", "is malformed"),
        (b"0,5,7", "is malformed"),
        (b"0,5,", "is not a number"),
        (b",5", "is not a number"),
        (b"0,x", "is not a number"),
    ],
)
def test_map_texts_that_are_none(text, why):
    assert why in refused(sparse((b"GNU.sparse.map", text), data=b"x" * 5))


def test_the_longest_maps():
    most = 65536
    assert member(sparse((b"GNU.sparse.map", b",".join([b"0,0"] * most)))).sparse == ()
    assert "a sparse map is too long" in refused(sparse((b"GNU.sparse.map", b",".join([b"0,0"] * (most + 1)))))
    lines = padded(b"%d\n" % most + b"0\n0\n" * most)
    one = pax((b"GNU.sparse.major", b"1"), (b"GNU.sparse.minor", b"0"), (b"GNU.sparse.realsize", b"9"))
    assert member(one + header(size=len(lines)) + lines).sparse == ()
    longer = padded(b"%d\n" % (most + 1) + b"0\n0\n" * (most + 1))
    assert "a sparse map is too long" in refused(one + header(size=len(longer)) + longer)
    for count in (b"65537", b"9223372036854775808"):  # twice the second is 0 in 64 bits
        assert "a sparse map is too long" in refused(one + header(size=BLOCK) + padded(count + b"\n"))


def test_a_map_in_front_of_the_data():
    """Version 1.0: whole blocks, which the stored size counts."""
    one = pax((b"GNU.sparse.major", b"1"), (b"GNU.sparse.minor", b"0"), (b"GNU.sparse.realsize", b"900"))

    def behind(lines: bytes, data: bytes = b"") -> bytes:
        return one + header(size=len(padded(lines)) + len(data)) + padded(padded(lines) + data)

    segments = tuple((n * 4, 1) for n in range(150))
    lines = b"150\n" + b"".join(b"%d\n%d\n" % segment for segment in segments)
    assert len(lines) > BLOCK
    ((found, data),) = members(behind(lines, b"d" * 150))
    assert (found.sparse, found.stored, data) == (segments, 150, b"d" * 150)
    assert members(behind(lines, b"d" * 150), 3) == members(behind(lines, b"d" * 150))
    torn = "a sparse map is torn or too long"
    assert torn in refused(one + header(size=BLOCK - 1) + padded(b"0\n"))
    assert torn in refused(one + header(size=BLOCK) + padded(lines))
    assert torn in refused(one + header(size=2 * BLOCK - 1) + padded(lines))
    assert member(one + header(size=BLOCK) + padded(b"0\n")).sparse == ()
    assert member(behind(b"1\n0000000000000000005\n0\n")).sparse == ()
    for lines in (b"1\n00000000000000000005\n0\n", b"\n", b"1\n\n0\n", b"1\n5 \n0\n", b"1\n/\n0\n", b"1\n:\n0\n", b"1\n-5\n0\n"):
        assert torn in refused(behind(lines))


def test_names_and_sizes_of_sparse_files():
    found = member(pax((b"path", b"GNUSparseFile.0/f"), (b"GNU.sparse.name", b"real"), (b"GNU.sparse.size", b"7")) + header())
    assert (found.name, found.size, found.sparse) == (b"real", 7, ())
    both = ((b"GNU.sparse.size", b"7"), (b"GNU.sparse.realsize", b"9"))
    assert member(pax(*both) + header()).size == 9
    assert member(pax((b"GNU.sparse.size", b"%d" % HUGE)) + header()).size == HUGE
    assert "size is not between" in refused(pax((b"GNU.sparse.size", b"%d" % (HUGE + 1))) + header())
    assert "is not a number" in refused(pax((b"GNU.sparse.size", b"")) + header())
    unknown = "a format version nobody knows"
    assert unknown in refused(sparse((b"GNU.sparse.major", b"1"), (b"GNU.sparse.minor", b"1")))
    assert unknown in refused(sparse((b"GNU.sparse.major", b"1")))
    assert member(sparse((b"GNU.sparse.major", b"0"), (b"GNU.sparse.minor", b"7"))).sparse == ()
    assert member(sparse((b"GNU.sparse.minor", b"0"))).sparse == ()
    for kind in (b"1", b"2", b"3", b"5", b"6"):
        assert "is sparse but no file" in refused(pax((b"GNU.sparse.size", b"7")) + header(kind=kind))


STAR = {475: b"\0", 476: b"7", 487: b" ", 488: b"7", 499: b" "}


def test_a_sparse_description_needs_the_pax_format():
    """GNU tar takes a header with star's times for star's format, and looks for no sparse map there."""
    described = pax((b"GNU.sparse.size", b"7"))
    not_pax = "is described by a PAX header, but is not in PAX format itself"
    assert not_pax in refused(described + header(*STAR.items()))
    for at in STAR:
        rest = [(other, sign) for other, sign in STAR.items() if other != at]
        assert member(described + header(*rest, (at, b"x"))).sparse == ()
    for digits in (b"/", b"8"):
        assert member(described + header(*(STAR | {476: digits}).items())).sparse == ()
    assert not_pax in refused(described + header(*(STAR | {476: b"0", 488: b"0"}).items()))
    for magic in (b"ustar  \0", bytes(8), b"ustar "):
        assert not_pax in refused(described + header((MAGIC, magic)))


def old(segments: list[tuple[int, int]], size: int, *, stored: int | None = None, kind: bytes = b"S", **more: bytes) -> bytes:
    """A sparse member of GNU's own format: four segments in the header, 21 in each block behind it."""

    def written(part: list[tuple[int, int]]) -> bytes:
        return b"".join(b"%011o\0%011o\0" % segment for segment in part)

    first, rest = segments[:4], segments[4:]
    total = sum(length for _, length in segments) if stored is None else stored
    changes = [(GNU_MAP, written(first)), (GNU_MORE, b"\1" if rest else b"\0"), (GNU_SIZE, b"%011o\0" % size)]
    raw = header((PREFIX, bytes(155)), *changes, kind=kind, size=total, form=tarfile.GNU_FORMAT)
    while rest:
        part, rest = rest[:21], rest[21:]
        raw += (written(part).ljust(504, b"\0") + (b"\1" if rest else b"\0")).ljust(BLOCK, b"\0")
    return raw + padded(b"x" * total)


@pytest.mark.parametrize("count", [0, 1, 3, 4, 5, 24, 25, 26, 46, 47])
def test_maps_of_the_gnu_format(count):
    segments = [(10 * n, 3) for n in range(count)]
    raw = old(segments, 10 * count + 7) + header(name=b"next")
    (found, data), (following, _) = members(raw)
    assert (found.sparse, found.size, found.stored, data) == (tuple(segments), 10 * count + 7, 3 * count, b"x" * 3 * count)
    assert (following.name, following.sparse) == (b"next", None)
    assert members(raw, 100) == members(raw)
    if count:
        assert "does not cover" in refused(old(segments, 10 * count + 7, stored=3 * count - 1))


def test_maps_of_the_gnu_format_that_are_none():
    def changed(raw: bytes, at: int, new: bytes) -> bytes:
        block = bytearray(raw[:BLOCK])
        block[at : at + len(new)] = new
        return checked(block) + raw[BLOCK:]

    sound = old([(0, 3), (10, 3)], 20)
    empty = "a sparse map has an empty entry before its end"
    assert member(changed(sound, GNU_MAP + 48 + 1, b"junk")).sparse == ((0, 3), (10, 3)), "behind an empty entry nothing is read"
    assert empty in refused(changed(sound, GNU_MAP + 24, b"\0"))
    assert empty in refused(changed(sound, GNU_MAP + 36, b"\0"))
    assert empty in refused(changed(sound, GNU_MORE, b"\1") + bytes(BLOCK))
    assert "sparse map is not a number" in refused(changed(sound, GNU_MAP, b"x"))
    assert "sparse map is not a number" in refused(changed(sound, GNU_MAP + 12, b"x"))
    assert "real size is not a number" in refused(changed(sound, GNU_SIZE, b"x"))
    assert "size is not between" in refused(changed(sound, GNU_SIZE, base256(HUGE + 1, 12)))
    assert member(changed(sound, GNU_SIZE, base256(HUGE, 12))).size == HUGE
    for magic in (b"ustar\x0000", b"ustar \0\0", bytes(8)):
        assert "a sparse member is not in GNU format" in refused(changed(sound, MAGIC, magic))
    assert "described twice" in refused(pax((b"GNU.sparse.size", b"20")) + sound)
    assert "is sparse but no file" in refused(changed(old([], 0), 0, b"d/\0"))
    extra = bytearray(old([(n, 1) for n in range(5)], 20))
    extra[BLOCK + 24] = ord("0")
    assert empty in refused(bytes(extra))
    assert "middle of a member" in refused(bytes(extra[: BLOCK + 9]))
    with pytest.raises(Fault, match="middle of a member"):
        lister = TarLister(9)
        lister.feed(sound[: BLOCK + 1])
        lister.finish()


def test_a_name_is_not_empty():
    for raw in (header((0, b"\0")), header((0, b"\0\0"), kind=b"5")):
        assert "a member's name is empty" in refused(raw)
