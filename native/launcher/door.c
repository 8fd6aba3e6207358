/* The door of a sandbox that runs: how a program enters it.
 *
 *   host                                          keeper
 *    │ one datagram: numbers of slots, and the fds   │
 *    │──────────────────────────────────────────────►│
 *    │                                             child: made when somebody comes, or waits since the last one has ended
 *    │◄──────────────────── its pid and a pidfd ─────│ sent by somebody outside?
 *    │◄──────── READY, FAILED, STATUS as at a start ─│ carries out the plan in SLOT_PLAN: into the namespaces, then the program
 *
 * Nobody can open the namespaces of a sandbox later: its init is not dumpable, and its memory belongs to the host's user namespace. So init hands them to
 * the keeper while it starts, and whoever enters is a child of the keeper, with the rights that the keeper has over them.
 */
#include "message.h"

enum { PATIENCE = 2 /* seconds that a child waits for a request */, REFUSED = 2 /* its exit code for a stranger's request, and for one that it cannot serve */, NOBODY_CAME = 3 /* if none came */, TERMINAL_TAKEN = 4 /* and if it was for the terminal */ };
enum { PROOFS = 2, AF_UNIX_ = 1, SOCK_STREAM_ = 1, SOCK_DGRAM_ = 2 };

static const struct { uint64_t type; const char *path; } namespaces[] = {
    {0x20000, "/proc/self/ns/mnt"},   {0x2000000, "/proc/self/ns/cgroup"}, {0x4000000, "/proc/self/ns/uts"},
    {0x8000000, "/proc/self/ns/ipc"}, {0x20000000, "/proc/self/ns/pid"},   {0x40000000, "/proc/self/ns/net"},
};
enum { KINDS = sizeof namespaces / sizeof *namespaces, TERMINAL = KINDS /* in a hand-over: no namespace */, TAKEN /* nor a descriptor */, ROOT /* never to the keeper */ };
_Static_assert(SLOT_NAMESPACES + KINDS == SLOT_PROGRAM, "each namespace has its slot");

/* Move descriptors above every slot: one may lie where another belongs. 0 or a negative errno, and then all are closed. fcntl(2) says EINVAL where
 * RLIMIT_NOFILE is lower than that. */
int lift(int32_t *fds, int count) {
    int error = 0;
    for (int i = 0; i < count; i++) {
        sysret copy = sys(NR_fcntl, fds[i], FCNTL_DUPFD_CLOEXEC, SLOT_ROOT + 1);
        if (copy < 0) error = copy == -E_INVAL ? -E_MFILE : (int)copy;
        sys(NR_close, fds[i]);
        fds[i] = (int32_t)copy;
    }
    if (error) close_all(fds, count);
    return error;
}

/* fds[i], lifted before, goes to slots[i]. 0 or a negative errno. */
int settle(const int32_t *fds, const int32_t *slots, int count) {
    sysret error = 0;
    for (int i = 0; i < count && error >= 0; i++) error = sys(NR_dup3, fds[i], slots[i], slots[i] > 2 ? O_CLOEXEC_ : 0);
    close_all(fds, count);
    return error < 0 ? (int)error : 0;
}

/* In init: open our namespaces by the host's procfs, as long as it is there, and send them: over SLOT_DOOR to the keeper. */
int hand_over(int to, uint64_t types) {
    struct facts door = {0};
    struct message m;
    char which[KINDS];
    int32_t fds[KINDS];
    int count = 0;
    if (to == SLOT_DOOR && facts_of(to, &door) < 0) return 0; /* nobody can ask to enter */
    for (int i = 0; i < KINDS; i++) {
        if (!(namespaces[i].type & types)) continue;
        sysret fd = sys(NR_openat, AT_FDCWD_, namespaces[i].path, O_CLOEXEC_, 0);
        if (fd < 0) {
            close_all(fds, count);
            return (int)fd;
        }
        which[count] = (char)i;
        fds[count++] = (int32_t)fd;
    }
    compose(&m, which, (uint64_t)count, fds, count);
    sysret sent = sys(NR_sendmsg, to, &m.head, MSG_NOSIGNAL_);
    close_all(fds, count);
    return sent < 0 ? (int)sent : 0;
}

