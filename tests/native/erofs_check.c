/* The index builder for the sanitizers and for fuzzing: whatever archive it is fed, what it writes must be a sound EROFS, as read here by other code
 * than the builder's: every place inside the file, names sorted and proper, every inode reached as often as it says, all data inside the tar.
 *
 * With STANDALONE: reads records (u32 length, bytes) from standard input, each fed whole, in pieces, torn off and changed; prints one line each.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "erofs.h"

#define BLOCK 512u
#define ROOT_SLOT 48u
#define HOLD(truth) \
    do { \
        if (!(truth)) { \
            fprintf(stderr, "broken: %s (line %d)\n", #truth, __LINE__); \
            abort(); \
        } \
    } while (0)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct image {
    const uint8_t *at;
    uint64_t size, tar_blocks;
    uint32_t *seen;    /* by slot: how often a name led there */
    uint32_t *subs;    /* by slot: directories below */
    uint32_t *parents; /* by slot, of directories */
    uint32_t *todo, todo_count;
    uint64_t inodes;
};

static uint64_t le(const struct image *image, uint64_t at, unsigned bytes) {
    uint64_t value = 0;
    HOLD(at + bytes <= image->size);
    memcpy(&value, image->at + at, bytes);
    return value;
}

struct node {
    uint64_t at, size, where, body; /* body: of what lies behind the inode and its xattrs */
    unsigned layout, mode, links;
};

static void check_xattrs(const struct image *image, uint64_t at, uint64_t units) {
    if (!units) return;
    uint64_t end = at + 12 + (units - 1) * 4;
    HOLD(units > 1 && end <= image->size);
    HOLD(!le(image, at, 8) && !le(image, at + 8, 4));
    for (at += 12; at < end;) {
        uint64_t name = le(image, at, 1), index = le(image, at + 1, 1), value = le(image, at + 2, 2);
        HOLD(index == 1 || index == 2 || index == 3 || index == 4 || index == 6);
        HOLD((index == 2 || index == 3) == !name);
        if (index == 4) HOLD(name == 14 && value == 1 && !memcmp(image->at + at + 4, "overlay.opaquey", 15));
        if (index == 1) HOLD(name < 8 || memcmp(image->at + at + 4, "overlay.", 8));
        if (index == 6) HOLD(name == 10 && !memcmp(image->at + at + 4, "capability", 10));
        at += (4 + name + value + 3) / 4 * 4;
        HOLD(at <= end);
    }
}

static struct node read_inode(const struct image *image, uint64_t slot) {
    struct node node = {.at = slot * 32};
    uint64_t format = le(image, node.at, 2), units = le(image, node.at + 2, 2);
    node.layout = (unsigned)format >> 1;
    node.mode = (unsigned)le(image, node.at + 4, 2);
    node.size = le(image, node.at + 8, 8);
    node.where = le(image, node.at + 16, 4);
    node.links = (unsigned)le(image, node.at + 44, 4);
    node.body = node.at + 64 + (units ? 12 + (units - 1) * 4 : 0);
    HOLD((format & 1) && (node.layout == 0 || node.layout == 2 || node.layout == 4));
    HOLD(le(image, node.at + 40, 4) < 1000000000u && !le(image, node.at + 6, 2));
    HOLD(le(image, node.at + 24, 4) != UINT32_MAX && le(image, node.at + 28, 4) != UINT32_MAX);
    check_xattrs(image, node.at + 64, units);
    return node;
}

/* The bytes of a directory or link, from wherever they lie. */
static uint8_t *content(const struct image *image, const struct node *node) {
    uint64_t tail = node->layout == 2 ? node->size % BLOCK : 0, whole = node->size - tail;
    HOLD(node->layout != 4 && node->size <= image->size);
    uint8_t *bytes = calloc(1, node->size + 1);
    HOLD(whole == 0 || node->where * BLOCK + (whole + BLOCK - 1) / BLOCK * BLOCK <= image->size);
    if (whole) memcpy(bytes, image->at + node->where * BLOCK, whole);
    if (node->layout == 2) {
        HOLD(tail && node->body % BLOCK + tail <= BLOCK && node->body / BLOCK == node->at / BLOCK && node->body + tail <= image->size);
        memcpy(bytes + whole, image->at + node->body, tail);
    }
    return bytes;
}

