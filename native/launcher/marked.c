/* The end of what entered a sandbox where there is no cgroup to end it by: all that carries its mark, wherever in the host's /proc it is. account() in
 * keeper.c calls it.
 *
 * Who is whose child says nothing: clone(2) with CLONE_PARENT makes a sibling, and an orphan's new parent is the sandbox's init. The mark is two hard limits,
 * of three that have no effect so high: on locks of files and on resident memory, which no kernel counts, and on real-time threads. A child inherits them and
 * an exec keeps them; who has lowered one raises it again only with CAP_SYS_RESOURCE in the host's own user namespace. Each entry has its own pair, one
 * falling and one rising with the time: from no mark another is reached by lowering. prlimit(2), getrlimit(2)
 *
 *   unlimited before      the mark
 *   all three             LOCKS falling, RTTIME rising, both below the marks of the others: with the third nobody makes one of those
 *   LOCKS and RTTIME      LOCKS falling, RTTIME rising
 *   LOCKS and RSS         LOCKS falling, RSS rising
 *   RTTIME and RSS        RTTIME falling, RSS rising
 *
 * What carries it has no limit above those that the marked one had, the third among them.
 *
 * A process outside may have limits as low, by its owner's wish. So it has to be in the sandbox's PID namespace, too, or in one below: no process leaves its own,
 * and makes others there alone. pid_namespaces(7)
 */
#include "launcher.h"

enum { LIMITS = 3, SECONDS = 2, QUIET = 2, NAME = 19 /* of a directory's entry; its length at 16 */, TICK = 10000000 /* nanoseconds, of proc_pid_stat(5) */ };
enum { MOST_PIDS = 1 << 22 /* where the host does not say: 64-bit kernels have no more, proc_sys_kernel(5) */ };
#define UNLIMITED (~0ull)
#define ROOM (1ull << 61) /* nanoseconds, 73 years of the monotonic clock */
#define LOW (1ull << 63)  /* what others set is below, marks are above */

static const int limits[LIMITS] = {10 /* LOCKS */, 15 /* RTTIME */, 5 /* RSS */};
static uint64_t marks[LIMITS]; /* on memory that what enters and its keeper share */
static struct facts processes; /* the sandbox's PID namespace, where it has its own */
static int marked, to_the_end, has_own_pids;

/* `pids`: a descriptor of the sandbox's PID namespace, -1 where that is the host's. -E_RANGE where fewer than two are unlimited, and under another mark: whatever is
 * below that, its keeper kills. */
int set_mark(uint64_t ends, int pids) {
    uint64_t moment = now_ns(1) & (ROOM - 1), below[2] = {moment + 1, ROOM - moment};
    int unlimited[LIMITS], count = 0;
    has_own_pids = pids >= 0 && facts_of(pids, &processes) == 0;
    for (int i = 0; i < LIMITS; i++) {
        uint64_t limit[2]; /* soft, hard */
        sysret err = sys(NR_prlimit64, 0, limits[i], 0, limit);
        if (err < 0) return (int)err;
        marks[i] = limit[1];
        if (limit[1] == UNLIMITED) unlimited[count++] = i;
        else if (limit[1] >= LOW) return -E_RANGE;
    }
    if (count < 2) return -E_RANGE;
    for (int n = 0; n < 2; n++) {
        int i = unlimited[n];
        uint64_t limit[2];
        sysret err = sys(NR_prlimit64, 0, limits[i], 0, limit);
        if (err < 0) return (int)err;
        limit[1] = marks[i] -= below[n] + (count == LIMITS ? 2 * ROOM : 0);
        if (limit[0] > limit[1]) limit[0] = limit[1];
        err = sys(NR_prlimit64, 0, limits[i], limit, 0);
        if (err < 0) return (int)err;
    }
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
        sysret err = marks[i] == UNLIMITED ? 0 : sys(NR_prlimit64, pid, limits[i], 0, limit);
        if (err < 0 || (marks[i] != UNLIMITED && limit[1] > marks[i])) return err;
    }
    return 1;
}

static uint64_t until, began; /* when the two seconds are over; when they began, in ticks of the boot clock */
static int hidden, young;     /* whether this procfs hides some; whether something that has begun since then was found alive when they were over */

/* Whether it has begun since we did, and is not held by the kernel or a freezer: state D. What ends slowly is older, since what has been killed forks no
 * more. The third and the twenty-second field of its stat, proc_pid_stat(5). */
static int is_young(int pid) {
    char path[64], text[1024];
    uint64_t start = 0;
    path[put_text(path, put_number(path, put_text(path, 0, "/proc/"), (uint64_t)pid, 1), "/stat")] = 0;
    sysret fd = sys(NR_openat, AT_FDCWD_, path, O_CLOEXEC_, 0);
    if (fd < 0) return hidden;
    sysret n = sys(NR_read, fd, text, sizeof text), end = n;
    sys(NR_close, fd);
    while (n > 0 && text[n - 1] != ')') n--; /* a name may hold anything */
    if (n <= 0 || n + 1 >= end || text[n + 1] == 'D') return 0;
    for (int field = 2; n < end && field <= 22; n++) {
        if (text[n] == ' ') field++;
        else if (field == 22) start = start * 10 + (uint64_t)(text[n] - '0');
    }
    return start > began;
}

/* Whether a process that must not be looked into is not in the PID namespace of /proc, which is the keeper's, by the number that each of its namespaces has for it:
 * proc_pid_fdinfo(5). Also 1 where the kernel does not say. */
