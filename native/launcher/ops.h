#ifndef DOCKLESS_OPS_H
#define DOCKLESS_OPS_H

#include "plan.h"
#include "sys.h"

/* Carry out one operation. 0 or a negative errno. CLONE and SPAWN are not operations in this sense: they split the process (launcher.c). */
int op_run(struct plan_header *plan, const struct plan_op *op);

/* remove.c: a directory and everything below it, by name in a directory. 0 or a negative errno. */
int remove_tree(int parent, const char *name);

#endif
