/* Whiteouts and opaque directories: what this layer hides of the layers below, and never of itself, in whatever order the entries come.
 *
 * They are remembered and settled at the end, so a layer can be written before those below it are there. Until then the names are hidden all the
 * same: who looks below asks here first. In the form overlayfs takes, a whiteout is a character device 0:0, an opaque directory has the xattr
 * trusted.overlay.opaque (root) or user.overlay.opaque (ordinary user).
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "writer.h"

int hide_later(struct writer *w, const struct dir *parent, const char *name) {
    char path[2 * PATH_MAX];
    if (w->has_lower == 0) return 0;
    if (name) snprintf(path, sizeof path, "%s%s%s", parent->path, parent->size ? "/" : "", name);
    else snprintf(path, sizeof path, "%s", parent->path);
    int error = pathset_add(&w->hidden, path);
    if (error == -E2BIG) return layer_fail(&w->error, FAULT_LIMIT, 0, "the layer is too large: it hides more than %zu names", w->hidden.count);
    if (error) return fail_errno(w, path, -error);
    return 0;
}

int is_hidden(struct writer *w, const char *path) {
    return w->hidden.count && pathset_has(&w->hidden, path, strlen(path));
}

/* Whether a directory further up is opaque, so that nothing is left to hide. */
static int is_moot(struct writer *w, const char *path) {
    for (size_t at = 0; path[at]; at++)
        if (path[at] == '/' && pathset_has(&w->hidden, path, at)) return 1;
    return w->root_opaque && strchr(path, '/');
}

/* Hide what the layers below have as `name` in `dir`; what this layer has there stays. */
static int hide(struct writer *w, struct dir *dir, const char *name) {
    struct stat info;
    int parent;
    if (!fstatat(dir->fd, name, &info, AT_SYMLINK_NOFOLLOW)) {
        if (!S_ISDIR(info.st_mode)) return 0;
        int fd = openat(dir->fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (fd < 0) return -errno;
        int failed = set_opaque(w, fd);
        close(fd);
        return failed ? -EALREADY : 0;
    }
    if (errno != ENOENT) return errno == ENAMETOOLONG ? 0 : -errno;
    int found = lower_enter(&w->lower, dir->path);
    if (found > 0) found = lower_child(&w->lower, name, &info, &parent);
    if (found <= 0) return found;
    dir->dirty = 1;
    return mknodat(dir->fd, name, S_IFCHR | 0600, 0) ? -errno : 0;
}

static int hide_path(struct writer *w, char *path) {
    char *slash = strrchr(path, '/');
    if (is_moot(w, path)) return 0;
    if (slash) *slash = 0;
    /* The parent may have been replaced by something else since, which then hides all that was below it. */
    struct dir *dir = dirs_real(w, slash ? path : "");
    int error = dir ? hide(w, dir, slash ? slash + 1 : path) : errno == ENOENT || errno == ENOTDIR || errno == ELOOP ? 0 : -errno;
    if (slash) *slash = '/';
    return error;
}

/* The root cannot be opaque (overlayfs does not look there), so each of its entries below is hidden by itself. */
static int hide_root(struct writer *w) {
    for (int n = 0; n < w->lower.count; n++) {
        int fd = openat(w->lower.roots[n], ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC), error = 0;
        DIR *list = fd < 0 ? NULL : fdopendir(fd);
        if (!list) return -errno;
        for (struct dirent *entry; !error && (entry = readdir(list));)
            if (strcmp(entry->d_name, ".") && strcmp(entry->d_name, "..")) error = hide(w, &w->root, entry->d_name);
        closedir(list);
        if (error) return error;
    }
    return 0;
}

static int settle_all(struct writer *w) {
    int error = w->root_opaque ? hide_root(w) : 0;
    for (size_t n = 0; !error && n < w->hidden.capacity; n++)
        if (w->hidden.slots[n]) error = hide_path(w, w->hidden.slots[n]);
    return error;
}

int settle(struct writer *w) {
    int some = w->hidden.count || w->root_opaque || !w->root_listed ? need_lower(w) : 0;
    if (some < 0) return -1;
    int error = some ? settle_all(w) : 0;
    if (!error) error = set_default_acls(w);
    if (!error && some && !w->root_listed) {
        int root = openat(w->lower.roots[0], ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        struct stat info;
        error = root < 0 || fstat(root, &info) ? -errno : copy_meta(w, root, w->root.fd, NULL);
        w->root.times[0] = info.st_atim;
        w->root.times[1] = info.st_mtim;
        w->root.dirty = 1;
        if (root >= 0) close(root);
    }
    int failed = dirs_flush(w);
    if (!error) error = failed;
    if (error) layer_fail(&w->error, FAULT_SYSTEM, -error, "cannot finish the layer: %s", strerror(-error));
    return error ? -1 : 0;
}
