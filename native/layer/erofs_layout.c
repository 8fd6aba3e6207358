/* From the tree to the file: every inode gets its place, then all is written in that order, front to back.
 *
 *   0     1024         1152          1536                                      n * 512
 *   zeros | superblock | device table | inodes, xattrs, short links, last parts … | whole blocks of directories and long links
 *
 * Blocks are as small as those of a tar, so that a file's data, which begins anywhere in the archive, begins with a block. A directory's children
 * lie together, in the order of their names.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "erofs_disk.h"
#include "erofs_tree.h"

#define BUFFER 65536u

static const unsigned char OPAQUE[20] = "\x0e\x04\x01\x00overlay.opaquey"; /* trusted.overlay.opaque = y */

/* -- directories ---------------------------------------------------------------------------------------------------------------------- */

static int compare(const unsigned char *a, size_t a_size, const unsigned char *b, size_t b_size) {
    int order = memcmp(a, b, a_size < b_size ? a_size : b_size);
    return order ? order : (a_size > b_size) - (a_size < b_size);
}

static uint32_t merge(const struct erofs_index *index, uint32_t a, uint32_t b) {
    struct entry *entries = index->entries;
    uint32_t first = 0, *end = &first;
    while (a && b) {
        const unsigned char *names = index->arena.at;
        int order = compare(names + entries[a].name, entries[a].length, names + entries[b].name, entries[b].length);
        uint32_t *taken = order <= 0 ? &a : &b;
        *end = *taken;
        end = &entries[*end].next;
        *taken = *end;
    }
    *end = a ? a : b;
    return first;
}

/* Sort the names of a directory, without those that lead nowhere any more. */
static void sort(const struct erofs_index *index, struct inode *directory) {
    uint32_t runs[32] = {0}, whole = 0;
    for (uint32_t at = directory->where, next; at; at = next) {
        struct entry *entry = &index->entries[at];
        next = entry->next;
        if (!entry->inode) continue;
        entry->next = 0;
        uint32_t run = at;
        int i = 0;
        for (; i < 31 && runs[i]; i++) {
            run = merge(index, runs[i], run);
            runs[i] = 0;
        }
        runs[i] = run;
    }
    for (int i = 0; i < 32; i++) whole = merge(index, runs[i], whole);
    directory->where = whole;
}

struct name {
    const unsigned char *at;
    uint32_t length, inode;
};

/* A directory read from its first name to the last, `.` and `..` in their places. */
struct cursor {
    const struct erofs_index *index;
    uint32_t self, entry, dots;
};

static int peek(const struct cursor *cursor, struct name *name) {
    const struct erofs_index *index = cursor->index;
    struct name dots = {(const unsigned char *)"..", cursor->dots + 1, cursor->dots ? index->inodes[cursor->self].parent : cursor->self};
    struct name listed = {0};
    if (cursor->entry) {
        const struct entry *entry = &index->entries[cursor->entry];
        listed = (struct name){index->arena.at + entry->name, entry->length, entry->inode};
    }
    if (!cursor->entry && cursor->dots == 2) return 0;
    int is_dots = cursor->dots < 2 && (!cursor->entry || compare(dots.at, dots.length, listed.at, listed.length) < 0);
    *name = is_dots ? dots : listed;
    return is_dots ? 2 : 1;
}

/* The names of the next block: how many, 0 at the end; *size gets what they take. */
static uint32_t take(struct cursor *cursor, struct name *names, uint32_t *size) {
    uint32_t count = 0;
    int kind;
    *size = 0;
    while ((kind = peek(cursor, &names[count])) && *size + sizeof(struct disk_dirent) + names[count].length <= BLOCK) {
        *size += (uint32_t)sizeof(struct disk_dirent) + names[count++].length;
        if (kind == 2) cursor->dots++;
        else cursor->entry = cursor->index->entries[cursor->entry].next;
    }
    return count;
}

static uint64_t directory_size(const struct erofs_index *index, uint32_t number) {
    struct cursor cursor = {index, number, index->inodes[number].where, 0};
    struct name names[DIRENTS_MAX + 1];
    uint64_t blocks = 0;
    uint32_t size, last = 0;
    while (take(&cursor, names, &size)) {
        blocks++;
        last = size;
    }
    return (blocks - 1) * BLOCK + last;
}

/* -- places --------------------------------------------------------------------------------------------------------------------------- */

struct places {
    uint64_t end;    /* of the inodes so far */
    uint64_t blocks; /* whole blocks behind them */
    uint32_t last, count;
};

