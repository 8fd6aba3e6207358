/* What every part of the launcher needs: messages to the starter, memory without a libc. */
#include "launcher.h"

void *memcpy(void *to, const void *from, unsigned long n) {
    char *t = to;
    const char *f = from;
    while (n--) *t++ = *f++;
    return to;
}

void *memset(void *to, int byte, unsigned long n) {
    char *t = to;
    while (n--) *t++ = (char)byte;
    return to;
}

void die(int code) {
    for (;;) sys(NR_exit_group, code);
}

/* 16 bytes: atomic in a pipe. */
void report(uint16_t kind, uint16_t op, int32_t value, uint64_t x) {
    struct report record = {kind, op, value, x};
    uint64_t sigpipe = 1ull << (SIG_PIPE - 1);
    int64_t zero[2] = {0, 0};
    /* A starter that died does not read. Its SIGPIPE is blocked but pending here, and would be forwarded to the program: take it back. */
    if (sys(NR_write, SLOT_REPORT, &record, sizeof record) == -E_PIPE)
        sys(NR_rt_sigtimedwait, &sigpipe, 0, zero, 8);
}

void pause_for(int64_t us) {
    struct timespec_ left = {0, us * 1000}; /* the system call itself writes what is left of it: made anew each time */
    sys(NR_ppoll, 0, 0, &left, 0, 8);
}

void dumpable(int whether) {
    sys(NR_prctl, 4 /* DUMPABLE */, whether, 0, 0, 0);
}

void never_wait(int fd) {
    sysret flags = sys(NR_fcntl, fd, 3 /* F_GETFL */, 0);
    if (flags >= 0) sys(NR_fcntl, fd, 4 /* F_SETFL */, flags | O_NONBLOCK_);
}

sysret write_all(int fd, const char *bytes, uint64_t length) {
    while (length) {
        sysret n = sys(NR_write, fd, bytes, length);
        if (n == -E_INTR) continue;
        if (n <= 0) return n < 0 ? n : -E_IO;
        bytes += n;
        length -= (uint64_t)n;
    }
    return 0;
}

/* As zlib and gzip have it (ISO 3309). */
uint32_t crc32(const char *bytes, uint64_t length) {
    uint32_t crc = ~0u;
    while (length--) {
        crc ^= (uint8_t)*bytes++;
        for (int bit = 0; bit < 8; bit++) crc = crc >> 1 ^ (crc & 1 ? 0xedb88320u : 0);
    }
    return ~crc;
}
