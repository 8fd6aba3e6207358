/* What listens in a sandbox while packets are measured: whoever connects to the first port is read from, to the second written to, and from the
 * third gets back what he sends.
 *
 *     netpeer PORT PORT PORT
 */
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

static char piece[1 << 18];

static void serve(int how, int fd) {
    int one = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    for (ssize_t got;;) {
        if (how == 1) {
            if (write(fd, piece, sizeof piece) <= 0) return;
            continue;
        }
        if ((got = read(fd, piece, sizeof piece)) <= 0) return;
        if (how == 2 && write(fd, piece, (size_t)got) != got) return;
    }
}

int main(int argc, char **argv) {
    struct pollfd listening[3];
    int one = 1;
    signal(SIGCHLD, SIG_IGN);
    for (int i = 0; i < 3; i++) {
        struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons((unsigned short)(i + 1 < argc ? atoi(argv[i + 1]) : 5001 + i))};
        listening[i] = (struct pollfd){.fd = socket(AF_INET, SOCK_STREAM, 0), .events = POLLIN};
        setsockopt(listening[i].fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
        if (bind(listening[i].fd, (void *)&at, sizeof at) || listen(listening[i].fd, 16)) {
            perror("netpeer");
            return 1;
        }
    }
    puts("ready");
    fflush(stdout);
    for (;;) {
        if (poll(listening, 3, -1) < 0) continue;
        for (int i = 0; i < 3; i++) {
            if (!(listening[i].revents & POLLIN)) continue;
            int fd = accept(listening[i].fd, NULL, NULL);
            if (fork() == 0) {
                signal(SIGPIPE, SIG_DFL);
                serve(i, fd);
                _exit(0);
            }
            close(fd);
        }
    }
}
