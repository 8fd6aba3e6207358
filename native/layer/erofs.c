/* The tree of a layer, collected member by member in the order of the archive. */
#define _GNU_SOURCE
#include "erofs_tree.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#define STEP (1u << 20)

struct path {
    struct part parts[EROFS_PARTS_MAX];
    uint32_t count;
};

static const char *const KINDS[] = {"file", "hardlink", "symlink", "char", "block", "directory", "fifo"};
static const uint16_t MODES[] = {S_IFREG, 0, S_IFLNK, S_IFCHR, S_IFBLK, S_IFDIR, S_IFIFO};

static const char *const WARNINGS[WARN_END] = {
    [WARN_OBEYED] = "dropped: an xattr that overlayfs or the host would obey",
    [WARN_WHITEOUT] = "left out: a device 0:0 would act as a whiteout",
    [WARN_EPERM] = "dropped: this file system does not take it (Operation not permitted)",
    [WARN_EACCES] = "dropped: this file system does not take it (Permission denied)",
    [WARN_EOPNOTSUPP] = "dropped: this file system does not take it (Operation not supported)",
    [WARN_EINVAL] = "dropped: this file system does not take it (Invalid argument)",
    [WARN_ERANGE] = "dropped: this file system does not take it (Numerical result out of range)",
};

/* -- errors and warnings ------------------------------------------------------------------------------------------------------------- */

#define SHOW(name) show(name).text

static int no_memory(struct erofs_index *index) {
    return layer_fail(&index->error, FAULT_SYSTEM, ENOMEM, "no memory for the index of the layer");
}

int erofs_decline(struct erofs_index *index, const char *name, const char *why) {
    return layer_fail(&index->error, FAULT_DECLINED, 0, "%s %s", SHOW(name), why);
}

static int unsafe(struct erofs_index *index, const char *name, const char *why) {
    return layer_fail(&index->error, FAULT_UNSAFE, 0, "the entry %s is not safe: %s", SHOW(name), why);
}

void erofs_warn(struct erofs_index *index, enum warning why, const char *name, const char *of) {
    if (index->warned[why]++) return;
    snprintf(index->examples[why], sizeof index->examples[why], "%s%s%s", name, of ? " of " : "", of ? of : "");
}

int erofs_index_warning(const struct erofs_index *index, int number, char *text, int size) {
    if (number < 0 || number >= WARN_END) return -1;
    uint32_t count = index->warned[number];
    if (count) snprintf(text, (size_t)size, "%s: %s", WARNINGS[number], SHOW(index->examples[number]));
    return (int)count;
}

/* -- memory -------------------------------------------------------------------------------------------------------------------------- */

static atomic_size_t in_use; /* by all indexes of this process: several layers may come in at once */

static size_t footprint(const struct erofs_index *index) {
    return index->inode_count * sizeof *index->inodes + index->entry_count * sizeof *index->entries
           + (index->slot_mask + 1ull) * sizeof *index->slots + index->arena.used;
}

/* Before `more` bytes are added. */
static int reserve(struct erofs_index *index, size_t more) {
    while (footprint(index) + more > index->reserved) {
        if (atomic_fetch_add(&in_use, STEP) + STEP > EROFS_MEMORY_MAX) {
            atomic_fetch_sub(&in_use, STEP);
            return layer_fail(&index->error, FAULT_DECLINED, 0, "the indexes that are being made would take more than %u MiB of memory", EROFS_MEMORY_MAX >> 20);
        }
        index->reserved += STEP;
    }
    return 0;
}

int erofs_grow(struct erofs_index *index, struct bytes *bytes, size_t more) {
    if (bytes->used + more <= bytes->room) return 0;
    size_t room = bytes->room + bytes->room / 2 + more + 4096;
    unsigned char *at = realloc(bytes->at, room);
    if (at == NULL) return no_memory(index);
    bytes->at = at;
    bytes->room = room;
    return 0;
}

