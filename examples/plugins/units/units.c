/* Converts between units. It needs nothing: no files, no network. */
#include "../common/arguments.h"

#include <math.h>

typedef struct {
    const char *name, *kind;
    double factor, offset; /* to the base of its kind: value * factor + offset */
} Unit;

static const Unit UNITS[] = {
    {"mm", "length", 0.001, 0},       {"cm", "length", 0.01, 0},      {"m", "length", 1, 0},
    {"km", "length", 1000, 0},        {"in", "length", 0.0254, 0},    {"ft", "length", 0.3048, 0},
    {"yd", "length", 0.9144, 0},      {"mi", "length", 1609.344, 0},  {"nmi", "length", 1852, 0},
    {"g", "mass", 0.001, 0},          {"kg", "mass", 1, 0},           {"t", "mass", 1000, 0},
    {"oz", "mass", 0.028349523125, 0}, {"lb", "mass", 0.45359237, 0}, {"C", "temperature", 1, 273.15},
    {"F", "temperature", 5.0 / 9, 459.67 * 5 / 9}, {"K", "temperature", 1, 0},
    {"ml", "volume", 0.001, 0},       {"l", "volume", 1, 0},          {"gal", "volume", 3.785411784, 0},
    {"B", "data", 1, 0},              {"kB", "data", 1e3, 0},         {"MB", "data", 1e6, 0},
    {"GB", "data", 1e9, 0},           {"KiB", "data", 1024, 0},       {"MiB", "data", 1048576, 0},
    {"GiB", "data", 1073741824, 0},   {"s", "time", 1, 0},            {"min", "time", 60, 0},
    {"h", "time", 3600, 0},           {"d", "time", 86400, 0},
};
enum { COUNT = sizeof UNITS / sizeof *UNITS };

static const Unit *find(const char *name) {
    for (int i = 0; i < COUNT; i++)
        if (strcmp(UNITS[i].name, name) == 0) return &UNITS[i];
    fail("there is no unit of that name; the tool list names them", name);
    return NULL;
}

static void convert(void) {
    const char *given = value_of("value");
    if (!given) fail("a value is missing", "");
    double value = strtod(given, NULL);
    const Unit *from = find(text_of("from", "")), *to = find(text_of("to", ""));
    if (strcmp(from->kind, to->kind) != 0) {
        fprintf(stderr, "%s is a unit of %s, and %s one of %s\n", from->name, from->kind, to->name, to->kind);
        exit(1);
    }
    double result = (value * from->factor + from->offset - to->offset) / to->factor;
    if (!isfinite(result)) fail("the value is too large", "");
    printf("{\"value\": %.12g, \"unit\": \"%s\"}\n", result, to->name);
}

static void list(void) {
    printf("{");
    for (int i = 0; i < COUNT; i++) {
        int first = i == 0 || strcmp(UNITS[i].kind, UNITS[i - 1].kind) != 0;
        if (first) printf("%s\"%s\": [", i ? "], " : "", UNITS[i].kind);
        printf("%s\"%s\"", first ? "" : ", ", UNITS[i].name);
    }
    printf("]}\n");
}

int main(int count, char **words) {
    read_arguments();
    const char *tool = count > 1 ? words[1] : "";
    if (strcmp(tool, "convert") == 0) convert();
    else if (strcmp(tool, "list") == 0) list();
    else fail("there is no such tool", tool);
    return 0;
}
