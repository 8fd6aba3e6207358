/* The way to a member's parent.
 *
 * The directory is private and fresh, and only this writer changes it. A parent that is a real directory all the way is opened by one openat2 that
 * follows nothing. Otherwise the way is walked: a real directory is entered with O_NOFOLLOW, a symbolic link (of this layer or a lower one) is
 * expanded by hand against *this* root, ".." in a link stops at the root. So no name, no link and no combination of the two reaches the host,
 * whatever the order of members (attacks A1-A8, A15). Some directories are kept open: members come directory by directory, mostly.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "writer.h"

#define DIRECTORY (O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)

/* Our own copies: build images carry old kernel headers. */
struct how {
    uint64_t flags, mode, resolve;
};
enum { NUMBER_OPENAT2 = 437, NO_MAGICLINKS = 2, NO_SYMLINKS = 4, BENEATH = 8 };

int lies_below(const char *path, const char *top) {
    size_t size = strlen(top);
    return !size || (!strncmp(path, top, size) && (!path[size] || path[size] == '/'));
}

/* -- the open ones ------------------------------------------------------------------------------------------------------------------- */

static int leave(struct writer *w, struct dir *dir, int keep_times) {
    int result = keep_times && dir->dirty && futimens(dir->fd, dir->times) ? -errno : 0;
    if (w->current == dir) w->current = NULL;
    dir->dirty = 0;
    if (dir == &w->root) return result;
    close(dir->fd);
    free(dir->path);
    *dir = (struct dir){.fd = -1};
    return result;
}

int dirs_flush(struct writer *w) {
    int result = 0;
    for (int n = 0; n < OPEN_DIRECTORIES; n++) {
        int failed = w->dirs[n].path ? leave(w, &w->dirs[n], 1) : 0;
        if (!result) result = failed;
    }
    int failed = leave(w, &w->root, 1);
    return result ? result : failed;
}

void dirs_drop(struct writer *w, const char *path) {
    for (int n = 0; n < OPEN_DIRECTORIES; n++)
        if (w->dirs[n].path && lies_below(w->dirs[n].path, path)) leave(w, &w->dirs[n], 0);
}

struct dir *dirs_find(struct writer *w, const char *path, size_t size) {
    if (!size) return &w->root;
    uint64_t hash = path_hash(0, path, size);
    for (int n = 0; n < OPEN_DIRECTORIES; n++) {
        struct dir *dir = &w->dirs[n];
        if (dir->hash != hash || !dir->path || dir->size != size || memcmp(dir->path, path, size)) continue;
        dir->used = ++w->clock;
        return dir;
    }
    return NULL;
}

struct dir *dirs_add(struct writer *w, const char *path, size_t size, int fd) {
    struct stat info;
    struct dir *dir = &w->dirs[0];
    for (int n = 1; n < OPEN_DIRECTORIES && dir->path; n++)
        if (w->dirs[n].used < dir->used) dir = &w->dirs[n]; /* unused ones have 0 */
    char *copy = strndup(path, size);
    int error = !copy ? ENOMEM : fstat(fd, &info) ? errno : dir->path ? -leave(w, dir, 1) : 0;
    if (error) {
        free(copy);
        close(fd);
        errno = error;
        return NULL;
    }
    *dir = (struct dir){.path = copy, .size = size, .hash = path_hash(0, path, size), .used = ++w->clock, .fd = fd,
                        .setgid = (info.st_mode & S_ISGID) != 0, .times = {info.st_atim, info.st_mtim}};
    return dir;
}

static int open_real(struct writer *w, const char *path) {
    struct how how = {DIRECTORY, 0, BENEATH | NO_SYMLINKS | NO_MAGICLINKS};
    return (int)syscall(NUMBER_OPENAT2, w->root.fd, path, &how, sizeof how);
}

struct dir *dirs_real(struct writer *w, const char *path) {
    struct dir *dir = dirs_find(w, path, strlen(path));
    if (dir) return dir;
    int fd = open_real(w, path);
    return fd < 0 ? NULL : dirs_add(w, path, strlen(path), fd);
}