uint32_t erofs_keep(struct erofs_index *index, const void *bytes, size_t size) {
    struct bytes *arena = &index->arena;
    if (reserve(index, size) < 0 || erofs_grow(index, arena, size + 1) < 0) return 0;
    if (!arena->used) arena->at[arena->used++] = 0;
    uint32_t offset = (uint32_t)arena->used;
    memcpy(arena->at + offset, bytes, size);
    arena->used += size;
    return offset;
}

/* Room for one more of an array that starts at 1. */
static int more(struct erofs_index *index, void **array, uint32_t count, uint32_t *room, size_t size) {
    if (reserve(index, size) < 0) return -1;
    if (count < *room) return 0;
    uint32_t wanted = *room + *room / 2 + 256;
    void *at = realloc(*array, wanted * size);
    if (at == NULL) return no_memory(index);
    *array = at;
    *room = wanted;
    return 0;
}

/* A new inode; its number, 0 with an error. */
uint32_t erofs_new_inode(struct erofs_index *index, uint16_t mode) {
    if (more(index, (void **)&index->inodes, index->inode_count, &index->inode_room, sizeof *index->inodes) < 0) return 0;
    index->inodes[index->inode_count] = (struct inode){.mode = mode};
    return index->inode_count++;
}

/* -- names ----------------------------------------------------------------------------------------------------------------------------- */

static int same(const char *at, size_t length, const char *text) {
    return length == strlen(text) && memcmp(at, text, length) == 0;
}

static int starts(const char *at, size_t length, const char *with) {
    return length >= strlen(with) && memcmp(at, with, strlen(with)) == 0;
}

static int is_whiteout(struct part part) {
    return starts(part.at, part.length, ".wh.");
}

static int is_aufs(struct part part) {
    return starts(part.at, part.length, ".wh..wh.");
}

/* Split a name into its components, without empty ones and `.`. */
static int clean(struct erofs_index *index, const char *name, struct path *path) {
    for (const char *at = name; *at;) {
        size_t length = strcspn(at, "/");
        if (same(at, length, "..")) return unsafe(index, name, "its name leads out of the image");
        at += length + (at[length] == '/');
    }
    if (strlen(name) >= EROFS_PATH_MAX) {
        return layer_fail(&index->error, FAULT_UNSAFE, 0, "the entry %s is not safe: its name is longer than %u bytes", SHOW(name), EROFS_PATH_MAX - 1);
    }
    path->count = 0;
    for (const char *at = name; *at;) {
        size_t length = strcspn(at, "/");
        if (length && !same(at, length, ".")) path->parts[path->count++] = (struct part){at, length};
        at += length + (at[length] == '/');
    }
    return 0;
}

static struct part last(const struct path *path) {
    return path->parts[path->count - 1];
}

/* Keyed by a secret, so that nobody can choose names that collide. */
static uint32_t hash_name(uint64_t seed, uint32_t directory, struct part part) {
    uint64_t hash = seed ^ ((uint64_t)directory << 32 | part.length);
    for (size_t done = 0; done < part.length; done += 8) {
        uint64_t word = 0;
        memcpy(&word, part.at + done, part.length - done < 8 ? part.length - done : 8);
        __uint128_t product = (__uint128_t)(hash ^ word) * 0x9fb21c651e98df25ull;
        hash = (uint64_t)product ^ (uint64_t)(product >> 64) ^ seed;
    }
    __uint128_t product = (__uint128_t)hash * 0xd6e8feb86659fd93ull;
    return (uint32_t)((uint64_t)product ^ (uint64_t)(product >> 64));
}

