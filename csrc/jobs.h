// What every task of an operator is given, how large tasks are, and the table of functions that carry them out.
#ifndef PRECOLLAPSE_JOBS_H
#define PRECOLLAPSE_JOBS_H

#include <stdint.h>

#include "row_state.h"

// How logits are made of dot products.
struct Transform {
    const float *bias;  // [V] or null
    float pivot;        // taken from every bias and so from every logit: a large common offset would eat their digits
    double softcap;     // 0: none
    double scale;
    int rounding;
};

// What every chunk of vocabulary columns needs; tokens are the rows of hidden that are worked on together.
struct VocabJob {
    const void *weight;
    const void *packed;  // hidden as pack_hidden left it
    int64_t columns, weight_stride, d, tokens;
    Transform transform;
    int64_t kept;   // candidates wanted of every chunk
    float *floors;  // [tokens]: a value that the kept-th best logit is known to reach; raised as chunks finish
    int dtype;
};

struct LogitsJob {
    const void *logits;
    int64_t columns, stride, k;
    int dtype;
};

// One layer's block of rows on its way into the second central moment.
struct MomentsJob {
    const void *x;  // [rows][stride]
    int64_t rows, stride, d, seen;
    int dtype;
    const double *pivot;
    double *mean, *cube, *m2;  // [d], [d], [d][d] of which the upper triangle is kept
    double *squares;           // [rows]: |x - pivot|^2
    float *packed;             // panels of `panel` columns, each [rows + 1][panel]
    double weight;             // the square root of seen rows / (seen + rows)
};

const int64_t MOMENTS_ROWS = 256;             // rows of one block: float32 sums stay short
const int64_t VOCAB_BLOCK = 192;              // columns whose logits are held at once, per thread
const int64_t VOCAB_CHUNK = 6 * VOCAB_BLOCK;  // columns of one task
const int64_t LOGITS_BLOCK = 2048;
const int64_t LOGITS_CHUNK = 16 * LOGITS_BLOCK;
const int64_t MAX_TOKENS = 256;

// One instruction set's functions. `scratch` is 64-byte aligned and private to the thread.
struct Form {
    int64_t (*packed_bytes)(int64_t tokens, int64_t d);
    void (*pack_hidden)(int dtype, const void *hidden, int64_t stride, int64_t tokens, int64_t d, void *packed);
    int64_t (*scratch_bytes)(const VocabJob &job);
    // Columns [first, last) for all tokens: states[tokens], heaps[tokens][kept].
    void (*vocab_chunk)(const VocabJob &job, int64_t first, int64_t last, void *scratch, RowState *states,
                        Candidate *heaps);
    // Columns [first, last) of one row.
    void (*logits_chunk)(const LogitsJob &job, int64_t row, int64_t first, int64_t last, RowState *state,
                         Candidate *heap);
    // Moments, in this order: every row; every panel of columns; every row of panels.
    int64_t panel;
    void (*row_square)(const MomentsJob &job, int64_t row);
    void (*centre_panel)(const MomentsJob &job, int64_t panel);
    void (*product_panels)(const MomentsJob &job, int64_t panel);
};

const Form *pc_form_portable();
const Form *pc_form_avx2();
const Form *pc_form_avx512();
const Form *pc_form_avx512_bf16();

#endif
