/* System calls that no sandbox has: each is tried in a process of its own and said when it works. */
#include "calls.h"

#include "helpers.h"

enum { MS_BIND_ = 4096, MS_REC_ = 16384, MS_REMOUNT_ = 32, MS_PRIVATE_ = 1 << 18, DETACH = 2 };
enum { MKNOD_CHAR = 0020000, MKNOD_BLOCK = 0060000 };

static char scratch[512];
static unsigned long number_of_try;

static int mount_(const char *source, const char *target, const char *type, long flags) {
    return sys(SYS_mount, source, target, type, flags, 0) != 0;
}

static int tmpfs(void) { return mount_("none", "/tmp", "tmpfs", 0); }
static int procfs(void) { return mount_("none", "/tmp", "proc", 0); }
static int sysfs(void) { return mount_("none", "/tmp", "sysfs", 0); }
static int cgroups(void) { return mount_("none", "/tmp", "cgroup2", 0); }
static int cgroups_1(void) { return mount_("none", "/tmp", "cgroup", 0); }
static int devices(void) { return mount_("none", "/tmp", "devtmpfs", 0); }
static int overlay(void) { return sys(SYS_mount, "none", "/tmp", "overlay", 0, "lowerdir=/bin:/etc") != 0; }
static int bind_root(void) { return mount_("/", "/tmp", 0, MS_BIND_ | MS_REC_); }
static int bind_proc(void) { return mount_("/proc", "/tmp", 0, MS_BIND_ | MS_REC_); }
static int uncover(void) { return mount_("", "/proc/sys", 0, MS_REMOUNT_ | MS_BIND_); }
static int private(void) { return mount_("", "/", 0, MS_PRIVATE_ | MS_REC_); }
static int unmask(void) { return sys(SYS_umount2, "/proc/kcore", DETACH) && sys(SYS_umount2, "/proc/sys", DETACH) && sys(SYS_umount2, "/proc/keys", DETACH); }
static int unmount_dev(void) { return sys(SYS_umount2, "/dev", DETACH) && sys(SYS_umount2, "/sys", DETACH); }
static int new_user(void) { return sys(SYS_unshare, 0x10000000) != 0; }
static int new_mount(void) { return sys(SYS_unshare, 0x20000) != 0; }
static int new_net(void) { return sys(SYS_unshare, 0x40000000) != 0; }
static int new_pid(void) { return sys(SYS_unshare, 0x20000000) != 0; }
static int new_cgroup(void) { return sys(SYS_unshare, 0x02000000) != 0; }
static int new_uts(void) { return sys(SYS_unshare, 0x04000000) != 0; }
static int new_time(void) { return sys(SYS_unshare, 0x80) != 0; }
static int new_user_by_clone3(void) {
    struct clone_args args = {.flags = 0x10000000, .exit_signal = SIG_CHLD};
    sysret pid = sys(NR_clone3, &args, sizeof args);
    if (pid == 0) sys(SYS_exit_group, 0);
    return pid < 0;
}

static int join(const char *kind) {
    char path[64];
    text(text(path, "/proc/1/ns/"), kind);
    sysret fd = sys(SYS_openat, HERE, path, 0, 0);
    return fd < 0 || sys(SYS_setns, fd, 0);
}
static int join_mount(void) { return join("mnt"); }
static int join_user(void) { return join("user"); }
static int join_net(void) { return join("net"); }
static int join_pid(void) { return join("pid"); }
static int join_cgroup(void) { return join("cgroup"); }

static int pivot(void) { return sys(SYS_pivot_root, ".", ".") != 0; }
static int open_fs(void) { return sys(NR_fsopen, "tmpfs", 0) < 0; }
static int clone_tree(void) { return sys(NR_open_tree, HERE, "/", 0x8001) < 0; }
static int writable(void) {
    struct mount_attr attr = {.attr_clr = 1};
    return sys(NR_mount_setattr, HERE, "/proc/sys", 0, &attr, sizeof attr) && sys(NR_mount_setattr, HERE, "/sys", 0, &attr, sizeof attr);
}
static int move(void) { return sys(NR_move_mount, HERE, "/dev/shm", HERE, "/tmp", 0) != 0; }