static int send_one(int to, char which, int fd) {
    struct message m;
    int32_t fds[1] = {fd};
    compose(&m, &which, sizeof which, fds, 1);
    sysret sent = sys(NR_sendmsg, to, &m.head, MSG_NOSIGNAL_);
    return sent < 0 ? (int)sent : 0;
}

int send_terminal(int to, int terminal) {
    return send_one(to, TERMINAL, terminal);
}

/* Of the namespaces in which we are. Whoever has it can attach it elsewhere, open_tree(2); nobody inside has the other end of the socket. */
int hand_root(int to) {
    sysret tree = sys(NR_open_tree, AT_FDCWD_, "/", 1 /* CLONE */ | O_CLOEXEC_ | AT_RECURSIVE_);
    if (tree < 0) return (int)tree;
    int err = send_one(to, ROOT, (int)tree);
    sys(NR_close, (int)tree);
    return err;
}

/* In init, from the plan's memory on: the keeper has waited for this. 0 or a negative errno. */
int tell_taken(void) {
    struct message m;
    char which = TAKEN;
    compose(&m, &which, sizeof which, 0, 0);
    sysret sent = sys(NR_sendmsg, SLOT_DOOR, &m.head, MSG_NOSIGNAL_);
    return sent < 0 ? (int)sent : 0;
}

/* In what has entered already, so that whoever sends them has no descriptor in a process with more rights: waits for three of them. */
int take_streams(void) {
    struct message m;
    struct facts stream = {0};
    char byte;
    int count;
    sysret err = receive(0, &m, &byte, sizeof byte, &count, 0);
    if (err >= 0) err = err == 1 && count == 3 && !(m.head.flags & MSG_CTRUNC_) ? 0 : -E_INVAL;
    for (int fd = 0; fd <= 2 && err >= 0; fd++) {
        err = facts_of(m.control.fds[fd], &stream);
        if (err >= 0 && stream.type == TYPE_DIRECTORY) err = -E_ISDIR;
    }
    for (int fd = 0; fd <= 2 && err >= 0; fd++) err = sys(NR_dup3, m.control.fds[fd], fd, 0);
    close_all(m.control.fds, count);
    return err < 0 ? (int)err : 0;
}

/* The pair over which init hands its namespaces to the keeper; only where there is a door. */
void door_pair(int pair[2]) {
    struct facts door = {0};
    pair[0] = pair[1] = -1;
    if (facts_of(SLOT_DOOR, &door) == 0 && sys(NR_socketpair, AF_UNIX_, SOCK_DGRAM_ | O_CLOEXEC_, 0, pair) < 0) pair[0] = pair[1] = -1;
}

/* All that init has handed over: the namespaces to their slots, a terminal to where the output of a detached sandbox is read. 0 when there is no more. */
int door_take(void) {
    for (;;) {
        struct message m;
        char which[KINDS];
        int32_t slots[KINDS];
        int count;
        sysret n = receive(SLOT_HANDOVER, &m, which, sizeof which, &count, MSG_DONTWAIT_);
        if (n == -E_AGAIN || n == -E_INTR) return 1;
        if (n == 1 && !count && which[0] == TAKEN) continue;
        if (n != count || n <= 0) {
            close_all(m.control.fds, count);
            return 0;
        }
        for (int i = 0; i < count; i++) slots[i] = which[i] == TERMINAL ? SLOT_STDOUT : SLOT_NAMESPACES + which[i];
        if (lift(m.control.fds, count) == 0) settle(m.control.fds, slots, count);
    }
}

/* By its fdinfo, proc_pid_fdinfo(5): opening that takes as long as all else that a request needs. */
sysret pid_behind(int fd) {
    char path[64], text[512];
    uint64_t at = put_number(path, put_text(path, 0, "/proc/self/fdinfo/"), (uint64_t)fd, 1);
    path[at] = 0;
    sysret file = sys(NR_openat, AT_FDCWD_, path, O_CLOEXEC_, 0);
    if (file < 0) return file;
    sysret n = sys(NR_read, file, text, sizeof text - 1);
    sys(NR_close, file);
    for (sysret i = 0; i + 5 < n; i++) {
        if ((i && text[i - 1] != '\n') || text[i] != 'P' || text[i + 1] != 'i' || text[i + 2] != 'd' || text[i + 3] != ':') continue;
        sysret pid = 0;
        for (i += 5; i < n && text[i] >= '0' && text[i] <= '9'; i++) pid = pid * 10 + (text[i] - '0');
        return pid;
    }
    return -E_SRCH;
}

