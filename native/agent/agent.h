/* What is said to the agent and what it answers: one request, one answer, in this order, over its standard input and output. Numbers are those of this machine.
 *
 * Paths end with a NUL. A handle is a descriptor of the agent's; LAST is what the latest OPEN gave, so that one write can hold OPEN, READ and CLOSE. */
#ifndef DOCKLESS_AGENT_H
#define DOCKLESS_AGENT_H

#include "sys.h"

enum { CHUNK = 1 << 18 }; /* bytes of a request's or an answer's contents at most */
enum { LAST = -1, ROOT = AT_FDCWD_ };

enum {
    FILES_OPEN = 1,     /* path; flags, mode: a handle; contents: its facts */
    FILES_CLOSE = 2,    /* handle */
    FILES_READ = 3,     /* handle; offset, length: contents, short at the end of the file only */
    FILES_WRITE = 4,    /* handle; offset; contents: all of them are written */
    FILES_LIST = 5,     /* handle: contents: facts and names of some entries; none at the end */
    FILES_STAT = 6,     /* path, or a handle and an empty path: contents: its facts, and where a link leads */
    FILES_MKDIR = 7,    /* path; mode */
    FILES_REMOVE = 8,   /* path */
    FILES_RENAME = 9,   /* path, path */
    FILES_SYMLINK = 10, /* path, where it leads */
    FILES_SET = 11,     /* handle; flags; mode, offset (modified, nanoseconds), length (size) */
    FILES_WATCH = 12,   /* path: the number of the watch */
    FILES_EVENTS = 13,  /* length, nanoseconds: contents: records of inotify(7), when there are some, or none after that time */
    FILES_LINK = 14,    /* path, path: one more name for a file */
};

enum {
    WITH_READ = 1,
    WITH_WRITE = 2,
    WITH_CREATE = 4,
    WITH_EXCLUSIVE = 8,
    WITH_TRUNCATE = 16,
    WITH_APPEND = 32,
    WITH_DIRECTORY = 64, /* open a directory; else it is an error */
    WITH_NOFOLLOW = 128, /* the last name is no link, or itself looked at */
    WITH_BENEATH = 256,  /* no name of the path is a link or leads upwards */
    WITH_TREE = 512,     /* remove what is in a directory, too */
    WITH_MODE = 1024,
    WITH_TIME = 2048,
    WITH_SIZE = 4096,
};

struct request {
    uint32_t size; /* of the contents that follow */
    uint16_t op, flags;
    int32_t handle;
    uint32_t mode;
    uint64_t offset, length;
};

struct answer {
    int32_t result; /* a negative errno where it failed */
    uint32_t size;  /* of the contents that follow */
};

enum { MADE_BY_KERNEL = 1 << 16 }; /* of a mode, in the answer to LIST: a file system without files of anybody is mounted there */

/* As stat(2) has them, with the ids of the namespace. */
struct about {
    uint32_t mode, links, uid, gid;
    uint64_t inode, size;
    int64_t modified; /* nanoseconds since 1970 */
};

#endif
