/* What the GPUs of the stand-in for NVML do: their memory and load, their processes, limits and events. */
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "simulated_nvml.h"

enum { POLL_MS = 20 };
typedef struct { unsigned long long total, free, used; } memory_v1;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } memory_v2;
typedef struct { unsigned pid; unsigned long long used; unsigned gi, ci; } process_info;

/* The lines of the state that begin with this word and this GPU (any for -1), one after the other: up to three numbers. */
int next_line(FILE *file, const char *word, int gpu, long long numbers[4]) {
    char line[4400], found[20];

    while (file && fgets(line, sizeof line, file)) {
        numbers[0] = numbers[1] = numbers[2] = numbers[3] = -1;
        if (sscanf(line, "%19s %lld %lld %lld %lld", found, &numbers[0], &numbers[1], &numbers[2], &numbers[3]) < 3) continue;
        if (!strcmp(found, word) && (gpu < 0 || numbers[0] == gpu)) return 1;
    }
    return 0;
}

/* What the last line with this word says of this GPU, in its second number or in its third; otherwise where there is none. */
long long said(const char *word, int gpu, int place, long long otherwise) {
    long long n[4];
    FILE *file = open_state("re");

    while (next_line(file, word, gpu, n))
        if (n[place] >= 0) otherwise = n[place];
    close_state(file);
    return otherwise;
}

/* NULL where there is none; the mode is that of fopen(3). */
FILE *open_state(const char *mode) { return *state ? fopen(state, mode) : NULL; }

void close_state(FILE *file) {
    if (file) fclose(file);
}

/* For as long as the state says that this GPU hangs, and not longer than it says. */
void hang(int gpu) {
    long long n[4];

    for (long waited = 0;; waited += POLL_MS) {
        FILE *file = open_state("re");
        int hangs = next_line(file, "hang", gpu, n) && waited < n[1] * 1000;
        close_state(file);
        if (!hangs) return;
        nanosleep(&(struct timespec){.tv_nsec = POLL_MS * 1000000L}, NULL);
    }
}

static int inside(const struct device *d, const long long numbers[4]) { return !d->parent || numbers[3] < 0 || numbers[3] == d->gi; }

static unsigned long long occupied(const struct device *d) {
    unsigned long long sum = d->index == busy && !d->parent ? 1ull << 30 : 0;
    long long n[4];
    FILE *file = open_state("re");

    for (int i = 0; i < 2; i++) {
        while (next_line(file, i ? "process" : "graphics", d->index, n))
            if (inside(d, n) && n[2] > 0) sum += n[2];
        if (file) rewind(file);
    }
    close_state(file);
    return sum < d->memory ? sum : d->memory;
}

static unsigned load(const struct device *d) {
    return said("busy", d->index, 1, d->index == busy ? 100 : 0);
}

/* ---- what it does ---- */

result nvmlDeviceGetMemoryInfo(struct device *d, memory_v1 *m) {
    CHECK(good(d) && m, INVALID_ARGUMENT);
    *m = (memory_v1){d->memory, d->memory - occupied(d), occupied(d)};
    return OK;
}

result nvmlDeviceGetMemoryInfo_v2(struct device *d, memory_v2 *m) {
    CHECK(good(d) && m, INVALID_ARGUMENT);
    MODERN();
    if (m->version != (sizeof *m | 2u << 24)) return 25; /* argument version mismatch */
    *m = (memory_v2){m->version, d->memory, 0, d->memory - occupied(d), occupied(d)};
    return OK;
}

result nvmlDeviceGetUtilizationRates(struct device *d, unsigned rates[2]) {
    CHECK(good(d) && rates, INVALID_ARGUMENT);
    if (d->parent) return NOT_SUPPORTED;
    rates[0] = rates[1] = load(d);
    return OK;
}

result nvmlDeviceGetTemperature(struct device *d, unsigned sensor, unsigned *degrees) {
    CHECK(good(d) && !sensor && degrees, INVALID_ARGUMENT);
    if (d->parent) return NOT_SUPPORTED;
    *degrees = said("temperature", d->index, 1, 30 + load(d) * 2 / 5);
    return OK;
}

result nvmlDeviceGetPowerUsage(struct device *d, unsigned *milliwatts) {
    CHECK(good(d) && milliwatts, INVALID_ARGUMENT);
    if (d->parent) return NOT_SUPPORTED;
    *milliwatts = said("power", d->index, 1, 0) * 1000;
    if (!*milliwatts) *milliwatts = 50000 + load(d) * 2505;
    return OK;
}

