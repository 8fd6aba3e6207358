/* A stand-in for NVIDIA's libnvidia-ml.so.1, for tests and labs without a GPU.
 *
 * It carries that SONAME, so that the real pynvml, once this file is loaded, finds it by dlopen("libnvidia-ml.so.1"). It answers the
 * calls that dockless makes, with the names and struct layouts of nvml.h (_v2, _v3 …), from one environment variable, read whenever the
 * library is initialised for the first time (or again after the last shutdown):
 *
 *     DOCKLESS_SIMULATED_GPUS=4x80G                 four GPUs of 80 GiB
 *     DOCKLESS_SIMULATED_GPUS=2x80G:H100+2x40G      two "Simulated H100" and two of 40 GiB without a model; the options below come after all kinds
 *     DOCKLESS_SIMULATED_GPUS=2x40G,cuda=12.4       a driver for CUDA 12.4; without it the version is not known
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
 * A line of it is one of these; where there can be one for a GPU, the last one holds:
 *
 *     busy 0 35                  GPU 0 computes, 35 percent of the time
 *     process 0 4711 1048576     process 4711 has 1 MiB of GPU 0
 *     process 1 4711 1048576 2   … of its MIG GPU instance 2
 *     computes 0 4711 20         … and computes there, 20 percent of the time
 *     graphics 0 4711 1048576    the same for a process that has a context for graphics, and none for computing (it may have a line of both)
 *     display 0 1                GPU 0 shows a display
 *     ecc 0 2 7                  GPU 0 has met two uncorrectable errors of its memory, and seven corrected ones, which may be left out
 *     temperature 0 85           GPU 0 has 85 degrees; without such a line it follows the load
 *     power 0 300                GPU 0 draws 300 W; without such a line it follows the load
 *     lost 0 1                   GPU 0 has fallen off its bus: every question about it fails; 0: it is there again
 *     recovery 0 1               what its driver asks to be done with GPU 0, as nvmlDeviceGpuRecoveryAction_t counts: 0 nothing, 1 a reset
 *     slice 4 2 20480            the fifth MIG slice of the last GPU, of two sevenths and 20 GiB: such lines are added when slices are made
 *     gone 4 0                   … and such when they are removed
 *     limit 0 10737418240 PATH   such a limit; these lines are added when it is set, and the last of a control group holds
 *     hang 0 30                  each question about GPU 0 takes 30 s, or until there is no such line
 *     xid 0 79                   an event: GPU 0 has met the error 79; each such line is told once to who waits, in their order
 *     xid 3 31 2                 … in its MIG GPU instance 2
 *
 * Without the variable it says "driver not loaded". Every model name contains "Simulated". The symbol dockless_simulated_nvml tells
 * callers what they have loaded. Handles point into one static table, which changes only while nobody holds the library initialised.
 *
 * This file has the library, its GPUs and where they sit; simulated_slices.c has MIG, simulated_use.c what the GPUs do.
 *
 * Build: gcc -shared -fPIC -O2 -Wall -Wl,-soname,libnvidia-ml.so.1 -o simulated/libnvidia-ml.so.1 simulated_*.c
 */
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "simulated_nvml.h"

typedef struct {
    char busIdLegacy[16];
    unsigned domain, bus, device, pciDeviceId, pciSubSystemId;
    char busId[32];
} pci_info;

pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
int count, divisions, slices, busy, ecc, old, limits;
struct device gpus[MAX_GPUS], parts[MAX_PARTS];
char state[4096];
_Thread_local int gone_lost;
static int users, group, lost, cuda;

const int dockless_simulated_nvml = 1;

/* "4x80G:H100" into the table: how many characters that are, 0 if it is not well formed. */
static int add_kind(const char *text) {
    unsigned long long size;
    char unit, model[24] = "";
    int more, used = 0, named = 0;

    if (*text < '1' || *text > '9') return 0; /* scanf takes signs and spaces */
    if (sscanf(text, "%dx%llu%c%n", &more, &size, &unit, &used) != 3 || more < 1 || more > MAX_GPUS - count || !size || size > 999999)
        return 0;
    if (unit == 'M') size <<= 20;
    else if (unit == 'G') size <<= 30;
    else if (unit == 'T') size <<= 40;
    else return 0;
    if (text[used] == ':' && (sscanf(text + used, ":%20[A-Za-z0-9-]%n", model, &named) != 1 || !named)) return 0;
    for (; more; more--, count++) {
        gpus[count] = (struct device){.index = count, .gi = -1, .ci = -1, .memory = size};
        snprintf(gpus[count].uuid, sizeof gpus[count].uuid, "GPU-51d01a7e-d000-4000-8000-%012x", count);
        strcpy(gpus[count].model, model);
    }
    return used + named;
}

/* "4x80G+2x40G,nvlink=2,…" into the table; 0 if it is not well formed. */
static int configure(const char *text) {
    int used, major, minor;

    count = group = divisions = slices = old = limits = cuda = 0;
    busy = ecc = lost = -1;
    do {
        if (!(used = add_kind(text))) return 0;
        text += used;
    } while (*text++ == '+');
    for (text--; *text; text += used) {
        used = 0;
        if (sscanf(text, ",cuda=%2d.%1d%n", &major, &minor, &used) == 2 && used) {
            cuda = major * 1000 + minor * 10;
            continue;
        }
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
    while (slices < divisions) add_part(MAX_SLICES / divisions, gpus[count - 1].memory / divisions, 0);
    if (divisions) later_parts();
    return 1;
}

int ready(void) {
    pthread_mutex_lock(&lock);
    int yes = users > 0;
    pthread_mutex_unlock(&lock);
    return yes;
}

static int is_lost(int gpu) { return said("lost", gpu, 1, gpu == lost) != 0; }

/* Of a device that hangs the answer comes late. */
int good(const struct device *d) {
    int known = (d >= gpus && d < gpus + count) || (d >= parts && d < parts + slices && !d->gone);

    if (known) hang(d->index);
    gone_lost = known && is_lost(d->index);
    return known && !gone_lost;
}

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
    *version = cuda;
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
    hang(index);
    if (is_lost(index)) return GPU_IS_LOST;
    *d = &gpus[index];
    return OK;
}

result nvmlDeviceGetHandleByUUID(const char *uuid, struct device **d) {
    CHECK(uuid && d, INVALID_ARGUMENT);
    for (int i = 0; i < count; i++)
        if (!strcasecmp(gpus[i].uuid, uuid)) return hang(i), *d = &gpus[i], is_lost(i) ? GPU_IS_LOST : OK;
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
    const char *model = (d->parent ? d->parent : d)->model;
    char name[96];

    snprintf(name, sizeof name, "Simulated %s", *model ? model : "GPU");
    if (d->parent) snprintf(name + strlen(name), sizeof name - strlen(name), " MIG %dg.%llugb", d->sevenths, d->memory >> 30);
    return put(buffer, length, name);
}

/* The minor differs from the index on purpose, as it may on a real host: the last GPU has minor 0. */
result nvmlDeviceGetMinorNumber(struct device *d, unsigned *minor) {
    CHECK(good(d) && minor, INVALID_ARGUMENT);
    if (d->parent) return NOT_SUPPORTED;
    *minor = (d->index + 1) % count;
    return OK;
}

result nvmlDeviceGetPciInfo_v3(struct device *d, pci_info *p) {
    CHECK(good(d) && p, INVALID_ARGUMENT);
    address(p, 0x10 + d->index);
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