static void check_file(const struct image *image, const struct node *node) {
    if (!node->size) {
        HOLD(node->layout == 0);
        return;
    }
    HOLD(node->layout == 4 && (node->where & ~0x1full) == 0x20);
    uint64_t chunk = (uint64_t)BLOCK << (node->where & 31), at = (node->body + 7) / 8 * 8;
    for (uint64_t done = 0; done < node->size; done += chunk, at += 8) {
        uint64_t left = node->size - done < chunk ? node->size - done : chunk;
        HOLD(le(image, at, 2) == 0 && le(image, at + 2, 2) == 1);
        HOLD(le(image, at + 4, 4) + (left + BLOCK - 1) / BLOCK <= image->tar_blocks);
    }
}

static void visit(struct image *image, uint64_t slot, uint32_t parent, uint64_t type) {
    HOLD(slot >= ROOT_SLOT && slot * 32 + 64 <= image->size);
    struct node node = read_inode(image, slot);
    unsigned kind = node.mode & S_IFMT;
    HOLD(type == (kind == S_IFREG ? 1 : kind == S_IFDIR ? 2 : kind == S_IFCHR ? 3 : kind == S_IFBLK ? 4 : kind == S_IFIFO ? 5 : 7));
    if (image->seen[slot]++) {
        HOLD(kind != S_IFDIR);
        return;
    }
    image->inodes++;
    if (kind == S_IFDIR) {
        image->parents[slot] = parent;
        image->todo[image->todo_count++] = (uint32_t)slot;
    } else if (kind == S_IFLNK) {
        uint8_t *target = content(image, &node);
        HOLD(node.size && node.size < 4096 && strlen((char *)target) == node.size);
        free(target);
    } else if (kind == S_IFREG) {
        check_file(image, &node);
    } else {
        HOLD(!node.size && node.layout == 0 && (kind == S_IFCHR || kind == S_IFBLK || (kind == S_IFIFO && !node.where)));
    }
}

static void check_block(struct image *image, uint32_t slot, const uint8_t *block, uint64_t size, unsigned *dots, char *before) {
    uint16_t first, at;
    memcpy(&first, block + 8, 2);
    HOLD(first && first % 12 == 0 && first <= size);
    for (unsigned i = 0, count = first / 12; i < count; i++) {
        uint64_t nid, end = size;
        memcpy(&nid, block + i * 12, 8);
        memcpy(&at, block + i * 12 + 8, 2);
        if (i + 1 < count) {
            uint16_t next;
            memcpy(&next, block + i * 12 + 20, 2);
            end = next;
        }
        HOLD(at >= first && at < end && end <= size);
        char name[BLOCK + 1] = {0};
        memcpy(name, block + at, end - at);
        if (i + 1 < count) HOLD(strlen(name) == end - at);
        HOLD(*name && strlen(name) <= 255 && !strchr(name, '/') && strcmp(before, name) < 0);
        strcpy(before, name);
        if (!strcmp(name, ".") || !strcmp(name, "..")) {
            HOLD(block[i * 12 + 10] == 2 && nid == (name[1] ? image->parents[slot] : slot));
            ++*dots;
            continue;
        }
        HOLD(!block[i * 12 + 11]);
        if (block[i * 12 + 10] == 2) image->subs[slot]++;
        visit(image, nid, slot, block[i * 12 + 10]);
    }
}

