/* A stand-in for NVIDIA's libnvidia-ml.so.1, for tests and labs without a GPU.
 *
 * It carries that SONAME, so that the real pynvml, once this file is loaded, finds it by dlopen("libnvidia-ml.so.1"). It answers the
 * calls that dockless makes, with the names and struct layouts of nvml.h (_v2, _v3 …), from one environment variable, read whenever the
 * library is initialised for the first time (or again after the last shutdown):
 *
 *     DOCKLESS_SIMULATED_GPUS=4x80G                 four GPUs of 80 GiB
 *     DOCKLESS_SIMULATED_GPUS=8x80G,nvlink=4        NVLink inside groups of four (of 2..4: direct links; of more: through NVSwitch)
 *     DOCKLESS_SIMULATED_GPUS=2x40G,mig=3           the last GPU is divided into three MIG slices
 *     DOCKLESS_SIMULATED_GPUS=2x40G,busy=1          a foreign process (pid 1) computes on GPU 1
 *     DOCKLESS_SIMULATED_GPUS=2x40G,ecc=1           GPU 1 has met two uncorrectable errors of its memory
 *     DOCKLESS_SIMULATED_GPUS=2x40G,lost=1          GPU 1 has fallen off its bus: it is counted, and answers nothing
 *     DOCKLESS_SIMULATED_GPUS=2x40G,host=lab        the same GPUs for all who name this host: see sandbox/gpus/lease.py
 *     DOCKLESS_SIMULATED_GPUS=2x40G,limits          the memory of a GPU can be limited for a control group, as since R615; by root
 *     DOCKLESS_SIMULATED_GPUS=2x40G,old             an old driver: processes, topology, NVLink, MIG and affinity are unknown to it
 *
 * With DOCKLESS_SIMULATED_STATE=FILE, what the GPUs do is read from a file at each question, so that a test can change it at any moment.
 * A line of it is one of
 *
 *     busy 0 35                  GPU 0 computes, 35 percent of the time
 *     process 0 4711 1048576     process 4711 has 1 MiB of GPU 0
 *     process 1 4711 1048576 2   … of its MIG GPU instance 2
 *     slice 4 2 20480            the fifth MIG slice of the last GPU, of two sevenths and 20 GiB: such lines are added when slices are made
 *     gone 4 0                   … and such when they are removed
 *     limit 0 10737418240 PATH   such a limit; these lines are added when it is set, and the last of a control group holds
 *     xid 0 79                   an event: GPU 0 has met the error 79; each such line is told once to who waits, in their order
 *
 * Without the variable it says "driver not loaded". Every model name contains "Simulated". The symbol dockless_simulated_nvml tells
 * callers what they have loaded. Handles point into one static table, which changes only while nobody holds the library initialised.
 *
 * Build: gcc -shared -fPIC -O2 -Wall -Wl,-soname,libnvidia-ml.so.1 -o simulated/libnvidia-ml.so.1 simulated_nvml.c
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>
#include <unistd.h>

enum {
    OK = 0,
    UNINITIALIZED = 1,
    INVALID_ARGUMENT = 2,
    NOT_SUPPORTED = 3,
    NO_PERMISSION = 4,
    NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7,
    DRIVER_NOT_LOADED = 9,
    TIMEOUT = 10,
    FUNCTION_NOT_FOUND = 13,
    GPU_IS_LOST = 15,
    IN_USE = 19,
    MEMORY = 20,
    INSUFFICIENT_RESOURCES = 23,
};
enum { MAX_GPUS = 99, MAX_SLICES = 7, MAX_PARTS = 64, LINKS = 12, LINKS_PER_SWITCH = 2, DOMAIN = 0xd0c1 };

typedef int result;

struct device {
    int index, gi, ci;       /* gi, ci: -1 for a whole GPU */
    int sevenths, gone;      /* of a slice */
    unsigned long long memory;
    char uuid[48];
    struct device *parent;
};

typedef struct {
    char busIdLegacy[16];
    unsigned domain, bus, device, pciDeviceId, pciSubSystemId;
    char busId[32];
} pci_info;

