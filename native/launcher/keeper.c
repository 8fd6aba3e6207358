/* The keeper of a sandbox: outside of it, in C, some 50 KB. It waits for init, forwards signals, ends the tree when the time is up or its starter is
 * gone, and says how it ended. For a detached sandbox it also pumps the logs and writes the records `started` and `exit`; its lock on the state
 * directory lasts exactly as long as it lives. What it cannot write whole it does not publish.
 *
 *   leash     end of file: the starter, the process that started the sandbox, died. A byte 'K': kill now
 *   init      its pidfd: readable when it has ended
 *   signals   what was sent to the keeper goes to init, and from there to the program
 *   door      requests to enter the sandbox: door.c
 *   output    of a detached one: two pipes, or one from terminal.c
 *
 * What it does by its own clock: deadlines.c, health.c.
 */
#include "launcher.h"

enum { SECONDS_OF_A_TERMINAL = 2 /* until its last output has come, at the end of its sandbox */, SECONDS_OF_A_NAMESPACE = 1 /* until all of it has ended */ };

char buffer[RECORD_ROOM];

/* The sandbox's init and its plan, in those who enter, too: they were forked from its keeper, and share that memory. */
static int first;
static struct plan_header *sandbox;

/* init takes all of its PID namespace with it. What entered has none of its own: account(). */
static void kill_tree(void) {
    kill_group(".");
    sys(NR_pidfd_send_signal, SLOT_INIT, SIG_KILL, 0, 0);
}

/* A record goes into a file that has had its room since before the start: nothing is cut off first, because what is given back may be gone on a full
 * disk. Its fd, or a negative errno. */
static sysret fill(int directory, const char *temporary, uint64_t flags, uint64_t length) {
    sysret fd = sys(NR_openat, directory, temporary, O_WRONLY_ | O_NOFOLLOW_ | O_NONBLOCK_ | O_CLOEXEC_ | flags, 0600);
    if (fd < 0) return fd;
    sysret error = write_all((int)fd, buffer, length);
    if (error < 0) {
        sys(NR_close, fd);
        return error;
    }
    sys(NR_ftruncate, fd, length); /* where this fails, what follows is zeros, and the reader stops at the end mark */
    return fd;
}

uint64_t line(uint64_t at, const char *key, uint64_t value) {
    at = put_text(buffer, at, key);
    at = put_text(buffer, at, " ");
    at = put_number(buffer, at, value, 1);
    return put_text(buffer, at, "\n");
}

/* The kernel's own account, as it stands, so that nothing has to be alive later to read it. */
static uint64_t cgroup_file(uint64_t at, const char *name) {
    sysret fd = sys(NR_openat, SLOT_CGROUP, name, O_CLOEXEC_, 0);
    if (fd < 0) return at;
    at = put_text(buffer, at, "[");
    at = put_text(buffer, at, name);
    at = put_text(buffer, at, "]\n");
    sysret n = sys(NR_read, fd, buffer + at, 2000);
    sys(NR_close, fd);
    while (n > 0 && buffer[at + (uint64_t)n - 1] != '\n') n--; /* whole lines: half a number would be a wrong one */
    return n > 0 ? at + (uint64_t)n : at;
}

/* A record is whole when these two lines end it: what a torn write, a lost page or a stray byte leaves is none. */
uint64_t end_mark(uint64_t at) {
    at = put_text(buffer, at, "[end]\n");
    return line(at, "crc32", crc32(buffer, at));
}

/* A file system that writes elsewhere each time can be full although a record has its room: it gets a second to find some. */
static int room_may_come(sysret error, int tries) {
    struct timespec_ moment = {0, 100000000};
    if (error != -E_NOSPC || tries == 10) return 0;
    sys(NR_ppoll, 0, 0, &moment, 0, 8);
    return 1;
}

