// How many tokens, vocabulary columns and elements of d are worked on at once.
//
// Tokens are rows of hidden; a column of the vocabulary is a row of the weight.
#ifndef PRECOLLAPSE_FORM_TILE_SIZES_H
#define PRECOLLAPSE_FORM_TILE_SIZES_H

#include "vectors.h"

namespace {

const int64_t FEW_TOKENS = PC_LANES == 16 ? 8 : 12;  // up to so many are dot products, more are outer products
const int64_t GROUP_BYTES = 160 << 10;  // of weights that stay in a near cache while groups of few tokens pass by
const int TILE_COLUMNS = PC_LANES == 16 ? 12 : 6;  // columns of the vocabulary in the tile of many tokens
const int TILE_TOKENS = 2 * LANES;                 // tokens in it
const int64_t DEPTH = 256;                         // elements of d worked on at once: short sums lose less, too

// Tokens of the panel that begins at token j: the last is narrow when that holds what is left.
inline int64_t panel_width(int64_t tokens, int64_t j) { return tokens - j > LANES ? TILE_TOKENS : LANES; }

inline int64_t padded(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

}  // namespace
#endif
