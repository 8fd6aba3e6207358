/* A mutator that knows tar, for libFuzzer: members are moved, renamed, linked to each other and described by extended headers, and whatever
 * happens the checksums and the lengths of PAX records are right again, mostly. A blind mutation would die at the first checksum.
 * With MUTATOR_LAYERS an input may become several archives, one behind the other.
 */
#ifndef DOCKLESS_TAR_MUTATOR_H
#define DOCKLESS_TAR_MUTATOR_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t max_size);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned seed);
size_t LLVMFuzzerCustomCrossOver(const uint8_t *one, size_t one_size, const uint8_t *two, size_t two_size, uint8_t *out, size_t max_size, unsigned seed);

enum { MUTATOR_BLOCK = 512, MUTATOR_HEADERS = 256 };

static uint32_t mutator_state;

static uint32_t any(uint32_t below) {
    mutator_state ^= mutator_state << 13;
    mutator_state ^= mutator_state >> 17;
    mutator_state ^= mutator_state << 5;
    return below ? mutator_state % below : 0;
}

#define PICK(table) ((table)[any(sizeof(table) / sizeof *(table))])

/* Few names, so that members meet: one is the other's parent, link, whiteout or second coming. */
static const char *const NAMES[] = {
    "a", "a", "a", "b", "b", "c", "a/", "a/b", "a/b", "a/b/c", "a/b/c/d", "b/a", "b/c", "./a", "a//b", "a/./b", ".", "./", "", "/", "//a", "/a", "/a/b", "..", "../x", "a/..",
    "a/../b", "a/../../x", "../victim/file", "../../victim", "/victim/file", ".wh.a", ".wh.b", "a/.wh.b", "a/.wh.c", ".wh..wh..opq", "a/.wh..wh..opq", ".wh.", ".wh..",
    ".wh...", ".wh..wh.aufs", ".wh..wh.plnk/x", "a/.wh..", "b/.wh.a/c", "x\ny", "\xff\xfe", "\xc3\xa4", "low", "low/f", "low/d/f", "lowlink", "lowlink/f", "lowdir/f",
    "a/b/c/d/e/f/g/h/i/j/k/l/m/n/o/p",
};
static const char *const LINKS[] = {
    "a", "b", "a/b", "./a", "../a", "..", ".", "/", "/a", "../../../../../../..", "../victim", "../victim/file", "/proc/self/fd/3", "/proc/self/cwd/x", "", "a/../b", "b/c", "c", "low",
    "low/f", "lowlink", "/dev/null", ".wh.a", "a/.wh.b", "/victim/file", "../../victim/file",
};
static const char *const NUMBERS[] = {
    "", "0", "1", "7", "777", "0000644", "0004755", "0001777", "7777777", "77777777777", "00000001000", "00000000777", "00000001001", "-1", "9", " 12 ", "12x", "777777777777",
    "\x80\0\0\0\0\0\0\0\0\0\2\0", "\x80\0\0\0\0\0\0\1\0\0\0\0", "\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", "\x80\0\0\0\0\0\x10\0\0\0\0\0",
    "\xff\xff\xff\xff\0\0\0\0\0\0\0\0", "\x80\0\0\0\xff\xff\xff\xfe\0\0\0\0", "\xc0\0\0\0\0\0\0\0\0\0\0\0",
};
static const char *const KEYS[] = {
    "path", "path", "linkpath", "linkpath", "size", "uid", "gid", "mtime", "atime", "uname", "comment", "hdrcharset", "GNU.sparse.name", "GNU.sparse.realsize", "GNU.sparse.size",
    "GNU.sparse.major", "GNU.sparse.minor", "GNU.sparse.map", "GNU.sparse.offset", "GNU.sparse.numbytes", "GNU.sparse.numblocks", "SCHILY.xattr.user.a", "SCHILY.xattr.user.b",
    "SCHILY.xattr.security.capability", "SCHILY.xattr.trusted.overlay.opaque", "SCHILY.xattr.user.overlay.opaque", "SCHILY.xattr.trusted.overlay.redirect",
    "SCHILY.xattr.system.posix_acl_access", "SCHILY.xattr.", "LIBARCHIVE.xattr.user.a", "LIBARCHIVE.xattr.user.%62", "LIBARCHIVE.xattr.user.%00", "SCHILY.acl.access", "SCHILY.dev",
    "RHT.security.selinux", "vendor.key", "",
};
static const char *const VALUES[] = {
    "0", "1", "y", "v", "aGk=", "aGk", "=", "12", "-1", "1000", "4294967294", "4294967295", "9999999999999999999", "18446744073709551616", "99999999999999999999999", "17592186044416",
    "12.5", "-0.5", "1.9999999999", "4611686019", "1e9", "0,3", "0,3,8000,4", "1,2,3", "0,0", "8,9,1,1", ",", "\x01\0\0\2\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0",
};
/* Where the fields of a header lie, and how long they are. */
static const struct { uint16_t at, size; } FIELDS[] = {
    {100, 8}, {108, 8}, {116, 8}, {124, 12}, {136, 12}, {329, 8}, {337, 8}, {386, 12}, {398, 12}, {410, 12}, {422, 12}, {482, 1}, {483, 12}, {345, 12}, {476, 12}, {488, 12},
};
static const char FLAGS[] = "00000111222233445555566xxxggLLKKS7V\0ADZ";
static const char MAGICS[][9] = {"ustar\0" "00", "ustar  \0", "", "ustar\0" "11", "ustar "};

