/* Restarts a sandbox when its program has ended, as its restart policy says.
 *
 * The keeper cannot: it is in the sandbox's user namespace, from which no way leads back. So the launcher forks before its first operation, and the child
 * stays outside, with nothing of the sandbox in its hands:
 *
 *   the keeper ends ─► is it to be restarted? ── no ──► done
 *                          │ yes
 *                      waits: at first a moment, twice as long each time; from the beginning again after a run that was long enough
 *                          │
 *                      a program of the host's starts it by its record (sandbox/run/restarting.py) ── 0 ──► done
 *                          ▲                                                                    │ fails
 *                          └────────────────────────────────────────────────────────────────────┘
 *
 * A sandbox whose policy is changed while it runs gets another restarter, by an errand of the launcher.
 *
 * The file `restart` in the sandbox's directory is there as long as the policy holds, and locked as long as one of us lives. In it are our pid, by which who
 * stops the sandbox ends us; how long the last pause was and when it ends, in nanoseconds, 0 where there was none yet; and why the last try failed.
 */
#include "launcher.h"

enum { FOREVER = 0xffffffff, PID_SIZE = 11 /* with a newline */, PAUSE_AT = 16, REASON_AT = 32, REASON_ROOM = 256, NO_PROGRAM = 127 };

struct orders {
    uint64_t first_ns, most_ns, settled_ns;
    uint32_t left; /* how many times it is tried at most */
    uint32_t n_args, n_env;
    char text[]; /* the program's arguments, then its environment, each with a NUL at its end */
};

static struct orders *orders;

/* The policy's answer, given once, by the keeper. The policy is where a link points to, which can be changed while it runs and needs no rights to be read:
 * always, failure or never. A time to live that is over ends it for good. If `started` could not be written, the start itself has failed. */
int restart_due(const struct plan_header *plan) {
    char when = 0;
    if (plan->outcome & (OUTCOME_KILLED | OUTCOME_EXPIRED)) return 0;
    if (sys(NR_readlinkat, SLOT_STATE, "restart-when", &when, 1) != 1 || when == 'n') return 0;
    if (when == 'f' && !plan->status && !plan->outcome) return 0;
    return sys(NR_faccessat, SLOT_STATE, "restart", 0) == 0;
}

/* Over what was there, in room that was set aside: a full disk takes it. */
static void note(const char *reason, const char *about, int number) {
    char text[REASON_ROOM] = {0};
    uint64_t length = str_length(about), at = put_text(text, 0, reason);
    if (length < REASON_ROOM / 2) at = put_text(text, at, about);
    at = put_number(text, put_text(text, at, ": "), (uint64_t)number, 1);
    sys(NR_pwrite64, SLOT_RESTART_LOCK, text, sizeof text, REASON_AT);
}

/* The strings from *text on, n of them, as execve takes them. */
enum { MOST_ARGUMENTS = 127, MOST_VARIABLES = 255 }; /* sandbox/run/restarting.py gives no more */

static void list(const char **list, uint32_t n, const char **text) {
    for (uint32_t i = 0; i < n; i++) {
        list[i] = *text;
        *text += str_length(*text) + 1;
    }
    list[n] = 0;
}

static void __attribute__((noreturn)) run_program(int parent) {
    const char *argv[MOST_ARGUMENTS + 1], *envp[MOST_VARIABLES + 1], *text = orders->text;
    uint64_t none = 0;
    list(argv, orders->n_args, &text);
    list(envp, orders->n_env, &text);
    sys(NR_prctl, 1 /* PDEATHSIG */, SIG_KILL, 0, 0, 0);
    if (sys(NR_getppid) != parent) die(1);
    sysret null = sys(NR_openat, AT_FDCWD_, "/dev/null", O_RDWR_, 0);
    for (int fd = 0; fd <= 2; fd++)
        if (null != fd) sys(NR_dup3, null, fd, 0);
    if (null > 2) sys(NR_close, null);
    sys(NR_umask, 077);
    sys(NR_rt_sigprocmask, 2, &none, 0, 8);
    note("cannot execute ", argv[0], (int)-sys(NR_execve, argv[0], argv, envp));
    die(NO_PROGRAM);
}

/* 1: it runs again, or nobody wants it to. */
static int restart(void) {
    struct clone_args args = {.exit_signal = SIG_CHLD};
    sysret self = sys(NR_getpid), pid = sys(NR_clone3, &args, sizeof args);
    int status = 0;
    if (pid == 0) run_program((int)self);
    if (pid < 0) {
        note("there is no process to be had", "", (int)-pid);
        return 0;
    }
    while (sys(NR_wait4, pid, &status, 0x40000000 /* __WALL */, 0) == -E_INTR) {}
    if (status & 0x7f) note("what was to start it was killed by signal", "", status & 0x7f);
    return status == 0;
}

