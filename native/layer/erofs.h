/* An EROFS index over an uncompressed tar: the layer's tree, whose files' data stays where it is in the archive.
 *
 *   members of the tar ──► a tree in memory ──► names sorted, places given ──► index file     mount: erofs, source=index, device=tar
 *
 * The tree follows the rules of the layer writer to the letter (whiteouts, opaque marks, the last entry of a name wins, what is unsafe). What
 * such an index cannot say is declined with FAULT_DECLINED before any file is written.
 *
 * https://docs.kernel.org/filesystems/erofs.html, https://erofs.docs.kernel.org/en/latest/ondisk/
 */
#ifndef DOCKLESS_EROFS_H
#define DOCKLESS_EROFS_H

#include <stdint.h>

#include "tar.h"

struct erofs_index;

/* base: no layers lie below, so whiteouts hide nothing and parents that are not listed are 0755 root. NULL: no memory. */
struct erofs_index *erofs_index_new(int base, uint64_t size_max, uint64_t entries_max);
const struct layer_error *erofs_index_error(const struct erofs_index *index);
int erofs_index_feed(struct erofs_index *index, const void *bytes, uint64_t size); /* 0, or -1 and an error */

/* Whether there are whiteouts so far, or entries in directories that the archive has not listed: `finish` looks for them in the layers below. */
int erofs_index_looks_below(const struct erofs_index *index);
/* After the last byte. Writes the index to the empty file fd. lower: descriptors of the root directories of the layers below, top first. Directories
 * that the archive does not list get owner, mode, times and xattrs from there; whiteouts that hide nothing are left out, since a directory which is
 * this layer's alone would show them. The topmost one is enough where `looks_below` is not. 0, or -1 and an error. */
int erofs_index_finish(struct erofs_index *index, int fd, const int *lower, int lower_count);

/* One index of several layers, into the empty file fd: what overlayfs would show of them. sources: open index files of all of these layers, bottom
 * first; each has one tar, and the tars of all are the devices of the new index in the same order. Nothing may have been fed. 0, or -1 and an error. */
int erofs_index_merge(struct erofs_index *index, int fd, const int *sources, int count);

uint64_t erofs_index_size(const struct erofs_index *index);    /* bytes of file content */
uint64_t erofs_index_entries(const struct erofs_index *index); /* members */
int erofs_index_warning(const struct erofs_index *index, int number, char *text, int size); /* the number-th sort: how many of it, 0 for none */
void erofs_index_free(struct erofs_index *index);

#endif