/* What a pidfd of a process is as a file. 0 or a negative errno. */
static int facts_of_pid(sysret pid, struct facts *its) {
    sysret fd = sys(NR_pidfd_open, pid, 0);
    if (fd < 0) return (int)fd;
    int error = facts_of((int)fd, its);
    sys(NR_close, fd);
    return error;
}

/* Whether a descriptor is a pidfd of the keeper, whose child we are. Who can make one sees the host's processes. Since Linux 6.9 each process has an inode of its
 * own that its pidfds share, pidfs; before, all pidfds have one, and ours then has the keeper's. */
static int names_keeper(int fd) {
    struct facts its = {0}, keeper = {0}, own = {0};
    if (sys(NR_pidfd_send_signal, fd, 0, 0, 0) < 0) return 0; /* no pidfd, whatever else it looks like */
    if (facts_of_pid(sys(NR_getppid), &keeper) < 0 || facts_of_pid(sys(NR_getpid), &own) < 0 || facts_of(fd, &its) < 0) return 0;
    return same(&keeper, &own) ? pid_behind(fd) == sys(NR_getppid) : same(&its, &keeper);
}

/* Whether somebody is outside of the sandbox: a bind mount that shows the sandbox's directory inside it, even a read-only one, lets a program in there send
 * requests, too. From a PID namespace of its own it cannot make the first proof. Where it shares the host's, it cannot make the second, our starter's user
 * namespace: that is not open to who is in one below it, by procfs, by a pidfd or by NS_GET_PARENT. ioctl_ns(2), ptrace(2) */
static int outside(const struct plan_header *plan, const int32_t *proofs) {
    struct facts its = {0}, ours = {.dev = plan->outside_dev, .ino = plan->outside_ino};
    return names_keeper(proofs[0]) && facts_of(proofs[1], &its) == 0 && same(&its, &ours);
}

/* Ascending, none of the keeper's own but those that a start is given too, and a plan among them. */
static int slots_ok(const int32_t *slots, int count) {
    int plan = 0;
    for (int i = 0; i < count; i++) {
        if (slots[i] < 0 || (slots[i] > SLOT_CGROUP && slots[i] != SLOT_PROGRAM && slots[i] != SLOT_TERMINAL && slots[i] != SLOT_ROOT) || (i && slots[i] <= slots[i - 1])) return 0;
        plan |= slots[i] == SLOT_PLAN;
    }
    return plan;
}

static int has_program(const int32_t *slots, int count) {
    for (int i = 0; i < count; i++)
        if (slots[i] == SLOT_PROGRAM) return 1;
    return 0;
}

static void answer(int to, int32_t value, int pidfd) {
    struct message m;
    int32_t fds[1] = {pidfd};
    compose(&m, &value, sizeof value, fds, pidfd >= 0);
    sys(NR_sendmsg, to, &m.head, MSG_NOSIGNAL_ | MSG_DONTWAIT_);
}

static int ready, began; /* the program runs, or has run, and all that was handed over before it did has been taken: a child of now has it */

/* One request: a pidfd of the keeper and a user namespace, where to answer, and what belongs into which slot. Strangers get no answer: it would show who sent it, SCM_PIDFD in
 * unix(7). */