static size_t octal(const uint8_t *at, size_t size) {
    size_t sum = 0, n = 0;
    while (n < size && (at[n] == ' ' || !at[n])) n++;
    for (; n < size && at[n] >= '0' && at[n] <= '7' && sum < (1u << 27); n++) sum = sum * 8 + (size_t)(at[n] - '0');
    return sum;
}

static void set_octal(uint8_t *at, size_t size, size_t value) {
    char text[32];
    snprintf(text, sizeof text, "%0*zo", (int)size - 1, value);
    memcpy(at, text, size);
}

static int is_header(const uint8_t *block) {
    return !memcmp(block + 257, "ustar", 5);
}

static void fix_checksum(uint8_t *block) {
    unsigned sum = 0;
    memset(block + 148, ' ', 8);
    for (int n = 0; n < MUTATOR_BLOCK; n++) sum += block[n];
    char text[8];
    snprintf(text, sizeof text, "%06o", sum);
    memcpy(block + 148, text, 7);
}

static void fix_checksums(uint8_t *data, size_t size) {
    for (size_t at = 0; at + MUTATOR_BLOCK <= size; at += MUTATOR_BLOCK)
        if (is_header(data + at)) fix_checksum(data + at);
}

/* Members begin at these blocks, as far as headers look like headers. */
static size_t find_headers(const uint8_t *data, size_t size, size_t *found) {
    size_t count = 0;
    for (size_t at = 0; at + MUTATOR_BLOCK <= size && count < MUTATOR_HEADERS; at += MUTATOR_BLOCK)
        if (is_header(data + at)) found[count++] = at;
    return count;
}

/* Room of `count` bytes at `at`; how large it all is then, or 0 where it does not fit. */
static size_t open_gap(uint8_t *data, size_t size, size_t max_size, size_t at, size_t count) {
    if (at > size || count > max_size - size || size > max_size) return 0;
    memmove(data + at + count, data + at, size - at);
    memset(data + at, 0, count);
    return size + count;
}

static void name_it(uint8_t *block, const char *name, size_t at) {
    memset(block + at, 0, 100);
    memcpy(block + at, name, strnlen(name, 100));
}

static void fresh_header(uint8_t *block, char flag, size_t size) {
    memset(block, 0, MUTATOR_BLOCK);
    name_it(block, PICK(NAMES), 0);
    memcpy(block + 100, "0000755\0" "0000000\0" "0000000\0", 24);
    set_octal(block + 124, 12, size);
    memcpy(block + 136, "14000000000", 12);
    block[156] = (uint8_t)flag;
    if (flag == '1' || flag == '2') name_it(block, PICK(LINKS), 157);
    memcpy(block + 257, flag == 'L' || flag == 'K' || flag == 'S' ? "ustar  \0" : "ustar\0" "00", 8);
    if (flag == '3' || flag == '4') memcpy(block + 329, "0000001\0" "0000003\0", 16);
}

