/* A log writer made from shm/FORMAT.md alone; it shares no code with the Python one.
 *
 * usage: writer DIR STREAM_ID STREAM_BYTES NOW_NS        (a log)
 *        writer DIR TABLE_ID SLOTS NOW_NS NONCE_HEX      (a table, then S lines)
 *
 * Commands on stdin, one a line; hex of nothing is "-":
 *   T hex                                        a token
 *   E code reason stop_hex|none prompt completion cached text_hex
 *   S slot turn bytes ended tail_hex             a word of the table, and its tail if not "-"
 * End of input: leave without an end.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { HEADER = 65536, USED = 4096, END = 256, END_STOP = 3584 };

static void die(const char *what) {
    fprintf(stderr, "%s: %s\n", what, strerror(errno));
    exit(1);
}

static uint32_t crc32_add(uint32_t crc, const uint8_t *data, size_t n) {
    crc = ~crc;
    for (size_t i = 0; i < n; i++) {
        crc ^= data[i];
        for (int k = 0; k < 8; k++) crc = crc & 1 ? crc >> 1 ^ 0xEDB88320u : crc >> 1;
    }
    return ~crc;
}

static size_t unhex(const char *hex, uint8_t *out) {
    if (!strcmp(hex, "-")) return 0;
    size_t n = strlen(hex) / 2;
    for (size_t i = 0; i < n; i++) {
        unsigned byte;
        if (sscanf(hex + 2 * i, "%2x", &byte) != 1) exit(2);
        out[i] = (uint8_t)byte;
    }
    return n;
}

static void write_all(int fd, const uint8_t *data, size_t n, off_t at) {
    while (n) {
        ssize_t done = pwrite(fd, data, n, at);
        if (done < 0) die("pwrite");
        data += done, n -= (size_t)done, at += done;
    }
}

static void put32(uint8_t *at, uint32_t v) { memcpy(at, &v, 4); } /* little-endian machine */
static void put64(uint8_t *at, uint64_t v) { memcpy(at, &v, 8); }
static void store(uint8_t *map, size_t offset, uint64_t v) {
    __atomic_store_n((uint64_t *)(map + offset), v, __ATOMIC_RELEASE);
}

int main(int argc, char **argv) {
    if (argc != 5 && argc != 6) return 2;
    int is_table = argc == 6;
    const char *dir = argv[1], *id = argv[2];
    uint64_t given = strtoull(argv[3], NULL, 10), now = strtoull(argv[4], NULL, 10);
    uint64_t tails = is_table ? (given * 8 + HEADER - 1) / HEADER * HEADER : 0; /* after the words */
    uint64_t words = is_table ? tails + (given * 32 + HEADER - 1) / HEADER * HEADER : 0;
    uint64_t size = is_table ? HEADER + words : given;
    char born[4096], name[4096];
    snprintf(born, sizeof born, "%s/rrpa_tmp_%s_%d", dir, id, (int)getpid());
    snprintf(name, sizeof name, "%s/rrpa_%s%s", dir, is_table ? "table_" : "", id);

    /* 1 and 2 */
    int fd = open(born, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0640);
    if (fd < 0) die(born);
    if (ftruncate(fd, (off_t)size) || fchmod(fd, 0640)) die("size");
    struct stat st;
    if (flock(fd, LOCK_EX | LOCK_NB) || fstat(fd, &st) || st.st_nlink != 1) die("lock");

    /* 3 */
    static uint8_t head[USED];
    memcpy(head, is_table ? "RRPATAB" : "RRPALOG", 8);
    put32(head + 8, 1);
    put32(head + 12, HEADER);
    put64(head + 16, size);
    unhex(id, head + 24);
    put64(head + 40, now);
    if (is_table) {
        put32(head + 48, (uint32_t)given);
        unhex(argv[5], head + 64);
    } else {
        put64(head + 136, ~(uint64_t)0);
    }
    put32(head + 60, crc32_add(0, head, 60));
    write_all(fd, head, USED, 0);
    if (is_table) {
        uint8_t *zeros = calloc(1, words);
        write_all(fd, zeros, words, HEADER);
        free(zeros);
    }
    uint8_t *map = mmap(NULL, is_table ? words : USED, PROT_READ | PROT_WRITE, MAP_SHARED, fd,
                        is_table ? HEADER : 0);
    if (map == MAP_FAILED) die("mmap");

    /* 4 */
    if (renameat2(AT_FDCWD, born, AT_FDCWD, name, RENAME_NOREPLACE)) die(name);

    static char line[1 << 18], a[1 << 17], b[1 << 14];
    static uint8_t bytes[1 << 16], end[END_STOP];
    uint64_t cursor = 0, tokens = 0;
    while (fgets(line, sizeof line, stdin)) {
        uint32_t code, reason, prompt, completion, cached;
        uint64_t slot, turn, committed;
        unsigned ended;
        if (sscanf(line, "T %s", a) == 1) {
            size_t n = unhex(a, bytes);
            if (cursor + n > size - HEADER) { puts("full"); continue; }
            if (n) {
                if (!cursor) store(map, 152, now);              /* 5 */
                write_all(fd, bytes, n, (off_t)(HEADER + cursor)); /* 6 */
                cursor += n;
                store(map, 136, ~cursor);                       /* 7 */
                store(map, 128, cursor);                        /* 8 */
            }
            store(map, 160, ++tokens);                          /* 9 */
        } else if (sscanf(line, "E %" SCNu32 " %" SCNu32 " %s %" SCNu32 " %" SCNu32 " %" SCNu32
                                " %s", &code, &reason, a, &prompt, &completion, &cached, b) == 7) {
            int stopped = strcmp(a, "none") != 0;
            put64(end + END, cursor);
            put32(end + 264, code);
            put32(end + 268, reason);
            put32(end + 272, prompt);
            put32(end + 276, completion);
            put32(end + 280, cached);
            put32(end + 284, stopped);
            put32(end + 288, stopped ? (uint32_t)unhex(a, end + 512) : 0);
            put32(end + 292, (uint32_t)unhex(b, end + 2560));
            put32(end + 296, crc32_add(crc32_add(0, end + END, 40), end + 512, END_STOP - 512));
            write_all(fd, end + END, END_STOP - END, END);      /* 12 */
            store(map, 144, 1);                                 /* 13 */
            break;
        } else if (sscanf(line, "S %" SCNu64 " %" SCNu64 " %" SCNu64 " %u %s", &slot, &turn,
                          &committed, &ended, a) == 5) {
            if (unhex(a, bytes) == 28) {                        /* 10 */
                put32(bytes + 28, crc32_add((uint32_t)(HEADER + committed), bytes, 28));
                memcpy(map + tails + slot * 32, bytes, 32);
            }
            store(map, slot * 8, turn << 48 | committed << 1 | ended);
        } else {
            return 2;
        }
    }
    /* 16 */
    munmap(map, is_table ? words : USED);
    flock(fd, LOCK_UN);
    close(fd);
    return 0;
}
