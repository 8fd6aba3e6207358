/* What each operation does: one function per operation that is more than a system call, one switch at the end.
 *
 * A result goes to its slot, and a slot's number is the fd's number, so a trace of the launcher reads like the plan. Paths below a root are resolved with
 * openat2(RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS): a link inside an image can never lead out of it (attacks A2, A25, A26, A30, A31).
 */
#include "ops.h"

#define ROOTED (RESOLVE_IN_ROOT_ | RESOLVE_NO_MAGICLINKS_)
#define MAX_PATH_BYTES 4096

static int at(int slot) {
    return slot < 0 ? AT_FDCWD_ : slot;
}

/* Put a new fd where the plan says it lives. dup3(2) says EBADF of a slot beyond RLIMIT_NOFILE. */
static int place(sysret fd, int slot) {
    if (fd < 0) return (int)fd;
    if (fd == slot) return 0;
    sysret moved = sys(NR_dup3, fd, slot, O_CLOEXEC_);
    sys(NR_close, fd);
    return moved == -E_BADF ? -E_MFILE : moved < 0 ? (int)moved : 0;
}

/* openat2 repeats what raced with a rename; -EAGAIN says so. Paths without a root slot are the host's own and are not confined. */
static sysret open_below(int root, const char *path, uint64_t flags, uint64_t mode, uint64_t resolve) {
    struct open_how how = {flags | O_CLOEXEC_, mode, root < 0 ? resolve : (resolve | ROOTED)};
    for (int tries = 0;; tries++) {
        sysret fd = sys(NR_openat2, at(root), *path ? path : ".", &how, sizeof how);
        if (fd != -E_AGAIN || tries > 128) return fd;
    }
}

static int copy_path(char *to, const char *from, uint64_t length) {
    if (length >= MAX_PATH_BYTES) return -E_NAMETOOLONG;
    for (uint64_t i = 0; i < length; i++) to[i] = from[i];
    to[length] = 0;
    return 0;
}

enum { NAME_SIZE = 256 };

/* The parent directory of a path below a root, made where it is missing; `last` becomes the last component, of less than NAME_SIZE bytes. */
static sysret open_parent(int root, const char *path, char *last) {
    char prefix[MAX_PATH_BYTES];
    uint64_t length = str_length(path);
    while (length > 1 && path[length - 1] == '/') length--;
    uint64_t cut = length;
    while (cut && path[cut - 1] != '/') cut--;
    if (length - cut >= NAME_SIZE) return -E_NAMETOOLONG;
    copy_path(last, path + cut, length - cut);
    int err = copy_path(prefix, path, cut);
    if (err) return err;
    sysret fd = open_below(root, prefix, O_PATH_ | O_DIRECTORY_, 0, 0);
    if (fd != -E_NOENT) return fd;
    /* Make one level after the other, each resolved anew below the root. */
    for (uint64_t i = 1; i <= cut; i++) {
        if (i < cut && path[i] != '/') continue;
        uint64_t end = i, start = i;
        while (end && path[end - 1] == '/') end--;
        start = end;
        while (start && path[start - 1] != '/') start--;
        if (start == end) continue;
        char name[NAME_SIZE];
        if (end - start >= sizeof name) return -E_NAMETOOLONG;
        copy_path(prefix, path, start);
        copy_path(name, path + start, end - start);
        sysret parent = open_below(root, prefix, O_PATH_ | O_DIRECTORY_, 0, 0);
        if (parent < 0) return parent;
        sysret made = sys(NR_mkdirat, parent, name, 0755);
        sys(NR_close, parent);
        if (made < 0 && made != -E_EXIST) return made;
    }
    copy_path(prefix, path, cut);
    return open_below(root, prefix, O_PATH_ | O_DIRECTORY_, 0, 0);
}

