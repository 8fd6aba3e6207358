#ifndef DOCKLESS_LAUNCHER_H
#define DOCKLESS_LAUNCHER_H

#include "ops.h"

/* Bytes that a record of a detached sandbox takes at most, and that the host sets aside before the start (sandbox/run/records.py). The five cgroup files take
 * 2000 each. */
enum { RECORD_ROOM = 16384 };

/* keeper.c: waits for the init of a sandbox, from outside. Never returns. */
void keeper_run(struct plan_header *plan, int init_pid);

/* init.c: PID 1 of a sandbox, once the job is running. Never returns. */
void init_run(struct plan_header *plan, int job_pid);

/* log.c: one chunk of a job's output into the log of a detached sandbox. */
void log_end(void);
void log_write(const char *stream, const char *bytes, uint64_t length, uint64_t limit);

/* launcher.c: run on every processor again that the host may use. */
void go_anywhere(void);

/* report.c */
void report(uint16_t kind, uint16_t op, int32_t value, uint64_t x);
void die(int code) __attribute__((noreturn));
sysret write_all(int fd, const char *bytes, uint64_t length); /* 0 or a negative errno */
uint32_t crc32(const char *bytes, uint64_t length);

#endif
