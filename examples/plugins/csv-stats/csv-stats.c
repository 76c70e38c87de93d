/* Statistics of CSV files (RFC 4180: quotes, doubled quotes, line breaks in quotes) in the folder that it is given. */
#include "../common/arguments.h"

#include <errno.h>
#include <math.h>

enum { MOST_COLUMNS = 256, MOST_FIELD = 1 << 16, SHOWN = 64 };

typedef struct {
    char *name;
    long filled, numbers;
    double least, most, mean, squares; /* Welford: one pass, and no loss where values are large and close together */
} Column;

static Column columns[MOST_COLUMNS];
static int column_count;
static char field[MOST_FIELD];

/* Read one field; return what ended it: the separator, '\n' or EOF. */
static int read_field(FILE *file, int separator) {
    size_t length = 0;
    int quoted = 0, c = getc(file);
    if (c == '"') quoted = 1, c = getc(file);
    for (;; c = getc(file)) {
        if (c == EOF) break;
        if (quoted && c == '"') {
            c = getc(file);
            if (c != '"') {
                quoted = 0;
                if (c == EOF) break;
            }
        }
        if (!quoted && (c == separator || c == '\n')) break;
        if (!quoted && c == '\r') continue;
        if (length + 1 >= MOST_FIELD) fail("a field is longer than 64 KB; is this a CSV file?", "");
        field[length++] = (char)c;
    }
    field[length] = 0;
    return c;
}

static void count(Column *column) {
    if (!field[0]) return;
    column->filled++;
    char *end;
    double value = strtod(field, &end);
    while (*end == ' ') end++;
    if (*end || !isfinite(value)) return;
    column->numbers++;
    if (column->numbers == 1) column->least = column->most = value;
    if (value < column->least) column->least = value;
    if (value > column->most) column->most = value;
    double off = value - column->mean;
    column->mean += off / (double)column->numbers;
    column->squares += off * (value - column->mean);
}

static void print_column(const Column *column, long rows) {
    printf("{\"name\": ");
    print_text(column->name);
    printf(", \"filled\": %ld, \"empty\": %ld, \"numbers\": %ld", column->filled, rows - column->filled,
           column->numbers);
    if (column->numbers) {
        double spread = column->numbers > 1 ? sqrt(column->squares / (double)(column->numbers - 1)) : 0;
        printf(", \"min\": %.12g, \"max\": %.12g, \"mean\": %.12g, \"stdev\": %.12g", column->least, column->most,
               column->mean, spread);
    }
    printf("}");
}

int main(int count_of_words, char **words) {
    read_arguments();
    const char *tool = count_of_words > 1 ? words[1] : "";
    const char *path = text_of("file", ""), *wanted = text_of("column", NULL);
    const char *separator = text_of("separator", ",");
    if (strcmp(tool, "describe") != 0 && strcmp(tool, "column") != 0) fail("there is no such tool", tool);
    FILE *file = fopen(path, "r");
    if (!file) {
        fprintf(stderr, "%s cannot be read: %s\n", path, strerror(errno));
        return 1;
    }
    int end;
    do {
        end = read_field(file, separator[0]);
        if (column_count == MOST_COLUMNS) fail("there are more than 256 columns", "");
        columns[column_count].name = strdup(field);
        if (!columns[column_count++].name) fail("there is too little memory", "");
    } while (end == separator[0]);
    long rows = 0;
    while (end != EOF) {
        int at = 0, something = 0;
        do {
            end = read_field(file, separator[0]);
            something |= field[0] != 0 || end == separator[0];
            if (at < column_count) count(&columns[at]);
            at++;
        } while (end == separator[0]);
        rows += something;
    }
    if (ferror(file)) fail("it cannot be read to its end", path);
    int chosen = -1;
    for (int i = 0; wanted && i < column_count; i++)
        if (strcmp(columns[i].name, wanted) == 0) chosen = i;
    if (strcmp(tool, "column") == 0) {
        if (chosen < 0) fail("there is no column of that name; the tool describe lists them", wanted ? wanted : "");
        print_column(&columns[chosen], rows);
        printf("\n");
        return 0;
    }
    printf("{\"rows\": %ld, \"columns\": [", rows);
    for (int i = 0; i < column_count && i < SHOWN; i++) {
        if (i) printf(", ");
        print_column(&columns[i], rows);
    }
    printf("]%s}\n", column_count > SHOWN ? ", \"more\": true" : "");
    return 0;
}
