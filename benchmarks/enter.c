/* The floors below `exec`: what it costs a C program, as root, to run one in a sandbox: setns with a pidfd of its init, clone, ids, exec, wait.
 *
 * enter PID NAMESPACES PROGRAM: says "ready"; then for every line on stdin one run, answered by "NANOSECONDS STATUS". NAMESPACES: as for setns(2), in hex.
 * It takes no limits, no filter and no cgroup, and leaves the host's descriptors open.
 *
 * enter PID NAMESPACES PROGRAM CAPABILITIES FILTER [CGROUP]: with the duties of box.exec. A pipe says that the program was exec'd; its descriptors are closed;
 * CAPABILITIES, in hex, are all that is left; no_new_privs; FILTER is a file of struct sock_filter; a cgroup is made below CGROUP for it, read and removed.
 *
 * enter PID NAMESPACES PROGRAM CAPABILITIES FILTER CGROUP relayed: also with its processes. Whoever has the rights to enter is another process, which has forked
 * a child beforehand: that one is sent what is needed, forks what enters, and says when all has ended. CGROUP: empty for none.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/sched.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static struct { uint64_t capabilities; struct sock_fprog filter; const char *group; } duties;

static int64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000ll + t.tv_nsec;
}

/* Twice: the PID namespace is that of children alone, and who has entered cannot come back. */
static int once(int init, int kinds, char *program) {
    pid_t outer = fork();
    if (outer == 0) {
        if (setns(init, kinds) || setgid(0) || setuid(0)) _exit(125);
        pid_t inner = vfork();
        if (inner == 0) {
            execve(program, (char *[]){program, NULL}, (char *[]){NULL});
            _exit(127);
        }
        int status = 0;
        waitpid(inner, &status, 0);
        _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 128);
    }
    int status = 0;
    waitpid(outer, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128;
}

static void become(char *program) {
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct sets[2] = {{0}};
    for (int half = 0; half < 2; half++) sets[half].effective = sets[half].permitted = (uint32_t)(duties.capabilities >> 32 * half);
    close_range(3, ~0u, 0);
    setsid();
    for (int capability = 0; capability <= CAP_LAST_CAP; capability++)
        if (!(duties.capabilities >> capability & 1) && prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)) _exit(124);
    if (setgid(0) || setuid(0) || syscall(SYS_capset, &header, sets) || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)) _exit(123);
    if (syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &duties.filter)) _exit(122);
    execve(program, (char *[]){program, NULL}, (char *[]){NULL});
    _exit(127);
}

/* Of what entered, in a child of ours: says by the pipe that it was exec'd, then how it ended. */
static void enter(int init, int kinds, char *program, int said) {
    if (setns(init, kinds) || setgid(0) || setuid(0)) _exit(125);
    prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
    pid_t inner = vfork();
    if (inner == 0) become(program);
    int status = 0;
    if (write(said, &inner, sizeof inner) < 0) _exit(121);
    waitpid(inner, &status, 0);
    if (write(said, &status, sizeof status) < 0) _exit(121);
    _exit(0);
}

static struct { int socket, pidfd; } waiting;

/* The message: two descriptors, or -1 for the second. */
static void pass(int to, int said, int group) {
    union { struct cmsghdr head; char room[CMSG_SPACE(2 * sizeof(int))]; } control = {0};
    int fds[2] = {said, group}, count = group < 0 ? 1 : 2;
    struct iovec part = {&count, sizeof count};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = CMSG_SPACE((size_t)count * sizeof(int))};
    control.head = (struct cmsghdr){CMSG_LEN((size_t)count * sizeof(int)), SOL_SOCKET, SCM_RIGHTS};
    memcpy(CMSG_DATA(&control.head), fds, (size_t)count * sizeof(int));
    if (sendmsg(to, &message, 0) < 0) exit(126);
}

