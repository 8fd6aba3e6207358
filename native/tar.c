/* The tar parser: v7, ustar, star, PAX and GNU, with every sparse format.
 *
 *   HEADER ─► EXTENDED ─► HEADER … ─► (OLD_MAP | MAP) ─► member() ─► DATA ─► done() ─► PADDING ─► HEADER … ─► SECOND ─► END
 *
 * It refuses where GNU tar and Go's archive/tar would disagree: a PAX path and a GNU long name for one member, two extended headers of a kind in
 * a row, long names and numbers without a clear end or beginning, data behind a directory or device, one zero block alone, global headers that
 * rename, resize or re-own. A PAX size belongs to the member it describes and never to an extended header in between (CVE-2025-62518,
 * CVE-2026-53655).
 *
 * Two zero blocks, or the end of the stream at a header's place, end the archive; anything behind is not looked at, as in GNU tar and Go.
 *
 * https://www.gnu.org/software/tar/manual/html_node/Tar-Internals.html
 */
#include "tar.h"

#include <stdlib.h>
#include <string.h>

#include "pax.h"

enum state { HEADER, SECOND, EXTENDED, EXTENDED_PADDING, OLD_MAP, MAP, DATA, SKIPPED, PADDING, END, FAILED };

/* Content of extended headers, kept until the member they describe is over; bounded by TAR_EXTENDED_MAX. */
struct buffer {
    char *data;
    size_t size, capacity;
    int seen;
};

enum { BUFFER_PAX, BUFFER_GLOBAL, BUFFER_NAME, BUFFER_LINK, BUFFERS };

struct tar {
    struct tar_sink sink;
    struct layer_error *error;
    enum state state;
    uint64_t position; /* bytes taken so far */
    uint64_t left;     /* of the data or the extended header */
    uint32_t padding;
    uint32_t have; /* bytes of the block below */
    unsigned char block[TAR_BLOCK];
    struct buffer buffers[BUFFERS];
    struct buffer *filling;
    struct pax pax;
    struct segments segments;
    struct tar_member member;
    char name[260], link[104]; /* from the header itself */
    /* A map of sparse 1.0, read digit by digit. */
    uint64_t map_number, map_offset, map_count, map_lines;
    uint32_t map_digits;
};

static int malformed(struct tar *tar, const char *why) {
    return layer_fail(tar->error, FAULT_MALFORMED, 0, "%s", why);
}

static int torn(struct tar *tar) {
    return malformed(tar, "it ends in the middle of a member");
}

/* -- numbers ------------------------------------------------------------------------------------------------------------------------- */

/* Octal digits between spaces and NULs, or base 256 in two's complement where the first bit is set. */
static int number(struct tar *tar, const unsigned char *raw, size_t size, const char *what, int64_t *value) {
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
    if (number(tar, tar->block + at, size, what, &found)) return -1;
    *value = (uint64_t)found;
    return 0;
}

