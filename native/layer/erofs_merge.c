/* Several layers in one index: the tree that overlayfs would show of them, each file's data in its own layer's tar.
 *
 *   index of the bottom layer ─┐
 *   index of the next one     ─┼─► one tree in memory, layer laid over layer ──► index file     mount: source=index, device=tar, device=tar, …
 *   …                         ─┘
 *
 * Whiteouts and opaque directories are carried out and not written. What two names of a layer share (hard links) they share here. The sources are
 * indexes that erofs_layout.c wrote; whatever is not as that writes it is damage, and declined.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "erofs_disk.h"
#include "erofs_tree.h"

struct source {
    const unsigned char *at;
    uint64_t size;
    uint32_t *made; /* by place: the inode here */
    uint8_t device;
};

/* An inode of a source, and the parts that belong to it. */
struct found {
    struct disk_inode disk;
    uint64_t end; /* of the inode and its xattrs */
    const unsigned char *xattrs;
    uint32_t xattrs_size;
};

/* A directory of a source that is to be laid over one of the tree. */
struct pair {
    uint32_t directory;
    uint64_t nid;
};

struct pairs {
    struct pair *at;
    size_t count, room;
};

static int damaged(struct erofs_index *index) {
    return layer_fail(&index->error, FAULT_DECLINED, 0, "the index of a layer is damaged");
}

static int no_memory(struct erofs_index *index) {
    return layer_fail(&index->error, FAULT_SYSTEM, ENOMEM, "no memory for the index of the layers");
}

/* -- reading a source ----------------------------------------------------------------------------------------------------------------- */

static const unsigned char *part_of(const struct source *source, uint64_t at, uint64_t size) {
    return at <= source->size && size <= source->size - at ? source->at + at : NULL;
}

static int read_inode(struct erofs_index *index, const struct source *source, uint64_t nid, struct found *found) {
    const unsigned char *at = nid < source->size / SLOT ? part_of(source, nid * SLOT, sizeof found->disk) : NULL;
    if (!at) return damaged(index);
    memcpy(&found->disk, at, sizeof found->disk);
    found->end = nid * SLOT + sizeof found->disk;
    found->xattrs_size = 0;
    if (!(found->disk.format & EXTENDED)) return damaged(index);
    if (!found->disk.xattr_units) return 0;
    found->xattrs_size = (found->disk.xattr_units - 1u) * 4;
    found->xattrs = part_of(source, found->end + sizeof(struct disk_xattrs), found->xattrs_size);
    found->end += sizeof(struct disk_xattrs) + found->xattrs_size;
    return found->xattrs ? 0 : damaged(index);
}

/* The bytes of a directory or a link from `at` on, `wanted` of them at most, not beyond a block's end: blocks first, then what lies behind the inode. */
static const unsigned char *content(const struct source *source, const struct found *found, uint64_t at, uint64_t wanted) {
    uint64_t tail = found->disk.format >> 1 == LAYOUT_INLINE ? found->disk.size % BLOCK : 0, whole = found->disk.size - tail;
    return at < whole ? part_of(source, (uint64_t)found->disk.where * BLOCK + at, wanted) : part_of(source, found->end + at - whole, wanted);
}

/* -- the tree ------------------------------------------------------------------------------------------------------------------------- */

/* Owner, mode, times and xattrs. *opaque: whether it is marked so, which is not taken over. */
static int set_meta(struct erofs_index *index, uint32_t number, const struct found *found, int *opaque) {
    static const char MARK[] = "overlay.opaque";
    struct inode *inode = &index->inodes[number];
    const struct disk_inode *disk = &found->disk;
    inode->mode = disk->mode;
    inode->uid = disk->uid;
    inode->gid = disk->gid;
    inode->mtime = disk->mtime;
    inode->mtime_ns = disk->mtime_ns;
    inode->xattrs = 0;
    *opaque = 0;
    uint32_t kept = 0, offset = found->xattrs_size ? erofs_keep(index, &kept, sizeof kept) : 0;
    if (found->xattrs_size && !offset) return -1;
    for (uint32_t at = 0; at < found->xattrs_size;) {
        const unsigned char *entry = found->xattrs + at; /* length of the name, which prefix, length of the value, name, value */
        if (found->xattrs_size - at < 4) return damaged(index);
        uint32_t size = (4u + entry[0] + entry[2] + (uint32_t)entry[3] * 256 + 3) / 4 * 4;
        if (size > found->xattrs_size - at) return damaged(index);
        int is_mark = entry[1] == 4 && entry[0] == sizeof MARK - 1 && memcmp(entry + 4, MARK, sizeof MARK - 1) == 0;
        if (is_mark) *opaque = 1;
        else if (!erofs_keep(index, entry, size)) return -1;
        else kept += size;
        at += size;
    }
    if (kept) memcpy(index->arena.at + offset, &kept, sizeof kept);
    index->inodes[number].xattrs = kept ? offset : 0;
    return 0;
}

