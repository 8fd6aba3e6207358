/* Owners, modes, times and extended attributes.
 *
 * As root all of them are kept. As an ordinary user everything belongs to her, and what only root may set is left out with a warning. By descriptor,
 * and in the order that keeps everything: a write clears capabilities, chown clears setuid bits, so data come first, then owner, mode, xattrs, times.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "writer.h"
#include "xattrs.h"

#define DEFAULT_ACL "system.posix_acl_default"
#define DEFAULT_ACL_BYTES_MAX (8u << 20)
#define LIST_MAX 65536
#define OVERLAY_WARNING "dropped: an xattr that overlayfs or the host would obey"
#define ROOT_WARNING "dropped: only root can keep capabilities and ACLs"

/* Whether the kernel has given what we made (`made`, or -1) to the owner that the archive wants, which saves a call per file. */
int owner_is_right(struct writer *w, const struct dir *parent, uint32_t uid, uint32_t gid, int made) {
    struct stat info;
    if (!w->as_root) return 1;
    if (uid != w->uid || gid != w->gid || parent->setgid) return 0;
    if (!w->probed && made >= 0 && !fstat(made, &info)) {
        w->probed = 1;
        w->group_varies = info.st_uid != w->uid || info.st_gid != w->gid; /* a file system mounted with grpid */
    }
    return w->probed && !w->group_varies;
}

static void warn_of_key(struct writer *w, const char *why, const char *key, const char *name) {
    char both[256];
    snprintf(both, sizeof both, "%s of %s", key, name);
    add_warning(w, why, both);
}

/* What a file system may refuse without being broken or full; ENOSPC says that the value is larger than a block of ext4. */
static int is_refusal(int number) {
    return number == EOPNOTSUPP || number == EPERM || number == EINVAL || number == E2BIG || number == ERANGE || number == EACCES || number == ENOSPC;
}

static int refused(struct writer *w, const char *key, const char *name, int number) {
    char why[160];
    if (!is_refusal(number)) return -number;
    snprintf(why, sizeof why, "dropped: this file system does not take it (%s)", strerror(number));
    warn_of_key(w, why, key, name);
    return 0;
}

/* -- default ACLs -------------------------------------------------------------------------------------------------------------------- */

static int later(struct writer *w, const char *directory, const void *value, size_t size) {
    size_t path_size = strlen(directory) + 1;
    struct default_acl *acl = malloc(sizeof *acl + size + path_size);
    if (!acl) return -ENOMEM;
    acl->size = (uint32_t)size;
    acl->path = acl->value + size;
    memcpy(acl->value, value, size);
    memcpy(acl->path, directory, path_size);
    acl->next = w->default_acls;
    w->default_acls = acl;
    w->default_acl_bytes += sizeof *acl + size + path_size;
    return 0;
}

void forget_default_acls(struct writer *w, const char *path) {
    for (struct default_acl **at = &w->default_acls; *at;) {
        struct default_acl *acl = *at;
        if (path && !lies_below(acl->path, path)) {
            at = &acl->next;
            continue;
        }
        *at = acl->next;
        w->default_acl_bytes -= sizeof *acl + acl->size + strlen(acl->path) + 1;
        free(acl);
    }
}

int set_default_acls(struct writer *w) {
    struct default_acl *first = NULL;
    while (w->default_acls) { /* in the order of the archive: the last one of a directory wins */
        struct default_acl *acl = w->default_acls;
        w->default_acls = acl->next;
        acl->next = first;
        first = acl;
    }
    w->default_acls = first;
    for (struct default_acl *acl = first; acl; acl = acl->next) {
        struct dir *dir = dirs_real(w, acl->path);
        if (!dir) continue;
        int error = fsetxattr(dir->fd, DEFAULT_ACL, acl->value, acl->size, 0) ? refused(w, DEFAULT_ACL, acl->path, errno) : 0;
        if (error) return error;
    }
    forget_default_acls(w, NULL);
    return 0;
}

/* -- extended attributes ------------------------------------------------------------------------------------------------------------- */

/* On a descriptor, or where `path` is given on what lies there. */
static int set_xattr(struct writer *w, int fd, const char *path, const char *directory, const struct tar_xattr *xattr, const char *name) {
    if (directory && !strcmp(xattr->name, DEFAULT_ACL) && w->default_acl_bytes < DEFAULT_ACL_BYTES_MAX)
        return later(w, directory, xattr->value, xattr->size);
    int failed = path ? lsetxattr(path, xattr->name, xattr->value, xattr->size, 0) : fsetxattr(fd, xattr->name, xattr->value, xattr->size, 0);
    return failed ? refused(w, xattr->name, name, errno) : 0;
}

