/* Network namespaces, sockets and settings in them. A child that shares our memory and our descriptors enters the namespaces and makes what is wanted: the thread that
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

static int carry_out(struct wanted *w) {
    char stack[8192] __attribute__((aligned(16)));
    struct clone_args args = {
        .flags = CLONE_VM_ | CLONE_VFORK_ | CLONE_FILES_ | CLONE_CLEAR_SIGHAND_,
        .stack = (uint64_t)(uintptr_t)stack,
        .stack_size = sizeof stack,
    };
    w->made_netns = w->made_socket = -1;
    uint64_t all = ~0ull, old;
    sys(NR_rt_sigprocmask, 2, &all, &old, 8);
    sysret pid = clone_call(&args, child, w);
    sys(NR_rt_sigprocmask, 2, &old, 0, 8);
    if (pid < 0) return (int)pid;
    sys(NR_wait4, pid, 0, 0x80000000 /* __WCLONE: it has no exit signal */, 0);
    if (!w->error) return 0;
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
