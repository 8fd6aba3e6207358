/* The layer writer, from its beginning to its end.
 *
 *   tar_feed() ─► member(): the way to its parent, the file made ─► data(): written ─► done(): owner, mode, xattrs, times
 *                                                                                       finish: whiteouts, default ACLs, the root
 *
 * layer_members.c says what becomes of a member, layer_dirs.c finds its parent, layer_meta.c sets what is no content, layer_whiteouts.c settles whiteouts.
 * There is no fsync: who wants the layer to stay flushes its file system once.
 */
#define _GNU_SOURCE
#include "layer.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "writer.h"

#define ROOM_BYTES (64u << 20)
#define ROOM_ENTRIES 10000u

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

int too_big(struct writer *w) {
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
int is_base(struct writer *w) {
    if (w->has_lower >= 0) return !w->has_lower;
    pthread_mutex_lock(&w->lock);
    int given = w->lower_given;
    pthread_mutex_unlock(&w->lock);
    return given && !need_lower(w);
}

/* -- the parser's side --------------------------------------------------------------------------------------------------------------- */

static int on_member(void *self, const struct tar_member *m) {
    struct writer *w = self;
    w->member = *m;
    if (++w->entries > w->entries_max)
        return layer_fail(&w->error, FAULT_LIMIT, 0, "the layer is too large: it has more than %llu entries", (unsigned long long)w->entries_max);
    if (w->entries >= w->next_room_entries && check_room(w, 0)) return -1;
    return write_member(w, m);
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
