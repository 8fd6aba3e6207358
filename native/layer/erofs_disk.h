/* The records of an index as they lie on the disk. Numbers are little-endian, as both processors that we know are.
 *
 * https://erofs.docs.kernel.org/en/latest/ondisk/core_ondisk.html
 */
#ifndef DOCKLESS_EROFS_DISK_H
#define DOCKLESS_EROFS_DISK_H

#include <stdint.h>

#include "tar.h"

#define BLOCK TAR_BLOCK
#define SLOT 32u
#define SUPER_AT 1024u
#define DEVICES_AT 1152u
#define CHUNK_BITS_MAX 31u /* in blocks: 1 TiB */
#define DIRENTS_MAX (BLOCK / 13)

#define EROFS_MAGIC 0xe0f5e1e2u

enum { FEATURE_MTIME = 2, FEATURE_CHUNKED_FILE = 4, FEATURE_DEVICE_TABLE = 8 };
enum { LAYOUT_PLAIN = 0, LAYOUT_INLINE = 2, LAYOUT_CHUNKS = 4, CHUNK_INDEXES = 0x20, EXTENDED = 1 };

struct disk_super {
    uint32_t magic, checksum, feature_compat;
    uint8_t block_bits, ext_slots;
    uint16_t root_nid;
    uint64_t inodes, build_time;
    uint32_t build_time_ns, blocks, meta_block, xattr_block;
    uint8_t uuid[16], name[16];
    uint32_t feature_incompat;
    uint16_t compression, extra_devices, device_slot;
    uint8_t dir_block_bits, xattr_prefixes;
    uint32_t xattr_prefix_start;
    uint64_t packed_nid;
    uint8_t reserved[24];
};

struct disk_device {
    uint8_t tag[64];
    uint32_t blocks, mapped_block;
    uint8_t reserved[56];
};

struct disk_inode {
    uint16_t format, xattr_units, mode, reserved;
    uint64_t size;
    uint32_t where, number, uid, gid;
    int64_t mtime;
    uint32_t mtime_ns, links;
    uint8_t reserved2[16];
};

struct disk_xattrs {
    uint32_t filter;
    uint8_t shared, reserved[7];
};

struct disk_chunk {
    uint16_t advise, device;
    uint32_t block;
};

struct __attribute__((packed)) disk_dirent {
    uint64_t nid;
    uint16_t name_at;
    uint8_t type, reserved;
};

_Static_assert(sizeof(struct disk_super) == 128 && sizeof(struct disk_device) == 128 && sizeof(struct disk_inode) == 64, "as on disk");
_Static_assert(sizeof(struct disk_xattrs) == 12 && sizeof(struct disk_chunk) == 8 && sizeof(struct disk_dirent) == 12, "as on disk");
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "numbers are written as they lie in memory");

#endif
