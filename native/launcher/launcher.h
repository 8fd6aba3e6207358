#ifndef DOCKLESS_LAUNCHER_H
#define DOCKLESS_LAUNCHER_H

#include "ops.h"

/* Bytes that a record of a detached sandbox takes at most, and that the starter sets aside before the start (sandbox/run/records.py). The five cgroup files take
 * 2000 each. */
enum { RECORD_ROOM = 16384 };

/* keeper.c: waits for the init of a sandbox, from outside. Never returns. */
void keeper_run(struct plan_header *plan, int init_pid);

/* keeper.c: what passes through the keeper, and the record that it is writing. A record is lines "key number", then its end mark. */
extern char buffer[RECORD_ROOM];
uint64_t line(uint64_t at, const char *key, uint64_t value);
uint64_t end_mark(uint64_t at);

/* deadlines.c: what ends a sandbox after a time. */
void deadlines_start(struct plan_header *plan);
uint64_t deadlines_next(const struct plan_header *plan); /* monotonic nanoseconds, 0 for never */
uint32_t deadlines_passed(struct plan_header *plan);     /* the outcome, 0 where none has */
void deadlines_active(void);
int deadlines_move(struct plan_header *plan, uint64_t ns);

/* health.c: whether a sandbox that runs does what it is there for. */
void health_start(struct plan_header *plan);
uint64_t health_due(void); /* monotonic nanoseconds, 0 for never */
int health_output(void);   /* what to poll while a check runs, -1 for nothing */
void health_read(void);
void health_tick(struct plan_header *plan);
int health_ended(int pid); /* whether it was a check's */
void health_stop(void);

/* terminal.c: what is shown on the terminal of a detached sandbox. */
int terminal_begin(void);
int terminal_ended(int pid); /* whether it was its reader */
int terminal_has_more(uint64_t until);
void terminal_stop(void);

/* keeper.c: the record `exit`. */
void write_exit(struct plan_header *plan);

/* restarter.c: 0 or a negative errno; whether a sandbox that has ended is to be restarted. */
int restarter_begin(struct plan_header *plan);
int restart_due(const struct plan_header *plan);

/* barrier.c: in init, when the program has been exec'd. */
void forget_taken(void);

/* init.c: PID 1 of a sandbox, once the program is running. Never returns. */
void init_run(struct plan_header *plan, int program_pid);

/* door.c: what enters a sandbox that runs. */
void door_pair(int pair[2]);
int door_take(void);
void door_open(struct plan_header *plan);
int door_watched(void);
void door_event(struct plan_header *plan);
int door_reap(int init_pid);
void door_await_terminal(struct plan_header *plan, int leash, uint64_t until);
void door_close(void);
void door_collect(int milliseconds);
int door_busy(void);
sysret pid_behind(int pidfd); /* by the host's procfs: its number there, or a negative errno */
int lift(int32_t *fds, int count);
int settle(const int32_t *fds, const int32_t *slots, int count);

/* numbers.c: the numbers above 0 that a file lists, one after the other. */
struct numbers {
    int fd, at, size;
    char text[4096];
};
int open_numbers(struct numbers *from, int directory, const char *path); /* 0, or -1 and there is nothing to close */
int32_t next_number(struct numbers *from);                               /* 0 at the end */
void close_numbers(struct numbers *from);

/* group.c */
int kill_group(const char *name);

/* marked.c: what entered where there is no cgroup. */
int ends_with_its_program(void); /* whether nothing of it is to go on when its program has ended */
int kill_marked(int spared); /* 1: there are always new ones */

/* launcher.c: a child of the keeper says by its names that it is not the keeper. */
void become_entering(void);

/* launcher.c: in such a child, carry out the plan that is now in SLOT_PLAN. */
void enter(void) __attribute__((noreturn));

/* launcher.c: what the host shows as our command line begins with these eight letters; a keeper is found by its own. */
void retitle(const char *word);

/* log.c: one chunk of a program's output into the log of a detached sandbox. */
void log_end(void);
void log_write(const char *stream, const char *bytes, uint64_t length, uint64_t limit);

/* launcher.c: memory that nobody needs any more, the program's stack and what lies below the caller's own. */
enum { PAGE = 4096 };
void forget_program_stack(void);
void forget_below(void);

/* launcher.c: run on every processor again that the host may use. */
void go_anywhere(void);

/* report.c */
void report(uint16_t kind, uint16_t op, int32_t value, uint64_t x);
void die(int code) __attribute__((noreturn));
void pause_for(int64_t us); /* less than a second */
void never_wait(int fd); /* for what others could take away or fill before us */
sysret write_all(int fd, const char *bytes, uint64_t length); /* 0 or a negative errno */
void *memcpy(void *to, const void *from, unsigned long n);
uint32_t crc32(const char *bytes, uint64_t length);

#endif
