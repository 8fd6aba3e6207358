/* libFuzzer: the tar parser, fed at once, in odd pieces, and with data skipped. The three must tell the same story, every member must hold
 * what tar.h promises, and the lister must list them all.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "hold.h"
#include "lister.h"
#include "tar.h"
#include "tar_mutator.h"

struct story {
    uint64_t hash, data_left;
    size_t input_size;
    int open; /* a member has begun and is not done */
    int skips;
    unsigned members;
};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void tell(struct story *story, const void *bytes, size_t size) {
    for (const unsigned char *at = bytes; size--; at++) story->hash = (story->hash ^ *at) * 0x100000001b3ull;
}


static int on_member(void *self, const struct tar_member *m) {
    struct story *story = self;
    HOLD(!story->open);
    story->open = 1;
    story->members++;
    HOLD(m->kind >= TAR_FILE && m->kind <= TAR_FIFO);
    HOLD(m->name && *m->name && m->link);
    HOLD(m->mode <= 07777 && m->uid <= TAR_ID_MAX && m->gid <= TAR_ID_MAX && m->mtime_ns < 1000000000u);
    HOLD(m->size <= TAR_SIZE_MAX && m->stored <= TAR_SIZE_MAX);
    HOLD(m->offset % TAR_BLOCK == 0 && m->offset <= story->input_size && m->offset >= TAR_BLOCK);
    HOLD(m->kind == TAR_FILE || (!m->size && !m->stored && !m->sparse));
    HOLD(m->kind == TAR_SYMLINK || m->kind == TAR_HARDLINK || !*m->link);
    HOLD(m->sparse || (m->size == m->stored && !m->segment_count));
    HOLD(m->segment_count <= TAR_SEGMENTS_MAX && m->xattr_count <= TAR_XATTRS_MAX);
    uint64_t end = 0, total = 0;
    for (uint32_t n = 0; n < m->segment_count; n++) {
        HOLD(m->segments[n].length && m->segments[n].offset >= end && m->segments[n].offset <= m->size);
        HOLD(m->segments[n].length <= m->size - m->segments[n].offset);
        end = m->segments[n].offset + m->segments[n].length;
        total += m->segments[n].length;
        tell(story, &m->segments[n], sizeof m->segments[n]);
    }
    HOLD(!m->sparse || total == m->stored);
    for (uint32_t n = 0; n < m->xattr_count; n++) {
        HOLD(*m->xattrs[n].name);
        for (uint32_t other = 0; other < n; other++) HOLD(strcmp(m->xattrs[n].name, m->xattrs[other].name));
        tell(story, m->xattrs[n].name, strlen(m->xattrs[n].name) + 1);
        tell(story, m->xattrs[n].value, m->xattrs[n].size);
    }
    uint64_t numbers[] = {(uint64_t)m->kind, m->mode, m->uid, m->gid, (uint64_t)m->mtime, m->mtime_ns, m->size, m->stored, m->offset, m->major, m->minor};
    tell(story, numbers, sizeof numbers);
    tell(story, m->name, strlen(m->name) + 1);
    tell(story, m->link, strlen(m->link) + 1);
    story->data_left = m->stored;
    return 0;
}

static int on_data(void *self, const void *bytes, size_t size) {
    struct story *story = self;
    HOLD(story->open && size && size <= story->data_left);
    story->data_left -= size;
    if (!story->skips) tell(story, bytes, size);
    return 0;
}

static int on_done(void *self) {
    struct story *story = self;
    HOLD(story->open && (story->skips || !story->data_left));
    story->open = 0;
    return 0;
}

/* The whole story: a hash of all members (and data), and the failure if there was one. `step`: bytes fed at once; `skips`: leave data out. */
static int read_all(const uint8_t *data, size_t size, size_t step, int skips, struct story *story, struct layer_error *error) {
    *story = (struct story){.hash = 0xcbf29ce484222325ull, .input_size = size, .skips = skips};
    memset(error, 0, sizeof *error);
    struct tar_sink sink = {story, on_member, on_data, on_done};
    struct tar *tar = tar_new(&sink, error);
    HOLD(tar);
    int result = 0;
    for (size_t at = 0; at < size && !result;) {
        uint64_t left = tar_left(tar);
        if (skips && left) {
            size_t some = left < size - at ? (size_t)left : size - at;
            result = tar_skip(tar, some);
            at += some;
            continue;
        }
        size_t piece = step < size - at ? step : size - at;
        /* A copy of exactly that size, so that the sanitizer sees a read behind it. */
        uint8_t *copy = malloc(piece);
        HOLD(copy);
        memcpy(copy, data + at, piece);
        result = tar_feed(tar, copy, piece);
        free(copy);
        at += piece;
    }
    if (!result) result = tar_finish(tar);
    if (result) {
        HOLD(result == -1 && error->fault > FAULT_NONE && error->fault <= FAULT_DECLINED);
        HOLD(*error->text && strnlen(error->text, sizeof error->text) < sizeof error->text);
        for (const char *c = error->text; *c; c++) HOLD((unsigned char)*c >= ' ' && *c != 0x7f);
        HOLD(tar_feed(tar, data, size) == -1 || !size);
        HOLD(tar_finish(tar) == -1);
    } else {
        HOLD(!story->open && error->fault == FAULT_NONE);
    }
    tar_free(tar);
    return result;
}

/* The lister's records add up, and there are as many as there are members. */
static void list_all(const uint8_t *data, size_t size, unsigned members) {
    struct lister *lister = lister_new(members ? members : 1);
    HOLD(lister);
    int result = lister_feed(lister, data, size);
    HOLD(result <= 0); /* never full: there are no more */
    const void *taken;
    size_t left = lister_taken(lister, &taken);
    const char *at = taken;
    for (unsigned n = 0; n < members; n++) {
        struct listed listed;
        HOLD(left >= sizeof listed);
        memcpy(&listed, at, sizeof listed);
        uint64_t more = sizeof listed + (uint64_t)listed.name_size + listed.link_size + 16ull * listed.segment_count;
        for (uint32_t x = 0; x < listed.xattr_count; x++) {
            uint32_t sizes[2];
            HOLD(left >= sizeof listed + listed.name_size + listed.link_size + sizeof sizes);
            memcpy(sizes, at + (more - 16ull * listed.segment_count), sizeof sizes);
            more += sizeof sizes + (uint64_t)sizes[0] + sizes[1];
            HOLD(left >= more);
        }
        HOLD(left >= more && listed.name_size);
        at += more;
        left -= more;
    }
    HOLD(!left);
    lister_free(lister);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct story whole, pieces, skipped;
    struct layer_error error, again;
    int result = read_all(data, size, size ? size : 1, 0, &whole, &error);
    size_t step = 1 + (size_t)(whole.hash % 700);
    HOLD(read_all(data, size, step, 0, &pieces, &again) == result);
    HOLD(whole.hash == pieces.hash && whole.members == pieces.members && !strcmp(error.text, again.text));
    HOLD(read_all(data, size, TAR_BLOCK, 1, &skipped, &again) == result);
    HOLD(whole.members == skipped.members && !strcmp(error.text, again.text));
    list_all(data, size, whole.members);
    return 0;
}
