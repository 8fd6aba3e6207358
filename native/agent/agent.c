/* The agent: reads, writes, lists and changes files for the host, inside a sandbox and with nobody's rights but the sandbox's.
 *
 * It is started like any program that enters: in the sandbox's namespaces, with the ids of a user there, the capabilities, the seccomp filter and no_new_privs.
 * So no path leads out of the sandbox, whatever links are in it, no program or library of the image runs, and who traces it gains no right that he had not.
 * Its own program is a sealed memfd. It ends with its standard input.
 *
 * What is neither a regular file nor a directory is not opened: a FIFO would wait for its other end, and a device may do anything.
 */
#include "agent.h"
#include "launcher.h"

enum { NAMES = 8192, PATH_MAX = 4096, WATCHED = 0x2 | 0x4 | 0x8 | 0x40 | 0x80 | 0x100 | 0x200 | 0x400 | 0x800 };
enum { TYPE_MASK = 0170000, TYPE_REGULAR = 0100000, TYPE_LINK = 0120000 };
enum { E_NOTSUP = 95, E_OVERFLOW = 75 };

static struct request request;
static char contents[CHUNK + 1] __attribute__((aligned(8)));
static char out[CHUNK] __attribute__((aligned(8)));
static uint32_t out_size;
static int last = -1, watching = -1;
static uint64_t mounted; /* whether something is mounted where we looked last */

/* A path to act on: a name, which may have slashes in it, below a directory. `opened`: the directory is ours to close. */
struct place {
    int directory, opened;
    const char *name;
};

static void take(void *to, uint64_t size) {
    for (char *at = to; size;) {
        sysret n = sys(NR_read, 0, at, size);
        if (n == -E_INTR) continue;
        if (n <= 0) die(n < 0);
        at += n;
        size -= (uint64_t)n;
    }
}

static int handle(void) {
    return request.handle == LAST ? last : request.handle;
}

/* The text after `text`, 0 where the contents have no more. */
static const char *after(const char *text) {
    text += str_length(text) + 1;
    return text < contents + request.size ? text : 0;
}

static int is_up(const char *name) {
    return name[0] == '.' && name[1] == '.' && (!name[2] || name[2] == '/');
}

/* WITH_BENEATH: each directory of the path is opened below the one before, and is no link. */
static sysret descend(struct place *at) {
    if (*at->name == '/') return -E_XDEV;
    for (const char *end = at->name; *end;) {
        if (is_up(at->name)) return -E_XDEV;
        while (*end && *end != '/') end++;
        if (!*end) break;
        char name[256];
        uint64_t length = (uint64_t)(end - at->name);
        if (length >= sizeof name) return -E_NAMETOOLONG;
        memcpy(name, at->name, length);
        name[length] = 0;
        sysret below = sys(NR_openat, at->directory, name, O_PATH_ | O_DIRECTORY_ | O_NOFOLLOW_ | O_CLOEXEC_, 0);
        if (at->opened) sys(NR_close, at->directory);
        at->opened = below >= 0;
        if (below < 0) return below;
        at->directory = (int)below;
        at->name = ++end;
    }
    return 0;
}

static void leave(struct place *at) {
    if (at->opened) sys(NR_close, at->directory);
}

static sysret find(struct place *at, const char *path) {
    *at = (struct place){handle(), 0, path};
    if (!path || !request.size) return -E_INVAL;
    sysret error = request.flags & WITH_BENEATH ? descend(at) : 0;
    if (error < 0) leave(at);
    return error;
}

struct statx_time { int64_t sec; uint32_t nsec, pad; };
struct statx_ {
    uint32_t mask, block; uint64_t attributes; uint32_t links, uid, gid; uint16_t mode, pad; uint64_t inode, size, blocks, attributes_mask;
    struct statx_time accessed, born, changed, modified; uint64_t rest[16];
};

