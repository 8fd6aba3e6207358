/* What the parts of the layer writer share. */
#ifndef DOCKLESS_WRITER_H
#define DOCKLESS_WRITER_H

#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/stat.h>
#include <time.h>

#include "layer.h"
#include "lower.h"
#include "pathset.h"
#include "tar.h"

#define LINKS_MAX 40
#define OPEN_DIRECTORIES 64
#define WARNINGS_MAX 16
#define MODE_UNKNOWN 0200000 /* no mode: it has to be set */

/* An open directory of this layer. Making entries in it changes its times, so they are set when it is closed. */
struct dir {
    char *path; /* from the root, real: no component is a link; "" is the root */
    size_t size;
    uint64_t hash, used;
    int fd;
    int dirty;  /* its times have to be set */
    int setgid; /* what is made in it gets its group */
    struct timespec times[2];
};

struct warning {
    char why[160], text[768], example[512];
    uint64_t count;
};

/* A default ACL would be inherited by what is made in its directory, and the archive says nothing of that: they are set at the end. */
struct default_acl {
    struct default_acl *next;
    uint32_t size;
    char *path;
    char value[];
};

struct writer {
    struct tar *tar;
    struct layer_error error;
    uint64_t size, entries, size_max, entries_max, reserve, next_room_size, next_room_entries;
    int as_root;
    mode_t umask;
    uid_t uid;
    gid_t gid;
    int probed, group_varies; /* whether what we make belongs to our group has been seen; it does not */

    /* The member whose data comes. */
    struct tar_member member;
    int fd;
    struct dir *fd_dir;
    mode_t fd_mode; /* what the file has now */
    int fd_owned;   /* owner and group are right already */
    uint64_t offset, segment_used;
    uint32_t segment;

    /* Open directories, and the parent's name as the last member had it. */
    struct dir root, dirs[OPEN_DIRECTORIES];
    uint64_t clock;
    struct dir *current;
    char current_name[PATH_MAX];
    int root_listed, root_opaque;

    /* The layers below, once they are known. */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int lower_given;
    atomic_int aborted;
    int has_lower; /* -1: not looked yet */
    struct lower lower;
    struct pathset hidden; /* real paths where this layer hides what lies below; settled at the end */

    struct default_acl *default_acls;
    size_t default_acl_bytes;
    struct warning *warnings;
    int warning_count;
};

/* A path that is split: its parent and its last name, both NUL-terminated. */
struct place {
    char path[PATH_MAX];
    char *name;
    size_t parent_size;
};

/* layer.c */
int too_big(struct writer *w);
int is_base(struct writer *w); /* whether it is known already that nothing lies below */
int fail_errno(struct writer *w, const char *name, int number);
int unsafe(struct writer *w, const char *name, const char *why);
int check_room(struct writer *w, uint64_t coming);
int write_all(struct writer *w, int fd, const void *bytes, size_t size, uint64_t offset); /* 0 or a negative errno, or 1: the error is set */
void add_warning(struct writer *w, const char *why, const char *example);
int need_lower(struct writer *w); /* waits: 1 there are layers below, 0 there are none, -1 aborted */

/* layer_members.c */
int write_member(struct writer *w, const struct tar_member *m); /* all but its data */

/* layer_dirs.c */
/* The directory that `path` leads to, made if need be; `name` is the member's, for errors. NULL: the error is set; with `optional` and nothing below,
 * NULL without one where it is not there. */
struct dir *dirs_enter(struct writer *w, const char *path, const char *name, int optional);
struct dir *dirs_real(struct writer *w, const char *path); /* NULL with errno: no directory there */
struct dir *dirs_find(struct writer *w, const char *path, size_t size);
struct dir *dirs_add(struct writer *w, const char *path, size_t size, int fd); /* takes the descriptor; NULL with errno */
void dirs_drop(struct writer *w, const char *path); /* forget the directory and all below it: it is going to be removed */
int dirs_flush(struct writer *w);                   /* close all and set their times. 0 or a negative errno */
int below(struct writer *w, const char *path);      /* go to a directory of the layers below: 1, 0 hidden or absent, negative errno, -EALREADY: error set */

/* layer_meta.c */
/* All of these: 0 or a negative errno. `directory`: the real path of a directory, NULL for anything else. */
int owner_is_right(struct writer *w, const struct dir *parent, uint32_t uid, uint32_t gid, int made);
int set_meta(struct writer *w, int fd, const struct tar_member *m, const char *directory, mode_t has, int owned);
int set_meta_at(struct writer *w, struct dir *parent, const char *name, const struct tar_member *m);
int copy_meta(struct writer *w, int source, int target, const char *directory);
int set_opaque(struct writer *w, int fd); /* -1: the error is set */
int set_default_acls(struct writer *w);
void forget_default_acls(struct writer *w, const char *path); /* of that directory and all below it; NULL: all */
int lies_below(const char *path, const char *top);          /* or is it */

/* layer_whiteouts.c */
int hide_later(struct writer *w, const struct dir *parent, const char *name); /* NULL: the directory itself */
int is_hidden(struct writer *w, const char *path);
int settle(struct writer *w);

#endif