static int make_directory(const struct plan_op *op, const char *path) {
    sysret fd = open_below(op->in, path, O_PATH_ | O_DIRECTORY_, 0, 0);
    if (fd == -E_NOENT) {
        char name[NAME_SIZE];
        sysret parent = open_parent(op->in, path, name);
        if (parent < 0) return (int)parent;
        sysret made = sys(NR_mkdirat, parent, name, op->x);
        sys(NR_close, parent);
        if (made < 0 && made != -E_EXIST) return (int)made;
        fd = open_below(op->in, path, O_PATH_ | O_DIRECTORY_, 0, 0);
    }
    if (fd < 0) return (int)fd;
    if (op->out >= 0) return place(fd, op->out);
    sys(NR_close, fd);
    return 0;
}

/* Something to mount on: a directory for a directory, an empty file for anything else. What is there already is taken. */
static int make_target(const struct plan_op *op, const char *path) {
    struct facts source = {0};
    int error = facts_of(op->out, &source);
    if (error) return error;
    if (source.type == TYPE_DIRECTORY) {
        struct plan_op directory = {.in = op->in, .out = -1, .x = 0755};
        return make_directory(&directory, path);
    }
    sysret fd = open_below(op->in, path, O_PATH_, 0, 0);
    if (fd == -E_NOENT) {
        char name[NAME_SIZE];
        sysret parent = open_parent(op->in, path, name);
        if (parent < 0) return (int)parent;
        fd = sys(NR_openat, parent, name, O_WRONLY_ | O_CREAT_ | O_EXCL_ | O_NOFOLLOW_ | O_CLOEXEC_, 0644);
        if (fd == -E_EXIST) { /* a link to nothing: make what it names, or a file in its place */
            fd = open_below(op->in, path, O_WRONLY_ | O_CREAT_, 0644, 0);
            if (fd == -E_NOENT && sys(NR_unlinkat, parent, name, 0) == 0)
                fd = sys(NR_openat, parent, name, O_WRONLY_ | O_CREAT_ | O_EXCL_ | O_NOFOLLOW_ | O_CLOEXEC_, 0644);
        }
        sys(NR_close, parent);
    }
    if (fd < 0) return (int)fd;
    sys(NR_close, fd);
    return 0;
}

/* Pipes on the standard streams belong to whoever made them; the program could write to them, but not open /dev/stdout. Files and terminals stay as they are. */
static int own_pipes(const struct plan_op *op) {
    for (int fd = 0; fd <= 2; fd++) {
        struct facts stream = {0};
        if (facts_of(fd, &stream) < 0 || stream.type != TYPE_PIPE) continue;
        sys(NR_fchownat, fd, "", (uint32_t)op->x, (uint32_t)(op->x >> 32), AT_EMPTY_PATH_);
    }
    return 0;
}

/* A standard stream that is /dev/null is the host's node, and whoever has the host's ids could change its mode through the descriptor: give the sandbox's. */
static int null_streams(const struct plan_op *op, const char *path) {
    for (int fd = 0; fd <= 2; fd++) {
        struct facts stream = {0};
        if (facts_of(fd, &stream) < 0 || stream.type != TYPE_CHARACTER || stream.rdev != (1 << 8 | 3 /* 1:3 */)) continue;
        sysret access = sys(NR_fcntl, fd, 3 /* F_GETFL */, 0);
        if (access < 0) return (int)access;
        sysret null = open_below(op->in, path, (uint64_t)access & 3, 0, 0);
        if (null < 0) return (int)null;
        sysret moved = sys(NR_dup3, null, fd, 0);
        sys(NR_close, null);
        if (moved < 0) return (int)moved;
    }
    return 0;
}

static int make_link(const struct plan_op *op, const char *path, const char *target) {
    char name[NAME_SIZE];
    sysret parent = open_parent(op->in, path, name);
    if (parent < 0) return (int)parent;
    sysret err = sys(NR_symlinkat, target, parent, name);
    sys(NR_close, parent);
    return (int)err;
}

