/* The hostile program of the hunt, at every place of its images: a program, an interpreter of scripts, the dynamic loader of whatever is started.
 *
 * It tries what an attacker would and says on its standard output what worked, a line of JSON each. It never writes to a file that is not the hunt's
 * own: such a file says HUNT- somewhere, such a directory has a file `.hunt`. */
#include "calls.h"
#include "helpers.h"

/* Whether this name leads to the same file from our own root: an image may have directories that are called like the host's. */
static int our_own(int fd, const char *name) {
    struct facts theirs, ours;
    sysret own = sys(SYS_openat, HERE, name, O_PATH_ | O_CLOEXEC_, 0);
    int is = own >= 0 && facts_of((int)own, &ours) == 0 && facts_of(fd, &theirs) == 0 && same(&ours, &theirs);
    if (own >= 0) sys(SYS_close, own);
    return is;
}

static void door(const char *path) {
    char target[512] = "";
    sysret n = sys(SYS_readlinkat, HERE, path, target, sizeof target - 1);
    if (n > 0) target[n] = 0;
    sysret fd = sys(SYS_openat, HERE, path, O_PATH_ | O_CLOEXEC_, 0);
    if (fd < 0) return;
    say(our_own((int)fd, target) ? "own" : "door", path, target);
    if ((mode_of((int)fd, "", 1) & S_FMT) == S_DIR) enter((int)fd, path);
    sys(SYS_close, fd);
    if ((mode_of(HERE, path, 1) & S_FMT) == S_REG) read_and_deface(HERE, path, "a door");
}

static void in_directory(const char *directory, const char *name, int depth) {
    char path[512];
    (void)depth;
    text(text(text(path, directory), "/"), name);
    door(path);
}

/* /proc/PID/{root,cwd,exe,fd} of every process but this one, and descriptors that came along. */
static void process(const char *directory, const char *name, int depth) {
    char path[512], *end;
    (void)depth;
    if (name[0] < '0' || name[0] > '9' || value_of(name) == (unsigned long)sys(SYS_getpid)) return;
    end = text(text(text(path, directory), "/"), name);
    for (const char **at = (const char *[]){"/root", "/cwd", "/exe", 0}; *at; at++) text(end, *at), door(path);
    text(end, "/fd");
    each_entry(path, in_directory, 0);
    for (const char **at = (const char *[]){"/environ", "/cmdline", "/maps", "/mountinfo", 0}; *at; at++) {
        text(end, *at);
        sysret fd = sys(SYS_openat, HERE, path, O_CLOEXEC_, 0);
        if (fd >= 0) scan((int)fd, path), sys(SYS_close, fd);
    }
}

static void descriptors(void) {
    char path[64];
    for (unsigned long fd = 3; fd < 1024; fd++) {
        if (sys(SYS_fcntl, fd, 1 /* GETFD */) < 0) continue;
        number(text(path, "/proc/self/fd/"), fd);
        say("descriptor", path, "");
        door(path);
    }
}

/* Whether the kernel's own settings, the cgroup's and the devices' can be opened for writing. Opened only, never written. */
static unsigned long looked_at;
static void settings_below(const char *directory, const char *name, int depth) {
    char path[512];
    if (str_length(directory) + str_length(name) > 500 || looked_at > 4000) return;
    text(text(text(path, directory), "/"), name);
    long mode = mode_of(HERE, path, 0);
    if ((mode & S_FMT) == S_DIR && depth > 0) each_entry(path, settings_below, depth - 1);
    if ((mode & S_FMT) != S_REG) return;
    looked_at++;
    sysret fd = sys(SYS_openat, HERE, path, O_WRONLY_ | O_NONBLOCK_ | O_NOFOLLOW_, 0);
    if (fd >= 0) say("opened", path, ""), sys(SYS_close, fd);
}