/* Visible first and durable after it: whoever started the sandbox waits for the file, and even a torn one says that there was a start. */
static sysret write_started(struct plan_header *plan) {
    uint64_t at = line(0, "keeper", (uint64_t)sys(NR_getpid));
    uint64_t length = end_mark(line(at, "init", (uint64_t)plan->init_pid));
    sysret error;
    for (int tries = 0;; tries++) {
        sysret fd = fill(SLOT_STATE, "started.tmp", O_CREAT_, length);
        error = fd < 0 ? fd : sys(NR_renameat, SLOT_STATE, "started.tmp", SLOT_STATE, "started");
        if (fd >= 0 && !error) sys(NR_fsync, fd);
        if (fd >= 0) sys(NR_close, fd);
        if (!error || !room_may_come(error, tries)) break;
    }
    sys(NR_fsync, SLOT_STATE);
    return error;
}

static uint64_t describe_exit(struct plan_header *plan) {
    uint64_t at = line(0, "format", 2);
    at = line(at, "status", (uint32_t)plan->status);
    at = line(at, "outcome", plan->outcome);
    at = line(at, "user_us", plan->user_us);
    at = line(at, "system_us", plan->system_us);
    at = line(at, "max_rss_kb", plan->max_rss_kb);
    at = line(at, "started_ns", plan->started_ns);
    at = line(at, "ended_ns", plan->ended_ns);
    static const char *const files[] = {"cpu.stat", "memory.peak", "memory.events", "pids.peak", "io.stat"};
    for (unsigned i = 0; i < sizeof files / sizeof *files; i++) at = cgroup_file(at, files[i]);
    return end_mark(at);
}

static sysret publish_exit(struct plan_header *plan) {
    sysret fd = fill(SLOT_STATE, "exit.tmp", O_CREAT_, describe_exit(plan));
    if (fd < 0) return fd;
    sysret error = sys(NR_fsync, fd);
    if (error == 0) error = sys(NR_renameat, SLOT_STATE, "exit.tmp", SLOT_STATE, "exit");
    if (error == 0) sys(NR_fsync, SLOT_STATE);
    sys(NR_close, fd);
    return error;
}

/* Durable first: what somebody has read must still be there after a power cut. Not published where the disk refuses it; the lock goes all the same. */
void write_exit(struct plan_header *plan) {
    for (int tries = 0; room_may_come(publish_exit(plan), tries); tries++) {}
}

/* Whoever waits for a foreground sandbox of another program has made this file in its directory, and reads it when all names in there are gone. */
static void tell_others(struct plan_header *plan) {
    sysret fd = sys(NR_openat, SLOT_LOCK, "exit.tmp", O_PATH_ | O_NOFOLLOW_ | O_CLOEXEC_, 0);
    if (fd < 0) return;
    sys(NR_close, fd);
    fd = fill(SLOT_LOCK, "exit.tmp", 0, describe_exit(plan));
    if (fd >= 0) sys(NR_close, fd);
}

/* A chunk of output: its length, a negative errno where there is none just now, 0 at its end. */
static sysret pump(int fd, const char *stream, struct plan_header *plan) {
    sysret n = sys(NR_read, fd, buffer, sizeof buffer);
    if (n > 0) log_write(stream, buffer, (uint64_t)n, plan->log_limit);
    return n > 0 || n == -E_INTR || n == -E_AGAIN ? n : 0;
}

/* What the pipes hold now. Whoever has got hold of their other ends may write for ever. */
static void drain(const struct pollfd_ *fds, struct plan_header *plan) {
    static const char *const streams[] = {"stdout", "stderr"};
    uint64_t until = now_ns(1) + SECONDS_OF_A_TERMINAL * 1000000000ull;
    while (fds[0].fd >= 0 && terminal_has_more(until) && pump(fds[0].fd, streams[0], plan)) {}
    terminal_stop();
    for (int i = 0; i < 2; i++) {
        int held = 0;
        if (fds[i].fd >= 0) sys(NR_ioctl, fds[i].fd, 0x541B /* FIONREAD */, &held);
        for (sysret n; held > 0 && (n = pump(fds[i].fd, streams[i], plan)) > 0;) held -= (int)n;
    }
}

/* Whether one of those who entered has ended. */
static int forward(int init_pid) {
    struct { uint32_t signo; int32_t error, code; char rest[116]; } info;
    int left = 0;
    while (sys(NR_read, SLOT_SIGNALS, &info, sizeof info) == (sysret)sizeof info)
        if (info.signo == SIG_CHLD) left |= door_reap(init_pid);
        else if (info.code <= 0) sys(NR_pidfd_send_signal, SLOT_INIT, info.signo, 0, 0);
    return left;
}

