/* A hostile program: it tries to leave something running after its end, in the way that its argument names. It says "on" once that runs. */
#define _GNU_SOURCE
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { BOMB = 60, FLOOD = 300 };

static pid_t beside(void) { /* our sibling: nobody below us */
    return (pid_t)syscall(SYS_clone, CLONE_PARENT | SIGCHLD, 0, 0, 0, 0);
}

static unsigned long moment(void) { /* milliseconds */
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (unsigned long)now.tv_sec * 1000 + (unsigned long)now.tv_nsec / 1000000;
}

static void stay(void) {
    for (;;) pause();
}

static void twice(void) { /* its parent ends at once, in a session of its own */
    if (fork()) return;
    setsid();
    if (fork()) _exit(0);
    setsid();
    stay();
}

static void ignore_all(void) {
    for (int number = 1; number < 65; number++) signal(number, SIG_IGN);
}

static void stopped(void) {
    if (fork()) return;
    raise(SIGSTOP);
    stay();
}

/* Always some sixty, each of which makes another and ends: who is killed has one already. */
static void bomb(void) {
    int *alive = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    signal(SIGCHLD, SIG_IGN);
    if (fork()) return;
    for (;;) {
        if (__atomic_add_fetch(alive, 1, __ATOMIC_RELAXED) <= BOMB && beside() >= 0) continue;
        __atomic_sub_fetch(alive, 1, __ATOMIC_RELAXED);
        setsid();
        usleep(200);
        if (beside() > 0) _exit(0);
    }
}

/* Always some three hundred that run without a pause, in sessions of their own, so that each has its share of the processors; who sees that one of them is
 * gone makes another. */
static void flood(void) {
    volatile unsigned long *seen = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    int own = -1;
    signal(SIGCHLD, SIG_IGN);
    for (int i = 0; i < FLOOD && own < 0; i++)
        if (!fork()) own = i;
    if (own < 0) return;
    setsid();
    close(0), close(1), close(2);
    for (unsigned turn = (unsigned)own;; turn = turn * 5 + 1) {
        unsigned long now = moment(), was = seen[turn % FLOOD];
        seen[own] = now;
        if (now > was + 90 && __sync_bool_compare_and_swap(&seen[turn % FLOOD], was, now)) {
            if (!beside()) own = (int)(turn % FLOOD), setsid();
        } else if (beside() > 0)
            _exit(0);
        else
            setsid();
    }
}

/* What it may do with every limit: raise it, and lower it to anything, its own and those of a process that it has made. And it marks the sandbox's init. */
static void unmark(void) {
    pid_t child = fork();
    if (!child) stay();
    for (int i = 0; i < RLIM_NLIMITS; i++) {
        struct rlimit had, wanted = {RLIM_INFINITY, RLIM_INFINITY};
        getrlimit(i, &had);
        if (had.rlim_max != RLIM_INFINITY && (!setrlimit(i, &wanted) || !prlimit(child, i, &wanted, 0))) printf("raised %d\n", i);
        if (i != RLIMIT_NPROC && i != RLIMIT_NOFILE && i != RLIMIT_CPU && i != RLIMIT_AS && i != RLIMIT_DATA && i != RLIMIT_STACK) {
            wanted.rlim_cur = wanted.rlim_max = had.rlim_max > 1ull << 60 ? had.rlim_max - (1ull << 59) : had.rlim_max / 2;
            setrlimit(i, &wanted);
            prlimit(child, i, &wanted, 0);
            if (i == RLIMIT_LOCKS || i == RLIMIT_RTTIME || i == RLIMIT_RSS) prlimit(1, i, &wanted, 0);
        }
    }
}

int main(int count, char **arguments) {
    const char *how = count > 1 ? arguments[1] : "";
    prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0);
    prctl(PR_SET_PDEATHSIG, 0, 0, 0, 0);
    if (!strcmp(how, "beside")) {
        for (int i = 0; i < 3; i++)
            if (!beside()) {
                twice();
                stay();
            }
    } else if (!strcmp(how, "twice"))
        twice();
    else if (!strcmp(how, "bomb"))
        bomb();
    else if (!strcmp(how, "flood"))
        flood();
    else if (!strcmp(how, "ignoring")) {
        ignore_all();
        if (!beside()) stay();
    } else if (!strcmp(how, "stopped")) {
        stopped();
        if (!beside()) raise(SIGSTOP), stay();
    } else if (!strcmp(how, "unmarked")) {
        unmark();
        if (!beside()) stay();
    } else if (!strcmp(how, "parent")) { /* 0 where that is outside: then itself and its group */
        if (!beside()) {
            setsid();
            stay();
        }
        if (!fork()) {
            setsid();
            stay();
        }
        usleep(100000);
        puts("on");
        fflush(stdout);
        kill(getppid(), SIGKILL);
    } else
        return 2;
    usleep(100000);
    puts("on");
    fflush(stdout);
    stay();
}