static int set_xattrs(struct writer *w, int fd, const char *path, const char *directory, const struct tar_member *m) {
    for (uint32_t n = 0; n < m->xattr_count; n++) {
        const struct tar_xattr *xattr = &m->xattrs[n];
        int error = 0;
        switch (xattr_wanted(xattr->name, w->as_root)) {
        case XATTR_KEEP: error = set_xattr(w, fd, path, directory, xattr, m->name); break;
        case XATTR_DROP_OVERLAY: warn_of_key(w, OVERLAY_WARNING, xattr->name, m->name); break;
        case XATTR_DROP_ROOT: add_warning(w, ROOT_WARNING, m->name); break;
        case XATTR_DROP: break;
        }
        if (error) return error;
    }
    return 0;
}

static int copy_xattr(struct writer *w, int source, int target, const char *directory, const char *key, char *value) {
    if (xattr_wanted(key, w->as_root) != XATTR_KEEP) return 0;
    ssize_t size = fgetxattr(source, key, value, LIST_MAX);
    if (size < 0) return errno == ENODATA ? 0 : -errno;
    struct tar_xattr xattr = {key, value, (uint32_t)size};
    return set_xattr(w, target, NULL, directory, &xattr, "");
}

static int copy_xattrs(struct writer *w, int source, int target, const char *directory) {
    char none;
    if (flistxattr(source, &none, 0) == 0) return 0;
    char *list = malloc(2 * LIST_MAX);
    if (!list) return -ENOMEM;
    ssize_t size = flistxattr(source, list, LIST_MAX);
    int error = size < 0 && errno != EOPNOTSUPP ? -errno : 0;
    for (const char *key = list; !error && size > 0 && key < list + size; key += strlen(key) + 1)
        error = copy_xattr(w, source, target, directory, key, list + LIST_MAX);
    free(list);
    return error;
}

/* -- all of it ----------------------------------------------------------------------------------------------------------------------- */

/* `has`: the mode it was made with; `owned`: its owner is right. A directory's times are set when it is left. */
int set_meta(struct writer *w, int fd, const struct tar_member *m, const char *directory, mode_t has, int owned) {
    mode_t mode = directory && !w->as_root ? m->mode | 0700 : m->mode;
    int error;
    if (!owned && w->as_root && fchown(fd, m->uid, m->gid)) return -errno;
    /* An ordinary user can set xattrs only on what she may write to. */
    if (!w->as_root && (error = set_xattrs(w, fd, NULL, directory, m))) return error;
    if (mode != has && fchmod(fd, mode)) return -errno;
    if (w->as_root && (error = set_xattrs(w, fd, NULL, directory, m))) return error;
    if (directory) return 0;
    struct timespec time = {m->mtime, m->mtime_ns};
    return futimens(fd, (struct timespec[2]){time, time}) ? -errno : 0;
}

/* For what must not be opened: links, devices, fifos. */
int set_meta_at(struct writer *w, struct dir *parent, const char *name, const struct tar_member *m) {
    char path[64 + NAME_MAX];
    int error = 0;
    if (!owner_is_right(w, parent, m->uid, m->gid, -1) && fchownat(parent->fd, name, m->uid, m->gid, AT_SYMLINK_NOFOLLOW)) return -errno;
    if (m->kind != TAR_SYMLINK) {
        int fd = openat(parent->fd, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
        if (fd < 0) return -errno;
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        if (chmod(path, m->mode)) error = -errno;
        close(fd);
        if (error) return error;
    }
    snprintf(path, sizeof path, "/proc/self/fd/%d/%s", parent->fd, name);
    if ((error = set_xattrs(w, -1, path, NULL, m))) return error;
    struct timespec time = {m->mtime, m->mtime_ns};
    return utimensat(parent->fd, name, (struct timespec[2]){time, time}, AT_SYMLINK_NOFOLLOW) ? -errno : 0;
}

/* Owner, mode, xattrs and times of `source` onto `target`. */
int copy_meta(struct writer *w, int source, int target, const char *directory) {
    struct stat info;
    if (fstat(source, &info)) return -errno;
    if (w->as_root && fchown(target, info.st_uid, info.st_gid)) return -errno;
    if (fchmod(target, info.st_mode & 07777)) return -errno;
    int error = copy_xattrs(w, source, target, directory);
    if (error) return error;
    return futimens(target, (struct timespec[2]){info.st_atim, info.st_mtim}) ? -errno : 0;
}

int set_opaque(struct writer *w, int fd) {
    if (w->as_root && !fsetxattr(fd, "trusted.overlay.opaque", "y", 1, 0)) return 0;
    /* Root of a user namespace may not set trusted ones, and its overlays are mounted with userxattr. */
    if ((!w->as_root || errno == EPERM) && !fsetxattr(fd, "user.overlay.opaque", "y", 1, 0)) return 0;
    int number = errno;
    return layer_fail(&w->error, FAULT_SYSTEM, number, "the image store's file system cannot mark a directory opaque: %s", strerror(number));
}
