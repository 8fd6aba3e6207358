/* MIG in the stand-in for NVML: the slices that its last GPU is divided into. */
#include <string.h>
#include <unistd.h>

#include "simulated_nvml.h"

void add_part(int sevenths, unsigned long long memory, int ci) {
    struct device *whole = &gpus[count - 1], *part = &parts[slices];

    *part = (struct device){.index = whole->index, .gi = slices + 1, .ci = ci, .memory = memory, .sevenths = sevenths, .parent = whole};
    snprintf(part->uuid, sizeof part->uuid, "MIG-51d01a7e-d000-5000-8%03x-%012x", whole->index, slices);
    slices++;
}

/* What was made and removed since. */
void later_parts(void) {
    long long n[4];
    FILE *file = open_state("re");

    while (next_line(file, "slice", -1, n))
        if (n[0] == slices && slices < MAX_PARTS && n[2] > 0) add_part(n[1], (unsigned long long)n[2] << 20, 0);
    if (file) rewind(file);
    while (next_line(file, "gone", -1, n))
        if (n[0] >= 0 && n[0] < slices) parts[n[0]].gone = 1;
    close_state(file);
}

int divided(const struct device *d) { return divisions && d == &gpus[count - 1]; }

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
    FILE *file = open_state("ae");

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
