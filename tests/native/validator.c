/* The validator alone, hosted, for the sanitizers: reads records (u32 length, bytes) from standard input, prints one line each: the verdict, and touches
 * everything that an accepted plan points at, as the launcher would. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "plan.h"

static volatile unsigned long touched;

static const char shapes[OP_END][4] = {
#define X(code, name, in, out, a, b) [code] = {in, out, a, b},
    PLAN_OPS(X)
#undef X
};

static void touch(const char *bytes, unsigned long length) {
    for (unsigned long i = 0; i < length; i++) touched += (unsigned char)bytes[i];
}

static void touch_string(const struct plan_header *h, uint32_t offset) {
    const char *text = plan_data(h, offset);
    touch(text, strlen(text));
}

static void walk(struct plan_header *h) {
    touch_string(h, h->directory);
    touch_string(h, h->cgroup);
    for (uint32_t i = 0; i < h->n_ops; i++) {
        const struct plan_op *op = &plan_ops(h)[i];
        const char *shape = shapes[op->code];
        if (shape[2] == 'p') touch_string(h, op->a);
        if (shape[2] == 'b') touch(plan_data(h, op->a), op->b);
        if (shape[3] == 'p') touch_string(h, op->b);
        if (shape[3] == 'd') touch(plan_data(h, op->b), op->c);
        if (op->code == OP_EXEC) {
            const uint32_t *v = (const uint32_t *)plan_data(h, op->a);
            for (int list = 0; list < 3; list++) {
                uint32_t n = *v++;
                while (n--) touch_string(h, *v++);
            }
        }
        if (h->flags & PLAN_TIMES) ((uint64_t *)((char *)h + h->times_offset))[i] = ~0ull;
    }
}

int main(void) {
    uint32_t length;
    while (fread(&length, 4, 1, stdin) == 1) {
        char *plan = malloc(length ? length : 1); /* exactly as long as it says: one byte more is an error */
        if (!plan || fread(plan, 1, length, stdin) != length) return 3;
        int bad = -1, verdict = plan_validate(plan, length, &bad);
        printf("%d %d\n", verdict == 0, bad);
        if (verdict == 0) {
            walk((struct plan_header *)plan);
            /* What was written while it ran may not have changed what was checked. */
            if (plan_validate(plan, length, &bad) != 0) {
                fprintf(stderr, "the times lie on top of the plan\n");
                return 4;
            }
        }
        free(plan);
    }
    return 0;
}
