/* TLS connections within one process, over BIO pairs: SSL_write + SSL_read of N bytes, without a network in it.
 *
 *   cc -O2 -o tls_pair tls_pair.c -lssl -lcrypto
 *   tls_pair CERT_AND_KEY.pem BYTES [CONNECTIONS]
 *
 * reads commands, one a line: "pairs N" prints ns of CPU time per pair (a busy machine does not show in it);
 * "rate R SECONDS" moves R chunks a second, over the connections in turn, and prints how many it moved.
 */
#include <openssl/ssl.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static void die(const char *what) { fprintf(stderr, "tls_pair: %s\n", what); exit(1); }

static double now(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return t.tv_sec * 1e9 + t.tv_nsec;
}

int main(int argc, char **argv) {
    if (argc < 3) die("usage: tls_pair CERT_AND_KEY.pem BYTES [CONNECTIONS]");
    int bytes = atoi(argv[2]), connections = argc > 3 ? atoi(argv[3]) : 1;
    static char out[65536], in[65536];
    SSL **server = calloc(connections, sizeof *server), **client = calloc(connections, sizeof *client);
    SSL_CTX *sc = SSL_CTX_new(TLS_server_method()), *cc = SSL_CTX_new(TLS_client_method());
    if (SSL_CTX_use_certificate_file(sc, argv[1], SSL_FILETYPE_PEM) != 1 || SSL_CTX_use_PrivateKey_file(sc, argv[1], SSL_FILETYPE_PEM) != 1)
        die("certificate");
    for (int n = 0; n < connections; n++) {
        SSL *s = server[n] = SSL_new(sc), *c = client[n] = SSL_new(cc);
        BIO *a, *b;
        BIO_new_bio_pair(&a, 1 << 17, &b, 1 << 17);
        SSL_set_bio(s, a, a);
        SSL_set_bio(c, b, b);
        SSL_set_accept_state(s);
        SSL_set_connect_state(c);
        for (int i = 0; i < 20; i++) { SSL_do_handshake(c); SSL_do_handshake(s); }
        if (!SSL_is_init_finished(s) || !SSL_is_init_finished(c)) die("handshake");
        SSL_read(c, in, sizeof in); /* session tickets */
    }
    printf("ready\n");
    fflush(stdout);
    char command[64];
    long amount, seconds, turn = 0;
    while (fgets(command, sizeof command, stdin)) {
        if (sscanf(command, "pairs %ld", &amount) == 1) {
            double begin = now(CLOCK_PROCESS_CPUTIME_ID);
            for (long i = 0; i < amount; i++, turn = (turn + 1) % connections) {
                if (SSL_write(client[turn], out, bytes) != bytes) die("write");
                if (SSL_read(server[turn], in, sizeof in) != bytes) die("read");
            }
            printf("%.1f\n", (now(CLOCK_PROCESS_CPUTIME_ID) - begin) / amount);
        } else if (sscanf(command, "rate %ld %ld", &amount, &seconds) == 2) {
            double begin = now(CLOCK_MONOTONIC);
            long moved = 0, all = amount * seconds;
            while (moved < all) {
                long due = (now(CLOCK_MONOTONIC) - begin) / 1e9 * amount;
                for (; moved < due && moved < all; moved++, turn = (turn + 1) % connections) {
                    if (SSL_write(client[turn], out, bytes) != bytes) die("write");
                    if (SSL_read(server[turn], in, sizeof in) != bytes) die("read");
                }
                struct timespec nap = {0, 1000000};
                nanosleep(&nap, NULL);
            }
            printf("%ld\n", moved);
        }
        fflush(stdout);
    }
    return 0;
}
