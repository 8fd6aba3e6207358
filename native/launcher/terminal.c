/* The output of a detached sandbox that has a terminal. How much of it is shown again to who attaches: src/dockless/_attaching.py.
 *
 *   program ─► terminal ─► reader, a child of the keeper ─► pipe ─► keeper ─► log
 *
 * Whoever attaches gets a copy of our side of the terminal, with all that it can do: read what we were about to read, change whether a read waits, change
 * its line discipline, for which even a poll waits (tty_ldisc(9)). So the keeper never asks the terminal for anything. The reader may sleep as long as they
 * like, and what the keeper reads is a pipe that nobody else has.
 */
#include "launcher.h"

static char shown[4096];
static int reader; /* its pid while it lives */
static int begun;

static void __attribute__((noreturn)) read_terminal(int keeper, int to) {
    struct pollfd_ terminal = {SLOT_STDOUT, POLL_IN, 0};
    retitle("terminal");
    sys(NR_prctl, 15 /* NAME */, "dockless-reader", 0, 0, 0);
    sys(NR_prctl, 1 /* PDEATHSIG */, SIG_KILL, 0, 0, 0);
    if (sys(NR_getppid) != keeper) die(1);
    sys(NR_setpgid, 0, 0); /* door_busy() */
    if (sys(NR_dup3, to, SLOT_STDERR, O_CLOEXEC_) < 0) die(1);
    sys(NR_close_range, 0, SLOT_STDOUT - 1, 0);
    sys(NR_close_range, SLOT_STDERR + 1, ~0u, 0);
    for (;;) {
        sysret n = sys(NR_read, SLOT_STDOUT, shown, sizeof shown);
        if (n == -E_AGAIN) sys(NR_ppoll, &terminal, 1, 0, 0, 8); /* somebody has made it so */
        else if (n != -E_INTR && (n <= 0 || write_all(SLOT_STDERR, shown, (uint64_t)n) < 0)) die(0);
    }
}

/* Once its terminal has been handed over; 1: what to read is in SLOT_STDERR. */
int terminal_begin(void) {
    struct clone_args args = {.exit_signal = SIG_CHLD};
    struct facts output = {0};
    int ends[2];
    if (facts_of(SLOT_STDOUT, &output) < 0 || output.type != TYPE_CHARACTER || sys(NR_pipe2, ends, O_CLOEXEC_) < 0) return 0;
    sysret self = sys(NR_getpid), pid = sys(NR_clone3, &args, sizeof args);
    if (pid == 0) read_terminal((int)self, ends[1]);
    sys(NR_close, ends[1]);
    begun = pid > 0 && sys(NR_dup3, ends[0], SLOT_STDERR, O_CLOEXEC_) > 0;
    sys(NR_close, ends[0]);
    if (!begun) return 0; /* no room for a process: at the next event */
    reader = (int)pid;
    never_wait(SLOT_STDERR);
    return 1;
}

/* Whether it was the reader that has ended. */
int terminal_ended(int pid) {
    if (!reader || pid != reader) return 0;
    reader = 0;
    return 1;
}

/* Everything inside is dead, so the reader comes to its end, unless somebody holds the other side of the terminal or holds up the reader. Waits for more of its
 * output until then, of the monotonic clock; 0 when there is none. */
int terminal_has_more(uint64_t until) {
    struct pollfd_ output = {SLOT_STDERR, POLL_IN, 0};
    uint64_t now = now_ns(1);
    if (!begun || now >= until) return 0;
    struct timespec_ left = {(int64_t)((until - now) / 1000000000), (int64_t)((until - now) % 1000000000)};
    return sys(NR_ppoll, &output, 1, &left, 0, 8) > 0;
}

void terminal_stop(void) {
    if (reader) sys(NR_kill, reader, SIG_KILL);
}
