/* What Python sees of the C part. Every function returns a value >= 0, or a negative errno. */
#ifndef DOCKLESS_SHIM_H
#define DOCKLESS_SHIM_H

#include <stdint.h>

/* clone.c: start the program of launcher_fd with sources[i] as its fd slots[i] and nothing else open. The pid; *pidfd gets a pidfd of it. */
int shim_launch(int launcher_fd, const char *name, int count, const int *sources, const int *slots, int cgroup_fd, unsigned namespaces, int *pidfd);

/* clone.c: the program at path in a session of its own, with no environment, sources[i] as its fd slots[i] and nothing else open. It is nobody's child. */
int shim_start_apart(const char *path, char *const *arguments, int count, const int *sources, const int *slots);

/* door.c: a bound socket for SLOT_DOOR; a request to the keeper that listens there, see launcher/door.c. The pid of what enters; *pidfd gets its pidfd.
 * With no fds the request is for the terminal of the sandbox, which *pidfd gets. To move its end: to so many ns from now, 0 changes nothing. */
int shim_door(const char *path);
int shim_enter(const char *path, int keeper, int count, const int *sources, const int *slots, int *pidfd);
int shim_extend(const char *path, int keeper, uint64_t ns);

/* netns.c: a new network namespace that belongs to a user namespace (-1: ours), and a socket of NETLINK_ROUTE in it; a socket in a namespace that is there,
 * entered from its user namespace (-1: from ours). Each returns the socket. */
int shim_netns(int userns, int *netns);
int shim_socket_in(int userns, int netns, int domain, int type, int protocol);

/* netns.c: a file of /proc/sys/net as it is in that namespace. */
int shim_setting_in(int userns, int netns, const char *path, int flags);

/* shim.c */
int shim_launcher_memfd(void);
int shim_agent_memfd(void);
int shim_openat2(int dirfd, const char *path, uint64_t flags, uint64_t mode, uint64_t resolve);
int shim_bpf_load(const void *insns, int count, char *log, int log_size);
int shim_bpf_attach(int cgroup_fd, int prog_fd, int flags);
int shim_syscall(long number, long a, long b, long c, long d, long e, long f);
int shim_timer(int fd, uint64_t ns);
int shim_inotify(void);
int shim_inotify_add(int fd, const char *path, uint32_t mask);
int shim_inotify_remove(int fd, int watch);
int shim_op_count(void);
const char *shim_op_name(int code);
int shim_op_shape(int code, char *shape);

#endif
