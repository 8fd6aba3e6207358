/* libFuzzer: the layer writer, on a tmpfs in a mount namespace where all the rest is read-only. Bytes behind the archive's end are a second layer,
 * written over the first. Whatever they say,
 *
 *   - the victim beside the target and the layers below it stay as they are, to the inode and the nanosecond,
 *   - nothing but the target was tried: a write elsewhere would fail with EROFS, which is a finding,
 *   - no descriptor is left open, and the target can be removed,
 *   - the same archive in other pieces makes the same tree.
 *
 * Needs root, or user namespaces (then devices and owners are out of reach).
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <time.h>
#include <unistd.h>

#include "layer.h"
#include "scene.h"
#define MUTATOR_LAYERS
#include "tar_mutator.h"

enum { SIZE_MAX_ = 4 << 20, ENTRIES_MAX = 400 };

int remove_tree(int parent, const char *name); /* native/launcher/remove.c */
int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static uint64_t untouched;
static time_t started;
static int verbose; /* FUZZ_VERBOSE=1 prints every tree, to see why two differ */

/* -- what a tree is ------------------------------------------------------------------------------------------------------------------ */

static uint64_t hash;
static int with_times; /* inodes and ctimes too: for what must not have been touched */

static void add(const void *bytes, size_t size) {
    for (const unsigned char *at = bytes; size--; at++) hash = (hash ^ *at) * 0x100000001b3ull;
}

static int compare(const struct dirent **one, const struct dirent **two) {
    return strcmp((*one)->d_name, (*two)->d_name);
}

static void add_xattrs(int fd) {
    static char path[64], names[65536], value[65536];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    ssize_t size = listxattr(path, names, sizeof names);
    uint64_t sum = 0, before = hash;
    for (char *name = names; size > 0 && name < names + size; name += strlen(name) + 1) {
        ssize_t length = getxattr(path, name, value, sizeof value);
        hash = 1469598103934665603ull;
        add(name, strlen(name));
        if (length > 0) add(value, (size_t)length);
        sum += hash; /* in whatever order */
    }
    hash = before;
    add(&sum, sizeof sum);
}

