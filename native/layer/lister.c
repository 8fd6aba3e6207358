/* Members as records in one growing piece of memory: Python takes them after each feed, so it holds no more than one feed's worth. */
#include "lister.h"

#include <stdlib.h>
#include <string.h>

struct lister {
    struct tar *tar;
    struct layer_error error;
    uint64_t count, members_max;
    int full;
    char *bytes;
    size_t size, capacity;
};

static int append(struct lister *lister, const void *bytes, size_t size) {
    if (size > lister->capacity - lister->size) {
        size_t capacity = lister->capacity ? lister->capacity : 65536;
        while (size > capacity - lister->size) capacity *= 2;
        char *grown = realloc(lister->bytes, capacity);
        if (!grown) return layer_fail(&lister->error, FAULT_SYSTEM, 12, "out of memory");
        lister->bytes = grown;
        lister->capacity = capacity;
    }
    if (size) memcpy(lister->bytes + lister->size, bytes, size);
    lister->size += size;
    return 0;
}

static int on_member(void *self, const struct tar_member *m) {
    struct lister *lister = self;
    if (lister->count == lister->members_max) {
        lister->full = 1;
        return -1;
    }
    lister->count++;
    struct listed listed = {
        .kind = (uint32_t)m->kind, .mode = m->mode, .uid = m->uid, .gid = m->gid, .mtime = m->mtime, .mtime_ns = m->mtime_ns,
        .sparse = (uint32_t)m->sparse, .size = m->size, .stored = m->stored, .offset = m->offset, .major = m->major, .minor = m->minor,
        .name_size = (uint32_t)strlen(m->name), .link_size = (uint32_t)strlen(m->link),
        .xattr_count = m->xattr_count, .segment_count = m->segment_count,
    };
    if (append(lister, &listed, sizeof listed) || append(lister, m->name, listed.name_size) || append(lister, m->link, listed.link_size)) return -1;
    for (uint32_t n = 0; n < m->xattr_count; n++) {
        const struct tar_xattr *x = &m->xattrs[n];
        uint32_t sizes[2] = {(uint32_t)strlen(x->name), x->size};
        if (append(lister, sizes, sizeof sizes) || append(lister, x->name, sizes[0]) || append(lister, x->value, sizes[1])) return -1;
    }
    return append(lister, m->segments, m->segment_count * sizeof *m->segments);
}

static int on_data(void *self, const void *bytes, size_t size) {
    (void)self, (void)bytes, (void)size;
    return 0;
}

static int on_done(void *self) {
    (void)self;
    return 0;
}

struct lister *lister_new(uint64_t members_max) {
    struct lister *lister = calloc(1, sizeof *lister);
    if (!lister) return NULL;
    struct tar_sink sink = {lister, on_member, on_data, on_done};
    lister->members_max = members_max;
    lister->tar = tar_new(&sink, &lister->error);
    if (lister->tar) return lister;
    free(lister);
    return NULL;
}

int lister_feed(struct lister *lister, const void *bytes, size_t size) {
    if (lister->full) return 1;
    int result = tar_feed(lister->tar, bytes, size);
    return lister->full ? 1 : result;
}

uint64_t lister_left(const struct lister *lister) {
    return tar_left(lister->tar);
}

int lister_skip(struct lister *lister, uint64_t size) {
    return lister->full ? 1 : tar_skip(lister->tar, size);
}

int lister_finish(struct lister *lister) {
    return lister->full ? 1 : tar_finish(lister->tar);
}

int lister_ended(const struct lister *lister) {
    return lister->full || tar_ended(lister->tar);
}

const struct layer_error *lister_error(const struct lister *lister) {
    return &lister->error;
}

size_t lister_taken(struct lister *lister, const void **bytes) {
    size_t size = lister->size;
    *bytes = lister->bytes;
    lister->size = 0;
    return size;
}

void lister_free(struct lister *lister) {
    if (!lister) return;
    tar_free(lister->tar);
    free(lister->bytes);
    free(lister);
}