static int write_file(const struct plan_op *op, const char *path, const char *bytes) {
    sysret fd;
    if (op->x & O_CREAT_) {
        char name[NAME_SIZE];
        sysret parent = open_parent(op->in, path, name);
        if (parent < 0) return (int)parent;
        fd = sys(NR_openat, parent, name, op->x | O_WRONLY_ | O_NOFOLLOW_ | O_CLOEXEC_, 0644);
        sys(NR_close, parent);
    } else {
        static const char own[] = "/proc/self/";
        int ours = op->in < 0;
        for (int i = 0; own[i] && ours; i++) ours = path[i] == own[i];
        if (ours) dumpable(1); /* of one that is not, they belong to root: proc_pid(5) */
        fd = open_below(op->in, path, op->x | O_WRONLY_, 0, 0);
        if (ours) dumpable(0);
    }
    if (fd < 0) return (int)fd;
    /* One write: the kernel takes an id map or a sysctl only whole. */
    sysret wrote = sys(NR_write, fd, bytes, op->c);
    sys(NR_close, fd);
    if (wrote < 0) return (int)wrote;
    return wrote == (sysret)op->c ? 0 : -E_IO;
}

/* A path of the host is opened without following magic links: one that led through /proc/self/fd would reach what the keeper holds, its plan above all. */
static int clone_tree(const struct plan_op *op, const char *path) {
    if (!*path) return place(sys(NR_open_tree, op->in, "", op->x | O_CLOEXEC_ | AT_EMPTY_PATH_), op->out);
    sysret source = open_below(op->in, path, O_PATH_, 0, RESOLVE_NO_MAGICLINKS_);
    if (source < 0) return (int)source;
    int err = place(sys(NR_open_tree, source, "", op->x | O_CLOEXEC_ | AT_EMPTY_PATH_), op->out);
    sys(NR_close, source);
    return err;
}

static int same_file(int one, int other) {
    struct facts a = {0}, b = {0};
    return facts_of(one, &a) == 0 && facts_of(other, &b) == 0 && same(&a, &b);
}

/* b: a directory that stands for a place of ours. A target that turns out to be it, or the root itself, was reached through a link of the image. */
static int move_mount(const struct plan_op *op, const char *path) {
    enum { F_EMPTY = 4, T_EMPTY = 0x40 };
    sysret target = open_below(op->out, path, O_PATH_, 0, op->c);
    if (target < 0) return (int)target;
    sysret err = op->b && (same_file((int)target, (int)op->b) || same_file((int)target, op->out)) ? -E_XDEV : 0;
    if (err >= 0) err = sys(NR_move_mount, op->in, "", target, "", F_EMPTY | T_EMPTY);
    sys(NR_close, target);
    return (int)err;
}

static int mount_attributes(const struct plan_op *op, const char *path) {
    struct mount_attr attr = {(uint32_t)op->x, op->x >> 32, op->b, op->out < 0 ? 0 : (uint64_t)op->out};
    return (int)sys(NR_mount_setattr, at(op->in), path, op->c | (*path ? 0 : AT_EMPTY_PATH_), &attr, sizeof attr);
}

static int pivot(const struct plan_op *op) {
    sysret err = sys(NR_fchdir, op->in);
    if (err < 0) return (int)err;
    err = sys(NR_pivot_root, ".", ".");
    if (err < 0) return (int)err;
    err = sys(NR_umount2, ".", 2 /* MNT_DETACH */);
    if (err < 0) return (int)err;
    return (int)sys(NR_chdir, "/");
}

/* Hide a path of procfs or sysfs: a file below /dev/null, a directory below an empty read-only one. Links are not followed: a path that is one is the
 * image's doing, and an error (CVE-2025-31133). */
