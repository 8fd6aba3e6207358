/* What an index takes from the layers below: owner, mode, times and xattrs of directories that its archive does not list, since overlayfs shows
 * the topmost layer's; and whether a whiteout hides anything, since overlayfs lists those in directories that no layer below has. Both are looked up
 * once the archive is read, so that an index can be begun before the layers below are there.
 */
#define _GNU_SOURCE
#include "erofs_tree.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "lower.h"
#include "xattrs.h"

#define DIRECTORY (O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)

static int unreadable(struct erofs_index *index, const char *path, int number) {
    return layer_fail(&index->error, FAULT_SYSTEM, number, "cannot read %s of the layers below", show(*path ? path : "/").text);
}

static int read_meta(struct erofs_index *index, uint32_t number, int fd, const char *path) {
    struct inode *inode = &index->inodes[number];
    struct stat info;
    char names[65536], value[65536];
    if (fstat(fd, &info) < 0) return unreadable(index, path, errno);
    inode->mode = (uint16_t)(S_IFDIR | (info.st_mode & 07777));
    inode->uid = info.st_uid;
    inode->gid = info.st_gid;
    inode->mtime = info.st_mtim.tv_sec;
    inode->mtime_ns = (uint32_t)info.st_mtim.tv_nsec;
    ssize_t length = flistxattr(fd, names, sizeof names);
    if (length < 0 && errno != EOPNOTSUPP) return unreadable(index, path, errno);
    if (erofs_xattr_begin(index) < 0) return -1;
    for (ssize_t at = 0; at < length; at += (ssize_t)strlen(names + at) + 1) {
        if (xattr_wanted(names + at, 1) != XATTR_KEEP) continue;
        ssize_t size = fgetxattr(fd, names + at, value, sizeof value);
        if (size < 0 && errno == ENODATA) continue;
        if (size < 0) return unreadable(index, path, errno);
        if (erofs_xattr_add(index, inode, names + at, value, (size_t)size, path) < 0) return -1;
    }
    return erofs_xattr_end(index, number, path);
}

static int copy_from(struct erofs_index *index, uint32_t number, int at, const char *name, const char *path) {
    int fd = openat(at, name, DIRECTORY);
    if (fd < 0) return unreadable(index, path, errno);
    int result = read_meta(index, number, fd, path);
    close(fd);
    return result;
}

/* The entry of each directory, by its inode; 0 for one that has lost its name. */
static uint32_t *name_directories(const struct erofs_index *index) {
    uint32_t *found = calloc(index->inode_count, sizeof *found);
    for (uint32_t number = 1; found && number < index->entry_count; number++) {
        uint32_t inode = index->entries[number].inode;
        if (inode && S_ISDIR(index->inodes[inode].mode)) found[inode] = number;
    }
    return found;
}

/* The path of a directory, in the end of `path`; NULL where it, or one above it, has lost its name. `flags`: of all of them together. */
static const char *path_of(const struct erofs_index *index, const uint32_t *entries, uint32_t inode, char path[PATH_MAX], int *flags) {
    char *at = path + PATH_MAX - 1;
    *at = *flags = 0;
    while (inode != EROFS_ROOT) {
        *flags |= index->inodes[inode].flags;
        const struct entry *entry = &index->entries[entries[inode]];
        if (!entries[inode] || at - path < entry->length + 1) return NULL;
        if (*at) *--at = '/';
        at -= entry->length;
        memcpy(at, index->arena.at + entry->name, entry->length);
        inode = entry->directory;
    }
    return at;
}

/* A directory that the archive does not list, or a whiteout, and what the layers below show at its place. */
static int settle(struct erofs_index *index, struct lower *lower, struct entry *entry, const char *parent, int flags) {
    char name[NAME_MAX + 1], path[PATH_MAX + NAME_MAX + 2];
    struct stat info;
    int at, found = flags & INODE_OPAQUE ? 0 : lower_enter(lower, parent);
    memcpy(name, index->arena.at + entry->name, entry->length);
    name[entry->length] = 0;
    strcat(strcat(strcpy(path, parent), *parent ? "/" : ""), name);
    if (found > 0) found = lower_child(lower, name, &info, &at);
    if (found < 0) return unreadable(index, path, -found);
    if (entry->inode == index->whiteout) {
        if (!found) entry->inode = 0;
        return 0;
    }
    if (!found) return 0;
    if (S_ISLNK(info.st_mode)) return erofs_decline(index, path, "is a link in a layer below, and entries lie below it");
    if (S_ISDIR(info.st_mode)) return copy_from(index, entry->inode, at, name, path);
    index->inodes[entry->inode].flags |= INODE_OPAQUE;
    return 0;
}

static int settle_all(struct erofs_index *index, struct lower *lower, const uint32_t *entries, int whiteouts) {
    char path[PATH_MAX];
    for (uint32_t number = 1; number < index->entry_count; number++) {
        struct entry *entry = &index->entries[number];
        int flags, wanted = whiteouts ? entry->inode == index->whiteout : index->inodes[entry->inode].flags & INODE_IMPLIED;
        if (!entry->inode || !wanted) continue;
        const char *parent = path_of(index, entries, entry->directory, path, &flags);
        if (parent && settle(index, lower, entry, parent, whiteouts ? flags : 0) < 0) return -1;
    }
    return 0;
}

int erofs_from_below(struct erofs_index *index, const int *roots, int count) {
    int listed = index->inodes[EROFS_ROOT].flags & INODE_LISTED;
    if (index->base || (listed && !index->looks_below)) return 0;
    if (!count) return layer_fail(&index->error, FAULT_DECLINED, 0, "nobody knows the layers below, and it does not say all of its own");
    if (!listed && copy_from(index, EROFS_ROOT, roots[0], ".", "") < 0) return -1;
    if (!index->looks_below) return 0;
    struct lower lower;
    int result = lower_open(&lower, roots, count);
    uint32_t *entries = result ? NULL : name_directories(index);
    if (!entries) result = layer_fail(&index->error, FAULT_SYSTEM, result ? -result : ENOMEM, "cannot look at the layers below");
    else if (!(result = settle_all(index, &lower, entries, 0))) result = settle_all(index, &lower, entries, 1);
    free(entries);
    lower_close(&lower);
    return result;
}
