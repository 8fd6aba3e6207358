/* What the hunt's programs share: words about the outside, written as lines of JSON, and files looked through for secrets. No C library. */
#ifndef HUNT_HELPERS_H
#define HUNT_HELPERS_H

#include <sys/syscall.h>

#include "sys.h"

enum { HERE = AT_FDCWD_, S_FMT = 0170000, S_DIR = 0040000, S_REG = 0100000 };

/* Filled in by build.py: lines of "KEY value", a NUL at the end. */
extern char config[16384];

void *memset(void *to, int byte, unsigned long size);
void *memcpy(void *to, const void *from, unsigned long size);

int equal(const char *a, const char *b);
int starts(const char *text, const char *with);
char *text(char *at, const char *from);    /* appends, and gives the new end */
char *number(char *at, unsigned long value);
unsigned long value_of(const char *digits);

/* The nth value of a key in the configuration, copied to `into` (512 bytes); 0 when there is none. */
int setting(char key, int nth, char *into);
int flag(const char *name);

void say(const char *kind, const char *what, const char *data);
long mode_of(int at, const char *path, int follow);
int scan(int fd, const char *via); /* says each secret in a file; whether the file is one of the hunt's own */
void deface(int at, const char *path, const char *via);
void read_and_deface(int at, const char *path, const char *via);
void enter(int directory, const char *via); /* tries everything that a directory may lead to */
void each_entry(const char *directory, void (*visit)(const char *directory, const char *name, int depth), int depth);
int try(int (*deed)(void), const char *what); /* in a process of its own; said if it gives 0 */
void nap(long milliseconds);

#endif
