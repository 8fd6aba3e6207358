/* Thin doors to system calls that Python has no function for, and the bytes of the launcher and the agent. */
#define _GNU_SOURCE
#include "shim.h"

#include <errno.h>
#include <stddef.h>
#include <string.h>
#include <fcntl.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "plan.h"
#include "sys.h"

#define EMBEDDED(name, path)                                                                                      \
    __asm__(".pushsection .rodata\n.balign 16\n" #name "_start: .incbin \"" path "\"\n" #name "_end: .byte 0\n.popsection\n"); \
    extern const char name##_start[] __attribute__((visibility("hidden")));                                       \
    extern const char name##_end[] __attribute__((visibility("hidden")));
EMBEDDED(launcher, LAUNCHER_PATH)
EMBEDDED(agent, AGENT_PATH)

/* A program of ours in a sealed memfd: a sandbox that reaches it through /proc/<pid>/exe can read it and nothing else (CVE-2019-5736). */
static int in_memory(const char *name, const char *start, const char *end) {
    enum { EXEC = 0x10 }; /* MFD_EXEC: said aloud since Linux 6.3, unknown before */
    int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING | EXEC);
    if (fd < 0 && errno == EINVAL) fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0) return -errno;
    size_t size = (size_t)(end - start), done = 0;
    for (ssize_t n; done < size; done += (size_t)n) /* a limit on the size of files lets a part through, and refuses the next write */
        if ((n = write(fd, start + done, size - done)) <= 0) break;
    if (done < size || fchmod(fd, 0555) < 0 || fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL) < 0) {
        int error = errno ? errno : EIO;
        close(fd);
        return -error;
    }
    return fd;
}

int shim_launcher_memfd(void) {
    return in_memory("dockless-launcher", launcher_start, launcher_end);
}

int shim_agent_memfd(void) {
    return in_memory("dockless-agent", agent_start, agent_end);
}

int shim_openat2(int dirfd, const char *path, uint64_t flags, uint64_t mode, uint64_t resolve) {
    struct open_how how = {flags, mode, resolve};
    for (int tries = 0;; tries++) {
        sysret fd = sys(NR_openat2, dirfd, path, &how, sizeof how);
        if (fd != -E_AGAIN || tries > 128) return (int)fd;
    }
}

struct bpf_load_attr {
    uint32_t type, count;
    uint64_t insns, license;
    uint32_t log_level, log_size;
    uint64_t log;
    uint32_t kern_version, flags;
};
struct bpf_attach_attr { uint32_t target_fd, prog_fd, type, flags, replace; };

/* BPF_PROG_LOAD of type CGROUP_DEVICE. bpf(2) */
int shim_bpf_load(const void *insns, int count, char *log, int log_size) {
    struct bpf_load_attr attr = {.type = 15, .count = (uint32_t)count, .insns = (uint64_t)(uintptr_t)insns, .license = (uint64_t)(uintptr_t) "Apache-2.0"};
    sysret fd = sys(NR_bpf, 5, &attr, sizeof attr);
    if (fd >= 0 || !log_size) return (int)fd;
    attr.log_level = 1;
    attr.log_size = (uint32_t)log_size;
    attr.log = (uint64_t)(uintptr_t)log;
    return (int)sys(NR_bpf, 5, &attr, sizeof attr);
}

/* BPF_PROG_ATTACH as BPF_CGROUP_DEVICE. */
int shim_bpf_attach(int cgroup_fd, int prog_fd, int flags) {
    struct bpf_attach_attr attr = {(uint32_t)cgroup_fd, (uint32_t)prog_fd, 6, (uint32_t)flags, 0};
    return (int)sys(NR_bpf, 8, &attr, sizeof attr);
}

/* For the feature probe, which asks the kernel with harmless arguments what it knows. */
int shim_syscall(long number, long a, long b, long c, long d, long e, long f) {
    return (int)sys6(number, a, b, c, d, e, f);
}

/* Readable after so many nanoseconds of the monotonic clock, 0 for never; a new one for -1. Python has this since 3.13. */
int shim_timer(int fd, uint64_t ns) {
    struct itimerspec when = {.it_value = {(time_t)(ns / 1000000000), (long)(ns % 1000000000)}};
    if (fd < 0) fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    if (fd < 0 || timerfd_settime(fd, 0, &when, NULL) < 0) return -errno;
    return fd;
}

int shim_inotify(void) {
    int fd = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
    return fd < 0 ? -errno : fd;
}

int shim_inotify_add(int fd, const char *path, uint32_t mask) {
    int watch = inotify_add_watch(fd, path, mask);
    return watch < 0 ? -errno : watch;
}

int shim_inotify_remove(int fd, int watch) {
    return inotify_rm_watch(fd, watch) < 0 ? -errno : 0;
}

static const struct { const char *name; char shape[4]; } ops[OP_END] = {
#define X(code, name, in, out, a, b) [code] = {#name, {in, out, a, b}},
    PLAN_OPS(X)
#undef X
};

int shim_op_count(void) {
    return OP_END;
}

const char *shim_op_name(int code) {
    return code > 0 && code < OP_END ? ops[code].name : NULL;
}

int shim_op_shape(int code, char *shape) {
    if (code <= 0 || code >= OP_END) return -EINVAL;
    memcpy(shape, ops[code].shape, 4);
    return 0;
}
