/* One member: its header, what extended headers say instead, its sparse map. */
#include <stdlib.h>
#include <string.h>

#include "tar_parts.h"

/* -- numbers ------------------------------------------------------------------------------------------------------------------------- */

/* Octal digits between spaces and NULs, or base 256 in two's complement where the first bit is set. */
int tar_number(struct tar *tar, const unsigned char *raw, size_t size, const char *what, int64_t *value) {
    uint64_t sum = 0;
    if (raw[0] & 0x80) {
        int negative = raw[0] & 0x40;
        sum = negative ? UINT64_MAX : 0;
        for (size_t at = 0; at < size; at++) {
            if (sum >> 55 != (negative ? 0x1ffu : 0)) return layer_fail(tar->error, FAULT_MALFORMED, 0, "a header's %s is out of range", what);
            unsigned char byte = at ? raw[at] : negative ? raw[0] : raw[0] & 0x7f;
            sum = sum << 8 | byte;
        }
    } else {
        /* GNU tar skips one NUL and any spaces, Go any of both: digits behind more NULs are a number to one of them only. */
        size_t at = !raw[0];
        while (at < size && raw[at] == ' ') at++;
        size_t blank = at;
        while (blank < size && (raw[blank] == ' ' || !raw[blank])) blank++;
        if (blank < size && blank > at) return layer_fail(tar->error, FAULT_MALFORMED, 0, "a header's %s is not a number", what);
        for (; at < size && raw[at] >= '0' && raw[at] <= '7'; at++) sum = sum << 3 | (uint64_t)(raw[at] - '0');
        if (at < size && raw[at] != ' ' && raw[at]) return layer_fail(tar->error, FAULT_MALFORMED, 0, "a header's %s is not a number", what);
    }
    *value = (int64_t)sum;
    return 0;
}

/* A PAX record's number where there is one, else the header's. Negative ones become huge: every caller has an upper limit. */
static int field(struct tar *tar, enum pax_field key, size_t at, size_t size, const char *what, uint64_t *value) {
    const struct slice *text = &tar->pax.fields[key];
    if (text->at) return pax_decimal(text->at, text->size, value, tar->error);
    int64_t found;
    if (tar_number(tar, tar->block + at, size, what, &found)) return -1;
    *value = (uint64_t)found;
    return 0;
}

int check_size(struct tar *tar, uint64_t size) {
    if (size <= TAR_SIZE_MAX) return 0;
    return layer_fail(tar->error, FAULT_MALFORMED, 0, "a member's size is not between 0 and %llu", TAR_SIZE_MAX);
}

static int owner(struct tar *tar, enum pax_field key, size_t at, uint32_t *id) {
    uint64_t value;
    if (field(tar, key, at, 8, "owner", &value)) return -1;
    /* -1 means "leave as it is" to chown(2), so it must never get there. */
    if (value > TAR_ID_MAX) return malformed(tar, "a member's owner is not a user or group id");
    *id = (uint32_t)value;
    return 0;
}

/* -- sparse maps --------------------------------------------------------------------------------------------------------------------- */

/* In order, no overlap, inside the file, and exactly the stored bytes; empty segments go. */
static int check_map(struct tar *tar) {
    struct tar_member *m = &tar->member;
    uint64_t end = 0, total = 0;
    uint32_t kept = 0;
    for (uint32_t n = 0; n < tar->segments.count; n++) {
        struct tar_segment s = tar->segments.items[n];
        if (s.offset < end || s.offset > m->size || s.length > m->size - s.offset)
            return layer_fail(tar->error, FAULT_MALFORMED, 0, "the sparse map of %s is out of order or leaves the file", show(m->name).text);
        end = s.offset + s.length;
        total += s.length;
        if (s.length) tar->segments.items[kept++] = s;
    }
    if (total != m->stored)
        return layer_fail(tar->error, FAULT_MALFORMED, 0, "the sparse map of %s does not cover its %llu stored bytes", show(m->name).text,
                          (unsigned long long)m->stored);
    tar->segments.count = kept;
    m->sparse = 1;
    m->segment_count = kept;
    m->segments = tar->segments.items;
    return 0;
}