typedef struct { unsigned long long total, free, used; } memory_v1;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } memory_v2;
typedef struct { unsigned pid; unsigned long long used; unsigned gi, ci; } process_info;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int users;
static int count, group, divisions, slices, busy, ecc, lost, old, limits; /* slices: in parts, with those that are gone */
static struct device gpus[MAX_GPUS], parts[MAX_PARTS];
static char state[4096];

const int dockless_simulated_nvml = 1;

static void add_part(int sevenths, unsigned long long memory, int ci) {
    struct device *whole = &gpus[count - 1], *part = &parts[slices];

    *part = (struct device){.index = whole->index, .gi = slices + 1, .ci = ci, .memory = memory, .sevenths = sevenths, .parent = whole};
    snprintf(part->uuid, sizeof part->uuid, "MIG-51d01a7e-d000-5000-8%03x-%012x", whole->index, slices);
    slices++;
}

static int next_line(FILE *file, const char *word, int gpu, long long numbers[4]);
static FILE *open_state(void);

/* What was made and removed since. */
static void later_parts(void) {
    long long n[4];
    FILE *file = open_state();

    while (next_line(file, "slice", -1, n))
        if (n[0] == slices && slices < MAX_PARTS && n[2] > 0) add_part(n[1], (unsigned long long)n[2] << 20, 0);
    if (file) rewind(file);
    while (next_line(file, "gone", -1, n))
        if (n[0] >= 0 && n[0] < slices) parts[n[0]].gone = 1;
    if (file) fclose(file);
}

/* "4x80G,nvlink=2,…" into the table; 0 if it is not well formed. */
static int configure(const char *text) {
    unsigned long long size;
    char unit;
    int used = 0;

    group = divisions = slices = old = limits = 0;
    busy = ecc = lost = -1;
    if (sscanf(text, "%dx%llu%c%n", &count, &size, &unit, &used) != 3 || count < 1 || count > MAX_GPUS || !size || size > 999999)
        return 0;
    if (unit == 'M') size <<= 20;
    else if (unit == 'G') size <<= 30;
    else if (unit == 'T') size <<= 40;
    else return 0;
    for (text += used; *text; text += used) {
        used = 0;
        if (sscanf(text, ",nvlink=%d%n", &group, &used) == 1 && used) continue;
        if (sscanf(text, ",mig=%d%n", &divisions, &used) == 1 && used) continue;
        if (sscanf(text, ",busy=%d%n", &busy, &used) == 1 && used) continue;
        if (sscanf(text, ",ecc=%d%n", &ecc, &used) == 1 && used) continue;
        if (sscanf(text, ",lost=%d%n", &lost, &used) == 1 && used) continue;
        if (sscanf(text, ",host=%*[a-z0-9]%n", &used) == 0 && used) continue;
        if (!strncmp(text, ",limits", 7)) limits = 1, used = 7;
        else if (!strncmp(text, ",old", 4)) old = 1, used = 4;
        else return 0;
    }
    if (group < 0 || divisions < 0 || divisions > MAX_SLICES) return 0;
    for (int i = 0; i < count; i++) {
        gpus[i] = (struct device){.index = i, .gi = -1, .ci = -1, .memory = size};
        snprintf(gpus[i].uuid, sizeof gpus[i].uuid, "GPU-51d01a7e-d000-4000-8000-%012x", i);
    }
    while (slices < divisions) add_part(MAX_SLICES / divisions, size / divisions, 0);
    if (divisions) later_parts();
    return 1;
}

static int ready(void) {
    pthread_mutex_lock(&lock);
    int yes = users > 0;
    pthread_mutex_unlock(&lock);
    return yes;
}

static int good(const struct device *d) {
    return (d >= gpus && d < gpus + count) || (d >= parts && d < parts + slices && !d->gone);
}

#define CHECK(condition, otherwise)       \
    do {                                  \
        if (!ready()) return UNINITIALIZED; \
        if (!(condition)) return otherwise; \
    } while (0)
#define MODERN() \
    do {         \
        if (old) return FUNCTION_NOT_FOUND; \
    } while (0)

static result put(char *buffer, unsigned length, const char *text) {
    if (!buffer) return INVALID_ARGUMENT;
    if (strlen(text) >= length) return INSUFFICIENT_SIZE;
    strcpy(buffer, text);
    return OK;
}