static int grow_table(struct erofs_index *index) {
    uint32_t mask = index->slot_mask * 2 + 1;
    if (reserve(index, (mask - index->slot_mask) * sizeof *index->slots) < 0) return -1;
    uint32_t *slots = calloc(mask + 1ull, sizeof *slots);
    if (slots == NULL) return no_memory(index);
    for (uint32_t number = 1; number < index->entry_count; number++) {
        uint32_t at = index->entries[number].hash & mask;
        while (slots[at]) at = (at + 1) & mask;
        slots[at] = number;
    }
    free(index->slots);
    index->slots = slots;
    index->slot_mask = mask;
    return 0;
}

/* The entry of a name, made if need be: its number, 0 if it is not there (or with an error, where it was to be made). */
static uint32_t find(struct erofs_index *index, uint32_t directory, struct part part, int make) {
    uint32_t hash = hash_name(index->seed, directory, part), at;
    for (at = hash & index->slot_mask; index->slots[at]; at = (at + 1) & index->slot_mask) {
        const struct entry *entry = &index->entries[index->slots[at]];
        if (entry->hash == hash && entry->directory == directory && entry->length == part.length
            && memcmp(index->arena.at + entry->name, part.at, part.length) == 0) {
            return index->slots[at];
        }
    }
    if (!make) return 0;
    uint32_t name = erofs_keep(index, part.at, part.length), number = index->entry_count;
    if (!name || more(index, (void **)&index->entries, number, &index->entry_room, sizeof *index->entries) < 0) return 0;
    struct inode *parent = &index->inodes[directory];
    index->entries[number] = (struct entry){directory, parent->where, 0, name, hash, (uint8_t)part.length};
    parent->where = number;
    index->slots[at] = number;
    if (++index->entry_count > index->slot_mask / 4 * 3 && grow_table(index) < 0) return 0;
    return number;
}

/* What a name is: an inode's number, 0 for nothing. */
uint32_t erofs_lookup(struct erofs_index *index, uint32_t directory, struct part part) {
    uint32_t number = find(index, directory, part, 0);
    return number ? index->entries[number].inode : 0;
}

/* Give a name to an inode; whatever had it before loses it, with all that is below. */
int erofs_set_name(struct erofs_index *index, uint32_t directory, struct part part, uint32_t inode) {
    uint32_t number = find(index, directory, part, 1);
    if (!number) return -1;
    index->entries[number].inode = inode;
    if (inode && S_ISDIR(index->inodes[inode].mode)) index->inodes[inode].parent = directory;
    return 0;
}

/* -- the walk ------------------------------------------------------------------------------------------------------------------------- */

static int is_dir(const struct erofs_index *index, uint32_t inode) {
    return S_ISDIR(index->inodes[inode].mode);
}

/* The directory that the path's last component lies in, made if it is not there: its inode, 0 with an error. */
static uint32_t enter(struct erofs_index *index, const struct path *path, const char *name) {
    for (uint32_t i = 0; i < path->count; i++) {
        if (path->parts[i].length > EROFS_NAME_MAX && !is_whiteout(path->parts[i])) {
            layer_fail(&index->error, FAULT_WRONG, 0, "%s has a component longer than this file system allows", SHOW(name));
            return 0;
        }
    }
    uint32_t here = EROFS_ROOT;
    int alone = index->base; /* nothing of the layers below shows here */
    for (uint32_t i = 0; i + 1 < path->count; i++) {
        struct part part = path->parts[i];
        uint32_t found = erofs_lookup(index, here, part);
        alone |= index->inodes[here].flags & INODE_OPAQUE;
        if (found && is_dir(index, found)) {
            here = found;
        } else if (found && (S_ISLNK(index->inodes[found].mode) || found == index->whiteout)) {
            erofs_decline(index, name, "lies below a link or a whiteout of its own layer");
            return 0;
        } else if (found) {
            layer_fail(&index->error, FAULT_WRONG, 0, "%s is a file, but entries lie below it", show_bytes(part.at, part.length).text);
            return 0;
        } else {
            uint32_t made = erofs_new_inode(index, S_IFDIR | 0755);
            if (!made || erofs_set_name(index, here, part, made) < 0) return 0;
            if (!alone) {
                index->inodes[made].flags |= INODE_IMPLIED;
                index->looks_below = 1;
            }
            here = made;
        }
    }
    return here;
}