/* An empty name: the directory itself, or any handle. */
static sysret look(int directory, const char *name, int follow, struct about *about) {
    struct statx_ found;
    int flags = (*name ? 0 : AT_EMPTY_PATH_) | (follow ? 0 : AT_SYMLINK_NOFOLLOW_);
    sysret error = sys(NR_statx, directory, name, flags, 0x7ff /* BASIC_STATS */, &found);
    if (error < 0) return error;
    *about = (struct about){
        .mode = found.mode, .links = found.links, .uid = found.uid, .gid = found.gid, .inode = found.inode, .size = found.size,
        .modified = found.modified.sec * 1000000000 + found.modified.nsec,
    };
    mounted = found.attributes & 0x2000 /* MOUNT_ROOT */;
    return 0;
}

/* procfs, sysfs, devpts, mqueue, and both of cgroups; linux/magic.h */
static int made_by_kernel(int directory, const char *name) {
    static const uint64_t types[] = {0x9fa0, 0x62656572, 0x1cd1, 0x19800202, 0x27e0eb, 0x63677270};
    uint64_t found[15] = {0}; /* struct statfs: its type comes first */
    sysret fd = sys(NR_openat, directory, name, O_PATH_ | O_DIRECTORY_ | O_NOFOLLOW_ | O_CLOEXEC_, 0);
    if (fd < 0) return 0;
    sysret error = sys(NR_fstatfs, fd, found);
    sys(NR_close, fd);
    for (uint64_t i = 0; !error && i < sizeof types / sizeof *types; i++)
        if (found[0] == types[i]) return 1;
    return 0;
}

static void put(const void *from, uint32_t size) {
    memcpy(out + out_size, from, size);
    out_size += size;
}

static int wrong_type(const struct about *about) {
    uint32_t type = about->mode & TYPE_MASK;
    if (request.flags & WITH_DIRECTORY) return type == TYPE_DIRECTORY ? 0 : E_NOTDIR;
    if (type == TYPE_LINK) return E_LOOP;
    return type == TYPE_REGULAR ? 0 : type == TYPE_DIRECTORY ? E_ISDIR : E_NOTSUP;
}

static sysret open_at(const struct place *at) {
    struct about about;
    const int flags = request.flags, follow = !(flags & (WITH_NOFOLLOW | WITH_BENEATH));
    int how = O_CLOEXEC_ | O_NONBLOCK_ | 0x100 /* NOCTTY */;
    if (flags & WITH_WRITE) how |= flags & WITH_READ ? O_RDWR_ : O_WRONLY_;
    if (flags & WITH_CREATE) how |= O_CREAT_;
    if (flags & WITH_EXCLUSIVE) how |= O_EXCL_;
    if (flags & WITH_TRUNCATE) how |= O_TRUNC_;
    if (flags & WITH_APPEND) how |= O_APPEND_;
    if (flags & WITH_DIRECTORY) how |= O_DIRECTORY_;
    if (!follow) how |= O_NOFOLLOW_;
    sysret error = look(at->directory, at->name, follow, &about);
    if (error == 0 && !(flags & WITH_EXCLUSIVE)) error = -wrong_type(&about);
    if (error < 0 && error != -E_NOENT) return error;
    sysret fd = sys(NR_openat, at->directory, at->name, how, request.mode);
    if (fd < 0) return fd;
    error = look((int)fd, "", 0, &about);
    if (error == 0) error = -wrong_type(&about);
    if (error < 0) {
        sys(NR_close, fd);
        return error;
    }
    put(&about, sizeof about);
    return fd;
}

static sysret read_some(void) {
    uint64_t wanted = request.length < CHUNK ? request.length : CHUNK;
    while (out_size < wanted) {
        sysret n = sys(NR_pread64, handle(), out + out_size, wanted - out_size, request.offset + out_size);
        if (n == -E_INTR) continue;
        if (n < 0 && !out_size) return n;
        if (n <= 0) break;
        out_size += (uint32_t)n;
    }
    return (sysret)out_size;
}

