/* Open addressing over copies of the paths. The seed is random, so that nobody can choose paths that collide. */
#define _GNU_SOURCE
#include "pathset.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

uint64_t path_hash(uint64_t seed, const char *path, size_t size) {
    uint64_t hash = seed ^ 0xcbf29ce484222325u;
    for (size_t at = 0; at < size; at++) hash = (hash ^ (unsigned char)path[at]) * 0x100000001b3u;
    return hash ^ hash >> 29;
}

static char **slot_of(const struct pathset *set, const char *path, size_t size) {
    size_t at = path_hash(set->seed, path, size) & (set->capacity - 1);
    while (set->slots[at] && (strncmp(set->slots[at], path, size) || set->slots[at][size])) at = (at + 1) & (set->capacity - 1);
    return &set->slots[at];
}

int pathset_has(const struct pathset *set, const char *path, size_t size) {
    return set->count && *slot_of(set, path, size) != NULL;
}

static int grow(struct pathset *set) {
    struct pathset larger = {.capacity = set->capacity ? set->capacity * 2 : 256, .seed = set->seed};
    if (!set->capacity && getrandom(&larger.seed, sizeof larger.seed, 0) < 0) larger.seed = (uintptr_t)set;
    larger.slots = calloc(larger.capacity, sizeof *larger.slots);
    if (!larger.slots) return -ENOMEM;
    for (size_t n = 0; n < set->capacity; n++)
        if (set->slots[n]) *slot_of(&larger, set->slots[n], strlen(set->slots[n])) = set->slots[n];
    free(set->slots);
    larger.count = set->count;
    larger.bytes = set->bytes;
    *set = larger;
    return 0;
}

int pathset_add(struct pathset *set, const char *path) {
    size_t size = strlen(path);
    if (set->count * 2 >= set->capacity && grow(set)) return -ENOMEM;
    char **slot = slot_of(set, path, size);
    if (*slot) return 0;
    if (set->bytes + size + 32 > PATHSET_BYTES_MAX) return -E2BIG;
    *slot = strdup(path);
    if (!*slot) return -ENOMEM;
    set->bytes += size + 32;
    set->count++;
    return 0;
}

void pathset_free(struct pathset *set) {
    for (size_t n = 0; n < set->capacity; n++) free(set->slots[n]);
    free(set->slots);
    *set = (struct pathset){0};
}
