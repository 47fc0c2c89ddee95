/* An answer's body to messages: gRPC's CreateStreamResponse, or the events of SSE. */
#include <stdlib.h>
#include <string.h>

#include "client.h"

#define PREFIX_BYTES 5
#define STAMP_DIGITS 19

static void keep(Stream *stream, const uint8_t *data, size_t len) {
    if (stream->part_len + len > stream->part_room) {
        stream->part_room = (uint32_t)(stream->part_len + len) * 2;
        stream->part = realloc(stream->part, stream->part_room);
        if (!stream->part) abort();
    }
    memcpy(stream->part + stream->part_len, data, len);
    stream->part_len += (uint32_t)len;
}

/* Where all answers are opened once, their first messages come before the window. */
static bool first_counts(void) {
    return run.phase == MEASURING || (run.options.asking == STREAMS && !run.options.reopen);
}

/* Every run of 19 digits that a space ends is a stamp: engine/replay/source.py. */
static void find_stamps(Stream *stream, const uint8_t *data, size_t len, bool first) {
    for (size_t i = 0; i < len; i++) {
        unsigned digit = (unsigned)data[i] - '0';
        if (digit <= 9) {
            if (stream->digits < STAMP_DIGITS) stream->stamp = stream->stamp * 10 + digit;
            stream->digits++;
            continue;
        }
        if (!stream->digits) continue;
        if (stream->digits == STAMP_DIGITS && data[i] == ' ') {
            int64_t late_ns = run.now_ns - stream->stamp;
            if (late_ns < 0)
                fault(FAULT_STAMP, stream, "stamp %lld is %lld ns after its arrival",
                      (long long)stream->stamp, (long long)-late_ns);
            if (run.phase == MEASURING) histogram_add(&run.latency, late_ns);
            if (first && first_counts()) {
                histogram_add(&run.first_in, stream->stamp - stream->asked_ns);
                histogram_add(&run.first_out, late_ns);
            }
            first = false;
        }
        stream->digits = 0;
        stream->stamp = 0;
    }
}

static void check_text(Stream *stream, const uint8_t *data, size_t len) {
    uint64_t at = stream->offset;
    while (len) {
        size_t from = (size_t)(at % run.options.text_len), piece = run.options.text_len - from;
        if (piece > len) piece = len;
        if (memcmp(data, run.options.text + from, piece) != 0) {
            fault(FAULT_TEXT, stream, "the message at byte %llu differs from the text",
                  (unsigned long long)at);
            return;
        }
        at += piece, data += piece, len -= piece;
    }
}

/* Whether the bytes begin and end at the edge of a character; O(1). */
static bool whole_characters(const uint8_t *data, size_t len) {
    if ((data[0] & 0xC0) == 0x80) return false;
    for (size_t back = 1; back <= 4 && back <= len; back++) {
        uint8_t byte = data[len - back];
        if (byte < 0x80) return back == 1;
        if ((byte & 0xC0) == 0x80) continue;
        return back == (byte >= 0xF0 ? 4u : byte >= 0xE0 ? 3u : 2u);
    }
    return false;
}

/* A message with content: a token or several. */
static void message(Stream *stream, const uint8_t *data, size_t len) {
    bool first = !stream->had_first;
    run.counts.messages++;
    run.counts.bytes += len;
    if (first) {
        stream->had_first = true;
        run.awaiting_first--;
        run.had_first++;
        if (first_counts()) histogram_add(&run.first, run.now_ns - stream->asked_ns);
    }
    if (run.options.stamps) find_stamps(stream, data, len, first);
}

static bool varint(const uint8_t **at, const uint8_t *end, uint64_t *value) {
    *value = 0;
    for (int shift = 0; shift < 64 && *at < end; shift += 7) {
        uint8_t byte = *(*at)++;
        *value |= (uint64_t)(byte & 0x7F) << shift;
        if (!(byte & 0x80)) return true;
    }
    return false;
}

/* proto/rrpa/v1/rrpa.proto: offset = 1 (varint), data = 2 (bytes), finish = 3 (message). */
static void response(Stream *stream, const uint8_t *at, size_t len) {
    const uint8_t *end = at + len, *data = NULL;
    uint64_t offset = 0, data_len = 0;
    bool finish = false;
    while (at < end) {
        uint64_t key, value;
        if (!varint(&at, end, &key) || !varint(&at, end, &value) ||
            ((key & 7) == 2 && value > (uint64_t)(end - at)) || ((key & 7) != 2 && (key & 7) != 0)) {
            fault(FAULT_PROTOBUF, stream, "%zu bytes are no CreateStreamResponse", len);
            return;
        }
        if (key == (1 << 3 | 0)) offset = value;
        if (key == (2 << 3 | 2)) data = at, data_len = value;
        if (key == (3 << 3 | 2)) finish = true;
        if ((key & 7) == 2) at += value;
    }
    if (stream->finished) fault(FAULT_AFTER_FINISH, stream, "a message after the finish");
    if (run.options.offsets && offset != stream->offset) {
        fault(FAULT_OFFSET, stream, "offset %llu, expected %llu", (unsigned long long)offset,
              (unsigned long long)stream->offset);
        stream->offset = offset; /* one loss is one fault */
    }
    if (finish) {
        stream->finished = true;
    } else if (!data_len) {
        fault(FAULT_EMPTY, stream, "a message with neither data nor finish");
    } else {
        if (run.options.text_len) check_text(stream, data, data_len);
        if (!whole_characters(data, data_len))
            fault(FAULT_CHARACTER, stream, "the message at byte %llu cuts a character",
                  (unsigned long long)stream->offset);
        message(stream, data, data_len);
        stream->offset += data_len;
    }
}

