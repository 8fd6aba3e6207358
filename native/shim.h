/* What Python sees of the C part. Every function returns a value >= 0, or a negative errno. */
#ifndef DOCKLESS_SHIM_H
#define DOCKLESS_SHIM_H

#include <stdint.h>

/* clone.c: start the program of launcher_fd with sources[i] as its fd slots[i] and nothing else open. The pid; *pidfd gets a pidfd of it. */
int shim_launch(int launcher_fd, const char *name, int count, const int *sources, const int *slots, int cgroup_fd, int new_userns, int *pidfd);

/* shim.c */
int shim_launcher_memfd(void);
int shim_openat2(int dirfd, const char *path, uint64_t flags, uint64_t mode, uint64_t resolve);
int shim_bpf_load(const void *insns, int count, char *log, int log_size);
int shim_bpf_attach(int cgroup_fd, int prog_fd, int flags);
int shim_syscall(long number, long a, long b, long c, long d, long e, long f);
int shim_timer(int fd, uint64_t ns);
int shim_op_count(void);
const char *shim_op_name(int code);
int shim_op_shape(int code, char *shape);

#endif