static int set_file(struct erofs_index *index, const struct source *source, const struct found *found, struct inode *inode) {
    struct disk_chunk chunk;
    inode->size = found->disk.size;
    inode->device = source->device;
    if (!inode->size) return 0;
    const unsigned char *at = part_of(source, (found->end + 7) / 8 * 8, sizeof chunk);
    if (!at || found->disk.format >> 1 != LAYOUT_CHUNKS) return damaged(index);
    memcpy(&chunk, at, sizeof chunk);
    if (chunk.device != 1) return damaged(index);
    inode->where = chunk.block;
    return 0;
}

static int set_link(struct erofs_index *index, const struct source *source, const struct found *found, uint32_t number) {
    unsigned char target[EROFS_PATH_MAX];
    uint64_t size = found->disk.size;
    if (!size || size > sizeof target) return damaged(index);
    for (uint64_t at = 0; at < size; at += BLOCK) {
        uint64_t part = size - at < BLOCK ? size - at : BLOCK;
        const unsigned char *bytes = content(source, found, at, part);
        if (!bytes) return damaged(index);
        memcpy(target + at, bytes, part);
    }
    uint32_t where = erofs_keep(index, target, size);
    if (!where) return -1;
    index->inodes[number].size = size;
    index->inodes[number].where = where;
    return 0;
}

/* What is no directory, once for all names that it has in its layer: its inode, 0 with an error. */
static uint32_t copy(struct erofs_index *index, struct source *source, const struct found *found, uint64_t nid) {
    if (source->made[nid]) return source->made[nid];
    int opaque, result;
    uint32_t number = erofs_new_inode(index, found->disk.mode);
    if (!number || set_meta(index, number, found, &opaque) < 0) return 0;
    if (S_ISREG(found->disk.mode)) result = set_file(index, source, found, &index->inodes[number]);
    else if (S_ISLNK(found->disk.mode)) result = set_link(index, source, found, number);
    else {
        index->inodes[number].where = found->disk.where;
        result = 0;
    }
    if (result < 0) return 0;
    source->made[nid] = number;
    return number;
}

static int later(struct erofs_index *index, struct pairs *pairs, uint32_t directory, uint64_t nid) {
    if (pairs->count == pairs->room) {
        size_t room = pairs->room * 2 + 64;
        void *at = realloc(pairs->at, room * sizeof *pairs->at);
        if (!at) return no_memory(index);
        pairs->at = at;
        pairs->room = room;
    }
    pairs->at[pairs->count++] = (struct pair){directory, nid};
    return 0;
}

/* One name of a directory, laid over what the layers below have there. */
static int lay(struct erofs_index *index, struct source *source, struct pairs *pairs, uint32_t directory, struct part name, uint64_t nid) {
    struct found found;
    if (read_inode(index, source, nid, &found) < 0) return -1;
    uint32_t below = erofs_lookup(index, directory, name), number;
    int opaque;
    if (S_ISCHR(found.disk.mode) && !found.disk.where) return below ? erofs_set_name(index, directory, name, 0) : 0;
    if (!S_ISDIR(found.disk.mode)) {
        number = copy(index, source, &found, nid);
        return number ? erofs_set_name(index, directory, name, number) : -1;
    }
    if (source->made[nid]) return damaged(index); /* a directory has one name */
    uint32_t fresh = erofs_new_inode(index, S_IFDIR);
    if (!fresh || set_meta(index, fresh, &found, &opaque) < 0) return -1;
    if (!opaque && below && S_ISDIR(index->inodes[below].mode)) {
        index->inodes[fresh].where = index->inodes[below].where;
        index->inodes[fresh].parent = directory;
        index->inodes[below] = index->inodes[fresh];
        fresh = below;
    } else if (erofs_set_name(index, directory, name, fresh) < 0) return -1;
    source->made[nid] = fresh;
    return later(index, pairs, fresh, nid);
}

