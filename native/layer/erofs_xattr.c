/* Extended attributes as EROFS keeps them behind an inode: which are wanted, which the kernel would take, and their bytes.
 *
 * A POSIX ACL that a file system takes may also change the mode, or be no more than a mode: what setxattr(2) does is done here.
 */
#include "erofs_tree.h"

#include <errno.h>
#include <string.h>

#include "xattrs.h"

enum { INDEX_USER = 1, INDEX_ACL_ACCESS = 2, INDEX_ACL_DEFAULT = 3, INDEX_TRUSTED = 4, INDEX_SECURITY = 6 };

#define VALUE_MAX 65535u
#define BODY_MAX (65534u * 4) /* what the inode's count of 4-byte units can say, less room for an opaque mark */

static const struct {
    const char *prefix;
    int index, whole;
} KEPT[] = {
    {"user.", INDEX_USER, 0},
    {"system.posix_acl_access", INDEX_ACL_ACCESS, 1},
    {"system.posix_acl_default", INDEX_ACL_DEFAULT, 1},
    {"security.capability", INDEX_SECURITY, 1},
};

static int starts(const char *name, const char *with) {
    return strncmp(name, with, strlen(with)) == 0;
}

static uint32_t le32(const unsigned char *at) {
    return (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

/* -- POSIX ACLs ----------------------------------------------------------------------------------------------------------------------- */

enum { ACL_USER_OBJ = 1, ACL_USER = 2, ACL_GROUP_OBJ = 4, ACL_GROUP = 8, ACL_MASK = 16, ACL_OTHER = 32 };

/* Whether an ACL is one: each entry in its place. *mode gets the permission bits that it means, *is_mode whether it says no more than these.
 * linux: posix_acl_from_xattr, posix_acl_valid, posix_acl_equiv_mode */
static int acl_valid(const unsigned char *value, size_t size, uint16_t *mode, int *is_mode) {
    if (size < 4 || (size - 4) % 8 || le32(value) != 2) return 0;
    unsigned next = ACL_USER_OBJ;
    int masked = 0;
    *mode = 0;
    *is_mode = 1;
    for (size_t at = 4; at < size; at += 8) {
        unsigned tag = value[at] | (unsigned)value[at + 1] << 8, perm = value[at + 2] | (unsigned)value[at + 3] << 8;
        if (perm > 7) return 0;
        if (tag == ACL_USER_OBJ && next == ACL_USER_OBJ) {
            *mode |= (uint16_t)(perm << 6);
            next = ACL_USER;
        } else if (tag == ACL_USER && next == ACL_USER && le32(value + at + 4) != UINT32_MAX) {
            masked = 1;
        } else if (tag == ACL_GROUP_OBJ && next == ACL_USER) {
            *mode |= (uint16_t)(perm << 3);
            next = ACL_GROUP;
        } else if (tag == ACL_GROUP && next == ACL_GROUP && le32(value + at + 4) != UINT32_MAX) {
            masked = 1;
        } else if (tag == ACL_MASK && next == ACL_GROUP) {
            *mode = (uint16_t)((*mode & ~070) | perm << 3);
            *is_mode = 0;
            next = ACL_OTHER;
        } else if (tag == ACL_OTHER && (next == ACL_OTHER || (next == ACL_GROUP && !masked))) {
            *mode |= (uint16_t)perm;
            next = 0;
        } else {
            return 0;
        }
    }
    return next == 0;
}

/* 1 to keep it, 0 where it changed no more than the mode, or the warning that says why not, negated. */
static int acl(struct inode *inode, int access, const unsigned char *value, size_t size) {
    uint16_t mode;
    int is_mode;
    if (S_ISLNK(inode->mode)) return -WARN_EOPNOTSUPP;
    if (!access && !S_ISDIR(inode->mode)) return -WARN_EACCES;
    if (!acl_valid(value, size, &mode, &is_mode)) return -WARN_EINVAL;
    if (!access) return 1;
    inode->mode = (uint16_t)((inode->mode & ~0777) | mode);
    return !is_mode;
}

/* linux: cap_convert_nscap */
static int capability_valid(const unsigned char *value, size_t size) {
    if (size < 4) return 0;
    unsigned revision = value[3];
    return (revision == 2 && size == 20) || (revision == 3 && size == 24 && le32(value + 20) != UINT32_MAX);
}

/* -- the entries of one inode, put together in the scratch ----------------------------------------------------------------------------- */

int erofs_xattr_begin(struct erofs_index *index) {
    index->scratch.used = 0;
    if (erofs_grow(index, &index->scratch, 4) < 0) return -1;
    memset(index->scratch.at, 0, 4);
    index->scratch.used = 4;
    return 0;
}

int erofs_xattr_add(struct erofs_index *index, struct inode *inode, const char *name, const void *value, size_t size, const char *of) {
    enum xattr_verdict verdict = xattr_wanted(name, 1);
    if (verdict == XATTR_DROP_OVERLAY) erofs_warn(index, WARN_OBEYED, name, of);
    if (verdict != XATTR_KEEP) return 0;
    int kind = 0;
    const char *rest = "";
    for (size_t i = 0; i < sizeof KEPT / sizeof *KEPT; i++) {
        if (KEPT[i].whole ? strcmp(name, KEPT[i].prefix) : !starts(name, KEPT[i].prefix)) continue;
        kind = KEPT[i].index;
        rest = kind == INDEX_USER ? name + strlen("user.") : kind == INDEX_SECURITY ? name + strlen("security.") : "";
    }
    if (!kind) return 0;
    int keep = 1;
    if (kind == INDEX_USER) {
        if (!S_ISREG(inode->mode) && !S_ISDIR(inode->mode)) keep = -WARN_EPERM;
        else if (strlen(name) > EROFS_NAME_MAX) keep = -WARN_ERANGE;
        else if (!*rest) keep = -WARN_EINVAL;
    } else if (kind == INDEX_SECURITY) {
        if (!capability_valid(value, size)) keep = -WARN_EINVAL;
    } else {
        keep = acl(inode, kind == INDEX_ACL_ACCESS, value, size);
    }
    if (keep < 0) erofs_warn(index, (enum warning)-keep, name, of);
    if (keep <= 0) return 0;
    size_t length = strlen(rest), whole = (4 + length + size + 3) & ~(size_t)3;
    struct bytes *scratch = &index->scratch;
    if (size > VALUE_MAX || scratch->used + whole > BODY_MAX) return erofs_decline(index, of, "has larger extended attributes than an index can hold");
    if (erofs_grow(index, scratch, whole) < 0) return -1;
    unsigned char *at = scratch->at + scratch->used;
    memset(at, 0, whole);
    at[0] = (unsigned char)length;
    at[1] = (unsigned char)kind;
    at[2] = (unsigned char)(size & 0xff);
    at[3] = (unsigned char)(size >> 8);
    memcpy(at + 4, rest, length);
    if (size) memcpy(at + 4 + length, value, size);
    scratch->used += whole;
    return 0;
}

/* Give what was put together to an inode. A directory that is listed again would have to be given the union, which no honest layer needs. */
int erofs_xattr_end(struct erofs_index *index, uint32_t number, const char *of) {
    struct bytes *scratch = &index->scratch;
    uint32_t size = (uint32_t)scratch->used - 4, before = index->inodes[number].xattrs;
    memcpy(scratch->at, &size, 4);
    if (before) {
        const unsigned char *kept = index->arena.at + before;
        if (memcmp(kept, scratch->at, 4) || memcmp(kept, scratch->at, scratch->used)) {
            return erofs_decline(index, of, "is listed twice, with other extended attributes");
        }
        return 0;
    }
    if (!size) return 0;
    uint32_t offset = erofs_keep(index, scratch->at, scratch->used);
    if (!offset) return -1;
    index->inodes[number].xattrs = offset;
    return 0;
}
