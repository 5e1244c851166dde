/* The tap symbol as a library of its own, for ctypes. */
#include "tokengauge_tap.h"

/* Keeps the function: nothing else here refers to it. */
void (*const tokengauge_tap_kept)(const struct tokengauge_event *, size_t) = tokengauge_tap_v1;
