#include "helpers.h"

char config[16384] = "HUNT-CONFIGURATION\n";

static char line[8192];

void *memset(void *to, int byte, unsigned long size) {
    for (char *at = to; size--;) *at++ = (char)byte;
    return to;
}

void *memcpy(void *to, const void *from, unsigned long size) {
    char *at = to;
    for (const char *source = from; size--;) *at++ = *source++;
    return to;
}

int equal(const char *a, const char *b) {
    while (*a && *a == *b) a++, b++;
    return *a == *b;
}

int starts(const char *text, const char *with) {
    while (*with && *text == *with) text++, with++;
    return !*with;
}

char *text(char *at, const char *from) {
    while (*from) *at++ = *from++;
    *at = 0;
    return at;
}

char *number(char *at, unsigned long value) {
    char digits[24];
    int count = 0;
    do digits[count++] = (char)('0' + value % 10); while (value /= 10);
    while (count) *at++ = digits[--count];
    *at = 0;
    return at;
}

unsigned long value_of(const char *digits) {
    unsigned long value = 0;
    while (*digits >= '0' && *digits <= '9') value = value * 10 + (unsigned long)(*digits++ - '0');
    return value;
}

int setting(char key, int nth, char *into) {
    for (const char *at = config; *at;) {
        const char *end = at;
        while (*end && *end != '\n') end++;
        if (at[0] == key && at[1] == ' ' && end - at < 512 && nth-- == 0) {
            memcpy(into, at + 2, (unsigned long)(end - at - 2));
            into[end - at - 2] = 0;
            return 1;
        }
        at = *end ? end + 1 : end;
    }
    return 0;
}

int flag(const char *name) {
    char found[512];
    for (int n = 0; setting('f', n, found); n++)
        if (equal(found, name)) return 1;
    return 0;
}

static char *quoted(char *at, const char *from) {
    static const char hex[] = "0123456789abcdef";
    *at++ = '"';
    for (int n = 0; *from && n < 1000; n++, from++) {
        unsigned char c = (unsigned char)*from;
        if (c < 32 || c > 126 || c == '"' || c == '\\') {
            at = text(at, "\\u00");
            *at++ = hex[c >> 4];
            *at++ = hex[c & 15];
        } else *at++ = (char)c;
    }
    *at++ = '"';
    *at = 0;
    return at;
}

void say(const char *kind, const char *what, const char *data) {
    char *at = text(line, "{\"t\":");
    at = quoted(at, kind);
    at = text(at, ",\"what\":");
    at = quoted(at, what);
    at = text(at, ",\"data\":");
    at = quoted(at, data);
    at = text(at, "}\n");
    for (char *from = line; from < at;) {
        sysret n = sys(SYS_write, 1, from, at - from);
        if (n <= 0) return;
        from += n;
    }
}

long mode_of(int at, const char *path, int follow) {
    struct { uint32_t mask, blksize; uint64_t attributes; uint32_t nlink, uid, gid; uint16_t mode, spare; uint64_t rest[28]; } st;
    sysret error = sys(SYS_statx, at, path, (follow ? 0 : AT_SYMLINK_NOFOLLOW_) | (*path ? 0 : AT_EMPTY_PATH_), 0x7ff, &st);
    return error < 0 ? error : st.mode;
}

static int hex_or_dash(char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || c == '-'; }

int scan(int fd, const char *via) {
    static char piece[65536 + 128];
    static const char own[] = "HUNT-", secret[] = "HUNT-CANARY-";
    unsigned long kept = 0;
    int ours = 0;
    for (int rounds = 0; rounds < 64; rounds++) {
        sysret n = sys(SYS_read, fd, piece + kept, 65536);
        if (n <= 0) break;
        unsigned long size = kept + (unsigned long)n;
        memset(piece + size, 0, 1);
        for (unsigned long i = 0; i + 8 < size; i++) {
            if (piece[i] != 'H' || !starts(piece + i, own)) continue;
            ours = 1;
            if (!starts(piece + i, secret)) continue;
            char token[64] = {0};
            unsigned long length = sizeof secret - 1;
            while (length < 48 && hex_or_dash(piece[i + length])) length++;
            if (length < 28) continue;
            memcpy(token, piece + i, length);
            say("token", via, token);
        }
        kept = size < 96 ? size : 96;
        for (unsigned long i = 0; i < kept; i++) piece[i] = piece[size - kept + i];
    }
    return ours;
}

void deface(int at, const char *path, const char *via) {
    sysret fd = sys(SYS_openat, at, path, O_WRONLY_ | O_APPEND_ | O_NONBLOCK_, 0);
    if (fd < 0) return;
    if (sys(SYS_write, fd, "HUNT-WROTE\n", 11) > 0) say("wrote", via, path);
    sys(SYS_fchmod, fd, 0777);
    sys(SYS_close, fd);
}

void read_and_deface(int at, const char *path, const char *via) {
    sysret fd = sys(SYS_openat, at, path, O_NONBLOCK_, 0);
    if (fd < 0) return;
    char where[1024];
    text(text(text(where, via), " "), path);
    int ours = (mode_of((int)fd, "", 1) & S_FMT) == S_REG && scan((int)fd, where);
    sys(SYS_close, fd);
    if (ours) deface(at, path, where); /* nothing that is not the hunt's own is ever written */
}

void enter(int directory, const char *via) {
    char name[512], path[1024], base[512] = "";
    setting('b', 0, base);
    if (mode_of(directory, ".hunt", 0) >= 0) {
        deface(directory, ".hunt", via);
        sysret fd = sys(SYS_openat, directory, "hunt-was-here", O_WRONLY_ | O_CREAT_ | O_EXCL_ | O_NOFOLLOW_, 0644);
        if (fd >= 0) say("made", via, "hunt-was-here"), sys(SYS_close, fd);
    }
    for (int n = 0; setting('n', n, name); n++) {
        for (int ups = 0; ups <= 12; ups++) {
            char *at = path;
            for (int i = 0; i < ups; i++) at = text(at, "../");
            if (name[0] == '/') {
                text(at, name + 1);
                read_and_deface(directory, path, via);
                continue;
            }
            text(at, name);
            read_and_deface(directory, path, via);
            at = text(at, base[0] == '/' ? base + 1 : base);
            text(text(at, "/"), name);
            read_and_deface(directory, path, via);
        }
    }
}

void each_entry(const char *directory, void (*visit)(const char *, const char *, int), int depth) {
    char buffer[4096];
    sysret fd = sys(SYS_openat, HERE, directory, O_DIRECTORY_ | O_CLOEXEC_, 0), n;
    if (fd < 0) return;
    while ((n = sys(SYS_getdents64, fd, buffer, sizeof buffer)) > 0)
        for (sysret at = 0; at < n; at += *(uint16_t *)(buffer + at + 16)) {
            const char *name = buffer + at + 19;
            if (!equal(name, ".") && !equal(name, "..")) visit(directory, name, depth);
        }
    sys(SYS_close, fd);
}

int try(int (*deed)(void), const char *what) {
    sysret pid = sys(SYS_clone, SIG_CHLD, 0, 0, 0, 0);
    if (pid == 0) sys(SYS_exit_group, deed() ? 1 : 0);
    int status = -1;
    if (pid < 0) return 0;
    while (sys(SYS_wait4, pid, &status, 0, 0) == -E_INTR) {}
    if (status == 0) say("call", what, "");
    return status == 0;
}

void nap(long milliseconds) {
    struct timespec_ time = {milliseconds / 1000, milliseconds % 1000 * 1000000};
    sys(SYS_nanosleep, &time, 0);
}
