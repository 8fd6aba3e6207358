/* Which extended attributes of an image reach the disk. Those that overlayfs itself would obey never do (attack A11). */
#ifndef DOCKLESS_XATTRS_H
#define DOCKLESS_XATTRS_H

#include <string.h>

enum xattr_verdict {
    XATTR_KEEP,
    XATTR_DROP,         /* security.selinux, security.ima …: the host's policy, not the image's */
    XATTR_DROP_OVERLAY, /* overlayfs or the host would obey it: worth a warning */
    XATTR_DROP_ROOT,    /* only root can keep it: worth a warning */
};

static inline enum xattr_verdict xattr_wanted(const char *key, int as_root) {
    if (!strncmp(key, "trusted.", 8) || !strncmp(key, "user.overlay.", 13)) return XATTR_DROP_OVERLAY;
    if (!strncmp(key, "user.", 5)) return XATTR_KEEP;
    if (!strcmp(key, "security.capability") || !strcmp(key, "system.posix_acl_access") || !strcmp(key, "system.posix_acl_default"))
        return as_root ? XATTR_KEEP : XATTR_DROP_ROOT;
    return XATTR_DROP;
}

#endif
