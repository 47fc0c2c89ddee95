/* A connection that speaks HTTP/2, through libnghttp2. */
#include <nghttp2/nghttp2.h>
#include <stdlib.h>
#include <string.h>

#include "client.h"
#include "options.h"

/* The library works through at most so many bytes before its output is fetched. */
#define OUT_BYTES (256 * 1024)

/* The words of the last status: the stream that they belong to closes next. */
static char grpc_message[160];

static bool named(const uint8_t *name, size_t len, const char *wanted) {
    return len == strlen(wanted) && memcmp(name, wanted, len) == 0;
}

static bool begins(const uint8_t *value, size_t len, const char *wanted) {
    return len >= strlen(wanted) && memcmp(value, wanted, strlen(wanted)) == 0;
}

static int on_header(nghttp2_session *session, const nghttp2_frame *frame, const uint8_t *name,
                     size_t name_len, const uint8_t *value, size_t value_len, uint8_t flags,
                     void *user) {
    (void)flags, (void)user;
    Stream *stream = nghttp2_session_get_stream_user_data(session, frame->hd.stream_id);
    if (!stream || frame->hd.type != NGHTTP2_HEADERS) return 0;
    if (named(name, name_len, ":status") && !named(value, value_len, "200")) {
        fault(FAULT_HTTP_STATUS, stream, "HTTP status %.*s", (int)value_len, (const char *)value);
        stream->ended_body = true;
    } else if (named(name, name_len, "content-type")) {
        const char *wanted =
            run.options.protocol == GRPC ? "application/grpc" : "text/event-stream";
        if (!begins(value, value_len, wanted)) {
            fault(FAULT_CONTENT_TYPE, stream, "content-type %.*s", (int)value_len,
                  (const char *)value);
            stream->ended_body = true;
        }
    } else if (named(name, name_len, "grpc-status")) {
        stream->has_status = true;
        stream->grpc_status = atoi((const char *)value);
    } else if (named(name, name_len, "grpc-message")) {
        snprintf(grpc_message, sizeof grpc_message, "%.*s", (int)value_len, (const char *)value);
    }
    return 0;
}

static int on_data(nghttp2_session *session, uint8_t flags, int32_t id, const uint8_t *data,
                   size_t len, void *user) {
    (void)flags, (void)user;
    Stream *stream = nghttp2_session_get_stream_user_data(session, id);
    if (stream && !stream->ended_body) body_bytes(stream, data, len);
    return 0;
}

static int on_frame(nghttp2_session *session, const nghttp2_frame *frame, void *user) {
    (void)user;
    switch (frame->hd.type) {
        case NGHTTP2_DATA:
            run.counts.data_frames++;
            break;
        case NGHTTP2_GOAWAY:
            run.goaways++;
            break;
        case NGHTTP2_RST_STREAM: {
            /* A server may end the request's half with NO_ERROR after a whole answer. */
            Stream *stream = nghttp2_session_get_stream_user_data(session, frame->hd.stream_id);
            if (frame->rst_stream.error_code != NGHTTP2_NO_ERROR || (stream && !stream->answered))
                run.resets++;
            break;
        }
        default:
            break;
    }
    if (frame->hd.flags & NGHTTP2_FLAG_END_STREAM &&
        (frame->hd.type == NGHTTP2_DATA || frame->hd.type == NGHTTP2_HEADERS)) {
        Stream *stream = nghttp2_session_get_stream_user_data(session, frame->hd.stream_id);
        if (stream) stream->answered = true;
    }
    return 0;
}

static int on_invalid_frame(nghttp2_session *session, const nghttp2_frame *frame, int error,
                            void *user) {
    (void)session;
    ((Connection *)user)->broken = true;
    fault(FAULT_PROTOCOL, NULL, "frame of type %u on stream %d: %s", frame->hd.type,
          frame->hd.stream_id, nghttp2_strerror(error));
    return 0;
}

static int on_stream_close(nghttp2_session *session, int32_t id, uint32_t error, void *user) {
    (void)user;
    Stream *stream = nghttp2_session_get_stream_user_data(session, id);
    if (!stream) return 0;
    if (stream->grpc_status != 0)
        fault(FAULT_GRPC_STATUS, stream, "grpc-status %d: %s", stream->grpc_status, grpc_message);
    if (error == NGHTTP2_REFUSED_STREAM)
        fault(FAULT_REFUSED, stream, "not taken by the server");
    else
        body_end(stream, !stream->answered);
    stream_ended(stream);
    return 0;
}

static int on_not_sent(nghttp2_session *session, const nghttp2_frame *frame, int error,
                       void *user) {
    (void)user;
    if (frame->hd.type != NGHTTP2_HEADERS) return 0;
    Stream *stream = nghttp2_session_get_stream_user_data(session, frame->hd.stream_id);
    if (!stream) return 0;
    fault(FAULT_REFUSED, stream, "not sent: %s", nghttp2_strerror(error));
    stream_ended(stream);
    nghttp2_session_set_stream_user_data(session, frame->hd.stream_id, NULL);
    return 0;
}