struct handle { uint32_t size; int32_t type; unsigned char bytes[128]; };
static int by_handle(void) {
    struct handle handle = {.size = 128};
    int mount = 0, works = 0;
    if (sys(SYS_name_to_handle_at, HERE, "/bin", &handle, &mount, 0)) return 1;
    sysret top = sys(SYS_openat, HERE, "/", O_DIRECTORY_, 0);
    sysret fd = sys(SYS_open_by_handle_at, top, &handle, 0);
    if (fd >= 0) works = 1, enter((int)fd, "a handle");
    struct { uint32_t size; int32_t type; uint32_t inode, generation; } root = {8, 1, 2, 0}; /* the root of ext4, as Shocker had it */
    for (const char **at = (const char *[]){"/", "/etc/hostname", "/etc/hosts", "/dev/shm", 0}; *at; at++) {
        sysret mounted = sys(SYS_openat, HERE, *at, 0, 0);
        sysret found = sys(SYS_open_by_handle_at, mounted, &root, O_DIRECTORY_);
        if (found >= 0) works = 1, enter((int)found, "the handle of a disk's root");
    }
    return !works;
}

static int keyring(void) { return sys(SYS_keyctl, 0, -3, 0) < 0; }
static int key(void) { return sys(SYS_add_key, "user", "hunt", "x", 1, -3) < 0; }
static int bpf_map(void) {
    struct { uint32_t type, key, value, entries, rest[28]; } attr = {2, 4, 4, 1, {0}};
    return sys(SYS_bpf, 0, &attr, sizeof attr) < 0;
}
static int perf(void) {
    uint32_t attr[32] = {1, 128};
    return sys(SYS_perf_event_open, attr, 0, -1, -1, 0) < 0;
}
static int faults(void) { return sys(SYS_userfaultfd, 0) < 0 && sys(SYS_userfaultfd, 1) < 0; }
static int ring(void) {
    uint32_t parameters[30] = {0};
    return sys(SYS_io_uring_setup, 1, parameters) < 0;
}
static int trace_init(void) { return sys(SYS_ptrace, 0x4206, 1, 0, 0) < 0 && sys(SYS_ptrace, 16, 1, 0, 0) < 0; }
static int read_init(void) {
    char byte;
    struct iovec_ here = {&byte, 1}, there = {(void *)0x400000, 1};
    return sys(SYS_process_vm_readv, 1, &here, 1, &there, 1, 0) < 0;
}
static int take_from_init(void) {
    sysret fd = sys(SYS_pidfd_open, 1, 0);
    int got = 0;
    for (int n = 0; fd >= 0 && n < 64; n++) {
        sysret taken = sys(SYS_pidfd_getfd, fd, n, 0);
        if (taken >= 0) got = 1, enter((int)taken, "a descriptor of init");
    }
    return !got;
}
static int compare(void) { return sys(SYS_kcmp, 1, sys(SYS_getpid), 2, 0, 0) < 0; }
static int kernel_log(void) { return sys(SYS_syslog, 3, scratch, sizeof scratch) < 0; }
static int module(void) { return sys(SYS_init_module, scratch, 0, "") != -8 /* ENOEXEC: it looked */; }
static int kexec(void) { return sys(SYS_kexec_load, 0, 0, 0, 0) != 0; }
static int swap(void) { return sys(SYS_swapon, "/hunt-none", 0) != -E_NOENT; }
static int host_name(void) { return sys(SYS_sethostname, "hunted", 6) != 0; }
static int clock(void) {
    return sys(SYS_settimeofday, 0, 0) != 0; /* no time is given: nothing is set even where it is allowed */
}
#if defined(__x86_64__)
static int ports(void) { return sys(SYS_iopl, 3) && sys(SYS_ioperm, 0x80, 1, 1); }
#endif

static int push_back(void) {
    int worked = 0;
    char byte = '\n', paste = 3;
    sysret tty = sys(SYS_openat, HERE, "/dev/tty", O_RDWR_, 0);
    for (int fd = 0; fd < 3; fd++) worked |= sys(SYS_ioctl, fd, 0x5412, &byte) == 0 || sys(SYS_ioctl, fd, 0x541c, &paste) == 0;
    return !(worked || (tty >= 0 && sys(SYS_ioctl, tty, 0x5412, &byte) == 0));
}

