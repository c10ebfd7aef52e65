// Few tokens: dot products along d, the weights read once from memory.
#ifndef PRECOLLAPSE_FORM_FEW_TOKENS_H
#define PRECOLLAPSE_FORM_FEW_TOKENS_H

#include "../jobs.h"
#include "elements.h"
#include "tile_sizes.h"

namespace {

// out[r][j] = weight row r . hidden row j.
template <class T, int R, int N>
inline void dots(const typename T::raw *weight, int64_t stride, const float *hidden, int64_t d, float *out,
                 int64_t width) {
    const int step = LANES * T::PARTS;
    const int64_t whole = d - d % step;
    vf sums[R][N];
    for (int r = 0; r < R; r++)
        for (int j = 0; j < N; j++) sums[r][j] = vf{};
    for (int64_t i = 0; i < whole; i += step) {
        for (int r = 0; r < R; r++) __builtin_prefetch(weight + (R + r) * stride + i);
        for (int which = 0; which < T::PARTS; which++) {
            vf w[R];
#pragma GCC unroll 8
            for (int r = 0; r < R; r++) w[r] = T::part(weight + r * stride + i, which);
#pragma GCC unroll 8
            for (int j = 0; j < N; j++) {
                vf h = load<vf>(hidden + j * d + i + which * LANES);
#pragma GCC unroll 8
                for (int r = 0; r < R; r++) sums[r][j] += w[r] * h;
            }
        }
    }
    for (int r = 0; r < R; r++)
        for (int j = 0; j < N; j++) {
            float total = sum(sums[r][j]);
            for (int64_t i = whole; i < d; i++) total += T::one(weight[r * stride + i]) * hidden[j * d + i];
            out[r * width + j] = total;
        }
}

template <class T, int R, int N>
inline void dots_rows(const typename T::raw *weight, int64_t stride, int64_t rows, const float *hidden, int64_t d,
                      float *out, int64_t width) {
    int64_t r = 0;
    for (; r + R <= rows; r += R) dots<T, R, N>(weight + r * stride, stride, hidden, d, out + r * width, width);
    for (; r < rows; r++) dots<T, 1, N>(weight + r * stride, stride, hidden, d, out + r * width, width);
}

template <class T>
void few_tokens(const VocabJob &job, int64_t first, int64_t columns, float *z, int64_t width) {
    const typename T::raw *weight = (const typename T::raw *)job.weight + first * job.weight_stride;
    const float *packed = (const float *)job.packed;
    const int64_t stride = job.weight_stride, d = job.d;
    const bool wide = LANES == 16;  // 32 registers rather than 16
    // One group of tokens needs no second look at the weights; more take so many columns that the second look is near.
    const int64_t near = GROUP_BYTES / (d * (int64_t)sizeof(*weight)) / 6 * 6;
    const int64_t group = job.tokens <= (wide ? 8 : 4) ? columns : near < 6 ? 6 : near > 24 ? 24 : near;
    for (int64_t start = 0; start < columns; start += group) {
        const int64_t some = columns - start < group ? columns - start : group;
        const typename T::raw *w = weight + start * stride;
        const float *h = packed;
        float *out = z + start * width;
        int64_t left = job.tokens;
        if (wide)
            for (; left >= 8; left -= 8, h += 8 * d, out += 8)
                dots_rows<T, wide ? 3 : 1, 8>(w, stride, some, h, d, out, width);
        for (; left >= 4; left -= 4, h += 4 * d, out += 4)
            dots_rows<T, wide ? 6 : 3, 4>(w, stride, some, h, d, out, width);
        switch (left) {
            case 3: dots_rows<T, wide ? 6 : 3, 3>(w, stride, some, h, d, out, width); break;
            case 2: dots_rows<T, 6, 2>(w, stride, some, h, d, out, width); break;
            case 1: dots_rows<T, 6, 1>(w, stride, some, h, d, out, width); break;
        }
    }
}

}  // namespace
#endif
