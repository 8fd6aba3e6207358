/* The floor below dockless: what one start costs when a C program does it by hand.
 *
 * Written after a trace of `Sandbox(Spec(argv=("/bin/true",), image=…))` as root on Linux 6.18. It makes the same kernel objects with the same system calls,
 * one after the other, with no Python, no plan, no validation and no error handling beyond giving up.
 *
 * The same:  the cgroup (mkdir, device filter attached, cgroup.kill, its accounts read, rmdir); the sandbox's directory with upper and work, and their
 *            removal; three processes (keeper: host namespaces; init: PID 1; the program, by vfork); clone3 with new mount, PID, UTS, IPC and network namespaces
 *            into the cgroup, setns to a user namespace made beforehand, unshare of the cgroup namespace; overlay of idmapped layers below a private upper
 *            on disk; scratch, proc, sysfs, cgroup2, /dev with its nodes, links, devpts, shm and mqueue; /etc/hostname, hosts and resolv.conf; loopback,
 *            host name, pivot_root, every masked and read-only path; bounding set, ids, capabilities, no_new_privs, the same seccomp program; exec; what
 *            init keeps of its privileges; wait.
 * Made once and kept, as dockless keeps them: the user namespace, the loaded device filter, the seccomp program.
 * Not here:  the image store, compiling and encoding a plan, the memfd and the pipes for plan, leash and reports; the exec of the launcher (the keeper is a vfork
 *            of this small static program); moving fds to numbered slots; the flight recorder; signal forwarding by signalfd; resetting 62 signal handlers.
 *
 * floor LAYERS DIRECTORY CGROUP SECCOMP DEVICES UID GID COUNT CAPS [--once]
 *   LAYERS     unpacked layers, lowest first, ':'  SECCOMP  file with the program, sock_filter[]     UID GID COUNT  0-COUNT inside are UID… outside
 *   DIRECTORY  where uppers are made               DEVICES  file with the device filter, bpf_insn[]  CAPS           its capabilities, a mask in hex
 *   CGROUP     a cgroup2 directory, "-" for none
 *   LAYERS may be "@ROOT" instead: a plain directory with the mapped owners that is bound as the root, without an overlay
 * Says "ready"; then for every line on stdin one start, answered by "NANOSECONDS STATUS". --once: one start, no talk.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <net/if.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* Older headers lack some; the numbers are the same on every architecture. */
enum {
    N_OPEN_TREE = 428, N_MOVE_MOUNT, N_FSOPEN, N_FSCONFIG, N_FSMOUNT, N_CLONE3 = 435, N_CLOSE_RANGE, N_OPENAT2, N_MOUNT_SETATTR = 442,
};
enum { TREE_CLONE = 1, TREE_CLOEXEC = 02000000, EMPTY = 0x1000, RECURSIVE = 0x8000, IN_ROOT = 0x10, NO_SYMLINKS = 4, NO_MAGIC = 2 };
enum { RDONLY = 1, NOSUID = 2, NODEV = 4, NOEXEC = 8, IDMAP = 0x100000 };
enum { NODES = 6, MAX_LAYERS = 64 };

struct how { uint64_t flags, mode, resolve; };
struct attr { uint64_t set, clear, propagation, userns; };
struct clone3_args { uint64_t flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size, tls, set_tid, set_tid_size, cgroup; };

static const struct { const char *source, *name; unsigned major, minor; } nodes[NODES] = {
    {"/dev/null", "null", 1, 3}, {"/dev/zero", "zero", 1, 5}, {"/dev/full", "full", 1, 7},
    {"/dev/random", "random", 1, 8}, {"/dev/urandom", "urandom", 1, 9}, {"/dev/tty", "tty", 5, 0},
};
static const char *const masked[] = {
    "/proc/acpi", "/proc/asound", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/sched_debug", "/proc/scsi",
    "/proc/timer_list", "/proc/timer_stats", "/sys/devices/virtual/powercap", "/sys/firmware", "/sys/fs/selinux", NULL,
};
static const char *const readonly[] = {"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger", NULL};
static const char *const accounts[] = {
    "cpu.stat", "memory.current", "memory.peak", "memory.events", "memory.swap.current", "io.stat", "pids.current", "pids.peak", "pids.events",
    "cpu.pressure", "memory.pressure", "io.pressure", NULL,
};

