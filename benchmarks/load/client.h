/* What the client's parts share. One thread, one run, so the run is one global. */
#ifndef CLIENT_H
#define CLIENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "histogram.h"

#define NS_PER_S 1000000000ll
#define READ_BYTES (256 * 1024)
/* A message longer than this is taken for broken framing, not for a message. */
#define MAX_MESSAGE_BYTES (64u * 1024 * 1024)

/* Every way an answer can be wrong; the names are the keys of "errors" in the report. */
#define FAULTS(X)                                                                             \
    X(CONNECT, "connect")             /* no connection */                                     \
    X(DISCONNECTED, "disconnected")   /* a connection ended while it had open answers */      \
    X(PROTOCOL, "protocol")           /* a frame, header or chunk that HTTP does not allow */ \
    X(REFUSED, "refused")             /* a request that could not be sent, or GOAWAY left out */ \
    X(HTTP_STATUS, "http_status")     /* not 200 */                                           \
    X(CONTENT_TYPE, "content_type")   /* not application/grpc or text/event-stream */         \
    X(COMPRESSED, "compressed")       /* a message with a flag that we did not ask for */     \
    X(FRAMING, "framing")             /* a message too long, or an event line that is none */ \
    X(PROTOBUF, "protobuf")           /* bytes that are no CreateStreamResponse */            \
    X(EMPTY, "empty")                 /* a message with neither data nor finish */            \
    X(OFFSET, "offset")               /* bytes lost or repeated between two messages */       \
    X(CHARACTER, "character")         /* a message that begins or ends inside a character */  \
    X(TEXT, "text")                   /* bytes that differ from --text */                     \
    X(STAMP, "stamp")                 /* a stamp from the future */                           \
    X(AFTER_FINISH, "after_finish")   /* a message after the last one */                      \
    X(NO_FINISH, "no_finish")         /* status OK without a finish message */                \
    X(NO_STATUS, "no_status")         /* an answer that ended without grpc-status */          \
    X(GRPC_STATUS, "grpc_status")     /* ended with a status other than OK */                 \
    X(TRUNCATED, "truncated")         /* ended inside a message, event or chunk */

typedef enum {
#define X(name, text) FAULT_##name,
    FAULTS(X)
#undef X
        FAULT_KINDS
} Fault;

typedef enum { GRPC, SSE, SSE_H2 } Protocol;

/* When requests are sent. */
typedef enum {
    STREAMS,  /* all --streams, once (with --reopen: again whenever one ends) */
    TOGETHER, /* all --streams in one moment, and again when all have ended */
    RATE,     /* --requests-per-s, at most --streams open */
} Asking;

typedef struct {
    const char *connect, *path, *authority;
    Protocol protocol;
    Asking asking;
    int connections, streams, opening;
    double warm_s, seconds, ready_timeout_s, pause_s, gap_s;
    double requests_per_s, read_bytes_per_s;
    bool stamps, reopen, until_ended, offsets;
    int window_bytes, connection_window_bytes;
    const uint8_t *body;
    size_t body_len;
    const uint8_t *text;
    size_t text_len;
    const char *header_names[64], *header_values[64];
    int headers;
} Options;

/* What is counted all the time; the report subtracts what was there when the window began. */
typedef struct {
    uint64_t messages, bytes, data_frames, wire_bytes, asked, ended;
} Counts;

typedef enum { OPENING, WARMING, WAITING_FOR_GO, MEASURING, WAITING_FOR_OK, DONE } Phase;

typedef struct {
    Options options;
    Counts counts;
    uint64_t faults[FAULT_KINDS], resets, goaways;
    char first_fault[256];
    int open, awaiting_first, had_first;
    Phase phase;
    int64_t now_ns; /* when the bytes at hand were read */
    Histogram latency, first, first_in, first_out;
} Run;

extern Run run;

struct Connection;

/* One answer. Slots are used again by later requests. */
typedef struct Stream {
    struct Connection *connection;
    int index;
    int64_t asked_ns;
    size_t body_sent;
    bool open, had_first, answered, ended_body, finished, has_status, had_event;
    int grpc_status;
    /* A message, or a line of an event, that has come in part. */
    uint8_t *part;
    uint32_t part_len, part_room;
    /* Bytes of data so far; the next message's offset. */
    uint64_t offset;
    /* The digits of a stamp that have come. */
    int digits;
    int64_t stamp;
} Stream;

int64_t now_ns(void);

/* Counts a fault; the first one's words stay for the report. */
void fault(Fault kind, const Stream *stream, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* messages.c: the bytes of an answer's body, as they come. */
void body_bytes(Stream *stream, const uint8_t *data, size_t len);
/* The body is over; `cut` is whether the transport ended it in the middle. */
void body_end(Stream *stream, bool cut);

/* client.c */
void stream_ended(Stream *stream);

/* What http1.c and http2.c do for client.c. */
typedef struct Connection {
    int index, fd;
    bool closed, wants_out;
    bool broken; /* a fault of HTTP/2 on it was counted */
    int open;
    double allowance_bytes;
    uint8_t *out;
    size_t out_len, out_sent, out_room;
    void *session;  /* nghttp2_session */
    Stream *stream; /* HTTP/1.1: the one answer */
    int h1_state;
    uint64_t h1_left;
    bool h1_chunked, h1_close;
    int h1_line_len;
    char h1_line[1024];
} Connection;

void h2_open(Connection *connection);
/* Return whether the connection goes on. */
bool h2_read(Connection *connection, const uint8_t *data, size_t len);
bool h2_ask(Connection *connection, Stream *stream);
bool h2_fill(Connection *connection);
void h2_close(Connection *connection);

void h1_open(Connection *connection);
bool h1_read(Connection *connection, const uint8_t *data, size_t len);
bool h1_ask(Connection *connection, Stream *stream);
/* The peer closed; ends an answer whose end is the connection's. */
void h1_eof(Connection *connection);

void out_add(Connection *connection, const void *data, size_t len);

#endif
