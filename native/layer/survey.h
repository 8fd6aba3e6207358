/* A survey of a tree: what every name in it is, and which of it is as an earlier survey saw it. */
#ifndef DOCKLESS_SURVEY_H
#define DOCKLESS_SURVEY_H

#include <stdint.h>

enum { SURVEY_SAME = 1 /* an earlier survey saw this inode, and nothing of it has changed */, SURVEY_VOID = 2 /* never the same as later */ };
enum { SURVEY_PATH_MAX = 4096 };

/* Times: nanoseconds since 1970. A directory's own entries are `count` from `first` on, in no order. */
struct survey_entry {
    uint64_t ino, dev, size, blocks, rdev;
    int64_t mtime, ctime;
    uint32_t mode, uid, gid, nlink, parent, name_at, name_size, first, count, flags;
};

struct survey *survey_new(void);
/* All of the tree at the descriptor `root`, which may change meanwhile: what vanishes is left out. `before`: an earlier survey of it that has been
 * indexed, or none. 0, 1 where there are more than entries_max, or a negative errno: -ENAMETOOLONG for a path that is. */
int survey_take(struct survey *survey, int root, const struct survey *before, uint32_t entries_max);
int survey_index(struct survey *survey); /* for a later one to compare with; 0 or -ENOMEM */
uint32_t survey_count(const struct survey *survey);
const struct survey_entry *survey_entries(const struct survey *survey);
const char *survey_names(const struct survey *survey);
uint64_t survey_names_size(const struct survey *survey);
uint32_t survey_changed(const struct survey *survey, uint32_t from); /* the first entry from there on that is not the same, or survey_count() */
void survey_void(struct survey *survey, uint32_t entry);             /* whatever a later one sees, it is not the same */
int survey_path(const struct survey *survey, uint32_t entry, char *path); /* from the root, without a slash in front; its length or -ENAMETOOLONG */
void survey_free(struct survey *survey);

/* Whether the file system of `fd` changes an inode's ctime with every change of what it is, writes through a mapping of a page that survey_flush() has
 * cleaned among them. */
int survey_trusts(int fd);
/* Writes out what is dirty of a file, so that the next write through a mapping faults. 0 or a negative errno. */
int survey_flush(int fd);

#endif
