/* A program of the host's: it tells its secret when somebody runs it, as a program, as an interpreter of scripts, or as one of programs. */
#include "helpers.h"

static __attribute__((used)) void run(void) {
    char secret[512];
    if (setting('s', 0, secret)) say("token", "a program of the host runs", secret);
    sys(SYS_exit_group, 0);
}

#if defined(__x86_64__)
__asm__(".globl _start\n_start:\n\txor %ebp, %ebp\n\tand $-16, %rsp\n\tcall run\n\tud2\n");
#else
__asm__(".globl _start\n_start:\n\tmov x29, xzr\n\tbl run\n\tbrk 1\n");
#endif
