/* System calls without a libc: our own numbers and structures for x86-64 and aarch64, because build images carry old kernel headers and a compile-time
 * check would silently drop features. Every function returns the kernel's value: a negative errno on failure. */
#ifndef DOCKLESS_SYS_H
#define DOCKLESS_SYS_H

#include <stdint.h>

typedef long sysret;

#if defined(__x86_64__)
enum {
    NR_read = 0, NR_write = 1, NR_close = 3, NR_mmap = 9, NR_munmap = 11, NR_madvise = 28, NR_rt_sigaction = 13, NR_rt_sigprocmask = 14,
    NR_ioctl = 16, NR_getpid = 39, NR_getppid = 110, NR_getsid = 124, NR_getpgid = 121, NR_socket = 41, NR_sendmsg = 46, NR_recvmsg = 47, NR_socketpair = 53, NR_wait4 = 61, NR_waitid = 247, NR_kill = 62, NR_fcntl = 72, NR_fsync = 74, NR_ftruncate = 77, NR_chdir = 80, NR_fchdir = 81,
    NR_umask = 95, NR_setgroups = 116, NR_setresuid = 117, NR_setresgid = 119, NR_setfsuid = 122, NR_setfsgid = 123,
    NR_capset = 126, NR_rt_sigtimedwait = 128, NR_pivot_root = 155, NR_prctl = 157, NR_sethostname = 170, NR_setdomainname = 171,
    NR_getcwd = 79, NR_umount2 = 166, NR_mount = 165, NR_unlinkat = 263, NR_faccessat = 269, NR_fchmodat = 268, NR_getdents64 = 217, NR_lseek = 8, NR_sched_setaffinity = 203, NR_sched_getaffinity = 204, NR_getcpu = 309, NR_setsid = 112, NR_clock_gettime = 228,
    NR_exit_group = 231, NR_keyctl = 250, NR_openat = 257, NR_mkdirat = 258, NR_fchownat = 260, NR_newfstatat = 262,
    NR_renameat = 264, NR_symlinkat = 266, NR_linkat = 265, NR_unshare = 272, NR_ppoll = 271, NR_signalfd4 = 289, NR_dup3 = 292, NR_execve = 59, NR_writev = 20,
    NR_prlimit64 = 302, NR_setns = 308, NR_seccomp = 317, NR_bpf = 321, NR_execveat = 322, NR_exit = 60,
    NR_pread64 = 17, NR_pwrite64 = 18, NR_fchmod = 91, NR_readlinkat = 267, NR_utimensat = 280, NR_statx = 332, NR_fstatfs = 138,
    NR_inotify_init1 = 294, NR_inotify_add_watch = 254, NR_setpgid = 109, NR_pipe2 = 293, NR_memfd_create = 319, NR_renameat2 = 316,
};
#elif defined(__aarch64__)
enum {
    NR_read = 63, NR_write = 64, NR_close = 57, NR_mmap = 222, NR_munmap = 215, NR_madvise = 233, NR_rt_sigaction = 134, NR_rt_sigprocmask = 135,
    NR_ioctl = 29, NR_getpid = 172, NR_getppid = 173, NR_getsid = 156, NR_getpgid = 155, NR_socket = 198, NR_sendmsg = 211, NR_recvmsg = 212, NR_socketpair = 199, NR_wait4 = 260, NR_waitid = 95, NR_kill = 129, NR_fcntl = 25, NR_fsync = 82, NR_ftruncate = 46, NR_chdir = 49, NR_fchdir = 50,
    NR_umask = 166, NR_setgroups = 159, NR_setresuid = 147, NR_setresgid = 149, NR_setfsuid = 151, NR_setfsgid = 152,
    NR_capset = 91, NR_rt_sigtimedwait = 137, NR_pivot_root = 41, NR_prctl = 167, NR_sethostname = 161, NR_setdomainname = 162,
    NR_getcwd = 17, NR_umount2 = 39, NR_mount = 40, NR_unlinkat = 35, NR_faccessat = 48, NR_fchmodat = 53, NR_getdents64 = 61, NR_lseek = 62, NR_sched_setaffinity = 122, NR_sched_getaffinity = 123, NR_getcpu = 168, NR_setsid = 157, NR_clock_gettime = 113,
    NR_exit_group = 94, NR_keyctl = 219, NR_openat = 56, NR_mkdirat = 34, NR_fchownat = 54, NR_newfstatat = 79,
    NR_renameat = 38, NR_symlinkat = 36, NR_linkat = 37, NR_unshare = 97, NR_ppoll = 73, NR_signalfd4 = 74, NR_dup3 = 24, NR_execve = 221, NR_writev = 66,
    NR_prlimit64 = 261, NR_setns = 268, NR_seccomp = 277, NR_bpf = 280, NR_execveat = 281, NR_exit = 93,
    NR_pread64 = 67, NR_pwrite64 = 68, NR_fchmod = 52, NR_readlinkat = 78, NR_utimensat = 88, NR_statx = 291, NR_fstatfs = 44,
    NR_inotify_init1 = 26, NR_inotify_add_watch = 27, NR_setpgid = 154, NR_pipe2 = 59, NR_memfd_create = 279, NR_renameat2 = 276,
};
#else
#error "dockless supports x86-64 and aarch64"
#endif

