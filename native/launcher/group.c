/* The end of all processes of a cgroup. cgroup.kill signals the first thread of each; where that has ended and others go on, its signal reaches nobody
 * (as of Linux 6.18). So what the group still lists is killed as a process, by a pidfd, until nothing is left: what it forked meanwhile, too.
 * Documentation/admin-guide/cgroup-v2.rst, pidfd_send_signal(2)
 */
#include "launcher.h"

enum { HELD = 64, ROUNDS = 100, DEPTH = 4 };

static int32_t listed[HELD], held[HELD];

/* The processes of the group, HELD of them at most; others have their turn when these have ended. */
static int list(int group) {
    struct numbers processes;
    if (open_numbers(&processes, group, "cgroup.procs")) return 0;
    int count = 0;
    for (int32_t number; count < HELD && (number = next_number(&processes));) listed[count++] = number;
    close_numbers(&processes);
    return count;
}

/* A number may be another's by now: it is held first, and signalled if the group lists it still. */
static int kill_listed(int group) {
    int32_t numbers[HELD];
    int count = list(group);
    for (int i = 0; i < count; i++) held[i] = (int32_t)sys(NR_pidfd_open, numbers[i] = listed[i], 0);
    int still = count ? list(group) : 0;
    for (int i = 0; i < count; i++) {
        if (held[i] < 0) continue;
        for (int j = 0; j < still; j++)
            if (listed[j] == numbers[i]) sys(NR_pidfd_send_signal, held[i], SIG_KILL, 0, 0);
        sys(NR_close, held[i]);
    }
    return count;
}

static int kill_below(int group, int depth) {
    int count = kill_listed(group);
    char entries[1024];
    for (sysret n; depth && (n = sys(NR_getdents64, group, entries, sizeof entries)) > 0;)
        for (sysret at = 0; at < n; at += *(uint16_t *)(entries + at + 16)) { /* d_reclen, d_type at 18, d_name at 19 */
            if (entries[at + 18] != 4 /* DT_DIR */ || entries[at + 19] == '.') continue;
            sysret below = sys(NR_openat, group, entries + at + 19, O_DIRECTORY_ | O_CLOEXEC_, 0);
            if (below < 0) continue;
            count += kill_below((int)below, depth - 1);
            sys(NR_close, below);
        }
    return count;
}

/* 0 where there is none, or where the kernel has no cgroup.kill. A tenth of a second at most. */
int kill_group(const char *name) {
    int done = 0;
    for (int round = 0; round < ROUNDS; round++) {
        sysret group = sys(NR_openat, SLOT_CGROUP, name, O_DIRECTORY_ | O_CLOEXEC_, 0);
        if (group < 0) return done;
        sysret fd = sys(NR_openat, group, "cgroup.kill", O_WRONLY_ | O_CLOEXEC_, 0);
        int killed = fd >= 0 && sys(NR_write, fd, "1", 1) == 1;
        if (fd >= 0) sys(NR_close, fd);
        int left = killed ? kill_below((int)group, DEPTH) : 0;
        sys(NR_close, group);
        done |= killed;
        if (!left) return done;
        pause_for(1000);
    }
    return done;
}
