/* The keeper of a sandbox: outside of it, in C, some 50 KB. It waits for init, forwards signals, ends the tree when the time is up or the host is
 * gone, and says how it ended. For a detached sandbox it also pumps the logs and writes the records `started` and `exit`; its lock on the state
 * directory lasts exactly as long as it lives. What it cannot write whole it does not publish.
 *
 *   leash     end of file: the host died. A byte 'K': kill now
 *   init      its pidfd: readable when it has ended
 *   signals   what was sent to the keeper goes to init, and from there to the job
 */
#include "launcher.h"

static char buffer[RECORD_ROOM];

static void write_file_at(int dir, const char *name, const char *text, uint64_t length) {
    sysret fd = sys(NR_openat, dir, name, O_WRONLY_ | O_CLOEXEC_, 0);
    if (fd < 0) return;
    sys(NR_write, fd, text, length);
    sys(NR_close, fd);
}

static void kill_tree(void) {
    write_file_at(SLOT_CGROUP, "cgroup.kill", "1", 1);
    sys(NR_pidfd_send_signal, SLOT_INIT, SIG_KILL, 0, 0);
}

/* A record goes into a file that has had its room since before the start: nothing is cut off first, because what is given back may be gone on a full
 * disk. Its fd, or a negative errno. */
static sysret fill(const char *temporary, uint64_t length) {
    sysret fd = sys(NR_openat, SLOT_STATE, temporary, O_WRONLY_ | O_CREAT_ | O_NOFOLLOW_ | O_CLOEXEC_, 0600);
    if (fd < 0) return fd;
    sysret error = write_all((int)fd, buffer, length);
    if (error < 0) {
        sys(NR_close, fd);
        return error;
    }
    sys(NR_ftruncate, fd, length); /* where this fails, what follows is zeros, and the reader stops at the end mark */
    return fd;
}

