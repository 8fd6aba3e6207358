#ifndef DOCKLESS_OPS_H
#define DOCKLESS_OPS_H

#include "plan.h"
#include "sys.h"

/* Carry out one operation. 0 or a negative errno. CLONE and SPAWN are not operations in this sense: they split the process (launcher.c). */
int op_run(struct plan_header *plan, const struct plan_op *op);

/* report.c: whether a process with the same ids may look into this one. */
void dumpable(int whether);

/* door.c: in init, give its namespaces of these types to the keeper (SLOT_DOOR), or to who has the other end of another socket. 0 or a negative errno. */
int hand_over(int to, uint64_t types);

/* door.c: the keeper's or the starter's side of a terminal, over a socket. 0 or a negative errno. */
int send_terminal(int to, int terminal);
int hand_root(int to);

/* door.c: the three standard streams, over the socket on 0. 0 or a negative errno. */
int take_streams(void);

/* barrier.c: in init, wait for what is to run, so many nanoseconds at most, 0 for ever. 0 or a negative errno. */
int wait_at_barrier(struct plan_header *plan, int owner, uint64_t ns);

/* barrier.c: what came, 0 where nothing did: CHDIR and EXEC in the place of the plan's own. */
const struct plan_header *taken_plan(void);

/* door.c: in init, say to the keeper that it has come. 0 or a negative errno. */
int tell_taken(void);

/* ops.c: in init, when the program has been exec'd. */
void forget_arguments(void);

/* ops.c: the slot of the PID namespace that the plan enters, -1 for none. */
int pid_namespace(const struct plan_header *plan);

/* marked.c: so that what we start is found wherever it goes; `ends`: and ends with its program. 0 or a negative errno. */
int set_mark(uint64_t ends, int pids);

/* remove.c: a directory and everything below it, by name in a directory. 0 or a negative errno. */
int remove_tree(int parent, const char *name);

#endif
