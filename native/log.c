/* The log of a detached sandbox, one line of output a line, as Kubernetes' runtimes write them:
 *
 *   2026-01-31T12:00:00.123456789Z stdout F text          F: a full line, P: a part that the next record of that stream goes on with
 *
 * Two files at most: when `log` has reached the limit it becomes `log.1`. A job that floods its log loses the oldest lines, never the disk (attack A47).
 */
#include "launcher.h"

static uint64_t written;

static void open_log(void) {
    sysret fd = sys(NR_openat, SLOT_STATE, "log", O_WRONLY_ | O_CREAT_ | O_APPEND_ | O_NOFOLLOW_ | O_CLOEXEC_, 0600);
    if (fd < 0 || fd == SLOT_LOG) return;
    sys(NR_dup3, fd, SLOT_LOG, O_CLOEXEC_);
    sys(NR_close, fd);
}

/* Days since 1970 to a civil date, after Howard Hinnant's algorithm. */
static uint64_t put_time(char *to, uint64_t at, uint64_t ns) {
    uint64_t seconds = ns / 1000000000, day = seconds / 86400, clock = seconds % 86400;
    uint64_t z = day + 719468, era = z / 146097, doe = z % 146097;
    uint64_t yoe = (doe - doe / 1460 + doe / 36524 - doe / 146096) / 365, doy = doe - (365 * yoe + yoe / 4 - yoe / 100);
    uint64_t mp = (5 * doy + 2) / 153, d = doy - (153 * mp + 2) / 5 + 1, m = mp < 10 ? mp + 3 : mp - 9;
    at = put_number(to, at, yoe + era * 400 + (m <= 2), 4);
    at = put_number(to, put_text(to, at, "-"), m, 2);
    at = put_number(to, put_text(to, at, "-"), d, 2);
    at = put_number(to, put_text(to, at, "T"), clock / 3600, 2);
    at = put_number(to, put_text(to, at, ":"), clock / 60 % 60, 2);
    at = put_number(to, put_text(to, at, ":"), clock % 60, 2);
    at = put_number(to, put_text(to, at, "."), ns % 1000000000, 9);
    return put_text(to, at, "Z ");
}

void log_write(const char *stream, const char *bytes, uint64_t length, uint64_t limit) {
    if (!written) open_log();
    if (limit && written > limit) {
        sys(NR_close, SLOT_LOG);
        sys(NR_renameat, SLOT_STATE, "log", SLOT_STATE, "log.1");
        open_log();
        written = 0;
    }
    char head[64];
    uint64_t size = put_time(head, 0, now_ns(0));
    size = put_text(head, size, stream);
    while (length) {
        uint64_t n = 0;
        while (n < length && bytes[n] != '\n') n++;
        int full = n < length;
        uint64_t prefix = put_text(head, size, full ? " F " : " P ");
        struct iovec_ parts[3] = {{head, prefix}, {bytes, n}, {"\n", 1}};
        sys(NR_writev, SLOT_LOG, parts, 3);
        written += prefix + n + 1;
        bytes += n + (uint64_t)full;
        length -= n + (uint64_t)full;
    }
}
