/* PID 1 of a sandbox: reaps, forwards signals, and ends when the program ends, which makes the kernel end the rest.
 *
 * It keeps no privilege but CAP_KILL, no fd but its program's terminal, and is not dumpable, so that a program of the same user can neither trace it nor read its memory.
 */
#include "launcher.h"

enum { CAP_KILL_MASK = 1 << 5 };

static void drop_privileges(void) {
    struct { uint32_t version; int pid; } header = {0x20080522, 0};
    struct { uint32_t effective, permitted, inheritable; } data[2] = {{CAP_KILL_MASK, CAP_KILL_MASK, 0}, {0, 0, 0}};
    if (sys(NR_capset, &header, data) < 0) {
        data[0].effective = data[0].permitted = 0;
        sys(NR_capset, &header, data);
    }
    sys(NR_prctl, 38 /* NO_NEW_PRIVS */, 1, 0, 0, 0);
}

/* All dead children; 1 when the program was among them, with its exact wait status in *status. */
static int reap(int program_pid, int *status) {
    int found = 0, st;
    for (;;) {
        sysret pid = sys(NR_wait4, -1, &st, 1 /* WNOHANG */ | 0x40000000 /* __WALL */, 0);
        if (pid == -E_INTR) continue;
        if (pid <= 0) return found;
        if (pid == program_pid) {
            *status = st;
            found = 1;
        }
    }
}

/* What only the start needed. A sandbox that waits is little more than its keeper's memory and ours, so a page is worth a call. */
static void forget_start(struct plan_header *plan) {
    enum { NAMES = 160 /* of what the keeper removes: sandbox/plan/plan.py */, MADV_REMOVE = 9 };
    uint64_t kept = (plan->data_offset + NAMES + PAGE - 1) & ~(uint64_t)(PAGE - 1);
    if (plan->flags & PLAN_ENTER) return; /* all of it is its keeper's, too */
    forget_arguments();
    forget_taken();
    forget_program_stack();
    forget_below();
    if (!plan->health_size && !(plan->flags & PLAN_TIMES) && kept < plan->size) sys(NR_madvise, (char *)plan + kept, plan->size - kept, MADV_REMOVE);
}

/* Whether 0 is a terminal that was made for the program. We keep it open, because the program may close it for a moment, and who reads from its other side
 * takes an error for the end: pty(7). */
static int has_terminal(const struct plan_header *plan) {
    for (uint32_t pc = 0; pc < plan->n_ops; pc++)
        if (plan_ops(plan)[pc].code == OP_TERMINAL) return 1;
    return 0;
}

void init_run(struct plan_header *plan, int program_pid) {
    struct { int signo, errno_, code; char rest[116]; } info;
    uint64_t all = ~0ull;
    int status = 0;
    go_anywhere();
    drop_privileges();
    sys(NR_close_range, has_terminal(plan), ~0u, 0);
    forget_start(plan);
    for (;;) {
        sysret sig = sys(NR_rt_sigtimedwait, &all, &info, 0, 8);
        if (sig == SIG_CHLD) {
            if (!reap(program_pid, &status)) continue;
            plan->status = status;
            plan->phase = PHASE_EXITED;
            die(0);
        }
        if (sig > 0 && info.code <= 0) sys(NR_kill, program_pid, sig);
    }
}
