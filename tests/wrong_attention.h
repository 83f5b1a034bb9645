// wrong_attention.h - one attention kernel, right or with one fault, to try the checks on.
#ifndef WRONG_ATTENTION_H
#define WRONG_ATTENTION_H

#include "attn.h"

enum fault {
    NO_FAULT,
    RETURNS_AT_ONCE,    // writes nothing
    WRITES_NAN,         // in one element of O
    WRONG_SCALE,        // 1/d instead of 1/sqrt(d), say
    MASK_OFF_BY_ONE,    // sees one key too many
    SKIPS_THE_TAIL,     // of the keys: the last Nk % 32
    WRONG_LSE_BASE,     // log2 instead of ln
    IGNORES_KV_GROUPS,  // query head h reads key/value head h % Hkv
    TOO_MUCH_TRAFFIC,   // reads one float more than its model says
    DEPENDS_ON_THE_RUN, // right within rounding, but not the same bits every time
    FAULTS
};

#ifdef __cplusplus
extern "C" {
#endif
const struct attn_kernel *wrong_attention(enum fault);
#ifdef __cplusplus
}
#endif
#endif
