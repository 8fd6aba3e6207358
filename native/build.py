"""The cffi side of the extension: declarations and sources. Run by setuptools (``cffi_modules``), never imported at run time."""

from cffi import FFI

FOLDERS = ("", "launcher", "layer")
LAYER = (
    *("fault.c", "pax.c", "tar.c", "tar_member.c", "lister.c", "survey.c"),
    *("layer.c", "layer_dirs.c", "layer_whiteouts.c", "layer_members.c", "layer_meta.c", "lower.c", "pathset.c"),
    *("erofs.c", "erofs_below.c", "erofs_layout.c", "erofs_merge.c", "erofs_xattr.c"),
)
SOURCES = ["clone.c", "door.c", "netns.c", "shim.c", "launcher/plan.c", "launcher/remove.c", *(f"layer/{name}" for name in LAYER)]

ffi = FFI()
ffi.cdef(
    """
    int shim_launch(int launcher_fd, const char *name, int count, const int *sources, const int *slots, int cgroup_fd,
                    int new_userns, int *pidfd);
    int shim_start_apart(const char *path, char *const *arguments, int count, const int *sources, const int *slots);
    int shim_door(const char *path);
    int shim_enter(const char *path, int keeper, int count, const int *sources, const int *slots, int *pidfd);
    int shim_extend(const char *path, int keeper, uint64_t ns);
    int shim_netns(int userns, int *netns);
    int shim_socket_in(int userns, int netns, int domain, int type, int protocol);
    int shim_setting_in(int userns, int netns, const char *path, int flags);
    int shim_launcher_memfd(void);
    int shim_agent_memfd(void);
    int shim_openat2(int dirfd, const char *path, uint64_t flags, uint64_t mode, uint64_t resolve);
    int shim_bpf_load(const void *insns, int count, char *log, int log_size);
    int shim_bpf_attach(int cgroup_fd, int prog_fd, int flags);
    int shim_syscall(long number, long a, long b, long c, long d, long e, long f);
    int shim_timer(int fd, uint64_t ns);
    int shim_inotify(void);
    int shim_inotify_add(int fd, const char *path, uint32_t mask);
    int shim_inotify_remove(int fd, int watch);
    int shim_op_count(void);
    const char *shim_op_name(int code);
    int shim_op_shape(int code, char *shape);
    int plan_validate(const void *plan, uint64_t size, int *bad_op);

    struct layer_error { int fault; int number; uint64_t missing; char text[1152]; };
    struct lister;
    struct lister *lister_new(uint64_t members_max);
    int lister_feed(struct lister *lister, const void *bytes, size_t size);
    uint64_t lister_left(const struct lister *lister);
    int lister_skip(struct lister *lister, uint64_t size);
    int lister_finish(struct lister *lister);
    int lister_ended(const struct lister *lister);
    const struct layer_error *lister_error(const struct lister *lister);
    size_t lister_taken(struct lister *lister, const void **bytes);
    void lister_free(struct lister *lister);

    struct survey_entry {
        uint64_t ino, dev, size, blocks, rdev;
        int64_t mtime, ctime;
        uint32_t mode, uid, gid, nlink, parent, name_at, name_size, first, count, flags;
    };
    struct survey;
    struct survey *survey_new(void);
    int survey_take(struct survey *survey, int root, const struct survey *before, uint32_t entries_max);
    int survey_index(struct survey *survey);
    uint32_t survey_count(const struct survey *survey);
    const struct survey_entry *survey_entries(const struct survey *survey);
    const char *survey_names(const struct survey *survey);
    uint64_t survey_names_size(const struct survey *survey);
    uint32_t survey_changed(const struct survey *survey, uint32_t from);
    void survey_void(struct survey *survey, uint32_t entry);
    int survey_path(const struct survey *survey, uint32_t entry, char *path);
    void survey_free(struct survey *survey);
    int survey_trusts(int fd);
    int survey_flush(int fd);

    struct writer;
    struct writer *writer_new(int target, int as_root, uint64_t size_max, uint64_t entries_max, uint64_t reserve);
    int writer_set_lower(struct writer *writer, const int *fds, int count);
    void writer_abort(struct writer *writer);
    int writer_feed(struct writer *writer, const void *bytes, size_t size);
    int writer_finish(struct writer *writer);
    const struct layer_error *writer_error(const struct writer *writer);
    uint64_t writer_size(const struct writer *writer);
    uint64_t writer_entries(const struct writer *writer);
    const char *writer_warning(struct writer *writer, int n);
    void writer_free(struct writer *writer);

    struct erofs_index;
    struct erofs_index *erofs_index_new(int base, uint64_t size_max, uint64_t entries_max);
    const struct layer_error *erofs_index_error(const struct erofs_index *index);
    int erofs_index_feed(struct erofs_index *index, const void *bytes, uint64_t size);
    int erofs_index_looks_below(const struct erofs_index *index);
    int erofs_index_finish(struct erofs_index *index, int fd, const int *lower, int lower_count);
    int erofs_index_merge(struct erofs_index *index, int fd, const int *sources, int count);
    uint64_t erofs_index_size(const struct erofs_index *index);
    uint64_t erofs_index_entries(const struct erofs_index *index);
    int erofs_index_warning(const struct erofs_index *index, int number, char *text, int size);
    void erofs_index_free(struct erofs_index *index);
    """
)
ffi.set_source(
    "dockless.native._native",
    '#include "shim.h"\n#include "plan.h"\n#include "lister.h"\n#include "survey.h"\n#include "layer.h"\n#include "erofs.h"\n',
    sources=[f"src/dockless/native/{name}" for name in SOURCES],
    include_dirs=[f"src/dockless/native/{folder}" for folder in FOLDERS],
    py_limited_api=True,
    extra_compile_args=["-O2", "-Wall", "-fno-strict-aliasing", "-fvisibility=hidden"],
)
