/* The plan: a flat record of everything that happens between "start" and the first instruction of a program.
 *
 * Python compiles it, the launcher interprets it. Offsets, never pointers; no branches, no loops; all of it checked by
 * plan_validate() before the first operation runs. This file is the single source of operation codes: the C switch, the
 * validator's argument table and Python's names are all made from PLAN_OPS.
 *
 *   header (176 bytes) | operations (32 bytes each) | data (strings and blobs) | times (8 bytes per operation, optional)
 *
 * The plan travels in a memfd that the starter and the launcher both map, so `pc` and the times are a flight recorder: a start that hangs or is killed
 * still names its step.
 */
#ifndef DOCKLESS_PLAN_H
#define DOCKLESS_PLAN_H

#include <stdint.h>

#define PLAN_MAGIC 0x4e4c504bu
#define PLAN_ABI 1
#define PLAN_MAX_SIZE (64u << 20)
#define PLAN_MAX_OPS 65536u

/* A slot number is an fd number. 0-2 are the program's; these are the keeper's; inputs and results of operations start at SLOT_FREE. */
enum {
    SLOT_PLAN = 3,
    SLOT_REPORT = 4,
    SLOT_LEASH = 5,
    SLOT_CGROUP = 6,
    SLOT_LOCK = 7,
    SLOT_STATE = 8,
    SLOT_STDOUT = 9,
    SLOT_STDERR = 10,
    SLOT_SIGNALS = 11,
    SLOT_INIT = 12,
    SLOT_LOG = 13,
    /* Before there is a keeper: what the restarter is to do, and its lock; launcher/restarter.c. */
    SLOT_RESTART = SLOT_SIGNALS,
    SLOT_RESTART_LOCK = SLOT_INIT,
    SLOT_HELD = 14,  /* held open as long as the keeper lives: the image stays in the store, GPUs stay leased */
    SLOT_DOOR = 15,  /* where requests to enter arrive; init's end of the hand-over in init */
    SLOT_FREE = 16,
    /* In the keeper of what enters, instead of inputs and results: the sandbox's namespaces, in the order of launcher/door.c, and a program. */
    SLOT_HANDOVER = 16,
    SLOT_NAMESPACES = 17,
    SLOT_PROGRAM = 23,
    SLOT_TERMINAL = 24,
    SLOT_ROOT = 25, /* a tree of mounts that is attached nowhere: the root of who looks into the sandbox */
    SLOT_MAX = 960,
};

/* PLAN_ERRAND: no sandbox at all, only operations of the keeper. PLAN_ENTER: into a sandbox that runs, see door.c. PLAN_TERMINAL: its output
 * comes from a terminal that init hands over. PLAN_ALONE: it enters, and nobody waits for it. PLAN_RESTARTS: it has a restart policy. PLAN_TAKE: CHDIR
 * and EXEC alone, for a sandbox that waits at its BARRIER, see barrier.c. */
enum { PLAN_TIMES = 1, PLAN_DETACHED = 2, PLAN_ERRAND = 4, PLAN_ENTER = 8, PLAN_TERMINAL = 16, PLAN_ALONE = 32, PLAN_RESTARTS = 64, PLAN_TAKE = 128 };

enum { PHASE_NEW, PHASE_KEEPER, PHASE_INIT, PHASE_PROGRAM, PHASE_READY, PHASE_EXITED };

struct plan_header {
    uint32_t magic;
    uint16_t abi;
    uint16_t flags;
    uint32_t size;
    uint32_t n_ops;
    uint32_t ops_offset;
    uint32_t data_offset;
    uint32_t data_size;
    uint32_t times_offset;
    uint64_t timeout_ns;
    uint64_t grace_ns;
    uint64_t log_limit;
    uint64_t idle_ns; /* without anybody, 0 for ever: deadlines.c */
    uint64_t ttl_ns;  /* until the end that can be moved, 0 for none */
    uint32_t stop_signal;
    uint32_t directory; /* string: the sandbox's directory in SLOT_STATE, removed at the end; empty for none */
    uint32_t cgroup;    /* string: the name of its cgroup, removed if the starter is gone; empty for none */
    uint32_t terminal;  /* its size: rows | columns << 16 */
    uint32_t health;    /* a struct health_check, and behind it the plan of what enters; health_size 0 for none */
    uint32_t health_size;
    uint64_t outside_dev, outside_ino; /* the user namespace of who started it, and of who may come to the door */
    /* below: written by the launcher */
    int32_t pc;
    uint32_t phase;
    int32_t error;
    int32_t status;
    int32_t init_pid;
    uint32_t outcome;
    uint64_t user_us;
    uint64_t system_us;
    uint64_t max_rss_kb;
    uint64_t ended_ns;
    uint64_t started_ns;
    uint64_t active_ns; /* of the monotonic clock: when somebody last came to the door */
    uint64_t ends_ns;   /* of the monotonic clock: when the time to live is over, 0 for never */
};