/* The starter let go, or sent a byte. 1: keep listening. */
static int read_leash(struct plan_header *plan) {
    char order = 0;
    sysret n = sys(NR_read, SLOT_LEASH, &order, 1);
    if ((n == 1 && order != 'K') || n == -E_AGAIN || n == -E_INTR) return 1;
    plan->outcome |= n == 1 ? OUTCOME_KILLED : OUTCOME_LEASH;
    kill_tree();
    return n == 1;
}

struct deadline {
    uint64_t at; /* monotonic nanoseconds, 0 for never */
    int final;
};

static void time_is_up(struct plan_header *plan, struct deadline *d) {
    uint32_t passed = d->final ? 0 : deadlines_passed(plan);
    if (!d->final && !passed) return; /* it has moved meanwhile */
    plan->outcome |= passed;
    if (!d->final && plan->grace_ns && plan->stop_signal) {
        sys(NR_pidfd_send_signal, SLOT_INIT, plan->stop_signal, 0, 0);
        *d = (struct deadline){now_ns(1) + plan->grace_ns, 1};
    } else {
        kill_tree();
        *d = (struct deadline){now_ns(1) + 1000000000, 1}; /* again, should this one have failed */
    }
}

/* What entered, where it has a mark. If it forks faster than we can kill, the sandbox ends: the kernel kills all of a PID namespace with its init. */
static void end_marked(struct plan_header *plan) {
    sysret init = sys(NR_pidfd_open, first, 0);
    struct pollfd_ ended = {(int)init, POLL_IN, 0};
    struct timespec_ wait = {SECONDS_OF_A_NAMESPACE, 0};
    if (kill_marked(first) && init >= 0 && sandbox && pid_namespace(plan) >= 0) {
        plan->outcome |= OUTCOME_UNENDED;
        __atomic_fetch_or(&sandbox->outcome, OUTCOME_UNENDED, __ATOMIC_RELAXED);
        sys(NR_pidfd_send_signal, init, SIG_KILL, 0, 0);
        sys(NR_ppoll, &ended, 1, &wait, 0, 8);
    }
    if (init >= 0) sys(NR_close, init);
}

/* Collects init. What init noted of the program is exact; if init itself was killed, its own end is what there is. */
static void account(struct plan_header *plan, int init_pid) {
    struct rusage_ usage;
    int status = 0;
    while (sys(NR_wait4, init_pid, &status, 0x40000000 /* __WALL */, &usage) == -E_INTR) {}
    int killed = plan->outcome || plan->phase != PHASE_EXITED;
    if (killed || !(plan->flags & PLAN_ENTER)) kill_group("."); /* what a program that entered leaves behind lives on in the sandbox */
    if (plan->flags & PLAN_ENTER && !plan->error && (killed || ends_with_its_program())) end_marked(plan); /* after an error there never was a program */
    if (killed && plan->flags & PLAN_ENTER) door_collect(100); /* its program, if that outlived the one who waited for it */
    if (plan->phase != PHASE_EXITED) {
        plan->outcome |= OUTCOME_INIT_DIED;
        plan->status = status;
    }
    plan->user_us = (uint64_t)usage.utime[0] * 1000000 + (uint64_t)usage.utime[1];
    plan->system_us = (uint64_t)usage.stime[0] * 1000000 + (uint64_t)usage.stime[1];
    plan->max_rss_kb = (uint64_t)usage.maxrss;
    plan->ended_ns = now_ns(0);
}

