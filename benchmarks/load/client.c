/* A load of streams over a few connections, checked message by message and counted.
 *
 * One thread and one epoll: it must be far cheaper than any server that it loads. The steps of a
 * run and the words on stdin and stderr are in client.py. */
#include "client.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "options.h"

/* How often a connection with --read-bytes-per-s is read. They have their turns one after another:
 * all read at once, they were a burst that no callers in the world make, and others waited for it. */
#define TURN_NS (10 * 1000 * 1000)
#define TURNS 10
#define TICK_NS (TURN_NS / TURNS)
/* What it may read at once after a time without bytes. */
#define SLOW_BURST_S 0.1
#define EVENTS 256
#define NEVER_NS INT64_MAX
#define UNSET_NS (-1)

Run run;

static Connection *connections;
static Stream *streams;
static Stream **idle;
static int idle_count;
static int epoll_fd, timer_fd;
static int64_t started_ns, ready_ns, next_round_ns, next_request_ns, next_tick_ns;
static int64_t window_from_ns, window_to_ns, window_end_ns;
static int64_t timer_ns = UNSET_NS;
static Counts counts_at_begin;
static double cpu_at_begin_s, cpu_s;
static char words[64];
static size_t words_len;
static int go_words;
static int8_t stdin_over;

int64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * NS_PER_S + now.tv_nsec;
}

static double cpu_now_s(void) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
}

void fault(Fault kind, const Stream *stream, const char *format, ...) {
    run.faults[kind]++;
    if (run.first_fault[0]) return;
    size_t room = sizeof run.first_fault, used = 0;
    if (stream) used = (size_t)snprintf(run.first_fault, room, "stream %d: ", stream->index);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(run.first_fault + used, room - used, format, arguments);
    va_end(arguments);
}

static void die(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    fputs("client: ", stderr);
    vfprintf(stderr, format, arguments);
    if (run.first_fault[0]) fprintf(stderr, "; first fault: %s", run.first_fault);
    fputc('\n', stderr);
    va_end(arguments);
    exit(1);
}

void out_add(Connection *connection, const void *data, size_t len) {
    if (connection->out_sent == connection->out_len)
        connection->out_sent = connection->out_len = 0;
    if (connection->out_len + len > connection->out_room) {
        connection->out_room = (connection->out_len + len) * 2;
        connection->out = realloc(connection->out, connection->out_room);
        if (!connection->out) abort();
    }
    memcpy(connection->out + connection->out_len, data, len);
    connection->out_len += len;
}

static bool http2(void) { return run.options.protocol != SSE; }

static bool slow(void) { return run.options.read_bytes_per_s > 0; }

/* Slow connections are read by the clock, paused ones not at all. */
static void watch(Connection *connection, int operation) {
    bool paused = ready_ns && run.now_ns < ready_ns + (int64_t)(run.options.pause_s * NS_PER_S);
    struct epoll_event event = {.data.ptr = connection};
    if (!slow() && !paused) event.events |= EPOLLIN;
    if (connection->wants_out) event.events |= EPOLLOUT;
    epoll_ctl(epoll_fd, operation, connection->fd, &event);
}

static void drop(Connection *connection) {
    if (connection->closed) return;
    connection->closed = true;
    if (connection->open) fault(FAULT_DISCONNECTED, NULL, "connection %d ended with %d answers open",
                                connection->index, connection->open);
    if (connection->stream) connection->stream = NULL;
    for (int i = 0; connection->open && i < run.options.streams; i++) {
        if (!streams[i].open || streams[i].connection != connection) continue;
        body_end(&streams[i], true);
        stream_ended(&streams[i]);
    }
    if (connection->session) h2_close(connection);
    close(connection->fd);
}

static void flush(Connection *connection) {
    while (!connection->closed) {
        if (http2() && !h2_fill(connection)) {
            if (connection->open && !connection->broken)
                fault(FAULT_PROTOCOL, NULL, "a frame that HTTP/2 does not allow");
            drop(connection);
            return;
        }
        size_t left = connection->out_len - connection->out_sent;
        if (!left) break;
        ssize_t sent = send(connection->fd, connection->out + connection->out_sent, left,
                            MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent < 0 && errno == EINTR) continue;
        if (sent < 0 && errno != EAGAIN && errno != ENOTCONN) {
            drop(connection);
            return;
        }
        if (sent < 0) break;
        connection->out_sent += (size_t)sent;
    }
    bool wants_out = connection->out_len > connection->out_sent;
    if (!connection->closed && wants_out != connection->wants_out) {
        connection->wants_out = wants_out;
        watch(connection, EPOLL_CTL_MOD);
    }
}