static const char *layers[MAX_LAYERS], *directory, *cgroup_home; /* layers: highest first */
static int layer_count, lowers[MAX_LAYERS];
static struct { unsigned short length; void *filter; } seccomp_program;
static int device_program = -1, userns = -1;
static unsigned outside_uid, outside_gid;
static uint64_t caps;

#define TRY(call) ({ long got_ = (long)(call); if (got_ < 0) give_up(#call); (int)got_; })

static void give_up(const char *what) {
    dprintf(2, "floor: %s: %s\n", what, strerror(errno));
    _exit(125);
}

/* -- small pieces ------------------------------------------------------------------------------------------------------------------------------- */

static int rooted(int root, const char *path, uint64_t flags, uint64_t resolve) {
    struct how how = {flags | O_CLOEXEC, 0, resolve | (root == AT_FDCWD ? 0 : IN_ROOT | NO_MAGIC)};
    return (int)syscall(N_OPENAT2, root, path, &how, sizeof how);
}

static int tree_of(int at, const char *path) {
    return TRY(syscall(N_OPEN_TREE, at, path, TREE_CLONE | TREE_CLOEXEC | (*path ? 0 : EMPTY)));
}

static void set_attributes(int tree, uint64_t set, int recursive, int user) {
    struct attr attr = {set, 0, 0, (uint64_t)user};
    TRY(syscall(N_MOUNT_SETATTR, tree, "", EMPTY | recursive, &attr, sizeof attr));
}

static void put(int tree, int target) {
    TRY(syscall(N_MOVE_MOUNT, tree, "", target, "", 4 | 0x40));
    close(target);
}

static void put_at(int tree, int root, const char *path, uint64_t resolve) {
    put(tree, TRY(rooted(root, path, O_PATH, resolve)));
}

/* A new file system; options are name, value pairs. */
static int file_system(const char *type, uint64_t attributes, const char *const *options) {
    int context = TRY(syscall(N_FSOPEN, type, 1));
    for (; options && *options; options += 2) TRY(syscall(N_FSCONFIG, context, 1, options[0], options[1], 0));
    TRY(syscall(N_FSCONFIG, context, 6, NULL, NULL, 0));
    int tree = TRY(syscall(N_FSMOUNT, context, 1, attributes));
    close(context);
    return tree;
}

