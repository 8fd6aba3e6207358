/* The end of what entered a sandbox where there is no cgroup to end it by: everything below its own process, found by procfs. kill_tree() in keeper.c calls it.
 *
 * That process adopts the orphans among its descendants (SUBREAPER in its plan), and it is stopped first, so nothing leaves the tree meanwhile: once it has
 * ended, they are the sandbox's. Its parent is stopped too, because that forwards signals, and a SIGCONT would wake it. What a process forks while it is
 * being killed is found in the next round. proc(5), /proc/PID/task/TID/children
 */
#include "launcher.h"

enum { MOST = 4096, ROUNDS = 1024, ROOM = 4096, LOOKS = 5000 };

static int32_t found[MOST], parents[MOST];

static uint64_t task_path(char *path, int pid) {
    return put_text(path, put_number(path, put_text(path, 0, "/proc/"), (uint64_t)pid, 1), "/task");
}

/* Appends the children of one thread. */
static int children_of(int tasks, const char *thread, int count) {
    char path[64], text[ROOM];
    uint64_t at = put_text(path, put_text(path, 0, thread), "/children");
    path[at] = 0;
    sysret fd = sys(NR_openat, tasks, path, O_CLOEXEC_, 0);
    if (fd < 0) return count;
    int32_t number = 0;
    for (sysret n; (n = sys(NR_read, fd, text, sizeof text)) > 0;)
        for (sysret i = 0; i < n; i++) {
            if (text[i] >= '0' && text[i] <= '9') {
                number = number * 10 + (text[i] - '0');
                continue;
            }
            if (number && count < MOST) found[count++] = number;
            number = 0;
        }
    sys(NR_close, fd);
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

/* The fourth field of its stat, and the third; 0 for what is gone. proc_pid_stat(5) */
static int parent_of(int pid, char *state) {
    char path[64], text[512];
    path[put_text(path, put_number(path, put_text(path, 0, "/proc/"), (uint64_t)pid, 1), "/stat")] = 0;
    sysret fd = sys(NR_openat, AT_FDCWD_, path, O_CLOEXEC_, 0);
    if (fd < 0) return 0;
    sysret n = sys(NR_read, fd, text, sizeof text), parent = 0;
    sys(NR_close, fd);
    while (n > 0 && text[n - 1] != ')') n--; /* a name may hold anything */
    *state = n > 0 && n + 1 < (sysret)sizeof text ? text[n + 1] : 0;
    for (n += 3; n > 3 && n < (sysret)sizeof text && text[n] >= '0' && text[n] <= '9'; n++) parent = parent * 10 + (text[n] - '0');
    return (int)parent;
}

/* A number may be another's by now. So what it names is held first, by a pidfd, and is signalled only if what is held is still below us: the parent that
 * we saw, or who adopted it. 1: it had not ended. */
static int signal_child(int pid, int parent, int adopter, int number) {
    sysret held = sys(NR_pidfd_open, pid, 0);
    if (held < 0) return 0;
    char state;
    int now = parent_of(pid, &state);
    if (now && (now == parent || now == adopter)) sys(NR_pidfd_send_signal, held, number, 0, 0);
    sys(NR_close, held);
    return now && state != 'Z';
}

/* Returns when it is stopped, or has ended: until then it may be about to pass on a signal, or to fork. Half a second at most, all calls of one end
 * together: a neighbour may send it SIGCONT for ever. */
static void stop(int pid, int parent, int *looks) {
    char state = 0;
    signal_child(pid, parent, parent, SIG_STOP);
    for (; *looks && parent_of(pid, &state) == parent && state != 'T' && state != 't' && state != 'Z'; --*looks) pause_for(100);
}

/* SIGKILL to the only child of `above`, and to everything below it; that child last. `above` is our own child, and nobody has waited for it; it
 * stays stopped: its own end is the caller's to make. */
void kill_descendants(int above) {
    if (children_of_all(above, 0) < 1) return;
    int own = found[0], looks = LOOKS;
    stop(above, (int)sys(NR_getpid), &looks);
    stop(own, above, &looks);
    for (int round = 0, quiet = 0; round < ROUNDS && quiet < 2; round++) { /* while children end, a list may leave others out */
        int alive = 0, count = children_of_all(own, 0), known = count;
        for (int i = 0; i < known; i++) parents[i] = own;
        for (int i = 0; i < count; i++) {
            count = children_of_all(found[i], count);
            while (known < count) parents[known++] = found[i];
        }
        for (; count; count--) alive += signal_child(found[count - 1], parents[count - 1], own, SIG_KILL);
        quiet = alive ? 0 : quiet + 1;
        if (alive) pause_for(1000);
        stop(own, above, &looks);
    }
    signal_child(own, above, above, SIG_KILL);
}