/* Old GNU: four segments in the header, 21 in each block that follows it. GNU tar ends a map at the first empty entry, Go reads on in the block
 * that follows: a map with an empty entry and more behind it would be two maps. */
static int old_map(struct tar *tar, const unsigned char *raw, int count, int more) {
    for (; count--; raw += 24) {
        if (!raw[0] || !raw[12]) {
            if (raw[0] || raw[12] || more) return malformed(tar, "a sparse map has an empty entry before its end");
            break;
        }
        int64_t offset, length;
        if (tar_number(tar, raw, 12, "sparse map", &offset) || tar_number(tar, raw + 12, 12, "sparse map", &length)) return -1;
        if (segments_add(&tar->segments, (uint64_t)offset, (uint64_t)length, tar->error)) return -1;
    }
    return 0;
}

/* Sparse 0.1: "offset,length,offset,length". */
static int text_map(struct tar *tar, const struct slice *text) {
    uint64_t pair[2];
    int half = 0;
    const char *at = text->at, *end = at + text->size;
    tar->segments.count = 0;
    while (text->size) {
        const char *comma = memchr(at, ',', (size_t)(end - at));
        if (pax_decimal(at, (size_t)((comma ? comma : end) - at), &pair[half], tar->error)) return -1;
        if (half && segments_add(&tar->segments, pair[0], pair[1], tar->error)) return -1;
        half = !half;
        if (!comma) break;
        at = comma + 1;
    }
    if (half) return layer_fail(tar->error, FAULT_MALFORMED, 0, "the sparse map of %s is malformed", show(tar->member.name).text);
    return 0;
}

/* Sparse 1.0: decimal lines in front of the data, padded to whole blocks and counted in the stored size. 1: all of them were in this block. */
static int map_block(struct tar *tar) {
    for (size_t at = 0; at < TAR_BLOCK; at++) {
        unsigned char c = tar->block[at];
        if (c >= '0' && c <= '9' && tar->map_digits < 19) {
            tar->map_number = tar->map_number * 10 + (uint64_t)(c - '0');
            tar->map_digits++;
            continue;
        }
        if (c != '\n' || !tar->map_digits) return malformed(tar, "a sparse map is torn or too long");
        uint64_t value = tar->map_number, line = tar->map_lines++;
        tar->map_number = tar->map_digits = 0;
        if (!line) {
            if (value > TAR_SEGMENTS_MAX) return malformed(tar, "a sparse map is too long");
            tar->map_count = value;
        } else if (line & 1) {
            tar->map_offset = value;
        } else if (segments_add(&tar->segments, tar->map_offset, value, tar->error)) {
            return -1;
        }
        if (tar->map_lines == 1 + 2 * tar->map_count) return 1;
    }
    return 0;
}

static int is_octal(unsigned char c) {
    return c >= '0' && c <= '7';
}

/* What GNU tar takes for ustar or PAX, rather than for v7, star or its own format, in which it does not look for PAX's sparse maps. Go does. */
static int is_posix(const unsigned char *block) {
    int star = !block[475] && is_octal(block[476]) && block[487] == ' ' && is_octal(block[488]) && block[499] == ' ';
    return !memcmp(block + 257, "ustar", 6) && !star;
}

