/* What the parts of the index share: the tree as it is kept in memory, about 100 bytes and the name for each entry, and its errors. */
#ifndef DOCKLESS_EROFS_TREE_H
#define DOCKLESS_EROFS_TREE_H

#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

#include "erofs.h"

#define EROFS_NAME_MAX 255u
#define EROFS_PATH_MAX 4096u
#define EROFS_PARTS_MAX (EROFS_PATH_MAX / 2)
#define EROFS_MEMORY_MAX (96u << 20) /* of all trees at a time, some 800,000 entries; a layer that needs more is declined */
#define EROFS_DEVICES_MAX 256u /* as many as an inode can name */
#define EROFS_ROOT 1u                /* the root's inode; 0 is none */

/* A name in a directory. It stays when what it names is replaced or removed, so a name has one entry however often the archive lists it. */
struct entry {
    uint32_t directory; /* inode */
    uint32_t next;      /* in the same directory: newest first, sorted by name once laid out */
    uint32_t inode;     /* 0: nothing is there any more */
    uint32_t name;      /* in the arena */
    uint32_t hash;
    uint8_t length;
};

enum {
    INODE_OPAQUE = 1,
    INODE_LISTED = 2,
    INODE_IMPLIED = 4, /* a directory that only entries below it tell of, and that may show what lies below */
};

struct inode {
    uint64_t size; /* files: bytes. links: of the target. directories: of their entries, once laid out */
    int64_t mtime;
    uint32_t mtime_ns;
    uint32_t uid, gid;
    uint32_t links;  /* once laid out */
    uint32_t xattrs; /* in the arena: a length, then entries as EROFS has them. 0: none */
    uint32_t where;  /* files: first block in the tar. links: target in the arena. devices: number. directories: first entry */
    uint32_t parent; /* of a directory */
    uint32_t next;   /* laid out after this one */
    uint32_t slot;   /* its place in the index, in units of 32 bytes; 0: none yet */
    uint32_t block;  /* of its data, where that is not inline */
    uint16_t mode;
    uint8_t flags;
    uint8_t device; /* files: of the tar that has the data */
};

enum warning {
    WARN_OBEYED, WARN_WHITEOUT, WARN_EPERM, WARN_EACCES, WARN_EOPNOTSUPP, WARN_EINVAL, WARN_ERANGE, WARN_END,
};

struct part {
    const char *at;
    size_t length;
};

struct bytes {
    unsigned char *at;
    size_t used, room;
};

struct erofs_index {
    struct layer_error error;
    struct tar *tar;
    struct inode *inodes;
    struct entry *entries;
    uint32_t *slots; /* hash table of entries */
    uint32_t inode_count, inode_room, entry_count, entry_room, slot_mask;
    struct bytes arena; /* names, link targets, xattrs */
    struct bytes scratch;
    uint64_t seed, fed, data_end;
    uint32_t device_blocks[EROFS_DEVICES_MAX], device_count; /* of the tars */
    size_t reserved;
    uint64_t size, size_max, members, members_max;
    uint32_t whiteout; /* the inode that all whiteouts share */
    int base, looks_below; /* looks_below: whether there is or was something to be looked up at the end */
    uint32_t warned[WARN_END];
    char examples[WARN_END][160];
};

/* erofs.c */
int erofs_decline(struct erofs_index *index, const char *name, const char *why); /* always -1 */
void erofs_warn(struct erofs_index *index, enum warning why, const char *name, const char *of);

/* erofs.c: `size` bytes in the arena; their offset, 0 with an error */
uint32_t erofs_keep(struct erofs_index *index, const void *bytes, size_t size);
int erofs_grow(struct erofs_index *index, struct bytes *bytes, size_t more);

/* erofs.c: a new inode, 0 with an error; what a directory has as a name, 0 for nothing; give a name to an inode, or to none (0) */
uint32_t erofs_new_inode(struct erofs_index *index, uint16_t mode);
uint32_t erofs_lookup(struct erofs_index *index, uint32_t directory, struct part name);
int erofs_set_name(struct erofs_index *index, uint32_t directory, struct part name, uint32_t inode);

/* erofs_xattr.c */
int erofs_xattr_begin(struct erofs_index *index);
int erofs_xattr_add(struct erofs_index *index, struct inode *inode, const char *name, const void *value, size_t size, const char *of);
int erofs_xattr_end(struct erofs_index *index, uint32_t inode, const char *of);

/* erofs_below.c */
int erofs_from_below(struct erofs_index *index, const int *roots, int count); /* top first */

/* erofs_layout.c */
int erofs_write(struct erofs_index *index, int fd);

#endif
