/* What becomes of each kind of member.
 *
 * Nothing is written through a link, nothing is believed about the order of members, the last entry of a name wins. A hard link to a file of a lower
 * layer copies that file up first, as link(2) on a mounted overlay would.
 *
 * https://github.com/opencontainers/image-spec/blob/main/layer.md, https://docs.kernel.org/filesystems/overlayfs.html
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "writer.h"

#define WHITEOUT ".wh."
#define AUFS ".wh..wh."
#define OPAQUE ".wh..wh..opq"
#define COPY (256u << 10)

int remove_tree(int parent, const char *name); /* native/launcher/remove.c */

static const char *const KINDS[] = {"file", "hardlink", "symlink", "char", "block", "directory", "fifo"};

/* -- names --------------------------------------------------------------------------------------------------------------------------- */

static int starts(const char *name, const char *with) {
    return !strncmp(name, with, strlen(with));
}

/* The parts of a name without "." and empty ones, split before the last. */
static int place_of(struct writer *w, const char *name, struct place *place) {
    size_t size = 0;
    int fits = strnlen(name, PATH_MAX) < PATH_MAX;
    place->name = place->path;
    for (const char *at = name; *at;) {
        size_t length = strcspn(at, "/");
        if (length == 2 && at[0] == '.' && at[1] == '.') return unsafe(w, name, "its name leads out of the image");
        if (fits && length && !(length == 1 && at[0] == '.')) {
            if (size) place->path[size++] = '/';
            place->name = place->path + size;
            memcpy(place->name, at, length);
            size += length;
        }
        at += length;
        at += *at == '/';
    }
    if (!fits) return unsafe(w, name, "its name is longer than 4095 bytes");
    place->path[size] = 0;
    place->parent_size = place->name == place->path ? 0 : (size_t)(place->name - place->path - 1);
    return 0;
}

static const char *parent_path(struct place *place) {
    if (place->name == place->path) return "";
    place->path[place->parent_size] = 0;
    return place->path;
}

static int is_root(const struct place *place) {
    return !place->name[0];
}

/* What lies below AUFS's own books or below a whiteout. 1: ignored. */
static int below_whiteout(struct writer *w, const struct tar_member *m, const struct place *place) {
    for (const char *at = place->path; at < place->name; at += strcspn(at, "/") + 1) {
        if (starts(at, AUFS)) return 1;
        if (starts(at, WHITEOUT)) return unsafe(w, m->name, "it lies below a whiteout");
    }
    return 0;
}

/* -- making things ------------------------------------------------------------------------------------------------------------------- */

static int full_path(char path[2 * PATH_MAX], const struct dir *dir, const char *name) {
    return snprintf(path, 2 * PATH_MAX, "%s%s%s", dir->path, dir->size ? "/" : "", name);
}

/* Remove what this layer has there already. 1 if it was a directory, 0 if anything else, or a negative errno. */
static int replace(struct writer *w, struct dir *dir, const char *name) {
    struct stat info;
    char path[2 * PATH_MAX];
    if (fstatat(dir->fd, name, &info, AT_SYMLINK_NOFOLLOW)) return -errno;
    if (!S_ISDIR(info.st_mode)) return unlinkat(dir->fd, name, 0) ? -errno : 0;
    full_path(path, dir, name);
    dirs_drop(w, path);
    forget_default_acls(w, path);
    int error = remove_tree(dir->fd, name);
    return error ? error : 1;
}

struct making {
    const struct tar_member *m;
    int source_fd; /* a hard link's */
    const char *source;
};

static int make(struct writer *w, struct dir *dir, const char *name, const struct making *making) {
    const struct tar_member *m = making->m;
    int result = -1;
    switch (m->kind) {
    case TAR_FILE:
        /* With its final mode where the kernel does not cut it; an ordinary user needs to write to it to set xattrs. */
        w->fd_mode = (m->mode & 0777) | (!w->as_root && m->xattr_count ? 0200 : 0);
        result = openat(dir->fd, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, w->fd_mode);
        w->fd_mode &= ~w->umask;
        break;
    case TAR_SYMLINK: result = symlinkat(m->link, dir->fd, name); break;
    case TAR_HARDLINK: result = linkat(making->source_fd, making->source, dir->fd, name, 0); break;
    case TAR_FIFO: result = mkfifoat(dir->fd, name, 0600); break;
    default: result = mknodat(dir->fd, name, (m->kind == TAR_CHAR ? S_IFCHR : S_IFBLK) | 0600, makedev(m->major, m->minor));
    }
    return result < 0 ? -errno : result;
}

