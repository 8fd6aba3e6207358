/* The layer writer: one tar stream becomes one directory, in the form overlayfs takes as a lower layer. */
#ifndef DOCKLESS_LAYER_H
#define DOCKLESS_LAYER_H

#include "fault.h"

struct writer;

/* `target`: a descriptor of a fresh directory that nobody else changes; it is duplicated. `reserve`: bytes of its file system that stay free. */
struct writer *writer_new(int target, int as_root, uint64_t size_max, uint64_t entries_max, uint64_t reserve);

/* The directories of the layers below, top first; duplicated. Once, from any thread, at any time: a writer that must look below waits for it. */
int writer_set_lower(struct writer *writer, const int *fds, int count);
void writer_abort(struct writer *writer); /* from any thread: the writer fails soon */

int writer_feed(struct writer *writer, const void *bytes, size_t size); /* 0, or -1: see the error */
int writer_finish(struct writer *writer);

const struct layer_error *writer_error(const struct writer *writer);
uint64_t writer_size(const struct writer *writer);    /* bytes of content written */
uint64_t writer_entries(const struct writer *writer); /* members seen */
const char *writer_warning(struct writer *writer, int n); /* NULL behind the last */
void writer_free(struct writer *writer);

#endif