static void watch(struct plan_header *plan, int init_pid) {
    struct deadline deadline = {0, 0};
    int detached = plan->flags & PLAN_DETACHED, terminal = plan->flags & PLAN_TERMINAL, shown = !(detached && terminal);
    struct pollfd_ fds[8] = {
        {detached && !terminal ? SLOT_STDOUT : -1, POLL_IN, 0}, {detached && !terminal ? SLOT_STDERR : -1, POLL_IN, 0},
        {SLOT_INIT, POLL_IN, 0},                   {SLOT_SIGNALS, POLL_IN, 0},
        {detached ? -1 : SLOT_LEASH, POLL_IN, 0},  {SLOT_HANDOVER, POLL_IN, 0},
        {plan->flags & PLAN_ENTER ? -1 : SLOT_DOOR, POLL_IN, 0}, {-1, POLL_IN, 0},
    };
    deadlines_start(plan);
    for (;;) {
        struct timespec_ wait, *limit = 0;
        if (!deadline.final) deadline.at = deadlines_next(plan);
        uint64_t check = health_due(), next = check && (!deadline.at || check < deadline.at) ? check : deadline.at;
        if (!shown && terminal_begin()) fds[0].fd = SLOT_STDERR, shown = 1;
        if (fds[6].fd >= 0) fds[6].fd = door_watched();
        fds[7].fd = health_output();
        if (next) {
            uint64_t now = now_ns(1), left = next > now ? next - now : 0;
            wait = (struct timespec_){(int64_t)(left / 1000000000), (int64_t)(left % 1000000000)};
            limit = &wait;
        }
        sysret n = sys(NR_ppoll, fds, 8, limit, 0, 8);
        if (deadline.at && now_ns(1) >= deadline.at) time_is_up(plan, &deadline); /* also when a flood of output never lets ppoll wait */
        if (check && now_ns(1) >= check) health_tick(plan);
        if (n <= 0) continue;
        if (fds[7].revents) health_read();
        if (fds[0].revents && !pump(fds[0].fd, "stdout", plan)) fds[0].fd = -1;
        if (fds[1].revents && !pump(SLOT_STDERR, "stderr", plan)) fds[1].fd = -1;
        if (fds[6].revents & POLL_NVAL) fds[6].fd = -1; /* there is no door */
        else if (fds[6].revents) door_event(plan);
        if (fds[3].revents && forward(init_pid) && fds[6].fd >= 0 && plan->phase == PHASE_READY) door_open(plan);
        if (fds[4].revents & POLL_NVAL) fds[4].fd = -1; /* nobody gave us a leash */
        else if (fds[4].revents && !read_leash(plan)) fds[4].fd = -1;
        if (fds[5].revents && (!(fds[5].revents & POLL_IN) || !door_take())) fds[5].fd = -1;
        if (fds[2].revents) break;
    }
    if (terminal && !detached && fds[4].fd >= 0 && fds[6].fd >= 0 && plan->phase >= PHASE_READY)
        door_await_terminal(plan, SLOT_LEASH, now_ns(1) + SECONDS_OF_A_TERMINAL * 1000000000ull);
    drain(fds, plan);
    log_end();
}

/* What the starter would have removed, had it lived, and the private upper in any case: nobody but the keeper has the rights over all owners in it. A detached
 * sandbox that is to be removed has no starter any more, and lies below its own directory's parent. */
static void clean_up(struct plan_header *plan) {
    const char *directory = plan_data(plan, plan->directory), *cgroup = plan_data(plan, plan->cgroup);
    int detached = (plan->flags & PLAN_DETACHED) != 0;
    if (*directory) remove_tree(detached ? (int)sys(NR_openat, SLOT_STATE, "..", O_PATH_ | O_DIRECTORY_ | O_CLOEXEC_, 0) : SLOT_STATE, directory);
    if (!*cgroup || !(detached || plan->outcome & OUTCOME_LEASH || plan->flags & PLAN_ALONE)) return;
    sysret parent = sys(NR_openat, SLOT_CGROUP, "..", O_PATH_ | O_DIRECTORY_ | O_CLOEXEC_, 0);
    for (int i = 0; i < 1000 && sys(NR_unlinkat, parent, cgroup, 0x200 /* REMOVEDIR */) == -E_BUSY && detached; i++)
        pause_for(1000); /* what was killed is still ending */
}

static int has_barrier(const struct plan_header *plan) {
    for (uint32_t pc = 0; pc < plan->n_ops; pc++)
        if (plan_ops(plan)[pc].code == OP_BARRIER) return 1;
    return 0;
}