static void __attribute__((noreturn)) serve(struct plan_header *plan, int taken) {
    struct message m;
    int32_t slots[MOST_FDS] __attribute__((aligned(8)));
    int count;
    sysret n = receive(SLOT_DOOR, &m, slots, sizeof slots, &count, MSG_DONTWAIT_);
    sys(NR_close, taken);
    int32_t *fds = m.control.fds, *given = fds + PROOFS + 1, to = fds[PROOFS];
    int wanted = count - PROOFS - 1;
    int limit = !wanted && n == sizeof(uint64_t); /* instead of slots: when the sandbox is to end */
    if (n < 0 || wanted < 0 || m.head.flags & MSG_CTRUNC_ || (!limit && n != wanted * (sysret)sizeof *slots) || !outside(plan, fds)) die(REFUSED);
    plan->active_ns = now_ns(1);
    if (limit) {
        answer(to, deadlines_move(plan, *(uint64_t *)slots), -1);
        die(0);
    }
    if (!wanted) { /* who attaches wants the terminal */
        int terminal = plan->flags & PLAN_TERMINAL && began;
        answer(to, terminal ? 1 : -E_NOTTY, terminal ? SLOT_STDOUT : -1);
        die(terminal ? TERMINAL_TAKEN : 0);
    }
    int refused = !slots_ok(slots, wanted) ? -E_PERM : !ready ? -E_AGAIN : 0;
    if (!refused && !has_program(slots, wanted)) sys(NR_setpgid, 0, sys(NR_getppid)); /* an agent waits for calls: that is no activity */
    sysret pid = sys(NR_getpid), pidfd = refused ? refused : sys(NR_pidfd_open, pid, 0);
    answer(to, (int32_t)(pidfd < 0 ? pidfd : pid), (int)pidfd);
    if (pidfd < 0) die(REFUSED);
    sys(NR_close, pidfd);
    close_all(fds, PROOFS + 1);
    if (lift(given, wanted) < 0) die(REFUSED);
    sys(NR_close_range, 0, SLOT_HANDOVER, 0);
    if (settle(given, slots, wanted) < 0) die(REFUSED);
    enter();
}

static int waiting = -1, waiting_pid; /* our end of a pair with the child that waits for a request: at its end when that one waits no more */
static int serving; /* who waited last, until it has been collected */
static int terminal_taken;

/* The child that takes the next request: what a stranger sends is never the keeper's to close, which may take for ever (SO_LINGER in socket(7)). Of what the
 * keeper has open it keeps what a request needs. It is in a process group of its own, until somebody has proved to be outside: a stranger is no activity. */
static void __attribute__((noreturn)) stand_by(struct plan_header *plan, int ours) {
    struct pollfd_ fds[2] = {{SLOT_DOOR, POLL_IN, 0}, {ours, POLL_IN, 0}};
    struct timespec_ patience = {PATIENCE, 0};
    sys(NR_setpgid, 0, 0);
    become_entering();
    sys(NR_close_range, SLOT_REPORT, plan->flags & PLAN_TERMINAL ? SLOT_STDOUT - 1 : SLOT_STDOUT, 0);
    sys(NR_close_range, SLOT_STDERR, SLOT_DOOR - 1, 0);
    sys(NR_close_range, SLOT_HANDOVER, SLOT_HANDOVER, 0);
    if (sys(NR_ppoll, fds, 2, &patience, 0, 8) <= 0 || fds[1].revents) die(NOBODY_CAME);
    serve(plan, ours);
}

/* Somebody is at the door, or may soon be: whoever entered once often comes again, and then finds that this was done already. */
void door_open(struct plan_header *plan) {
    struct clone_args args = {.exit_signal = SIG_CHLD};
    int pair[2];
    if (waiting >= 0) return;
    ready = plan->phase == PHASE_READY;
    began = plan->phase >= PHASE_READY;
    if (began) door_take();
    if (sys(NR_socketpair, AF_UNIX_, SOCK_STREAM_ | O_CLOEXEC_, 0, pair) < 0) pair[0] = pair[1] = -1;
    sysret pid = pair[0] < 0 ? -1 : sys(NR_clone3, &args, sizeof args);
    if (pid == 0) {
        sys(NR_close, pair[0]);
        stand_by(plan, pair[1]);
    }
    if (pair[1] >= 0) sys(NR_close, pair[1]);
    if (pid < 0) {
        pause_for(1000); /* the request waits until there is room for a process */
        if (pair[0] >= 0) sys(NR_close, pair[0]);
        return;
    }
    waiting = pair[0];
    waiting_pid = (int)pid;
}

/* What the keeper has to look at: the door, or the child that does that for it. */
int door_watched(void) {
    return waiting >= 0 ? waiting : SLOT_DOOR;
}

void door_event(struct plan_header *plan) {
    if (waiting < 0) {
        door_open(plan);
        return;
    }
    sys(NR_close, waiting);
    waiting = -1;
    serving = waiting_pid;
}

