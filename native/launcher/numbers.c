/* The numbers that a file of the kernel's lists, whatever is between them: cgroup.procs. */
#include "launcher.h"

int open_numbers(struct numbers *from, int directory, const char *path) {
    from->fd = (int)sys(NR_openat, directory, path, O_CLOEXEC_, 0);
    from->at = from->size = 0;
    return from->fd < 0 ? -1 : 0;
}

int32_t next_number(struct numbers *from) {
    for (int32_t number = 0;;) {
        if (from->at == from->size) {
            from->at = 0;
            from->size = (int)sys(NR_read, from->fd, from->text, sizeof from->text);
            if (from->size <= 0) {
                from->size = 0;
                return number;
            }
        }
        char c = from->text[from->at++];
        if (c >= '0' && c <= '9')
            number = number * 10 + (c - '0');
        else if (number)
            return number;
    }
}

void close_numbers(struct numbers *from) {
    sys(NR_close, from->fd);
}
