/* Failures in words. A name comes from a stranger: nothing of it may act on a terminal or fake a line of a log. */
#include "fault.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define SHOWN_BYTES 100u

struct shown show_bytes(const char *name, size_t size) {
    static const char hex[] = "0123456789abcdef";
    struct shown shown;
    char *out = shown.text;
    *out++ = '\'';
    for (size_t at = 0; at < size && at < SHOWN_BYTES; at++) {
        unsigned char c = (unsigned char)name[at];
        const char *letter = c == '\n' ? "n" : c == '\r' ? "r" : c == '\t' ? "t" : c == '\\' ? "\\" : c == '\'' ? "'" : NULL;
        if (letter) {
            *out++ = '\\';
            *out++ = *letter;
        } else if (c < 0x20 || c == 0x7f) {
            *out++ = '\\';
            *out++ = 'x';
            *out++ = hex[c >> 4];
            *out++ = hex[c & 15];
        } else {
            *out++ = (char)c;
        }
    }
    *out++ = '\'';
    *out = 0;
    return shown;
}

struct shown show(const char *name) {
    return show_bytes(name, strnlen(name, SHOWN_BYTES));
}

int layer_fail(struct layer_error *error, int fault, int number, const char *format, ...) {
    if (error->fault != FAULT_NONE) return -1;
    error->fault = fault;
    error->number = number;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(error->text, sizeof error->text, format, arguments);
    va_end(arguments);
    return -1;
}
