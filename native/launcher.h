#ifndef DOCKLESS_LAUNCHER_H
#define DOCKLESS_LAUNCHER_H

#include "ops.h"

/* keeper.c: waits for the init of a sandbox, from outside. Never returns. */
void keeper_run(struct plan_header *plan, int init_pid);

/* init.c: PID 1 of a sandbox, once the job is running. Never returns. */
void init_run(struct plan_header *plan, int job_pid);

/* log.c: one chunk of a job's output into the log of a detached sandbox. */
void log_write(const char *stream, const char *bytes, uint64_t length, uint64_t limit);

/* launcher.c: run on every processor again that the host may use. */
void go_anywhere(void);

/* report.c */
void report(uint16_t kind, uint16_t op, int32_t value, uint64_t x);
void die(int code) __attribute__((noreturn));
uint64_t put_text(char *to, uint64_t at, const char *text);
uint64_t put_number(char *to, uint64_t at, uint64_t number, int width);
void write_all(int fd, const char *bytes, uint64_t length);

#endif