/* Reads at most `most` bytes; returns how many. */
static size_t take(Connection *connection, size_t most) {
    static uint8_t buffer[READ_BYTES];
    size_t total = 0;
    while (!connection->closed && total < most) {
        size_t room = most - total < sizeof buffer ? most - total : sizeof buffer;
        ssize_t len = recv(connection->fd, buffer, room, MSG_DONTWAIT);
        if (len < 0 && errno == EINTR) continue;
        if (len < 0 && errno == EAGAIN) break;
        if (len <= 0) {
            if (!http2()) h1_eof(connection);
            drop(connection);
            break;
        }
        run.now_ns = now_ns();
        run.counts.wire_bytes += (uint64_t)len;
        total += (size_t)len;
        bool goes_on = http2() ? h2_read(connection, buffer, (size_t)len)
                               : h1_read(connection, buffer, (size_t)len);
        if (!goes_on) drop(connection);
        if ((size_t)len < room) break;
    }
    flush(connection);
    return total;
}

static void tick(void) {
    static int turn;
    double each_turn = run.options.read_bytes_per_s * TURN_NS / NS_PER_S;
    double most = run.options.read_bytes_per_s * SLOW_BURST_S;
    if (most < each_turn) most = each_turn;
    turn = (turn + 1) % TURNS;
    for (int i = turn; i < run.options.connections; i += TURNS) {
        Connection *connection = &connections[i];
        if (connection->closed) continue;
        connection->allowance_bytes += each_turn;
        if (connection->allowance_bytes > most) connection->allowance_bytes = most;
        if (connection->allowance_bytes < 1) continue;
        connection->allowance_bytes -=
            (double)take(connection, (size_t)connection->allowance_bytes);
    }
}