static uint32_t xattr_size(const struct erofs_index *index, const struct inode *inode) {
    uint32_t size = 0;
    if (inode->xattrs) memcpy(&size, index->arena.at + inode->xattrs, 4);
    if (inode->flags & INODE_OPAQUE) size += sizeof OPAQUE;
    return size ? size + (uint32_t)sizeof(struct disk_xattrs) : 0;
}

static uint32_t chunk_bits(uint64_t size) {
    uint32_t bits = 0;
    while (bits < CHUNK_BITS_MAX && (uint64_t)BLOCK << bits < size) bits++;
    return bits;
}

static uint64_t chunk_count(uint64_t size) {
    uint64_t chunk = (uint64_t)BLOCK << chunk_bits(size);
    return (size + chunk - 1) / chunk;
}

/* Whether the last part of a link or directory lies behind its inode: it must end in the block where that begins. */
static uint32_t inline_size(const struct erofs_index *index, const struct inode *inode) {
    if (!S_ISLNK(inode->mode) && !S_ISDIR(inode->mode)) return 0;
    uint32_t tail = (uint32_t)(inode->size % BLOCK);
    return sizeof(struct disk_inode) + xattr_size(index, inode) + tail <= BLOCK ? tail : 0;
}

static uint64_t block_count(const struct erofs_index *index, const struct inode *inode) {
    if (!S_ISLNK(inode->mode) && !S_ISDIR(inode->mode)) return 0;
    return (inode->size - inline_size(index, inode) + BLOCK - 1) / BLOCK;
}

static uint32_t place(struct erofs_index *index, struct places *places, uint32_t number) {
    struct inode *inode = &index->inodes[number];
    if (S_ISDIR(inode->mode)) {
        sort(index, inode);
        inode->size = directory_size(index, number);
        inode->links = 2;
    }
    uint32_t tail = inline_size(index, inode);
    uint64_t size = sizeof(struct disk_inode) + xattr_size(index, inode) + tail;
    if (S_ISREG(inode->mode)) size = (size + 7) / 8 * 8 + chunk_count(inode->size) * sizeof(struct disk_chunk);
    if (tail && places->end % BLOCK + size > BLOCK) places->end += BLOCK - places->end % BLOCK;
    inode->slot = (uint32_t)(places->end / SLOT);
    inode->block = (uint32_t)places->blocks;
    places->end += (size + SLOT - 1) / SLOT * SLOT;
    places->blocks += block_count(index, inode);
    if (places->last) index->inodes[places->last].next = number;
    places->last = number;
    places->count++;
    return number;
}

/* Give everything its place: level by level, each directory's children one behind the other. */
static void place_all(struct erofs_index *index, struct places *places) {
    for (uint32_t here = place(index, places, EROFS_ROOT); here; here = index->inodes[here].next) {
        if (!S_ISDIR(index->inodes[here].mode)) continue;
        for (uint32_t at = index->inodes[here].where; at; at = index->entries[at].next) {
            uint32_t number = index->entries[at].inode;
            if (!index->inodes[number].slot) place(index, places, number);
            if (S_ISDIR(index->inodes[number].mode)) index->inodes[here].links++;
            else index->inodes[number].links++;
        }
    }
}

/* -- bytes ---------------------------------------------------------------------------------------------------------------------------- */

struct out {
    int fd;
    uint64_t at; /* of the buffer's first byte */
    size_t used;
    uint64_t *sum;
    unsigned char buffer[BUFFER];
};

static int write_at(int fd, const unsigned char *bytes, size_t size, uint64_t at) {
    while (size) {
        ssize_t done = pwrite(fd, bytes, size, (off_t)at);
        if (done < 0 && errno == EINTR) continue;
        if (done <= 0) return done < 0 ? errno : EIO;
        bytes += done;
        size -= (size_t)done;
        at += (uint64_t)done;
    }
    return 0;
}

/* What was written, as two sums: not for security, but so that different indexes are different file systems to overlayfs. */
static void sum(uint64_t sums[2], const unsigned char *bytes, size_t size) {
    for (size_t at = 0; at < size; at += 8) {
        uint64_t word = 0;
        memcpy(&word, bytes + at, size - at < 8 ? size - at : 8);
        __uint128_t product = (__uint128_t)(sums[0] ^ word) * 0x9fb21c651e98df25ull;
        sums[0] = (uint64_t)product;
        sums[1] = (sums[1] << 23 | sums[1] >> 41) ^ (uint64_t)(product >> 64) ^ word;
    }
}

