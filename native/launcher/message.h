#ifndef DOCKLESS_MESSAGE_H
#define DOCKLESS_MESSAGE_H

#include "launcher.h"

/* A datagram with descriptors, unix(7). */
enum { MOST_FDS = 17, SOL_SOCKET_ = 1, SCM_RIGHTS_ = 1, MSG_DONTWAIT_ = 0x40, MSG_CTRUNC_ = 8, MSG_CMSG_CLOEXEC_ = 0x40000000, MSG_NOSIGNAL_ = 0x4000 };

struct message {
    struct { void *name; uint64_t name_length; struct iovec_ *parts; uint64_t count; void *control; uint64_t control_length; uint64_t flags; } head;
    struct iovec_ part;
    struct { uint64_t length; int32_t level, type; int32_t fds[MOST_FDS]; } control;
};

void compose(struct message *m, void *bytes, uint64_t length, const int32_t *fds, int count);

/* The length of a datagram, or a negative errno; *count becomes the number of fds in m->control.fds. */
sysret receive(int socket, struct message *m, void *bytes, uint64_t length, int *count, int flags);

void close_all(const int32_t *fds, int count);

#endif
