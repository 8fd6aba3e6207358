/* The validator: nothing of a plan is used before it has passed here. Shared by the launcher and the extension. */
#include "plan.h"

struct shape { char known, in, out, a, b; };

static const struct shape shapes[OP_END] = {
#define X(code, name, in, out, a, b) [code] = {1, in, out, a, b},
    PLAN_OPS(X)
#undef X
};

static int slot_ok(int32_t slot, char kind) {
    if (kind == '-' || (kind == 'o' && slot == -1)) return slot == -1;
    return slot >= 0 && slot < SLOT_MAX;
}

static int blob_ok(const struct plan_header *h, uint32_t offset, uint32_t length) {
    return (uint64_t)offset + length <= h->data_size;
}

static int string_ok(const struct plan_header *h, uint32_t offset) {
    const char *data = plan_data(h, 0);
    for (uint64_t i = offset; i < h->data_size; i++)
        if (!data[i]) return 1;
    return 0;
}

/* The exec vector is three lists of string offsets; each is counted and each offset is a string. */
static int vector_ok(const struct plan_header *h, uint32_t offset, uint32_t length) {
    if (offset % 4 || length % 4) return 0;
    const uint32_t *v = (const uint32_t *)plan_data(h, offset);
    uint64_t words = length / 4, at = 0;
    for (int list = 0; list < 3; list++) {
        if (at >= words) return 0;
        uint64_t n = v[at++];
        if (n > words - at || (list < 2 && n == 0)) return 0;
        for (uint64_t i = 0; i < n; i++)
            if (!string_ok(h, v[at + i])) return 0;
        at += n;
    }
    return at == words;
}

static int op_ok(const struct plan_header *h, const struct plan_op *op) {
    if (op->code >= OP_END || !shapes[op->code].known) return 0;
    const struct shape *s = &shapes[op->code];
    if (op->flags & ~OP_OPTIONAL) return 0;
    if (!slot_ok(op->in, s->in) || !slot_ok(op->out, s->out)) return 0;
    if (s->a == 'p' && !string_ok(h, op->a)) return 0;
    if (s->a == '-' && op->a) return 0;
    if (s->a == 'b' && !blob_ok(h, op->a, op->b)) return 0;
    if (s->b == 'p' && !string_ok(h, op->b)) return 0;
    if (s->b == 'd' && !blob_ok(h, op->b, op->c)) return 0;
    if (s->b == '-' && op->b) return 0;
    switch (op->code) {
    case OP_SET_IDS:
    case OP_FS_IDS: return op->b % 4 == 0 && op->c % 4 == 0;
    case OP_MOVE_MOUNT: return op->b < SLOT_MAX;
    case OP_RLIMIT: return op->b == 16;
    case OP_RESTORE: return op->b == 36;
    case OP_SECCOMP: return op->b % 8 == 0 && op->b / 8 >= 1 && op->b / 8 <= 4096;
    case OP_EXEC: return vector_ok(h, op->a, op->b);
    }
    return 1;
}

/* A plan is [keeper] CLONE [init] SPAWN [program] EXEC, in this order and once each; an errand has none of the three. Init may wait once. What a take brings
 * is CHDIR and EXEC. */
static int order_ok(const struct plan_header *h) {
    int clone = 0, spawn = 0, barrier = 0;
    const struct plan_op *ops = plan_ops(h);
    if (h->flags & PLAN_TAKE) return h->flags == PLAN_TAKE && h->n_ops == 2 && ops[0].code == OP_CHDIR && ops[1].code == OP_EXEC;
    for (uint32_t i = 0; i < h->n_ops; i++) {
        int last = i + 1 == h->n_ops;
        if (ops[i].code == OP_CLONE && (clone++ || spawn)) return 0;
        if (ops[i].code == OP_SPAWN && (spawn++ || !clone)) return 0;
        if (ops[i].code == OP_BARRIER && (barrier++ || !clone || spawn)) return 0;
        if ((ops[i].code == OP_EXEC) != (last && !(h->flags & PLAN_ERRAND))) return 0;
    }
    return h->flags & PLAN_ERRAND ? !clone && !spawn : clone && spawn;
}

int plan_validate(const void *plan, uint64_t size, int *bad_op) {
    const struct plan_header *h = plan;
    *bad_op = -1;
    if (size < sizeof *h || size > PLAN_MAX_SIZE) return -__LINE__;
    if (h->magic != PLAN_MAGIC || h->abi != PLAN_ABI || h->size != size) return -__LINE__;
    if (!h->n_ops || h->n_ops > PLAN_MAX_OPS) return -__LINE__;
    if (h->ops_offset % 8 || h->data_offset % 8 || h->times_offset % 8) return -__LINE__;
    if (h->ops_offset < sizeof *h || (uint64_t)h->ops_offset + (uint64_t)h->n_ops * sizeof(struct plan_op) > size) return -__LINE__;
    /* One after the other: the times are written while the plan runs, and must not change what was checked. */
    uint64_t ops_end = (uint64_t)h->ops_offset + (uint64_t)h->n_ops * sizeof(struct plan_op), data_end = (uint64_t)h->data_offset + h->data_size;
    if (h->data_offset < ops_end || data_end > size) return -__LINE__;
    if ((h->flags & PLAN_TIMES) && (h->times_offset < data_end || (uint64_t)h->times_offset + (uint64_t)h->n_ops * 8 > size)) return -__LINE__;
    if (h->stop_signal > 64) return -__LINE__;
    if (h->health_size && (h->health_size < sizeof(struct health_check) || h->health % 8 || !blob_ok(h, h->health, h->health_size))) return -__LINE__;
    if (!string_ok(h, h->directory) || !string_ok(h, h->cgroup)) return -__LINE__;
    for (uint32_t i = 0; i < h->n_ops; i++)
        if (!op_ok(h, &plan_ops(h)[i])) {
            *bad_op = (int)i;
            return -__LINE__;
        }
    if (!order_ok(h)) return -__LINE__;
    return 0;
}