static int lay_directory(struct erofs_index *index, struct source *source, struct pairs *pairs, struct pair pair) {
    struct found found;
    if (read_inode(index, source, pair.nid, &found) < 0) return -1;
    if (!S_ISDIR(found.disk.mode)) return damaged(index);
    for (uint64_t at = 0; at < found.disk.size; at += BLOCK) {
        uint32_t size = found.disk.size - at < BLOCK ? (uint32_t)(found.disk.size - at) : BLOCK;
        const unsigned char *block = content(source, &found, at, size);
        struct disk_dirent dirent, next;
        if (!block || size < sizeof dirent) return damaged(index);
        memcpy(&dirent, block, sizeof dirent);
        uint32_t count = dirent.name_at / (uint32_t)sizeof dirent;
        if (!count || dirent.name_at > size) return damaged(index);
        for (uint32_t i = 0; i < count; i++, dirent = next) {
            uint32_t end = size;
            next = dirent;
            if (i + 1 < count) {
                memcpy(&next, block + (i + 1) * sizeof next, sizeof next);
                end = next.name_at;
            }
            if (dirent.name_at >= end || end > size) return damaged(index);
            struct part name = {(const char *)block + dirent.name_at, strnlen((const char *)block + dirent.name_at, end - dirent.name_at)};
            if (!name.length || name.length > EROFS_NAME_MAX) return damaged(index);
            if (name.at[0] == '.' && (name.length == 1 || (name.length == 2 && name.at[1] == '.'))) continue;
            if (lay(index, source, pairs, pair.directory, name, dirent.nid) < 0) return -1;
        }
    }
    return 0;
}

static int lay_source(struct erofs_index *index, struct source *source, struct pairs *pairs) {
    struct disk_super super;
    struct disk_device device;
    struct found found;
    int opaque;
    const unsigned char *at = part_of(source, SUPER_AT, sizeof super), *devices = part_of(source, DEVICES_AT, sizeof device);
    if (!at || !devices) return damaged(index);
    memcpy(&super, at, sizeof super);
    memcpy(&device, devices, sizeof device);
    if (super.magic != EROFS_MAGIC || super.block_bits != 9 || super.extra_devices != 1) return damaged(index);
    index->device_blocks[source->device] = device.blocks;
    source->made = calloc(source->size / SLOT + 1, sizeof *source->made);
    if (!source->made) return no_memory(index);
    if (read_inode(index, source, super.root_nid, &found) < 0 || set_meta(index, EROFS_ROOT, &found, &opaque) < 0) return -1;
    if (!S_ISDIR(found.disk.mode) || opaque) return damaged(index);
    source->made[super.root_nid] = EROFS_ROOT;
    int result = later(index, pairs, EROFS_ROOT, super.root_nid);
    while (!result && pairs->count) result = lay_directory(index, source, pairs, pairs->at[--pairs->count]);
    return result;
}

int erofs_index_merge(struct erofs_index *index, int fd, const int *sources, int count) {
    struct pairs pairs = {0};
    int result = 0;
    if (count < 1 || (uint32_t)count > EROFS_DEVICES_MAX) return layer_fail(&index->error, FAULT_DECLINED, 0, "one index has room for %u layers", EROFS_DEVICES_MAX);
    for (int i = 0; i < count && !result; i++) {
        struct source source = {.device = (uint8_t)i};
        off_t size = lseek(sources[i], 0, SEEK_END);
        source.size = size > 0 ? (uint64_t)size : 0;
        source.at = source.size ? mmap(NULL, source.size, PROT_READ, MAP_PRIVATE, sources[i], 0) : MAP_FAILED;
        if (source.at == MAP_FAILED) {
            result = layer_fail(&index->error, FAULT_SYSTEM, source.size ? errno : EIO, "cannot read the index of a layer");
            break;
        }
        index->device_count++;
        result = lay_source(index, &source, &pairs);
        munmap((void *)source.at, source.size);
        free(source.made);
    }
    free(pairs.at);
    return result ? -1 : erofs_write(index, fd);
}
