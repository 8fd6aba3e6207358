/* What the parts of the stand-in for NVML have in common: its GPUs and their slices, and the file that says what they do. */
#ifndef DOCKLESS_SIMULATED_NVML_H
#define DOCKLESS_SIMULATED_NVML_H

#include <pthread.h>
#include <stdio.h>

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
    char uuid[48], model[24]; /* of a slice: that of its GPU is shown */
    struct device *parent;
};

#pragma GCC visibility push(hidden) /* who loads the library has names like these, too */

extern pthread_mutex_t lock;
extern int count, divisions, slices, busy, ecc, old, limits; /* slices: in parts, with those that are gone */
extern struct device gpus[MAX_GPUS], parts[MAX_PARTS];
extern char state[4096];
extern _Thread_local int gone_lost; /* whether the device that was last asked about has fallen off its bus */

int ready(void);
void hang(int gpu);
int good(const struct device *d);
int divided(const struct device *d);
void add_part(int sevenths, unsigned long long memory, int ci);
void later_parts(void);
FILE *open_state(const char *mode);
void close_state(FILE *file);
int next_line(FILE *file, const char *word, int gpu, long long numbers[4]);
long long said(const char *word, int gpu, int place, long long otherwise);

#pragma GCC visibility pop

#define CHECK(condition, otherwise)       \
    do {                                  \
        gone_lost = 0;                      \
        if (!ready()) return UNINITIALIZED; \
        if (!(condition)) return gone_lost ? GPU_IS_LOST : otherwise; \
    } while (0)
#define MODERN() \
    do {         \
        if (old) return FUNCTION_NOT_FOUND; \
    } while (0)

#endif