static uint32_t message_len(const uint8_t *prefix) {
    return (uint32_t)prefix[1] << 24 | (uint32_t)prefix[2] << 16 | (uint32_t)prefix[3] << 8 |
           prefix[4];
}

static bool prefix_good(Stream *stream, const uint8_t *prefix) {
    if (prefix[0] != 0)
        fault(FAULT_COMPRESSED, stream, "flags %u of a message, expected 0", prefix[0]);
    else if (message_len(prefix) > MAX_MESSAGE_BYTES)
        fault(FAULT_FRAMING, stream, "a message of %u bytes", message_len(prefix));
    else
        return true;
    stream->ended_body = true; /* nothing after this can be told apart */
    return false;
}

static void grpc_bytes(Stream *stream, const uint8_t *data, size_t len) {
    while (len && !stream->ended_body) {
        if (stream->part_len == 0 && len >= PREFIX_BYTES) {
            if (!prefix_good(stream, data)) return;
            size_t whole = PREFIX_BYTES + (size_t)message_len(data);
            if (whole <= len) { /* the usual case: no copy */
                response(stream, data + PREFIX_BYTES, whole - PREFIX_BYTES);
                data += whole, len -= whole;
                continue;
            }
        }
        if (stream->part_len < PREFIX_BYTES) {
            size_t take = PREFIX_BYTES - stream->part_len;
            if (take > len) take = len;
            keep(stream, data, take);
            data += take, len -= take;
            if (stream->part_len < PREFIX_BYTES || !prefix_good(stream, stream->part)) return;
        }
        size_t whole = PREFIX_BYTES + (size_t)message_len(stream->part);
        size_t take = whole - stream->part_len;
        if (take > len) take = len;
        keep(stream, data, take);
        data += take, len -= take;
        if (stream->part_len == whole) {
            response(stream, stream->part + PREFIX_BYTES, whole - PREFIX_BYTES);
            stream->part_len = 0;
        }
    }
}

static void sse_line(Stream *stream, const uint8_t *line, size_t len) {
    if (len && line[len - 1] == '\r') len--;
    if (!len) {
        stream->had_event = false;
    } else if (len >= 5 && memcmp(line, "data:", 5) == 0) {
        line += 5, len -= 5;
        if (len && *line == ' ') line++, len--;
        if (len == 6 && memcmp(line, "[DONE]", 6) == 0) {
            stream->finished = true;
        } else {
            if (stream->finished) fault(FAULT_AFTER_FINISH, stream, "an event after [DONE]");
            /* More lines of one event are one message. */
            if (!stream->had_event) message(stream, line, len);
            stream->had_event = true;
        }
    } else if (*line != ':' && !memchr(line, ':', len)) {
        fault(FAULT_FRAMING, stream, "an event line without a colon: %.*s",
              len > 40 ? 40 : (int)len, (const char *)line);
    }
}

static void sse_bytes(Stream *stream, const uint8_t *data, size_t len) {
    while (len) {
        const uint8_t *end = memchr(data, '\n', len);
        if (!end) {
            keep(stream, data, len);
            return;
        }
        size_t line_len = (size_t)(end - data);
        if (stream->part_len) {
            keep(stream, data, line_len);
            sse_line(stream, stream->part, stream->part_len);
            stream->part_len = 0;
        } else {
            sse_line(stream, data, line_len);
        }
        data += line_len + 1, len -= line_len + 1;
    }
}

void body_bytes(Stream *stream, const uint8_t *data, size_t len) {
    if (run.options.protocol == GRPC)
        grpc_bytes(stream, data, len);
    else
        sse_bytes(stream, data, len);
}

void body_end(Stream *stream, bool cut) {
    if (cut || stream->part_len || stream->had_event)
        fault(FAULT_TRUNCATED, stream, "ended inside a message, after %llu bytes",
              (unsigned long long)stream->offset);
    if (run.options.protocol != GRPC || cut) return;
    if (!stream->has_status)
        fault(FAULT_NO_STATUS, stream, "ended without grpc-status");
    else if (stream->grpc_status == 0 && !stream->finished && !stream->ended_body)
        fault(FAULT_NO_FINISH, stream, "status OK without a finish message");
}
