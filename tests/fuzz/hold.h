/* What must be true of every input; where it is not, libFuzzer keeps the input. */
#ifndef DOCKLESS_HOLD_H
#define DOCKLESS_HOLD_H

#include <stdio.h>
#include <stdlib.h>

#define HOLD(truth) \
    do { \
        if (!(truth)) { \
            fprintf(stderr, "broken: %s (line %d)\n", #truth, __LINE__); \
            abort(); \
        } \
    } while (0)

#endif