static void address(pci_info *p, unsigned bus) {
    memset(p, 0, sizeof *p);
    p->domain = DOMAIN;
    p->bus = bus;
    p->pciDeviceId = 0x000010de; /* a vendor and no device: nothing to be mistaken for */
    snprintf(p->busIdLegacy, sizeof p->busIdLegacy, "%04X:%02X:00.0", DOMAIN, bus);
    snprintf(p->busId, sizeof p->busId, "%08X:%02X:00.0", DOMAIN, bus);
}

/* ---- the library ---- */

result nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    pthread_mutex_lock(&lock);
    result r = OK;
    if (users == 0) {
        const char *text = getenv("DOCKLESS_SIMULATED_GPUS"), *file = getenv("DOCKLESS_SIMULATED_STATE");
        snprintf(state, sizeof state, "%s", file ? file : "");
        if (!text || !*text) r = DRIVER_NOT_LOADED;
        else if (!configure(text)) r = INVALID_ARGUMENT;
    }
    if (r == OK) users++;
    pthread_mutex_unlock(&lock);
    return r;
}
result nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
result nvmlInit(void) { return nvmlInitWithFlags(0); }

result nvmlShutdown(void) {
    pthread_mutex_lock(&lock);
    result r = users > 0 ? OK : UNINITIALIZED;
    if (users > 0) users--;
    pthread_mutex_unlock(&lock);
    return r;
}

const char *nvmlErrorString(result r) {
    switch (r) {
    case OK: return "Success (simulated)";
    case UNINITIALIZED: return "Uninitialized";
    case INVALID_ARGUMENT: return "Invalid Argument";
    case NOT_SUPPORTED: return "Not Supported";
    case NOT_FOUND: return "Not Found";
    case INSUFFICIENT_SIZE: return "Insufficient Size";
    case DRIVER_NOT_LOADED: return "Driver Not Loaded";
    case FUNCTION_NOT_FOUND: return "Function Not Found";
    case GPU_IS_LOST: return "GPU is lost";
    default: return "Unknown Error";
    }
}

result nvmlSystemGetDriverVersion(char *buffer, unsigned length) {
    CHECK(1, OK);
    return put(buffer, length, "0.0-simulated");
}
result nvmlSystemGetNVMLVersion(char *buffer, unsigned length) { return put(buffer, length, "0.0-simulated"); }
result nvmlSystemGetCudaDriverVersion(int *version) {
    CHECK(version, INVALID_ARGUMENT);
    *version = 0;
    return OK;
}
result nvmlSystemGetCudaDriverVersion_v2(int *version) { return nvmlSystemGetCudaDriverVersion(version); }

/* ---- devices ---- */

result nvmlDeviceGetCount_v2(unsigned *n) {
    CHECK(n, INVALID_ARGUMENT);
    *n = count;
    return OK;
}

result nvmlDeviceGetHandleByIndex_v2(unsigned index, struct device **d) {
    CHECK(d && index < (unsigned)count, INVALID_ARGUMENT);
    if ((int)index == lost) return GPU_IS_LOST;
    *d = &gpus[index];
    return OK;
}

result nvmlDeviceGetHandleByUUID(const char *uuid, struct device **d) {
    CHECK(uuid && d, INVALID_ARGUMENT);
    for (int i = 0; i < count; i++)
        if (!strcasecmp(gpus[i].uuid, uuid)) return *d = &gpus[i], i == lost ? GPU_IS_LOST : OK;
    for (int i = 0; i < slices; i++)
        if (good(&parts[i]) && parts[i].ci >= 0 && !strcasecmp(parts[i].uuid, uuid)) return *d = &parts[i], OK;
    return NOT_FOUND;
}

result nvmlDeviceGetIndex(struct device *d, unsigned *index) {
    CHECK(good(d) && index, INVALID_ARGUMENT);
    *index = d->index;
    return OK;
}

result nvmlDeviceGetUUID(struct device *d, char *buffer, unsigned length) {
    CHECK(good(d), INVALID_ARGUMENT);
    return put(buffer, length, d->uuid);
}

