/* The log of a detached sandbox, one line of output a line, as Kubernetes' runtimes write them:
 *
 *   2026-01-31T12:00:00.123456789Z stdout F text          F: a full line, P: a part that the next record of that stream goes on with
 *
 *   2026-01-31T12:00:00.123456789Z log D 67108912         so many bytes of this run's output came before: at the head of a file, after a
 *                                                    full disk, and where a run begins in a file that is there
 *
 * Two files at most: when `log` has reached the limit it becomes `log.1`. A program that floods its log loses the oldest lines, never the disk (attack A47).
 */
#include "launcher.h"

static uint64_t written; /* bytes of this file */
static uint64_t total;   /* bytes of output */
static int in_line[2];   /* stdout, stderr: the last record ended in the middle of a line */
static int torn;         /* 1: records are missing, 2: and the last one is not whole */
static int opened;

static void open_log(void) {
    sysret fd = sys(NR_openat, SLOT_STATE, "log", O_WRONLY_ | O_CREAT_ | O_APPEND_ | O_NOFOLLOW_ | O_NONBLOCK_ | O_CLOEXEC_, 0600);
    struct facts log = {0};
    opened = fd >= 0;
    if (fd < 0) return;
    facts_of((int)fd, &log);
    written = log.size;
    if (written && !total) torn = 1; /* of an earlier run: the mark, of 0 bytes, begins another count */
    if (fd == SLOT_LOG) return;
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

/* So many bytes of output came before what follows; readers see by it what was dropped. Again until the disk takes it whole. */
static void mark(void) {
    char line[128];
    if (!opened) open_log();
    if (!opened) return;
    uint64_t at = put_time(line, put_text(line, 0, torn > 1 ? "\n" : ""), now_ns(0));
    at = put_text(line, put_number(line, put_text(line, at, "log D "), total, 1), "\n");
    sysret n = sys(NR_write, SLOT_LOG, line, at);
    if (n > 0) written += (uint64_t)n;
    torn = n == (sysret)at ? 0 : n > 0 ? 2 : torn;
}

/* At the end of a line of both streams, or an eighth later where there is none. */
static void rotate(uint64_t limit) {
    if (written <= limit || ((in_line[0] || in_line[1]) && written <= limit + limit / 8)) return;
    sys(NR_close, SLOT_LOG);
    sys(NR_renameat, SLOT_STATE, "log", SLOT_STATE, "log.1");
    open_log();
    torn = 1;
    mark();
}

/* limit: of each file; 0 where nothing is to be kept. */
void log_write(const char *stream, const char *bytes, uint64_t length, uint64_t limit) {
    if (!limit) return;
    if (!opened) open_log();
    if (!opened) torn = 1;
    char head[64];
    int which = stream[3] == 'e'; /* "stderr", not "stdout" */
    while (length) {
        uint64_t n = 0;
        rotate(limit);
        if (torn) mark(); /* the disk was full */
        while (n < length && bytes[n] != '\n') n++;
        int full = n < length;
        uint64_t prefix = put_text(head, put_text(head, put_time(head, 0, now_ns(0)), stream), full ? " F " : " P ");
        struct iovec_ parts[3] = {{head, prefix}, {bytes, n}, {"\n", 1}};
        sysret done = torn ? 0 : sys(NR_writev, SLOT_LOG, parts, 3);
        if (done > 0) written += (uint64_t)done;
        if (!torn && done != (sysret)(prefix + n + 1)) torn = done > 0 ? 2 : 1;
        in_line[which] = !full;
        total += n + (uint64_t)full;
        bytes += n + (uint64_t)full;
        length -= n + (uint64_t)full;
    }
}

/* There will be no more output to say it before. */
void log_end(void) {
    if (torn) mark();
}