/* health.c: a check begins `interval_ns` after the last one; failures in the first `start_period_ns` do not count; so many in a row mean unhealthy. */
struct health_check {
    uint64_t interval_ns;
    uint64_t start_period_ns;
    uint32_t retries;
    uint32_t unused;
};

/* OUTCOME_LOST: its keeper was killed. OUTCOME_RESTART: its policy restarts it. OUTCOME_UNENDED: what a command had started in it could not be ended, so the
 * sandbox was; in the plan of that command, too. */
enum {
    OUTCOME_TIMED_OUT = 1, OUTCOME_KILLED = 2, OUTCOME_INIT_DIED = 4, OUTCOME_LEASH = 8, OUTCOME_IDLE = 16, OUTCOME_EXPIRED = 32,
    OUTCOME_LOST = 64, OUTCOME_RESTART = 128, OUTCOME_UNENDED = 256,
};

struct plan_op {
    uint16_t code;
    uint16_t flags;
    int32_t in;
    int32_t out;
    uint32_t a;
    uint32_t b;
    uint32_t c;
    uint64_t x;
};

/* OP_OPTIONAL: a missing object (ENOENT, ENOTDIR) is no error. */
enum { OP_OPTIONAL = 1 };

struct report {
    uint16_t kind;
    uint16_t op;
    int32_t value;
    uint64_t x;
};

enum { REPORT_READY = 1, REPORT_FAILED = 2, REPORT_STATUS = 3, REPORT_WAITING = 4 };

/* X(code, name, in, out, a, b): what the validator demands of each argument.
 *   in, out   s slot   o slot or -1   - must be -1
 *   a         p string   b blob of b bytes   n number   - must be 0
 *   b         p string   l length of a   d blob of c bytes   n number   - must be 0
 */