/* The same on every architecture. */
enum {
    NR_pidfd_send_signal = 424, NR_pidfd_open = 434, NR_open_tree = 428, NR_move_mount = 429, NR_fsopen = 430, NR_fsconfig = 431, NR_fsmount = 432,
    NR_clone3 = 435, NR_close_range = 436, NR_openat2 = 437, NR_mount_setattr = 442,
};

static inline sysret sys6(long n, long a, long b, long c, long d, long e, long f) {
#if defined(__x86_64__)
    register long r10 __asm__("r10") = d;
    register long r8 __asm__("r8") = e;
    register long r9 __asm__("r9") = f;
    long ret;
    __asm__ volatile("syscall" : "=a"(ret) : "a"(n), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9) : "rcx", "r11", "memory");
    return ret;
#else
    register long x8 __asm__("x8") = n;
    register long x0 __asm__("x0") = a;
    register long x1 __asm__("x1") = b;
    register long x2 __asm__("x2") = c;
    register long x3 __asm__("x3") = d;
    register long x4 __asm__("x4") = e;
    register long x5 __asm__("x5") = f;
    __asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5) : "memory");
    return x0;
#endif
}

#define SYS_PICK(_0, _1, _2, _3, _4, _5, _6, name, ...) name
#define SYS0(n) sys6(n, 0, 0, 0, 0, 0, 0)
#define SYS1(n, a) sys6(n, (long)(a), 0, 0, 0, 0, 0)
#define SYS2(n, a, b) sys6(n, (long)(a), (long)(b), 0, 0, 0, 0)
#define SYS3(n, a, b, c) sys6(n, (long)(a), (long)(b), (long)(c), 0, 0, 0)
#define SYS4(n, a, b, c, d) sys6(n, (long)(a), (long)(b), (long)(c), (long)(d), 0, 0)
#define SYS5(n, a, b, c, d, e) sys6(n, (long)(a), (long)(b), (long)(c), (long)(d), (long)(e), 0)
#define SYS6(n, a, b, c, d, e, f) sys6(n, (long)(a), (long)(b), (long)(c), (long)(d), (long)(e), (long)(f))
#define sys(...) SYS_PICK(__VA_ARGS__, SYS6, SYS5, SYS4, SYS3, SYS2, SYS1, SYS0, )(__VA_ARGS__)

struct clone_args {
    uint64_t flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size, tls, set_tid, set_tid_size, cgroup;
};
struct open_how { uint64_t flags, mode, resolve; };
struct mount_attr { uint64_t attr_set, attr_clr, propagation, userns_fd; };
struct pollfd_ { int fd; short events, revents; };
struct timespec_ { int64_t sec, nsec; };
struct rusage_ { int64_t utime[2], stime[2], maxrss, rest[13]; };
struct iovec_ { const void *base; uint64_t len; };

enum {
    E_PERM = 1, E_NOENT = 2, E_SRCH = 3, E_INTR = 4, E_IO = 5, E_NOEXEC = 8, E_BADF = 9, E_CHILD = 10, E_AGAIN = 11, E_NOMEM = 12, E_ACCES = 13, E_EXIST = 17, E_XDEV = 18, E_NODEV = 19, E_NOTDIR = 20,
    E_BUSY = 16, E_ISDIR = 21, E_INVAL = 22, E_MFILE = 24, E_NOTTY = 25, E_NOSPC = 28, E_LOOP = 40, E_PIPE = 32, E_RANGE = 34, E_NAMETOOLONG = 36, E_NOTEMPTY = 39,
};

enum {
    CLONE_VM_ = 0x100, CLONE_FILES_ = 0x400, CLONE_PARENT_ = 0x8000, CLONE_VFORK_ = 0x4000, CLONE_PIDFD_ = 0x1000, CLONE_PARENT_SETTID_ = 0x100000,
};
#define CLONE_CLEAR_SIGHAND_ 0x100000000ull
#define CLONE_INTO_CGROUP_ 0x200000000ull

enum { AT_FDCWD_ = -100, AT_EMPTY_PATH_ = 0x1000, AT_RECURSIVE_ = 0x8000, AT_SYMLINK_NOFOLLOW_ = 0x100 };
#if defined(__x86_64__)
enum { O_DIRECTORY_ = 0x10000, O_NOFOLLOW_ = 0x20000 };
#else
enum { O_DIRECTORY_ = 0x4000, O_NOFOLLOW_ = 0x8000 };
#endif
enum { O_NOCTTY_ = 0x100 };
enum { O_WRONLY_ = 1, O_RDWR_ = 2, O_CREAT_ = 0x40, O_EXCL_ = 0x80, O_TRUNC_ = 0x200, O_APPEND_ = 0x400, O_NONBLOCK_ = 0x800, O_CLOEXEC_ = 0x80000, O_PATH_ = 0x200000 };
enum { RESOLVE_NO_MAGICLINKS_ = 2, RESOLVE_NO_SYMLINKS_ = 4, RESOLVE_BENEATH_ = 8, RESOLVE_IN_ROOT_ = 16 };
enum { FCNTL_DUPFD_CLOEXEC = 1030 };
enum { SIG_KILL = 9, SIG_PIPE = 13, SIG_TERM = 15, SIG_CHLD = 17, SIG_STOP = 19 };
enum { POLL_IN = 1, POLL_PRI = 2, POLL_ERR = 8, POLL_HUP = 16, POLL_NVAL = 32 };

