/* Checks of a sandbox's health: every interval a program enters it as by the door, and how it ended is the record `health`.
 *
 *   keeper                                       child: a keeper of its own
 *    │ the plan in a memfd, pipes, a cgroup         │
 *    │─────────────────────────────────────────────►│ into the namespaces, the program; kills it at its timeout
 *    │◄──────────────────────────────── output ─────│
 *    │◄── SIGCHLD; how it ended is in the memfd ────│
 *
 * One at a time. What it leaves running is killed: with its cgroup, or by its mark. The image says what runs, so its output is read up to a bound.
 * While the sandbox is frozen none begins, and one that was held by the freezer, however shortly, says nothing: its timeout ran on.
 */
#include "launcher.h"

enum { MOST_OUTPUT = 4096, MOST_READ = 1 << 20, ASIDE = SLOT_ROOT + 1 };
enum { STARTING, HEALTHY, UNHEALTHY };

static const char group_name[] = "health";

static struct {
    const struct health_check *how; /* 0: none asked for */
    uint64_t size;                  /* of the plan behind it */
    int directory;
    uint64_t due;   /* monotonic; 0 while one runs */
    uint64_t start_period_ends; /* until then, monotonic, failures do not count */
    uint64_t began_ns, ended_ns, changed_ns;
    uint64_t count;
    uint32_t state, streak, status, outcome;
    uint32_t changed_streak, changed_status, changed_outcome; /* as they were when the state changed */
    int pid, memory, output;
    int events; /* cgroup.events, as it was read when the check began; -1 where there is no cgroup */
} check = {.memory = -1, .output = -1, .events = -1};

static char text[MOST_OUTPUT]; /* the end of the output */
static uint64_t kept, taken;

static void close_slot(int *fd) {
    if (*fd >= 0) sys(NR_close, *fd);
    *fd = -1;
}

/* Where the record goes has its room already: the old one and the new one change places. */
static void note(void) {
    static const char digits[] = "0123456789abcdef";
    uint64_t at = line(0, "format", 1);
    at = line(at, "state", check.state);
    at = line(at, "streak", check.streak);
    at = line(at, "count", check.count);
    at = line(at, "status", check.status);
    at = line(at, "outcome", check.outcome);
    at = line(at, "began_ns", check.began_ns);
    at = line(at, "ended_ns", check.ended_ns);
    at = line(at, "changed_ns", check.changed_ns);
    at = line(at, "changed_streak", check.changed_streak);
    at = line(at, "changed_status", check.changed_status);
    at = line(at, "changed_outcome", check.changed_outcome);
    at = put_text(buffer, at, "output ");
    for (uint64_t i = 0; i < kept; i++) {
        buffer[at++] = digits[(unsigned char)text[i] >> 4];
        buffer[at++] = digits[(unsigned char)text[i] & 15];
    }
    at = end_mark(put_text(buffer, at, "\n"));
    sysret fd = sys(NR_openat, check.directory, "health.tmp", O_WRONLY_ | O_CREAT_ | O_NOFOLLOW_ | O_NONBLOCK_ | O_CLOEXEC_, 0600);
    if (fd < 0) return;
    sysret error = write_all((int)fd, buffer, at);
    sys(NR_close, fd);
    if (error < 0) return;
    if (sys(NR_renameat2, check.directory, "health.tmp", check.directory, "health", 2 /* EXCHANGE */) < 0)
        sys(NR_renameat, check.directory, "health.tmp", check.directory, "health");
}

void health_start(struct plan_header *plan) {
    uint64_t now = now_ns(1);
    check.how = 0;
    check.memory = check.output = check.events = -1;
    check.pid = 0;
    check.due = 0;
    if (!plan->health_size || plan->flags & PLAN_ENTER) return;
    check.how = (const struct health_check *)plan_data(plan, plan->health);
    check.size = plan->health_size - sizeof *check.how;
    check.directory = plan->flags & PLAN_DETACHED ? SLOT_STATE : SLOT_LOCK;
    check.due = now + check.how->interval_ns;
    check.start_period_ends = now + check.how->start_period_ns;
    check.changed_ns = now_ns(0);
    note();
}