static int mask(const struct plan_op *op, const char *path) {
    struct open_how how = {O_PATH_ | O_CLOEXEC_, 0, RESOLVE_NO_SYMLINKS_};
    sysret target = sys(NR_openat2, AT_FDCWD_, path, &how, sizeof how);
    if (target < 0) return (int)target;
    how.flags = O_PATH_ | O_CLOEXEC_ | O_DIRECTORY_;
    sysret directory = sys(NR_openat2, AT_FDCWD_, path, &how, sizeof how);
    if (directory >= 0) sys(NR_close, directory);
    sysret source = sys(NR_open_tree, directory >= 0 ? op->out : op->in, "", 1 /* CLONE */ | O_CLOEXEC_ | AT_EMPTY_PATH_);
    struct mount_attr attr = {1 /* RDONLY */, 0, 0, 0};
    sysret err = source < 0 ? source : sys(NR_mount_setattr, source, "", AT_EMPTY_PATH_, &attr, sizeof attr);
    if (err >= 0) err = sys(NR_move_mount, source, "", target, "", 0x44);
    if (source >= 0) sys(NR_close, source);
    sys(NR_close, target);
    return (int)err;
}

static int make_readonly(const char *path) {
    struct open_how how = {O_PATH_ | O_CLOEXEC_, 0, RESOLVE_NO_SYMLINKS_};
    struct mount_attr attr = {1 /* RDONLY */, 0, 0, 0};
    sysret target = sys(NR_openat2, AT_FDCWD_, path, &how, sizeof how);
    if (target < 0) return (int)target;
    sysret tree = sys(NR_open_tree, target, "", 1 | O_CLOEXEC_ | AT_EMPTY_PATH_ | AT_RECURSIVE_);
    sysret err = tree;
    if (tree >= 0) {
        err = sys(NR_mount_setattr, tree, "", AT_EMPTY_PATH_ | AT_RECURSIVE_, &attr, sizeof attr);
        if (err >= 0) err = sys(NR_move_mount, tree, "", target, "", 0x44);
        sys(NR_close, tree);
    }
    sys(NR_close, target);
    return (int)err;
}

static int expect_device(const struct plan_op *op) {
    struct facts device = {0};
    int err = facts_of(op->in, &device);
    if (err) return err;
    return device.rdev == op->x && device.type == (op->c ? TYPE_BLOCK : TYPE_CHARACTER) ? 0 : -E_NODEV;
}

/* After the mount namespace has changed, a working directory may lie outside the root: the kernel then calls it unreachable (CVE-2024-21626). */
static int change_directory(const char *path) {
    char where[MAX_PATH_BYTES];
    sysret directory = open_below(-1, path, O_PATH_ | O_DIRECTORY_, 0, RESOLVE_NO_MAGICLINKS_);
    if (directory < 0) return (int)directory;
    sysret err = sys(NR_fchdir, directory);
    sys(NR_close, directory);
    if (err < 0) return (int)err;
    err = sys(NR_getcwd, where, sizeof where);
    if (err < 0) return (int)err;
    return where[0] == '/' ? 0 : -E_ACCES;
}

static int loopback_up(void) {
    struct { char name[16]; short flags; char pad[22]; } ifreq = {"lo", 0, {0}};
    sysret fd = sys(NR_socket, 2 /* AF_INET */, 2 | O_CLOEXEC_, 0);
    if (fd < 0) return (int)fd;
    sysret err = sys(NR_ioctl, fd, 0x8913 /* SIOCGIFFLAGS */, &ifreq);
    ifreq.flags |= 1 /* IFF_UP */;
    if (err >= 0) err = sys(NR_ioctl, fd, 0x8914 /* SIOCSIFFLAGS */, &ifreq);
    sys(NR_close, fd);
    return (int)err;
}

static int new_session(int terminal) {
    if (sys(NR_setsid) < 0) return -E_PERM;
    return terminal ? (int)sys(NR_ioctl, 0, 0x540E /* TIOCSCTTY */, 0) : 0;
}

/* A pseudo-terminal of the sandbox's own devpts. Whoever enters finds there what the sandbox made of it, so it must be the device, and the program's side comes
 * from ours, never from a name (CVE-2025-52565). The other side goes out by the socket. */