static void collected(int pid, int status) {
    if (pid == serving) serving = 0;
    if (status >> 8 == TERMINAL_TAKEN) terminal_taken = 1;
}

/* Its program has ended, perhaps before its starter could ask for the terminal, in which all lies that it showed. Waits for that until then, of the monotonic
 * clock, or until the leash says something: its starter lets go, or ends it. */
void door_await_terminal(struct plan_header *plan, int leash, uint64_t until) {
    struct pollfd_ fds[2] = {{leash, POLL_IN, 0}, {-1, POLL_IN, 0}};
    struct timespec_ short_while = {0, 1000000};
    int status = 0;
    while (!terminal_taken && now_ns(1) < until) {
        if (!serving && waiting < 0) door_open(plan);
        fds[1].fd = waiting;
        sysret n = sys(NR_ppoll, fds, 2, &short_while, 0, 8);
        if (n > 0 && fds[0].revents) return;
        if (n > 0 && fds[1].revents) door_event(plan);
        if (serving && sys(NR_wait4, serving, &status, 1 /* WNOHANG */ | 0x40000000 /* __WALL */, 0) == serving) collected(serving, status);
    }
}

/* The sandbox has ended: nobody waits at its door any more. */
void door_close(void) {
    struct pollfd_ child = {waiting, POLL_IN, 0};
    struct timespec_ zero = {0, 0};
    if (waiting < 0 || sys(NR_ppoll, &child, 1, &zero, 0, 8) != 0) return;
    sys(NR_kill, waiting_pid, SIG_KILL); /* door_collect() waits for it: what a stranger has just sent may take for ever to close */
}

/* Those who entered and have ended, but never init: its end is for account(). Whether there was any. */
int door_reap(int init_pid) {
    for (int came = 0;;) {
        int status = 0;
        int32_t info[32] = {0};
        enum { P_ALL_ = 0, SI_PID = 4, FLAGS = 1 /* WNOHANG */ | 4 /* WEXITED */ | 0x1000000 /* WNOWAIT */ | 0x40000000 /* __WALL */ };
        if (sys(NR_waitid, P_ALL_, 0, info, FLAGS, 0) < 0 || !info[SI_PID] || info[SI_PID] == init_pid) return came;
        /* What a program that entered has left running where the PID namespace is the host's: when and how that ends says nothing to us. */
        int adopted = sys(NR_getsid, info[SI_PID]) != sys(NR_getsid, 0);
        sys(NR_wait4, info[SI_PID], &status, 0x40000000, 0);
        if (adopted) continue;
        collected(info[SI_PID], status);
        if (health_ended(info[SI_PID]) || terminal_ended(info[SI_PID]) || status >> 8 == REFUSED || status >> 8 == NOBODY_CAME) continue;
        deadlines_active();
        came = 1;
    }
}

/* All of our children are dead or about to be: they are ours to collect, not left for whoever adopts orphans. One that a tracer holds cannot be. */
void door_collect(int milliseconds) {
    sysret pid = 1;
    for (int i = 0; i < milliseconds && pid >= 0; i++)
        if ((pid = sys(NR_wait4, -1, 0, 1 /* WNOHANG */ | 0x40000000 /* __WALL */, 0)) == 0) pause_for(1000);
}

/* The child that waits at the door leaves our group before anything else: it may just have been made. One that has taken a request may be in our group for
 * good, since somebody outside has sent it. */
static void await_apart(void) {
    struct pollfd_ child = {waiting, POLL_IN, 0};
    struct timespec_ zero = {0, 0};
    for (int i = 0; i < 1000 && waiting >= 0 && sys(NR_getpgid, waiting_pid) == sys(NR_getpid) && sys(NR_ppoll, &child, 1, &zero, 0, 8) == 0; i++) pause_for(100);
}

/* Whether a program that entered still runs. Those are in our process group; init, checks of health and agents, who wait to be called, are not. */
int door_busy(void) {
    int32_t info[32] = {0};
    await_apart();
    return sys(NR_waitid, 2 /* P_PGID */, 0, info, 1 | 4 | 0x1000000 | 0x40000000, 0) != -E_CHILD;
}