/* One record with the right length, most of the time. Needs 256 bytes. */
static size_t record(uint8_t *out) {
    const char *key = PICK(KEYS);
    const char *value = any(3) ? PICK(VALUES) : any(2) ? PICK(NAMES) : PICK(LINKS);
    size_t body = strlen(key) + strlen(value) + 3, length = body + 1;
    char digits[12];
    while (length != body + (size_t)snprintf(digits, sizeof digits, "%zu", length)) length++;
    if (!any(20)) snprintf(digits, sizeof digits, "%u", any(40));
    return (size_t)snprintf((char *)out, 256, "%s %s=%s\n", digits, key, value);
}

/* A header of its own with what describes the member behind it. */
static size_t insert_extended(uint8_t *data, size_t size, size_t max_size, size_t at) {
    uint8_t content[2048];
    size_t length = 0;
    char flag = "xxxxxgLK"[any(8)];
    if (flag == 'L' || flag == 'K') {
        const char *text = flag == 'L' ? PICK(NAMES) : PICK(LINKS);
        length = strlen(text) + 1;
        memcpy(content, text, length);
    } else {
        for (uint32_t n = any(4) + 1; n; n--) length += record(content + length);
    }
    size_t blocks = (length + MUTATOR_BLOCK - 1) / MUTATOR_BLOCK;
    size_t grown = open_gap(data, size, max_size, at, MUTATOR_BLOCK * (1 + blocks));
    if (!grown) return size;
    fresh_header(data + at, flag, length);
    memcpy(data + at + MUTATOR_BLOCK, content, length);
    return grown;
}

/* One more record in a PAX header that has room for it in its last block. */
static void add_record(uint8_t *data, size_t size, size_t at) {
    uint8_t content[256];
    size_t have = octal(data + at + 124, 12), more = record(content), end = at + MUTATOR_BLOCK + have;
    if (data[at + 156] != 'x' && data[at + 156] != 'g') return;
    if ((have + more + MUTATOR_BLOCK - 1) / MUTATOR_BLOCK > (have + MUTATOR_BLOCK - 1) / MUTATOR_BLOCK || end + more > size) return;
    memcpy(data + end, content, more);
    set_octal(data + at + 124, 12, have + more);
}

static size_t insert_member(uint8_t *data, size_t size, size_t max_size, size_t at) {
    char flag = "000122235561S0"[any(14)];
    size_t length = flag == '0' && any(2) ? any(700) : flag == 'S' ? 6 : 0;
    size_t grown = open_gap(data, size, max_size, at, MUTATOR_BLOCK + (length + MUTATOR_BLOCK - 1) / MUTATOR_BLOCK * MUTATOR_BLOCK);
    if (!grown) return size;
    fresh_header(data + at, flag, length);
    memset(data + at + MUTATOR_BLOCK, 'd', length);
    if (flag == 'S') {
        memcpy(data + at + 386, "00000000000\0" "00000000003\0" "00000001000\0" "00000000003", 48);
        memcpy(data + at + 483, "00000010000", 12);
    }
    return grown;
}

/* A map of sparse 1.0: the header that says so, and the map in front of the data. */
static size_t insert_sparse(uint8_t *data, size_t size, size_t max_size, size_t at) {
    static const char words[] = "22 GNU.sparse.major=1\n22 GNU.sparse.minor=0\n29 GNU.sparse.realsize=9000\n21 GNU.sparse.name=s\n";
    static const char *const maps[] = {"2\n0\n3\n8000\n3\n", "1\n0\n6\n", "0\n", "3\n0\n1\n1\n1\n4\n4\n", "2\n8000\n3\n0\n3\n", "1\n9000\n6\n", "x\n", "65537\n", "1\n0\n"};
    size_t grown = open_gap(data, size, max_size, at, 5 * MUTATOR_BLOCK);
    if (!grown) return size;
    const char *map = PICK(maps);
    fresh_header(data + at, 'x', sizeof words - 1);
    memcpy(data + at + MUTATOR_BLOCK, words, sizeof words - 1);
    fresh_header(data + at + 2 * MUTATOR_BLOCK, '0', MUTATOR_BLOCK + 6);
    memcpy(data + at + 3 * MUTATOR_BLOCK, map, strlen(map));
    memset(data + at + 4 * MUTATOR_BLOCK, 'd', 6);
    return grown;
}