static int make_terminal(const struct plan_header *plan, const struct plan_op *op, const char *path) {
    struct open_how how = {O_RDWR_ | O_NOCTTY_ | O_NONBLOCK_ | O_CLOEXEC_, 0, RESOLVE_NO_SYMLINKS_ | RESOLVE_NO_MAGICLINKS_};
    struct facts device = {0};
    int unlocked = 0;
    uint16_t size[4] = {(uint16_t)plan->terminal, (uint16_t)(plan->terminal >> 16), 0, 0};
    sysret ours = sys(NR_openat2, AT_FDCWD_, path, &how, sizeof how);
    if (ours < 0) return (int)ours;
    sysret err = facts_of((int)ours, &device);
    if (err >= 0 && (device.type != TYPE_CHARACTER || device.rdev != (5 << 8 | 2))) err = -E_NODEV;
    if (err >= 0) err = sys(NR_ioctl, ours, 0x40045431 /* TIOCSPTLCK */, &unlocked);
    sysret theirs = err < 0 ? err : sys(NR_ioctl, ours, 0x5441 /* TIOCGPTPEER */, O_RDWR_ | O_NOCTTY_);
    if (theirs >= 0) {
        sys(NR_fcntl, ours, 4 /* F_SETFL */, O_RDWR_);
        sys(NR_ioctl, ours, 0x5414 /* TIOCSWINSZ */, size);
        sys(NR_fchownat, theirs, "", (uint32_t)op->x, (uint32_t)(op->x >> 32), AT_EMPTY_PATH_); /* its own user opens /dev/tty by name */
        err = send_terminal(op->in, (int)ours);
        for (int fd = 0; fd <= 2 && err >= 0; fd++) err = sys(NR_dup3, theirs, fd, 0);
        sys(NR_close, theirs);
    } else err = theirs;
    sys(NR_close, ours);
    return err < 0 ? (int)err : 0;
}

/* Who draws on somebody's terminal, or has frozen a sandbox, may be killed and cannot put things back: this process waits for its end and does. */
static int killed(void) {
    char byte;
    sysret n;
    while ((n = sys(NR_read, SLOT_LEASH, &byte, 1)) == -E_INTR) {}
    return n == 0;
}

static int restore_terminal(const struct plan_op *op, const void *modes) {
    return killed() ? (int)sys(NR_ioctl, op->in, 0x5404 /* TCSETSF */, modes) : 0;
}

static int thaw(const struct plan_op *op) {
    sysret n = killed() ? sys(NR_write, op->in, "0", 1) : 0;
    return n < 0 ? (int)n : 0;
}

static int set_ids(const struct plan_op *op, const void *groups) {
    uint32_t uid = (uint32_t)op->x, gid = (uint32_t)(op->x >> 32);
    sysret err = op->a ? 0 : sys(NR_setgroups, op->c / 4, groups);
    if (err >= 0) err = sys(NR_setresgid, gid, gid, gid);
    if (err >= 0) err = sys(NR_setresuid, uid, uid, uid);
    return (int)err;
}

/* Which files may be opened from here on; the kernel drops the file capabilities with fsuid 0. Both calls answer with the old id, so ask again to see. */
static int set_fs_ids(const struct plan_op *op, const void *groups) {
    uint32_t uid = (uint32_t)op->x, gid = (uint32_t)(op->x >> 32);
    sysret err = op->a ? 0 : sys(NR_setgroups, op->c / 4, groups);
    if (err < 0) return (int)err;
    sys(NR_setfsgid, gid);
    sys(NR_setfsuid, uid);
    if ((uint32_t)sys(NR_setfsgid, gid) != gid || (uint32_t)sys(NR_setfsuid, uid) != uid) return -E_PERM;
    return 0;
}

static int drop_bounding(uint64_t kept) {
    for (int cap = 0; cap < 64; cap++) {
        if (kept >> cap & 1) continue;
        sysret err = sys(NR_prctl, 24 /* PR_CAPBSET_DROP */, cap, 0, 0, 0);
        if (err == -E_INVAL) return 0; /* past the last capability of this kernel */
        if (err < 0) return (int)err;
    }
    return 0;
}

