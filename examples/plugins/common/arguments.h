/* Reads the arguments of a call: one flat JSON object on standard input. Texts and numbers are found by name; whatever
 * else the object holds is passed over. Palyra has checked them against the schema of the manifest before. */
#ifndef ARGUMENTS_H
#define ARGUMENTS_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char *arguments_;

static void fail(const char *why, const char *what) {
    fprintf(stderr, "%s%s%s\n", why, what[0] ? ": " : "", what);
    exit(1);
}

static void read_arguments(void) {
    size_t size = 0, room = 1 << 16;
    arguments_ = malloc(room);
    for (size_t got; arguments_ && (got = fread(arguments_ + size, 1, room - size - 1, stdin)) > 0;) {
        size += got;
        if (room - size < 2) arguments_ = realloc(arguments_, room *= 2);
    }
    if (!arguments_) fail("the arguments are too long", "");
    arguments_[size] = 0;
}

static const char *skip_blanks(const char *at) {
    while (*at == ' ' || *at == '\t' || *at == '\n' || *at == '\r') at++;
    return at;
}

/* Return what follows a value. */
static const char *skip_value(const char *at) {
    int depth = 0, quoted = 0;
    for (; *at; at++) {
        if (quoted) {
            if (*at == '\\' && at[1]) at++;
            else if (*at == '"') quoted = 0;
        } else if (*at == '"') quoted = 1;
        else if (*at == '{' || *at == '[') depth++;
        else if (*at == '}' || *at == ']') {
            if (depth == 0) return at;
            depth--;
        } else if (*at == ',' && depth == 0) return at;
    }
    return at;
}

/* Return where the value of that name begins, or NULL. Names are compared as they are written. */
static const char *value_of(const char *name) {
    size_t length = strlen(name);
    const char *at = skip_blanks(arguments_);
    if (*at != '{') return NULL;
    at = skip_blanks(at + 1);
    while (*at == '"') {
        const char *key = at + 1;
        for (at = key; *at && *at != '"'; at++)
            if (*at == '\\' && at[1]) at++;
        int found = (size_t)(at - key) == length && memcmp(key, name, length) == 0;
        at = skip_blanks(*at ? at + 1 : at);
        if (*at != ':') return NULL;
        at = skip_blanks(at + 1);
        if (found) return at;
        at = skip_blanks(skip_value(at));
        if (*at != ',') return NULL;
        at = skip_blanks(at + 1);
    }
    return NULL;
}

static unsigned hexadecimal(const char *at) {
    char digits[5] = {0};
    strncpy(digits, at, 4);
    return (unsigned)strtoul(digits, NULL, 16);
}

static char *put_character(char *to, unsigned code) {
    if (code < 0x80) *to++ = (char)code;
    else if (code < 0x800) *to++ = (char)(0xC0 | code >> 6), *to++ = (char)(0x80 | (code & 63));
    else if (code < 0x10000)
        *to++ = (char)(0xE0 | code >> 12), *to++ = (char)(0x80 | (code >> 6 & 63)), *to++ = (char)(0x80 | (code & 63));
    else
        *to++ = (char)(0xF0 | code >> 18), *to++ = (char)(0x80 | (code >> 12 & 63)),
        *to++ = (char)(0x80 | (code >> 6 & 63)), *to++ = (char)(0x80 | (code & 63));
    return to;
}

/* Return a text, or `otherwise` if there is none of that name. */
static const char *text_of(const char *name, const char *otherwise) {
    const char *at = value_of(name);
    if (!at || *at != '"') return otherwise;
    char *text = malloc(strlen(at) + 1), *to = text;
    if (!text) fail("there is too little memory", "");
    for (at++; *at && *at != '"'; at++) {
        if (*at != '\\') {
            *to++ = *at;
            continue;
        }
        switch (*++at) {
        case 'n': *to++ = '\n'; break;
        case 't': *to++ = '\t'; break;
        case 'r': *to++ = '\r'; break;
        case 'b': *to++ = '\b'; break;
        case 'f': *to++ = '\f'; break;
        case 'u': {
            unsigned code = hexadecimal(at + 1);
            at += 4;
            if (code >= 0xD800 && code < 0xDC00 && at[1] == '\\' && at[2] == 'u') {
                code = 0x10000 + ((code - 0xD800) << 10) + (hexadecimal(at + 3) - 0xDC00);
                at += 6;
            }
            to = put_character(to, code);
            break;
        }
        default: *to++ = *at;
        }
    }
    *to = 0;
    return text;
}

/* Write a text as JSON. */
static void print_text(const char *text) {
    putchar('"');
    for (const unsigned char *at = (const unsigned char *)text; *at; at++) {
        if (*at == '"' || *at == '\\') printf("\\%c", *at);
        else if (*at < 0x20) printf("\\u%04x", *at);
        else putchar(*at);
    }
    putchar('"');
}

#endif
