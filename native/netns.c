/* Network namespaces, sockets and settings in them, and user namespaces below another one. A child that shares our memory and our descriptors enters the namespaces and makes what is wanted: the thread that
 * calls stays where it is, whatever happens. Between clone and exit only raw system calls run, as in clone.c.
 */
#define _GNU_SOURCE
#include <stddef.h>

#include "shim.h"
#include "sys.h"

enum { NEWUSER = 0x10000000, NEWNET = 0x40000000, CLOEXEC = 02000000, GET_NETNS = 0x894C /* SIOCGSKNS, a descriptor of the socket's namespace */ };

struct wanted {
    int userns, netns, domain, type, protocol;
    const char *path; /* a file instead of a socket */
    int made_netns, made_socket, error;
};

static void child(void *argument) {
    struct wanted *w = argument;
    sysret fd = 0;
    if (w->userns >= 0) w->error = (int)sys(NR_setns, w->userns, NEWUSER);
    if (!w->error) w->error = (int)(w->netns >= 0 ? sys(NR_setns, w->netns, NEWNET) : sys(NR_unshare, NEWNET));
    if (!w->error) {
        fd = w->path ? sys(NR_openat, AT_FDCWD_, w->path, w->type | O_CLOEXEC_, 0) : sys(NR_socket, w->domain, w->type | CLOEXEC, w->protocol);
        if (fd < 0) w->error = (int)fd;
        else w->made_socket = (int)fd;
    }
    if (!w->error && w->netns < 0) {
        if ((fd = sys(NR_ioctl, w->made_socket, GET_NETNS)) < 0) w->error = (int)fd;
        else w->made_netns = (int)fd;
    }
    for (;;) sys(NR_exit, 0);
}

static int beside(void (*what)(void *), void *argument) {
    char stack[16384] __attribute__((aligned(16)));
    struct clone_args args = {
        .flags = CLONE_VM_ | CLONE_VFORK_ | CLONE_FILES_ | CLONE_CLEAR_SIGHAND_,
        .stack = (uint64_t)(uintptr_t)stack,
        .stack_size = sizeof stack,
    };
    uint64_t all = ~0ull, old;
    sys(NR_rt_sigprocmask, 2, &all, &old, 8);
    sysret pid = clone_call(&args, what, argument);
    sys(NR_rt_sigprocmask, 2, &old, 0, 8);
    if (pid < 0) return (int)pid;
    sys(NR_wait4, pid, 0, 0x80000000 /* __WCLONE: it has no exit signal */, 0);
    return 0;
}

static int carry_out(struct wanted *w) {
    w->made_netns = w->made_socket = -1;
    int failed = beside(child, w);
    if (failed || !w->error) return failed;
    if (w->made_socket >= 0) sys(NR_close, w->made_socket);
    return w->error;
}

int shim_netns(int userns, int *netns) {
    struct wanted w = {.userns = userns, .netns = -1, .domain = 16 /* AF_NETLINK */, .type = 3 /* SOCK_RAW */, .protocol = 0 /* NETLINK_ROUTE */};
    int error = carry_out(&w);
    *netns = w.made_netns;
    return error ? error : w.made_socket;
}

int shim_socket_in(int userns, int netns, int domain, int type, int protocol) {
    struct wanted w = {.userns = userns, .netns = netns, .domain = domain, .type = type, .protocol = protocol};
    int error = netns < 0 ? -E_INVAL : carry_out(&w);
    return error ? error : w.made_socket;
}

int shim_setting_in(int userns, int netns, const char *path, int flags) {
    struct wanted w = {.userns = userns, .netns = netns, .path = path, .type = flags};
    int error = netns < 0 ? -E_INVAL : carry_out(&w);
    return error ? error : w.made_socket;
}

struct below {
    int parent, error, made, wait[2];
    const char *maps[2];
};

/* In the new user namespace: opens it, and waits until its maps are written. */
static void first_inside(void *argument) {
    struct below *b = argument;
    char byte;
    b->made = (int)sys(NR_openat, AT_FDCWD_, "/proc/self/ns/user", O_CLOEXEC_, 0);
    while (sys(NR_read, b->wait[0], &byte, 1) == -E_INTR) {}
    for (;;) sys(NR_exit, 0);
}

static int write_map(sysret pid, const char *file, const char *text) {
    char path[64] = "/proc/", digits[24];
    int at = 6, count = 0;
    size_t size = 0;
    for (; pid; pid /= 10) digits[count++] = (char)('0' + pid % 10);
    while (count) path[at++] = digits[--count];
    while ((path[at++] = *file++)) {}
    while (text[size]) size++;
    sysret fd = sys(NR_openat, AT_FDCWD_, path, O_WRONLY_ | O_CLOEXEC_, 0);
    if (fd < 0) return (int)fd;
    sysret done = sys(NR_write, fd, text, size);
    sys(NR_close, fd);
    return done < 0 ? (int)done : 0;
}

/* In the parent, whose rights the maps of what lies below it take. */
static void above(void *argument) {
    struct below *b = argument;
    char stack[8192] __attribute__((aligned(16)));
    struct clone_args args = {
        .flags = CLONE_VM_ | CLONE_FILES_ | CLONE_CLEAR_SIGHAND_ | NEWUSER,
        .stack = (uint64_t)(uintptr_t)stack,
        .stack_size = sizeof stack,
    };
    sysret pid = -1;
    b->error = (int)sys(NR_setns, b->parent, NEWUSER);
    if (!b->error) b->error = (int)sys(NR_pipe2, b->wait, CLOEXEC);
    if (!b->error && (pid = clone_call(&args, first_inside, b)) < 0) b->error = (int)pid;
    if (!b->error) b->error = write_map(pid, "/gid_map", b->maps[1]);
    if (!b->error) b->error = write_map(pid, "/uid_map", b->maps[0]);
    if (pid > 0) {
        sys(NR_write, b->wait[1], "", 1);
        sys(NR_wait4, pid, 0, 0x80000000, 0);
    }
    for (int i = 0; i < 2; i++)
        if (b->wait[i] >= 0) sys(NR_close, b->wait[i]);
    for (;;) sys(NR_exit, 0);
}

int shim_userns_below(int parent, const char *uid_map, const char *gid_map) {
    struct below b = {.parent = parent, .made = -1, .wait = {-1, -1}, .maps = {uid_map, gid_map}};
    int failed = beside(above, &b);
    if (!failed) failed = b.error ? b.error : b.made < 0 ? b.made : 0;
    if (failed && b.made >= 0) sys(NR_close, b.made);
    return failed ? failed : b.made;
}
