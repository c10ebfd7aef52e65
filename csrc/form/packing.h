// Hidden rows, packed for dot products or for outer products.
#ifndef PRECOLLAPSE_FORM_PACKING_H
#define PRECOLLAPSE_FORM_PACKING_H

#include "../precollapse.h"
#include "bfloat16_pairs.h"
#include "elements.h"
#include "tile_sizes.h"

namespace {

int64_t packed_bytes(int64_t tokens, int64_t d) {
    return 4 * (tokens <= FEW_TOKENS ? tokens : padded(tokens, TILE_TOKENS)) * (d + 2 * LANES);
}

// Place of element i of token j where a panel holds [d][its tokens].
inline int64_t panel_place(int64_t tokens, int64_t j, int64_t i, int64_t d) {
    const int64_t first = j / TILE_TOKENS * TILE_TOKENS;
    return first * d + i * panel_width(tokens, first) + j - first;
}

// Few tokens: row after row. Many: for each TILE_TOKENS of tokens, [d][TILE_TOKENS]. The order along d is that of the
// weights' steps.
template <class T>
void pack_floats(const typename T::raw *hidden, int64_t stride, int64_t tokens, int64_t d, float *out) {
    const int64_t step = LANES * T::PARTS, whole = d - d % step;
    const bool few = tokens <= FEW_TOKENS;
    const int64_t filled = few ? tokens : padded(tokens, LANES);
    for (int64_t j = 0; j < filled; j++)
        for (int64_t i = 0; i < d; i++) {
            const int64_t from = i < whole ? i / step * step + T::order((int)(i % step)) : i;
            const float value = j < tokens ? T::one(hidden[j * stride + from]) : 0.0f;
            out[few ? j * d + i : panel_place(tokens, j, i, d)] = value;
        }
}

#ifdef PC_BF16_DOT
void pack_pairs(const uint16_t *hidden, int64_t stride, int64_t tokens, int64_t d, uint32_t *out) {
    const bool few = tokens <= FEW_TOKENS;
    const int64_t pairs = few ? pair_pitch(d) : (d + 1) / 2, filled = few ? tokens : padded(tokens, LANES);
    for (int64_t j = 0; j < filled; j++)
        for (int64_t p = 0; p < pairs; p++) {
            uint32_t low = j < tokens && 2 * p < d ? hidden[j * stride + 2 * p] : 0;
            uint32_t high = j < tokens && 2 * p + 1 < d ? hidden[j * stride + 2 * p + 1] : 0;
            uint32_t pair = low | (high << 16);
            out[few ? j * pairs + p : panel_place(tokens, j, p, pairs)] = pair;
        }
}
#endif

void pack_hidden(int dtype, const void *hidden, int64_t stride, int64_t tokens, int64_t d, void *packed) {
#ifdef PC_BF16_DOT
    if (dtype == PC_BFLOAT16) {
        pack_pairs((const uint16_t *)hidden, stride, tokens, d, (uint32_t *)packed);
        return;
    }
#endif
    if (dtype == PC_FLOAT32)
        pack_floats<Float32>((const float *)hidden, stride, tokens, d, (float *)packed);
    else if (dtype == PC_BFLOAT16)
        pack_floats<BFloat16>((const uint16_t *)hidden, stride, tokens, d, (float *)packed);
    else
        pack_floats<Float16>((const uint16_t *)hidden, stride, tokens, d, (float *)packed);
}

}  // namespace
#endif
