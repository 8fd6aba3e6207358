/* The least that writing a layer costs: its directories made, its files created and filled, nothing else.
 *
 *   creations TREE < list     list: "d PATH" or "f SIZE PATH" per line, parents first; answers nanoseconds and how many files
 *
 * No owners, no modes, no times, no links: a lower bound for any tool that unpacks by writing, on one thread.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static char block[1 << 18];

static void fail(const char *what) {
    perror(what);
    exit(1);
}

int main(int argc, char **argv) {
    static char line[8192];
    struct timespec from, to;
    long files = 0;
    if (argc != 2 || chdir(argv[1])) fail("chdir");
    memset(block, 'x', sizeof block);
    umask(022);
    clock_gettime(CLOCK_MONOTONIC, &from);
    while (fgets(line, sizeof line, stdin)) {
        line[strcspn(line, "\n")] = 0;
        if (line[0] == 'd') {
            if (mkdir(line + 2, 0755) && errno != EEXIST) fail(line + 2);
            continue;
        }
        char *path;
        long long size = strtoll(line + 2, &path, 10);
        int fd = open(path + 1, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
        if (fd < 0) fail(path + 1);
        while (size > 0) {
            ssize_t put = write(fd, block, (size_t)size < sizeof block ? (size_t)size : sizeof block);
            if (put < 0) fail("write");
            size -= put;
        }
        close(fd);
        files++;
    }
    clock_gettime(CLOCK_MONOTONIC, &to);
    printf("%lld %ld\n", (to.tv_sec - from.tv_sec) * 1000000000LL + to.tv_nsec - from.tv_nsec, files);
    return 0;
}
