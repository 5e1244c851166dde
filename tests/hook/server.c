/* A server that only tells: what a call costs, whole lives at a rate, many open requests, and nonsense. One line of JSON says what it did.
 *
 *   server cost [TRIES]                   ns of an empty call, of the tap symbol, of an event filled and told; the best of TRIES
 *   server lives MODEL N PAUSE_US         N requests one after the other, with a pause before each step; what each interval was by its own clock
 *   server rate MODEL EVENTS_PER_S SECONDS THREADS
 *   server open MODEL N                   N requests at once; finished when standard input ends
 *   server nonsense                       calls that are no events
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "tokengauge_tap.h"

static uint64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

__attribute__((noinline)) static void empty(const struct tokengauge_event *event, size_t bytes) {
    __asm__ __volatile__("" : : "r"(event), "r"(bytes) : "memory");
}

static struct tokengauge_event request(const char *model, const char *kind, unsigned long number) {
    char id[64];
    int length = snprintf(id, sizeof id, "%s-%ld-%lu", kind, (long)getpid(), number);
    struct tokengauge_event e;
    tokengauge_event_init(&e, id, (size_t)length);
    tokengauge_event_model(&e, model, strlen(model));
    return e;
}

static double best(int tries, int what) {
    enum { CALLS = 200000 };
    struct tokengauge_event e = request("cost", "cost", 0);
    double least = 1e9;
    for (int i = 0; i < tries; i++) {
        uint64_t began = now();
        for (int n = 0; n < CALLS; n++) {
            if (what == 0) {
                empty(&e, sizeof e);
            } else if (what == 1) {
                tokengauge_tap_v1(&e, 0); /* too short: the probe is paid, the copy is not */
            } else {
                tokengauge_tell_tokens(&e, 1);
            }
        }
        double each = (double)(now() - began) / CALLS;
        least = each < least ? each : least;
    }
    return least;
}

struct rate {
    const char *model;
    double per_second, seconds;
    unsigned number;
    unsigned long sent, lives;
};

/* Lives of ten events, as many as the rate allows, eight at a time. */
static void *rate(void *argument) {
    struct rate *r = argument;
    enum { AT_ONCE = 8, TOKENS = 6 };
    struct tokengauge_event open[AT_ONCE];
    uint64_t began = now(), end = began + (uint64_t)(r->seconds * 1e9);
    while (now() < end) {
        for (unsigned i = 0; i < AT_ONCE; i++) {
            open[i] = request(r->model, "rate", r->number * 100000000ul + r->lives++);
            tokengauge_tell(&open[i], TOKENGAUGE_RECEIVED);
            tokengauge_tell(&open[i], TOKENGAUGE_SCHEDULED);
            tokengauge_tell(&open[i], TOKENGAUGE_FIRST_TOKEN);
        }
        for (unsigned n = 0; n < TOKENS; n++) {
            for (unsigned i = 0; i < AT_ONCE; i++) tokengauge_tell_tokens(&open[i], 1);
        }
        for (unsigned i = 0; i < AT_ONCE; i++) tokengauge_tell_finished(&open[i], TOKENGAUGE_FINISH_STOP, TOKENS + 1);
        r->sent += AT_ONCE * (TOKENS + 4);
        /* Whoever is ahead of the rate waits. */
        double due = (double)r->sent / r->per_second * 1e9, is = (double)(now() - began);
        if (due > is) usleep((unsigned)((due - is) / 1000.0));
    }
    return NULL;
}

static void lives(const char *model, long n, unsigned pause) {
    double queue = 0, prefill = 0, ttft = 0, decode = 0, step = 0;
    for (long i = 0; i < n; i++) {
        struct tokengauge_event e = request(model, "life", (unsigned long)i);
        e.prompt_tokens = 20;
        e.present |= TOKENGAUGE_HAS_PROMPT;
        uint64_t received = now();
        tokengauge_tell(&e, TOKENGAUGE_RECEIVED);
        usleep(pause);
        uint64_t scheduled = now();
        tokengauge_tell(&e, TOKENGAUGE_SCHEDULED);
        usleep(2 * pause);
        uint64_t first = now();
        tokengauge_tell(&e, TOKENGAUGE_FIRST_TOKEN);
        uint64_t last = first;
        for (int t = 0; t < 3; t++) {
            usleep(pause);
            last = now();
            tokengauge_tell_tokens(&e, 2);
        }
        tokengauge_tell_finished(&e, TOKENGAUGE_FINISH_LENGTH, 7);
        queue += (double)(scheduled - received);
        prefill += (double)(first - scheduled);
        ttft += (double)(first - received);
        decode += (double)(last - first);
        step += (double)(last - first);
    }
    printf("{\"lives\": %ld, \"events\": %ld, \"queue_s\": %.9f, \"prefill_s\": %.9f, \"ttft_s\": %.9f, \"decode_s\": %.9f, \"steps_s\": %.9f}\n",
           n, 7 * n, queue / 1e9, prefill / 1e9, ttft / 1e9, decode / 1e9, step / 1e9);
}

