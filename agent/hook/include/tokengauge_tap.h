/* tokengauge_tap.h - tells tokengauge what an inference engine knows of its requests. Version 1.
 *
 * Header-only, C99 and C++; Linux on x86-64 and arm64, elsewhere a function that does nothing. No library, no initialisation, no thread,
 * no allocation, no system call. The contract is described in README.md beside this folder; Apache-2.0.
 *
 *     struct tokengauge_event e;
 *     tokengauge_event_init(&e, id, strlen(id));           // once for each request
 *     tokengauge_tell(&e, TOKENGAUGE_RECEIVED);
 *     tokengauge_tell(&e, TOKENGAUGE_SCHEDULED);
 *     tokengauge_tell(&e, TOKENGAUGE_FIRST_TOKEN);
 *     tokengauge_tell_tokens(&e, 1);                       // as often as there are some
 *     tokengauge_tell_finished(&e, TOKENGAUGE_FINISH_STOP, 128);
 */
#ifndef TOKENGAUGE_TAP_H
#define TOKENGAUGE_TAP_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define TOKENGAUGE_TAP_VERSION 1
#define TOKENGAUGE_TAP_FIXED 80 /* bytes of the structure in front of its texts */
#define TOKENGAUGE_TAP_NAME 160 /* most bytes of a request's id, and of a model's name; what is longer is cut */

/* What happened: tokengauge_event.kind. */
enum tokengauge_kind {
    TOKENGAUGE_RECEIVED = 1,    /* the server has the request (before its tokeniser) */
    TOKENGAUGE_QUEUED = 2,      /* it waits for the engine */
    TOKENGAUGE_SCHEDULED = 3,   /* the engine began to work on it (again, after a preemption) */
    TOKENGAUGE_FIRST_TOKEN = 4, /* its first token is there */
    TOKENGAUGE_TOKENS = 5,      /* new_tokens more; the number must be told */
    TOKENGAUGE_FINISHED = 6,    /* it ended by itself, well or not */
    TOKENGAUGE_PREEMPTED = 7,   /* it had to give up its place for others and waits again */
    TOKENGAUGE_CANCELLED = 8    /* its client did not want it any more */
};

/* Bits of tokengauge_event.present: which numbers are told. Without its bit a field is not looked at, so zeros are no claim. */
enum tokengauge_present {
    TOKENGAUGE_HAS_NEW = 1,
    TOKENGAUGE_HAS_PROMPT = 2,
    TOKENGAUGE_HAS_CACHED = 4,
    TOKENGAUGE_HAS_OUTPUT = 8,
    TOKENGAUGE_HAS_CHUNK = 16,
    TOKENGAUGE_HAS_ENGINE = 32,
    TOKENGAUGE_HAS_FINISH = 64,
    TOKENGAUGE_HAS_DRAFTED = 128,
    TOKENGAUGE_HAS_ACCEPTED = 256,
    TOKENGAUGE_HAS_BATCH = 512
};

/* Why it ended: tokengauge_event.finish. */
enum tokengauge_finish {
    TOKENGAUGE_FINISH_STOP = 1,
    TOKENGAUGE_FINISH_LENGTH = 2,
    TOKENGAUGE_FINISH_ERROR = 3,
    TOKENGAUGE_FINISH_OTHER = 4
};