static int set_caps(uint64_t mask) {
    struct { uint32_t version; int pid; } header = {0x20080522, 0};
    struct { uint32_t effective, permitted, inheritable; } data[2] = {
        {(uint32_t)mask, (uint32_t)mask, 0},
        {(uint32_t)(mask >> 32), (uint32_t)(mask >> 32), 0},
    };
    return (int)sys(NR_capset, &header, data);
}

static int install_filter(const struct plan_op *op, const void *filter) {
    struct { uint16_t length; const void *filter; } program = {(uint16_t)(op->b / 8), filter};
    return (int)sys(NR_seccomp, 1 /* SECCOMP_SET_MODE_FILTER */, 0, &program);
}

static struct { sysret at; uint64_t bytes; } arguments; /* on memory that init has, too */

void forget_arguments(void) {
    if (arguments.bytes) sys(NR_munmap, arguments.at, arguments.bytes);
}

/* Tries each candidate as execvp(3) does: what is missing is passed over, what may not be run is remembered. */
static int exec_command(const struct plan_header *plan, const struct plan_op *op) {
    const uint32_t *v = (const uint32_t *)plan_data(plan, op->a);
    uint32_t n_candidates = v[0], n_argv = v[1 + n_candidates], n_envp = v[2 + n_candidates + n_argv];
    const uint32_t *candidates = v + 1, *argv = candidates + n_candidates + 1, *envp = argv + n_argv + 1;
    uint64_t bytes = ((uint64_t)n_argv + n_envp + 2) * sizeof(char *);
    sysret memory = sys(NR_mmap, 0, bytes, 3 /* RW */, 0x22 /* PRIVATE | ANONYMOUS */, -1, 0);
    if (memory < 0 && memory > -4096) return (int)memory;
    arguments.at = memory;
    arguments.bytes = bytes;
    const char **args = (const char **)memory, **env = args + n_argv + 1;
    for (uint32_t i = 0; i < n_argv; i++) args[i] = plan_data(plan, argv[i]);
    for (uint32_t i = 0; i < n_envp; i++) env[i] = plan_data(plan, envp[i]);
    int result = -E_NOENT;
    for (uint32_t i = 0; i < n_candidates; i++) {
        const char *program = plan_data(plan, candidates[i]);
        sysret err = *program ? sys(NR_execve, program, args, env) : sys(NR_execveat, SLOT_PROGRAM, "", args, env, AT_EMPTY_PATH_);
        if (err == -E_ACCES) result = -E_ACCES;
        else if (err != -E_NOENT && err != -E_NOTDIR) return (int)err;
    }
    return result;
}

int pid_namespace(const struct plan_header *plan) {
    for (uint32_t pc = 0; pc < plan->n_ops; pc++)
        if (plan_ops(plan)[pc].code == OP_SETNS && plan_ops(plan)[pc].x == 0x20000000 /* NEWPID */) return plan_ops(plan)[pc].in;
    return -1;
}