/* -- what is not there --------------------------------------------------------------------------------------------------------------- */

int below(struct writer *w, const char *path) {
    if (w->root_opaque) return 0;
    if (w->hidden.count)
        for (size_t at = 0;; at++) {
            if ((path[at] == '/' || !path[at]) && pathset_has(&w->hidden, path, at)) return 0;
            if (!path[at]) break;
        }
    int some = need_lower(w);
    if (some < 0) return -EALREADY;
    return some ? lower_enter(&w->lower, path) : 0;
}

/* A parent that this layer does not list: as the layers below have it (`source`, taken over), else 0755. */
static struct dir *imply(struct writer *w, struct dir *parent, const char *path, const char *name, int source) {
    struct dir *made = NULL;
    int error = 0, fd = -1;
    if (mkdirat(parent->fd, name, 0755) || (fd = openat(parent->fd, name, DIRECTORY)) < 0) {
        error = errno;
    } else {
        struct tar_member plain = {.kind = TAR_DIRECTORY, .mode = 0755};
        parent->dirty = 1;
        error = source >= 0 ? -copy_meta(w, source, fd, path) : -set_meta(w, fd, &plain, path, MODE_UNKNOWN, 0);
        if (error) close(fd);
        else if (!(made = dirs_add(w, path, strlen(path), fd))) error = errno;
    }
    if (source >= 0) close(source);
    if (!made) errno = error;
    return made;
}

enum { MADE, LINK, NOTHING, BROKEN };

/* `name` (whose path is `path`) is not in this layer: make the directory, or read the link that lies there in a lower layer. */
static int missing(struct writer *w, struct dir **dir, const char *path, const char *name, char target[PATH_MAX], int optional) {
    int source = -1;
    if (optional) {
        int some = need_lower(w);
        if (some <= 0) return some < 0 ? BROKEN : NOTHING;
    }
    if (!is_hidden(w, path)) {
        struct stat info;
        int parent, found = below(w, (*dir)->path);
        if (found > 0) found = lower_child(&w->lower, name, &info, &parent);
        if (found < 0) return errno = -found, BROKEN;
        if (found && S_ISLNK(info.st_mode)) {
            ssize_t size = readlinkat(parent, name, target, PATH_MAX);
            if (size < 0 || size >= PATH_MAX) return errno = size < 0 ? errno : ENAMETOOLONG, BROKEN;
            target[size] = 0;
            return LINK;
        }
        if (found && S_ISDIR(info.st_mode)) {
            source = openat(parent, name, DIRECTORY);
            if (source < 0) return BROKEN;
        } else if (found && hide_later(w, *dir, name)) {
            return BROKEN;
        }
    }
    *dir = imply(w, *dir, path, name, source);
    return *dir ? MADE : BROKEN;
}

/* -- the walk ------------------------------------------------------------------------------------------------------------------------ */

struct walk {
    char todo[2 * PATH_MAX]; /* components still to go */
    char here[PATH_MAX];     /* where we are: a real path */
    size_t size;             /* of `here` */
    char target[PATH_MAX];
    int links;
};

/* The link's target comes in front of what is still to go. */
static int expand(struct walk *walk, const char *rest) {
    size_t rest_size = strlen(rest), size = strlen(walk->target);
    if (++walk->links > LINKS_MAX || rest_size + size + 2 > sizeof walk->todo) return -1;
    memmove(walk->todo + size + 1, rest, rest_size + 1);
    memcpy(walk->todo, walk->target, size);
    walk->todo[size] = '/';
    return 0;
}

static void go_to(struct walk *walk, size_t size) {
    walk->size = size;
    walk->here[size] = 0;
}

static size_t parent_of(const struct walk *walk) {
    size_t size = walk->size;
    while (size && walk->here[size - 1] != '/') size--;
    return size ? size - 1 : 0;
}

