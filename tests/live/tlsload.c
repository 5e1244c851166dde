/* tlsload: a provider and its clients that stream on a known schedule over TLS, and note what really happened.
 *
 * The pair exists because Python cannot stamp precisely under load. Stamps are CLOCK_MONOTONIC, directly before
 * SSL_write and directly after SSL_read returned: the same instants that an observer of the library can see. Truth is
 * JSON lines, one per stream and end, with times as nanoseconds since the epoch (one offset read at the start).
 *
 *   tlsload server --cert C --key K --truth FILE [--no-pace]    prints {"port":N}; SIGTERM: prints a summary and ends
 *   tlsload client --port N --truth FILE --streams 20 --requests 50 | --seconds S
 *                  [--chunks 10] [--first-us 50000] [--gap-us 10000] [--reconnect 10] [--no-pace]
 *
 * The client's request carries the schedule in headers, so the server needs no configuration. One thread per
 * connection with blocking sockets: the write happens when the schedule says, in the call that is stamped.
 * --no-pace drops all waiting: the throughput of the pair itself.
 *
 *   cc -O2 -Wall -Wextra -o tlsload tlsload.c -lssl -lcrypto -lpthread
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <openssl/ssl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static int64_t epoch_ns;          /* CLOCK_REALTIME - CLOCK_MONOTONIC at the start */
static FILE *truth;
static pthread_mutex_t truth_lock = PTHREAD_MUTEX_INITIALIZER;
static atomic_bool stopping;
static atomic_long streams_done, chunks_done, streams_broken;
static bool pace = true;

static struct options {
    const char *cert, *key, *truth;
    int port, streams, requests, seconds, chunks, first_us, gap_us, reconnect;
} opt = {.streams = 20, .chunks = 10, .first_us = 50000, .gap_us = 10000, .reconnect = 10};

static int64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static void sleep_until(int64_t when) {
    struct timespec t = {when / 1000000000LL, when % 1000000000LL};
    while (pace && clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) == EINTR && !stopping) {}
}

static void die(const char *what) {
    perror(what);
    exit(1);
}

__attribute__((format(printf, 1, 2))) static void tell(const char *format, ...) {
    va_list list;
    va_start(list, format);
    pthread_mutex_lock(&truth_lock);
    vfprintf(truth, format, list);
    pthread_mutex_unlock(&truth_lock);
    va_end(list);
}

static void summary(const char *role, double wall_s) {
    struct rusage use;
    getrusage(RUSAGE_SELF, &use);
    double cpu = use.ru_utime.tv_sec + use.ru_stime.tv_sec + (use.ru_utime.tv_usec + use.ru_stime.tv_usec) / 1e6;
    printf("{\"role\":\"%s\",\"streams\":%ld,\"broken\":%ld,\"chunks\":%ld,\"wall_s\":%.3f,\"cpu_s\":%.3f}\n", role,
           (long)streams_done, (long)streams_broken, (long)chunks_done, wall_s, cpu);
    fflush(stdout);
}

static void start_thread(void *(*body)(void *), void *with) {
    pthread_attr_t small;
    pthread_t thread;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 256 * 1024);
    pthread_attr_setdetachstate(&small, PTHREAD_CREATE_DETACHED);
    if (pthread_create(&thread, &small, body, with)) die("pthread_create");
}

/* The port at one end of a socket. */
static int port_of(int fd, int (*which)(int, struct sockaddr *, socklen_t *)) {
    struct sockaddr_in a = {0};
    socklen_t size = sizeof a;
    which(fd, (struct sockaddr *)&a, &size);
    return ntohs(a.sin_port);
}

/* ------------------------------------------------------------------------------------------------------- server */

static long header(const char *request, const char *name) {
    const char *at = strstr(request, name);
    return at ? atol(at + strlen(name)) : 0;
}

/* One event as one HTTP chunk; generated output is padded to about 250 bytes, as real events are. */
static int event(char *out, const char *id, const char *rest) {
    char body[512];
    int n = snprintf(body, sizeof body,
                     "data: {\"id\":\"%s\",\"object\":\"chat.completion.chunk\",\"created\":1700000000,\"model\":\"load-1\","
                     "\"service_tier\":\"default\",\"system_fingerprint\":\"fp_0123456789\",%s}\n\n", id, rest);
    return sprintf(out, "%x\r\n%s\r\n", n, body);
}

