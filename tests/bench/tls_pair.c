/* Two TLS ends in one process, over a BIO pair: the time of SSL_write + SSL_read of N bytes, without a network in it.
 *
 *   cc -O2 -o tls_pair tls_pair.c -lssl -lcrypto
 *   tls_pair CERT_AND_KEY.pem BYTES     reads a number of pairs per line, prints ns of CPU time per pair (a busy machine does not show in it)
 */
#include <openssl/ssl.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static void die(const char *what) { fprintf(stderr, "tls_pair: %s\n", what); exit(1); }

int main(int argc, char **argv) {
    if (argc != 3) die("usage: tls_pair CERT_AND_KEY.pem BYTES");
    int bytes = atoi(argv[2]);
    static char out[65536], in[65536];
    SSL_CTX *sc = SSL_CTX_new(TLS_server_method()), *cc = SSL_CTX_new(TLS_client_method());
    if (SSL_CTX_use_certificate_file(sc, argv[1], SSL_FILETYPE_PEM) != 1 || SSL_CTX_use_PrivateKey_file(sc, argv[1], SSL_FILETYPE_PEM) != 1)
        die("certificate");
    SSL *s = SSL_new(sc), *c = SSL_new(cc);
    BIO *a, *b;
    BIO_new_bio_pair(&a, 1 << 18, &b, 1 << 18);
    SSL_set_bio(s, a, a);
    SSL_set_bio(c, b, b);
    SSL_set_accept_state(s);
    SSL_set_connect_state(c);
    for (int i = 0; i < 20; i++) { SSL_do_handshake(c); SSL_do_handshake(s); }
    if (!SSL_is_init_finished(s) || !SSL_is_init_finished(c)) die("handshake");
    SSL_read(c, in, sizeof in); /* session tickets */
    printf("ready\n");
    fflush(stdout);
    long pairs;
    while (scanf("%ld", &pairs) == 1) {
        struct timespec t0, t1;
        clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t0);
        for (long i = 0; i < pairs; i++) {
            if (SSL_write(c, out, bytes) != bytes) die("write");
            if (SSL_read(s, in, sizeof in) != bytes) die("read");
        }
        clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t1);
        printf("%.1f\n", ((t1.tv_sec - t0.tv_sec) * 1e9 + (t1.tv_nsec - t0.tv_nsec)) / pairs);
        fflush(stdout);
    }
    return 0;
}
