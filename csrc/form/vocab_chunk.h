// One chunk of vocabulary columns: the logits of a block at a time, reduced to row states and candidates and dropped.
#ifndef PRECOLLAPSE_FORM_VOCAB_CHUNK_H
#define PRECOLLAPSE_FORM_VOCAB_CHUNK_H

#include "../jobs.h"
#include "candidates.h"
#include "few_tokens.h"
#include "join.h"
#include "logit_transform.h"
#include "many_tokens.h"
#include "packing.h"

namespace {

inline float read_floor(const VocabJob &job, int64_t token) {
    float floor;
    __atomic_load(job.floors + token, &floor, __ATOMIC_RELAXED);
    return floor;
}

// z [columns][width] of the columns from `first` on: made into logits in place, then added to the states, one token per
// lane.
void reduce_block(const VocabJob &job, int64_t first, int64_t columns, float *z, int64_t width, RowState *states,
                  Candidate *heaps, int64_t *counts) {
    const Transform &transform = job.transform;
    const bool plain =
        !transform.bias && transform.scale == 1.0 && transform.softcap == 0.0 && transform.rounding == PC_KEEP;
    for (int64_t j = 0; j < job.tokens; j += LANES) {
        const int64_t used = job.tokens - j < LANES ? job.tokens - j : LANES;
        vf m = all(-INF);
        vi where = all_int(-1), nan = vi{};
        for (int64_t r = 0; r < columns; r++) {
            vf value = load<vf>(z + r * width + j);
            if (!plain) {
                value = transformed(value, transform, first + r);
                store(z + r * width + j, value);
            }
            vi more = value > m;
            nan |= value != value;
            m = more ? value : m;
            where = more ? all_int((int32_t)r) : where;
        }
        float before[LANES], block[LANES];
        for (int i = 0; i < LANES; i++) before[i] = i < used ? (float)states[j + i].m : -INF;
        store(block, m);
        for (int64_t i = 0; i < used && job.kept > 0; i++) {
            Candidate *heap = heaps + (j + i) * job.kept;
            const float floor = read_floor(job, j + i);
            if (block[i] < floor || (counts[j + i] == job.kept && !(block[i] > heap[0].value))) continue;
            for (int64_t r = 0; r < columns; r++) {
                const float value = z[r * width + j + i];
                if (value >= floor) offer(heap, job.kept, &counts[j + i], value, first + r);
            }
        }
        vf old = load<vf>(before);
        vi grown = m > old;
        vf base = grown ? m : old;
        base = base == all(-INF) ? vf{} : base;
        vi left_out = grown ? where : all_int(-1);
        vf r_sum = vf{}, t_sum = vf{};
        for (int64_t start = 0; start < columns; start += 16) {  // short sums first: float32 then loses nothing
            const int64_t end = start + 16 < columns ? start + 16 : columns;
            vf r_part = vf{}, t_part = vf{};
            for (int64_t r = start; r < end; r++) {
                vf x = load<vf>(z + r * width + j) - base;
                vf power = exp_negative(x);
                power = left_out == all_int((int32_t)r) ? vf{} : power;
                r_part += power;
                t_part += (x > all(-87.0f) ? x : all(-87.0f)) * power;
            }
            r_sum += r_part;
            t_sum += t_part;
        }
        for (int64_t i = 0; i < used; i++) {
            join(&states[j + i], block[i], (double)r_sum[i], (double)t_sum[i]);
            states[j + i].nan |= nan[i];
        }
    }
}

int64_t block_width(int64_t tokens) { return padded(tokens, tokens <= FEW_TOKENS ? LANES : TILE_TOKENS); }

int64_t scratch_bytes(const VocabJob &job) {
    return 4 * VOCAB_BLOCK * (block_width(job.tokens) + DEPTH) + 8 * MAX_TOKENS + 256;
}

template <class T>
void block_dots(const VocabJob &job, int64_t first, int64_t columns, float *z, int64_t width, float *wide) {
    if (job.tokens <= FEW_TOKENS)
        few_tokens<T>(job, first, columns, z, width);
    else
        many_tokens<T>(job, first, columns, z, width, wide);
}

void vocab_chunk(const VocabJob &job, int64_t first, int64_t last, void *scratch, RowState *states, Candidate *heaps) {
    const int64_t width = block_width(job.tokens);
    float *z = (float *)scratch;
    float *wide = z + VOCAB_BLOCK * width;
    int64_t *counts = (int64_t *)(wide + VOCAB_BLOCK * DEPTH);
    memset(z, 0, 4 * VOCAB_BLOCK * width);
    for (int64_t j = 0; j < job.tokens; j++) {
        states[j] = EMPTY;
        counts[j] = 0;
    }
    for (int64_t start = first; start < last; start += VOCAB_BLOCK) {
        const int64_t columns = last - start < VOCAB_BLOCK ? last - start : VOCAB_BLOCK;
#ifdef PC_BF16_DOT
        if (job.dtype == PC_BFLOAT16) {
            if (job.tokens <= FEW_TOKENS)
                few_tokens_pairs(job, start, columns, z, width);
            else
                many_tokens_pairs(job, start, columns, z, width);
        } else
#endif
            if (job.dtype == PC_FLOAT32)
            block_dots<Float32>(job, start, columns, z, width, wide);
        else if (job.dtype == PC_BFLOAT16)
            block_dots<BFloat16>(job, start, columns, z, width, wide);
        else
            block_dots<Float16>(job, start, columns, z, width, wide);
        reduce_block(job, start, columns, z, width, states, heaps, counts);
    }
    for (int64_t j = 0; j < job.tokens && job.kept > 0; j++) {
        Candidate *heap = heaps + j * job.kept;
        for (int64_t i = counts[j]; i < job.kept; i++) heap[i] = Candidate{-INF, -1};
        if (counts[j] == job.kept && heap[0].value > read_floor(job, j))
            __atomic_store(job.floors + j, &heap[0].value, __ATOMIC_RELAXED);  // another's lower value does no harm
    }
}

}  // namespace
#endif
