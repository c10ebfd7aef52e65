// From dot products to logits: bias, rounding, scale and soft cap, and the columns that are left out.
#ifndef PRECOLLAPSE_FORM_LOGIT_TRANSFORM_H
#define PRECOLLAPSE_FORM_LOGIT_TRANSFORM_H

#include "../precollapse.h"
#include "../jobs.h"
#include "vectors.h"

namespace {

inline vf rounded(vf z, int rounding) {
    return rounding == PC_KEEP ? z : rounding == PC_TO_BFLOAT16 ? round_bfloat16(z) : round_float16(z);
}

inline vf transformed(vf z, const Transform &transform, int64_t column) {
    bool excluded = false;
    if (transform.bias) {
        const float bias = transform.bias[column];
        excluded = bias == -INF;
        z = z + all(bias - transform.pivot);
    }
    z = rounded(z, transform.rounding);
    if (transform.scale != 1.0) z = rounded(z * all((float)transform.scale), transform.rounding);
    if (transform.softcap != 0.0) {
        const vf softcap = all((float)transform.softcap);
        z = tanh_vector(rounded(z / softcap, transform.rounding));
        z = rounded(rounded(z, transform.rounding) * softcap, transform.rounding);
    }
    return excluded ? all(-INF) : z;
}

}  // namespace
#endif
