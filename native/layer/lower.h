/* The layers below the one that is being written, as overlayfs merges them. */
#ifndef DOCKLESS_LOWER_H
#define DOCKLESS_LOWER_H

#include <limits.h>
#include <sys/stat.h>

/* It keeps open the directory it looked at last: entries of a layer come directory by directory. */
struct lower {
    int count;
    int *roots; /* top first */
    int *here, here_count, *next;
    char path[PATH_MAX];
};

/* Takes copies of the descriptors. 0 or a negative errno. */
int lower_open(struct lower *lower, const int *fds, int count);
void lower_close(struct lower *lower);

/* Go to the directory at `path` ("" is the root; no links, no dots). 1: there; 0: it is hidden, absent or no directory. Or a negative errno. */
int lower_enter(struct lower *lower, const char *path);
/* What that directory shows as `name`, links not followed. 1: there, in the layer whose directory is *parent; 0: not. Or a negative errno. */
int lower_child(struct lower *lower, const char *name, struct stat *info, int *parent);

int is_whiteout(const struct stat *info);

#endif
