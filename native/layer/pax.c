/* PAX records and the numbers, times and extended attributes in them.
 *
 * https://pubs.opengroup.org/onlinepubs/9799919799/utilities/pax.html, https://www.gnu.org/software/tar/manual/html_node/PAX-keywords.html
 */
#include "pax.h"

#include <stdlib.h>
#include <string.h>

static const char *const FIELD_NAMES[PAX_FIELDS] = {
    "path", "linkpath", "size", "uid", "gid", "mtime",
    "GNU.sparse.name", "GNU.sparse.realsize", "GNU.sparse.size", "GNU.sparse.major", "GNU.sparse.minor", "GNU.sparse.map",
};
static const char SCHILY[] = "SCHILY.xattr.", LIBARCHIVE[] = "LIBARCHIVE.xattr.", SPARSE[] = "GNU.sparse.";

struct record {
    struct slice key, value;
};

static int starts(const char *text, const char *with) {
    return !strncmp(text, with, strlen(with));
}

static int is_digit(char c) {
    return c >= '0' && c <= '9';
}

int pax_decimal(const char *text, size_t size, uint64_t *value, struct layer_error *error) {
    uint64_t sum = 0;
    int sound = size >= 1 && size <= 20;
    for (size_t at = 0; sound && at < size; at++) {
        if (!is_digit(text[at])) sound = 0;
        else if (sum > (UINT64_MAX - 9) / 10) sum = UINT64_MAX; /* far beyond every limit: no need to know how far */
        else sum = sum * 10 + (uint64_t)(text[at] - '0');
    }
    if (!sound) return layer_fail(error, FAULT_MALFORMED, 0, "%s is not a number", show_bytes(text, size).text);
    *value = sum;
    return 0;
}

int pax_time(const struct slice *text, int64_t *seconds, uint32_t *ns, struct layer_error *error) {
    const char *c = text->at, *end = c + text->size;
    int negative = c < end && *c == '-';
    if (negative) c++;
    uint64_t whole = 0;
    uint32_t part = 0;
    int digits = 0;
    for (; c < end && is_digit(*c); c++, digits++)
        if (digits < 18) whole = whole * 10 + (uint64_t)(*c - '0');
    int sound = digits >= 1 && digits <= 18;
    if (sound && c < end && *c == '.') {
        uint32_t unit = 100000000;
        for (c++; c < end && is_digit(*c); c++, unit /= 10) part += (uint32_t)(*c - '0') * unit;
    }
    if (!sound || c != end) return layer_fail(error, FAULT_MALFORMED, 0, "the time %s is malformed", show_bytes(text->at, text->size).text);
    *seconds = negative ? -(int64_t)whole : (int64_t)whole;
    *ns = part;
    if (negative && part) {
        --*seconds;
        *ns = 1000000000u - part;
    }
    return 0;
}

int segments_add(struct segments *segments, uint64_t offset, uint64_t length, struct layer_error *error) {
    if (segments->count >= TAR_SEGMENTS_MAX) return layer_fail(error, FAULT_MALFORMED, 0, "a sparse map is too long");
    if (segments->count == segments->capacity) {
        uint32_t capacity = segments->capacity ? segments->capacity * 2 : 64;
        struct tar_segment *items = realloc(segments->items, capacity * sizeof *items);
        if (!items) return layer_fail(error, FAULT_SYSTEM, 12, "out of memory");
        segments->items = items;
        segments->capacity = capacity;
    }
    segments->items[segments->count++] = (struct tar_segment){offset, length};
    return 0;
}

/* The record at *at, which moves behind it. Key and value get a NUL in the place of "=" and of the newline. */
static int next_record(char *content, size_t size, size_t *at, struct record *record, struct layer_error *error) {
    char *start = content + *at, *end = content + size;
    uint64_t length = 0;
    size_t digits = 0;
    while (start + digits < end && digits < 20 && is_digit(start[digits])) digits++;
    if (!digits || start + digits == end || start[digits] != ' ') return layer_fail(error, FAULT_MALFORMED, 0, "a PAX record has no length");
    if (pax_decimal(start, digits, &length, error)) return -1;
    if (length > (uint64_t)(end - start) || length < digits + 2 || start[length - 1] != '\n')
        return layer_fail(error, FAULT_MALFORMED, 0, "a PAX record's length is wrong");
    char *key = start + digits + 1, *last = start + length - 1;
    char *equals = memchr(key, '=', (size_t)(last - key));
    if (!equals || equals == key || memchr(key, 0, (size_t)(equals - key)))
        return layer_fail(error, FAULT_MALFORMED, 0, "a PAX record has no key");
    *equals = *last = 0;
    record->key = (struct slice){key, (size_t)(equals - key)};
    record->value = (struct slice){equals + 1, (size_t)(last - equals - 1)};
    *at += length;
    return 0;
}

static int hex_digit(char c) {
    if (is_digit(c)) return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
}

/* %41 → A, in place. */
static void unescape(struct slice *name) {
    size_t to = 0;
    for (size_t at = 0; at < name->size; at++, to++) {
        int high = at + 2 < name->size && name->at[at] == '%' ? hex_digit(name->at[at + 1]) : -1;
        int low = high >= 0 ? hex_digit(name->at[at + 2]) : -1;
        if (low >= 0) {
            name->at[to] = (char)(high << 4 | low);
            at += 2;
        } else {
            name->at[to] = name->at[at];
        }
    }
    name->at[to] = 0;
    name->size = to;
}