result nvmlDeviceGetName(struct device *d, char *buffer, unsigned length) {
    CHECK(good(d), INVALID_ARGUMENT);
    char name[64] = "Simulated GPU";

    if (d->parent) snprintf(name, sizeof name, "Simulated GPU MIG %dg.%llugb", d->sevenths, d->memory >> 30);
    return put(buffer, length, name);
}

/* The minor differs from the index on purpose, as it may on a real host: the last GPU has minor 0. */
result nvmlDeviceGetMinorNumber(struct device *d, unsigned *minor) {
    CHECK(good(d) && minor, INVALID_ARGUMENT);
    if (d->parent) return NOT_SUPPORTED;
    *minor = (d->index + 1) % count;
    return OK;
}

/* The lines of the state that begin with this word and this GPU (any for -1), one after the other: up to three numbers. */
static int next_line(FILE *file, const char *word, int gpu, long long numbers[4]) {
    char line[4400], found[20];

    while (file && fgets(line, sizeof line, file)) {
        numbers[0] = numbers[1] = numbers[2] = numbers[3] = -1;
        if (sscanf(line, "%19s %lld %lld %lld %lld", found, &numbers[0], &numbers[1], &numbers[2], &numbers[3]) < 3) continue;
        if (!strcmp(found, word) && (gpu < 0 || numbers[0] == gpu)) return 1;
    }
    return 0;
}

static FILE *open_state(void) { return *state ? fopen(state, "re") : NULL; }

static void close_state(FILE *file) {
    if (file) fclose(file);
}

static int inside(const struct device *d, const long long numbers[4]) { return !d->parent || numbers[3] < 0 || numbers[3] == d->gi; }

static unsigned long long occupied(const struct device *d) {
    unsigned long long sum = d->index == busy && !d->parent ? 1ull << 30 : 0;
    long long n[4];
    FILE *file = open_state();

    while (next_line(file, "process", d->index, n))
        if (inside(d, n) && n[2] > 0) sum += n[2];
    close_state(file);
    return sum < d->memory ? sum : d->memory;
}

static unsigned load(const struct device *d) {
    unsigned percent = d->index == busy ? 100 : 0;
    long long n[4];
    FILE *file = open_state();

    while (next_line(file, "busy", d->index, n)) percent = n[1];
    close_state(file);
    return percent;
}

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

result nvmlDeviceGetPciInfo_v3(struct device *d, pci_info *p) {
    CHECK(good(d) && p, INVALID_ARGUMENT);
    address(p, 0x10 + d->index);
    return OK;
}

/* ---- what it does ---- */

result nvmlDeviceGetUtilizationRates(struct device *d, unsigned rates[2]) {
    CHECK(good(d) && rates, INVALID_ARGUMENT);
    if (d->parent) return NOT_SUPPORTED;
    rates[0] = rates[1] = load(d);
    return OK;
}

result nvmlDeviceGetTemperature(struct device *d, unsigned sensor, unsigned *degrees) {
    CHECK(good(d) && !sensor && degrees, INVALID_ARGUMENT);
    if (d->parent) return NOT_SUPPORTED;
    *degrees = 30 + load(d) * 2 / 5;
    return OK;
}

result nvmlDeviceGetPowerUsage(struct device *d, unsigned *milliwatts) {
    CHECK(good(d) && milliwatts, INVALID_ARGUMENT);
    if (d->parent) return NOT_SUPPORTED;
    *milliwatts = 50000 + load(d) * 2505;
    return OK;
}

result nvmlDeviceGetTotalEccErrors(struct device *d, unsigned type, unsigned counter, unsigned long long *n) {
    CHECK(good(d) && type < 2 && counter < 2 && n, INVALID_ARGUMENT);
    *n = d->index == ecc && type ? 2 : 0; /* 1: uncorrected */
    return OK;
}

/* ---- where it sits ---- */

static int node_of(int index) { return count > 4 && index >= count / 2; } /* two processors once there are more than four GPUs */

result nvmlDeviceGetNumaNodeId(struct device *d, unsigned *node) {
    (void)d, (void)node;
    return NOT_SUPPORTED; /* only for GPUs whose own memory is a node */
}

result nvmlDeviceGetMemoryAffinity(struct device *d, unsigned words, unsigned long *set, unsigned scope) {
    (void)scope;
    CHECK(good(d) && words && set, INVALID_ARGUMENT);
    MODERN();
    memset(set, 0, words * sizeof *set);
    set[0] = 1ul << node_of(d->index);
    return OK;
}

