/* The plan: a flat record of everything that happens between "start" and the first instruction of a job.
 *
 * Python compiles it, the launcher interprets it. Offsets, never pointers; no branches, no loops; all of it checked by
 * plan_validate() before the first operation runs. This file is the single source of operation codes: the C switch, the
 * validator's argument table and Python's names are all made from PLAN_OPS.
 *
 *   header (136 bytes) | operations (32 bytes each) | data (strings and blobs) | times (8 bytes per operation, optional)
 *
 * The plan travels in a memfd that the host and the launcher both map, so `pc` and the times are a flight recorder: a start that hangs or is killed
 * still names its step.
 */
#ifndef DOCKLESS_PLAN_H
#define DOCKLESS_PLAN_H

#include <stdint.h>

#define PLAN_MAGIC 0x4e4c504bu
#define PLAN_ABI 1
#define PLAN_MAX_SIZE (64u << 20)
#define PLAN_MAX_OPS 65536u

/* A slot number is an fd number. 0-2 are the job's; these are the keeper's; inputs and results of operations start at SLOT_FREE. */
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
    SLOT_IMAGE = 14, /* held open, so that the image's lease lasts as long as the keeper */
    SLOT_FREE = 16,
    SLOT_MAX = 960,
};

/* PLAN_ERRAND: no sandbox at all, only operations of the keeper. */
enum { PLAN_TIMES = 1, PLAN_DETACHED = 2, PLAN_ERRAND = 4 };

enum { PHASE_NEW, PHASE_KEEPER, PHASE_INIT, PHASE_JOB, PHASE_READY, PHASE_EXITED };

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
    uint32_t stop_signal;
    uint32_t directory; /* string: the sandbox's directory in SLOT_STATE, removed at the end; empty for none */
    uint32_t cgroup;    /* string: the name of its cgroup, removed if the host is gone; empty for none */
    uint32_t reserved;
    /* below: written by the interpreter */
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
};

enum { OUTCOME_TIMED_OUT = 1, OUTCOME_KILLED = 2, OUTCOME_INIT_DIED = 4, OUTCOME_LEASH = 8 };

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

enum { REPORT_READY = 1, REPORT_FAILED = 2, REPORT_STATUS = 3 };

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
    X(22, CLONE, 'o', '-', '-', '-')       /* in cgroup, x flags */ \
    X(23, SPAWN, '-', '-', '-', '-') \
    X(24, SETSID, '-', '-', '-', '-') \
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
    X(39, EXPECT_DEVICE, 's', '-', '-', '-') /* x st_rdev */ \
    X(40, MASK, 's', 's', 'p', '-')        /* in /dev/null, out empty directory */ \
    X(41, READONLY, '-', '-', 'p', '-') \
    X(42, OVERLAY, '-', '-', 'p', 'p')     /* mount(2) for old kernels: a options, b target */ \
    X(43, REMOVE, 'o', '-', 'p', '-')      /* a directory and everything below */ \
    X(44, NULL_STREAMS, 's', '-', 'p', '-') /* a the null device below in */ \
    X(45, EXEC, '-', '-', 'b', 'l')        /* a u32[]: candidates, argv, envp, each as count and offsets */

#define X(code, name, in, out, a, b) OP_##name = code,
enum plan_code { PLAN_OPS(X) OP_END };
#undef X

/* 0 if the plan may be interpreted, else a negative line number of plan.c for whoever debugs a compiler; *bad_op gets the operation. */
_Static_assert(sizeof(struct plan_header) == 136 && sizeof(struct plan_op) == 32, "the layout that sandbox/plan/plan.py packs");

int plan_validate(const void *plan, uint64_t size, int *bad_op);

static inline const struct plan_op *plan_ops(const struct plan_header *h) {
    return (const struct plan_op *)((const char *)h + h->ops_offset);
}

static inline const char *plan_data(const struct plan_header *h, uint32_t offset) {
    return (const char *)h + h->data_offset + offset;
}

#endif