static int new_file(int at, const char *name, const char *text) {
    int fd = openat(at, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
    if (fd < 0 && errno == EEXIST) fd = TRY(openat(at, name, O_PATH | O_NOFOLLOW | O_CLOEXEC));
    if (fd < 0) give_up(name);
    if (text) TRY(write(fd, text, strlen(text)));
    return fd;
}

static void set_capabilities(uint64_t mask) {
    struct { uint32_t version; int pid; } header = {0x20080522, 0};
    uint32_t low = (uint32_t)mask, high = (uint32_t)(mask >> 32), data[6] = {low, low, 0, high, high, 0};
    TRY(syscall(SYS_capset, &header, data));
}

static void become(unsigned uid, unsigned gid) {
    TRY(syscall(SYS_setgroups, 0, NULL));
    TRY(syscall(SYS_setresgid, gid, gid, gid));
    TRY(syscall(SYS_setresuid, uid, uid, uid));
}

/* -- keeper: host namespaces ------------------------------------------------------------------------------------------------------------------------ */

static int root_of(const char *home_path) {
    if (*layers[0] == '@') return tree_of(AT_FDCWD, layers[0] + 1);
    int home = TRY(open(home_path, O_PATH | O_CLOEXEC));
    for (int i = 0; i < layer_count; i++) {
        lowers[i] = tree_of(AT_FDCWD, layers[i]);
        set_attributes(lowers[i], RDONLY | IDMAP, 0, userns);
    }
    TRY(mkdirat(home, "upper", 0755));
    int upper = TRY(rooted(home, "upper", O_PATH | O_DIRECTORY, 0));
    TRY(mkdirat(home, "work", 0700));
    int work = TRY(rooted(home, "work", O_PATH | O_DIRECTORY, 0));
    TRY(fchownat(home, "upper", outside_uid, outside_gid, AT_SYMLINK_NOFOLLOW));
    char a[32], b[32], c[32];
    snprintf(b, sizeof b, "/proc/self/fd/%d", upper);
    snprintf(c, sizeof c, "/proc/self/fd/%d", work);
    int context = TRY(syscall(N_FSOPEN, "overlay", 1));
    for (int i = 0; i < layer_count; i++) {
        snprintf(a, sizeof a, "/proc/self/fd/%d", lowers[i]);
        TRY(syscall(N_FSCONFIG, context, 1, "lowerdir+", a, 0));
    }
    TRY(syscall(N_FSCONFIG, context, 1, "upperdir", b, 0));
    TRY(syscall(N_FSCONFIG, context, 1, "workdir", c, 0));
    TRY(syscall(N_FSCONFIG, context, 0, "volatile", NULL, 0));
    TRY(syscall(N_FSCONFIG, context, 6, NULL, NULL, 0));
    int root = TRY(syscall(N_FSMOUNT, context, 1, NODEV));
    close(context);
    return root;
}

static void init(int root, const int *sources) __attribute__((noreturn));

/* Runs on its parent's memory until it ends: it must not return. */
static void keeper(const char *home_path, int cgroup) {
    int sources[NODES], status;
    struct stat st;
    struct rusage usage;
    TRY(setsid());
    for (int i = 0; i < NODES; i++) {
        sources[i] = tree_of(AT_FDCWD, nodes[i].source);
        set_attributes(sources[i], RDONLY | NOSUID | NOEXEC, 0, 0);
        TRY(fstatat(sources[i], "", &st, EMPTY));
        if (st.st_rdev != makedev(nodes[i].major, nodes[i].minor)) give_up(nodes[i].source);
    }
    for (int fd = 0; fd <= 2; fd++) { /* pipes are given to the sandbox's root */
        TRY(fstatat(fd, "", &st, EMPTY));
        if (S_ISFIFO(st.st_mode)) TRY(fchownat(fd, "", outside_uid, outside_gid, EMPTY));
    }
    int root = root_of(home_path), pidfd = -1;
    TRY(setns(userns, CLONE_NEWUSER));
    struct clone3_args args = {
        .flags = CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWNET | CLONE_PIDFD | (cgroup >= 0 ? 0x200000000ull /* INTO_CGROUP */ : 0),
        .pidfd = (uint64_t)(uintptr_t)&pidfd,
        .exit_signal = SIGCHLD,
        .cgroup = cgroup >= 0 ? (uint64_t)cgroup : 0,
    };
    int pid = TRY(syscall(N_CLONE3, &args, sizeof args));
    if (pid == 0) init(root, sources);
    while (wait4(pid, &status, __WALL, &usage) < 0 && errno == EINTR) {}
    if (cgroup >= 0) {
        int fd = TRY(openat(cgroup, "cgroup.kill", O_WRONLY | O_CLOEXEC));
        TRY(write(fd, "1", 1));
        close(fd);
    }
    _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
}

/* -- init: inside ------------------------------------------------------------------------------------------------------------------------------------ */

static int scratch_and_etc(int root) {
    static const struct { const char *name, *text; } files[] = {
        {"/etc/hostname", "dockless\n"},
        {"/etc/hosts", "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n127.0.1.1\tdockless\n"},
        {"/etc/resolv.conf", ""},
    };
    int scratch = file_system("tmpfs", NOSUID | NODEV | NOEXEC, (const char *const[]){"mode", "0755", "size", "1m", NULL});
    put_at(scratch, root, "/proc", NO_SYMLINKS);
    TRY(mkdirat(scratch, "empty", 0555));
    for (int i = 0; i < 3; i++) {
        const char *name = files[i].name + strlen("/etc/");
        close(new_file(scratch, name, files[i].text));
        int tree = tree_of(scratch, name), target = rooted(root, files[i].name, O_PATH, 0);
        if (target < 0) {
            int etc = TRY(rooted(root, "/etc/", O_PATH | O_DIRECTORY, 0));
            target = new_file(etc, name, NULL);
            close(etc);
        }
        put(tree, target);
        close(tree);
    }
    return scratch;
}

static void kernel_file_systems(int root, int has_cgroup) {
    put_at(file_system("proc", NOSUID | NODEV | NOEXEC, NULL), root, "/proc", NO_SYMLINKS);
    put_at(file_system("sysfs", RDONLY | NOSUID | NODEV | NOEXEC, NULL), root, "/sys", NO_SYMLINKS);
    if (has_cgroup) put_at(file_system("cgroup2", RDONLY | NOSUID | NODEV | NOEXEC, NULL), root, "/sys/fs/cgroup", NO_SYMLINKS);
}

static void devices(int root, const int *sources) {
    static const char *const links[][2] = {
        {"/proc/self/fd", "fd"}, {"/proc/self/fd/0", "stdin"}, {"/proc/self/fd/1", "stdout"}, {"/proc/self/fd/2", "stderr"}, {"pts/ptmx", "ptmx"},
    };
    int dev = file_system("tmpfs", NOSUID | NOEXEC, (const char *const[]){"mode", "0755", "size", "65536k", NULL});
    for (int i = 0; i < 5; i++) TRY(symlinkat(links[i][0], dev, links[i][1]));
    TRY(mkdirat(dev, "pts", 0755));
    TRY(mkdirat(dev, "shm", 0755));
    TRY(mkdirat(dev, "mqueue", 0755));
    put_at(dev, root, "/dev", NO_SYMLINKS);
    for (int i = 0; i < NODES; i++) put(sources[i], new_file(dev, nodes[i].name, NULL));
    put_at(file_system("devpts", NOSUID | NOEXEC, (const char *const[]){"ptmxmode", "0666", "mode", "0620", "gid", "5", NULL}), dev, "pts", 0);
    put_at(file_system("tmpfs", NOSUID | NODEV | NOEXEC, (const char *const[]){"mode", "1777", "size", "1073741824", NULL}), dev, "shm", 0);
    put_at(file_system("mqueue", NOSUID | NODEV | NOEXEC, NULL), dev, "mqueue", 0);
}

static void loopback_up(void) {
    struct ifreq request = {.ifr_name = "lo"};
    int fd = TRY(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    TRY(ioctl(fd, SIOCGIFFLAGS, &request));
    request.ifr_flags |= IFF_UP;
    TRY(ioctl(fd, SIOCSIFFLAGS, &request));
    close(fd);
}

static void cover(const char *path, int null, int empty) {
    int target = rooted(AT_FDCWD, path, O_PATH, NO_SYMLINKS);
    if (target < 0) return;
    struct stat st;
    TRY(fstatat(target, "", &st, EMPTY));
    int tree = tree_of(S_ISDIR(st.st_mode) ? empty : null, "");
    set_attributes(tree, RDONLY, 0, 0);
    put(tree, target);
    close(tree);
}

static void make_readonly(const char *path) {
    int target = rooted(AT_FDCWD, path, O_PATH, NO_SYMLINKS);
    if (target < 0) return;
    int tree = TRY(syscall(N_OPEN_TREE, target, "", TREE_CLONE | TREE_CLOEXEC | EMPTY | RECURSIVE));
    set_attributes(tree, RDONLY, RECURSIVE, 0);
    put(tree, target);
    close(tree);
}

static void program(void) {
    static char *const argv[] = {"/bin/true", NULL};
    static char *const envp[] = {"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOSTNAME=dockless", "HOME=/root", NULL};
    uint64_t none = 0;
    char where[256];
    TRY(syscall(SYS_rt_sigprocmask, SIG_SETMASK, &none, NULL, 8));
    TRY(setsid());
    umask(022);
    TRY(chdir("/"));
    TRY(syscall(SYS_getcwd, where, sizeof where));
    for (int cap = 0; cap < 64; cap++)
        if (!(caps >> cap & 1) && prctl(PR_CAPBSET_DROP, cap, 0, 0, 0) < 0) break;
    become(0, 0);
    set_capabilities(caps);
    TRY(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    TRY(syscall(N_CLOSE_RANGE, 3, ~0u, 0));
    TRY(syscall(SYS_seccomp, 1, 0, &seccomp_program));
    execve(argv[0], argv, envp);
    _exit(127);
}

static void init(int root, const int *sources) {
    struct attr private = {.propagation = 1 << 18 /* MS_PRIVATE */};
    int status = 0;
    become(0, 0);
    TRY(prctl(PR_SET_PDEATHSIG, SIGKILL));
    TRY(syscall(SYS_keyctl, 1, NULL, 0, 0, 0));
    TRY(unshare(CLONE_NEWCGROUP));
    TRY(syscall(N_MOUNT_SETATTR, AT_FDCWD, "/", RECURSIVE, &private, sizeof private));
    put_at(root, AT_FDCWD, "/", 0);
    int scratch = scratch_and_etc(root);
    kernel_file_systems(root, cgroup_home != NULL);
    devices(root, sources);
    TRY(sethostname("dockless", 8));
    loopback_up();
    int empty = TRY(rooted(scratch, "empty", O_PATH, 0));
    for (int i = 0; i < layer_count && lowers[i]; i++) put_at(lowers[i], AT_FDCWD, "/proc", NO_SYMLINKS); /* they go with the host's root */
    TRY(fchdir(root));
    TRY(syscall(SYS_pivot_root, ".", "."));
    TRY(syscall(SYS_umount2, ".", 2));
    TRY(chdir("/"));
    for (const char *const *path = masked; *path; path++) cover(*path, sources[0], empty);
    for (const char *const *path = readonly; *path; path++) make_readonly(*path);
    int pid = vfork();
    if (pid == 0) program();
    if (pid < 0) give_up("vfork");
    set_capabilities(1 << 5 /* KILL */);
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
    prctl(PR_SET_NAME, "floor-init", 0, 0, 0);
    syscall(N_CLOSE_RANGE, 0, ~0u, 0);
    while (waitpid(-1, &status, __WALL) != pid) {}
    _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
}

/* -- one start --------------------------------------------------------------------------------------------------------------------------------------- */

static void remove_tree(int parent, const char *name) {
    struct entry { uint64_t inode, next; uint16_t length; uint8_t type; char name[]; } *entry;
    char buffer[4096] __attribute__((aligned(8)));
    long n;
    int fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0) give_up(name);
    while ((n = syscall(SYS_getdents64, fd, buffer, sizeof buffer)) > 0)
        for (long at = 0; at < n; at += entry->length) {
            entry = (struct entry *)(buffer + at);
            if (!strcmp(entry->name, ".") || !strcmp(entry->name, "..")) continue;
            if (entry->type == DT_DIR) remove_tree(fd, entry->name);
            else TRY(unlinkat(fd, entry->name, 0));
        }
    close(fd);
    TRY(unlinkat(parent, name, AT_REMOVEDIR));
}

static uint64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static int make_cgroup(const char *path) {
    TRY(mkdir(path, 0755));
    int fd = TRY(open(path, O_PATH | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW));
    struct { uint32_t target, program, type, flags, replace; } attach = {(uint32_t)fd, (uint32_t)device_program, 6 /* CGROUP_DEVICE */, 2 /* ALLOW_MULTI */, 0};
    if (device_program >= 0) TRY(syscall(SYS_bpf, 8 /* PROG_ATTACH */, &attach, sizeof attach));
    return fd;
}

static void read_accounts(int cgroup) {
    char text[4096];
    for (const char *const *name = accounts; *name; name++) {
        int fd = openat(cgroup, *name, O_RDONLY | O_CLOEXEC);
        if (fd < 0) continue;
        if (read(fd, text, sizeof text) < 0 && errno != EOPNOTSUPP) give_up(*name);
        close(fd);
    }
}

static int run_keeper(const char *home, int cgroup) {
    int status, pid = vfork();
    if (pid == 0) keeper(home, cgroup);
    if (pid < 0) give_up("vfork");
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {}
    return status;
}

static int start(uint64_t *took) {
    static unsigned serial;
    char home[512], group[512];
    int cgroup = -1, status;
    uint64_t before = now();
    snprintf(home, sizeof home, "%s/floor-%d-%u", directory, getpid(), ++serial);
    snprintf(group, sizeof group, "%s/floor-%d-%u", cgroup_home ? cgroup_home : "", getpid(), serial);
    if (cgroup_home) cgroup = make_cgroup(group);
    TRY(mkdir(home, 0700));
    status = run_keeper(home, cgroup);
    if (cgroup >= 0) read_accounts(cgroup);
    remove_tree(AT_FDCWD, home);
    if (cgroup >= 0) {
        TRY(rmdir(group));
        close(cgroup);
    }
    *took = now() - before;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* -- made once --------------------------------------------------------------------------------------------------------------------------------------- */

static void *slurp(const char *path, size_t *size) {
    struct stat st;
    int fd = TRY(open(path, O_RDONLY | O_CLOEXEC));
    TRY(fstat(fd, &st));
    void *bytes = malloc((size_t)st.st_size + 1);
    if (read(fd, bytes, (size_t)st.st_size) != st.st_size) give_up(path);
    close(fd);
    *size = (size_t)st.st_size;
    return bytes;
}

static void load_device_filter(const char *path) {
    size_t size;
    void *instructions = slurp(path, &size);
    if (!size) return;
    struct { uint32_t type, count; uint64_t instructions, license; uint32_t level, size; uint64_t log; uint32_t version, flags; } load = {
        15 /* CGROUP_DEVICE */, (uint32_t)(size / 8), (uint64_t)(uintptr_t)instructions, (uint64_t)(uintptr_t)"Apache-2.0", 0, 0, 0, 0, 0,
    };
    device_program = TRY(syscall(SYS_bpf, 5 /* PROG_LOAD */, &load, sizeof load));
}

static void write_map(int pid, const char *name, unsigned outside, unsigned count) {
    char path[64], text[64];
    snprintf(path, sizeof path, "/proc/%d/%s", pid, name);
    int length = snprintf(text, sizeof text, "0 %u %u\n", outside, count), fd = TRY(open(path, O_WRONLY | O_CLOEXEC));
    TRY(write(fd, text, (size_t)length));
    close(fd);
}

static void make_userns(unsigned count) {
    char path[64];
    struct clone3_args args = {.flags = CLONE_NEWUSER, .exit_signal = SIGCHLD};
    int pid = TRY(syscall(N_CLONE3, &args, sizeof args));
    if (pid == 0)
        for (;;) pause();
    write_map(pid, "gid_map", outside_gid, count);
    write_map(pid, "uid_map", outside_uid, count);
    snprintf(path, sizeof path, "/proc/%d/ns/user", pid);
    userns = TRY(open(path, O_RDONLY | O_CLOEXEC));
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
}

int main(int argc, char **argv) {
    uint64_t took;
    size_t size;
    if (argc < 10) {
        fputs("floor LAYERS DIRECTORY CGROUP SECCOMP DEVICES UID GID COUNT CAPS [--once]\n", stderr);
        return 2;
    }
    for (char *colon = argv[1]; colon && layer_count < MAX_LAYERS;) { /* the last one is the highest */
        colon = strrchr(argv[1], ':');
        layers[layer_count++] = colon ? colon + 1 : argv[1];
        if (colon) *colon = 0;
    }
    directory = argv[2];
    cgroup_home = strcmp(argv[3], "-") ? argv[3] : NULL;
    seccomp_program.filter = slurp(argv[4], &size);
    seccomp_program.length = (unsigned short)(size / 8);
    load_device_filter(argv[5]);
    outside_uid = (unsigned)strtoul(argv[6], NULL, 10);
    outside_gid = (unsigned)strtoul(argv[7], NULL, 10);
    caps = strtoull(argv[9], NULL, 16);
    make_userns((unsigned)strtoul(argv[8], NULL, 10));
    if (argc > 10) return start(&took);
    setvbuf(stdout, NULL, _IOLBF, 0);
    puts("ready");
    for (int c; (c = getchar()) != EOF;)
        if (c == '\n') {
            int status = start(&took);
            printf("%llu %d\n", (unsigned long long)took, status);
        }
    return 0;
}