static void kernel_settings(void) {
    static const char *const single[] = {"/proc/sysrq-trigger", "/proc/kcore", "/proc/kmsg", "/proc/keys", "/proc/timer_list", "/proc/1/mem", "/proc/1/oom_score_adj",
        "/dev/mem", "/dev/kmsg", "/dev/port", "/dev/sda", "/dev/vda", "/dev/kvm", "/dev/fuse", "/dev/net/tun",
        "/dev/loop-control", "/dev/nvidia0", "/dev/nvidiactl", "/proc/acpi/wakeup", "/proc/mtrr", "/proc/driver/nvidia/params"};
    for (unsigned n = 0; n < sizeof single / sizeof *single; n++) {
        sysret fd = sys(SYS_openat, HERE, single[n], (n < 6 ? 0 : O_RDWR_) | O_NONBLOCK_ | O_NOFOLLOW_, 0);
        char byte;
        /* An empty file laid over a masked one opens, and says nothing. */
        if (fd >= 0 && (n >= 6 || sys(SYS_read, fd, &byte, 1) > 0)) say("opened", single[n], "");
        if (fd >= 0) sys(SYS_close, fd);
    }
    each_entry("/proc/sys", settings_below, 3);
    looked_at = 0;
    each_entry("/sys", settings_below, 4);
    looked_at = 0;
    each_entry("/sys/fs/cgroup", settings_below, 2);
}

static void file_system(const char *path) {
    uint64_t st[16] = {0};
    char data[32];
    if (sys(SYS_statfs, path, st) == 0) number(data, st[0]), say("statfs", path, data);
}

static void nodes(const char *directory, const char *name, int depth) {
    char path[512];
    (void)depth;
    text(text(text(path, directory), "/"), name);
    long type = mode_of(HERE, path, 0) & S_FMT;
    if (type != 0020000 && type != 0060000) return;
    if (sys(SYS_fchmodat, HERE, path, 0) == 0) say("changed", path, "mode");
    if (sys(SYS_fchownat, HERE, path, 1, 1, AT_SYMLINK_NOFOLLOW_) == 0) say("changed", path, "owner");
}

static void mounts(void) {
    char piece[2048];
    sysret fd = sys(SYS_openat, HERE, "/proc/self/mountinfo", O_CLOEXEC_, 0), n;
    unsigned used = 0;
    while (fd >= 0 && (n = sys(SYS_read, fd, piece + used, 1)) > 0) {
        if (piece[used] == '\n' || used == sizeof piece - 2) piece[used] = 0, say("mount", piece, ""), used = 0;
        else used++;
    }
    if (fd >= 0) sys(SYS_close, fd);
}

/* In a directory that the caller bound in: what she or root may stumble over later. */
static void spoil(const char *place) {
    char path[600], other[600], name[512], base[512] = "";
    setting('b', 0, base);
    char *end = text(text(path, place), "/");
    text(end, "hunt-setuid");
    sysret fd = sys(SYS_openat, HERE, path, O_WRONLY_ | O_CREAT_ | O_NOFOLLOW_, 0755);
    if (fd >= 0) {
        sys(SYS_write, fd, "HUNT-SETUID", 11);
        sys(SYS_fchmod, fd, 06755);
        sys(SYS_close, fd);
    }
    for (int n = 0; setting('n', n, name); n++) {
        number(text(end, "hunt-link-"), (unsigned long)n);
        text(text(text(other, name[0] == '/' ? "" : base), name[0] == '/' ? "" : "/"), name);
        sys(SYS_symlinkat, other, HERE, path);
    }
    text(end, "hunt-hard");
    sys(SYS_linkat, HERE, "/bin/probe", HERE, path, 0);
    sys(SYS_renameat, HERE, "/etc/passwd", HERE, path);
    text(end, "hunt-node");
    sys(SYS_mknodat, HERE, path, 0020000 | 0666, 1 << 8 | 1);
    text(end, ".hunt");
    deface(HERE, path, "a bind");
    text(end, "renamed");
    sys(SYS_renameat, HERE, place, HERE, path);
    sysret top = sys(SYS_openat, HERE, place, O_PATH_ | O_DIRECTORY_ | O_CLOEXEC_, 0);
    if (top >= 0) enter((int)top, place), sys(SYS_close, top);
}