static sysret write_contents(void) {
    for (uint64_t done = 0; done < request.size;) {
        sysret n = sys(NR_pwrite64, handle(), contents + done, request.size - done, request.offset + done);
        if (n == -E_INTR) continue;
        if (n <= 0) return n < 0 ? n : -E_IO;
        done += (uint64_t)n;
    }
    return request.size;
}

struct entry {
    uint64_t inode, offset;
    uint16_t length;
    uint8_t type;
    char name[];
};

static int is_dots(const char *name) {
    return name[0] == '.' && (!name[1] || (name[1] == '.' && !name[2]));
}

/* As many whole reads of getdents64(2) as surely have room. */
static sysret list_some(void) {
    static char names[NAMES] __attribute__((aligned(8)));
    enum { MOST = NAMES / 24 * (sizeof(struct about) + 2) + NAMES };
    uint32_t found = 0;
    while (out_size + MOST <= CHUNK) {
        sysret bytes = sys(NR_getdents64, handle(), names, sizeof names);
        if (bytes < 0 && !found) return bytes;
        if (bytes <= 0) break;
        for (sysret at = 0; at < bytes;) {
            struct entry *e = (struct entry *)(names + at);
            struct about about;
            at += e->length;
            if (is_dots(e->name) || look(handle(), e->name, 0, &about) < 0) continue; /* gone since */
            if (mounted && made_by_kernel(handle(), e->name)) about.mode |= MADE_BY_KERNEL;
            uint16_t length = (uint16_t)str_length(e->name);
            put(&about, sizeof about);
            put(&length, sizeof length);
            put(e->name, length);
            found++;
        }
    }
    return found;
}

static sysret stat_at(const struct place *at) {
    struct about about;
    sysret error = look(at->directory, at->name, !(request.flags & (WITH_NOFOLLOW | WITH_BENEATH)), &about);
    if (error < 0) return error;
    put(&about, sizeof about);
    if ((about.mode & TYPE_MASK) != TYPE_LINK) return 0;
    sysret length = sys(NR_readlinkat, at->directory, at->name, out + out_size, PATH_MAX);
    if (length < 0) return length;
    out_size += (uint32_t)length;
    return 0;
}

static sysret remove_at(const struct place *at) {
    struct about about;
    sysret error = look(at->directory, at->name, 0, &about);
    if (error < 0) return error;
    if ((about.mode & TYPE_MASK) != TYPE_DIRECTORY) return sys(NR_unlinkat, at->directory, at->name, 0);
    if (request.flags & WITH_TREE) return remove_tree(at->directory, at->name);
    return sys(NR_unlinkat, at->directory, at->name, 0x200 /* REMOVEDIR */);
}

/* A second path, and what is done with both. */
static sysret to_another(const struct place *from, sysret call) {
    struct place to;
    sysret error = find(&to, after(contents));
    if (error < 0) return error;
    error = sys(call, from->directory, from->name, to.directory, to.name, 0);
    leave(&to);
    return error;
}

static sysret rename_at(const struct place *from) {
    return to_another(from, NR_renameat);
}

static sysret link_at(const struct place *from) {
    return to_another(from, NR_linkat);
}

static sysret set(void) {
    sysret error = 0;
    if (request.flags & WITH_SIZE) error = sys(NR_ftruncate, handle(), request.length);
    if (error >= 0 && request.flags & WITH_MODE) error = sys(NR_fchmod, handle(), request.mode);
    if (error >= 0 && request.flags & WITH_TIME) {
        int64_t modified = (int64_t)request.offset, nanoseconds = modified % 1000000000;
        if (nanoseconds < 0) nanoseconds += 1000000000;
        struct timespec_ times[2] = {{0, 0x3ffffffe /* UTIME_OMIT */}, {(modified - nanoseconds) / 1000000000, nanoseconds}};
        error = sys(NR_utimensat, handle(), 0, times, 0);
    }
    return error;
}