/* Until it is taken. One that ends before that, because its owner let go of it or nobody came, is nobody's any more. */
static void await_take(struct plan_header *plan) {
    struct pollfd_ fds[3] = {{SLOT_INIT, POLL_IN, 0}, {SLOT_LEASH, POLL_IN, 0}, {SLOT_HANDOVER, POLL_IN, 0}};
    while (plan->phase < PHASE_PROGRAM) {
        if (sys(NR_ppoll, fds, 3, 0, 0, 8) <= 0) continue;
        if (fds[0].revents) {
            if (!plan->error && plan->phase < PHASE_PROGRAM) plan->outcome |= OUTCOME_LEASH;
            return;
        }
        if (fds[1].revents && !read_leash(plan)) fds[1].fd = -1;
        if (fds[2].revents && (!(fds[2].revents & POLL_IN) || !door_take())) fds[2].fd = -1;
    }
}

/* They end with init, and what is mounted in them with our last descriptor. */
static void leave_namespaces(void) {
    sys(NR_close_range, SLOT_HANDOVER, SLOT_PROGRAM, 0);
}

void keeper_run(struct plan_header *plan, int init_pid) {
    int barrier = has_barrier(plan);
    uint64_t all = ~0ull;
    go_anywhere();
    sysret signals = sys(NR_signalfd4, -1, &all, 8, O_NONBLOCK_ | O_CLOEXEC_);
    if (signals != SLOT_SIGNALS) {
        sys(NR_dup3, signals, SLOT_SIGNALS, O_CLOEXEC_);
        sys(NR_close, signals);
    }
    /* A program inside opens its pipes anew to read from them itself, whoever asked to enter has kept the other ends. */
    never_wait(SLOT_REPORT);
    never_wait(SLOT_LEASH);
    if (plan->flags & PLAN_DETACHED) never_wait(SLOT_STDOUT), never_wait(SLOT_STDERR);
    if (!barrier) health_start(plan); /* its record is there when `started` is */
    /* What could not be found again must not run. */
    sysret unrecorded = plan->flags & PLAN_DETACHED ? write_started(plan) : 0;
    if (unrecorded) {
        plan->outcome |= OUTCOME_KILLED;
        kill_tree();
    }
    if (!(plan->flags & PLAN_ENTER)) {
        first = init_pid;
        sandbox = plan;
        sys(NR_setpgid, init_pid, init_pid); /* door_busy() */
        sys(NR_prctl, 36 /* CHILD_SUBREAPER */, 1, 0, 0, 0); /* what waits for those who entered may be killed first: door_collect() */
    }
    sys(NR_close_range, SLOT_PLAN, SLOT_PLAN, 0); /* it is mapped */
    if (plan->flags & PLAN_DETACHED) sys(NR_close_range, SLOT_LEASH, SLOT_LEASH, 0);
    if (!(plan->flags & PLAN_ENTER)) forget_below();
    if (barrier) {
        await_take(plan);
        health_start(plan);
    }
    watch(plan, init_pid);
    if (!(plan->flags & PLAN_ENTER)) door_close();
    if (plan->flags & (PLAN_ENTER | PLAN_DETACHED)) leave_namespaces();
    account(plan, init_pid);
    health_stop();
    if (plan->phase < PHASE_READY) {
        if (!plan->error) report(REPORT_FAILED, (uint16_t)plan->pc, (int32_t)-unrecorded, 0);
        clean_up(plan);
        if (!(plan->flags & PLAN_ENTER)) door_collect(1000);
        die(1);
    }
    if (plan->flags & PLAN_DETACHED) {
        if (restart_due(plan)) plan->outcome |= OUTCOME_RESTART;
        write_exit(plan);
    } else if (*plan_data(plan, plan->directory)) tell_others(plan);
    report(REPORT_STATUS, (uint16_t)plan->outcome, plan->status, 0);
    leave_namespaces(); /* it takes the kernel as long as all the rest of an end, and who waits for that waits for us to have ended */
    clean_up(plan);
    if (!(plan->flags & PLAN_ENTER)) door_collect(1000);
    die(0);
}
