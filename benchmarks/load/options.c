/* The command line: one row for each option. */
#include "options.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

typedef enum { TEXT, WHOLE, NUMBER, FLAG, FILE_BYTES } Kind;

typedef struct {
    const char *name, *help;
    Kind kind;
    void *value;
    size_t *len;
} Row;

static void wrong(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    fputs("client: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    exit(2);
}

static uint8_t *file_bytes(const char *path, size_t *len) {
    FILE *file = fopen(path, "rb");
    if (!file) wrong("%s: cannot be read", path);
    uint8_t *bytes = NULL;
    size_t room = 0, got;
    *len = 0;
    do {
        if (*len == room) bytes = realloc(bytes, room = room * 2 + 4096);
        if (!bytes) abort();
        got = fread(bytes + *len, 1, room - *len, file);
        *len += got;
    } while (got);
    fclose(file);
    return bytes;
}

static double number(const char *name, const char *text) {
    char *end;
    double value = strtod(text, &end);
    if (end == text || *end || value < 0) wrong("%s: expected a number, found %s", name, text);
    return value;
}

bool options_has_header(const Options *options, const char *name) {
    for (int i = 0; i < options->headers; i++)
        if (strcasecmp(options->header_names[i], name) == 0) return true;
    return false;
}

static void header(Options *options, char *text) {
    char *colon = strchr(text, ':');
    if (!colon || options->headers == 64) wrong("--header: expected KEY:VALUE, found %s", text);
    *colon = 0;
    options->header_names[options->headers] = text;
    options->header_values[options->headers++] = colon + 1 + strspn(colon + 1, " ");
}

void options_read(Options *options, int argc, char **argv) {
    const char *protocol = "grpc";
    bool no_offsets = false;
    *options = (Options){.path = "/rrpa.v1.RRPAService/CreateStream",
                         .authority = "localhost",
                         .connections = 1,
                         .streams = 1,
                         .opening = 64,
                         .seconds = 5,
                         .warm_s = 1,
                         .gap_s = 0.05,
                         .ready_timeout_s = 60,
                         .window_bytes = 1 << 20,
                         .connection_window_bytes = 16 << 20};
    int together_n = 0;
    const Row rows[] = {
        {"--connect", "unix:PATH or HOST:PORT", TEXT, &options->connect, NULL},
        {"--protocol", "grpc, sse (HTTP/1.1) or sse-h2", TEXT, &protocol, NULL},
        {"--connections", "connections; answers go round them", WHOLE, &options->connections, NULL},
        {"--streams", "answers that are open at once", WHOLE, &options->streams, NULL},
        {"--opening", "requests that may wait for their first message at once", WHOLE,
         &options->opening, NULL},
        {"--path", "the request's path", TEXT, &options->path, NULL},
        {"--authority", "the request's host", TEXT, &options->authority, NULL},
        {"--body", "file with the request's body, as it is sent", FILE_BYTES,
         &options->body, &options->body_len},
        {"--warm-s", "seconds from ready to the window, at least", NUMBER, &options->warm_s, NULL},
        {"--seconds", "length of the window", NUMBER, &options->seconds, NULL},
        {"--until-ended", "end the window when no answer is open", FLAG, &options->until_ended,
         NULL},
        {"--ready-timeout-s", "give up when not all have a first message", NUMBER,
         &options->ready_timeout_s, NULL},
        {"--read-bytes-per-s", "how fast each connection is read", NUMBER,
         &options->read_bytes_per_s, NULL},
        {"--pause-s", "how long no connection is read once all have their first message", NUMBER,
         &options->pause_s, NULL},
        {"--window-bytes", "window of each answer", WHOLE, &options->window_bytes, NULL},
        {"--connection-window-bytes", "window of each connection", WHOLE,
         &options->connection_window_bytes, NULL},
        {"--stamps", "tokens begin with their time", FLAG, &options->stamps, NULL},
        {"--text", "file that the answers repeat, compared byte by byte", FILE_BYTES,
         &options->text, &options->text_len},
        {"--no-offsets", "the server gives no offsets", FLAG, &no_offsets, NULL},
        {"--reopen", "ask again when an answer has ended", FLAG, &options->reopen, NULL},
        {"--requests-per-s", "ask at this rate, at most --streams open", NUMBER,
         &options->requests_per_s, NULL},
        {"--together", "ask so many at once, again when all have ended", WHOLE, &together_n, NULL},
        {"--gap-s", "pause between such rounds", NUMBER, &options->gap_s, NULL},
    };
    const size_t count = sizeof rows / sizeof *rows;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--help") == 0) {
            for (size_t row = 0; row < count; row++)
                printf("%-26s %s\n", rows[row].name, rows[row].help);
            printf("%-26s %s\n", "--header", "KEY:VALUE, may be given more than once");
            exit(0);
        }
        const Row *row = NULL;
        for (size_t each = 0; each < count; each++)
            if (strcmp(argv[i], rows[each].name) == 0) row = &rows[each];
        bool is_header = strcmp(argv[i], "--header") == 0;
        if (!row && !is_header) wrong("no such option: %s; see --help", argv[i]);
        if (row && row->kind == FLAG) {
            *(bool *)row->value = true;
            continue;
        }
        const char *name = argv[i];
        if (++i == argc) wrong("%s needs a value", name);
        if (is_header) {
            header(options, argv[i]);
            continue;
        }
        switch (row->kind) {
            case TEXT:
                *(const char **)row->value = argv[i];
                break;
            case WHOLE:
                *(int *)row->value = (int)number(name, argv[i]);
                break;
            case FILE_BYTES:
                *(const uint8_t **)row->value = file_bytes(argv[i], row->len);
                break;
            default:
                *(double *)row->value = number(name, argv[i]);
                break;
        }
    }
    static const char *protocols[] = {"grpc", "sse", "sse-h2"};
    int chosen = -1;
    for (int i = 0; i < 3; i++)
        if (strcmp(protocol, protocols[i]) == 0) chosen = i;
    if (chosen < 0) wrong("--protocol: expected grpc, sse or sse-h2, found %s", protocol);
    options->protocol = (Protocol)chosen;
    options->offsets = !no_offsets;
    if (together_n) {
        options->asking = TOGETHER;
        options->streams = together_n;
    }
    if (options->requests_per_s > 0) options->asking = RATE;
    if (!options->connect) wrong("--connect is needed");
    if (options->streams < 1 || options->connections < 1 || options->opening < 1)
        wrong("--streams, --connections and --opening are at least 1");
    if (options->connections > options->streams) options->connections = options->streams;
    if (options->protocol == SSE) options->connections = options->streams;
    if (options->stamps && options->text_len) wrong("--stamps and --text exclude each other");
}
