/* Looking up a directory as the merged layers show it: whiteouts, opaque directories, no links.
 *
 * A walk goes component by component on descriptors with O_NOFOLLOW, in all layers that add to the directory at once. Who comes to a symbolic link
 * expands it by hand against the root of the image, so a link leads nowhere else.
 *
 * https://docs.kernel.org/filesystems/overlayfs.html
 */
#define _GNU_SOURCE
#include "lower.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/xattr.h>
#include <unistd.h>

int is_whiteout(const struct stat *info) {
    return S_ISCHR(info->st_mode) && info->st_rdev == 0;
}

static int is_opaque(int fd) {
    static const char *const keys[] = {"trusted.overlay.opaque", "user.overlay.opaque"};
    char value[2];
    for (int n = 0; n < 2; n++)
        if (fgetxattr(fd, keys[n], value, sizeof value) == 1 && value[0] == 'y') return 1;
    return 0;
}

static void to_root(struct lower *lower) {
    if (lower->path[0])
        for (int n = 0; n < lower->here_count; n++) close(lower->here[n]);
    lower->path[0] = 0;
    lower->here_count = lower->count;
    if (lower->count) memcpy(lower->here, lower->roots, sizeof(int) * (size_t)lower->count);
}

int lower_open(struct lower *lower, const int *fds, int count) {
    *lower = (struct lower){0};
    if (!count) return 0;
    lower->roots = calloc(3 * (size_t)count, sizeof(int));
    if (!lower->roots) return -ENOMEM;
    lower->here = lower->roots + count;
    lower->next = lower->here + count;
    for (; lower->count < count; lower->count++) {
        lower->roots[lower->count] = fcntl(fds[lower->count], F_DUPFD_CLOEXEC, 0);
        if (lower->roots[lower->count] < 0) return -errno;
    }
    to_root(lower);
    return 0;
}

void lower_close(struct lower *lower) {
    if (!lower->roots) return;
    to_root(lower);
    for (int n = 0; n < lower->count; n++) close(lower->roots[n]);
    free(lower->roots);
    *lower = (struct lower){0};
}

int lower_child(struct lower *lower, const char *name, struct stat *info, int *parent) {
    for (int n = 0; n < lower->here_count; n++) {
        if (!fstatat(lower->here[n], name, info, AT_SYMLINK_NOFOLLOW)) {
            *parent = lower->here[n];
            return !is_whiteout(info);
        }
        if (errno != ENOENT && errno != ENAMETOOLONG) return -errno;
    }
    return 0;
}

/* Down into `name`: 1, 0 if it is no directory, or a negative errno. */
static int step(struct lower *lower, const char *name) {
    int count = 0, error = 0;
    for (int n = 0; n < lower->here_count; n++) {
        int fd = openat(lower->here[n], name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (fd < 0) {
            if (errno == ENOENT) continue;
            if (errno == ENOTDIR || errno == ELOOP) break; /* a file, a link or a whiteout hides what is further down */
            if (errno != ENAMETOOLONG) error = -errno;
            break;
        }
        lower->next[count++] = fd;
        if (is_opaque(fd)) break;
    }
    if (error || !count) {
        while (count) close(lower->next[--count]);
        return error;
    }
    if (lower->path[0])
        for (int n = 0; n < lower->here_count; n++) close(lower->here[n]);
    int *before = lower->here;
    lower->here = lower->next;
    lower->here_count = count;
    lower->next = before;
    return 1;
}

int lower_enter(struct lower *lower, const char *path) {
    if (!lower->count) return 0;
    size_t size = strlen(lower->path);
    if (size && (strncmp(path, lower->path, size) || (path[size] && path[size] != '/'))) {
        to_root(lower);
        size = 0;
    }
    if (strlen(path) >= sizeof lower->path) return 0;
    for (const char *rest = path + size; *rest;) {
        char name[NAME_MAX + 1];
        rest += *rest == '/';
        size_t length = strcspn(rest, "/");
        int found = 0;
        if (length < sizeof name) {
            memcpy(name, rest, length);
            name[length] = 0;
            found = step(lower, name);
        }
        if (found <= 0) {
            to_root(lower);
            return found;
        }
        rest += length;
        size = (size_t)(rest - path);
        memcpy(lower->path, path, size);
        lower->path[size] = 0;
    }
    return 1;
}
