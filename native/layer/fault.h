/* What went wrong with a layer, in words: filled in by the tar parser and by the sinks behind it. */
#ifndef DOCKLESS_FAULT_H
#define DOCKLESS_FAULT_H

#include <stddef.h>
#include <stdint.h>

/* Whose fault a failure is: the archive's (malformed), a stranger's intent (unsafe), a limit's, the system's (errno), the disk's (room: bytes are
 * missing), or its members', which contradict one another (wrong). Declined: sound, but not for this form of a layer. */
enum layer_fault { FAULT_NONE, FAULT_MALFORMED, FAULT_UNSAFE, FAULT_LIMIT, FAULT_SYSTEM, FAULT_DECLINED, FAULT_WRONG, FAULT_ROOM };

struct layer_error {
    int fault;
    int number;       /* errno, for FAULT_SYSTEM */
    uint64_t missing; /* bytes, for FAULT_ROOM */
    char text[1152];  /* why, without the archive's name: the caller knows it */
};

/* A name for people, as Python's repr() shows it but for letters outside ASCII, which stay: quoted, escaped, cut after some 100 bytes. */
struct shown {
    char text[420];
};
struct shown show(const char *name);
struct shown show_bytes(const char *name, size_t size);

/* Fills in the error unless it already is; always -1. */
int layer_fail(struct layer_error *error, int fault, int number, const char *format, ...) __attribute__((format(printf, 4, 5)));

#endif