static pid_t entering(int init, int kinds, char *program, int said, int group) {
    struct clone_args how = {.flags = group >= 0 ? CLONE_INTO_CGROUP : 0, .exit_signal = SIGCHLD, .cgroup = (uint64_t)group};
    pid_t outer = (pid_t)syscall(SYS_clone3, &how, sizeof how);
    if (outer == 0) enter(init, kinds, program, said);
    return outer;
}

/* The child that waits for the next request, as that of a keeper. */
static void stand_by(int init, int kinds, char *program) {
    union { struct cmsghdr head; char room[CMSG_SPACE(2 * sizeof(int))]; } control = {0};
    int pair[2], count, fds[2] = {-1, -1};
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair)) exit(126);
    pid_t child = fork();
    if (child == 0) {
        struct iovec part = {&count, sizeof count};
        struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
        close(pair[0]);
        if (recvmsg(pair[1], &message, MSG_CMSG_CLOEXEC) <= 0) _exit(0);
        memcpy(fds, CMSG_DATA(&control.head), (size_t)count * sizeof(int));
        waitpid(entering(init, kinds, program, fds[0], fds[1]), NULL, 0);
        _exit(0);
    }
    close(pair[1]);
    waiting.socket = pair[0];
    waiting.pidfd = (int)syscall(SYS_pidfd_open, child, 0);
}

static void another(int init, int kinds, char *program) {
    close(waiting.socket);
    close(waiting.pidfd);
    while (waitpid(-1, NULL, WNOHANG) > 0) {}
    stand_by(init, kinds, program);
}

static int dutiful(int init, int kinds, char *program, int relayed) {
    static unsigned number;
    char path[4096], text[4096];
    int said[2], group = -1, status = 128 << 8;
    pid_t inner, outer = 0;
    if (duties.group) {
        snprintf(path, sizeof path, "%s/floor-%d-%u", duties.group, getpid(), number++);
        if (mkdir(path, 0755) || (group = open(path, O_DIRECTORY | O_CLOEXEC)) < 0) return 126;
    }
    if (pipe2(said, O_CLOEXEC)) return 126;
    if (relayed) pass(waiting.socket, said[1], group);
    else outer = entering(init, kinds, program, said[1], group);
    close(said[1]);
    if (read(said[0], &inner, sizeof inner) != sizeof inner || read(said[0], &status, sizeof status) != sizeof status) status = 125 << 8;
    struct pollfd end = {waiting.pidfd, POLLIN, 0};
    if (relayed) poll(&end, 1, -1);
    else waitpid(outer, NULL, 0);
    close(said[0]);
    if (duties.group) {
        int used = openat(group, "cpu.stat", O_RDONLY | O_CLOEXEC);
        if (used < 0 || read(used, text, sizeof text) <= 0 || close(used) || rmdir(path) || close(group)) return 126;
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128;
}

static int take_duties(int argc, char **argv) {
    static char filter[32768];
    int file = open(argv[5], O_RDONLY | O_CLOEXEC);
    ssize_t size = read(file, filter, sizeof filter);
    if (file < 0 || size <= 0) return 0;
    close(file);
    duties.capabilities = strtoull(argv[4], NULL, 16);
    duties.filter = (struct sock_fprog){(unsigned short)(size / 8), (struct sock_filter *)filter};
    duties.group = argc > 6 && *argv[6] ? argv[6] : NULL;
    return 1;
}

int main(int argc, char **argv) {
    if (argc < 4 || (argc > 4 && (argc < 6 || !take_duties(argc, argv)))) return 2;
    int init = (int)syscall(SYS_pidfd_open, atoi(argv[1]), 0), kinds = (int)strtol(argv[2], NULL, 16);
    int relayed = argc > 7;
    char line[16];
    if (init < 0) return 125;
    if (relayed) stand_by(init, kinds, argv[3]);
    puts("ready");
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        int64_t before = now();
        int status = argc == 4 ? once(init, kinds, argv[3]) : dutiful(init, kinds, argv[3], relayed);
        printf("%lld %d\n", (long long)(now() - before), status);
        fflush(stdout);
        if (relayed) another(init, kinds, argv[3]);
    }
    return 0;
}
