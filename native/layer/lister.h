/* A list of an archive's members, for who wants to find files in it. */
#ifndef DOCKLESS_LISTER_H
#define DOCKLESS_LISTER_H

#include "fault.h"
#include "tar.h"

struct lister;

/* What lister_taken() holds of each member; name, link, xattrs (two uint32_t lengths, name, value) and segments (two uint64_t) follow it. */
struct listed {
    uint32_t kind, mode, uid, gid;
    int64_t mtime;
    uint32_t mtime_ns, sparse;
    uint64_t size, stored, offset;
    uint32_t major, minor, name_size, link_size, xattr_count, segment_count;
};

struct lister *lister_new(uint64_t members_max);
int lister_feed(struct lister *lister, const void *bytes, size_t size); /* 0; 1: members_max are there, no more is read; -1: see the error */
uint64_t lister_left(const struct lister *lister);                      /* see tar_left() */
int lister_skip(struct lister *lister, uint64_t size);
int lister_finish(struct lister *lister);
int lister_ended(const struct lister *lister); /* see tar_ended() */
const struct layer_error *lister_error(const struct lister *lister);
size_t lister_taken(struct lister *lister, const void **bytes); /* the members since the last call; good until the next call of anything */
void lister_free(struct lister *lister);

#endif