static int check_size(struct tar *tar, uint64_t size) {
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

static int checksum_is_right(struct tar *tar) {
    int64_t expected, sum = 8 * ' ', high = 0;
    if (number(tar, tar->block + 148, 8, "checksum", &expected)) return -1;
    for (size_t at = 0; at < TAR_BLOCK; at++) {
        sum += tar->block[at];
        high += tar->block[at] >> 7;
    }
    for (size_t at = 148; at < 156; at++) {
        sum -= tar->block[at];
        high -= tar->block[at] >> 7;
    }
    /* Some old writers added signed bytes. */
    return expected == sum || expected == sum - 256 * high ? 0 : malformed(tar, "a header's checksum is wrong");
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
        if (number(tar, raw, 12, "sparse map", &offset) || number(tar, raw + 12, 12, "sparse map", &length)) return -1;
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

/* PAX 0.0 (repeated keys, read already), 0.1 (one map key), 1.0 (a map in front of the data). */
static int pax_sparse(struct tar *tar) {
    const struct slice *fields = tar->pax.fields;
    struct tar_member *m = &tar->member;
    const struct slice *size = fields[PAX_SPARSE_REALSIZE].at ? &fields[PAX_SPARSE_REALSIZE] : &fields[PAX_SPARSE_SIZE];
    if (fields[PAX_SPARSE_NAME].size) m->name = fields[PAX_SPARSE_NAME].at;
    if (size->at && (pax_decimal(size->at, size->size, &m->size, tar->error) || check_size(tar, m->size))) return -1;
    const char *major = fields[PAX_SPARSE_MAJOR].at, *minor = fields[PAX_SPARSE_MINOR].at;
    if (major && minor && !strcmp(major, "1") && !strcmp(minor, "0")) {
        if (m->stored < TAR_BLOCK) return malformed(tar, "a sparse map is torn or too long");
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

/* -- one member ---------------------------------------------------------------------------------------------------------------------- */

static void forget_extended(struct tar *tar) {
    for (int n = 0; n < BUFFERS; n++) tar->buffers[n].seen = 0;
    memset(tar->pax.fields, 0, sizeof tar->pax.fields);
    tar->pax.sparse = tar->pax.half = tar->pax.unpaired = 0;
    tar->pax.xattr_count = 0;
    tar->segments.count = 0;
}

static void behind_data(struct tar *tar) {
    forget_extended(tar);
    tar->left = tar->padding;
    tar->state = tar->padding ? PADDING : HEADER;
}

static int hand_over(struct tar *tar) {
    struct tar_member *m = &tar->member;
    m->offset = tar->position;
    tar->left = m->stored;
    tar->state = DATA;
    if (tar->sink.member(tar->sink.self, m)) return -1;
    if (m->stored) return 0;
    if (tar->sink.done(tar->sink.self)) return -1;
    behind_data(tar);
    return 0;
}

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
    return longer->seen && longer->data[0] ? longer->data : own;
}

static int device(struct tar *tar, size_t at, uint32_t *value) {
    int64_t found;
    if (number(tar, tar->block + at, 8, "device", &found)) return -1;
    if (found < 0 || found > UINT32_MAX) return malformed(tar, "a header's device is out of range");
    *value = (uint32_t)found;
    return 0;
}

static int read_times(struct tar *tar) {
    struct tar_member *m = &tar->member;
    const struct slice *text = &tar->pax.fields[PAX_MTIME];
    if (text->at ? pax_time(text, &m->mtime, &m->mtime_ns, tar->error) : number(tar, tar->block + 136, 12, "mtime", &m->mtime)) return -1;
    /* As many nanoseconds as fit 64 bits: 1677 to 2262. */
    if (m->mtime <= -9223372036 || m->mtime >= 9223372036)
        return layer_fail(tar->error, FAULT_MALFORMED, 0, "the time of %s is out of range", show(m->name).text);
    return 0;
}

static int is_pending(const struct tar *tar) {
    return tar->buffers[BUFFER_PAX].seen || tar->buffers[BUFFER_NAME].seen || tar->buffers[BUFFER_LINK].seen;
}

static const char *const KINDS[] = {"file", "hardlink", "symlink", "char", "block", "directory", "fifo"};

static int begin_member(struct tar *tar) {
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
        stored = tar->padding = 0; /* some writers repeat the size of a hard link's file */
    }
    m->size = m->stored = stored;
    if (number(tar, block + 100, 8, "mode", &mode) || owner(tar, PAX_UID, 108, &m->uid) || owner(tar, PAX_GID, 116, &m->gid) || read_times(tar))
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
        if (number(tar, block + 483, 12, "real size", &size) || check_size(tar, (uint64_t)size)) return -1;
        m->size = (uint64_t)size;
        tar->segments.count = 0;
        if (old_map(tar, block + 386, 4, block[482])) return -1;
        if (block[482]) tar->state = OLD_MAP;
        else if (check_map(tar)) return -1;
    } else if (tar->pax.sparse && pax_sparse(tar)) {
        return -1;
    }
    if (!m->name[0]) return malformed(tar, "a member's name is empty");
    return tar->state == HEADER ? hand_over(tar) : 0;
}

/* -- extended headers ---------------------------------------------------------------------------------------------------------------- */

static int end_extended(struct tar *tar) {
    struct buffer *buffer = tar->filling;
    tar->state = HEADER;
    buffer->data[buffer->size] = 0;
    if (buffer == &tar->buffers[BUFFER_GLOBAL]) return pax_check_global(buffer->data, buffer->size, tar->error);
    if (buffer == &tar->buffers[BUFFER_PAX]) return pax_parse(&tar->pax, buffer->data, buffer->size, &tar->segments, tar->error);
    return buffer->data[0] ? 0 : malformed(tar, "a GNU long name is empty");
}

static int begin_extended(struct tar *tar, int which) {
    struct buffer *buffer = &tar->buffers[which];
    int64_t size;
    if (which != BUFFER_GLOBAL && buffer->seen)
        return malformed(tar, which == BUFFER_PAX ? "it has two PAX headers for one member" : "it has two GNU long names for one member");
    if (number(tar, tar->block + 124, 12, "size", &size) || check_size(tar, (uint64_t)size)) return -1;
    if (size > TAR_EXTENDED_MAX)
        return layer_fail(tar->error, FAULT_MALFORMED, 0, "an extended header is %lld bytes long, more than %u", (long long)size, TAR_EXTENDED_MAX);
    if ((size_t)size + 1 > buffer->capacity) {
        free(buffer->data);
        buffer->capacity = (size_t)size + 1 > 4096 ? (size_t)size + 1 : 4096;
        buffer->data = malloc(buffer->capacity);
        if (!buffer->data) {
            buffer->capacity = 0;
            return layer_fail(tar->error, FAULT_SYSTEM, 12, "out of memory");
        }
    }
    buffer->size = 0;
    buffer->seen = 1;
    tar->filling = buffer;
    tar->left = (uint64_t)size;
    tar->padding = (uint32_t)(-(uint64_t)size % TAR_BLOCK);
    tar->state = EXTENDED;
    return size ? 0 : end_extended(tar);
}

static int is_zero(const unsigned char *bytes, size_t size) {
    while (size && !*bytes) bytes++, size--;
    return !size;
}

/* -- the machine --------------------------------------------------------------------------------------------------------------------- */

static int end_of_archive(struct tar *tar) {
    if (is_pending(tar)) return malformed(tar, "it ends after an extended header");
    tar->state = END;
    return 0;
}

static int whole_block(struct tar *tar) {
    switch (tar->state) {
    case SECOND:
        if (!is_zero(tar->block, TAR_BLOCK)) return malformed(tar, "a lone zero block stands between its members");
        return end_of_archive(tar);
    case OLD_MAP:
        if (old_map(tar, tar->block, 21, tar->block[504])) return -1;
        if (tar->block[504]) return 0;
        return check_map(tar) ? -1 : hand_over(tar);
    case MAP: {
        if (tar->member.stored < TAR_BLOCK) return malformed(tar, "a sparse map is torn or too long");
        tar->member.stored -= TAR_BLOCK;
        int complete = map_block(tar);
        if (complete < 0) return -1;
        if (!complete) return tar->member.stored >= TAR_BLOCK ? 0 : malformed(tar, "a sparse map is torn or too long");
        return check_map(tar) ? -1 : hand_over(tar);
    }
    default:
        if (is_zero(tar->block, TAR_BLOCK)) {
            tar->state = SECOND;
            return 0;
        }
        if (checksum_is_right(tar)) return -1;
        switch (tar->block[156]) {
        case 'x': return begin_extended(tar, BUFFER_PAX);
        case 'g': return begin_extended(tar, BUFFER_GLOBAL);
        case 'L': return begin_extended(tar, BUFFER_NAME);
        case 'K': return begin_extended(tar, BUFFER_LINK);
        default: return begin_member(tar);
        }
    }
}

/* `size` bytes of what is left have gone by; on to the next state where none is. */
static int advance(struct tar *tar, uint64_t size) {
    tar->left -= size;
    if (tar->left) return 0;
    switch (tar->state) {
    case EXTENDED:
        if (tar->padding) {
            tar->left = tar->padding;
            tar->state = EXTENDED_PADDING;
            return 0;
        }
        return end_extended(tar);
    case EXTENDED_PADDING: return end_extended(tar);
    case DATA:
        if (tar->sink.done(tar->sink.self)) return -1;
        behind_data(tar);
        return 0;
    case SKIPPED: behind_data(tar); return 0;
    default: tar->state = HEADER; return 0;
    }
}

/* A GNU long name without a NUL: to Go its size ends it, to GNU tar the first NUL behind. */
static int runs_on(const struct buffer *buffer, const struct tar *tar) {
    return (buffer == &tar->buffers[BUFFER_NAME] || buffer == &tar->buffers[BUFFER_LINK]) && !memchr(buffer->data, 0, buffer->size);
}

static int step(struct tar *tar, const unsigned char *bytes, size_t size) {
    if (tar->state == HEADER || tar->state == SECOND || tar->state == OLD_MAP || tar->state == MAP) {
        memcpy(tar->block + tar->have, bytes, size);
        tar->have += (uint32_t)size;
        if (tar->have < TAR_BLOCK) return 0;
        tar->have = 0;
        return whole_block(tar);
    }
    if (tar->state == EXTENDED) {
        memcpy(tar->filling->data + tar->filling->size, bytes, size);
        tar->filling->size += size;
    } else if (tar->state == EXTENDED_PADDING && tar->left == tar->padding && bytes[0] && runs_on(tar->filling, tar)) {
        return malformed(tar, "a GNU long name has no end");
    } else if (tar->state == DATA && tar->sink.data(tar->sink.self, bytes, size)) {
        return -1;
    }
    return advance(tar, size);
}

int tar_feed(struct tar *tar, const void *bytes, size_t size) {
    const unsigned char *at = bytes;
    if (tar->state == FAILED) return -1;
    while (size && tar->state != END) {
        int in_block = tar->state == HEADER || tar->state == SECOND || tar->state == OLD_MAP || tar->state == MAP;
        uint64_t wanted = in_block ? TAR_BLOCK - tar->have : tar->left;
        size_t take = wanted < size ? (size_t)wanted : size;
        tar->position += take;
        if (step(tar, at, take)) {
            tar->state = FAILED;
            return -1;
        }
        at += take;
        size -= take;
    }
    return 0;
}

uint64_t tar_left(const struct tar *tar) {
    return tar->state == DATA || tar->state == SKIPPED ? tar->left : 0;
}

int tar_skip(struct tar *tar, uint64_t size) {
    if (size > tar_left(tar)) return malformed(tar, "more was skipped than there is");
    tar->position += size;
    if (!size || !advance(tar, size)) return 0;
    tar->state = FAILED;
    return -1;
}

int tar_finish(struct tar *tar) {
    int result = 0;
    switch (tar->state) {
    case FAILED: return -1;
    case END: return 0;
    case HEADER: result = tar->have ? torn(tar) : end_of_archive(tar); break;
    case SECOND: result = is_zero(tar->block, tar->have) ? end_of_archive(tar) : malformed(tar, "a lone zero block stands between its members"); break;
    case PADDING: result = end_of_archive(tar); break; /* some writers leave it out behind the very last member */
    default: result = torn(tar);
    }
    if (result) tar->state = FAILED;
    return result;
}

int tar_ended(const struct tar *tar) {
    return tar->state == END;
}

struct tar *tar_new(const struct tar_sink *sink, struct layer_error *error) {
    struct tar *tar = calloc(1, sizeof *tar);
    if (!tar) return NULL;
    tar->sink = *sink;
    tar->error = error;
    return tar;
}

void tar_free(struct tar *tar) {
    if (!tar) return;
    for (int n = 0; n < BUFFERS; n++) free(tar->buffers[n].data);
    free(tar->segments.items);
    free(tar);
}