/* One event. The layout never changes within version 1, but for fields added in front of the texts, which `size` tells. */
struct tokengauge_event {
    uint16_t size;            /* TOKENGAUGE_TAP_FIXED */
    uint16_t version;         /* TOKENGAUGE_TAP_VERSION */
    uint16_t kind;            /* enum tokengauge_kind */
    uint16_t present;         /* enum tokengauge_present */
    uint16_t request_len;     /* bytes of the request's id in text */
    uint16_t model_len;       /* bytes of the model's name, right behind it; 0: not told */
    uint32_t new_tokens;      /* tokens of this event */
    uint32_t prompt_tokens;   /* of the prompt, cached ones among them */
    uint32_t cached_tokens;   /* of the prompt, found in a cache */
    uint32_t output_tokens;   /* of the answer so far */
    uint32_t chunk_bytes;     /* bytes of the chunk that is written to the client for this event; never the chunk itself */
    uint32_t engine;          /* which engine of the server, e.g. its data-parallel rank */
    uint32_t finish;          /* enum tokengauge_finish */
    uint32_t drafted_tokens;  /* speculative decoding: drafted for this event */
    uint32_t accepted_tokens; /* and accepted */
    uint32_t batch;           /* requests in the batch of this step */
    uint32_t reserved;        /* 0 */
    uint8_t trace_id[16];     /* as in traceparent, most significant byte first; zeros: not told */
    uint8_t span_id[8];
    char text[2 * TOKENGAUGE_TAP_NAME]; /* the id, then the name; without zeros behind them */
};

#if defined(__cplusplus) && __cplusplus >= 201103L
#define TOKENGAUGE_ASSERT(what, name) static_assert(what, #name)
#elif defined(__STDC_VERSION__) && __STDC_VERSION__ >= 201112L
#define TOKENGAUGE_ASSERT(what, name) _Static_assert(what, #name)
#else
#define TOKENGAUGE_ASSERT(what, name) typedef char tokengauge_assert_##name[(what) ? 1 : -1]
#endif
TOKENGAUGE_ASSERT(offsetof(struct tokengauge_event, new_tokens) == 12, new_tokens_at_12);
TOKENGAUGE_ASSERT(offsetof(struct tokengauge_event, batch) == 48, batch_at_48);
TOKENGAUGE_ASSERT(offsetof(struct tokengauge_event, trace_id) == 56, trace_id_at_56);
TOKENGAUGE_ASSERT(offsetof(struct tokengauge_event, span_id) == 72, span_id_at_72);
TOKENGAUGE_ASSERT(offsetof(struct tokengauge_event, text) == TOKENGAUGE_TAP_FIXED, text_behind_the_fixed_part);
TOKENGAUGE_ASSERT(sizeof(struct tokengauge_event) == 400, event_of_400_bytes);

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__linux__) && (defined(__x86_64__) || defined(__aarch64__)) && !defined(TOKENGAUGE_TAP_PLAIN)
/* The function itself, in assembler, so that it is the same bytes whatever the compiler and its options are. It does nothing: it begins with
 * nops on which a probe is cheap, the first of one byte (every kernel emulates it), then one of five and one of ten (Linux 6.18 and later
 * make a call of them). Weak and in a group of its own, so that any number of files may include this one. The note names the first nop for
 * every tracer that knows USDT probes (perf, bpftrace, SystemTap, libbpf): provider tokengauge, probe tap_v1. strip(1) leaves it alone. */
#if defined(__x86_64__)
#define TOKENGAUGE_TAP_CODE                                    \
    "990: nop\n"                                               \
    ".byte 0x0f, 0x1f, 0x44, 0x00, 0x00\n"                     \
    ".byte 0x66, 0x2e, 0x0f, 0x1f, 0x84, 0x00, 0, 0, 0, 0\n"   \
    "ret\n"
