/* What deleted files are held by, one way or the other: "mapped", or "shared", a table of descriptors that sixty processes have in common. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { SIZE = 3 << 20, COPIES = 900, PROCESSES = 60 };
static char zeros[SIZE];

int main(int count, char **words) {
    if (count != 2) return 2;
    int fd = open("/gone", O_RDWR | O_CREAT, 0600);
    if (fd < 0 || write(fd, zeros, SIZE) != SIZE || fsync(fd)) return 3;
    if (strcmp(words[1], "mapped") == 0) {
        if (mmap(0, SIZE, PROT_READ, MAP_SHARED, fd, 0) == MAP_FAILED || close(fd)) return 4;
    } else {
        for (int i = 0; i < COPIES; i++)
            if (dup(fd) < 0) return 5;
        for (int i = 0; i < PROCESSES; i++)
            if (syscall(SYS_clone, CLONE_FILES | SIGCHLD, 0, 0, 0, 0) == 0)
                for (;;) pause();
    }
    unlink("/gone");
    close(open("/done", O_CREAT, 0600));
    for (;;) pause();
}