static void check_directory(struct image *image, uint32_t slot) {
    struct node node = read_inode(image, slot);
    uint8_t *bytes = content(image, &node);
    char before[BLOCK + 1] = "";
    unsigned dots = 0;
    HOLD(node.size);
    for (uint64_t at = 0; at < node.size; at += BLOCK) {
        check_block(image, slot, bytes + at, node.size - at < BLOCK ? node.size - at : BLOCK, &dots, before);
    }
    HOLD(dots == 2);
    free(bytes);
}

static void check(const uint8_t *bytes, uint64_t size, uint64_t tar_size) {
    uint64_t slots = size / 32 + 1;
    struct image image = {.at = bytes, .size = size, .tar_blocks = tar_size / BLOCK};
    image.seen = calloc(slots, 4), image.subs = calloc(slots, 4), image.parents = calloc(slots, 4), image.todo = calloc(slots, 4);
    HOLD(size % BLOCK == 0 && le(&image, 1024, 4) == 0xe0f5e1e2 && le(&image, 1024 + 12, 1) == 9 && le(&image, 1024 + 14, 2) == ROOT_SLOT);
    HOLD(le(&image, 1024 + 36, 4) == size / BLOCK && le(&image, 1024 + 88, 2) * 128 == 1152 && le(&image, 1152 + 64, 4) == (tar_size + BLOCK - 1) / BLOCK);
    visit(&image, ROOT_SLOT, ROOT_SLOT, 2);
    for (uint32_t i = 0; i < image.todo_count; i++) check_directory(&image, image.todo[i]);
    HOLD(image.inodes == le(&image, 1024 + 16, 8));
    for (uint64_t slot = 0; slot < slots; slot++) {
        if (!image.seen[slot]) continue;
        struct node node = read_inode(&image, slot);
        HOLD(node.links == (S_ISDIR(node.mode) ? 2 + image.subs[slot] : image.seen[slot]));
    }
    free(image.seen), free(image.subs), free(image.parents), free(image.todo);
}

/* Several indexes in one: the fault. What is made of a single sound one is sound. */
static int merge(const int *sources, int count, int64_t tar_size) {
    struct erofs_index *index = erofs_index_new(1, 0, 0);
    int fd = memfd_create("merged", MFD_CLOEXEC), result = erofs_index_merge(index, fd, sources, count);
    int fault = erofs_index_error(index)->fault;
    off_t length = lseek(fd, 0, SEEK_END);
    HOLD((result != 0) == (fault != FAULT_NONE) && (fault == FAULT_NONE) == (length > 0));
    if (!fault && tar_size >= 0) {
        uint8_t *bytes = mmap(NULL, (size_t)length, PROT_READ, MAP_PRIVATE, fd, 0);
        HOLD(bytes != MAP_FAILED);
        check(bytes, (uint64_t)length, (uint64_t)tar_size);
        munmap(bytes, (size_t)length);
    }
    erofs_index_free(index);
    close(fd);
    return fault;
}

/* Where what is done to indexes on the disk is tried: two of them, of which one is changed. */
static void (*spoil)(int fd);

/* The fault, 0 where an index was written, which is then sound. */
static int try(const uint8_t *data, size_t size, int base, size_t piece, int root) {
    struct erofs_index *index = erofs_index_new(base, 1 << 30, 10000);
    int fd = memfd_create("index", MFD_CLOEXEC), result = 0;
    for (size_t at = 0; at < size && !result; at += piece) {
        result = erofs_index_feed(index, data + at, size - at < piece ? size - at : piece);
    }
    if (!result) result = erofs_index_finish(index, fd, &root, root >= 0);
    int fault = erofs_index_error(index)->fault;
    off_t length = lseek(fd, 0, SEEK_END);
    HOLD((result != 0) == (fault != FAULT_NONE) && (fault == FAULT_NONE) == (length > 0));
    HOLD(!fault || (*erofs_index_error(index)->text && fault != FAULT_SYSTEM));
    if (!fault) {
        uint8_t *bytes = mmap(NULL, (size_t)length, PROT_READ, MAP_PRIVATE, fd, 0);
        HOLD(bytes != MAP_FAILED);
        check(bytes, (uint64_t)length, size);
        munmap(bytes, (size_t)length);
        HOLD(merge(&fd, 1, (int64_t)size) == FAULT_NONE);
        if (spoil) spoil(fd);
    }
    char text[1024];
    for (int i = 0; erofs_index_warning(index, i, text, sizeof text) >= 0; i++) continue;
    erofs_index_free(index);
    close(fd);
    return fault;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static int root = -1;
    if (root < 0) root = open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int whole = try(data, size, 1, size + 1, -1);
    HOLD(try(data, size, 1, 509, -1) == whole);
    try(data, size, 0, size + 1, root);
    return 0;
}