int op_run(struct plan_header *plan, const struct plan_op *op) {
    const struct plan_header *taken = taken_plan();
    const char *a = plan_data(plan, op->a), *b = plan_data(plan, op->b);
    switch (op->code) {
    case OP_OPEN_TREE: return clone_tree(op, a);
    case OP_MOUNT_ATTR: return mount_attributes(op, a);
    case OP_FSOPEN: return place(sys(NR_fsopen, a, 1 /* CLOEXEC */), op->out);
    case OP_FS_FLAG: return (int)sys(NR_fsconfig, op->in, 0, a, 0, 0);
    case OP_FS_STRING: return (int)sys(NR_fsconfig, op->in, 1, a, b, 0);
    case OP_FS_CREATE: return (int)sys(NR_fsconfig, op->in, 6, 0, 0, 0);
    case OP_FSMOUNT: return place(sys(NR_fsmount, op->in, 1 /* CLOEXEC */, op->x), op->out);
    case OP_MOVE_MOUNT: return move_mount(op, a);
    case OP_MKDIR: return make_directory(op, a);
    case OP_MKTARGET: return make_target(op, a);
    case OP_SYMLINK: return make_link(op, a, b);
    case OP_OPEN: return place(open_below(op->in, a, op->x, 0, op->c), op->out);
    case OP_CLOSE: return (int)sys(NR_close, op->in);
    case OP_PIVOT: return pivot(op);
    case OP_SETNS: return (int)sys(NR_setns, op->in, op->x);
    case OP_UNSHARE: return (int)sys(NR_unshare, op->x);
    case OP_WRITE:
    case OP_SYSCTL: return write_file(op, a, b);
    case OP_HOSTNAME: return (int)sys(NR_sethostname, a, str_length(a));
    case OP_DOMAINNAME: return (int)sys(NR_setdomainname, a, str_length(a));
    case OP_LOOPBACK_UP: return loopback_up();
    case OP_SET_IDS: return set_ids(op, b);
    case OP_FS_IDS: return set_fs_ids(op, b);
    case OP_SETSID: return new_session((int)op->x);
    case OP_RLIMIT: return (int)sys(NR_prlimit64, 0, op->c, a, 0);
    case OP_UMASK: sys(NR_umask, op->x); return 0;
    case OP_CHDIR: return change_directory(taken ? plan_data(taken, plan_ops(taken)[0].a) : a);
    case OP_AFFINITY: return (int)sys(NR_sched_setaffinity, 0, op->b, a);
    case OP_BOUNDING: return drop_bounding(op->x);
    case OP_CAPS: return set_caps(op->x);
    case OP_NO_NEW_PRIVS: return (int)sys(NR_prctl, 38, 1, 0, 0, 0);
    case OP_SECCOMP: return install_filter(op, a);
    case OP_PDEATHSIG: return (int)sys(NR_prctl, 1, op->x, 0, 0, 0);
    case OP_SUBREAPER: return (int)sys(NR_prctl, 36, 1, 0, 0, 0);
    case OP_SIGNALS: {
        uint64_t none = 0; /* the actions are the defaults already: the launcher set them, and sets no others */
        return (int)sys(NR_rt_sigprocmask, 2 /* SIG_SETMASK */, &none, 0, 8);
    }
    case OP_KEYRING: {
        sysret ring = sys(NR_keyctl, 1 /* JOIN_SESSION_KEYRING */, 0, 0, 0, 0);
        return ring < 0 ? (int)ring : 0;
    }
    case OP_CHOWN: return (int)sys(NR_fchownat, at(op->in), a, (uint32_t)op->x, (uint32_t)(op->x >> 32), AT_SYMLINK_NOFOLLOW_ | (*a ? 0 : AT_EMPTY_PATH_));
    case OP_EXPECT_DEVICE: return expect_device(op);
    case OP_MASK: return mask(op, a);
    case OP_READONLY: return make_readonly(a);
    case OP_OVERLAY: return (int)sys(NR_mount, "overlay", b, "overlay", 4 /* NODEV */, a);
    case OP_REMOVE: return remove_tree(at(op->in), a);
    case OP_OWN_PIPES: return own_pipes(op);
    case OP_NULL_STREAMS: return null_streams(op, a);
    case OP_HAND_OVER: return hand_over(op->in < 0 ? SLOT_DOOR : op->in, op->x);
    case OP_RESTORE: return restore_terminal(op, a);
    case OP_THAW: return thaw(op);
    case OP_TERMINAL: return make_terminal(plan, op, a);
    case OP_STREAMS: return take_streams();
    case OP_HAND_ROOT: return hand_root(op->in);
    case OP_MARK: return set_mark(op->x, pid_namespace(plan));
    case OP_BARRIER: return wait_at_barrier(plan, op->in, op->x);
    case OP_EXEC: return taken ? exec_command(taken, &plan_ops(taken)[1]) : exec_command(plan, op);
    }
    return -E_INVAL;
}