/* clone3 whose child runs fn(arg) on its own stack and never returns. In the parent: the child's pid or a negative errno. The child gets here by a
 * system call in the middle of this function, with the parent's registers but not its stack, so it must not use the frame. */
static __attribute__((noinline, unused)) sysret clone_call(struct clone_args *args, void (*fn)(void *), void *arg) {
    sysret ret;
#if defined(__x86_64__)
    register void *r12 __asm__("r12") = (void *)fn;
    register void *r13 __asm__("r13") = arg;
    __asm__ volatile(
        "syscall\n\t"
        "test %%rax, %%rax\n\t"
        "jnz 1f\n\t"
        "xor %%ebp, %%ebp\n\t"
        "mov %%r13, %%rdi\n\t"
        "call *%%r12\n\t"
        "ud2\n"
        "1:"
        : "=a"(ret)
        : "a"((long)NR_clone3), "D"(args), "S"(sizeof *args), "r"(r12), "r"(r13)
        : "rcx", "r11", "memory");
#else
    register long x8 __asm__("x8") = NR_clone3;
    register void *x0 __asm__("x0") = args;
    register long x1 __asm__("x1") = sizeof *args;
    register void *x19 __asm__("x19") = (void *)fn;
    register void *x20 __asm__("x20") = arg;
    __asm__ volatile(
        "svc 0\n\t"
        "cbnz x0, 1f\n\t"
        "mov x29, xzr\n\t"
        "mov x0, x20\n\t"
        "blr x19\n\t"
        "brk 1\n"
        "1:"
        : "+r"(x0)
        : "r"(x8), "r"(x1), "r"(x19), "r"(x20)
        : "memory");
    ret = (sysret)x0;
#endif
    return ret;
}

static inline uint64_t str_length(const char *s) {
    uint64_t n = 0;
    while (s[n]) n++;
    return n;
}

/* Text without a libc: appended at `at`, without a NUL; the new end. */
static __attribute__((noinline, unused)) uint64_t put_text(char *to, uint64_t at, const char *text) {
    while (*text) to[at++] = *text++;
    return at;
}

/* `width`: digits at least. */
static __attribute__((noinline, unused)) uint64_t put_number(char *to, uint64_t at, uint64_t number, int width) {
    char digits[20];
    int n = 0;
    do {
        digits[n++] = (char)('0' + number % 10);
        number /= 10;
    } while (number);
    while (n < width) digits[n++] = '0';
    while (n) to[at++] = digits[--n];
    return at;
}

/* What fstat(2) says of a descriptor, on either architecture. */
struct facts { uint64_t dev, ino, rdev, size; uint32_t type; };

enum { TYPE_PIPE = 0010000, TYPE_CHARACTER = 0020000, TYPE_DIRECTORY = 0040000, TYPE_BLOCK = 0060000 };

/* 0 or a negative errno. */
static __attribute__((noinline, unused)) int facts_of(int fd, struct facts *facts) {
#if defined(__x86_64__)
    enum { MODE = 3, RDEV = 5 };
#else
    enum { MODE = 2, RDEV = 4 };
#endif
    uint64_t st[32];
    sysret err = sys(NR_newfstatat, fd, "", st, AT_EMPTY_PATH_);
    if (err < 0) return (int)err;
    *facts = (struct facts){.dev = st[0], .ino = st[1], .rdev = st[RDEV], .size = st[6], .type = (uint32_t)st[MODE] & 0170000};
    return 0;
}

/* Whether both are of one file. */
static inline int same(const struct facts *one, const struct facts *other) {
    return one->dev == other->dev && one->ino == other->ino;
}

static inline uint64_t now_ns(int clock) {
    struct timespec_ ts;
    sys(NR_clock_gettime, clock, &ts);
    return (uint64_t)ts.sec * 1000000000ull + (uint64_t)ts.nsec;
}

/* All signal actions back to their defaults. clone3's CLEAR_SIGHAND leaves ignored signals ignored (Python ignores SIGPIPE), and an ignored SIGCHLD
 * would let the kernel reap our children. */
static inline void default_signals(void) {
    struct { void *handler; uint64_t flags; void *restorer; uint64_t mask; } dfl = {0, 0, 0, 0};
    for (int s = 1; s <= 64; s++)
        if (s != SIG_KILL && s != SIG_STOP) sys(NR_rt_sigaction, s, &dfl, 0, 8);
}

#endif