/* -- members -------------------------------------------------------------------------------------------------------------------------- */

static int set_meta(struct erofs_index *index, uint32_t number, const struct tar_member *member) {
    struct inode *inode = &index->inodes[number];
    inode->mode = (uint16_t)((inode->mode & S_IFMT) | (member->mode & 07777));
    inode->uid = member->uid;
    inode->gid = member->gid;
    inode->mtime = member->mtime;
    inode->mtime_ns = member->mtime_ns;
    if (erofs_xattr_begin(index) < 0) return -1;
    for (uint32_t i = 0; i < member->xattr_count; i++) {
        const struct tar_xattr *xattr = &member->xattrs[i];
        if (erofs_xattr_add(index, inode, xattr->name, xattr->value, xattr->size, member->name) < 0) return -1;
    }
    return erofs_xattr_end(index, number, member->name);
}

static int whiteout(struct erofs_index *index, const struct tar_member *member, const struct path *path) {
    struct part name = last(path), hidden = {name.at + 4, name.length - 4};
    int opaque = same(name.at, name.length, ".wh..wh..opq");
    if (!opaque && is_aufs(name)) return 0;
    if (!opaque && (!hidden.length || same(hidden.at, hidden.length, ".") || same(hidden.at, hidden.length, ".."))) {
        return unsafe(index, member->name, "it is a whiteout of nothing");
    }
    if (index->base) return 0;
    if (opaque && path->count == 1) return erofs_decline(index, member->name, "hides the whole image, one name after the other");
    if (hidden.length > EROFS_NAME_MAX) return erofs_decline(index, member->name, "hides a name longer than any can be");
    uint32_t where = enter(index, path, member->name);
    if (!where) return -1;
    if (opaque) {
        index->inodes[where].flags |= INODE_OPAQUE;
        return 0;
    }
    uint32_t found = erofs_lookup(index, where, hidden);
    if (found) {
        if (is_dir(index, found)) index->inodes[found].flags |= INODE_OPAQUE;
        return 0;
    }
    if (!index->whiteout && !(index->whiteout = erofs_new_inode(index, S_IFCHR | 0600))) return -1;
    index->looks_below = 1;
    return erofs_set_name(index, where, hidden, index->whiteout);
}

static int directory(struct erofs_index *index, const struct tar_member *member, const struct path *path) {
    uint32_t where = enter(index, path, member->name);
    if (!where) return -1;
    uint32_t found = erofs_lookup(index, where, last(path));
    if (!found || !is_dir(index, found)) {
        uint32_t made = erofs_new_inode(index, S_IFDIR);
        if (!made || erofs_set_name(index, where, last(path), made) < 0) return -1;
        /* What it replaces (a whiteout, a file) had already hidden the directory of that name below. */
        if (found && !index->base) index->inodes[made].flags |= INODE_OPAQUE;
        found = made;
    }
    index->inodes[found].flags &= (uint8_t)~INODE_IMPLIED;
    return set_meta(index, found, member);
}