#define PLAN_OPS(X) \
    X(1, OPEN_TREE, 'o', 's', 'p', '-')    /* a path, x flags */ \
    X(2, MOUNT_ATTR, 'o', 'o', 'p', 'n')   /* out user namespace, x set | clear << 32, b propagation, c AT_ flags */ \
    X(3, FSOPEN, '-', 's', 'p', '-') \
    X(4, FS_STRING, 's', '-', 'p', 'p') \
    X(5, FS_FLAG, 's', '-', 'p', '-') \
    X(6, FS_CREATE, 's', '-', '-', '-') \
    X(7, FSMOUNT, 's', 's', '-', '-')      /* x attributes */ \
    X(8, MOVE_MOUNT, 's', 'o', 'p', 'n')   /* in onto a below out, c resolve flags, b a slot that must not turn out to be the target, 0 for none */ \
    X(9, MKDIR, 'o', 'o', 'p', '-')       /* with parents, x mode */ \
    X(10, MKTARGET, 'o', 's', 'p', '-')    /* a file or a directory, as out is one; with parents */ \
    X(11, SYMLINK, 'o', '-', 'p', 'p')     /* at a, to b */ \
    X(12, OPEN, 'o', 's', 'p', '-')        /* x open flags, c resolve flags */ \
    X(13, CLOSE, 's', '-', '-', '-') \
    X(14, PIVOT, 's', '-', '-', '-') \
    X(15, SETNS, 's', '-', '-', '-')       /* x type */ \
    X(16, UNSHARE, '-', '-', '-', '-')     /* x flags */ \
    X(17, WRITE, 'o', '-', 'p', 'd')       /* x open flags */ \
    X(18, HOSTNAME, '-', '-', 'p', '-') \
    X(19, LOOPBACK_UP, '-', '-', '-', '-') \
    X(20, SET_IDS, '-', '-', 'n', 'd')     /* x uid | gid << 32, b groups (u32), a != 0: leave groups */ \
    X(21, FS_IDS, '-', '-', 'n', 'd')      /* the same for fsuid, fsgid */ \
    X(22, CLONE, 'o', 'o', '-', '-')       /* in cgroup, x flags; out: a PID namespace, below which the new one lies */ \
    X(23, SPAWN, '-', '-', '-', '-') \
    X(24, SETSID, '-', '-', '-', '-')      /* x != 0: the terminal on 0 becomes the session's */ \
    X(25, RLIMIT, '-', '-', 'b', 'l')      /* a two u64: soft, hard; c resource */ \
    X(26, UMASK, '-', '-', '-', '-')       /* x */ \
    X(27, CHDIR, '-', '-', 'p', '-') \
    X(28, AFFINITY, '-', '-', 'b', 'l')    /* a cpu mask */ \
    X(29, BOUNDING, '-', '-', '-', '-')    /* x kept */ \
    X(30, CAPS, '-', '-', '-', '-')        /* x permitted and effective */ \
    X(31, NO_NEW_PRIVS, '-', '-', '-', '-') \
    X(32, SECCOMP, '-', '-', 'b', 'l')     /* a struct sock_filter[] */ \
    X(33, PDEATHSIG, '-', '-', '-', '-')   /* x */ \
    X(34, SUBREAPER, '-', '-', '-', '-') \
    X(35, OWN_PIPES, '-', '-', '-', '-')    /* x uid | gid << 32 */ \
    X(36, SIGNALS, '-', '-', '-', '-')     /* all to their defaults, none blocked */ \
    X(37, KEYRING, '-', '-', '-', '-') \
    X(38, CHOWN, 'o', '-', 'p', '-')       /* x uid | gid << 32 */ \
    X(39, EXPECT_DEVICE, 's', '-', '-', '-') /* x st_rdev, c != 0: a block device */ \
    X(40, MASK, 's', 's', 'p', '-')        /* in /dev/null, out empty directory */ \
    X(41, READONLY, '-', '-', 'p', '-') \
    X(42, OVERLAY, '-', '-', 'p', 'p')     /* mount(2) for old kernels: a options, b target */ \
    X(43, REMOVE, 'o', '-', 'p', '-')      /* a directory and everything below */ \
    X(44, NULL_STREAMS, 's', '-', 'p', '-') /* a the null device below in */ \
    X(45, EXEC, '-', '-', 'b', 'l')        /* a u32[]: candidates, argv, envp, each as count and offsets; an empty candidate: SLOT_PROGRAM */ \
    X(46, HAND_OVER, 'o', '-', '-', '-')   /* x types of namespaces, for the keeper to let others enter; in: for who has the other end of that socket */ \
    X(47, TERMINAL, 's', '-', 'p', '-')    /* a the ptmx of a devpts, x uid | gid << 32; in a socket for the side that is not the program's */ \
    X(48, RESTORE, 's', '-', 'b', 'l')     /* in a terminal, a its struct termios: when the leash has ended without a byte */ \
    X(49, STREAMS, '-', '-', '-', '-')     /* 0 is a socket, from which 0-2 come */ \
    X(50, DOMAINNAME, '-', '-', 'p', '-') \
    X(51, SYSCTL, 's', '-', 'p', 'd')      /* in a procfs */ \
    X(52, THAW, 's', '-', '-', '-')        /* a cgroup.freeze: when the leash has ended without a byte */ \
    X(53, BARRIER, 's', '-', '-', '-')     /* in init: wait for what is to run, sent over the socket in; x nanoseconds at most, 0 for ever */ \
    X(54, HAND_ROOT, 's', '-', '-', '-')   /* send a clone of the root and of all that is mounted below it over the socket in */ \
    X(55, MARK, '-', '-', '-', '-')        /* two of our limits: marked.c; x != 0: what carries it ends with its program */

#define X(code, name, in, out, a, b) OP_##name = code,
enum plan_code { PLAN_OPS(X) OP_END };
#undef X

/* 0 if the plan may be interpreted, else a negative line number of plan.c for whoever debugs a compiler; *bad_op gets the operation. */
_Static_assert(sizeof(struct plan_header) == 192 && sizeof(struct plan_op) == 32, "the layout that sandbox/plan/plan.py packs");

int plan_validate(const void *plan, uint64_t size, int *bad_op);

static inline const struct plan_op *plan_ops(const struct plan_header *h) {
    return (const struct plan_op *)((const char *)h + h->ops_offset);
}

static inline const char *plan_data(const struct plan_header *h, uint32_t offset) {
    return (const char *)h + h->data_offset + offset;
}

#endif
