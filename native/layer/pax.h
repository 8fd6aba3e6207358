/* PAX extended headers: "<length> <key>=<value>\n" records, as far as a layer needs them. Internal to the tar parser. */
#ifndef DOCKLESS_PAX_H
#define DOCKLESS_PAX_H

#include "tar.h"

/* A value inside the header's content, which is kept: NUL-terminated, `at` is NULL where the record is absent. */
struct slice {
    char *at;
    size_t size;
};

enum pax_field {
    PAX_PATH, PAX_LINKPATH, PAX_SIZE, PAX_UID, PAX_GID, PAX_MTIME,
    PAX_SPARSE_NAME, PAX_SPARSE_REALSIZE, PAX_SPARSE_SIZE, PAX_SPARSE_MAJOR, PAX_SPARSE_MINOR, PAX_SPARSE_MAP, PAX_FIELDS
};

struct segments {
    struct tar_segment *items;
    uint32_t count, capacity;
};

struct pax {
    struct slice fields[PAX_FIELDS];
    int sparse;   /* some GNU.sparse key is there */
    int half;     /* sparse 0.0: an offset without its length yet */
    int unpaired; /* sparse 0.0: offsets and lengths do not alternate */
    uint32_t xattr_count;
    struct tar_xattr xattrs[TAR_XATTRS_MAX];
    uint8_t escaped[TAR_XATTRS_MAX]; /* the xattr came in libarchive's spelling */
};

/* Reads the records; `content` has room for one more byte, is changed and is pointed into. Sparse 0.0 goes to `segments`. 0 or -1. */
int pax_parse(struct pax *pax, char *content, size_t size, struct segments *segments, struct layer_error *error);
/* Refuses a global header that says what readers apply differently. Changes `content`. */
int pax_check_global(char *content, size_t size, struct layer_error *error);

int pax_decimal(const char *text, size_t size, uint64_t *value, struct layer_error *error); /* too large: UINT64_MAX */
int pax_time(const struct slice *text, int64_t *seconds, uint32_t *ns, struct layer_error *error);
int segments_add(struct segments *segments, uint64_t offset, uint64_t length, struct layer_error *error);

#endif
