/* A set of paths. */
#ifndef DOCKLESS_PATHSET_H
#define DOCKLESS_PATHSET_H

#include <stddef.h>
#include <stdint.h>

#define PATHSET_BYTES_MAX (32u << 20)

struct pathset {
    char **slots;
    size_t capacity, count, bytes;
    uint64_t seed;
};

uint64_t path_hash(uint64_t seed, const char *path, size_t size);
int pathset_has(const struct pathset *set, const char *path, size_t size);
int pathset_add(struct pathset *set, const char *path); /* 0, -ENOMEM, or -E2BIG beyond PATHSET_BYTES_MAX */
void pathset_free(struct pathset *set);

#endif