result nvmlDeviceGetTotalEccErrors(struct device *d, unsigned type, unsigned counter, unsigned long long *n) {
    CHECK(good(d) && type < 2 && counter < 2 && n, INVALID_ARGUMENT);
    *n = type ? said("ecc", d->index, 1, d->index == ecc ? 2 : 0) : said("ecc", d->index, 2, 0); /* 1: uncorrected */
    return OK;
}

enum { RECOVERY = 230, UNSIGNED_INT = 1 };
typedef struct {
    unsigned id, scope;
    long long timestamp, latency;
    unsigned type;
    result status;
    unsigned long long value;
} field_value;

/* One field is known: what its driver asks to be done with it, if the state has a line that says so. */
result nvmlDeviceGetFieldValues(struct device *d, int n, field_value *fields) {
    CHECK(good(d) && n > 0 && fields, INVALID_ARGUMENT);
    MODERN();
    for (int i = 0; i < n; i++) {
        long long numbers[4];
        FILE *file = open_state("re");
        fields[i].status = NOT_SUPPORTED;
        while (fields[i].id == RECOVERY && next_line(file, "recovery", d->index, numbers))
            fields[i].type = UNSIGNED_INT, fields[i].status = OK, fields[i].value = numbers[1];
        close_state(file);
    }
    return OK;
}

/* ---- who uses it ---- */

static result running(struct device *d, unsigned *n, process_info *list, const char *word, int foreign) {
    CHECK(good(d) && n, INVALID_ARGUMENT);
    MODERN();
    unsigned room = list ? *n : 0, have = 0;
    if (foreign && have++ < room)
        list[0] = (process_info){.pid = 1, .used = 1ull << 30, .gi = divided(d) ? 1u : ~0u, .ci = divided(d) ? 0u : ~0u};
    long long numbers[4];
    FILE *file = open_state("re");
    while (next_line(file, word, d->index, numbers))
        if (inside(d, numbers) && have++ < room)
            list[have - 1] = (process_info){.pid = numbers[1], .used = numbers[2], .gi = numbers[3], .ci = numbers[3] < 0 ? ~0u : 0};
    close_state(file);
    *n = have;
    return have > room ? INSUFFICIENT_SIZE : OK;
}

result nvmlDeviceGetComputeRunningProcesses_v3(struct device *d, unsigned *n, process_info *list) {
    return running(d, n, list, "process", good(d) && d->index == busy && !d->parent);
}

result nvmlDeviceGetGraphicsRunningProcesses_v3(struct device *d, unsigned *n, process_info *list) {
    return running(d, n, list, "graphics", 0);
}

typedef struct { unsigned pid; unsigned long long at; unsigned sm, memory, encoder, decoder; } process_sample;

result nvmlDeviceGetProcessUtilization(struct device *d, process_sample *list, unsigned *n, unsigned long long since) {
    CHECK(good(d) && n, INVALID_ARGUMENT);
    MODERN();
    if (d->parent) return NOT_SUPPORTED;
    unsigned room = list ? *n : 0, have = 0;
    long long numbers[4];
    FILE *file = open_state("re");
    while (next_line(file, "computes", d->index, numbers))
        if (have++ < room) list[have - 1] = (process_sample){.pid = numbers[1], .at = since + have, .sm = numbers[2]};
    close_state(file);
    *n = have;
    return have > room ? INSUFFICIENT_SIZE : have ? OK : NOT_FOUND;
}

/* Whether a display is shown, with or without a monitor. */
result nvmlDeviceGetDisplayActive(struct device *d, unsigned *active) {
    CHECK(good(d) && active, INVALID_ARGUMENT);
    if (d->parent) return NOT_SUPPORTED;
    long long n[4];
    FILE *file = open_state("re");
    *active = 0;
    while (next_line(file, "display", d->index, n)) *active = n[1] == 1;
    close_state(file);
    return OK;
}

result nvmlDeviceGetMPSComputeRunningProcesses_v3(struct device *d, unsigned *n, process_info *list) {
    (void)list;
    CHECK(good(d) && n, INVALID_ARGUMENT);
    MODERN();
    *n = 0;
    return OK;
}

/* ---- how much of its memory a control group may have ---- */

typedef struct { const char *group; unsigned long long soft, hard, used; } memory_limits; /* set: without the last */

