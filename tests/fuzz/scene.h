/* A place for fuzzing what writes files: a tmpfs in a mount namespace where everything else is read-only. Needs root, or user namespaces. */
#ifndef DOCKLESS_SCENE_H
#define DOCKLESS_SCENE_H

#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "hold.h"

static int place; /* the tmpfs */

static void write_file(const char *path, const char *text) {
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0) return;
    HOLD(write(fd, text, strlen(text)) == (ssize_t)strlen(text));
    close(fd);
}

struct attributes {
    uint64_t set, clear, propagation, userns;
};

/* Only the tmpfs and the directory that we stand in stay writable: libFuzzer keeps corpus and findings below it. */
static void enter(void) {
    char here[PATH_MAX], ids[64];
    uid_t uid = geteuid();
    gid_t gid = getegid();
    HOLD(getcwd(here, sizeof here));
    if (uid) {
        HOLD(!unshare(CLONE_NEWUSER | CLONE_NEWNS));
        write_file("/proc/self/setgroups", "deny");
        snprintf(ids, sizeof ids, "0 %u 1", uid);
        write_file("/proc/self/uid_map", ids);
        snprintf(ids, sizeof ids, "0 %u 1", gid);
        write_file("/proc/self/gid_map", ids);
    } else {
        HOLD(!unshare(CLONE_NEWNS));
    }
    HOLD(!mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL));
    HOLD(!mount(here, here, NULL, MS_BIND, NULL) && !chdir(here));
    HOLD(!mount("fuzz", "/mnt", "tmpfs", 0, "size=96m,mode=0755"));
    struct attributes attributes = {.set = 1 /* MOUNT_ATTR_RDONLY */};
    HOLD(!syscall(442 /* mount_setattr */, AT_FDCWD, "/", AT_RECURSIVE, &attributes, sizeof attributes));
    attributes = (struct attributes){.clear = 1};
    HOLD(!syscall(442, AT_FDCWD, "/mnt", 0, &attributes, sizeof attributes) && !syscall(442, AT_FDCWD, here, 0, &attributes, sizeof attributes));
    place = open("/mnt", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    HOLD(place >= 0);
}

#endif