#define TOKENGAUGE_TAP_ARGUMENTS "8@%rdi 8@%rsi"
#else
#define TOKENGAUGE_TAP_CODE "hint #34\n990: nop\nnop\nret\n" /* bti c */
#define TOKENGAUGE_TAP_ARGUMENTS "8@x0 8@x1"
#endif
__asm__(".ifndef tokengauge_tap_v1\n" /* link-time optimisation may make one file of many */
        ".pushsection .text.tokengauge_tap_v1,\"axG\",%progbits,tokengauge_tap_v1,comdat\n"
        ".weak tokengauge_tap_v1\n"
        ".type tokengauge_tap_v1,%function\n"
        ".p2align 4\n"
        "tokengauge_tap_v1:\n" TOKENGAUGE_TAP_CODE
        ".size tokengauge_tap_v1, . - tokengauge_tap_v1\n"
        ".popsection\n"
        ".pushsection .note.stapsdt,\"G\",%note,tokengauge_tap_v1,comdat\n"
        ".balign 4\n"
        ".4byte 992f - 991f, 994f - 993f, 3\n"
        "991: .asciz \"stapsdt\"\n"
        "992: .balign 4\n"
        "993: .8byte 990b\n"
        ".8byte _.stapsdt.base\n"
        ".8byte 0\n"
        ".asciz \"tokengauge\"\n"
        ".asciz \"tap_v1\"\n"
        ".asciz \"" TOKENGAUGE_TAP_ARGUMENTS "\"\n"
        "994: .balign 4\n"
        ".popsection\n"
        ".ifndef _.stapsdt.base\n"
        ".pushsection .stapsdt.base,\"aG\",%progbits,.stapsdt.base,comdat\n"
        ".weak _.stapsdt.base\n"
        ".hidden _.stapsdt.base\n"
        "_.stapsdt.base: .space 1\n"
        ".size _.stapsdt.base, 1\n"
        ".popsection\n"
        ".endif\n"
        ".endif\n");

/* Hands `bytes` bytes of an event, its texts among them, to whoever has a probe here. */
void tokengauge_tap_v1(const struct tokengauge_event *event, size_t bytes);
#elif defined(__GNUC__)
__attribute__((weak, noinline, used, visibility("default"))) void tokengauge_tap_v1(const struct tokengauge_event *event, size_t bytes) {
    __asm__ __volatile__("" : : "r"(event), "r"(bytes) : "memory");
}
#else
static void tokengauge_tap_v1(const struct tokengauge_event *event, size_t bytes) {
    (void)event;
    (void)bytes;
}
#endif

#ifdef __cplusplus
}
#endif

/* Prepares an event for a request. */
static inline void tokengauge_event_init(struct tokengauge_event *event, const char *request, size_t request_len) {
    memset(event, 0, TOKENGAUGE_TAP_FIXED);
    event->size = TOKENGAUGE_TAP_FIXED;
    event->version = TOKENGAUGE_TAP_VERSION;
    event->request_len = (uint16_t)(request_len < TOKENGAUGE_TAP_NAME ? request_len : TOKENGAUGE_TAP_NAME);
    memcpy(event->text, request, event->request_len);
}

/* Names the model, for all events that follow. After tokengauge_event_init. */
static inline void tokengauge_event_model(struct tokengauge_event *event, const char *model, size_t model_len) {
    event->model_len = (uint16_t)(model_len < TOKENGAUGE_TAP_NAME ? model_len : TOKENGAUGE_TAP_NAME);
    memcpy(event->text + event->request_len, model, event->model_len);
}

/* Tells an event as it stands, but for its kind. */
static inline void tokengauge_tell(struct tokengauge_event *event, enum tokengauge_kind kind) {
    event->kind = (uint16_t)kind;
    tokengauge_tap_v1(event, (size_t)TOKENGAUGE_TAP_FIXED + event->request_len + event->model_len);
}

/* Tells that so many tokens more are there. */
static inline void tokengauge_tell_tokens(struct tokengauge_event *event, uint32_t tokens) {
    event->new_tokens = tokens;
    event->present |= TOKENGAUGE_HAS_NEW;
    tokengauge_tell(event, TOKENGAUGE_TOKENS);
    event->present &= (uint16_t)~TOKENGAUGE_HAS_NEW;
}

/* Tells that the request ended, and with how many tokens. */
static inline void tokengauge_tell_finished(struct tokengauge_event *event, enum tokengauge_finish why, uint32_t output_tokens) {
    event->finish = (uint32_t)why;
    event->output_tokens = output_tokens;
    event->present |= TOKENGAUGE_HAS_FINISH | TOKENGAUGE_HAS_OUTPUT;
    tokengauge_tell(event, TOKENGAUGE_FINISHED);
}

#endif