/* Base64 in place, with or without padding. 0: it is none. */
static int unbase64(struct slice *value) {
    static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    uint32_t bits = 0;
    int count = 0;
    size_t to = 0;
    for (size_t at = 0; at < value->size && value->at[at] != '='; at++) {
        const char *letter = value->at[at] ? strchr(letters, value->at[at]) : NULL;
        if (!letter) continue;
        bits = bits << 6 | (uint32_t)(letter - letters);
        count += 6;
        if (count < 8) continue;
        count -= 8;
        value->at[to++] = (char)(bits >> count & 0xff);
    }
    value->at[to] = 0;
    value->size = to;
    return count < 6;
}

/* star and GNU tar write raw bytes, libarchive base64 under an escaped name; where both do, the raw one counts. */
static int add_xattr(struct pax *pax, struct slice name, struct slice value, int escaped, struct layer_error *error) {
    if (escaped) {
        unescape(&name);
        if (!unbase64(&value)) return 0;
    }
    if (strlen(name.at) != name.size) return layer_fail(error, FAULT_MALFORMED, 0, "an extended attribute's name has a NUL byte");
    if (!name.size) return 0;
    uint32_t at = 0;
    while (at < pax->xattr_count && strcmp(pax->xattrs[at].name, name.at)) at++;
    if (at == TAR_XATTRS_MAX) return layer_fail(error, FAULT_MALFORMED, 0, "a member has more than %u extended attributes", TAR_XATTRS_MAX);
    if (at < pax->xattr_count && escaped > pax->escaped[at]) return 0;
    if (at == pax->xattr_count) pax->xattr_count++;
    pax->xattrs[at] = (struct tar_xattr){name.at, value.at, (uint32_t)value.size};
    pax->escaped[at] = (uint8_t)escaped;
    return 0;
}

static struct slice behind(struct slice text, const char *prefix) {
    size_t size = strlen(prefix);
    return (struct slice){text.at + size, text.size - size};
}

/* Sparse 0.0: keys that repeat, an offset and a length in turns. */
static int add_pair(struct pax *pax, struct segments *segments, int is_length, struct slice value, struct layer_error *error) {
    uint64_t number;
    if (pax_decimal(value.at, value.size, &number, error)) return -1;
    if (is_length != pax->half) pax->unpaired = 1;
    pax->half = !is_length;
    if (!is_length) return segments_add(segments, number, 0, error);
    if (segments->count) segments->items[segments->count - 1].length = number;
    return 0;
}

int pax_parse(struct pax *pax, char *content, size_t size, struct segments *segments, struct layer_error *error) {
    struct record record;
    segments->count = 0;
    for (size_t at = 0; at < size;) {
        if (next_record(content, size, &at, &record, error)) return -1;
        const char *key = record.key.at;
        if (starts(key, SCHILY)) {
            if (add_xattr(pax, behind(record.key, SCHILY), record.value, 0, error)) return -1;
            continue;
        }
        if (starts(key, LIBARCHIVE)) {
            if (add_xattr(pax, behind(record.key, LIBARCHIVE), record.value, 1, error)) return -1;
            continue;
        }
        int is_sparse = starts(key, SPARSE);
        if (is_sparse) {
            pax->sparse = 1;
            int is_length = !strcmp(key, "GNU.sparse.numbytes");
            if (is_length || !strcmp(key, "GNU.sparse.offset")) {
                if (add_pair(pax, segments, is_length, record.value, error)) return -1;
                continue;
            }
        }
        int field = 0;
        while (field < PAX_FIELDS && strcmp(key, FIELD_NAMES[field])) field++;
        if (field == PAX_FIELDS) continue;
        int is_name = field == PAX_PATH || field == PAX_LINKPATH || field == PAX_SPARSE_NAME;
        if (is_name && strlen(record.value.at) != record.value.size) return layer_fail(error, FAULT_MALFORMED, 0, "a PAX name has a NUL byte");
        /* An empty value takes an earlier one back. */
        pax->fields[field] = record.value.size || is_sparse ? record.value : (struct slice){NULL, 0};
    }
    return 0;
}

int pax_check_global(char *content, size_t size, struct layer_error *error) {
    static const char *const harmless[] = {"comment", "charset", "hdrcharset", "mtime", "atime", "ctime", "uname", "gname"};
    struct record record;
    for (size_t at = 0; at < size;) {
        if (next_record(content, size, &at, &record, error)) return -1;
        const char *key = record.key.at;
        int understood = starts(key, SCHILY) || starts(key, LIBARCHIVE) || starts(key, "GNU.") || starts(key, "RHT.");
        int sound = !understood && strchr(key, '.') != NULL; /* a vendor's own key */
        for (size_t n = 0; !sound && n < sizeof harmless / sizeof *harmless; n++) sound = !strcmp(key, harmless[n]);
        if (!sound && (record.value.size || understood))
            return layer_fail(error, FAULT_MALFORMED, 0, "a global PAX header sets %s, which readers understand differently", show(key).text);
    }
    return 0;
}
