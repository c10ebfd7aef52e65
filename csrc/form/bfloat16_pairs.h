// bfloat16 dot products in hardware, two elements at a time; empty where a form is built without them.
#ifndef PRECOLLAPSE_FORM_BFLOAT16_PAIRS_H
#define PRECOLLAPSE_FORM_BFLOAT16_PAIRS_H

#include "../jobs.h"
#include "tile_sizes.h"

namespace {

#ifdef PC_BF16_DOT
#ifdef PC_EMULATE
inline vf dot_pairs(vf sums, vu a, vu b) {
    return sums + as_float(a << 16) * as_float(b << 16) + as_float(a & 0xffff0000u) * as_float(b & 0xffff0000u);
}
#else
inline vf dot_pairs(vf sums, vu a, vu b) { return (vf)_mm512_dpbf16_ps((__m512)sums, (__m512bh)a, (__m512bh)b); }
#endif

// hidden stays bfloat16, rows `pitch` pairs apart and filled up with zeros.
template <int R, int N>
inline void pair_dots(const uint16_t *weight, int64_t stride, const uint32_t *hidden, int64_t pitch, int64_t d,
                      float *out, int64_t out_stride) {
    const int64_t whole = d - d % (2 * LANES);
    vf sums[R][N];
    for (int r = 0; r < R; r++)
        for (int j = 0; j < N; j++) sums[r][j] = vf{};
    for (int64_t i = 0; i < d; i += 2 * LANES) {
        vu w[R];
        if (i < whole) {
            for (int r = 0; r < R; r++) {
                __builtin_prefetch(weight + (R + r) * stride + i);
                w[r] = load<vu>(weight + r * stride + i);
            }
        } else {
            for (int r = 0; r < R; r++) {
                w[r] = vu{};
                memcpy(&w[r], weight + r * stride + i, 2 * (d - i));
            }
        }
#pragma GCC unroll 8
        for (int j = 0; j < N; j++) {
            vu h = load<vu>(hidden + j * pitch + i / 2);
#pragma GCC unroll 8
            for (int r = 0; r < R; r++) sums[r][j] = dot_pairs(sums[r][j], w[r], h);
        }
    }
    for (int r = 0; r < R; r++)
        for (int j = 0; j < N; j++) out[r * out_stride + j] = sum(sums[r][j]);
}

template <int R, int N>
inline void pair_rows(const uint16_t *weight, int64_t stride, int64_t rows, const uint32_t *hidden, int64_t pitch,
                      int64_t d, float *out, int64_t out_stride) {
    int64_t r = 0;
    for (; r + R <= rows; r += R)
        pair_dots<R, N>(weight + r * stride, stride, hidden, pitch, d, out + r * out_stride, out_stride);
    for (; r < rows; r++) pair_dots<1, N>(weight + r * stride, stride, hidden, pitch, d, out + r * out_stride, out_stride);
}

inline int64_t pair_pitch(int64_t d) { return padded(d, 2 * LANES) / 2; }

void few_tokens_pairs(const VocabJob &job, int64_t first, int64_t columns, float *z, int64_t width) {
    const uint16_t *w = (const uint16_t *)job.weight + first * job.weight_stride;
    const uint32_t *hidden = (const uint32_t *)job.packed;
    const int64_t stride = job.weight_stride, d = job.d, pitch = pair_pitch(d);
    int64_t j = 0;
    for (; j + 8 <= job.tokens; j += 8) pair_rows<3, 8>(w, stride, columns, hidden + j * pitch, pitch, d, z + j, width);
    for (; j + 4 <= job.tokens; j += 4) pair_rows<6, 4>(w, stride, columns, hidden + j * pitch, pitch, d, z + j, width);
    for (; j + 2 <= job.tokens; j += 2) pair_rows<6, 2>(w, stride, columns, hidden + j * pitch, pitch, d, z + j, width);
    for (; j < job.tokens; j++) pair_rows<8, 1>(w, stride, columns, hidden + j * pitch, pitch, d, z + j, width);
}

template <int R, int N>
inline void pair_tile(const uint16_t *weight, int64_t stride, const uint32_t *panel, int64_t d, float *out,
                      int64_t width) {
    vf sums[R][N];
    for (int r = 0; r < R; r++)
        for (int v = 0; v < N; v++) sums[r][v] = vf{};
    for (int64_t i = 0; i < d; i += 2) {
        vu b[N];
#pragma GCC unroll 2
        for (int v = 0; v < N; v++) b[v] = load<vu>(panel + (i / 2 * N + v) * LANES);
#pragma GCC unroll 12
        for (int r = 0; r < R; r++) {
            uint32_t pair = 0;
            if (i + 2 <= d)
                memcpy(&pair, weight + r * stride + i, 4);
            else
                pair = weight[r * stride + i];
            vu a = pair - vu{};
#pragma GCC unroll 2
            for (int v = 0; v < N; v++) sums[r][v] = dot_pairs(sums[r][v], a, b[v]);
        }
    }
    for (int r = 0; r < R; r++)
        for (int v = 0; v < N; v++) store(out + r * width + v * LANES, sums[r][v]);
}

template <int N>
inline void pair_tiles(const uint16_t *weight, int64_t stride, int64_t rows, const uint32_t *panel, int64_t d,
                       float *out, int64_t width) {
    if (rows >= TILE_COLUMNS)
        pair_tile<TILE_COLUMNS, N>(weight, stride, panel, d, out, width);
    else
        for (int64_t r = 0; r < rows; r++)
            pair_tile<1, N>(weight + r * stride, stride, panel, d, out + r * width, width);
}

void many_tokens_pairs(const VocabJob &job, int64_t first, int64_t columns, float *z, int64_t width) {
    const uint16_t *weight = (const uint16_t *)job.weight + first * job.weight_stride;
    const uint32_t *packed = (const uint32_t *)job.packed;
    const int64_t stride = job.weight_stride, pairs = (job.d + 1) / 2;
    for (int64_t r = 0; r < columns; r += TILE_COLUMNS)
        for (int64_t j = 0; j < job.tokens; j += TILE_TOKENS) {
            const uint16_t *w = weight + r * stride;
            float *out = z + r * width + j;
            if (panel_width(job.tokens, j) == TILE_TOKENS)
                pair_tiles<2>(w, stride, columns - r, packed + j * pairs, job.d, out, width);
            else
                pair_tiles<1>(w, stride, columns - r, packed + j * pairs, job.d, out, width);
        }
}
#endif

}  // namespace
#endif