#ifdef STANDALONE
static uint64_t dice = 1;

static uint32_t roll(uint32_t sides) {
    dice = dice * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)((dice >> 33) % sides);
}

/* A few bytes of headers changed, with checksums that fit again. */
static void change(uint8_t *data, size_t size) {
    for (uint32_t times = 1 + roll(4); times; times--) {
        size_t block = roll((uint32_t)(size / BLOCK)) * BLOCK;
        static const uint16_t places[] = {0, 1, 2, 100, 108, 124, 130, 135, 156, 157, 158, 329, 345};
        size_t at = block + places[roll(13)] + roll(3);
        data[at] = "/.w0157\0h:\xff"[roll(11)];
        if (roll(2)) memcpy(data + block + roll(20), roll(2) ? ".wh." : roll(2) ? "../" : "/.wh..wh..opq", 3 + roll(2));
        if (roll(4)) data[block + 156] = (uint8_t)"0123456xLK"[roll(10)];
        unsigned sum = 0;
        memset(data + block + 148, ' ', 8);
        for (size_t i = 0; i < BLOCK; i++) sum += data[block + i];
        snprintf((char *)data + block + 148, 7, "%06o", sum & 0777777);
    }
}

static void spoil_and_merge(int fd) {
    off_t length = lseek(fd, 0, SEEK_END);
    uint8_t *bytes = malloc((size_t)length);
    HOLD(pread(fd, bytes, (size_t)length, 0) == length);
    int other = memfd_create("spoilt", MFD_CLOEXEC), both[2][2] = {{fd, other}, {other, fd}};
    for (uint32_t times = 1 + roll(4); times; times--) bytes[1024 + roll((uint32_t)length - 1024)] = (uint8_t)(roll(2) ? roll(256) : roll(2) * 255);
    off_t kept = roll(4) ? length : 1 + (off_t)roll((uint32_t)length);
    HOLD(pwrite(other, bytes, (size_t)kept, 0) == kept);
    merge(both[roll(2)], 2, -1);
    free(bytes);
    close(other);
}

int main(int count, char **arguments) {
    spoil = spoil_and_merge;
    uint32_t length, changes = count > 1 ? (uint32_t)atoi(arguments[1]) : 100;
    while (fread(&length, 4, 1, stdin) == 1) {
        uint8_t *data = malloc(length ? length : 1), *copy = malloc(length ? length : 1); /* exactly as long: one byte more is an error */
        HOLD(fread(data, 1, length, stdin) == length);
        LLVMFuzzerTestOneInput(data, length);
        for (size_t torn = 0; torn < length; torn += BLOCK / 2 + roll(BLOCK)) LLVMFuzzerTestOneInput(data, torn);
        for (uint32_t i = 0; length >= BLOCK && i < changes; i++) {
            memcpy(copy, data, length);
            change(copy, length / BLOCK * BLOCK);
            LLVMFuzzerTestOneInput(copy, length);
        }
        printf("%d\n", try(data, length, 1, length + 1, -1));
        free(data), free(copy);
    }
    return 0;
}
#endif
