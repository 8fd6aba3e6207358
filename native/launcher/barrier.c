/* A sandbox that waits for its program: all of it is made, but for what the plan has behind BARRIER. Whoever prepared it says, once, what runs in it.
 *
 *   owner                                               init                     keeper
 *    │◄──────────────────────────────────── WAITING ─────│                        │
 *    │ one datagram: a sealed plan, and three streams     │                        │ until it is taken, or ends
 *    │───────────────────────────────────────────────────►│──────── TAKEN ────────►│ as in any sandbox: its deadlines begin here
 *    │◄──────────────────────────── READY or FAILED ──────│
 *
 * The socket has no name, and its owner alone has the other end. What is sent is the command, its variables and its directory: everything else is the plan's
 * that was prepared, and what limits the program, the seccomp filter last, is still to come.
 */
#include "message.h"

enum { STREAMS = 3, F_GET_SEALS_ = 1034, SEALS = 2 | 4 | 8 /* SHRINK, GROW, WRITE: memfd_create(2) */ };

static struct plan_header *taken; /* on memory that init and its program share */

/* Its owner has ended, or let go, or nobody came for so many nanoseconds, 0 for ever: one process decides, so no taker finds one that is just given up. The
 * keeper removes all of it then. */
static void await_message(int owner, uint64_t ns) {
    struct pollfd_ socket = {owner, POLL_IN, 0};
    struct timespec_ time = {(int64_t)(ns / 1000000000), (int64_t)(ns % 1000000000)};
    if (sys(NR_ppoll, &socket, 1, ns ? &time : 0, 0, 8) <= 0 || !(socket.revents & POLL_IN)) die(0);
}

/* What is sealed stays as it was checked. 0 or a negative errno. */
static int accept_plan(int fd) {
    struct facts given = {0};
    int bad_op = -1;
    sysret seals = sys(NR_fcntl, fd, F_GET_SEALS_, 0);
    if (seals < 0 || (seals & SEALS) != SEALS) return -E_PERM;
    int error = facts_of(fd, &given);
    if (error < 0) return error;
    sysret map = sys(NR_mmap, 0, given.size, 1 /* READ */, 2 /* PRIVATE */, fd, 0);
    if (map < 0 && map > -4096) return (int)map;
    taken = (struct plan_header *)map;
    return plan_validate(taken, given.size, &bad_op) < 0 || !(taken->flags & PLAN_TAKE) ? -E_INVAL : 0;
}

/* Until there is a program of its own, what comes to init as an orphan is a stranger's, whose process was born in its PID namespace: the kernel collects it,
 * sigaction(2). */
static void collect_orphans(int whether) {
    struct { uint64_t handler, flags, restorer, mask; } action = {whether ? 1 /* SIG_IGN */ : 0 /* SIG_DFL */, 0, 0, 0};
    sys(NR_rt_sigaction, SIG_CHLD, &action, 0, 8);
}

int wait_at_barrier(struct plan_header *plan, int owner, uint64_t ns) {
    struct message m;
    char byte;
    int count;
    go_anywhere();
    forget_below();
    collect_orphans(1);
    report(REPORT_WAITING, 0, plan->init_pid, 0);
    await_message(owner, ns);
    sysret n = receive(owner, &m, &byte, sizeof byte, &count, 0);
    if (!n) die(0);
    sysret error = n < 0 ? n : count != 1 + STREAMS || m.head.flags & MSG_CTRUNC_ ? -E_INVAL : accept_plan(m.control.fds[0]);
    for (int fd = 0; fd < STREAMS && error >= 0; fd++) error = sys(NR_dup3, m.control.fds[1 + fd], fd, 0);
    close_all(m.control.fds, count);
    sys(NR_close, owner);
    if (error < 0) return (int)error;
    collect_orphans(0);
    plan->started_ns = now_ns(0 /* REALTIME */);
    plan->phase = PHASE_PROGRAM;
    return tell_taken();
}

const struct plan_header *taken_plan(void) {
    return taken;
}

void forget_taken(void) {
    if (taken) sys(NR_munmap, taken, taken->size);
}