static void own_root(void) {
    sysret fd = sys(SYS_openat, HERE, "/hunt-made", O_WRONLY_ | O_CREAT_ | O_NOFOLLOW_, 0644);
    if (fd >= 0) say("made", "/hunt-made", ""), sys(SYS_close, fd);
    if (!flag("upper")) return;
    char name[512], path[1024];
    sys(SYS_mkdirat, HERE, "/odd", 0700);
    for (int n = 0; setting('n', n, name); n++) {
        number(text(path, "/odd/link-"), (unsigned long)n);
        sys(SYS_symlinkat, name, HERE, path);
    }
    sys(SYS_symlinkat, "../../../../../../../..", HERE, "/odd/up");
    sys(SYS_linkat, HERE, "/bin/probe", HERE, "/odd/hard", 0);
    sys(SYS_mknodat, HERE, "/odd/fifo", 0010000 | 0644, 0);
    sys(SYS_mknodat, HERE, "/odd/whiteout", 0020000, 0);
    sys(SYS_mknodat, HERE, "/odd/socket", 0140000 | 0644, 0);
    sys(SYS_mkdirat, HERE, "/odd/.wh.x", 0755);
    sys(SYS_mkdirat, HERE, "/odd/bad\xff\n\x1b[2J", 0000);
    sys(SYS_renameat, HERE, "/etc", HERE, "/odd/etc");
    sys(SYS_symlinkat, "/proc/self/root/..", HERE, "/etc");
    sys(SYS_unlinkat, HERE, "/bin/script", 0);
    for (const char **at = (const char *[]){"user.overlay.redirect", "user.overlay.opaque", "trusted.overlay.redirect", "trusted.overlay.metacopy", "user.x", 0}; *at; at++)
        sys(SYS_setxattr, "/odd", *at, "/../../..", 9, 0);
    char *end = text(path, "/odd");
    for (int n = 0; n < 100 && end < path + 900; n++) {
        end = text(end, "/deeper");
        if (sys(SYS_mkdirat, HERE, path, 0755)) break;
    }
}

/* Exchanges a directory and a link for as long as it is told: FLIP below `place`, for whoever resolves a path through it meanwhile. */
static void flip(const char *place, const char *target, unsigned long count, unsigned long milliseconds) {
    char one[600], two[600], lost[600];
    char *end_one = text(text(one, place), "/v"), *end_two = text(text(two, place), "/.v");
    text(text(lost, target), "-hunt-nowhere");
    for (unsigned long n = 0; n < count; n++) {
        number(end_one, n), number(end_two, n);
        if (starts(target, "directory ")) sys(SYS_mkdirat, HERE, one, 0755), sys(SYS_symlinkat, target + 10, HERE, two);
        else sys(SYS_symlinkat, lost, HERE, one), sys(SYS_symlinkat, target, HERE, two);
    }
    for (uint64_t end = now_ns(1) + milliseconds * 1000000; now_ns(1) < end;)
        for (unsigned long n = 0; n < count; n++) number(end_one, n), number(end_two, n), sys(SYS_renameat2, HERE, one, HERE, two, 2 /* EXCHANGE */);
}

static void linger(void) {
    if (sys(SYS_clone, SIG_CHLD, 0, 0, 0, 0)) return;
    sys(SYS_setsid);
    if (sys(SYS_clone, SIG_CHLD, 0, 0, 0, 0)) sys(SYS_exit_group, 0);
    uint64_t all = ~0ull;
    sys(SYS_rt_sigprocmask, 0, &all, 0, 8);
    char *other[] = {"again", "sleep", 0};
    sys(SYS_execve, "/bin/again", other, 0); /* another program: the one that runs now shall be free to be written */
    sys(SYS_exit_group, 0);
}

static void wait_for_a_change(const char *path) {
    struct { uint64_t before[32], after[32]; } st;
    memset(&st, 0, sizeof st);
    say("waiting", path, "");
    sys(SYS_statx, HERE, path, 0, 0x7ff, st.before);
    for (int n = 0; n < 300; n++, nap(5)) {
        sys(SYS_statx, HERE, path, 0, 0x7ff, st.after);
        if (st.before[4] != st.after[4] || st.before[12] != st.after[12]) return;
    }
}

