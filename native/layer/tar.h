/* A strict, bounded tar parser that is fed: bytes go in as they come, members and their data come out through a sink.
 *
 *   tar_feed(bytes) ──► headers, PAX, GNU, sparse maps ──► sink.member(), sink.data() … sink.data(), sink.done()
 *
 * Who reads a layer from a stranger must not trust a size before it is checked, so extended headers are bounded before they are kept, and
 * where GNU tar and Go's archive/tar would see different members the archive is refused.
 */
#ifndef DOCKLESS_TAR_H
#define DOCKLESS_TAR_H

#include <stddef.h>
#include <stdint.h>

#include "fault.h"

#define TAR_BLOCK 512u
#define TAR_EXTENDED_MAX (1u << 20)
#define TAR_SEGMENTS_MAX 65536u
#define TAR_XATTRS_MAX 1024u
#define TAR_SIZE_MAX (1ull << 44)
#define TAR_ID_MAX 0xfffffffeu

enum tar_kind { TAR_FILE, TAR_HARDLINK, TAR_SYMLINK, TAR_CHAR, TAR_BLOCKDEV, TAR_DIRECTORY, TAR_FIFO };

struct tar_xattr {
    const char *name; /* NUL-terminated */
    const char *value;
    uint32_t size;
};

struct tar_segment {
    uint64_t offset, length;
};

/* Strings are NUL-terminated and have no NUL inside. All of it lives until the sink's done() returns. */
struct tar_member {
    int kind;
    const char *name;
    const char *link;
    uint32_t mode, uid, gid;
    int64_t mtime;    /* seconds */
    uint32_t mtime_ns;
    uint64_t size;    /* the file's length as it will be */
    uint64_t stored;  /* bytes of it in the archive: less where it is sparse */
    uint64_t offset;  /* of the first stored byte, from the archive's beginning */
    uint32_t major, minor;
    uint32_t xattr_count;
    const struct tar_xattr *xattrs;
    int sparse;       /* segments hold its data, in ascending order; segment_count may be 0 */
    uint32_t segment_count;
    const struct tar_segment *segments;
};

/* Each returns 0, or anything else to stop; then it has filled in the error that tar_new() was given. */
struct tar_sink {
    void *self;
    int (*member)(void *self, const struct tar_member *member);
    int (*data)(void *self, const void *bytes, size_t size); /* stored bytes of the last member, in order */
    int (*done)(void *self);                                 /* the last member's data is complete (called for every member) */
};

struct tar;

struct tar *tar_new(const struct tar_sink *sink, struct layer_error *error);
int tar_feed(struct tar *tar, const void *bytes, size_t size); /* 0, or -1 with the error filled in; bytes behind the end are ignored */

/* Data of the last member that has not been fed yet. A caller that can seek may leave out up to as many bytes and say so; the sink gets none of them. */
uint64_t tar_left(const struct tar *tar);
int tar_skip(struct tar *tar, uint64_t size);
int tar_finish(struct tar *tar);                               /* after the last byte: a torn archive fails here */
int tar_ended(const struct tar *tar);                          /* whether the end of the archive has been seen */
void tar_free(struct tar *tar);

#endif