/* One step into `component`. 0, 1 if walk->target is to be expanded, 2 if there is nothing and that is fine, -1 with errno. */
static int step(struct writer *w, struct walk *walk, struct dir **dir, const char *component, int optional) {
    struct stat info;
    struct dir *next = dirs_find(w, walk->here, walk->size);
    if (next) return *dir = next, 0;
    int fd = openat((*dir)->fd, component, DIRECTORY);
    if (fd >= 0) {
        next = dirs_add(w, walk->here, walk->size, fd);
        return *dir = next, next ? 0 : -1;
    }
    if (errno != ENOENT && errno != ENOTDIR && errno != ELOOP) return -1;
    if (fstatat((*dir)->fd, component, &info, AT_SYMLINK_NOFOLLOW)) {
        if (errno != ENOENT) return -1;
        int found = missing(w, dir, walk->here, component, walk->target, optional);
        return found == MADE ? 0 : found == LINK ? 1 : found == NOTHING ? 2 : -1;
    }
    if (!S_ISLNK(info.st_mode))
        return layer_fail(&w->error, FAULT_WRONG, 0, "%s is a file, but entries lie below it", show(component).text);
    ssize_t size = readlinkat((*dir)->fd, component, walk->target, sizeof walk->target);
    if (size < 0) return -1;
    if ((size_t)size >= sizeof walk->target) return errno = ENAMETOOLONG, -1;
    walk->target[size] = 0;
    return 1;
}

static struct dir *walk_to(struct writer *w, struct walk *walk, const char *path, const char *name, int optional) {
    struct dir *dir = &w->root;
    char component[NAME_MAX + 1];
    const char *at = walk->todo;
    strcpy(walk->todo, path);
    go_to(walk, 0);
    walk->links = 0;
    for (;;) {
        at += strspn(at, "/");
        size_t length = strcspn(at, "/");
        if (!length) return dir;
        if (length > NAME_MAX) return fail_errno(w, name, ENAMETOOLONG), NULL;
        memcpy(component, at, length);
        component[length] = 0;
        at += length;
        if (!strcmp(component, ".")) continue;
        if (!strcmp(component, "..")) {
            go_to(walk, parent_of(walk));
            dir = dirs_real(w, walk->here);
            if (!dir) return fail_errno(w, name, errno), NULL;
            continue;
        }
        /* A name itself was looked at before; a link can still lead to what would be a whiteout in the next archive of this tree. */
        if (!strncmp(component, ".wh.", 4)) return unsafe(w, name, "it lies below a whiteout"), NULL;
        if (walk->size + 1 + length >= sizeof walk->here) return unsafe(w, path, "links make its path longer than 4095 bytes"), NULL;
        if (walk->size) walk->here[walk->size++] = '/';
        memcpy(walk->here + walk->size, component, length);
        go_to(walk, walk->size + length);
        switch (step(w, walk, &dir, component, optional)) {
        case 0: continue;
        case 1: break;
        case 2: return NULL;
        default: return fail_errno(w, name, errno), NULL;
        }
        if (expand(walk, at)) return unsafe(w, path, "too many symbolic links lead to it"), NULL;
        at = walk->todo;
        go_to(walk, walk->target[0] == '/' ? 0 : parent_of(walk));
        if (!walk->size) dir = &w->root;
    }
}

struct dir *dirs_enter(struct writer *w, const char *path, const char *name, int optional) {
    if (w->current && !strcmp(path, w->current_name)) {
        w->current->used = ++w->clock;
        return w->current;
    }
    struct dir *dir = dirs_real(w, path);
    if (!dir) {
        if (errno != ENOENT && errno != ENOTDIR && errno != ELOOP && errno != ENOSYS) return fail_errno(w, name, errno), NULL;
        struct walk *walk = malloc(sizeof *walk);
        if (!walk) return fail_errno(w, name, ENOMEM), NULL;
        dir = walk_to(w, walk, path, name, optional);
        free(walk);
    }
    /* Good until another directory is entered, where no link led here: nothing made in a directory changes where its own real name leads. */
    w->current = dir && !strcmp(dir->path, path) ? dir : NULL;
    if (w->current) strcpy(w->current_name, path);
    return dir;
}