static int hardlink(struct erofs_index *index, const struct tar_member *member, const struct path *path) {
    struct path to;
    if (clean(index, member->link, &to) < 0) return -1;
    int bad = to.count == 0;
    for (uint32_t i = 0; i < to.count; i++) bad |= is_whiteout(to.parts[i]);
    if (bad) {
        return layer_fail(&index->error, FAULT_UNSAFE, 0, "the entry %s is not safe: it is a hard link to %s", SHOW(member->name), SHOW(member->link));
    }
    uint32_t there = enter(index, &to, member->link);
    if (!there) return -1;
    uint32_t target = erofs_lookup(index, there, last(&to));
    if (!target && !index->base) return erofs_decline(index, member->name, "is a hard link to a file that the layer does not bring");
    if (!target || target == index->whiteout) {
        return layer_fail(&index->error, FAULT_WRONG, 0, "%s is a hard link to %s, which does not exist", SHOW(member->name), SHOW(member->link));
    }
    if (is_dir(index, target)) {
        return layer_fail(&index->error, FAULT_UNSAFE, 0, "the entry %s is not safe: it is a hard link to the directory %s", SHOW(member->name), SHOW(member->link));
    }
    uint32_t where = enter(index, path, member->name);
    if (!where) return -1;
    uint32_t found = erofs_lookup(index, where, last(path));
    if (found && is_dir(index, found)) return erofs_decline(index, member->name, "is a hard link in the place of a directory");
    return erofs_set_name(index, where, last(path), target);
}

static int file(struct erofs_index *index, const struct tar_member *member, struct inode *inode) {
    if (member->stored > index->size_max || index->size > index->size_max - member->stored) {
        return layer_fail(&index->error, FAULT_LIMIT, 0, "the layer is too large: it unpacks to more than %llu bytes", (unsigned long long)index->size_max);
    }
    index->size += member->stored;
    if (member->sparse || member->stored != member->size || member->offset % TAR_BLOCK) return erofs_decline(index, member->name, "is a sparse file");
    uint64_t first = member->offset / TAR_BLOCK, end = first + (member->size + TAR_BLOCK - 1) / TAR_BLOCK;
    if (end >= UINT32_MAX) return erofs_decline(index, member->name, "lies more than 2 TiB into the archive");
    inode->size = member->size;
    inode->where = (uint32_t)first;
    if (member->size) index->data_end = end * TAR_BLOCK;
    return 0;
}

/* A file, a link, a device, a fifo. */
static int other(struct erofs_index *index, const struct tar_member *member, const struct path *path) {
    uint32_t where = enter(index, path, member->name);
    if (!where) return -1;
    if (member->kind == TAR_CHAR && !member->major && !member->minor) {
        erofs_warn(index, WARN_WHITEOUT, member->name, NULL);
        return 0;
    }
    uint32_t number = erofs_new_inode(index, MODES[member->kind]);
    if (!number) return -1;
    if (member->kind == TAR_FILE) {
        if (file(index, member, &index->inodes[number]) < 0) return -1;
    } else if (member->kind == TAR_SYMLINK) {
        size_t length = strlen(member->link);
        if (!length || length >= EROFS_PATH_MAX) return unsafe(index, member->name, "its link target is empty or too long");
        uint32_t target = erofs_keep(index, member->link, length);
        if (!target) return -1;
        index->inodes[number].where = target;
        index->inodes[number].size = length;
    } else if (member->kind != TAR_FIFO) {
        if (member->major > 0xfff || member->minor > 0xfffff) return erofs_decline(index, member->name, "is a device whose number is too large");
        index->inodes[number].where = (member->minor & 0xff) | member->major << 8 | (member->minor & ~0xffu) << 12;
    }
    if (set_meta(index, number, member) < 0) return -1;
    if (member->kind == TAR_SYMLINK) index->inodes[number].mode = S_IFLNK | 0777;
    return erofs_set_name(index, where, last(path), number);
}