static uint64_t line(uint64_t at, const char *key, uint64_t value) {
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
static uint64_t end_mark(uint64_t at) {
    at = put_text(buffer, at, "[end]\n");
    return line(at, "crc32", crc32(buffer, at));
}

/* Visible first and durable after it: whoever started the sandbox waits for the file, and even a torn one says that there was a start. */
static int write_started(struct plan_header *plan) {
    uint64_t at = line(0, "keeper", (uint64_t)sys(NR_getpid));
    sysret fd = fill("started.tmp", end_mark(line(at, "init", (uint64_t)plan->init_pid)));
    if (fd < 0) return 0;
    sysret error = sys(NR_renameat, SLOT_STATE, "started.tmp", SLOT_STATE, "started");
    sys(NR_fsync, fd);
    sys(NR_close, fd);
    sys(NR_fsync, SLOT_STATE);
    return error == 0;
}

/* Durable first: what somebody has read must still be there after a power cut. Not published where the disk refuses it; the lock goes all the same. */
static void write_exit(struct plan_header *plan) {
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
    sysret fd = fill("exit.tmp", end_mark(at));
    if (fd < 0) return;
    if (sys(NR_fsync, fd) == 0 && sys(NR_renameat, SLOT_STATE, "exit.tmp", SLOT_STATE, "exit") == 0) sys(NR_fsync, SLOT_STATE);
    sys(NR_close, fd);
}

/* A chunk of output, if there is one; 0 at its end. */
static int pump(int fd, const char *stream, struct plan_header *plan) {
    sysret n = sys(NR_read, fd, buffer, sizeof buffer);
    if (n > 0) log_write(stream, buffer, (uint64_t)n, plan->log_limit);
    return n > 0 || n == -E_INTR || n == -E_AGAIN;
}

static void drain(struct pollfd_ *fds, struct plan_header *plan) {
    struct timespec_ zero = {0, 0};
    static const char *const streams[] = {"stdout", "stderr"};
    for (int i = 0; i < 2; i++)
        while (fds[i].fd >= 0 && sys(NR_ppoll, &fds[i], 1, &zero, 0, 8) > 0 && (fds[i].revents & POLL_IN))
            if (!pump(fds[i].fd, streams[i], plan)) break;
}

static void forward(void) {
    struct { uint32_t signo; int32_t error, code; char rest[116]; } info;
    while (sys(NR_read, SLOT_SIGNALS, &info, sizeof info) == (sysret)sizeof info)
        if (info.signo != SIG_CHLD && info.code <= 0) sys(NR_pidfd_send_signal, SLOT_INIT, info.signo, 0, 0);
}

/* The host let go, or sent a byte. 1: keep listening. */
static int read_leash(struct plan_header *plan) {
    char order = 0;
    sysret n = sys(NR_read, SLOT_LEASH, &order, 1);
    if (n == 1 && order != 'K') return 1;
    plan->outcome |= n == 1 ? OUTCOME_KILLED : OUTCOME_LEASH;
    kill_tree();
    return n == 1;
}

struct deadline {
    uint64_t at; /* monotonic nanoseconds, 0 for never */
    int final;
};

static void time_is_up(struct plan_header *plan, struct deadline *d) {
    plan->outcome |= OUTCOME_TIMED_OUT;
    if (!d->final && plan->grace_ns && plan->stop_signal) {
        sys(NR_pidfd_send_signal, SLOT_INIT, plan->stop_signal, 0, 0);
        *d = (struct deadline){now_ns(1) + plan->grace_ns, 1};
    } else {
        kill_tree();
        *d = (struct deadline){now_ns(1) + 1000000000, 1}; /* again, should this one have failed */
    }
}

/* Collects init. What init noted of the job is exact; if init itself was killed, its own end is what there is. */
static void account(struct plan_header *plan, int init_pid) {
    struct rusage_ usage;
    int status = 0;
    while (sys(NR_wait4, init_pid, &status, 0x40000000 /* __WALL */, &usage) == -E_INTR) {}
    write_file_at(SLOT_CGROUP, "cgroup.kill", "1", 1);
    if (plan->phase != PHASE_EXITED) {
        plan->outcome |= OUTCOME_INIT_DIED;
        plan->status = status;
    }
    plan->user_us = (uint64_t)usage.utime[0] * 1000000 + (uint64_t)usage.utime[1];
    plan->system_us = (uint64_t)usage.stime[0] * 1000000 + (uint64_t)usage.stime[1];
    plan->max_rss_kb = (uint64_t)usage.maxrss;
    plan->ended_ns = now_ns(0);
}

static void watch(struct plan_header *plan) {
    struct deadline deadline = {plan->timeout_ns ? now_ns(1) + plan->timeout_ns : 0, 0};
    int detached = plan->flags & PLAN_DETACHED;
    struct pollfd_ fds[5] = {
        {detached ? SLOT_STDOUT : -1, POLL_IN, 0}, {detached ? SLOT_STDERR : -1, POLL_IN, 0},
        {SLOT_INIT, POLL_IN, 0},                   {SLOT_SIGNALS, POLL_IN, 0},
        {detached ? -1 : SLOT_LEASH, POLL_IN, 0},
    };
    for (;;) {
        struct timespec_ wait, *limit = 0;
        if (deadline.at) {
            uint64_t now = now_ns(1), left = deadline.at > now ? deadline.at - now : 0;
            wait = (struct timespec_){(int64_t)(left / 1000000000), (int64_t)(left % 1000000000)};
            limit = &wait;
        }
        sysret n = sys(NR_ppoll, fds, 5, limit, 0, 8);
        if (deadline.at && now_ns(1) >= deadline.at) time_is_up(plan, &deadline); /* also when a flood of output never lets ppoll wait */
        if (n <= 0) continue;
        if (fds[0].revents && !pump(SLOT_STDOUT, "stdout", plan)) fds[0].fd = -1;
        if (fds[1].revents && !pump(SLOT_STDERR, "stderr", plan)) fds[1].fd = -1;
        if (fds[3].revents) forward();
        if (fds[4].revents & POLL_NVAL) fds[4].fd = -1; /* nobody gave us a leash */
        else if (fds[4].revents && !read_leash(plan)) fds[4].fd = -1;
        if (fds[2].revents) break;
    }
    drain(fds, plan);
    log_end();
}

/* What the host would have removed, had it lived, and the private upper in any case: nobody but the keeper has the rights over all owners in it. */
static void clean_up(struct plan_header *plan) {
    const char *directory = plan_data(plan, plan->directory), *cgroup = plan_data(plan, plan->cgroup);
    if (*directory) remove_tree(SLOT_STATE, directory);
    if (*cgroup && (plan->outcome & OUTCOME_LEASH)) {
        sysret parent = sys(NR_openat, SLOT_CGROUP, "..", O_PATH_ | O_DIRECTORY_ | O_CLOEXEC_, 0);
        sys(NR_unlinkat, parent, cgroup, 0x200 /* REMOVEDIR */);
    }
}

void keeper_run(struct plan_header *plan, int init_pid) {
    uint64_t all = ~0ull;
    go_anywhere();
    sys(NR_prctl, 4 /* DUMPABLE */, 0, 0, 0, 0); /* a sandbox that shares the host's processes sees this one, and what it has open */
    sysret signals = sys(NR_signalfd4, -1, &all, 8, O_NONBLOCK_ | O_CLOEXEC_);
    if (signals != SLOT_SIGNALS) {
        sys(NR_dup3, signals, SLOT_SIGNALS, O_CLOEXEC_);
        sys(NR_close, signals);
    }
    /* What could not be found again must not run. */
    if ((plan->flags & PLAN_DETACHED) && !write_started(plan)) {
        plan->outcome |= OUTCOME_KILLED;
        kill_tree();
    }
    watch(plan);
    account(plan, init_pid);
    if (plan->phase < PHASE_READY) {
        if (!plan->error) report(REPORT_FAILED, (uint16_t)plan->pc, 0, 0);
        clean_up(plan);
        die(1);
    }
    if (plan->flags & PLAN_DETACHED) write_exit(plan);
    report(REPORT_STATUS, (uint16_t)plan->outcome, plan->status, 0);
    clean_up(plan);
    die(0);
}