uint64_t health_due(void) {
    return check.due;
}

int health_output(void) {
    return taken < MOST_READ ? check.output : -1;
}

void health_read(void) {
    sysret n = sys(NR_read, check.output, buffer, MOST_OUTPUT);
    if (n <= 0) {
        if (n != -E_AGAIN && n != -E_INTR) close_slot(&check.output);
        return;
    }
    uint64_t more = (uint64_t)n, stays = kept + more > MOST_OUTPUT ? MOST_OUTPUT - more : kept;
    for (uint64_t i = 0; i < stays; i++) text[i] = text[kept - stays + i];
    memcpy(text + stays, buffer, more);
    kept = stays + more;
    taken += more;
}

/* Opens cgroup.events: what changes there from now on makes it readable out of band. 1 when the sandbox is frozen. */
static int watch_freezer(void) {
    char events[256];
    int32_t fd = (int32_t)sys(NR_openat, SLOT_CGROUP, "cgroup.events", O_CLOEXEC_, 0);
    if (fd < 0 || lift(&fd, 1) < 0) return 0;
    check.events = fd;
    sysret n = sys(NR_read, fd, events, sizeof events);
    for (sysret i = 0; i + 5 <= n; i++)
        if (events[i] == 'z' && events[i + 1] == 'e' && events[i + 2] == 'n' && events[i + 3] == ' ') return events[i + 4] == '1';
    return 0;
}

/* Whether it was frozen at any moment since then. Nothing else changes there as long as it lives. */
static int was_frozen(void) {
    struct pollfd_ changed = {check.events, POLL_PRI, 0};
    struct timespec_ moment = {0, 0};
    return sys(NR_ppoll, &changed, 1, &moment, 0, 8) > 0;
}

/* Whether the sandbox ends, or does so in this time. */
static int ending(int64_t ns) {
    struct pollfd_ init = {SLOT_INIT, POLL_IN, 0};
    struct timespec_ moment = {0, ns};
    return sys(NR_ppoll, &init, 1, &moment, 0, 8) != 0;
}

/* In the child: what is left of the keeper in it are the namespaces. */
static void __attribute__((noreturn)) run(int32_t *fds, int count) {
    static const int32_t slots[] = {0, 1, SLOT_PLAN, SLOT_CGROUP};
    sys(NR_setpgid, 0, 0);
    sys(NR_close_range, 0, SLOT_HANDOVER, 0);
    close_slot(&check.output);
    close_slot(&check.events);
    if (settle(fds, slots, count) < 0) die(2);
    sys(NR_dup3, 1, 2, 0);
    sys(NR_dup3, 0, SLOT_REPORT, O_CLOEXEC_); /* nobody reads reports, and nothing else may come to be there */
    become_entering();
    enter();
}

/* 0, or a negative errno with nothing begun. */
static int begin(void) {
    struct clone_args args = {.exit_signal = SIG_CHLD};
    int in[2] = {-1, -1}, out[2] = {-1, -1}, group = -1;
    sysret err = 0, memory = -1, pid = -1;
    /* First: where there is no cgroup, what is opened next may get its number. */
    if (sys(NR_mkdirat, SLOT_CGROUP, group_name, 0755) != -E_BADF) {
        err = sys(NR_openat, SLOT_CGROUP, group_name, O_PATH_ | O_DIRECTORY_ | O_CLOEXEC_, 0);
        group = (int)err;
    }
    if (err >= 0) err = memory = sys(NR_memfd_create, "dockless-health", 1 /* CLOEXEC */);
    if (err >= 0) err = write_all((int)memory, (const char *)(check.how + 1), check.size);
    if (err >= 0) err = sys(NR_pipe2, in, O_CLOEXEC_);
    if (err >= 0) err = sys(NR_pipe2, out, O_CLOEXEC_);
    if (err >= 0) err = sys(NR_fchmod, out[1], 0666); /* of another user's program, which may open /dev/stdout */
    /* In the keeper low numbers are slots: nothing of ours may lie there. */
    int32_t fds[5] = {in[0], out[1], (int32_t)memory, group, out[0]}, given = group < 0 ? 3 : 4;
    if (err >= 0) {
        if (group < 0) fds[3] = out[0];
        err = lift(fds, given + 1);
        if (err >= 0) {
            check.output = fds[given];
            check.memory = fds[2];
            sys(NR_fcntl, check.output, 4 /* F_SETFL */, O_NONBLOCK_);
            err = pid = sys(NR_clone3, &args, sizeof args);
            if (pid == 0) {
                close_slot(&in[1]);
                run(fds, given);
            }
            for (int i = 0; i < given; i++)
                if (fds[i] != check.memory || pid < 0) sys(NR_close, fds[i]);
            if (pid < 0) {
                close_slot(&check.output);
                check.memory = -1;
            }
        }
    } else {
        int all[5] = {in[0], out[0], out[1], (int)memory, group};
        for (int i = 0; i < 5; i++) close_slot(&all[i]);
    }
    close_slot(&in[1]); /* at its end from the beginning */
    check.pid = err < 0 ? 0 : (int)pid;
    return err < 0 ? (int)err : 0;
}

