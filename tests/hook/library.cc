// A debug build of a library in C++ that tells: its symbols are hidden, and it is loaded by another program (library.py).
#include "tokengauge_tap.h"

extern "C" __attribute__((visibility("default"))) void tells(const char *request, const char *model, int kind, unsigned tokens) {
    tokengauge_event event;
    tokengauge_event_init(&event, request, strlen(request));
    tokengauge_event_model(&event, model, strlen(model));
    if (kind == TOKENGAUGE_TOKENS) {
        tokengauge_tell_tokens(&event, tokens);
    } else if (kind == TOKENGAUGE_FINISHED) {
        tokengauge_tell_finished(&event, TOKENGAUGE_FINISH_LENGTH, tokens);
    } else {
        tokengauge_tell(&event, static_cast<tokengauge_kind>(kind));
    }
}