static sysret watch(const struct place *at) {
    if (at->directory != ROOT || at->opened) return -E_INVAL; /* inotify knows no directory descriptors */
    if (watching < 0) watching = (int)sys(NR_inotify_init1, O_CLOEXEC_ | O_NONBLOCK_);
    uint32_t what = WATCHED | (request.flags & WITH_NOFOLLOW ? 0x2000000 /* DONT_FOLLOW */ : 0);
    return watching < 0 ? watching : sys(NR_inotify_add_watch, watching, at->name, what);
}

/* Until something happens, the time is up, or the host lets go. */
static sysret events(void) {
    if (watching < 0) return -E_BADF;
    struct pollfd_ fds[2] = {{watching, POLL_IN, 0}, {0, 0, 0}};
    struct timespec_ limit = {(int64_t)(request.length / 1000000000), (int64_t)(request.length % 1000000000)};
    for (;;) {
        sysret n = sys(NR_ppoll, fds, 2, &limit, 0, 8); /* Linux leaves in it what is left */
        if (n == 0 || (n < 0 && n != -E_INTR)) return n;
        if (n > 0 && fds[1].revents) die(0);
        sysret bytes = sys(NR_read, watching, out, 1 << 14);
        if (bytes == -E_AGAIN || bytes == -E_INTR) continue;
        if (bytes < 0) return bytes;
        out_size = (uint32_t)bytes;
        return 0;
    }
}

static sysret with_place(sysret (*act)(const struct place *)) {
    struct place at;
    sysret result = find(&at, contents);
    if (result < 0) return result;
    result = act(&at);
    leave(&at);
    return result;
}

static sysret make_directory(const struct place *at) {
    return sys(NR_mkdirat, at->directory, at->name, request.mode);
}

static sysret make_link(const struct place *at) {
    const char *target = after(contents);
    return target ? sys(NR_symlinkat, target, at->directory, at->name) : -E_INVAL;
}

static sysret carry_out(void) {
    switch (request.op) {
    case FILES_OPEN: last = -1; return last = (int)with_place(open_at);
    case FILES_CLOSE: return handle() > 2 && handle() != watching ? sys(NR_close, handle()) : -E_BADF;
    case FILES_READ: return read_some();
    case FILES_WRITE: return write_contents();
    case FILES_LIST: return list_some();
    case FILES_STAT: return with_place(stat_at);
    case FILES_MKDIR: return with_place(make_directory);
    case FILES_REMOVE: return with_place(remove_at);
    case FILES_RENAME: return with_place(rename_at);
    case FILES_SYMLINK: return with_place(make_link);
    case FILES_LINK: return with_place(link_at);
    case FILES_SET: return set();
    case FILES_WATCH: return with_place(watch);
    case FILES_EVENTS: return events();
    }
    return -E_INVAL;
}

static __attribute__((used)) void agent_main(void) {
    sys(NR_prctl, 15 /* NAME */, "dockless-agent", 0, 0, 0);
    sys(NR_chdir, "/"); /* the caller's paths are absolute; where this is refused, so are they */
    for (;;) {
        take(&request, sizeof request);
        if (request.size > CHUNK) die(2);
        take(contents, request.size);
        contents[request.size] = 0;
        out_size = 0;
        sysret result = carry_out();
        if (result < 0) out_size = 0;
        struct answer answer = {(int32_t)result, out_size};
        if (write_all(1, (const char *)&answer, sizeof answer) < 0 || write_all(1, out, out_size) < 0) die(1);
    }
}

#if defined(__x86_64__)
__asm__(".globl _start\n_start:\n\txor %ebp, %ebp\n\tand $-16, %rsp\n\tcall agent_main\n\tud2\n");
#else
__asm__(".globl _start\n_start:\n\tmov x29, xzr\n\tbl agent_main\n\tbrk 1\n");
#endif