static int node(const char *place, long kind, unsigned major, unsigned minor) {
    char path[128];
    number(text(text(path, place), "/hunt-node-"), number_of_try++);
    if (sys(SYS_mknodat, HERE, path, kind | 0666, major << 8 | minor)) return 1;
    sysret fd = sys(SYS_openat, HERE, path, O_NONBLOCK_, 0); /* a node that can be made but not opened is no way out */
    sys(SYS_unlinkat, HERE, path, 0);
    return fd < 0;
}
static int memory_node(void) { return node("/", MKNOD_CHAR, 1, 1) && node("/tmp", MKNOD_CHAR, 1, 1) && node("/dev/shm", MKNOD_CHAR, 1, 1); }
static int log_node(void) { return node("/", MKNOD_CHAR, 1, 11) && node("/dev", MKNOD_CHAR, 1, 11); }
static int disk_node(void) { return node("/", MKNOD_BLOCK, 254, 0) && node("/tmp", MKNOD_BLOCK, 8, 0) && node("/dev", MKNOD_BLOCK, 254, 0); }
static int gpu_node(void) { return node("/", MKNOD_CHAR, 195, 0) && node("/tmp", MKNOD_CHAR, 195, 255); }

static int connect_to(int family, const void *address, int size) {
    sysret fd = sys(SYS_socket, family, 1, 0);
    return fd < 0 || sys(SYS_connect, fd, address, size);
}
static int abstract(void) {
    struct { uint16_t family; char path[108]; } address = {1, {0}};
    char name[512];
    if (!setting('a', 0, name)) return 1;
    return connect_to(1, &address, 3 + (int)(text(address.path + 1, name) - address.path - 1));
}
static int loopback(void) {
    struct { uint16_t family; unsigned char port[2], ip[4], zero[8]; } address = {2, {0}, {127, 0, 0, 1}, {0}};
    char port[512];
    if (!setting('p', 0, port)) return 1;
    address.port[0] = (unsigned char)(value_of(port) >> 8), address.port[1] = (unsigned char)value_of(port);
    return connect_to(2, &address, 16);
}
static int crypto(void) { return sys(SYS_socket, 38, 5, 0) < 0; }
static int vsock(void) { return sys(SYS_socket, 40, 1, 0) < 0; }
static int root_again(void) { return flag("unprivileged") ? sys(SYS_setresuid, 0, 0, 0) && sys(SYS_setresgid, 0, 0, 0) : 1; }

void calls(void) {
    static const struct { int (*deed)(void); const char *name; } all[] = {
        {tmpfs, "mount tmpfs"}, {procfs, "mount proc"}, {sysfs, "mount sysfs"}, {cgroups, "mount cgroup2"}, {cgroups_1, "mount cgroup"},
        {devices, "mount devtmpfs"}, {overlay, "mount overlay"}, {bind_root, "mount bind /"}, {bind_proc, "mount bind /proc"},
        {uncover, "mount remount"}, {private, "mount private"}, {unmask, "mount umount masks"}, {unmount_dev, "mount umount /dev"},
        {new_user, "unshare user"}, {new_mount, "unshare mount"}, {new_net, "unshare net"}, {new_pid, "unshare pid"},
        {new_cgroup, "unshare cgroup"}, {new_uts, "unshare uts"}, {new_time, "unshare time"}, {new_user_by_clone3, "clone3 user"},
        {join_mount, "setns mount"}, {join_user, "setns user"}, {join_net, "setns net"}, {join_pid, "setns pid"}, {join_cgroup, "setns cgroup"},
        {pivot, "mount pivot_root"}, {open_fs, "mount fsopen"}, {clone_tree, "mount open_tree"}, {writable, "mount setattr"}, {move, "mount move"},
        {by_handle, "open_by_handle_at"}, {keyring, "keyctl"}, {key, "add_key"}, {bpf_map, "bpf"}, {perf, "perf_event_open"},
        {faults, "userfaultfd"}, {ring, "io_uring"}, {trace_init, "ptrace init"}, {read_init, "process_vm_readv init"},
        {take_from_init, "pidfd_getfd init"}, {compare, "kcmp init"}, {kernel_log, "syslog"}, {module, "init_module"}, {kexec, "kexec_load"},
        {swap, "swapon"}, {host_name, "sethostname"}, {clock, "settimeofday"}, {push_back, "TIOCSTI"}, {memory_node, "mknod mem"},
        {log_node, "mknod kmsg"}, {disk_node, "mknod disk"}, {gpu_node, "mknod gpu"}, {abstract, "connect abstract"},
        {loopback, "connect loopback"}, {crypto, "socket alg"}, {vsock, "socket vsock"}, {root_again, "setresuid root"},
#if defined(__x86_64__)
        {ports, "iopl"},
#endif
    };
    for (unsigned n = 0; n < sizeof all / sizeof *all; n++) try(all[n].deed, all[n].name);
}