/* PAX 0.0 (repeated keys, read already), 0.1 (one map key), 1.0 (a map in front of the data). */
static int pax_sparse(struct tar *tar) {
    const struct slice *fields = tar->pax.fields;
    struct tar_member *m = &tar->member;
    const struct slice *size = fields[PAX_SPARSE_REALSIZE].at ? &fields[PAX_SPARSE_REALSIZE] : &fields[PAX_SPARSE_SIZE];
    if (fields[PAX_SPARSE_NAME].size) m->name = fields[PAX_SPARSE_NAME].at;
    if (size->at && (pax_decimal(size->at, size->size, &m->size, tar->error) || check_size(tar, m->size))) return -1;
    const char *major = fields[PAX_SPARSE_MAJOR].at, *minor = fields[PAX_SPARSE_MINOR].at;
    if (major && minor && !strcmp(major, "1") && !strcmp(minor, "0")) {
        tar->segments.count = 0;
        tar->map_lines = tar->map_number = tar->map_digits = 0;
        tar->state = MAP;
        return 0;
    }
    if (major && strcmp(major, "0")) return malformed(tar, "a sparse member has a format version nobody knows");
    if (fields[PAX_SPARSE_MAP].at) return text_map(tar, &fields[PAX_SPARSE_MAP]) ? -1 : check_map(tar);
    if (tar->pax.unpaired || tar->pax.half) return malformed(tar, "a sparse map's offsets and lengths do not alternate");
    return check_map(tar);
}

int go_on_map(struct tar *tar) {
    int complete;
    if (tar->state == OLD_MAP) {
        if (old_map(tar, tar->block, 21, tar->block[504])) return -1;
        complete = !tar->block[504];
    } else {
        if (tar->member.stored < TAR_BLOCK) return malformed(tar, "a sparse map is torn or too long");
        tar->member.stored -= TAR_BLOCK;
        complete = map_block(tar);
        if (complete < 0) return -1;
    }
    if (!complete) return 0;
    return check_map(tar) ? -1 : hand_over(tar);
}

/* -- one member ---------------------------------------------------------------------------------------------------------------------- */

static int kind_of(unsigned char flag) {
    switch (flag) {
    case 0: case '0': case '7': case 'S': return TAR_FILE;
    case '1': return TAR_HARDLINK;
    case '2': return TAR_SYMLINK;
    case '3': return TAR_CHAR;
    case '4': return TAR_BLOCKDEV;
    case '5': return TAR_DIRECTORY;
    case '6': return TAR_FIFO;
    default: return -1;
    }
}

/* The header's own name, with the prefix of ustar; star's is shorter. */
static const char *short_name(struct tar *tar) {
    const char *block = (const char *)tar->block;
    size_t used = 0;
    if (!memcmp(block + 257, "ustar", 6)) {
        used = strnlen(block + 345, memcmp(block + 508, "tar", 4) ? 155 : 131);
        memcpy(tar->name, block + 345, used);
        if (used) tar->name[used++] = '/';
    }
    size_t size = strnlen(block, 100);
    memcpy(tar->name + used, block, size);
    tar->name[used + size] = 0;
    return tar->name;
}

/* What a PAX header says, else a GNU long name, else the header itself. */
static const char *text_of(struct tar *tar, enum pax_field key, int buffer, const char *own) {
    const struct buffer *longer = &tar->buffers[buffer];
    if (tar->pax.fields[key].at) return tar->pax.fields[key].at;
    return longer->seen ? longer->data : own;
}

static int device(struct tar *tar, size_t at, uint32_t *value) {
    int64_t found;
    if (tar_number(tar, tar->block + at, 8, "device", &found)) return -1;
    if (found < 0 || found > UINT32_MAX) return malformed(tar, "a header's device is out of range");
    *value = (uint32_t)found;
    return 0;
}

static int read_times(struct tar *tar) {
    struct tar_member *m = &tar->member;
    const struct slice *text = &tar->pax.fields[PAX_MTIME];
    if (text->at ? pax_time(text, &m->mtime, &m->mtime_ns, tar->error) : tar_number(tar, tar->block + 136, 12, "mtime", &m->mtime)) return -1;
    /* As many nanoseconds as fit 64 bits: 1677 to 2262. */
    if (m->mtime <= -9223372036 || m->mtime >= 9223372036)
        return layer_fail(tar->error, FAULT_MALFORMED, 0, "the time of %s is out of range", show(m->name).text);
    return 0;
}

static const char *const KINDS[] = {"file", "hardlink", "symlink", "char", "block", "directory", "fifo"};

