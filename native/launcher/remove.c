/* Remove a tree that strangers made: of any depth, with any permissions, never following a link.
 *
 * One fd is enough for any depth: go down where a directory is not empty, up when it is, and read each directory from its start again, where the child just
 * left is now an empty directory that goes like a file. The sandbox that made it should be dead, but a process of it may just be finishing a rename: so the way
 * up ends at the directory where it began, and never goes up more often than it went down.
 */
#include "ops.h"

enum { REMOVEDIR = 0x200 };

struct entry {
    uint64_t ino, off;
    uint16_t length;
    uint8_t type;
    char name[];
};

static int is_dots(const char *name) {
    return name[0] == '.' && (!name[1] || (name[1] == '.' && !name[2]));
}

/* A directory of ours to work in, whatever its mode was. The mode is changed by descriptor: fchmodat(2) would follow a link. */
static sysret enter(int parent, const char *name) {
    const uint64_t flags = O_DIRECTORY_ | O_NOFOLLOW_ | O_CLOEXEC_;
    sysret fd = sys(NR_openat, parent, name, flags, 0);
    if (fd != -E_ACCES) return fd;
    sysret closed = sys(NR_openat, parent, name, flags | O_PATH_, 0);
    if (closed < 0) return closed;
    char path[40];
    path[put_number(path, put_text(path, 0, "/proc/self/fd/"), (uint64_t)closed, 1)] = 0;
    sysret err = sys(NR_fchmodat, AT_FDCWD_, path, 0700);
    fd = err < 0 ? err : sys(NR_openat, AT_FDCWD_, path, O_DIRECTORY_ | O_CLOEXEC_, 0);
    sys(NR_close, closed);
    return fd;
}

/* 0: gone. 1: a directory that is not empty. */
static int drop(int directory, const char *name) {
    sysret err = sys(NR_unlinkat, directory, name, 0);
    if (err == -E_ISDIR || err == -E_PERM) err = sys(NR_unlinkat, directory, name, REMOVEDIR);
    if (err == 0 || err == -E_NOENT) return 0;
    return err == -E_NOTEMPTY || err == -E_EXIST ? 1 : (int)err;
}

/* Empties the directory as far as it has no full directories in it: 0 when it is empty, an fd of the first full one, or a negative errno. */
static sysret sweep(int directory) {
    char entries[4096] __attribute__((aligned(8)));
    sys(NR_lseek, directory, 0, 0);
    for (int made_writable = 0;;) {
        sysret bytes = sys(NR_getdents64, directory, entries, sizeof entries);
        if (bytes <= 0) return bytes;
        for (sysret at = 0; at < bytes;) {
            struct entry *e = (struct entry *)(entries + at);
            at += e->length;
            if (is_dots(e->name)) continue;
            int full = drop(directory, e->name);
            if (full == -E_ACCES && !made_writable++) {
                sys(NR_fchmodat, directory, ".", 0700);
                full = drop(directory, e->name);
            }
            if (full < 0) return full;
            if (full) return enter(directory, e->name);
        }
    }
}

/* Empties the tree below an fd, which it closes. */
static int empty(sysret current) {
    struct facts top = {0}, here = {0};
    facts_of((int)current, &top);
    for (uint64_t depth = 0; current >= 0;) {
        sysret next = sweep((int)current);
        if (next == 0) {
            facts_of((int)current, &here);
            if (same(&here, &top)) break;
            next = depth-- ? sys(NR_openat, current, "..", O_DIRECTORY_ | O_CLOEXEC_, 0) : -E_AGAIN;
        } else if (next > 0) {
            depth++;
        }
        sys(NR_close, current);
        current = next;
    }
    if (current < 0) return (int)current;
    sys(NR_close, current);
    return 0;
}

int remove_tree(int parent, const char *name) {
    enum { TOGETHER = 100 /* others that remove it as well */ };
    for (int i = 0;; i++) {
        sysret top = enter(parent, name);
        if (top == -E_NOENT) return 0;
        if (top < 0) return (int)top;
        int err = empty(top);
        if (err == 0) err = (int)sys(NR_unlinkat, parent, name, REMOVEDIR);
        if (err != -E_NOENT || i == TOGETHER) return err;
    }
}