static int flush(struct out *out) {
    int error = write_at(out->fd, out->buffer, out->used, out->at);
    sum(out->sum, out->buffer, out->used);
    out->at += out->used;
    out->used = 0;
    return error;
}

/* Append; bytes NULL for zeros. An errno. */
static int put(struct out *out, const void *bytes, uint64_t size) {
    const unsigned char *from = bytes;
    while (size) {
        if (out->used == BUFFER) {
            int error = flush(out);
            if (error) return error;
        }
        size_t part = size < BUFFER - out->used ? (size_t)size : BUFFER - out->used;
        if (from) memcpy(out->buffer + out->used, from, part);
        else memset(out->buffer + out->used, 0, part);
        out->used += part;
        size -= part;
        if (from) from += part;
    }
    return 0;
}

static int pad_to(struct out *out, uint64_t place) {
    return put(out, NULL, place - (out->at + out->used));
}

static uint8_t file_type(uint16_t mode) {
    switch (mode & S_IFMT) {
    case S_IFREG: return 1;
    case S_IFDIR: return 2;
    case S_IFCHR: return 3;
    case S_IFBLK: return 4;
    case S_IFIFO: return 5;
    case S_IFSOCK: return 6;
    default: return 7;
    }
}

static void fill_block(const struct erofs_index *index, const struct name *names, uint32_t count, unsigned char *block) {
    uint32_t at = count * (uint32_t)sizeof(struct disk_dirent);
    for (uint32_t i = 0; i < count; i++) {
        const struct inode *inode = &index->inodes[names[i].inode];
        struct disk_dirent dirent = {.nid = inode->slot, .name_at = (uint16_t)at, .type = file_type(inode->mode)};
        memcpy(block + i * sizeof dirent, &dirent, sizeof dirent);
        memcpy(block + at, names[i].at, names[i].length);
        at += names[i].length;
    }
}

/* Whole blocks go to `blocks`, the rest of `tail` bytes to `inodes`. */
static int write_directory(const struct erofs_index *index, uint32_t number, uint32_t tail, struct out *inodes, struct out *blocks) {
    struct cursor cursor = {index, number, index->inodes[number].where, 0};
    struct name names[DIRENTS_MAX + 1];
    uint64_t left = block_count(index, &index->inodes[number]);
    uint32_t count, size;
    while ((count = take(&cursor, names, &size))) {
        unsigned char block[BLOCK] = {0};
        fill_block(index, names, count, block);
        int error = left ? put(blocks, block, BLOCK) : put(inodes, block, tail);
        if (error) return error;
        if (left) left--;
    }
    return 0;
}

static int write_link(const struct erofs_index *index, const struct inode *inode, uint32_t tail, struct out *inodes, struct out *blocks) {
    const unsigned char *target = index->arena.at + inode->where;
    uint64_t whole = inode->size - tail;
    int error = put(blocks, target, whole);
    if (!error && whole % BLOCK) error = put(blocks, NULL, BLOCK - whole % BLOCK);
    return error ? error : put(inodes, target + whole, tail);
}

static int write_chunks(const struct inode *inode, struct out *inodes) {
    uint64_t blocks = 1ull << chunk_bits(inode->size);
    int error = pad_to(inodes, (inodes->at + inodes->used + 7) / 8 * 8);
    for (uint64_t i = 0, count = chunk_count(inode->size); i < count && !error; i++) {
        struct disk_chunk chunk = {.device = inode->device + 1u, .block = (uint32_t)(inode->where + i * blocks)};
        error = put(inodes, &chunk, sizeof chunk);
    }
    return error;
}

static int write_xattrs(const struct erofs_index *index, const struct inode *inode, struct out *inodes) {
    uint32_t size = 0;
    struct disk_xattrs header = {0};
    int error = put(inodes, &header, sizeof header);
    if (inode->xattrs) memcpy(&size, index->arena.at + inode->xattrs, 4);
    if (!error && size) error = put(inodes, index->arena.at + inode->xattrs + 4, size);
    if (!error && inode->flags & INODE_OPAQUE) error = put(inodes, OPAQUE, sizeof OPAQUE);
    return error;
}