int begin_member(struct tar *tar) {
    struct tar_member *m = &tar->member;
    unsigned char *block = tar->block, flag = block[156];
    uint64_t stored;
    int64_t mode;
    if ((tar->buffers[BUFFER_NAME].seen && tar->pax.fields[PAX_PATH].at) || (tar->buffers[BUFFER_LINK].seen && tar->pax.fields[PAX_LINKPATH].at))
        return malformed(tar, "it names one member twice, by a PAX header and by a GNU long name");
    if (field(tar, PAX_SIZE, 124, 12, "size", &stored) || check_size(tar, stored)) return -1;
    tar->padding = (uint32_t)(-stored % TAR_BLOCK);
    if (flag == 'V') { /* a volume's label */
        if (is_pending(tar)) return malformed(tar, "an extended header stands in front of a volume's label");
        tar->left = stored;
        tar->state = SKIPPED;
        if (!stored) behind_data(tar);
        return 0;
    }
    *m = (struct tar_member){.kind = kind_of(flag), .xattr_count = tar->pax.xattr_count, .xattrs = tar->pax.xattrs};
    if (m->kind < 0)
        return layer_fail(tar->error, FAULT_MALFORMED, 0, "a member has the type %s, which no layer should have", show_bytes((char *)&flag, 1).text);
    memcpy(tar->link, block + 157, 100);
    m->name = text_of(tar, PAX_PATH, BUFFER_NAME, short_name(tar));
    m->link = text_of(tar, PAX_LINKPATH, BUFFER_LINK, tar->link);
    size_t length = strlen(m->name);
    if (m->kind == TAR_FILE && length && m->name[length - 1] == '/') m->kind = TAR_DIRECTORY;
    if (m->kind != TAR_SYMLINK && m->kind != TAR_HARDLINK) m->link = "";
    if (m->kind != TAR_FILE) {
        if (stored && m->kind != TAR_HARDLINK)
            return layer_fail(tar->error, FAULT_MALFORMED, 0, "the %s %s claims to have %llu bytes of data", KINDS[m->kind], show(m->name).text,
                              (unsigned long long)stored);
        /* Some writers repeat the size of a hard link's file. In its header all readers pass it over; in a PAX header GNU tar takes it for data. */
        if (stored && tar->pax.fields[PAX_SIZE].at) return malformed(tar, "a hard link is given data by a PAX header");
        stored = tar->padding = 0;
    }
    m->size = m->stored = stored;
    if (tar_number(tar, block + 100, 8, "mode", &mode) || owner(tar, PAX_UID, 108, &m->uid) || owner(tar, PAX_GID, 116, &m->gid) || read_times(tar))
        return -1;
    m->mode = (uint32_t)mode & 07777;
    if (!memcmp(block + 257, "ustar", 5) && (m->kind == TAR_CHAR || m->kind == TAR_BLOCKDEV))
        if (device(tar, 329, &m->major) || device(tar, 337, &m->minor)) return -1;
    if ((flag == 'S' || tar->pax.sparse) && m->kind != TAR_FILE)
        return layer_fail(tar->error, FAULT_MALFORMED, 0, "%s is sparse but no file", show(m->name).text);
    if (flag == 'S') {
        int64_t size;
        if (memcmp(block + 257, "ustar  ", 8)) return malformed(tar, "a sparse member is not in GNU format");
        if (tar->pax.sparse) return malformed(tar, "a sparse member is described twice, by its header and by a PAX header");
        if (tar_number(tar, block + 483, 12, "real size", &size) || check_size(tar, (uint64_t)size)) return -1;
        m->size = (uint64_t)size;
        tar->segments.count = 0;
        if (old_map(tar, block + 386, 4, block[482])) return -1;
        if (block[482]) tar->state = OLD_MAP;
        else if (check_map(tar)) return -1;
    } else if (tar->pax.sparse) {
        if (!is_posix(block)) return malformed(tar, "a sparse member is described by a PAX header, but is not in PAX format itself");
        if (pax_sparse(tar)) return -1;
    }
    if (!m->name[0]) return malformed(tar, "a member's name is empty");
    return tar->state == HEADER ? hand_over(tar) : 0;
}