/* After removing what this layer has there: the last entry of a name wins. The descriptor of a file, 0 for others, or a negative errno. */
static int create(struct writer *w, struct dir *dir, const char *name, const struct making *making) {
    dir->dirty = 1;
    int result = make(w, dir, name, making);
    if (result != -EEXIST) return result;
    result = replace(w, dir, name);
    return result < 0 ? result : make(w, dir, name, making);
}

/* -- members ------------------------------------------------------------------------------------------------------------------------- */

static int on_root(struct writer *w, const struct tar_member *m) {
    struct dir *root = &w->root;
    if (m->kind != TAR_DIRECTORY) {
        char why[64];
        snprintf(why, sizeof why, "the root cannot be a %s", KINDS[m->kind]);
        return unsafe(w, m->name, why);
    }
    int error = set_meta(w, root->fd, m, "", MODE_UNKNOWN, 0);
    if (error) return fail_errno(w, m->name, -error);
    struct timespec time = {m->mtime, m->mtime_ns};
    root->times[0] = root->times[1] = time;
    root->dirty = w->root_listed = 1;
    root->setgid = (m->mode & S_ISGID) != 0;
    return 0;
}

/* The directory itself, and whether it is new; what was there and is no directory goes. */
static int make_directory(struct writer *w, struct dir *dir, const char *name, mode_t mode, int *fresh) {
    *fresh = 1;
    if (!mkdirat(dir->fd, name, mode)) return 0;
    if (errno != EEXIST) return -errno;
    struct stat info;
    if (fstatat(dir->fd, name, &info, AT_SYMLINK_NOFOLLOW)) return -errno;
    if (S_ISDIR(info.st_mode)) return *fresh = 0;
    /* What it replaces had already hidden the directory of that name below. */
    if (unlinkat(dir->fd, name, 0) || mkdirat(dir->fd, name, mode)) return -errno;
    return hide_later(w, dir, name) ? -EALREADY : 0;
}