/* Said in the file: by it the next restarter, and whoever looks, knows of it. */
static void wait_for(uint64_t ns) {
    struct timespec_ time = {(int64_t)(ns / 1000000000), (int64_t)(ns % 1000000000)};
    uint64_t said[2] = {ns, now_ns(0 /* REALTIME */) + ns};
    sys(NR_pwrite64, SLOT_RESTART_LOCK, said, sizeof said, PAUSE_AT);
    sys(NR_ppoll, 0, 0, &time, 0, 8); /* every signal is blocked */
}

/* The pause that follows one of so many nanoseconds; the first, where there was none. */
static uint64_t next_pause(uint64_t last) {
    if (!last) return orders->first_ns;
    return last * 2 < orders->most_ns ? last * 2 : orders->most_ns;
}

static void __attribute__((noreturn)) restart_until_done(uint64_t last) {
    for (;;) {
        wait_for(last = next_pause(last));
        if (sys(NR_faccessat, SLOT_STATE, "restart", 0) < 0 || restart()) die(0);
        if (orders->left != FOREVER && !--orders->left) die(1);
    }
}

static void __attribute__((noreturn)) outside(struct plan_header *plan, int keeper) {
    struct pollfd_ ends = {SLOT_STATE + 1, POLL_IN, 0};
    uint64_t last = 0;
    retitle("restarts");
    sys(NR_prctl, 15 /* NAME */, "dockless-again", 0, 0, 0);
    sys(NR_setsid);
    sys(NR_chdir, "/");
    go_anywhere();
    sys(NR_dup3, keeper, SLOT_STATE + 1, O_CLOEXEC_);
    sys(NR_close_range, 0, SLOT_STATE - 1, 0);
    sys(NR_close_range, SLOT_STATE + 2, SLOT_RESTART_LOCK - 1, 0);
    sys(NR_close_range, SLOT_RESTART_LOCK + 1, ~0u, 0);
    while (sys(NR_ppoll, &ends, 1, 0, 0, 8) <= 0) {}
    sys(NR_close, SLOT_STATE + 1);
    if (plan->flags & PLAN_ERRAND) restart_until_done(0); /* what became of it is in its record alone */
    if (plan->phase < PHASE_READY) die(0); /* whoever started it has been told */
    if (sys(NR_faccessat, SLOT_STATE, "exit", 0) < 0 && !(plan->outcome & OUTCOME_RESTART)) { /* its keeper was killed, and nobody saw how it ended */
        plan->status = SIG_KILL;
        plan->outcome |= OUTCOME_LOST;
        plan->ended_ns = now_ns(0);
        if (restart_due(plan)) plan->outcome |= OUTCOME_RESTART;
        write_exit(plan);
    }
    if (!(plan->outcome & OUTCOME_RESTART)) die(0);
    if (plan->ended_ns < plan->started_ns + orders->settled_ns) sys(NR_pread64, SLOT_RESTART_LOCK, &last, sizeof last, PAUSE_AT);
    restart_until_done(last);
}

/* Before the first operation: from then on there is somebody who waits for our end. An errand makes one for a keeper that runs already, whose pidfd is in
 * SLOT_LOG. 0 or a negative errno. */
int restarter_begin(struct plan_header *plan) {
    struct facts given = {0};
    struct clone_args args = {.exit_signal = SIG_CHLD};
    char pid_line[PID_SIZE];
    int error = facts_of(SLOT_RESTART, &given);
    if (error < 0) return error;
    sysret map = sys(NR_mmap, 0, given.size, 3 /* RW */, 2 /* PRIVATE */, SLOT_RESTART, 0), self = sys(NR_getpid);
    if (map < 0 && map > -4096) return (int)map;
    orders = (struct orders *)map;
    sys(NR_close, SLOT_RESTART);
    sysret keeper = plan->flags & PLAN_ERRAND ? SLOT_LOG : sys(NR_pidfd_open, self, 0);
    if (keeper < 0) return (int)keeper;
    sysret pid = sys(NR_clone3, &args, sizeof args);
    if (pid == 0) outside(plan, (int)keeper);
    sys(NR_close, keeper);
    if (pid < 0) return (int)pid;
    pid_line[put_number(pid_line, 0, (uint64_t)pid, PID_SIZE - 1)] = '\n';
    sysret done = sys(NR_pwrite64, SLOT_RESTART_LOCK, pid_line, sizeof pid_line, 0);
    sys(NR_close, SLOT_RESTART_LOCK);
    return done < 0 ? (int)done : 0;
}
