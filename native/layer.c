/* The layer writer: what becomes of each member.
 *
 *   tar_feed() ─► member(): the way to its parent, the file made ─► data(): written ─► done(): owner, mode, xattrs, times
 *                                                                                                  finish: whiteouts, default ACLs, the root
 *
 * Nothing is written through a link, nothing is believed about the order of members, the last entry of a name wins. A hard link to a file of a lower
 * layer copies that file up first, as link(2) on a mounted overlay would. There is no fsync: who wants the layer to stay flushes its file system once.
 *
 * https://github.com/opencontainers/image-spec/blob/main/layer.md, https://docs.kernel.org/filesystems/overlayfs.html
 */
#define _GNU_SOURCE
#include "layer.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <sys/sysmacros.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "writer.h"

#define WHITEOUT ".wh."
#define AUFS ".wh..wh."
#define OPAQUE ".wh..wh..opq"
#define ROOM_BYTES (64u << 20)
#define ROOM_ENTRIES 10000u
#define COPY (256u << 10)

int remove_tree(int parent, const char *name); /* remove.c */

static const char *const KINDS[] = {"file", "hardlink", "symlink", "char", "block", "directory", "fifo"};

/* -- errors, limits, warnings -------------------------------------------------------------------------------------------------------- */

int fail_errno(struct writer *w, const char *name, int number) {
    struct shown shown = show(name);
    if (number == ENAMETOOLONG)
        return layer_fail(&w->error, FAULT_WRONG, 0, "%s has a component longer than this file system allows", shown.text);
    if (number == ENOSPC || number == EDQUOT || number == EFBIG)
        return layer_fail(&w->error, FAULT_SYSTEM, number, "no room in the image store for %s: %s", shown.text, strerror(number));
    return layer_fail(&w->error, FAULT_SYSTEM, number, "cannot write %s: %s", shown.text, strerror(number));
}

int unsafe(struct writer *w, const char *name, const char *why) {
    return layer_fail(&w->error, FAULT_UNSAFE, 0, "the entry %s is not safe: %s", show(name).text, why);
}

static int too_big(struct writer *w) {
    return layer_fail(&w->error, FAULT_LIMIT, 0, "the layer is too large: it unpacks to more than %llu bytes", (unsigned long long)w->size_max);
}

/* A file system keeps some room for everybody else (attack A12). */
int check_room(struct writer *w, uint64_t coming) {
    struct statvfs room;
    w->next_room_size = w->size + ROOM_BYTES;
    w->next_room_entries = w->entries + ROOM_ENTRIES;
    if (fstatvfs(w->root.fd, &room)) return 0;
    uint64_t unit = room.f_frsize, free_bytes = room.f_bavail * unit, reserve = room.f_blocks * unit / 20;
    if (reserve > w->reserve) reserve = w->reserve;
    if (free_bytes < coming + reserve) {
        w->error.missing = coming + reserve - free_bytes;
        return layer_fail(&w->error, FAULT_ROOM, ENOSPC, "no room in the image store: %llu more bytes are needed, %llu are kept free",
                          (unsigned long long)w->error.missing, (unsigned long long)reserve);
    }
    uint64_t inodes = room.f_files / 20 < 1000 ? room.f_files / 20 : 1000;
    if (room.f_files && room.f_favail < inodes)
        return layer_fail(&w->error, FAULT_ROOM, ENOSPC, "no room in the image store: its file system has %llu inodes left",
                          (unsigned long long)room.f_favail);
    return 0;
}

void add_warning(struct writer *w, const char *why, const char *example) {
    struct warning *warning = w->warnings;
    int n = 0;
    while (n < w->warning_count && strcmp(warning[n].why, why)) n++;
    if (n == WARNINGS_MAX) return;
    if (n == w->warning_count) {
        w->warning_count++;
        snprintf(warning[n].why, sizeof warning[n].why, "%s", why);
        snprintf(warning[n].example, sizeof warning[n].example, "%s", show(example).text);
    }
    warning[n].count++;
}

const char *writer_warning(struct writer *w, int n) {
    if (n >= w->warning_count) return NULL;
    struct warning *warning = &w->warnings[n];
    int size = snprintf(warning->text, sizeof warning->text, "%s: %s", warning->why, warning->example);
    if (warning->count > 1)
        snprintf(warning->text + size, sizeof warning->text - (size_t)size, " and %llu more", (unsigned long long)warning->count - 1);
    return warning->text;
}

/* -- the layers below, from another thread ------------------------------------------------------------------------------------------- */

int writer_set_lower(struct writer *w, const int *fds, int count) {
    pthread_mutex_lock(&w->lock);
    int result = w->lower_given ? -EALREADY : lower_open(&w->lower, fds, count);
    w->lower_given = 1;
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->lock);
    return result;
}

void writer_abort(struct writer *w) {
    pthread_mutex_lock(&w->lock);
    w->aborted = 1;
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->lock);
}

static int given_up(struct writer *w) {
    return layer_fail(&w->error, FAULT_SYSTEM, ECANCELED, "given up");
}

int need_lower(struct writer *w) {
    if (w->has_lower >= 0) return w->has_lower;
    pthread_mutex_lock(&w->lock);
    while (!w->lower_given && !w->aborted) pthread_cond_wait(&w->changed, &w->lock);
    int given = w->lower_given && !w->aborted;
    pthread_mutex_unlock(&w->lock);
    if (!given) return given_up(w);
    return w->has_lower = w->lower.count > 0;
}

/* Whether it is known already that nothing lies below. */
static int is_base(struct writer *w) {
    if (w->has_lower >= 0) return !w->has_lower;
    pthread_mutex_lock(&w->lock);
    int given = w->lower_given;
    pthread_mutex_unlock(&w->lock);
    return given && !need_lower(w);
}

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