static int on_member(void *self, const struct tar_member *member) {
    struct erofs_index *index = self;
    struct path path;
    if (++index->members > index->members_max) {
        return layer_fail(&index->error, FAULT_LIMIT, 0, "the layer is too large: it has more than %llu entries", (unsigned long long)index->members_max);
    }
    if (clean(index, member->name, &path) < 0) return -1;
    for (uint32_t i = 0; i + 1 < path.count; i++) {
        if (is_aufs(path.parts[i])) return 0; /* AUFS keeps its own books below .wh..wh.plnk and friends */
        if (is_whiteout(path.parts[i])) return unsafe(index, member->name, "it lies below a whiteout");
    }
    if (!path.count) {
        if (member->kind != TAR_DIRECTORY) {
            return layer_fail(&index->error, FAULT_UNSAFE, 0, "the entry %s is not safe: the root cannot be a %s", SHOW(member->name), KINDS[member->kind]);
        }
        index->inodes[EROFS_ROOT].flags |= INODE_LISTED;
        return set_meta(index, EROFS_ROOT, member);
    }
    if (is_whiteout(last(&path))) return whiteout(index, member, &path);
    if (member->kind == TAR_DIRECTORY) return directory(index, member, &path);
    if (member->kind == TAR_HARDLINK) return hardlink(index, member, &path);
    return other(index, member, &path);
}

static int on_data(void *self, const void *bytes, size_t size) {
    (void)self, (void)bytes, (void)size; /* it stays where it is */
    return 0;
}

static int on_done(void *self) {
    (void)self;
    return 0;
}

/* -- from outside --------------------------------------------------------------------------------------------------------------------- */

struct erofs_index *erofs_index_new(int base, uint64_t size_max, uint64_t entries_max) {
    struct erofs_index *index = calloc(1, sizeof *index);
    if (index == NULL) return NULL;
    index->base = base;
    index->size_max = size_max;
    index->members_max = entries_max;
    index->inode_count = index->entry_count = 1;
    index->slot_mask = 1023;
    index->slots = calloc(index->slot_mask + 1, sizeof *index->slots);
    struct tar_sink sink = {index, on_member, on_data, on_done};
    index->tar = tar_new(&sink, &index->error);
    if (getrandom(&index->seed, sizeof index->seed, 0) < 0) index->seed ^= (uint64_t)(uintptr_t)index;
    if (!index->slots || !index->tar || erofs_new_inode(index, S_IFDIR | 0755) != EROFS_ROOT) {
        erofs_index_free(index);
        return NULL;
    }
    index->inodes[EROFS_ROOT].parent = EROFS_ROOT;
    return index;
}

int erofs_index_feed(struct erofs_index *index, const void *bytes, uint64_t size) {
    if (index->error.fault) return -1;
    index->fed += size;
    return tar_feed(index->tar, bytes, size) ? -1 : 0;
}

int erofs_index_looks_below(const struct erofs_index *index) {
    return index->looks_below;
}

int erofs_index_finish(struct erofs_index *index, int fd, const int *lower, int lower_count) {
    if (index->error.fault) return -1;
    if (tar_finish(index->tar)) return -1;
    tar_free(index->tar);
    index->tar = NULL;
    /* The kernel reads whole blocks, and some writers leave out the padding of the very last one. */
    if (index->data_end > index->fed) return layer_fail(&index->error, FAULT_DECLINED, 0, "the archive ends in the middle of a block");
    if (index->fed / TAR_BLOCK >= UINT32_MAX) return layer_fail(&index->error, FAULT_DECLINED, 0, "it is too large for an index with small blocks");
    if (erofs_from_below(index, lower, lower_count) < 0) return -1;
    index->device_blocks[index->device_count++] = (uint32_t)((index->fed + TAR_BLOCK - 1) / TAR_BLOCK);
    return erofs_write(index, fd);
}

const struct layer_error *erofs_index_error(const struct erofs_index *index) {
    return &index->error;
}

uint64_t erofs_index_size(const struct erofs_index *index) {
    return index->size;
}

uint64_t erofs_index_entries(const struct erofs_index *index) {
    return index->members;
}

void erofs_index_free(struct erofs_index *index) {
    if (index == NULL) return;
    atomic_fetch_sub(&in_use, index->reserved);
    if (index->tar) tar_free(index->tar);
    free(index->inodes);
    free(index->entries);
    free(index->slots);
    free(index->arena.at);
    free(index->scratch.at);
    free(index);
}