static int write_inode(const struct erofs_index *index, uint32_t number, uint32_t nth, uint64_t first_block, struct out *inodes, struct out *blocks) {
    const struct inode *inode = &index->inodes[number];
    uint32_t tail = inline_size(index, inode), xattrs = xattr_size(index, inode);
    int is_file = S_ISREG(inode->mode), has_chunks = is_file && inode->size;
    struct disk_inode disk = {
        .format = (uint16_t)((has_chunks ? LAYOUT_CHUNKS : tail ? LAYOUT_INLINE : LAYOUT_PLAIN) << 1 | EXTENDED),
        .xattr_units = (uint16_t)(xattrs ? (xattrs - sizeof(struct disk_xattrs)) / 4 + 1 : 0), .mode = inode->mode, .size = inode->size,
        .number = nth, .uid = inode->uid, .gid = inode->gid, .mtime = inode->mtime, .mtime_ns = inode->mtime_ns, .links = inode->links,
    };
    if (has_chunks) disk.where = chunk_bits(inode->size) | CHUNK_INDEXES;
    else if (S_ISLNK(inode->mode) || S_ISDIR(inode->mode)) disk.where = (uint32_t)(first_block + inode->block);
    else if (!is_file) disk.where = inode->where;
    int error = pad_to(inodes, (uint64_t)inode->slot * SLOT);
    if (!error) error = put(inodes, &disk, sizeof disk);
    if (!error && xattrs) error = write_xattrs(index, inode, inodes);
    if (error) return error;
    if (S_ISDIR(inode->mode)) return write_directory(index, number, tail, inodes, blocks);
    if (S_ISLNK(inode->mode)) return write_link(index, inode, tail, inodes, blocks);
    return has_chunks ? write_chunks(inode, inodes) : 0;
}

/* Of the inodes: behind the table of devices, which has one for each tar. */
static uint64_t inodes_at(const struct erofs_index *index) {
    uint64_t end = DEVICES_AT + index->device_count * sizeof(struct disk_device);
    return (end + BLOCK - 1) / BLOCK * BLOCK;
}

static int write_super(const struct erofs_index *index, int fd, const struct places *places, uint64_t blocks, const uint64_t sums[2]) {
    struct disk_super super = {
        .magic = EROFS_MAGIC, .feature_compat = FEATURE_MTIME, .block_bits = 9, .root_nid = (uint16_t)(inodes_at(index) / SLOT),
        .inodes = places->count, .blocks = (uint32_t)blocks, .feature_incompat = FEATURE_CHUNKED_FILE | FEATURE_DEVICE_TABLE,
        .extra_devices = (uint16_t)index->device_count, .device_slot = DEVICES_AT / sizeof(struct disk_device),
    };
    int error = 0;
    for (uint32_t i = 0; i < index->device_count && !error; i++) {
        struct disk_device device = {.blocks = index->device_blocks[i]};
        error = write_at(fd, (const unsigned char *)&device, sizeof device, DEVICES_AT + i * sizeof device);
    }
    memcpy(super.uuid, sums, 16);
    super.uuid[6] = (super.uuid[6] & 0x0f) | 0x80; /* version 8: made as its maker likes */
    super.uuid[8] = (super.uuid[8] & 0x3f) | 0x80;
    return error ? error : write_at(fd, (const unsigned char *)&super, sizeof super, SUPER_AT);
}

int erofs_write(struct erofs_index *index, int fd) {
    struct places places = {.end = inodes_at(index)};
    place_all(index, &places);
    uint64_t first_block = (places.end + BLOCK - 1) / BLOCK, blocks = first_block + places.blocks;
    if (places.end / SLOT > UINT32_MAX || blocks > UINT32_MAX) {
        return layer_fail(&index->error, FAULT_DECLINED, 0, "it is too large for an index with small blocks");
    }
    uint64_t sums[2] = {index->fed, 0};
    struct out inodes = {.fd = fd, .at = inodes_at(index), .sum = sums}, tail = {.fd = fd, .at = first_block * BLOCK, .sum = sums};
    int error = 0;
    uint32_t nth = 1;
    for (uint32_t number = EROFS_ROOT; number && !error; number = index->inodes[number].next) {
        error = write_inode(index, number, nth++, first_block, &inodes, &tail);
    }
    if (!error) error = pad_to(&inodes, first_block * BLOCK);
    if (!error) error = flush(&inodes);
    if (!error) error = flush(&tail);
    if (!error) error = write_super(index, fd, &places, blocks, sums);
    if (error) return layer_fail(&index->error, FAULT_SYSTEM, error, "cannot write the index of the layer");
    return 0;
}