static ssize_t read_body(nghttp2_session *session, int32_t id, uint8_t *into, size_t room,
                         uint32_t *flags, nghttp2_data_source *source, void *user) {
    (void)session, (void)id, (void)user;
    Stream *stream = source->ptr;
    size_t left = run.options.body_len - stream->body_sent;
    size_t taken = left < room ? left : room;
    memcpy(into, run.options.body + stream->body_sent, taken);
    stream->body_sent += taken;
    if (stream->body_sent == run.options.body_len) *flags |= NGHTTP2_DATA_FLAG_EOF;
    return (ssize_t)taken;
}

void h2_open(Connection *connection) {
    nghttp2_session_callbacks *callbacks;
    nghttp2_session *session;
    if (nghttp2_session_callbacks_new(&callbacks)) abort();
    nghttp2_session_callbacks_set_on_header_callback(callbacks, on_header);
    nghttp2_session_callbacks_set_on_data_chunk_recv_callback(callbacks, on_data);
    nghttp2_session_callbacks_set_on_frame_recv_callback(callbacks, on_frame);
    nghttp2_session_callbacks_set_on_invalid_frame_recv_callback(callbacks, on_invalid_frame);
    nghttp2_session_callbacks_set_on_stream_close_callback(callbacks, on_stream_close);
    nghttp2_session_callbacks_set_on_frame_not_send_callback(callbacks, on_not_sent);
    if (nghttp2_session_client_new(&session, callbacks, connection)) abort();
    nghttp2_session_callbacks_del(callbacks);
    nghttp2_settings_entry settings[] = {
        {NGHTTP2_SETTINGS_ENABLE_PUSH, 0},
        {NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, (uint32_t)run.options.window_bytes},
    };
    if (nghttp2_submit_settings(session, NGHTTP2_FLAG_NONE, settings, 2) ||
        nghttp2_session_set_local_window_size(session, NGHTTP2_FLAG_NONE, 0,
                                              run.options.connection_window_bytes))
        abort();
    connection->session = session;
}

bool h2_read(Connection *connection, const uint8_t *data, size_t len) {
    nghttp2_session *session = connection->session;
    ssize_t taken = nghttp2_session_mem_recv(session, data, len);
    if (taken < 0) {
        connection->broken = true;
        fault(FAULT_PROTOCOL, NULL, "%s", nghttp2_strerror((int)taken));
        return false;
    }
    return true;
}

bool h2_ask(Connection *connection, Stream *stream) {
    const Options *options = &run.options;
    bool grpc = options->protocol == GRPC;
    nghttp2_nv headers[8 + 64];
    size_t count = 0;
#define ADD(key, text)                                                                      \
    headers[count++] = (nghttp2_nv){(uint8_t *)(key), (uint8_t *)(text), strlen(key),       \
                                    strlen(text), NGHTTP2_NV_FLAG_NONE}
    ADD(":method", "POST");
    ADD(":scheme", "http");
    ADD(":authority", options->authority);
    ADD(":path", options->path);
    if (!options_has_header(options, "content-type"))
        ADD("content-type", grpc ? "application/grpc" : "application/json");
    if (grpc && !options_has_header(options, "te")) ADD("te", "trailers");
    if (!grpc && !options_has_header(options, "accept")) ADD("accept", "text/event-stream");
    for (int i = 0; i < options->headers; i++)
        ADD(options->header_names[i], options->header_values[i]);
#undef ADD
    nghttp2_data_provider body = {.source.ptr = stream, .read_callback = read_body};
    int32_t id =
        nghttp2_submit_request(connection->session, NULL, headers, count, &body, stream);
    if (id < 0) {
        fault(FAULT_REFUSED, stream, "not sent: %s", nghttp2_strerror(id));
        return false;
    }
    return true;
}

/* Fetches what the library wants to send; returns whether the connection goes on. */
bool h2_fill(Connection *connection) {
    nghttp2_session *session = connection->session;
    while (connection->out_len - connection->out_sent < OUT_BYTES) {
        const uint8_t *data;
        ssize_t len = nghttp2_session_mem_send(session, &data);
        if (len < 0) {
            fault(FAULT_PROTOCOL, NULL, "%s", nghttp2_strerror((int)len));
            return false;
        }
        if (len == 0) break;
        out_add(connection, data, (size_t)len);
    }
    return connection->out_len > connection->out_sent || nghttp2_session_want_read(session) ||
           nghttp2_session_want_write(session);
}

void h2_close(Connection *connection) {
    nghttp2_session_del(connection->session);
    connection->session = NULL;
}
