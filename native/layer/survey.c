/* One lstat for each name, a directory at a time, none held open: so neither depth nor breadth of the tree matters.
 *
 * An inode is the same as in the survey before if its times, size, owner, mode and links are, and if it was settled then: its ctime lay further back than
 * the clock of time stamps takes to tick. A change after that look then has a later time, whatever the kernel's time stamps are worth. Linux takes them
 * from a clock that ticks with the timer (4 ms, at most 10), or finer ones (6.13, for some file systems); a file system that stores whole seconds shows
 * that by its zeros (ext4 with small inodes).
 */
#define _GNU_SOURCE
#include "survey.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

#include "sys.h"

enum { EXT4 = 0xEF53, XFS = 0x58465342, BTRFS = 0x9123683E };
enum { LISTED_AT_ONCE = 1 << 16, BENEATH = 0x0d /* RESOLVE_NO_XDEV | NO_SYMLINKS | BENEATH */ };
#define TICK_NS 20000000ll
#define COARSE_TICK_NS 4000000000ll
#define NONE UINT32_MAX

struct survey {
    struct survey_entry *entries;
    char *names;
    uint32_t count, room;
    uint64_t names_size, names_room;
    int64_t begun;   /* nanoseconds since 1970: before the first look */
    uint32_t *table; /* indices by inode number */
    uint32_t mask;
    char listed[LISTED_AT_ONCE] __attribute__((aligned(8)));
};

struct dirent64_ {
    uint64_t ino;
    int64_t off;
    uint16_t reclen;
    uint8_t type;
    char name[];
};

struct survey *survey_new(void) {
    return calloc(1, sizeof(struct survey));
}

void survey_free(struct survey *survey) {
    if (!survey) return;
    free(survey->entries);
    free(survey->names);
    free(survey->table);
    free(survey);
}

uint32_t survey_count(const struct survey *survey) {
    return survey->count;
}

const struct survey_entry *survey_entries(const struct survey *survey) {
    return survey->entries;
}

const char *survey_names(const struct survey *survey) {
    return survey->names;
}

uint64_t survey_names_size(const struct survey *survey) {
    return survey->names_size;
}

uint32_t survey_changed(const struct survey *survey, uint32_t from) {
    while (from < survey->count && survey->entries[from].flags & SURVEY_SAME) from++;
    return from;
}

int survey_path(const struct survey *survey, uint32_t entry, char *path) {
    size_t size = 0, at;
    for (uint32_t n = entry; n; n = survey->entries[n].parent) size += survey->entries[n].name_size + (size ? 1 : 0);
    if (size >= SURVEY_PATH_MAX) return -ENAMETOOLONG;
    path[at = size] = 0;
    for (uint32_t n = entry; n; n = survey->entries[n].parent) {
        const struct survey_entry *e = &survey->entries[n];
        if (at < size) path[--at] = '/';
        memcpy(path + (at -= e->name_size), survey->names + e->name_at, e->name_size);
    }
    return (int)size;
}

/* Where the inode is, or where it would be. */
static uint32_t slot_of(const struct survey *survey, uint64_t ino) {
    uint32_t slot = (uint32_t)((ino * 0x9E3779B97F4A7C15ull) >> 32) & survey->mask;
    while (survey->table[slot] != NONE && survey->entries[survey->table[slot]].ino != ino) slot = (slot + 1) & survey->mask;
    return slot;
}

void survey_void(struct survey *survey, uint32_t entry) {
    survey->entries[entry].flags |= SURVEY_VOID;
    if (survey->table) survey->entries[survey->table[slot_of(survey, survey->entries[entry].ino)]].flags |= SURVEY_VOID;
}

static int settled(const struct survey_entry *e, int64_t begun) {
    return e->ctime <= begun - (e->ctime % 1000000000 ? TICK_NS : COARSE_TICK_NS);
}

static int is_as(const struct survey_entry *then, int64_t begun, const struct survey_entry *now) {
    return !(then->flags & SURVEY_VOID) && settled(then, begun) && then->dev == now->dev && then->size == now->size && then->mtime == now->mtime &&
           then->ctime == now->ctime && then->mode == now->mode && then->uid == now->uid && then->gid == now->gid && then->nlink == now->nlink &&
           then->rdev == now->rdev;
}

/* All links of an inode must be the same: the first stands for them, and is void if one is not. */
int survey_index(struct survey *survey) {
    uint32_t size = 16;
    while (size / 2 < survey->count) size *= 2;
    free(survey->table);
    survey->table = malloc(size * sizeof *survey->table);
    if (!survey->table) return -ENOMEM;
    memset(survey->table, 0xff, size * sizeof *survey->table);
    survey->mask = size - 1;
    for (uint32_t n = 0; n < survey->count; n++) {
        uint32_t slot = slot_of(survey, survey->entries[n].ino);
        if (survey->table[slot] == NONE) survey->table[slot] = n;
        struct survey_entry *first = &survey->entries[survey->table[slot]];
        if (!is_as(first, survey->begun, &survey->entries[n]) || survey->entries[n].flags & SURVEY_VOID) first->flags |= SURVEY_VOID;
    }
    return 0;
}

