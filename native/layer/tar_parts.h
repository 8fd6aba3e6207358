/* What the parts of the tar parser share. */
#ifndef DOCKLESS_TAR_PARTS_H
#define DOCKLESS_TAR_PARTS_H

#include "pax.h"
#include "tar.h"

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

static inline int malformed(struct tar *tar, const char *why) {
    return layer_fail(tar->error, FAULT_MALFORMED, 0, "%s", why);
}

/* Whether an extended header waits for the member it describes. */
static inline int is_pending(const struct tar *tar) {
    return tar->buffers[BUFFER_PAX].seen || tar->buffers[BUFFER_NAME].seen || tar->buffers[BUFFER_LINK].seen;
}

/* All of these: 0, or -1 with the error filled in. */

/* tar.c */
int hand_over(struct tar *tar); /* the member is complete but for its data: tell the sink */
void behind_data(struct tar *tar);

/* tar_member.c */
int tar_number(struct tar *tar, const unsigned char *raw, size_t size, const char *what, int64_t *value);
int check_size(struct tar *tar, uint64_t size);
int begin_member(struct tar *tar); /* from the header in the block */
int go_on_map(struct tar *tar);    /* a block behind the header that is a part of the sparse map */

#endif