/* Returns a socket that is connected; the servers are local, so waiting here is short. */
static int connect_to(const char *address) {
    if (strncmp(address, "unix:", 5) == 0) {
        struct sockaddr_un path = {.sun_family = AF_UNIX};
        if (strlen(address + 5) >= sizeof path.sun_path) die("path too long: %s", address);
        strcpy(path.sun_path, address + 5);
        int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (fd < 0 || connect(fd, (struct sockaddr *)&path, sizeof path))
            die("%s: %s", address, strerror(errno));
        return fd;
    }
    char host[256];
    const char *colon = strrchr(address, ':');
    if (!colon || colon == address || (size_t)(colon - address) >= sizeof host)
        die("expected unix:PATH or HOST:PORT, found %s", address);
    snprintf(host, sizeof host, "%.*s", (int)(colon - address), address);
    struct addrinfo *found, wanted = {.ai_socktype = SOCK_STREAM};
    int error = getaddrinfo(host, colon + 1, &wanted, &found);
    if (error) die("%s: %s", address, gai_strerror(error));
    int fd = -1;
    for (struct addrinfo *each = found; each && fd < 0; each = each->ai_next) {
        fd = socket(each->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (fd >= 0 && connect(fd, each->ai_addr, each->ai_addrlen)) {
            close(fd);
            fd = -1;
        }
    }
    freeaddrinfo(found);
    if (fd < 0) die("%s: %s", address, strerror(errno));
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
    return fd;
}

static void open_connections(void) {
    for (int i = 0; i < run.options.connections; i++) {
        Connection *connection = &connections[i];
        connection->index = i;
        connection->fd = connect_to(run.options.connect);
        fcntl(connection->fd, F_SETFL, O_NONBLOCK);
        if (http2())
            h2_open(connection);
        else
            h1_open(connection);
        watch(connection, EPOLL_CTL_ADD);
        flush(connection);
    }
}

static void ask(int64_t asked_ns) {
    Stream *stream = idle[--idle_count];
    Connection *connection = stream->connection;
    uint8_t *part = stream->part;
    uint32_t part_room = stream->part_room;
    *stream = (Stream){.connection = connection,
                       .index = stream->index,
                       .asked_ns = asked_ns,
                       .open = true,
                       .part = part,
                       .part_room = part_room};
    run.counts.asked++;
    run.open++;
    run.awaiting_first++;
    connection->open++;
    bool sent = false;
    if (connection->closed)
        fault(FAULT_CONNECT, stream, "its connection is gone");
    else
        sent = http2() ? h2_ask(connection, stream) : h1_ask(connection, stream);
    if (!sent) stream_ended(stream);
}

void stream_ended(Stream *stream) {
    if (!stream->open) return;
    stream->open = false;
    run.open--;
    stream->connection->open--;
    run.counts.ended++;
    if (!stream->had_first) run.awaiting_first--;
    if (run.options.reopen || run.options.asking != STREAMS) idle[idle_count++] = stream;
    if (run.options.asking == TOGETHER && run.open == 0)
        next_round_ns = now_ns() + (int64_t)(run.options.gap_s * NS_PER_S);
}

static void flush_all(void) {
    for (int i = 0; i < run.options.connections; i++) flush(&connections[i]);
}

/* Sends the requests that are due. */
static void ask_due(void) {
    const Options *options = &run.options;
    int64_t now = now_ns();
    int before = (int)run.counts.asked;
    bool any_alive = false;
    for (int i = 0; i < options->connections && !any_alive; i++)
        any_alive = !connections[i].closed;
    if (!any_alive) return;
    switch (options->asking) {
        case STREAMS:
            for (int most = idle_count; most && idle_count && run.awaiting_first < options->opening;
                 most--)
                ask(now_ns());
            break;
        case TOGETHER:
            if (run.open == 0 && now >= next_round_ns)
                for (int most = idle_count; most; most--) ask(now);
            break;
        case RATE:
            if (!next_request_ns) next_request_ns = now;
            /* The moment a request was due counts, not the one when there was room for it. */
            while (idle_count && next_request_ns <= now) {
                ask(next_request_ns);
                next_request_ns += (int64_t)(NS_PER_S / options->requests_per_s);
            }
            break;
    }
    if ((int)run.counts.asked != before) flush_all();
}

static void say(const char *word) {
    fprintf(stderr, "%s\n", word);
    fflush(stderr);
}

static void read_words(void) {
    char got[64];
    ssize_t len = read(STDIN_FILENO, got, sizeof got);
    if (len <= 0) {
        stdin_over = 1; /* run by hand: nobody will say anything more */
        epoll_ctl(epoll_fd, EPOLL_CTL_DEL, STDIN_FILENO, NULL);
        return;
    }
    for (ssize_t i = 0; i < len; i++) {
        if (got[i] != '\n' && words_len < sizeof words - 1) {
            words[words_len++] = got[i];
            continue;
        }
        words[words_len] = 0;
        words_len = 0;
        if (strcmp(words, "go") && strcmp(words, "ok")) die("expected go or ok, found %s", words);
        go_words++;
    }
}

/* Whether what the run waits for before it is ready has come. */
static bool ready(void) {
    const Options *options = &run.options;
    if (options->asking == STREAMS) {
        if (run.had_first >= options->streams) return true;
        bool no_more = !options->reopen && run.awaiting_first == 0 &&
                       (int)run.counts.asked == options->streams;
        if (no_more && !options->until_ended)
            die("expected a first message on %d answers, %d ended without one", options->streams,
                options->streams - run.had_first);
        return no_more;
    }
    return run.counts.ended >= 1 && (run.options.asking == RATE || run.open == 0);
}

static void step_once(void) {
    int64_t now = now_ns();
    switch (run.phase) {
        case OPENING:
            if (ready()) {
                ready_ns = run.now_ns = now;
                if (run.options.pause_s > 0)
                    for (int i = 0; i < run.options.connections; i++)
                        if (!connections[i].closed) watch(&connections[i], EPOLL_CTL_MOD);
                say("ready");
                run.phase = WARMING;
            } else if (now > started_ns + (int64_t)(run.options.ready_timeout_s * NS_PER_S)) {
                die("expected a first message on %d answers, found %d after %.0f s",
                    run.options.streams, run.had_first, run.options.ready_timeout_s);
            }
            break;
        case WARMING:
            if (now >= ready_ns + (int64_t)(run.options.warm_s * NS_PER_S))
                run.phase = WAITING_FOR_GO;
            break;
        case WAITING_FOR_GO:
            if (go_words < 1 && !stdin_over) break;
            counts_at_begin = run.counts;
            cpu_at_begin_s = cpu_now_s();
            run.phase = MEASURING;
            say("begin");
            window_from_ns = now_ns();
            window_end_ns = window_from_ns + (int64_t)(run.options.seconds * NS_PER_S);
            break;
        case MEASURING:
            if (now < window_end_ns && !(run.options.until_ended && run.open == 0)) break;
            window_to_ns = now;
            cpu_s = cpu_now_s() - cpu_at_begin_s;
            Counts all = run.counts;
            run.counts.messages -= counts_at_begin.messages;
            run.counts.bytes -= counts_at_begin.bytes;
            run.counts.data_frames -= counts_at_begin.data_frames;
            run.counts.wire_bytes -= counts_at_begin.wire_bytes;
            run.counts.asked -= counts_at_begin.asked;
            run.counts.ended -= counts_at_begin.ended;
            counts_at_begin = run.counts;
            run.counts = all;
            run.phase = WAITING_FOR_OK;
            say("end");
            break;
        case WAITING_FOR_OK:
            if (go_words >= 2 || stdin_over) run.phase = DONE;
            break;
        case DONE:
            break;
    }
}

static void step(void) {
    Phase before;
    do { /* what ends one phase may have ended the next already */
        before = run.phase;
        step_once();
    } while (run.phase != before);
}

static int64_t earlier(int64_t one, int64_t other) { return one < other ? one : other; }

/* Sets the timer to the next moment at which something is to be done. */
static void set_timer(void) {
    const Options *options = &run.options;
    int64_t at = NEVER_NS;
    if (options->asking == RATE && idle_count) at = earlier(at, next_request_ns);
    if (options->asking == TOGETHER && run.open == 0) at = earlier(at, next_round_ns);
    if (slow()) at = earlier(at, next_tick_ns);
    if (run.phase == OPENING)
        at = earlier(at, started_ns + (int64_t)(options->ready_timeout_s * NS_PER_S) + 1);
    if (run.phase == WARMING) at = earlier(at, ready_ns + (int64_t)(options->warm_s * NS_PER_S));
    if (run.phase == MEASURING) at = earlier(at, window_end_ns);
    if (ready_ns && options->pause_s > 0) {
        int64_t over = ready_ns + (int64_t)(options->pause_s * NS_PER_S);
        if (run.now_ns < over) at = earlier(at, over);
    }
    if (at == timer_ns) return;
    timer_ns = at;
    if (at == NEVER_NS) at = 0;
    else if (at <= 0) at = 1;
    struct itimerspec when = {.it_value = {at / NS_PER_S, at % NS_PER_S}};
    timerfd_settime(timer_fd, TFD_TIMER_ABSTIME, &when, NULL);
}

/* Reads again what was paused, once. */
static void end_pause(void) {
    static bool over;
    if (over || !ready_ns || run.options.pause_s <= 0) return;
    run.now_ns = now_ns();
    if (run.now_ns < ready_ns + (int64_t)(run.options.pause_s * NS_PER_S)) return;
    over = true;
    for (int i = 0; i < run.options.connections; i++)
        if (!connections[i].closed) watch(&connections[i], EPOLL_CTL_MOD);
}

static void loop(void) {
    struct epoll_event events[EVENTS];
    while (run.phase != DONE) {
        ask_due();
        step();
        set_timer();
        if (run.phase == DONE) break;
        int wait_ms = run.phase == WAITING_FOR_GO || run.phase == WAITING_FOR_OK ? 100 : -1;
        int count = epoll_wait(epoll_fd, events, EVENTS, wait_ms);
        if (count < 0 && errno != EINTR) die("epoll_wait: %s", strerror(errno));
        for (int i = 0; i < count; i++) {
            if (events[i].data.ptr == &timer_fd) {
                uint64_t ticks;
                if (read(timer_fd, &ticks, sizeof ticks) < 0 && errno != EAGAIN) abort();
                timer_ns = UNSET_NS;
            } else if (events[i].data.ptr == &stdin_over) {
                read_words();
            } else {
                Connection *connection = events[i].data.ptr;
                if (connection->closed) continue;
                if (events[i].events & EPOLLIN || (!slow() && events[i].events & EPOLLERR))
                    take(connection, 4 * READ_BYTES);
                else
                    flush(connection);
            }
        }
        end_pause();
        if (slow() && now_ns() >= next_tick_ns) {
            bool paused =
                ready_ns && now_ns() < ready_ns + (int64_t)(run.options.pause_s * NS_PER_S);
            if (!paused) tick();
            next_tick_ns += TICK_NS;
            if (next_tick_ns < now_ns()) next_tick_ns = now_ns();
        }
    }
}

static void report(void) {
    static const char *names[] = {
#define X(name, text) text,
        FAULTS(X)
#undef X
    };
    const Counts *counts = &counts_at_begin;
    printf("{\"messages\":%llu,\"bytes\":%llu,\"data_frames\":%llu,\"wire_bytes\":%llu,"
           "\"asked\":%llu,\"ended\":%llu,\"streams_open\":%d,\"resets\":%llu,\"goaways\":%llu,",
           (unsigned long long)counts->messages, (unsigned long long)counts->bytes,
           (unsigned long long)counts->data_frames, (unsigned long long)counts->wire_bytes,
           (unsigned long long)counts->asked, (unsigned long long)counts->ended, run.open,
           (unsigned long long)run.resets, (unsigned long long)run.goaways);
    printf("\"errors\":{");
    const char *comma = "";
    for (int kind = 0; kind < FAULT_KINDS; kind++) {
        if (!run.faults[kind]) continue;
        printf("%s\"%s\":%llu", comma, names[kind], (unsigned long long)run.faults[kind]);
        comma = ",";
    }
    printf("},\"first_error\":\"");
    for (const char *at = run.first_fault; *at; at++)
        putchar(*at == '"' || *at == '\\' || (unsigned char)*at < 32 || (unsigned char)*at > 126
                    ? '?'
                    : *at);
    printf("\",\"total\":{\"messages\":%llu,\"bytes\":%llu,\"asked\":%llu,\"ended\":%llu},",
           (unsigned long long)run.counts.messages, (unsigned long long)run.counts.bytes,
           (unsigned long long)run.counts.asked, (unsigned long long)run.counts.ended);
    printf("\"window_s\":%.6f,\"cpu_s\":%.6f", (double)(window_to_ns - window_from_ns) / NS_PER_S,
           cpu_s);
    const struct {
        const char *name;
        const Histogram *histogram;
    } shown[] = {{"latency_us", &run.latency},
                 {"first_us", &run.first},
                 {"first_in_us", &run.first_in},
                 {"first_out_us", &run.first_out}};
    for (size_t i = 0; i < sizeof shown / sizeof *shown; i++) {
        printf(",\"%s\":", shown[i].name);
        histogram_print_us(shown[i].histogram, stdout);
    }
    printf("}\n");
}

static void raise_limits(void) {
    struct rlimit files;
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    if ((rlim_t)run.options.connections + 16 > files.rlim_cur)
        die("%d connections need %d open files, the limit is %llu: raise it with ulimit -n",
            run.options.connections, run.options.connections + 16,
            (unsigned long long)files.rlim_cur);
}

/* For the histogram's tests: nanoseconds on stdin, one a line, to quantiles on stdout. */
static int print_quantiles(void) {
    static Histogram histogram;
    long long ns;
    while (scanf("%lld", &ns) == 1) histogram_add(&histogram, ns);
    histogram_print_us(&histogram, stdout);
    putchar('\n');
    return 0;
}

int main(int argc, char **argv) {
    if (argc == 2 && strcmp(argv[1], "--quantiles") == 0) return print_quantiles();
    options_read(&run.options, argc, argv);
    raise_limits();
    const Options *options = &run.options;
    connections = calloc((size_t)options->connections, sizeof *connections);
    streams = calloc((size_t)options->streams, sizeof *streams);
    idle = calloc((size_t)options->streams, sizeof(Stream *));
    if (!connections || !streams || !idle) abort();
    for (int i = 0; i < options->streams; i++) {
        streams[i].index = i;
        streams[i].connection = &connections[i % options->connections];
        idle[options->streams - 1 - i] = &streams[i];
    }
    idle_count = options->streams;
    epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    struct epoll_event timer = {.events = EPOLLIN, .data.ptr = &timer_fd};
    struct epoll_event input = {.events = EPOLLIN, .data.ptr = &stdin_over};
    epoll_ctl(epoll_fd, EPOLL_CTL_ADD, timer_fd, &timer);
    /* A file or /dev/null cannot be watched, and says nothing. */
    if (epoll_ctl(epoll_fd, EPOLL_CTL_ADD, STDIN_FILENO, &input)) stdin_over = 1;
    started_ns = run.now_ns = now_ns();
    open_connections();
    loop();
    report();
    return 0;
}