/* Mostly a name stands where it stood. */
static int is_same(const struct survey *before, const struct survey_entry *now, uint32_t place) {
    if (now->nlink == 1 && place < before->count && before->entries[place].ino == now->ino) return is_as(&before->entries[place], before->begun, now);
    uint32_t then = before->table[slot_of(before, now->ino)];
    return then != NONE && is_as(&before->entries[then], before->begun, now);
}

static int64_t nanoseconds(struct timespec t) {
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static int add(struct survey *survey, const struct stat *st, uint32_t parent, const char *name, const struct survey *before) {
    size_t size = strlen(name);
    if (survey->count == survey->room) {
        uint32_t room = survey->room ? survey->room * 2 : 256;
        struct survey_entry *grown = realloc(survey->entries, room * sizeof *grown);
        if (!grown) return -ENOMEM;
        survey->entries = grown;
        survey->room = room;
    }
    while (size > survey->names_room - survey->names_size) {
        uint64_t room = survey->names_room ? survey->names_room * 2 : 8192;
        char *grown = room <= UINT32_MAX ? realloc(survey->names, room) : NULL;
        if (!grown) return -ENOMEM;
        survey->names = grown;
        survey->names_room = room;
    }
    memcpy(survey->names + survey->names_size, name, size);
    struct survey_entry *e = &survey->entries[survey->count++];
    *e = (struct survey_entry){
        .ino = st->st_ino, .dev = st->st_dev, .size = (uint64_t)st->st_size, .blocks = (uint64_t)st->st_blocks, .rdev = st->st_rdev,
        .mtime = nanoseconds(st->st_mtim), .ctime = nanoseconds(st->st_ctim), .mode = st->st_mode, .uid = st->st_uid, .gid = st->st_gid,
        .nlink = (uint32_t)st->st_nlink, .parent = parent, .name_at = (uint32_t)survey->names_size, .name_size = (uint32_t)size,
    };
    survey->names_size += size;
    if (before && is_same(before, e, survey->count - 1)) e->flags = SURVEY_SAME;
    return 0;
}

/* What has been taken away or replaced while we looked. */
static int vanished(int error) {
    return error == ENOENT || error == ENOTDIR || error == ELOOP;
}

static int list(struct survey *survey, int fd, uint32_t directory, const struct survey *before, uint32_t entries_max) {
    for (;;) {
        long n = syscall(SYS_getdents64, fd, survey->listed, sizeof survey->listed);
        if (n < 0 && errno == ENOENT) return 0; /* it was removed */
        if (n <= 0) return n ? -errno : 0;
        for (long at = 0; at < n;) {
            const struct dirent64_ *d = (const struct dirent64_ *)(survey->listed + at);
            struct stat st;
            at += d->reclen;
            if (!strcmp(d->name, ".") || !strcmp(d->name, "..")) continue;
            if (fstatat(fd, d->name, &st, AT_SYMLINK_NOFOLLOW) < 0) {
                if (vanished(errno)) continue;
                return -errno;
            }
            if (survey->count >= entries_max) return 1;
            int error = add(survey, &st, directory, d->name, before);
            if (error) return error;
            survey->entries[directory].count++;
        }
    }
}

int survey_take(struct survey *survey, int root, const struct survey *before, uint32_t entries_max) {
    char path[SURVEY_PATH_MAX];
    struct timespec now;
    struct stat st;
    clock_gettime(CLOCK_REALTIME, &now);
    survey->begun = nanoseconds(now);
    if (fstat(root, &st) < 0) return -errno;
    int result = add(survey, &st, 0, "", before);
    for (uint32_t n = 0; n < survey->count && !result; n++) {
        if ((survey->entries[n].mode & S_IFMT) != S_IFDIR) continue;
        struct open_how how = {O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC, 0, BENEATH};
        sysret fd;
        survey->entries[n].first = survey->count;
        result = survey_path(survey, n, path);
        if (result < 0) break;
        do fd = sys(NR_openat2, root, n ? path : ".", &how, sizeof how);
        while (fd == -E_AGAIN); /* something was renamed while it looked */
        result = 0;
        if (fd < 0) {
            if (vanished((int)-fd)) continue;
            return (int)fd;
        }
        result = list(survey, (int)fd, n, before, entries_max);
        close((int)fd);
    }
    return result;
}

int survey_trusts(int fd) {
    struct statfs fs;
    return fstatfs(fd, &fs) == 0 && (fs.f_type == EXT4 || fs.f_type == XFS || fs.f_type == BTRFS);
}

/* Of the data alone: neither the file's own record nor a journal need reach the disk. Btrfs writes compressed files in two steps, which its fsync knows. */
int survey_flush(int fd) {
    struct statfs fs;
    if (fstatfs(fd, &fs) < 0) return -errno;
    int all = SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER;
    return (fs.f_type == BTRFS ? fdatasync(fd) : sync_file_range(fd, 0, 0, (unsigned)all)) < 0 ? -errno : 0;
}
