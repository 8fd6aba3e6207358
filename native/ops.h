#ifndef DOCKLESS_OPS_H
#define DOCKLESS_OPS_H

#include "plan.h"
#include "sys.h"

/* Carry out one operation. 0 or a negative errno. CLONE and SPAWN are not operations in this sense: they split the process (launcher.c). */
int op_run(struct plan_header *plan, const struct plan_op *op);

/* What fstat(2) says of a descriptor, on either architecture. 0 or a negative errno. */
struct facts { uint64_t dev, ino, rdev, size; uint32_t type; };
int facts_of(int fd, struct facts *facts);

enum { TYPE_PIPE = 0010000, TYPE_CHARACTER = 0020000, TYPE_DIRECTORY = 0040000 };

/* remove.c: a directory and everything below it, by name in a directory. 0 or a negative errno. */
int remove_tree(int parent, const char *name);

#endif