static void add_content(int parent, const char *name, const struct stat *info) {
    static char buffer[65536];
    if (S_ISLNK(info->st_mode)) {
        ssize_t size = readlinkat(parent, name, buffer, sizeof buffer);
        HOLD(size > 0);
        add(buffer, (size_t)size);
    } else if (S_ISREG(info->st_mode)) {
        int fd = openat(parent, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
        HOLD(fd >= 0);
        off_t at = 0;
        while ((at = lseek(fd, at, SEEK_DATA)) >= 0 && at < info->st_size) {
            ssize_t size = pread(fd, buffer, sizeof buffer, at);
            HOLD(size > 0);
            add(&at, sizeof at);
            add(buffer, (size_t)size);
            at += size;
        }
        close(fd);
    }
}

static unsigned add_tree(int parent, const char *name, int depth) {
    struct stat info;
    unsigned count = 1;
    HOLD(!fstatat(parent, name, &info, AT_SYMLINK_NOFOLLOW));
    uint64_t facts[] = {info.st_mode, info.st_uid, info.st_gid, info.st_rdev, S_ISDIR(info.st_mode) ? 0 : info.st_nlink, S_ISDIR(info.st_mode) ? 0 : (uint64_t)info.st_size,
                        (uint64_t)info.st_mtim.tv_sec, (uint64_t)info.st_mtim.tv_nsec};
    /* Parents that nobody lists, and whiteouts, are as new as they are. */
    int is_new = S_ISDIR(info.st_mode) || (S_ISCHR(info.st_mode) && !info.st_rdev);
    if (!with_times && is_new && info.st_mtim.tv_sec >= started) facts[6] = facts[7] = 0;
    uint64_t inode[] = {info.st_ino, (uint64_t)info.st_ctim.tv_sec, (uint64_t)info.st_ctim.tv_nsec};
    add(name, strlen(name) + 1);
    add(facts, sizeof facts);
    if (verbose) {
        fprintf(stderr, "%*s%s", 2 * depth, "", name);
        for (size_t n = 0; n < sizeof facts / sizeof *facts; n++) fprintf(stderr, " %llo", (unsigned long long)facts[n]);
        fprintf(stderr, "\n");
    }
    if (with_times) add(inode, sizeof inode);
    int fd = openat(parent, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
    HOLD(fd >= 0);
    if (!S_ISLNK(info.st_mode)) add_xattrs(fd);
    close(fd);
    if (!S_ISDIR(info.st_mode)) {
        add_content(parent, name, &info);
        return count;
    }
    fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    HOLD(fd >= 0 && depth < 4096);
    struct dirent **entries;
    int entry_count = scandirat(fd, ".", &entries, NULL, compare);
    HOLD(entry_count >= 0);
    for (int n = 0; n < entry_count; n++) {
        const char *child = entries[n]->d_name;
        if (strcmp(child, ".") && strcmp(child, "..")) {
            HOLD(with_times || strncmp(child, ".wh.", 4)); /* no marker stays as a file */
            count += add_tree(fd, child, depth + 1);
        }
        free(entries[n]);
    }
    free(entries);
    close(fd);
    return count;
}

static uint64_t tree(const char *name, int exact, unsigned *count) {
    hash = 1469598103934665603ull;
    with_times = exact;
    unsigned found = add_tree(place, name, 0);
    if (count) *count = found;
    return hash;
}

static uint64_t all_untouched(void) {
    uint64_t victim = tree("victim", 1, NULL), lower = tree("lower", 1, NULL);
    return victim * 31 + lower;
}

/* -- the scene ----------------------------------------------------------------------------------------------------------------------- */

static void put(const char *path, const char *content, mode_t mode) {
    int fd = openat(place, path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
    HOLD(fd >= 0 && write(fd, content, strlen(content)) == (ssize_t)strlen(content) && !close(fd));
}

static void furnish(void) {
    static const char *const directories[] = {"victim", "victim/sub", "lower", "lower/a", "lower/a/b", "lower/low", "lower/low/d", "lower/lowdir"};
    for (size_t n = 0; n < sizeof directories / sizeof *directories; n++) HOLD(!mkdirat(place, directories[n], 0755));
    put("victim/file", "hello", 0644);
    put("victim/sub/file", "hello", 04755);
    put("lower/low/f", "low", 0640);
    put("lower/low/d/f", "deep", 04755);
    put("lower/a/b/c", "c", 0644);
    put("lower/lowdir/f", "f", 0644);
    HOLD(!symlinkat("low", place, "lower/lowlink") && !symlinkat("../victim", place, "lower/out") && !symlinkat("/", place, "lower/b"));
    if (!geteuid()) (void)mknodat(place, "lower/a/gone", S_IFCHR, 0);
}

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    (void)argc, (void)argv;
    enter();
    furnish();
    verbose = getenv("FUZZ_VERBOSE") != NULL;
    umask(022);
    started = time(NULL) - 1;
    return 0;
}

/* -- one input ----------------------------------------------------------------------------------------------------------------------- */

static int open_directory(const char *name) {
    int fd = openat(place, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    HOLD(fd >= 0);
    return fd;
}

/* Into the new directory `name`, over the layers `below`, top first. */
static int write_layer(const char *name, const char *const *below, int count, const uint8_t *data, size_t size, size_t step, int as_root,
                       struct layer_error *error) {
    int lower[2];
    HOLD(!mkdirat(place, name, 0700));
    int target = open_directory(name);
    for (int n = 0; n < count; n++) lower[n] = open_directory(below[n]);
    struct writer *writer = writer_new(target, as_root, SIZE_MAX_, ENTRIES_MAX, 1 << 20);
    HOLD(writer && !writer_set_lower(writer, lower, count));
    close(target);
    for (int n = 0; n < count; n++) close(lower[n]);
    int result = 0;
    for (size_t at = 0; at < size && !result; at += step) {
        size_t piece = step < size - at ? step : size - at;
        uint8_t *copy = malloc(piece);
        HOLD(copy);
        memcpy(copy, data + at, piece);
        result = writer_feed(writer, copy, piece);
        free(copy);
    }
    if (!result) result = writer_finish(writer);
    *error = *writer_error(writer);
    HOLD(result == 0 || (result == -1 && error->fault != FAULT_NONE && *error->text));
    HOLD(writer_size(writer) <= SIZE_MAX_ && writer_entries(writer) <= ENTRIES_MAX + 1);
    HOLD(strnlen(error->text, sizeof error->text) < sizeof error->text);
    if (verbose) fprintf(stderr, "%d %s\n", result, error->text);
    HOLD(error->number != EROFS && error->number != EBADF && error->number != EFAULT && error->number != ENOENT);
    for (int n = 0; writer_warning(writer, n); n++) HOLD(n < 1000);
    writer_free(writer);
    return result;
}

static void clear(const char *name) {
    HOLD(remove_tree(place, name) >= 0);
    HOLD(faccessat(place, name, F_OK, AT_SYMLINK_NOFOLLOW) && errno == ENOENT);
}

/* Where an archive ends by two blocks of zeros; what follows is the layer above it. */
static size_t end_of(const uint8_t *data, size_t size) {
    static const uint8_t zeros[2 * MUTATOR_BLOCK];
    for (size_t at = 0; at + sizeof zeros <= size; at += MUTATOR_BLOCK)
        if (!memcmp(data + at, zeros, sizeof zeros)) return at + sizeof zeros;
    return size;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct layer_error error, again;
    unsigned how = 0, entries = 0;
    uint64_t first = 0, under = 0;
    const char *const below[] = {"under", "lower"};
    for (size_t n = 0; n < size; n += 97) how = how * 31 + data[n];
    int first_free = dup(place);
    close(first_free);
    if (!untouched) untouched = all_untouched();
    int as_root = how & 1, count = (how >> 1) & 1;
    size_t end = end_of(data, size);
    int layered = end < size && !write_layer("under", NULL, 0, data, end, end, as_root, &error);
    if (layered) {
        under = tree("under", 1, NULL);
        data += end;
        size -= end;
        count++;
    } else if (end < size) {
        clear("under");
    }
    const char *const *from = layered ? below : below + 1;
    int result = write_layer("target", from, count, data, size, size ? size : 1, as_root, &error);
    if (!result) first = tree("target", 0, &entries);
    HOLD(entries <= size + end + 16); /* every component of a name takes two bytes */
    clear("target");
    HOLD(all_untouched() == untouched);
    if (how % 5 == 0) {
        HOLD(write_layer("target", from, count, data, size, 1 + how % 1500, as_root, &again) == result && !strcmp(error.text, again.text));
        HOLD(result || tree("target", 0, NULL) == first);
        clear("target");
    }
    if (layered) {
        HOLD(tree("under", 1, NULL) == under);
        clear("under");
    }
    int probe = dup(place);
    HOLD(probe == first_free); /* no descriptor stays open */
    close(probe);
    return 0;
}
