/* A connection that speaks HTTP/1.1 with one answer at a time: SSE as servers of today give it. */
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "client.h"
#include "options.h"

enum { STATUS_LINE, HEADER, CHUNK_SIZE, CHUNK, CHUNK_END, TRAILER, COUNTED, TO_EOF };

static char *request;
static size_t request_len;

/* All requests of a run are the same bytes. */
static void make_request(void) {
    const Options *options = &run.options;
    FILE *out = open_memstream(&request, &request_len);
    if (!out) abort();
    fprintf(out, "POST %s HTTP/1.1\r\nhost: %s\r\ncontent-length: %zu\r\n", options->path,
            options->authority, options->body_len);
    if (!options_has_header(options, "content-type"))
        fputs("content-type: application/json\r\n", out);
    if (!options_has_header(options, "accept")) fputs("accept: text/event-stream\r\n", out);
    for (int i = 0; i < options->headers; i++)
        fprintf(out, "%s: %s\r\n", options->header_names[i], options->header_values[i]);
    fputs("\r\n", out);
    fwrite(options->body, 1, options->body_len, out);
    fclose(out);
}

void h1_open(Connection *connection) {
    if (!request) make_request();
    connection->h1_state = STATUS_LINE;
}

bool h1_ask(Connection *connection, Stream *stream) {
    if (connection->stream) {
        fault(FAULT_REFUSED, stream, "the connection is busy: give as many --connections");
        return false;
    }
    connection->stream = stream;
    connection->h1_state = STATUS_LINE;
    connection->h1_chunked = connection->h1_close = false;
    connection->h1_left = 0;
    out_add(connection, request, request_len);
    return true;
}

static void answered(Connection *connection, bool cut) {
    Stream *stream = connection->stream;
    connection->stream = NULL;
    connection->h1_state = STATUS_LINE;
    body_end(stream, cut);
    stream_ended(stream);
}

void h1_eof(Connection *connection) {
    if (connection->stream) answered(connection, connection->h1_state != TO_EOF);
}

static void header(Connection *connection, char *line) {
    char *value = strchr(line, ':');
    if (!value) {
        fault(FAULT_PROTOCOL, connection->stream, "a header without a colon: %.40s", line);
        return;
    }
    *value++ = 0;
    value += strspn(value, " \t");
    if (strcasecmp(line, "transfer-encoding") == 0)
        connection->h1_chunked = strcasecmp(value, "chunked") == 0;
    else if (strcasecmp(line, "content-length") == 0)
        connection->h1_left = strtoull(value, NULL, 10);
    else if (strcasecmp(line, "connection") == 0)
        connection->h1_close = strcasecmp(value, "close") == 0;
    else if (strcasecmp(line, "content-type") == 0 &&
             strncasecmp(value, "text/event-stream", 17) != 0) {
        fault(FAULT_CONTENT_TYPE, connection->stream, "content-type %.60s", value);
        connection->stream->ended_body = true;
    }
}

/* Returns whether the connection goes on. */
static bool line(Connection *connection, char *text) {
    switch (connection->h1_state) {
        case STATUS_LINE:
            if (strncmp(text, "HTTP/1.1 ", 9) != 0) {
                fault(FAULT_PROTOCOL, connection->stream, "not HTTP/1.1: %.40s", text);
                return false;
            }
            if (strncmp(text + 9, "200", 3) != 0) {
                fault(FAULT_HTTP_STATUS, connection->stream, "HTTP status %.60s", text + 9);
                connection->stream->ended_body = true;
            }
            connection->h1_state = HEADER;
            return true;
        case HEADER:
            if (*text) {
                header(connection, text);
                return true;
            }
            connection->h1_state = connection->h1_chunked ? CHUNK_SIZE
                                   : connection->h1_left  ? COUNTED
                                                          : TO_EOF;
            return true;
        case CHUNK_SIZE: {
            char *end;
            connection->h1_left = strtoull(text, &end, 16);
            if (end == text || (*end && *end != ';' && *end != ' ')) {
                fault(FAULT_PROTOCOL, connection->stream, "not a chunk's size: %.40s", text);
                return false;
            }
            connection->h1_state = connection->h1_left ? CHUNK : TRAILER;
            return true;
        }
        case CHUNK_END:
            if (*text) {
                fault(FAULT_PROTOCOL, connection->stream, "a chunk longer than it says");
                return false;
            }
            connection->h1_state = CHUNK_SIZE;
            return true;
        default: /* TRAILER */
            if (!*text) answered(connection, false);
            return *text || !connection->h1_close;
    }
}

bool h1_read(Connection *connection, const uint8_t *data, size_t len) {
    while (len) {
        int state = connection->h1_state;
        if (!connection->stream) {
            fault(FAULT_PROTOCOL, NULL, "%zu bytes that no request asked for", len);
            return false;
        }
        if (state == CHUNK || state == COUNTED || state == TO_EOF) {
            size_t take = state != TO_EOF && connection->h1_left < len
                              ? (size_t)connection->h1_left
                              : len;
            if (!connection->stream->ended_body) body_bytes(connection->stream, data, take);
            data += take, len -= take;
            if (state == TO_EOF) continue;
            connection->h1_left -= take;
            if (connection->h1_left) continue;
            run.counts.data_frames++;
            connection->h1_state = CHUNK_END;
            if (state == COUNTED) {
                answered(connection, false);
                if (connection->h1_close) return false;
            }
            continue;
        }
        const uint8_t *end = memchr(data, '\n', len);
        size_t take = end ? (size_t)(end - data) + 1 : len;
        if ((size_t)connection->h1_line_len + take >= sizeof connection->h1_line) {
            fault(FAULT_PROTOCOL, connection->stream, "a header line over %zu bytes",
                  sizeof connection->h1_line);
            return false;
        }
        memcpy(connection->h1_line + connection->h1_line_len, data, take);
        connection->h1_line_len += (int)take;
        data += take, len -= take;
        if (!end) return true;
        int line_len = connection->h1_line_len - 1;
        if (line_len && connection->h1_line[line_len - 1] == '\r') line_len--;
        connection->h1_line[line_len] = 0;
        connection->h1_line_len = 0;
        if (!line(connection, connection->h1_line)) return false;
    }
    return true;
}
