// Many tokens: outer products on tiles held in registers.
#ifndef PRECOLLAPSE_FORM_MANY_TOKENS_H
#define PRECOLLAPSE_FORM_MANY_TOKENS_H

#include "../jobs.h"
#include "elements.h"
#include "tile_sizes.h"

namespace {

// R columns of the vocabulary by N vectors of tokens; the panel is [depth][N * LANES].
template <int R, int N>
inline void tile(const float *weight, int64_t stride, const float *panel, int64_t depth, float *out, int64_t width,
                 bool add) {
    vf sums[R][N];
    for (int r = 0; r < R; r++)
        for (int v = 0; v < N; v++) sums[r][v] = vf{};
    for (int64_t i = 0; i < depth; i++) {
        vf b[N];
#pragma GCC unroll 2
        for (int v = 0; v < N; v++) b[v] = load<vf>(panel + (i * N + v) * LANES);
#pragma GCC unroll 12
        for (int r = 0; r < R; r++) {
            vf a = all(weight[r * stride + i]);
#pragma GCC unroll 2
            for (int v = 0; v < N; v++) sums[r][v] += a * b[v];
        }
    }
    for (int r = 0; r < R; r++)
        for (int v = 0; v < N; v++) {
            float *place = out + r * width + v * LANES;
            store(place, add ? load<vf>(place) + sums[r][v] : sums[r][v]);
        }
}

template <int N>
inline void tiles(const float *weight, int64_t rows, const float *panel, int64_t depth, float *out, int64_t width,
                  bool add) {
    if (rows == TILE_COLUMNS)
        tile<TILE_COLUMNS, N>(weight, DEPTH, panel, depth, out, width, add);
    else
        for (int64_t r = 0; r < rows; r++)
            tile<1, N>(weight + r * DEPTH, DEPTH, panel, depth, out + r * width, width, add);
}

// Floats of elements [from, to) of some weight rows, in the packed order.
template <class T>
void widen(const typename T::raw *weight, int64_t stride, int64_t rows, int64_t from, int64_t to, int64_t whole,
           float *out) {
    for (int64_t r = 0; r < rows; r++) {
        const typename T::raw *w = weight + r * stride;
        float *o = out + r * DEPTH - from;
        int64_t i = from;
        for (; i < to && i < whole; i += LANES * T::PARTS) {
            __builtin_prefetch(w + TILE_COLUMNS * stride + i);
            for (int which = 0; which < T::PARTS; which++) store(o + i + which * LANES, T::part(w + i, which));
        }
        for (; i < to; i++) o[i] = T::one(w[i]);
    }
}

template <class T>
void many_tokens(const VocabJob &job, int64_t first, int64_t columns, float *z, int64_t width, float *wide) {
    const typename T::raw *weight = (const typename T::raw *)job.weight + first * job.weight_stride;
    const float *packed = (const float *)job.packed;
    const int64_t whole = job.d - job.d % (LANES * T::PARTS);
    for (int64_t from = 0; from < job.d; from += DEPTH) {
        const int64_t to = from + DEPTH < job.d ? from + DEPTH : job.d;
        widen<T>(weight, job.weight_stride, columns, from, to, whole, wide);
        // A panel stays in the nearest cache while all columns of the block pass by.
        for (int64_t j = 0; j < job.tokens; j += TILE_TOKENS)
            for (int64_t r = 0; r < columns; r += TILE_COLUMNS) {
                const int64_t some = columns - r < TILE_COLUMNS ? columns - r : TILE_COLUMNS;
                const float *w = wide + r * DEPTH;
                float *out = z + r * width + j;
                if (panel_width(job.tokens, j) == TILE_TOKENS)
                    tiles<2>(w, some, packed + j * job.d + from * TILE_TOKENS, to - from, out, width, from > 0);
                else
                    tiles<1>(w, some, packed + j * job.d + from * LANES, to - from, out, width, from > 0);
            }
    }
}

}  // namespace
#endif
