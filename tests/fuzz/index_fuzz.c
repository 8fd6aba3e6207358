/* libFuzzer: the EROFS index builder. What it writes is read again by the independent reader of tests/native, under this mutator. */
#include "../native/erofs_check.c"
#include "tar_mutator.h"