static bool answer(SSL *ssl, const char *request, int64_t t_request, long number, int peer_port) {
    char out[1024], id[40], rest[256];
    long chunks = header(request, "x-chunks: "), first_us = header(request, "x-first-us: ");
    long gap_us = header(request, "x-gap-us: ");
    int64_t t_first = 0, t_last = 0;
    snprintf(id, sizeof id, "chatcmpl-%08x%06lx", (unsigned)getpid(), number);
    int n = sprintf(out, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n");
    n += event(out + n, id, "\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"finish_reason\":null}],\"usage\":null");
    bool good = SSL_write(ssl, out, n) == n;
    long sent = 0;
    for (; good && sent < chunks && !stopping; sent++) {
        snprintf(rest, sizeof rest, "\"choices\":[{\"index\":0,\"delta\":{\"content\":\" t%ld\"},\"logprobs\":null,\"finish_reason\":null}],\"usage\":null", sent);
        n = event(out, id, rest);
        sleep_until(t_request + (first_us + sent * gap_us) * 1000);
        int64_t stamp = now();
        good = SSL_write(ssl, out, n) == n;
        if (!sent) t_first = stamp;
        t_last = stamp;
        chunks_done++;
    }
    n = event(out, id, "\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}],\"usage\":null");
    snprintf(rest, sizeof rest, "\"choices\":[],\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":%ld,\"total_tokens\":%ld}", sent, sent + 7);
    n += event(out + n, id, rest);
    n += sprintf(out + n, "e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n");
    good = good && SSL_write(ssl, out, n) == n;
    *(good ? &streams_done : &streams_broken) += 1;
    tell("{\"view\":\"server\",\"id\":\"%s\",\"peer_port\":%d,\"t_request_ns\":%ld,\"t_first_ns\":%ld,\"t_last_ns\":%ld,\"generated\":%ld,\"complete\":%s}\n",
         id, peer_port, (long)(t_request + epoch_ns), (long)(t_first + epoch_ns), (long)(t_last + epoch_ns), sent, good ? "true" : "false");
    return good;
}

struct accepted { SSL_CTX *tls; int fd; };

static void *serve(void *with) {
    static atomic_long number;
    struct accepted conn = *(struct accepted *)with;
    free(with);
    SSL *ssl = SSL_new(conn.tls);
    SSL_set_fd(ssl, conn.fd);
    int peer_port = port_of(conn.fd, getpeername);
    char request[4096];
    if (SSL_accept(ssl) == 1) {
        int have = 0;
        int64_t t_request = 0;
        for (bool good = true; good && !stopping;) {
            int n = SSL_read(ssl, request + have, sizeof request - 1 - have);
            int64_t stamp = now();
            if (n <= 0) break;
            if (!have) t_request = stamp;
            have += n;
            request[have] = 0;
            const char *end = strstr(request, "\r\n\r\n");
            if (end && have >= end + 4 - request + header(request, "content-length: ")) {
                good = answer(ssl, request, t_request, number++, peer_port);
                have = 0;
            }
        }
    }
    SSL_shutdown(ssl);
    SSL_free(ssl);
    close(conn.fd);
    return NULL;
}

static void on_signal(int number) {
    (void)number;
    stopping = true;
}

static int run_server(void) {
    SSL_CTX *tls = SSL_CTX_new(TLS_server_method());
    if (SSL_CTX_use_certificate_chain_file(tls, opt.cert) != 1) die(opt.cert);
    if (SSL_CTX_use_PrivateKey_file(tls, opt.key, SSL_FILETYPE_PEM) != 1) die(opt.key);
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), yes = 1;
    struct sockaddr_in any = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    if (bind(listener, (struct sockaddr *)&any, sizeof any) || listen(listener, 1024)) die("listen");
    struct sigaction action = {.sa_handler = on_signal}; /* without SA_RESTART: accept returns */
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGINT, &action, NULL);
    printf("{\"port\":%d}\n", port_of(listener, getsockname));
    fflush(stdout);
    int64_t start = now();
    while (!stopping) {
        int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
        if (fd < 0) continue;
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
        struct accepted *conn = malloc(sizeof *conn);
        *conn = (struct accepted){tls, fd};
        start_thread(serve, conn);
    }
    usleep(100000); /* the last streams write their truth */
    summary("server", (now() - start) / 1e9);
    return 0;
}

/* ------------------------------------------------------------------------------------------------------- client */

static SSL_CTX *client_tls;
static atomic_long requests_left;
static atomic_int clients_left;
static int64_t deadline;

static SSL *dial(int *fd) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(opt.port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int yes = 1;
    *fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connect(*fd, (struct sockaddr *)&to, sizeof to)) die("connect");
    setsockopt(*fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    SSL *ssl = SSL_new(client_tls);
    SSL_set_tlsext_host_name(ssl, "localhost");
    SSL_set_fd(ssl, *fd);
    if (SSL_connect(ssl) != 1) {
        fprintf(stderr, "tlsload: handshake failed\n");
        exit(1);
    }
    return ssl;
}