static int is_below_ours(int held) {
    static const char word[] = "\nNSpid:";
    char path[64], text[512];
    path[put_number(path, put_text(path, 0, "/proc/self/fdinfo/"), (uint64_t)held, 1)] = 0;
    sysret fd = sys(NR_openat, AT_FDCWD_, path, O_CLOEXEC_, 0), n = fd < 0 ? 0 : sys(NR_read, fd, text, sizeof text);
    int found = 0, numbers = 0;
    if (fd >= 0) sys(NR_close, fd);
    for (sysret i = 0; i < n && !(word[found] == 0 && text[i] == '\n'); i++) {
        if (word[found] == 0) numbers += text[i] == '\t';
        else found = text[i] == word[found] ? found + 1 : text[i] == '\n';
    }
    return word[found] != 0 || numbers > 1;
}

/* Whether it is in the sandbox's PID namespace or in one below. `held`: its pidfd. ioctl_ns(2) */
static int is_inside(int pid, int held) {
    char path[64];
    if (!has_own_pids) return 1;
    path[put_text(path, put_number(path, put_text(path, 0, "/proc/"), (uint64_t)pid, 1), "/ns/pid")] = 0;
    sysret space = sys(NR_openat, AT_FDCWD_, path, O_CLOEXEC_, 0);
    if (space < 0) return is_below_ours(held);
    for (;;) {
        struct facts its = {0};
        int found = facts_of((int)space, &its) == 0 && same(&its, &processes);
        sysret above = found ? 0 : sys(NR_ioctl, space, 0xB702 /* NS_GET_PARENT */);
        sys(NR_close, space);
        if (found || above < 0) return found;
        space = above;
    }
}

/* Whether there was anything to end. A number may be another's by now: so what it names is held, and looked at again. The pidfd of a process is readable when
 * all its threads have ended; a thread has none. */
static int end_one(int pid) {
    if (carries_it(pid) <= 0) return 0;
    sysret held = sys(NR_pidfd_open, pid, 0);
    if (held < 0) return held != -E_SRCH && held != -E_INVAL && held != -E_NOENT;
    struct pollfd_ process = {(int)held, POLL_IN, 0};
    struct timespec_ zero = {0, 0};
    int alive = !sys(NR_ppoll, &process, 1, &zero, 0, 8) && is_inside(pid, (int)held);
    if (alive && now_ns(1) >= until && !young) young = is_young(pid);
    if (alive && carries_it(pid) > 0) sys(NR_pidfd_send_signal, held, SIG_KILL, 0, 0);
    sys(NR_close, held);
    return alive;
}

/* One look at all processes, in the order of their numbers: what one of them has just forked comes later. A few at a time, since each is looked at
 * before it can be gone. While some fork all the time, it has no end. Whether there was any. */
static int end_listed(int spared) {
    char entries[128] __attribute__((aligned(8)));
    int any = 0;
    sysret all = sys(NR_openat, AT_FDCWD_, "/proc", O_DIRECTORY_ | O_CLOEXEC_, 0);
    if (all < 0) return 0;
    for (sysret n; !young && (n = sys(NR_getdents64, all, entries, sizeof entries)) > 0;)
        for (sysret at = 0; at < n; at += *(uint16_t *)(entries + at + 16)) {
            int pid = 0;
            for (const char *c = entries + at + NAME; *c >= '0' && *c <= '9'; c++) pid = pid * 10 + (*c - '0');
            if (pid && pid != spared) any |= end_one(pid);
        }
    sys(NR_close, all);
    return any;
}

/* The same by all numbers that there can be. */
static int end_numbered(int spared, int most) {
    int any = 0;
    for (int pid = 1; pid <= most && !young; pid++)
        if (pid != spared) any |= end_one(pid);
    return any;
}

/* Whether this procfs hides processes that we may kill: the sandbox's init is one that we must not look into. hidepid in proc(5) */
static int hides(int init) {
    char path[64];
    uint64_t limit[2];
    path[put_number(path, put_text(path, 0, "/proc/"), (uint64_t)init, 1)] = 0;
    return init && sys(NR_faccessat, AT_FDCWD_, path, 0) == -E_NOENT && sys(NR_prlimit64, init, limits[0], 0, limit) != -E_SRCH;
}

static int most_pids(void) {
    struct numbers from;
    int most = 0;
    if (open_numbers(&from, AT_FDCWD_, "/proc/sys/kernel/pid_max")) return MOST_PIDS;
    most = next_number(&from);
    close_numbers(&from);
    return most > 0 ? most : MOST_PIDS;
}

/* SIGKILL to all that carries the mark, until it has ended: two seconds at most, for one that the kernel or a freezer holds. Not to `spared`: a program with
 * the ids of the sandbox's init may lower the limits of that, and could not kill it. 1: there are always new ones. */
int kill_marked(int spared) {
    if (!marked) return 0;
    until = now_ns(1) + SECONDS * 1000000000ull;
    began = now_ns(7 /* BOOTTIME */) / TICK;
    hidden = hides(spared);
    young = 0;
    int most = hidden ? most_pids() : 0;
    for (int quiet = 0; quiet < (hidden ? 1 : QUIET);) {
        int late = now_ns(1) >= until;
        quiet = (hidden ? end_numbered(spared, most) : end_listed(spared)) ? 0 : quiet + 1;
        if (young || (late && !quiet)) return young;
        if (!quiet) pause_for(1000);
    }
    return 0;
}
