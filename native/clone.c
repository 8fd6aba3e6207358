/* How the host starts a launcher: clone3 with CLONE_VM | CLONE_VFORK, so that the cost does not grow with the host's memory, and an exec, so that nothing
 * of the host's memory lives on. Between the two only raw system calls run: no libc, no errno (the thread's own data is the frozen parent's), no Python.
 */
#define _GNU_SOURCE
#include <stddef.h>

#include "shim.h"
#include "sys.h"

enum { MAX_FDS = 64 };

struct start {
    int launcher, count;
    const int *sources, *slots;
    const char *name;
    int error;
};

/* fcntl(2) says EINVAL where RLIMIT_NOFILE is not above ``above``. */
static int copy_above(int fd, int above) {
    sysret copy = sys(NR_fcntl, fd, 1030 /* F_DUPFD_CLOEXEC */, above);
    return copy == -E_INVAL ? -E_MFILE : (int)copy;
}

/* First all copies above the highest slot, then each to its place: a source may be another one's slot. */
static int arrange_fds(struct start *s, int *launcher) {
    int copies[MAX_FDS], above = 0;
    for (int i = 0; i < s->count; i++)
        if (s->slots[i] >= above) above = s->slots[i] + 1;
    for (int i = 0; i < s->count; i++)
        if ((copies[i] = copy_above(s->sources[i], above)) < 0) return copies[i];
    if (s->launcher >= 0 && (*launcher = copy_above(s->launcher, above)) < 0) return *launcher;
    int next = 0; /* slots come sorted: close what lies between them */
    for (int i = 0; i < s->count; i++) {
        if (s->slots[i] > next) sys(NR_close_range, next, s->slots[i] - 1, 0);
        sysret moved = sys(NR_dup3, copies[i], s->slots[i], 0);
        if (moved < 0) return (int)moved;
        next = s->slots[i] + 1;
    }
    sys(NR_close_range, above, ~0u, 4 /* CLOEXEC */);
    return 0;
}

static void child(void *argument) {
    struct start *s = argument;
    int launcher = -1;
    s->error = arrange_fds(s, &launcher);
    if (!s->error) {
        const char *argv[] = {s->name, NULL}, *envp[] = {NULL};
        s->error = (int)sys(NR_execveat, launcher, "", argv, envp, AT_EMPTY_PATH_);
    }
    for (;;) sys(NR_exit, 127);
}

struct apart {
    struct start start;
    const char *path;
    char *const *arguments;
};

static void grandchild(void *argument) {
    struct apart *a = argument;
    uint64_t none = 0;
    int launcher = -1;
    sys(NR_setsid);
    default_signals();
    a->start.error = arrange_fds(&a->start, &launcher);
    if (!a->start.error) {
        const char *envp[] = {NULL};
        sys(NR_rt_sigprocmask, 2, &none, 0, 8);
        a->start.error = (int)sys(NR_execve, a->path, a->arguments, envp);
    }
    for (;;) sys(NR_exit, 127);
}

/* Between the two, so that the caller has no child that it would have to wait for. */
static void go_between(void *argument) {
    struct apart *a = argument;
    char stack[8192] __attribute__((aligned(16)));
    struct clone_args args = {
        .flags = CLONE_VM_ | CLONE_VFORK_,
        .exit_signal = SIG_CHLD,
        .stack = (uint64_t)(uintptr_t)stack,
        .stack_size = sizeof stack,
    };
    sysret pid = clone_call(&args, grandchild, a);
    if (pid < 0) a->start.error = (int)pid;
    for (;;) sys(NR_exit, 0);
}

int shim_start_apart(const char *path, char *const *arguments, int count, const int *sources, const int *slots) {
    if (count < 0 || count > MAX_FDS) return -E_INVAL;
    for (int i = 1; i < count; i++)
        if (slots[i] <= slots[i - 1]) return -E_INVAL;
    char stack[16384] __attribute__((aligned(16)));
    struct apart apart = {{-1, count, sources, slots, 0, 0}, path, arguments};
    struct clone_args args = {
        .flags = CLONE_VM_ | CLONE_VFORK_ | CLONE_CLEAR_SIGHAND_,
        .stack = (uint64_t)(uintptr_t)stack,
        .stack_size = sizeof stack,
    };
    uint64_t all = ~0ull, old;
    sys(NR_rt_sigprocmask, 2, &all, &old, 8);
    sysret pid = clone_call(&args, go_between, &apart);
    sys(NR_rt_sigprocmask, 2, &old, 0, 8);
    if (pid < 0) return (int)pid;
    sys(NR_wait4, pid, 0, 0x80000000 /* __WCLONE: it has no exit signal */, 0);
    return apart.start.error;
}

int shim_launch(int launcher_fd, const char *name, int count, const int *sources, const int *slots, int cgroup_fd, unsigned namespaces, int *pidfd) {
    if (count < 0 || count > MAX_FDS) return -E_INVAL;
    for (int i = 1; i < count; i++)
        if (slots[i] <= slots[i - 1]) return -E_INVAL;
    char stack[16384] __attribute__((aligned(16)));
    struct start start = {launcher_fd, count, sources, slots, name, 0};
    struct clone_args args = {
        .flags = CLONE_VM_ | CLONE_VFORK_ | CLONE_PIDFD_ | CLONE_CLEAR_SIGHAND_ | (cgroup_fd >= 0 ? CLONE_INTO_CGROUP_ : 0)
                 | namespaces,
        .pidfd = (uint64_t)(uintptr_t)pidfd,
        .exit_signal = SIG_CHLD,
        .stack = (uint64_t)(uintptr_t)stack,
        .stack_size = sizeof stack,
        .cgroup = cgroup_fd >= 0 ? (uint64_t)cgroup_fd : 0,
    };
    /* A signal's handler must never run in the child, on the host's memory. */
    uint64_t all = ~0ull, old;
    sys(NR_rt_sigprocmask, 2, &all, &old, 8);
    sysret pid = clone_call(&args, child, &start);
    sys(NR_rt_sigprocmask, 2, &old, 0, 8);
    if (pid < 0) return (int)pid;
    if (start.error) {
        sys(NR_wait4, pid, 0, 0x40000000, 0);
        sys(NR_close, *pidfd);
        return start.error;
    }
    return (int)pid;
}