result nvmlDeviceGetTopologyCommonAncestor(struct device *a, struct device *b, unsigned *level) {
    CHECK(good(a) && good(b) && level, INVALID_ARGUMENT);
    MODERN();
    if (a->index == b->index) *level = 0;                      /* one board */
    else if (a->index / 2 == b->index / 2) *level = 10;        /* one PCIe switch */
    else if (node_of(a->index) == node_of(b->index)) *level = 40; /* one NUMA node */
    else *level = 50;
    return OK;
}

/* Links of GPU i: in groups of up to four each peer gets an equal share of the twelve, in larger groups all lead to switches. */
static int mates(int i) {
    int first = group > 1 ? i / group * group : i;
    int last = group > 1 && first + group < count ? first + group : group > 1 ? count : i + 1;
    return last - first;
}

static int peer(int i, unsigned number) {
    int n = mates(i) - 1, first = i / group * group;
    int which = number / (LINKS / n);
    if (which >= n) return -1;
    return first + which + (first + which >= i);
}

static int linked(const struct device *d, unsigned number) {
    return !d->parent && group > 1 && mates(d->index) > 1 && number < LINKS && (group > 4 || peer(d->index, number) >= 0);
}

result nvmlDeviceGetNvLinkState(struct device *d, unsigned number, unsigned *active) {
    CHECK(good(d) && active, INVALID_ARGUMENT);
    MODERN();
    if (group < 2 || d->parent) return NOT_SUPPORTED;
    if (number >= LINKS) return INVALID_ARGUMENT;
    *active = linked(d, number);
    return OK;
}

result nvmlDeviceGetNvLinkRemoteDeviceType(struct device *d, unsigned number, unsigned *type) {
    CHECK(good(d) && type && linked(d, number), INVALID_ARGUMENT);
    MODERN();
    *type = group > 4 ? 2 : 0; /* switch, GPU */
    return OK;
}

result nvmlDeviceGetNvLinkRemotePciInfo_v2(struct device *d, unsigned number, pci_info *p) {
    CHECK(good(d) && p && linked(d, number), INVALID_ARGUMENT);
    MODERN();
    if (group > 4) address(p, 0x80 + d->index / group * 8 + number / LINKS_PER_SWITCH);
    else address(p, 0x10 + peer(d->index, number));
    return OK;
}

result nvmlDeviceGetP2PStatus(struct device *a, struct device *b, unsigned what, unsigned *status) {
    CHECK(good(a) && good(b) && status, INVALID_ARGUMENT);
    MODERN();
    int joined = group > 1 && a->index / group == b->index / group && !a->parent && !b->parent;
    *status = what != 2 || joined ? 0 : 5; /* 2: NVLink; 5: not supported */
    return OK;
}

/* ---- MIG ---- */

static int divided(const struct device *d) { return divisions && d == &gpus[count - 1]; }

result nvmlDeviceGetMigMode(struct device *d, unsigned *current, unsigned *pending) {
    CHECK(good(d) && current && pending, INVALID_ARGUMENT);
    MODERN();
    *current = *pending = divided(d);
    return OK;
}

result nvmlDeviceGetMaxMigDeviceCount(struct device *d, unsigned *n) {
    CHECK(good(d) && n, INVALID_ARGUMENT);
    MODERN();
    pthread_mutex_lock(&lock);
    if (divided(d)) later_parts(); /* another process may have made some */
    pthread_mutex_unlock(&lock);
    *n = divided(d) ? MAX_SLICES : 0;
    return OK;
}

result nvmlDeviceGetMigDeviceHandleByIndex(struct device *d, unsigned index, struct device **part) {
    CHECK(good(d) && part, INVALID_ARGUMENT);
    MODERN();
    for (int i = 0; divided(d) && i < slices; i++)
        if (good(&parts[i]) && parts[i].ci >= 0 && index-- == 0) return *part = &parts[i], OK;
    return NOT_FOUND;
}

result nvmlDeviceGetGpuInstanceId(struct device *d, unsigned *id) {
    CHECK(good(d) && id && d->parent, INVALID_ARGUMENT);
    *id = d->gi;
    return OK;
}