static void change_header(uint8_t *block) {
    switch (any(7)) {
    case 0: name_it(block, PICK(NAMES), 0); break;
    case 1: name_it(block, PICK(LINKS), 157); break;
    case 2: block[156] = (uint8_t)FLAGS[any(sizeof FLAGS - 1)]; break;
    case 3: memcpy(block + 257, PICK(MAGICS), 8 - 3 * !any(4)); break;
    case 4: name_it(block, any(2) ? PICK(NAMES) : PICK(LINKS), any(2) ? 0 : 157); break;
    case 5: {
        const char *prefix = PICK(NAMES);
        memset(block + 345, 0, 155);
        memcpy(block + 345, prefix, strlen(prefix));
        break;
    }
    default: {
        size_t n = any(sizeof FIELDS / sizeof *FIELDS);
        const char *value = PICK(NUMBERS);
        memset(block + FIELDS[n].at, 0, FIELDS[n].size);
        /* The binary ones hold NULs and are twelve bytes long; a text is shorter, and what follows it in memory is a NUL. */
        memcpy(block + FIELDS[n].at, value, (uint8_t)*value >= 0x80 ? FIELDS[n].size : strnlen(value, FIELDS[n].size));
    }
    }
}

/* The member's header and all up to the next one: copied, moved or removed. */
static size_t move_member(uint8_t *data, size_t size, size_t max_size, const size_t *headers, size_t count) {
    size_t one = any((uint32_t)count), start = headers[one], end = one + 1 < count ? headers[one + 1] : size;
    size_t to = headers[any((uint32_t)count)], length = end - start;
    uint8_t *copy = malloc(length + 1);
    if (!copy) return size;
    memcpy(copy, data + start, length);
    uint32_t how = any(3);
    if (how) {
        memmove(data + start, data + end, size - end);
        size -= length;
        if (to > start) to = to >= end ? to - length : start;
    }
    if (how < 2) {
        size_t grown = open_gap(data, size, max_size, to, length);
        if (grown) {
            memcpy(data + to, copy, length);
            size = grown;
        }
    }
    free(copy);
    return size;
}

static size_t mutate_once(uint8_t *data, size_t size, size_t max_size) {
    size_t headers[MUTATOR_HEADERS], count = find_headers(data, size, headers);
    if (!count) return insert_member(data, size, max_size, 0);
    size_t at = headers[any((uint32_t)count)];
#ifdef MUTATOR_LAYERS
    if (!any(20)) { /* here one layer ends and the next begins */
        size_t grown = open_gap(data, size, max_size, at, 2 * MUTATOR_BLOCK);
        return grown ? grown : size;
    }
#endif
    switch (any(16)) {
    case 0: return LLVMFuzzerMutate(data, size, max_size);
    case 1: case 2: return insert_extended(data, size, max_size, at);
    case 3: case 4: add_record(data, size, at); return size;
    case 5: case 6: return insert_member(data, size, max_size, at);
    case 7: return insert_sparse(data, size, max_size, at);
    case 8: case 9: return move_member(data, size, max_size, headers, count);
    case 10: /* the content behind a header, in place */
        if (at + 2 * MUTATOR_BLOCK <= size && !is_header(data + at + MUTATOR_BLOCK)) LLVMFuzzerMutate(data + at + MUTATOR_BLOCK, MUTATOR_BLOCK, MUTATOR_BLOCK);
        return size;
    case 11: LLVMFuzzerMutate(data + at, 256, 256); return size;
    default: change_header(data + at); return size;
    }
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned seed) {
    mutator_state = seed * 2654435761u + 1;
    if (!mutator_state) mutator_state = 1;
    for (uint32_t n = 1 + any(4); n; n--) size = mutate_once(data, size, max_size);
    if (any(25)) fix_checksums(data, size);
    return !any(60) ? any((uint32_t)size + 1) : size;
}

/* Some members of the one, then some of the other. */
size_t LLVMFuzzerCustomCrossOver(const uint8_t *one, size_t one_size, const uint8_t *two, size_t two_size, uint8_t *out, size_t max_size, unsigned seed) {
    mutator_state = seed | 1;
    size_t headers[MUTATOR_HEADERS], count = find_headers(one, one_size, headers);
    size_t first = count ? headers[any((uint32_t)count)] : one_size;
    count = find_headers(two, two_size, headers);
    size_t from = count ? headers[any((uint32_t)count)] : 0, length = two_size - from;
    if (first > max_size) first = max_size;
    if (length > max_size - first) length = max_size - first;
    memcpy(out, one, first);
    memcpy(out + first, two + from, length);
    return first + length;
}

#endif
