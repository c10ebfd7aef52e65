// How a block of columns joins the state of its row.
#ifndef PRECOLLAPSE_FORM_JOIN_H
#define PRECOLLAPSE_FORM_JOIN_H

#include <math.h>

#include "../row_state.h"
#include "vectors.h"

namespace {

// A block of columns joins a state: `m` is its maximum, `r` and `t` its sums about max(m, state.m), without the
// maximum's own term when m is the greater.
inline void join(RowState *state, float m, double r, double t) {
    if (m > state->m) {
        const double delta = state->m - (double)m;
        const double factor = state->m == -INF ? 0.0 : exp(delta);
        const double step = state->m == -INF ? 0.0 : delta;
        const double whole = 1.0 + state->r;
        state->r = r + factor * whole;
        state->t = t + factor * (state->t + step * whole);
        state->m = m;
    } else {
        state->r += r;
        state->t += t;
    }
}

const RowState EMPTY = {-INF, 0.0, 0.0, 0};

}  // namespace
#endif
