/* The end of what entered a sandbox where there is no cgroup to end it by: everything below its own process, found by procfs. kill_tree() in keeper.c calls it.
 *
 * That process adopts the orphans among its descendants (SUBREAPER in its plan), and it is stopped first, so nothing leaves the tree meanwhile: once it has
 * ended, they are the sandbox's. Its parent is stopped too, because that forwards signals, and a SIGCONT would wake it. What a process forks while it is
 * being killed is found in the next round. proc(5), /proc/PID/task/TID/children
 */
#include "launcher.h"

enum { MOST = 4096, ROUNDS = 1024, ROOM = 4096, LOOKS = 5000 };

static int32_t found[MOST], parents[MOST];
static int gone, ended; /* of a round: children that were gone when they were looked at, and those that nobody has waited for */

static uint64_t task_path(char *path, int pid) {
    return put_text(path, put_number(path, put_text(path, 0, "/proc/"), (uint64_t)pid, 1), "/task");
}

struct stat_of {
    int parent, threads;
    char state;
};

/* Three fields of its stat: the fourth, the twentieth and the third; no parent where it is gone. proc_pid_stat(5) */
static struct stat_of stat_of(int pid) {
    struct stat_of it = {0, 0, 0};
    char path[64], text[512];
    path[put_text(path, put_number(path, put_text(path, 0, "/proc/"), (uint64_t)pid, 1), "/stat")] = 0;
    sysret fd = sys(NR_openat, AT_FDCWD_, path, O_CLOEXEC_, 0);
    if (fd < 0) return it;
    sysret n = sys(NR_read, fd, text, sizeof text), end = n;
    sys(NR_close, fd);
    while (n > 0 && text[n - 1] != ')') n--; /* a name may hold anything */
    if (n > 0 && n + 1 < end) it.state = text[n + 1];
    for (int field = 2; n < end && field <= 20; n++) {
        if (text[n] == ' ') field++;
        if (text[n] < '0' || text[n] > '9') continue;
        if (field == 4) it.parent = it.parent * 10 + (text[n] - '0');
        if (field == 20) it.threads = it.threads * 10 + (text[n] - '0');
    }
    return it;
}

static int add_child(int pid, int count) {
    struct stat_of child = stat_of(pid);
    if (!child.parent)
        gone++;
    else if (child.state == 'Z' && child.threads < 2) /* the first thread may end before the others */
        ended++;
    else if (count < MOST)
        found[count++] = pid;
    return count;
}

/* Appends the children of one thread, but those that have ended: they have no children of their own, and there may be any number of them. */
static int children_of(int tasks, const char *thread, int count) {
    char path[64];
    path[put_text(path, put_text(path, 0, thread), "/children")] = 0;
    struct numbers children;
    if (open_numbers(&children, tasks, path)) return count;
    for (int32_t number; (number = next_number(&children));) count = add_child(number, count);
    close_numbers(&children);
    return count;
}

static int children_of_all(int pid, int count) {
    char path[64], entries[ROOM];
    path[task_path(path, pid)] = 0;
    sysret tasks = sys(NR_openat, AT_FDCWD_, path, O_DIRECTORY_ | O_CLOEXEC_, 0);
    if (tasks < 0) return count;
    for (sysret n; (n = sys(NR_getdents64, tasks, entries, sizeof entries)) > 0;)
        for (sysret at = 0; at < n; at += *(uint16_t *)(entries + at + 16)) /* d_reclen, d_name at 19 */
            if (entries[at + 19] != '.') count = children_of((int)tasks, entries + at + 19, count);
    sys(NR_close, tasks);
    return count;
}

/* A number may be another's by now. So what it names is held first, by a pidfd, and is signalled only if what is held is still below us: the parent that
 * we saw, or who adopted it. */
static void signal_child(int pid, int parent, int adopter, int number) {
    sysret held = sys(NR_pidfd_open, pid, 0);
    if (held < 0) return;
    int now = stat_of(pid).parent;
    if (now && (now == parent || now == adopter)) sys(NR_pidfd_send_signal, held, number, 0, 0);
    sys(NR_close, held);
}

/* Returns when it is stopped, or has ended: until then it may be about to pass on a signal, or to fork. Half a second at most, all calls of one end
 * together: a neighbour may send it SIGCONT for ever. */
static void stop(int pid, int parent, int *looks) {
    signal_child(pid, parent, parent, SIG_STOP);
    for (struct stat_of it; *looks; --*looks) {
        it = stat_of(pid);
        if (it.parent != parent || it.state == 'T' || it.state == 't' || it.state == 'Z') return;
        pause_for(100);
    }
}

/* SIGKILL to the only child of `above`, and to everything below it; that child last. `above` is our own child, and nobody has waited for it; it
 * stays stopped: its own end is the caller's to make. */
void kill_descendants(int above) {
    if (children_of_all(above, 0) < 1) return;
    int own = found[0], looks = LOOKS;
    stop(above, (int)sys(NR_getpid), &looks);
    stop(own, above, &looks);
    for (int round = 0, quiet = 0, before = -1; round < ROUNDS && quiet < 2; round++) { /* while children end, a list may leave others out */
        gone = ended = 0;
        int count = children_of_all(own, 0), known = count;
        for (int i = 0; i < known; i++) parents[i] = own;
        for (int i = 0; i < count; i++) {
            count = children_of_all(found[i], count);
            while (known < count) parents[known++] = found[i];
        }
        int still = !count && !gone && ended == before; /* what has ended since the last round may have forked first */
        quiet = still ? quiet + 1 : 0;
        before = ended;
        while (count--) signal_child(found[count], parents[count], own, SIG_KILL);
        if (!still) pause_for(1000);
        stop(own, above, &looks);
    }
    signal_child(own, above, above, SIG_KILL);
}
