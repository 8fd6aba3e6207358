/* The end of what entered a sandbox where there is no cgroup to end it by: all that carries its mark, wherever in the host's /proc it is. account() in
 * keeper.c calls it.
 *
 * Who is whose child says nothing: clone(2) with CLONE_PARENT makes a sibling, and an orphan's new parent is the sandbox's init. The mark is two hard limits,
 * on locks of files, which no kernel counts, and on real-time threads, far above what one can use. A child inherits them and an exec keeps them; who has
 * lowered one raises it again only with CAP_SYS_RESOURCE in the host's own user namespace. Each entry has its own pair, one falling and one rising with the
 * time: from no mark another is reached by lowering. prlimit(2), getrlimit(2)
 */
#include "launcher.h"

enum { LIMITS = 2, SECONDS = 2, QUIET = 2, NAME = 19 /* of a directory's entry; its length at 16 */ };
#define ROOM (1ull << 61) /* nanoseconds, 73 years of the monotonic clock */

static const int limits[LIMITS] = {10 /* LOCKS */, 15 /* RTTIME */};
static uint64_t marks[LIMITS]; /* on memory that what enters and its keeper share */
static int marked, to_the_end;

/* A limit that somebody has set so low that there is no room below stays what it is; the other one does alone. */
int set_mark(uint64_t ends) {
    uint64_t moment = now_ns(1) & (ROOM - 1), below[LIMITS] = {moment, ROOM - moment};
    int lowered = 0;
    for (int i = 0; i < LIMITS; i++) {
        uint64_t limit[2]; /* soft, hard */
        sysret err = sys(NR_prlimit64, 0, limits[i], 0, limit);
        if (err < 0) return (int)err;
        marks[i] = limit[1];
        if (limit[1] < 2 * ROOM) continue;
        limit[1] = marks[i] -= below[i] + 1;
        if (limit[0] > limit[1]) limit[0] = limit[1];
        err = sys(NR_prlimit64, 0, limits[i], limit, 0);
        if (err < 0) return (int)err;
        lowered++;
    }
    if (!lowered) return -E_RANGE;
    to_the_end = ends != 0;
    marked = 1;
    return 0;
}

int ends_with_its_program(void) {
    return marked && to_the_end;
}

/* 1 when it does, 0 when not, a negative errno where it is gone or none of ours. */
static sysret carries_it(int pid) {
    for (int i = 0; i < LIMITS; i++) {
        uint64_t limit[2];
        sysret err = sys(NR_prlimit64, pid, limits[i], 0, limit);
        if (err < 0 || limit[1] > marks[i]) return err;
    }
    return 1;
}

/* Whether there was anything to end, or something was gone before it could be looked at. A number may be another's by now: so what it names is held, and
 * looked at again. The pidfd of a process is readable when all its threads have ended. */
static int end_one(int pid) {
    sysret found = carries_it(pid);
    if (found <= 0) return found == -E_SRCH;
    sysret held = sys(NR_pidfd_open, pid, 0);
    if (held < 0) return 1;
    struct pollfd_ process = {(int)held, POLL_IN, 0};
    struct timespec_ zero = {0, 0};
    int alive = !sys(NR_ppoll, &process, 1, &zero, 0, 8);
    if (alive && carries_it(pid) > 0) sys(NR_pidfd_send_signal, held, SIG_KILL, 0, 0);
    sys(NR_close, held);
    return alive;
}

/* One look at all processes, in the order of their numbers: what one of them has just forked comes later. A few at a time, since each is looked at
 * before it can be gone. Whether there was any. */
static int end_listed(int spared) {
    char entries[128] __attribute__((aligned(8)));
    int any = 0;
    sysret all = sys(NR_openat, AT_FDCWD_, "/proc", O_DIRECTORY_ | O_CLOEXEC_, 0);
    if (all < 0) return 0;
    for (sysret n; (n = sys(NR_getdents64, all, entries, sizeof entries)) > 0;)
        for (sysret at = 0; at < n; at += *(uint16_t *)(entries + at + 16)) {
            int pid = 0;
            for (const char *c = entries + at + NAME; *c >= '0' && *c <= '9'; c++) pid = pid * 10 + (*c - '0');
            if (pid && pid != spared) any |= end_one(pid);
        }
    sys(NR_close, all);
    return any;
}

/* SIGKILL to all that carries the mark, until it has ended: two seconds at most, for one that the kernel or a freezer holds. Not to `spared`: a program with
 * the ids of the sandbox's init may lower the limits of that, and could not kill it. */
void kill_marked(int spared) {
    uint64_t until = now_ns(1) + SECONDS * 1000000000ull;
    for (int quiet = 0; marked && quiet < QUIET && now_ns(1) < until;) {
        quiet = end_listed(spared) ? 0 : quiet + 1;
        if (!quiet) pause_for(1000);
    }
}