/* 0, a negative errno, or 1 where the error is set. */
int write_all(struct writer *w, int fd, const void *bytes, size_t size, uint64_t offset) {
    w->size += size;
    if (w->size >= w->next_room_size && check_room(w, size)) return 1;
    for (const char *at = bytes; size;) {
        ssize_t written = pwrite(fd, at, size, (off_t)offset);
        if (written < 0 && errno == EINTR) continue;
        if (written < 0) return -errno;
        at += written;
        offset += (uint64_t)written;
        size -= (size_t)written;
    }
    return 0;
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

/* -- the parser's side --------------------------------------------------------------------------------------------------------------- */

static int on_member(void *self, const struct tar_member *m) {
    struct writer *w = self;
    struct place place;
    w->member = *m;
    if (++w->entries > w->entries_max)
        return layer_fail(&w->error, FAULT_LIMIT, 0, "the layer is too large: it has more than %llu entries", (unsigned long long)w->entries_max);
    if (w->entries >= w->next_room_entries && check_room(w, 0)) return -1;
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

static int on_data(void *self, const void *bytes, size_t size) {
    struct writer *w = self;
    const char *at = bytes;
    if (w->fd < 0) return 0;
    while (size) {
        size_t part = size;
        uint64_t offset = w->offset;
        if (w->member.sparse) {
            const struct tar_segment *segment = &w->member.segments[w->segment];
            uint64_t left = segment->length - w->segment_used;
            if (left < part) part = (size_t)left;
            offset = segment->offset + w->segment_used;
            w->segment_used += part;
            if (w->segment_used == segment->length) w->segment_used = 0, w->segment++;
        }
        int error = write_all(w, w->fd, at, part, offset);
        if (error) return error < 0 ? fail_errno(w, w->member.name, -error) : -1;
        w->offset += part;
        at += part;
        size -= part;
    }
    return 0;
}

static int on_done(void *self) {
    struct writer *w = self;
    if (w->fd < 0) return 0;
    int error = w->member.sparse && ftruncate(w->fd, (off_t)w->member.size) ? -errno : 0;
    if (!error) error = set_meta(w, w->fd, &w->member, NULL, w->fd_mode, w->fd_owned);
    if (close(w->fd) && !error) error = -errno;
    w->fd = -1;
    return error ? fail_errno(w, w->member.name, -error) : 0;
}

/* -- the writer ---------------------------------------------------------------------------------------------------------------------- */

/* What the process takes from every mode it asks for; all of it where that cannot be known, so that every mode is set. */
static mode_t umask_now(void) {
    unsigned mask = 0777;
    char line[256];
    FILE *status = fopen("/proc/self/status", "re");
    while (status && fgets(line, sizeof line, status))
        if (sscanf(line, "Umask: %o", &mask) == 1) break;
    if (status) fclose(status);
    return mask & 0777;
}

struct writer *writer_new(int target, int as_root, uint64_t size_max, uint64_t entries_max, uint64_t reserve) {
    struct writer *w = calloc(1, sizeof *w);
    if (!w) return NULL;
    struct tar_sink sink = {w, on_member, on_data, on_done};
    struct stat info;
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->changed, NULL);
    w->size_max = size_max;
    w->entries_max = entries_max;
    w->reserve = reserve;
    w->as_root = as_root;
    w->umask = umask_now();
    w->uid = geteuid();
    w->gid = getegid();
    w->fd = -1;
    w->has_lower = -1;
    w->warnings = calloc(WARNINGS_MAX, sizeof *w->warnings);
    w->tar = tar_new(&sink, &w->error);
    w->root.path = strdup("");
    for (int n = 0; n < OPEN_DIRECTORIES; n++) w->dirs[n].fd = -1;
    w->root.fd = fcntl(target, F_DUPFD_CLOEXEC, 0);
    if (!w->warnings || !w->tar || !w->root.path || w->root.fd < 0 || fchmod(w->root.fd, 0755) || fstat(w->root.fd, &info)) {
        int number = errno;
        writer_free(w);
        errno = number;
        return NULL;
    }
    /* The store's directory may have a default ACL; the image's root has none of it. */
    fremovexattr(w->root.fd, "system.posix_acl_default");
    w->root.setgid = (info.st_mode & S_ISGID) != 0;
    w->root.times[0] = info.st_atim;
    w->root.times[1] = info.st_mtim;
    return w;
}

int writer_feed(struct writer *w, const void *bytes, size_t size) {
    if (w->aborted) return given_up(w);
    return tar_feed(w->tar, bytes, size);
}

int writer_finish(struct writer *w) {
    if (w->aborted) return given_up(w);
    return tar_finish(w->tar) ? -1 : settle(w);
}

const struct layer_error *writer_error(const struct writer *w) {
    return &w->error;
}

uint64_t writer_size(const struct writer *w) {
    return w->size;
}

uint64_t writer_entries(const struct writer *w) {
    return w->entries;
}

void writer_free(struct writer *w) {
    if (!w) return;
    if (w->fd >= 0) close(w->fd);
    for (int n = 0; n < OPEN_DIRECTORIES; n++) {
        if (w->dirs[n].fd >= 0) close(w->dirs[n].fd);
        free(w->dirs[n].path);
    }
    if (w->root.fd >= 0) close(w->root.fd);
    free(w->root.path);
    tar_free(w->tar);
    lower_close(&w->lower);
    pathset_free(&w->hidden);
    forget_default_acls(w, NULL);
    free(w->warnings);
    pthread_mutex_destroy(&w->lock);
    pthread_cond_destroy(&w->changed);
    free(w);
}