static void everything(void) {
    char value[512];
    say("ids", "uid", "");
    sysret n = sys(SYS_readlinkat, HERE, "/proc/self/exe", value, sizeof value - 1);
    if (n > 0) value[n] = 0, say("exe", value, "");
    if (sys(SYS_getcwd, value, sizeof value) > 0) say("cwd", value, "");
    for (const char **at = (const char *[]){"/proc", "/sys", "/dev", "/dev/pts", "/dev/shm", "/proc/sys", 0}; *at; at++) file_system(*at);
    mounts();
    descriptors();
    sysret exe = sys(SYS_openat, HERE, "/proc/self/exe", O_CLOEXEC_, 0);
    if (exe >= 0) scan((int)exe, "/proc/self/exe"), sys(SYS_close, exe);
    enter(HERE, "the working directory");
    sysret top = sys(SYS_openat, HERE, "/", O_PATH_ | O_CLOEXEC_, 0);
    if (top >= 0) enter((int)top, "the root"), sys(SYS_close, top);
    if (flag("wait")) {
        if (setting('w', 0, value)) wait_for_a_change(value);
        top = sys(SYS_openat, HERE, "/", O_PATH_ | O_CLOEXEC_, 0);
        if (top >= 0) enter((int)top, "the root, later"), sys(SYS_close, top);
    }
    each_entry("/proc", process, 0);
    if (flag("mild")) return;
    calls();
    kernel_settings();
    each_entry("/dev", nodes, 0);
    own_root();
    for (int i = 0; setting('m', i, value); i++) spoil(value);
    if (flag("flip") && setting('v', 0, value)) flip(value, "directory /proc/self/cwd/..", 4, 700);
    if (flag("linger")) linger();
    if (flag("signals")) {
        for (const char *at = "\x0f\x01\x02\x13\x12\x09"; *at; at++) sys(SYS_kill, 1, *at);
        sys(SYS_kill, -1, 18 /* CONT */);
    }
    for (unsigned long i = 0; flag("flood") && i < 60000; i++) say("flood", "flood flood flood flood flood flood flood flood flood flood", "");
}

static void again(const char *fd) {
    char path[64], target[512] = "";
    text(text(path, "/proc/self/fd/"), fd);
    sysret n = sys(SYS_readlinkat, HERE, path, target, sizeof target - 1);
    if (n > 0) target[n] = 0;
    say("again", path, target);
    read_and_deface(HERE, path, "the program that ran before");
    sys(SYS_exit_group, 0);
}

static __attribute__((used)) void probe(long *stack) {
    long count = stack[0];
    char **arguments = (char **)(stack + 1);
    if (count == 3 && equal(arguments[1], "again")) again(arguments[2]);
    if (count == 6 && equal(arguments[1], "flip")) {
        flip(arguments[2], arguments[3], value_of(arguments[4]), value_of(arguments[5]));
        sys(SYS_exit_group, 0);
    }
    if (count == 2 && equal(arguments[1], "sleep"))
        for (;;) nap(600000);
    if (count == 2 && equal(arguments[1], "setuid")) {
        if (sys(SYS_geteuid) == 0) say("call", "setuid", "");
        sys(SYS_exit_group, 0);
    }
    if (sys(SYS_geteuid) != 0) {
        sysret pid = sys(SYS_clone, SIG_CHLD, 0, 0, 0, 0);
        char *setuid[] = {"/bin/setuid", "setuid", 0};
        if (pid == 0) sys(SYS_execve, setuid[0], setuid, 0), sys(SYS_exit_group, 1);
        sys(SYS_wait4, pid, 0, 0, 0);
    }
    everything();
    /* The file that runs cannot be written; once another program runs in its place, it can. */
    sysret exe = sys(SYS_openat, HERE, "/proc/self/exe", O_PATH_, 0);
    char fd[24];
    number(fd, exe < 0 ? 0 : (unsigned long)exe);
    char *next[] = {"again", "again", fd, 0};
    sys(SYS_execve, "/bin/again", next, 0);
    sys(SYS_exit_group, 0);
}

#if defined(__x86_64__)
__asm__(".globl _start\n_start:\n\txor %ebp, %ebp\n\tmov %rsp, %rdi\n\tand $-16, %rsp\n\tcall probe\n\tud2\n");
#else
__asm__(".globl _start\n_start:\n\tmov x29, xzr\n\tmov x0, sp\n\tbl probe\n\tbrk 1\n");
#endif