/* Of groups a kernel with the controller dmem limits those that have its files; another kernel leaves all to the driver. The groups above
 * one are those directories that have a cgroup.controllers, up to the root, which lists what the kernel has. */
static int can_be_limited(const char *name) {
    char path[4400], text[4096] = "", *slash;
    int there, has_files;

    snprintf(path, sizeof path, "%s/cgroup.controllers", name);
    there = !access(name, F_OK);
    snprintf(path, sizeof path, "%s/dmem.max", name);
    has_files = !access(path, F_OK);
    for (snprintf(path, sizeof path, "%s", name); (slash = strrchr(path, '/')); ) {
        FILE *file;

        strcpy(slash, "/cgroup.controllers");
        if (!(file = fopen(path, "re"))) break;
        text[fread(text, 1, sizeof text - 1, file)] = 0;
        fclose(file);
        *slash = 0;
    }
    return there && (has_files || !strstr(text, "dmem"));
}

result nvmlDeviceSetMemoryLimits_v1(struct device *d, const memory_limits *wanted) {
    CHECK(good(d) && wanted && wanted->group, INVALID_ARGUMENT);
    MODERN();
    if (!limits || d->parent) return NOT_SUPPORTED;
    if (geteuid()) return NO_PERMISSION;
    if (!can_be_limited(wanted->group)) return NOT_FOUND;
    FILE *file = open_state("ae");
    if (file) fprintf(file, "limit %d %llu %s\n", d->index, wanted->hard, wanted->group);
    close_state(file);
    return file ? OK : MEMORY;
}

result nvmlDeviceGetMemoryLimits_v1(struct device *d, memory_limits *found) {
    CHECK(good(d) && found && found->group, INVALID_ARGUMENT);
    MODERN();
    if (!limits || d->parent) return NOT_SUPPORTED;
    char line[4400], group[4200];
    unsigned long long hard;
    int gpu;
    FILE *file = open_state("re");

    found->soft = found->used = 0;
    found->hard = ~0ull;
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "limit %d %llu %4199s", &gpu, &hard, group) == 3 && gpu == d->index && !strcmp(group, found->group))
            found->hard = hard;
    close_state(file);
    return OK;
}

/* ---- what happens to it ---- */

enum { XID = 8 };

struct event_set {
    unsigned long long wanted[MAX_GPUS];
    long told; /* lines of the state */
};

typedef struct { struct device *device; unsigned long long type, data; unsigned gi, ci; } event_data;

result nvmlDeviceGetSupportedEventTypes(struct device *d, unsigned long long *types) {
    CHECK(good(d) && types, INVALID_ARGUMENT);
    *types = d->parent ? 0 : XID;
    return OK;
}

result nvmlEventSetCreate(struct event_set **set) {
    CHECK(set, INVALID_ARGUMENT);
    *set = calloc(1, sizeof **set);
    return *set ? OK : MEMORY;
}

result nvmlDeviceRegisterEvents(struct device *d, unsigned long long types, struct event_set *set) {
    CHECK(good(d) && set, INVALID_ARGUMENT);
    if (d->parent || types & ~(unsigned long long)XID) return NOT_SUPPORTED;
    set->wanted[d->index] |= types;
    return OK;
}

/* The first line that was not told yet; a file that became shorter is a new one. */
static int happened(struct event_set *set, event_data *event) {
    long long n[4];
    long line = 0;
    FILE *file = open_state("re");

    event->device = NULL;
    while (!event->device && next_line(file, "xid", -1, n))
        if (++line > set->told && n[0] >= 0 && n[0] < count && set->wanted[n[0]] & XID)
            *event = (event_data){.device = &gpus[n[0]], .type = XID, .data = n[1], .gi = n[2], .ci = n[2] < 0 ? ~0u : 0};
    close_state(file);
    set->told = line;
    return event->device != NULL;
}

result nvmlEventSetWait_v2(struct event_set *set, event_data *event, unsigned milliseconds) {
    CHECK(set && event, INVALID_ARGUMENT);
    MODERN();
    for (unsigned waited = 0;; waited += POLL_MS) {
        if (happened(set, event)) return OK;
        if (waited >= milliseconds) return TIMEOUT;
        nanosleep(&(struct timespec){.tv_nsec = POLL_MS * 1000000L}, NULL);
        if (!ready()) return UNINITIALIZED;
    }
}

result nvmlEventSetFree(struct event_set *set) {
    free(set);
    return OK;
}