result nvmlDeviceGetComputeInstanceId(struct device *d, unsigned *id) {
    CHECK(good(d) && id && d->parent, INVALID_ARGUMENT);
    *id = d->ci;
    return OK;
}

result nvmlDeviceGetDeviceHandleFromMigDeviceHandle(struct device *d, struct device **whole) {
    CHECK(good(d) && whole && d->parent, INVALID_ARGUMENT);
    *whole = d->parent;
    return OK;
}

/* Slices made and removed: a GPU instance and its compute instance are one entry of the table, which nobody sees before it has the latter.
 */
static const struct { unsigned number, id, sevenths, eighths; } profiles[] = {{0, 19, 1, 1}, {1, 14, 2, 2}, {2, 9, 3, 4}, {3, 5, 4, 4}, {4, 0, 7, 8}};
enum { PROFILES = sizeof profiles / sizeof *profiles };
typedef struct {
    unsigned version, id, p2p, slices, instances, multiprocessors, copy, decoders, encoders, jpeg, ofa;
    unsigned long long memory;
    char name[96];
} instance_profile;
typedef struct {
    unsigned version, id, slices, instances, multiprocessors, copy, decoders, encoders, jpeg, ofa;
    char name[96];
} compute_profile;

static unsigned room(const struct device *d, int i) {
    unsigned sevenths = 0, most;
    unsigned long long memory = 0, each = d->memory / 8 * profiles[i].eighths;

    for (int k = 0; k < slices; k++)
        if (good(&parts[k])) sevenths += parts[k].sevenths, memory += parts[k].memory;
    if (sevenths >= MAX_SLICES || memory >= d->memory) return 0;
    most = (MAX_SLICES - sevenths) / profiles[i].sevenths;
    return (d->memory - memory) / each < most ? (d->memory - memory) / each : most;
}

static void note(const char *word, int slot, int a, unsigned long long b) {
    FILE *file = *state ? fopen(state, "ae") : NULL;

    if (file) fprintf(file, "%s %d %d %llu\n", word, slot, a, b);
    close_state(file);
}

result nvmlDeviceGetGpuInstanceProfileInfoV(struct device *d, unsigned number, instance_profile *info) {
    CHECK(good(d) && info, INVALID_ARGUMENT);
    MODERN();
    if (!divided(d)) return NOT_SUPPORTED;
    for (int i = 0; i < PROFILES; i++) {
        if (profiles[i].number != number) continue;
        unsigned long long each = d->memory / 8 * profiles[i].eighths;
        *info = (instance_profile){.version = info->version, .id = profiles[i].id, .slices = profiles[i].sevenths, .memory = each >> 20};
        snprintf(info->name, sizeof info->name, "MIG %ug.%llugb", profiles[i].sevenths, each >> 30);
        return OK;
    }
    return NOT_SUPPORTED;
}

result nvmlDeviceGetGpuInstanceRemainingCapacity(struct device *d, unsigned id, unsigned *n) {
    CHECK(good(d) && n, INVALID_ARGUMENT);
    MODERN();
    for (int i = 0; i < PROFILES; i++)
        if (profiles[i].id == id) return *n = room(d, i), OK;
    return INVALID_ARGUMENT;
}

result nvmlDeviceCreateGpuInstance(struct device *d, unsigned id, struct device **made) {
    CHECK(good(d) && made, INVALID_ARGUMENT);
    MODERN();
    if (geteuid()) return NO_PERMISSION;
    for (int i = 0; i < PROFILES; i++) {
        if (profiles[i].id != id) continue;
        if (!room(d, i) || slices == MAX_PARTS) return INSUFFICIENT_RESOURCES;
        add_part(profiles[i].sevenths, d->memory / 8 * profiles[i].eighths, -1);
        *made = &parts[slices - 1];
        note("slice", slices - 1, (*made)->sevenths, (*made)->memory >> 20);
        return OK;
    }
    return INVALID_ARGUMENT;
}

