#include "message.h"

void compose(struct message *m, void *bytes, uint64_t length, const int32_t *fds, int count) {
    m->part = (struct iovec_){bytes, length};
    m->control.length = 16 + (uint64_t)count * 4;
    m->control.level = SOL_SOCKET_;
    m->control.type = SCM_RIGHTS_;
    for (int i = 0; i < count; i++) m->control.fds[i] = fds[i];
    m->head.name = 0;
    m->head.name_length = 0;
    m->head.parts = &m->part;
    m->head.count = 1;
    m->head.control = count ? &m->control : 0;
    m->head.control_length = count ? (m->control.length + 7) & ~7ull : 0;
    m->head.flags = 0;
}

sysret receive(int socket, struct message *m, void *bytes, uint64_t length, int *count, int flags) {
    compose(m, bytes, length, 0, 0);
    m->head.control = &m->control;
    m->head.control_length = sizeof m->control;
    *count = 0;
    sysret n = sys(NR_recvmsg, socket, &m->head, flags | MSG_CMSG_CLOEXEC_);
    if (n >= 0 && m->head.control_length >= 16 && m->control.level == SOL_SOCKET_ && m->control.type == SCM_RIGHTS_)
        *count = (int)((m->control.length - 16) / 4);
    return n;
}

void close_all(const int32_t *fds, int count) {
    for (int i = 0; i < count; i++)
        if (fds[i] >= 0) sys(NR_close, fds[i]);
}