static bool ask(SSL *ssl, int fd) {
    char buffer[65536], request[768], id[40] = "";
    const char *body = "{\"model\":\"load-1\",\"stream\":true,\"stream_options\":{\"include_usage\":true},\"messages\":[{\"role\":\"user\",\"content\":\"go\"}]}";
    int n = snprintf(request, sizeof request,
                     "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\nx-chunks: %d\r\n"
                     "x-first-us: %d\r\nx-gap-us: %d\r\ncontent-length: %zu\r\n\r\n%s",
                     opt.chunks, opt.first_us, opt.gap_us, strlen(body), body);
    int64_t t_first = 0, t_last = 0, t_send = now();
    if (SSL_write(ssl, request, n) != n) return false;
    long generated = 0;
    bool complete = false;
    for (size_t have = 0; !complete;) {
        n = SSL_read(ssl, buffer + have, sizeof buffer - 1 - have);
        int64_t stamp = now();
        if (n <= 0) break;
        have += n;
        buffer[have] = 0;
        char *at = buffer, *end;
        for (; (end = strstr(at, "\n\n")); at = end + 2) {
            *end = 0;
            char *found;
            if (!*id && (found = strstr(at, "{\"id\":\""))) sscanf(found + 7, "%39[^\"]", id);
            if (strstr(at, "\"delta\":{\"content\":\" t")) {
                if (!generated++) t_first = stamp;
                t_last = stamp;
                chunks_done++;
            }
        }
        have = buffer + have - at;
        memmove(buffer, at, have);
        complete = have >= 7 && !memcmp(buffer + have - 7, "\r\n0\r\n\r\n", 7);
    }
    *(complete ? &streams_done : &streams_broken) += 1;
    tell("{\"view\":\"client\",\"id\":\"%s\",\"local_port\":%d,\"t_send_ns\":%ld,\"t_first_ns\":%ld,\"t_last_ns\":%ld,\"generated\":%ld,\"complete\":%s}\n",
         id, port_of(fd, getsockname), (long)(t_send + epoch_ns), (long)(t_first + epoch_ns), (long)(t_last + epoch_ns), generated, complete ? "true" : "false");
    return complete;
}

static void *stream_forever(void *with) {
    long index = (long)with;
    int fd = -1;
    SSL *ssl = NULL;
    sleep_until(now() + index * (opt.gap_us ? opt.gap_us : 1000) * 1000LL / opt.streams); /* spread over one gap */
    for (int on_this = 0; !stopping && (opt.seconds ? now() < deadline : requests_left-- > 0); on_this++) {
        bool fresh = !ssl || (opt.reconnect && on_this >= opt.reconnect);
        if (ssl && fresh) {
            SSL_shutdown(ssl);
            SSL_free(ssl);
            close(fd);
        }
        if (fresh) {
            ssl = dial(&fd);
            on_this = 0;
        }
        if (!ask(ssl, fd)) break;
    }
    if (ssl) {
        SSL_shutdown(ssl);
        SSL_free(ssl);
        close(fd);
    }
    clients_left--;
    return NULL;
}

static int run_client(void) {
    client_tls = SSL_CTX_new(TLS_client_method()); /* does not verify: the peer is ours, on loopback */
    signal(SIGTERM, on_signal);
    signal(SIGINT, on_signal);
    requests_left = opt.requests;
    clients_left = opt.streams;
    int64_t start = now();
    deadline = start + opt.seconds * 1000000000LL;
    for (long i = 0; i < opt.streams; i++) start_thread(stream_forever, (void *)i);
    while (clients_left > 0) usleep(20000);
    summary("client", (now() - start) / 1e9);
    return streams_broken ? 1 : 0;
}

int main(int argc, char **argv) {
    const struct { const char *flag; int *number; const char **text; } flags[] = {
        {"--cert", NULL, &opt.cert}, {"--key", NULL, &opt.key}, {"--truth", NULL, &opt.truth}, {"--port", &opt.port, NULL},
        {"--streams", &opt.streams, NULL}, {"--requests", &opt.requests, NULL}, {"--seconds", &opt.seconds, NULL},
        {"--chunks", &opt.chunks, NULL}, {"--first-us", &opt.first_us, NULL}, {"--gap-us", &opt.gap_us, NULL},
        {"--reconnect", &opt.reconnect, NULL},
    };
    bool server = argc > 1 && !strcmp(argv[1], "server");
    if (!server && !(argc > 1 && !strcmp(argv[1], "client"))) return fprintf(stderr, "usage: tlsload server|client ...\n"), 2;
    for (int i = 2; i < argc; i++) {
        if (!strcmp(argv[i], "--no-pace")) { pace = false; continue; }
        size_t f = 0, known = sizeof flags / sizeof *flags;
        while (f < known && strcmp(argv[i], flags[f].flag)) f++;
        if (f == known || i + 1 == argc) return fprintf(stderr, "tlsload: what is %s\n", argv[i]), 2;
        i++;
        if (flags[f].number) *flags[f].number = atoi(argv[i]);
        else *flags[f].text = argv[i];
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    signal(SIGPIPE, SIG_IGN);
    struct timespec wall;
    clock_gettime(CLOCK_REALTIME, &wall);
    epoch_ns = wall.tv_sec * 1000000000LL + wall.tv_nsec - now();
    truth = fopen(opt.truth ? opt.truth : "/dev/null", "w");
    if (!truth) die(opt.truth);
    int code = server ? run_server() : run_client();
    fclose(truth);
    return code;
}