static int on_directory(struct writer *w, const struct tar_member *m, struct place *place) {
    char path[2 * PATH_MAX];
    struct dir *parent = dirs_enter(w, parent_path(place), m->name, 0), *dir;
    if (!parent) return -1;
    mode_t mode = (m->mode & 0777) | 0700;
    int fresh, error = make_directory(w, parent, place->name, mode, &fresh);
    if (error) return fail_errno(w, m->name, -error);
    parent->dirty |= fresh;
    size_t size = (size_t)full_path(path, parent, place->name);
    dir = dirs_find(w, path, size);
    if (!dir) {
        int setgid = parent->setgid;
        int fd = openat(parent->fd, place->name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        int owned = fd >= 0 && fresh && owner_is_right(w, parent, m->uid, m->gid, fd);
        dir = fd >= 0 ? dirs_add(w, path, size, fd) : NULL;
        error = !dir ? -errno : set_meta(w, dir->fd, m, path, fresh && !setgid ? mode & ~w->umask : MODE_UNKNOWN, owned);
    } else {
        error = set_meta(w, dir->fd, m, path, MODE_UNKNOWN, 0);
    }
    if (error) return fail_errno(w, m->name, -error);
    struct timespec time = {m->mtime, m->mtime_ns};
    dir->times[0] = dir->times[1] = time;
    dir->dirty = 1;
    dir->setgid = (m->mode & S_ISGID) != 0;
    return 0;
}

static int on_file(struct writer *w, const struct tar_member *m, struct dir *dir, const char *name) {
    struct making making = {.m = m};
    if (m->stored > w->size_max || w->size > w->size_max - m->stored) return too_big(w);
    int fd = create(w, dir, name, &making);
    if (fd < 0) return fail_errno(w, m->name, -fd);
    w->fd = fd;
    w->fd_owned = owner_is_right(w, dir, m->uid, m->gid, fd);
    w->offset = w->segment = w->segment_used = 0;
    return 0;
}

static int on_special(struct writer *w, const struct tar_member *m, struct dir *dir, const char *name) {
    struct making making = {.m = m};
    int is_device = m->kind == TAR_CHAR || m->kind == TAR_BLOCKDEV;
    if (m->kind == TAR_CHAR && !m->major && !m->minor) return add_warning(w, "left out: a device 0:0 would act as a whiteout", m->name), 0;
    if (is_device && !w->as_root) return add_warning(w, "left out: only root can make devices", m->name), 0;
    if (m->kind == TAR_SYMLINK && (!m->link[0] || strnlen(m->link, PATH_MAX) >= PATH_MAX))
        return unsafe(w, m->name, "its link target is empty or too long");
    int error = create(w, dir, name, &making);
    if (is_device && (error == -EPERM || error == -EACCES)) return add_warning(w, "left out: this root may not make devices", m->name), 0;
    if (!error) error = set_meta_at(w, dir, name, m);
    return error ? fail_errno(w, m->name, -error) : 0;
}

/* -- hard links ---------------------------------------------------------------------------------------------------------------------- */

static int copy_data(struct writer *w, int source, int target) {
    char *buffer = malloc(COPY);
    uint64_t offset = 0;
    ssize_t size = -1;
    int error = buffer ? 0 : -ENOMEM;
    while (!error && (size = read(source, buffer, COPY)) > 0) {
        if (w->size + (uint64_t)size > w->size_max) too_big(w), error = 1;
        else error = write_all(w, target, buffer, (size_t)size, offset);
        offset += (uint64_t)size;
    }
    if (!error && size < 0) error = -errno;
    free(buffer);
    return error;
}

static int copy_file(struct writer *w, int parent, struct dir *dir, const char *name) {
    struct stat info;
    int target = -1;
    /* O_NONBLOCK: what is not the file it was must not hold us. */
    int source = openat(parent, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    int error = source < 0 || fstat(source, &info) ? -errno : S_ISREG(info.st_mode) ? 0 : -EINVAL;
    if (!error) target = openat(dir->fd, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (!error && target < 0) error = -errno;
    if (!error) error = copy_data(w, source, target);
    if (!error) error = copy_meta(w, source, target, NULL);
    if (source >= 0) close(source);
    if (target >= 0) close(target);
    return error;
}

static int copy_special(struct writer *w, int parent, struct dir *dir, const char *name, const struct stat *info) {
    char target[PATH_MAX];
    int failed;
    if (S_ISLNK(info->st_mode)) {
        ssize_t size = readlinkat(parent, name, target, sizeof target);
        if (size < 0 || size >= PATH_MAX) return size < 0 ? -errno : -ENAMETOOLONG;
        target[size] = 0;
        failed = symlinkat(target, dir->fd, name);
    } else {
        failed = mknodat(dir->fd, name, (info->st_mode & S_IFMT) | 0600, info->st_rdev) || fchmodat(dir->fd, name, info->st_mode & 07777, 0);
    }
    if (!failed && w->as_root) failed = fchownat(dir->fd, name, info->st_uid, info->st_gid, AT_SYMLINK_NOFOLLOW);
    if (!failed) failed = utimensat(dir->fd, name, (struct timespec[2]){info->st_atim, info->st_mtim}, AT_SYMLINK_NOFOLLOW);
    return failed ? -errno : 0;
}

/* Bring `name` from the layers below into this one, so that it can be linked. 1: it is there now, or it is a directory; 0: they do not have it. */
static int copy_up(struct writer *w, struct dir *dir, const char *name, struct stat *info) {
    char path[2 * PATH_MAX];
    int parent;
    full_path(path, dir, name);
    if (is_hidden(w, path)) return 0;
    int found = below(w, dir->path);
    if (found > 0) found = lower_child(&w->lower, name, info, &parent);
    if (found <= 0 || S_ISDIR(info->st_mode)) return found;
    dir->dirty = 1;
    int error = S_ISREG(info->st_mode) ? copy_file(w, parent, dir, name) : copy_special(w, parent, dir, name, info);
    return error ? error > 0 ? -EALREADY : error : 1;
}

static int link_to(struct writer *w, const struct tar_member *m, struct place *place, struct dir *there, const char *target) {
    struct stat info;
    char source_path[2 * PATH_MAX], path[2 * PATH_MAX];
    int found = !fstatat(there->fd, target, &info, AT_SYMLINK_NOFOLLOW) ? 1 : errno == ENOENT ? copy_up(w, there, target, &info) : -errno;
    if (found < 0) return fail_errno(w, m->name, -found);
    if (!found)
        return layer_fail(&w->error, FAULT_WRONG, 0, "%s is a hard link to %s, which does not exist", show(m->name).text, show(m->link).text);
    if (S_ISDIR(info.st_mode)) {
        char why[512];
        snprintf(why, sizeof why, "it is a hard link to the directory %s", show(m->link).text);
        return unsafe(w, m->name, why);
    }
    full_path(source_path, there, target);
    /* The way to the other parent may close this one. */
    int source = fcntl(there->fd, F_DUPFD_CLOEXEC, 0);
    struct making making = {m, source, target};
    if (source < 0) return fail_errno(w, m->name, errno);
    struct dir *dir = dirs_enter(w, parent_path(place), m->name, 0);
    int error = 0;
    if (dir) full_path(path, dir, place->name);
    if (dir && strcmp(path, source_path) && lies_below(source_path, path)) {
        close(source);
        return layer_fail(&w->error, FAULT_WRONG, 0, "%s is a hard link to %s, which goes with the directory that it would replace",
                          show(m->name).text, show(m->link).text);
    }
    if (dir && strcmp(path, source_path)) error = create(w, dir, place->name, &making);
    close(source);
    return !dir ? -1 : error ? fail_errno(w, m->name, -error) : 0;
}

static int on_hardlink(struct writer *w, const struct tar_member *m, struct place *place) {
    struct place target;
    if (place_of(w, m->link, &target)) return -1;
    int refused = is_root(&target);
    for (const char *at = target.path; *at && !refused; at += *at == '/') {
        refused = starts(at, WHITEOUT);
        at += strcspn(at, "/");
    }
    if (refused) {
        char why[512];
        snprintf(why, sizeof why, "it is a hard link to %s", show(m->link).text);
        return unsafe(w, m->name, why);
    }
    struct dir *there = dirs_enter(w, parent_path(&target), m->name, 0);
    return there ? link_to(w, m, place, there, target.name) : -1;
}

/* -- whiteouts ----------------------------------------------------------------------------------------------------------------------- */

static int on_whiteout(struct writer *w, const struct tar_member *m, struct place *place) {
    const char *hidden = place->name + strlen(WHITEOUT);
    int opaque = !strcmp(place->name, OPAQUE);
    if (!opaque && starts(place->name, AUFS)) return 0;
    if (!opaque && (!*hidden || !strcmp(hidden, ".") || !strcmp(hidden, ".."))) return unsafe(w, m->name, "it is a whiteout of nothing");
    if (is_base(w)) return 0;
    struct dir *dir = dirs_enter(w, parent_path(place), m->name, 1);
    if (!dir && need_lower(w)) return w->error.fault ? -1 : 0;
    if (!dir) return w->error.fault = FAULT_NONE; /* with nothing below, no whiteout means anything, wherever it leads */
    if (!opaque) return hide_later(w, dir, hidden);
    if (dir->size) return hide_later(w, dir, NULL);
    w->root_opaque = 1;
    return 0;
}

/* -- one member ---------------------------------------------------------------------------------------------------------------------- */

int write_member(struct writer *w, const struct tar_member *m) {
    struct place place;
    if (place_of(w, m->name, &place)) return -1;
    int ignored = below_whiteout(w, m, &place);
    if (ignored) return ignored < 0 ? -1 : 0;
    if (is_root(&place)) return on_root(w, m);
    if (starts(place.name, WHITEOUT)) return on_whiteout(w, m, &place);
    if (m->kind == TAR_DIRECTORY) return on_directory(w, m, &place);
    if (m->kind == TAR_HARDLINK) return on_hardlink(w, m, &place);
    struct dir *dir = dirs_enter(w, parent_path(&place), m->name, 0);
    if (!dir) return -1;
    return m->kind == TAR_FILE ? on_file(w, m, dir, place.name) : on_special(w, m, dir, place.name);
}