void health_tick(struct plan_header *plan) {
    if (!check.due) return;
    check.due = now_ns(1) + check.how->interval_ns;
    if (plan->phase != PHASE_READY || plan->outcome || ending(0)) return;
    door_take(); /* init handed its namespaces over before its program began */
    kept = taken = 0;
    check.began_ns = now_ns(0);
    if (!watch_freezer() && begin() == 0) check.due = 0; /* a host that has no process to spare says nothing about the sandbox */
    if (check.due) close_slot(&check.events);
}

static void remove_group(void) {
    if (!kill_group(group_name)) return;
    for (int i = 0; i < 100 && sys(NR_unlinkat, SLOT_CGROUP, group_name, 0x200 /* REMOVEDIR */) == -E_BUSY; i++) pause_for(1000);
}

static void judge(const struct plan_header *seen) {
    uint64_t now = now_ns(1);
    uint32_t before = check.state;
    int began = seen->phase >= PHASE_READY;
    check.outcome = seen->outcome;
    check.status = began ? (uint32_t)seen->status : (seen->error == E_NOENT ? 127u : 126u) << 8;
    if (!began && seen->outcome & OUTCOME_TIMED_OUT) check.status = SIG_KILL;
    int well = began && !check.status && !(seen->outcome & OUTCOME_TIMED_OUT);
    check.count++;
    if (well) {
        check.streak = 0;
        check.state = HEALTHY;
    } else if (check.state != STARTING || now >= check.start_period_ends) {
        check.streak++;
        if (check.streak >= check.how->retries) check.state = UNHEALTHY;
    }
    check.ended_ns = now_ns(0);
    if (check.state == before) return;
    check.changed_ns = check.ended_ns;
    check.changed_streak = check.streak;
    check.changed_status = check.status;
    check.changed_outcome = check.outcome;
}

int health_ended(int pid) {
    struct plan_header seen = {0};
    if (!check.pid || pid != check.pid) return 0;
    check.pid = 0;
    remove_group();
    while (check.output >= 0 && taken < MOST_READ) {
        uint64_t before = taken;
        health_read();
        if (taken == before) break;
    }
    sys(NR_pread64, check.memory, &seen, sizeof seen, 0);
    close_slot(&check.output);
    close_slot(&check.memory);
    check.due = now_ns(1) + check.how->interval_ns;
    /* A check whose own keeper was killed proves nothing. Nor does one that failed because the sandbox is ending: wait a moment to see whether it is. */
    int lost = seen.phase != PHASE_EXITED && !(seen.outcome & OUTCOME_TIMED_OUT) && !seen.error;
    int held = was_frozen();
    close_slot(&check.events);
    if (lost || held || ending(seen.error == E_NOMEM || seen.error == E_NODEV ? 100000000 : 0)) return 1;
    judge(&seen);
    note();
    return 1;
}

/* Everything inside is dead, and so will be what entered. */
void health_stop(void) {
    if (!check.how) return;
    if (check.pid) sys(NR_kill, check.pid, SIG_KILL);
    remove_group();
}