static void nonsense(void) {
    struct tokengauge_event e = request("nonsense", "nonsense", 0);
    e.kind = TOKENGAUGE_QUEUED;
    size_t whole = (size_t)TOKENGAUGE_TAP_FIXED + e.request_len + e.model_len;
    tokengauge_tap_v1(&e, 0);       /* too_short, sorted out by the kernel side */
    tokengauge_tap_v1(&e, 79);
    tokengauge_tap_v1(&e, 80);      /* too_short: its texts are missing */
    tokengauge_tap_v1(NULL, whole); /* unreadable */
    tokengauge_tap_v1((const struct tokengauge_event *)(uintptr_t)-4096, whole);
    /* Unreadable at its end: the structure reaches over the end of what is mapped. */
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    char *map = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    munmap(map + page, page);
    memcpy(map + page - 60, &e, 60);
    tokengauge_tap_v1((const struct tokengauge_event *)(void *)(map + page - 60), whole);
    struct tokengauge_event bad = e;
    bad.version = 2; /* unknown_version */
    tokengauge_tap_v1(&bad, whole);
    bad = e;
    bad.kind = 77; /* unknown_kind */
    tokengauge_tap_v1(&bad, whole);
    bad = e;
    bad.kind = TOKENGAUGE_TOKENS; /* no_token_count */
    tokengauge_tap_v1(&bad, whole);
    bad = e;
    bad.request_len = 0; /* bad_request_id */
    tokengauge_tap_v1(&bad, whole);
    bad = e;
    bad.text[0] = (char)0xff; /* bad_request_id: no UTF-8 */
    tokengauge_tap_v1(&bad, whole);
    bad = e;
    bad.request_len = 60000; /* too_short */
    tokengauge_tap_v1(&bad, whole);
    /* More than is ever copied, with much behind it: taken, up to the bound. */
    static union { struct tokengauge_event event; char bytes[100000]; } huge;
    huge.event = e;
    tokengauge_tap_v1(&huge.event, sizeof huge);
    printf("{\"too_short\": 4, \"unreadable\": 3, \"unknown_version\": 1, \"unknown_kind\": 1, \"no_token_count\": 1, \"bad_request_id\": 2, \"taken\": 1}\n");
}

int main(int argc, char **argv) {
    const char *what = argc > 1 ? argv[1] : "";
    if (!strcmp(what, "cost")) {
        int tries = argc > 2 ? atoi(argv[2]) : 5;
        printf("{\"empty_ns\": %.3f, \"short_ns\": %.3f, \"told_ns\": %.3f}\n", best(tries, 0), best(tries, 1), best(tries, 2));
    } else if (!strcmp(what, "lives") && argc > 4) {
        lives(argv[2], atol(argv[3]), (unsigned)atoi(argv[4]));
    } else if (!strcmp(what, "rate") && argc > 5) {
        unsigned threads = (unsigned)atoi(argv[5]);
        pthread_t thread[16];
        struct rate of[16];
        unsigned long sent = 0, done = 0;
        if (threads > 16) return 2;
        uint64_t began = now();
        for (unsigned i = 0; i < threads; i++) {
            of[i] = (struct rate){argv[2], atof(argv[3]) / threads, atof(argv[4]), i, 0, 0};
            pthread_create(&thread[i], NULL, rate, &of[i]);
        }
        for (unsigned i = 0; i < threads; i++) {
            pthread_join(thread[i], NULL);
            sent += of[i].sent;
            done += of[i].lives;
        }
        printf("{\"events\": %lu, \"lives\": %lu, \"seconds\": %.3f}\n", sent, done, (double)(now() - began) / 1e9);
    } else if (!strcmp(what, "open") && argc > 3) {
        long n = atol(argv[3]);
        struct tokengauge_event *all = calloc((size_t)n, sizeof *all);
        for (long i = 0; i < n; i++) {
            all[i] = request(argv[2], "open", (unsigned long)i);
            tokengauge_tell(&all[i], TOKENGAUGE_RECEIVED);
            tokengauge_tell(&all[i], TOKENGAUGE_SCHEDULED);
            tokengauge_tell(&all[i], TOKENGAUGE_FIRST_TOKEN);
            if (i % 64 == 63) usleep(1000);
        }
        printf("{\"open\": %ld, \"events\": %ld}\n", n, 3 * n);
        fflush(stdout);
        while (getchar() != EOF) {}
        for (long i = 0; i < n; i++) {
            tokengauge_tell_finished(&all[i], TOKENGAUGE_FINISH_STOP, 1);
            if (i % 64 == 63) usleep(1000);
        }
        free(all);
    } else if (!strcmp(what, "nonsense")) {
        nonsense();
    } else {
        fprintf(stderr, "usage: server cost|lives|rate|open|nonsense …\n");
        return 2;
    }
    return 0;
}
