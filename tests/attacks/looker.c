/* A hostile program: it looks at each process that began after it, again and again, as fast as it can, and says what the kernel lets it have of them.
 *
 *   looker SECRET     what no variable may hold
 *   looker            hold all that it may trace, and never let go of it
 *
 * Each thing is said once, a line: "root TARGET", "cwd TARGET", "exe TARGET", "fd NUMBER TARGET", "environ VARIABLE", "maps FILE", "traced NAME". At its end,
 * which is when /tmp/over is there: "over PROCESSES". */
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static struct stat here;
static const char *secret;

static void say(const char *format, ...) {
    static char *said[512];
    static int count;
    char line[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    for (int i = 0; i < count; i++)
        if (!strcmp(said[i], line)) return;
    if (count == 512) return;
    said[count++] = strdup(line);
    puts(line);
}

static int target(int process, const char *name, char *into) {
    ssize_t n = readlinkat(process, name, into, 256);
    if (n >= 0) into[n < 255 ? n : 255] = 0;
    return n >= 0;
}

static void descriptors(int process) {
    char path[32], to[256];
    int directory = openat(process, "fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (directory < 0) return;
    for (int fd = 0; fd < 64; fd++) {
        snprintf(path, sizeof path, "%d", fd);
        if (target(directory, path, to)) say("fd %d %s", fd, to);
    }
    close(directory);
}

static ssize_t content(int process, const char *name, char *into, size_t size) {
    int fd = openat(process, name, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, into, size - 1);
    if (fd >= 0) close(fd);
    into[n < 0 ? 0 : n] = 0;
    return n;
}

static void look(int process, int pid) {
    static char text[65536];
    char to[256];
    struct stat found;
    for (const char **name = (const char *[]){"root", "cwd", 0}; *name; name++) {
        if (!target(process, *name, to)) continue;
        int foreign = strcmp(*name, "root") == 0 && fstatat(process, *name, &found, 0) == 0 && (found.st_dev != here.st_dev || found.st_ino != here.st_ino);
        say("%s %s%s", *name, to, foreign ? " (not our root)" : "");
    }
    if (target(process, "exe", to)) {
        int fd = openat(process, "exe", O_WRONLY | O_CLOEXEC);
        say("exe %s%s", to, fd < 0 ? "" : " (writable)");
        if (fd >= 0) close(fd);
    }
    descriptors(process);
    ssize_t n = content(process, "environ", text, sizeof text);
    for (ssize_t at = 0; at < n; at += (ssize_t)strlen(text + at) + 1)
        if (strstr(text + at, secret)) say("environ %s", text + at);
    if (content(process, "maps", text, sizeof text) > 0)
        for (char *line = strtok(text, "\n"); line; line = strtok(0, "\n"))
            if (strstr(line, "dockless") || strstr(line, "memfd:")) say("maps %s", strchr(line, '/') ? strchr(line, '/') : line);
    int memory = openat(process, "mem", O_RDONLY | O_CLOEXEC);
    if (memory >= 0) close(memory);
    if (content(process, "comm", text, sizeof text) > 0 && strstr(text, "dockless") && ptrace(PTRACE_SEIZE, pid, 0, 0) == 0) {
        int began = content(process, "comm", text, sizeof text) <= 0 || !strstr(text, "dockless"); /* it has waited for the end of its exec */
        if (!began) say("traced %s", strtok(text, "\n"));
        if (ptrace(PTRACE_INTERRUPT, pid, 0, 0) == 0 && waitpid(pid, 0, __WALL) == pid) ptrace(PTRACE_DETACH, pid, 0, 0);
    }
}

int main(int count, char **arguments) {
    long seen = 0;
    setvbuf(stdout, 0, _IOLBF, 0);
    secret = count > 1 ? arguments[1] : 0;
    stat("/", &here);
    puts("READY");
    while (access("/tmp/over", F_OK)) {
        DIR *all = opendir("/proc");
        for (struct dirent *one; (one = readdir(all));) {
            int pid = atoi(one->d_name);
            if (pid <= getpid()) continue;
            int process = openat(dirfd(all), one->d_name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
            if (process < 0) continue;
            seen++;
            if (secret) look(process, pid);
            else ptrace(PTRACE_SEIZE, pid, 0, 0);
            close(process);
        }
        closedir(all);
    }
    printf("over %ld\n", seen);
}