result nvmlGpuInstanceGetComputeInstanceProfileInfoV(struct device *part, unsigned number, unsigned engine, compute_profile *info) {
    CHECK(good(part) && part->parent && !engine && info, INVALID_ARGUMENT);
    for (int i = 0; i < PROFILES; i++)
        if (profiles[i].number == number && (int)profiles[i].sevenths <= part->sevenths) {
            *info = (compute_profile){.version = info->version, .id = number, .slices = profiles[i].sevenths};
            return OK;
        }
    return NOT_SUPPORTED;
}

result nvmlGpuInstanceCreateComputeInstance(struct device *part, unsigned id, struct device **made) {
    CHECK(good(part) && part->parent && made, INVALID_ARGUMENT);
    if (geteuid()) return NO_PERMISSION;
    for (int i = 0; i < PROFILES; i++)
        if (profiles[i].number == id && (int)profiles[i].sevenths == part->sevenths && part->ci < 0) {
            part->ci = 0;
            *made = part;
            return OK;
        }
    return INSUFFICIENT_RESOURCES;
}

result nvmlDeviceGetGpuInstanceById(struct device *d, unsigned id, struct device **part) {
    CHECK(good(d) && part, INVALID_ARGUMENT);
    for (int i = 0; i < slices; i++)
        if (good(&parts[i]) && parts[i].parent == d && parts[i].gi == (int)id) return *part = &parts[i], OK;
    return NOT_FOUND;
}

result nvmlGpuInstanceGetComputeInstanceById(struct device *part, unsigned id, struct device **found) {
    CHECK(good(part) && part->parent && found, INVALID_ARGUMENT);
    if (part->ci < 0 || part->ci != (int)id) return NOT_FOUND;
    *found = part;
    return OK;
}

result nvmlComputeInstanceDestroy(struct device *part) {
    CHECK(good(part) && part->parent && part->ci >= 0, INVALID_ARGUMENT);
    if (geteuid()) return NO_PERMISSION;
    part->ci = -1;
    return OK;
}

result nvmlGpuInstanceDestroy(struct device *part) {
    CHECK(good(part) && part->parent, INVALID_ARGUMENT);
    if (geteuid()) return NO_PERMISSION;
    if (part->ci >= 0) return IN_USE;
    part->gone = 1;
    note("gone", part - parts, 0, 0);
    return OK;
}

/* ---- who uses it ---- */

result nvmlDeviceGetComputeRunningProcesses_v3(struct device *d, unsigned *n, process_info *list) {
    CHECK(good(d) && n, INVALID_ARGUMENT);
    MODERN();
    unsigned room = list ? *n : 0, have = 0;
    if (d->index == busy && !d->parent && have++ < room)
        list[0] = (process_info){.pid = 1, .used = 1ull << 30, .gi = divided(d) ? 1u : ~0u, .ci = divided(d) ? 0u : ~0u};
    long long numbers[4];
    FILE *file = open_state();
    while (next_line(file, "process", d->index, numbers))
        if (inside(d, numbers) && have++ < room)
            list[have - 1] = (process_info){.pid = numbers[1], .used = numbers[2], .gi = numbers[3], .ci = numbers[3] < 0 ? ~0u : 0};
    close_state(file);
    *n = have;
    return have > room ? INSUFFICIENT_SIZE : OK;
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

result nvmlDeviceSetMemoryLimits_v1(struct device *d, const memory_limits *wanted) {
    CHECK(good(d) && wanted && wanted->group, INVALID_ARGUMENT);
    MODERN();
    if (!limits || d->parent) return NOT_SUPPORTED;
    if (geteuid()) return NO_PERMISSION;
    FILE *file = *state ? fopen(state, "ae") : NULL;
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
    FILE *file = open_state();

    found->soft = found->used = 0;
    found->hard = ~0ull;
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "limit %d %llu %4199s", &gpu, &hard, group) == 3 && gpu == d->index && !strcmp(group, found->group))
            found->hard = hard;
    close_state(file);
    return OK;
}

/* ---- what happens to it ---- */

enum { XID = 8, POLL_MS = 20 };

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
    FILE *file = open_state();

    event->device = NULL;
    while (!event->device && next_line(file, "xid", -1, n))
        if (++line > set->told && n[0] >= 0 && n[0] < count && set->wanted[n[0]] & XID)
            *event = (event_data){.device = &gpus[n[0]], .type = XID, .data = n[1], .gi = ~0u, .ci = ~0u};
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
