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

#include "tar_parts.h"

static int torn(struct tar *tar) {
    return malformed(tar, "it ends in the middle of a member");
}

/* -- from one member to the next -------------------------------------------------------------------------------------------------------- */

static void forget_extended(struct tar *tar) {
    for (int n = 0; n < BUFFERS; n++) tar->buffers[n].seen = 0;
    memset(tar->pax.fields, 0, sizeof tar->pax.fields);
    tar->pax.sparse = tar->pax.half = tar->pax.unpaired = 0;
    tar->pax.xattr_count = 0;
    tar->segments.count = 0;
}

void behind_data(struct tar *tar) {
    forget_extended(tar);
    tar->left = tar->padding;
    tar->state = tar->padding ? PADDING : HEADER;
}

int hand_over(struct tar *tar) {
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
    if (tar_number(tar, tar->block + 124, 12, "size", &size) || check_size(tar, (uint64_t)size)) return -1;
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

static int checksum_is_right(struct tar *tar) {
    int64_t expected, sum = 8 * ' ', high = 0;
    if (tar_number(tar, tar->block + 148, 8, "checksum", &expected)) return -1;
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

static int whole_block(struct tar *tar) {
    switch (tar->state) {
    case SECOND:
        if (!is_zero(tar->block, TAR_BLOCK)) return malformed(tar, "a lone zero block stands between its members");
        return end_of_archive(tar);
    case OLD_MAP: case MAP: return go_on_map(tar);
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
    case SECOND:
        result = is_zero(tar->block, tar->have) ? end_of_archive(tar) : malformed(tar, "a lone zero block stands between its members");
        break;
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
