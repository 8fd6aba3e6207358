/* The host's side of a sandbox's door: the socket that its keeper listens on, and a request to enter. launcher/door.c has the other side. */
#define _GNU_SOURCE
#include "shim.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

enum { MOST_FDS = 14, PROOFS = 2, PATIENCE = 20 /* seconds */ };

static int address(struct sockaddr_un *at, const char *path) {
    memset(at, 0, sizeof *at);
    at->sun_family = AF_UNIX;
    if (strlen(path) >= sizeof at->sun_path) return -ENAMETOOLONG;
    strcpy(at->sun_path, path);
    return 0;
}

int shim_door(const char *path) {
    struct sockaddr_un at;
    int error = address(&at, path);
    if (error) return error;
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return -errno;
    fchmod(fd, 0600); /* before it has a name: what bind(2) makes has this mode, without the umask's bits */
    if (bind(fd, (struct sockaddr *)&at, sizeof at) == 0) return fd;
    error = -errno;
    close(fd);
    return error;
}

static ssize_t transfer(int fd, const void *bytes, size_t length, const int *fds, int count, const struct sockaddr_un *to) {
    union { struct cmsghdr head; char room[CMSG_SPACE(sizeof(int) * (MOST_FDS + PROOFS + 1))]; } control = {0};
    struct iovec part = {(void *)bytes, length};
    struct msghdr message = {
        .msg_name = (void *)to, .msg_namelen = sizeof *to, .msg_iov = &part, .msg_iovlen = 1,
        .msg_control = &control, .msg_controllen = CMSG_SPACE(sizeof(int) * (size_t)count),
    };
    struct cmsghdr *head = CMSG_FIRSTHDR(&message);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(sizeof(int) * (size_t)count);
    memcpy(CMSG_DATA(head), fds, sizeof(int) * (size_t)count);
    return sendmsg(fd, &message, MSG_NOSIGNAL);
}

/* The keeper's answer: a pid and a pidfd, 0, or a negative errno. */
static int answer(int fd, int *pidfd) {
    union { struct cmsghdr head; char room[CMSG_SPACE(sizeof(int))]; } control = {0};
    int32_t value = 0;
    struct iovec part = {&value, sizeof value};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    ssize_t n;
    do n = recvmsg(fd, &message, MSG_CMSG_CLOEXEC);
    while (n < 0 && errno == EINTR);
    if (n < 0) return errno == EAGAIN ? -ETIMEDOUT : -errno;
    if (n != sizeof value) return -ECONNRESET; /* the keeper has gone */
    struct cmsghdr *head = CMSG_FIRSTHDR(&message);
    int found = head && head->cmsg_level == SOL_SOCKET && head->cmsg_type == SCM_RIGHTS && head->cmsg_len == CMSG_LEN(sizeof(int));
    if (found) memcpy(pidfd, CMSG_DATA(head), sizeof *pidfd);
    if (value > 0 && !found) return -EMFILE;
    if (value <= 0 && found) close(*pidfd);
    return value;
}

static int request(const char *path, int keeper, const void *bytes, size_t length, const int *sources, int count, int *pidfd) {
    struct sockaddr_un to;
    struct timeval patience = {PATIENCE, 0};
    int pair[2], fds[MOST_FDS + PROOFS + 1], error = address(&to, path);
    if (error) return error;
    if (count < 0 || count > MOST_FDS) return -EINVAL;
    int sender = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (sender < 0) return -errno;
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0) {
        error = -errno;
        close(sender);
        return error;
    }
    fds[0] = keeper;
    fds[1] = open("/proc/self/ns/user", O_RDONLY | O_CLOEXEC);
    fds[PROOFS] = pair[1];
    if (fds[1] < 0) error = -errno;
    if (count) memcpy(fds + PROOFS + 1, sources, sizeof *sources * (size_t)count);
    setsockopt(sender, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
    setsockopt(pair[0], SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    ssize_t sent = 0;
    if (!error) do sent = transfer(sender, bytes, length, fds, count + PROOFS + 1, &to);
    while (sent < 0 && errno == EINTR);
    if (sent < 0) error = errno == EAGAIN ? -ETIMEDOUT : -errno;
    if (fds[1] >= 0) close(fds[1]);
    close(sender);
    close(pair[1]);
    int pid = error ? error : answer(pair[0], pidfd);
    close(pair[0]);
    return pid;
}

int shim_enter(const char *path, int keeper, int count, const int *sources, const int *slots, int *pidfd) {
    int pid = request(path, keeper, slots, sizeof *slots * (size_t)(count < 0 ? 0 : count), sources, count, pidfd);
    return pid ? pid : -EPROTO;
}

int shim_extend(const char *path, int keeper, uint64_t ns) {
    int pidfd;
    return request(path, keeper, &ns, sizeof ns, 0, 0, &pidfd);
}
