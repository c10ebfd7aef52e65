// State of one row of logits over a part of its columns, and what a chunk of work writes.
//
// m is the maximum, at column argmax; r the sum of exp(z - m) over all columns but argmax; t the sum of
// (z - m) exp(z - m). Without the maximum's own 1 in r, entropies near 0 stay exact.
#ifndef PRECOLLAPSE_ROW_STATE_H
#define PRECOLLAPSE_ROW_STATE_H

#include <stdint.h>

struct RowState {
    double m, r, t;
    int64_t nan;  // a NaN was among the columns
};

// The k best of a part of a row, as a heap whose root is the worst kept: lowest value, then highest column.
struct Candidate {
    float value;
    int64_t column;
};

#endif
