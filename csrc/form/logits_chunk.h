// Logits that exist: one row at a time, lanes along the columns.
#ifndef PRECOLLAPSE_FORM_LOGITS_CHUNK_H
#define PRECOLLAPSE_FORM_LOGITS_CHUNK_H

#include "../jobs.h"
#include "candidates.h"
#include "elements.h"
#include "join.h"
#include "tile_sizes.h"

namespace {

template <class T>
void logits_row(const typename T::raw *row, const LogitsJob &job, int64_t first, int64_t last, RowState *state,
                Candidate *heap) {
    const int step = LANES * T::PARTS;
    alignas(64) float z[LOGITS_BLOCK];
    int64_t count = 0;
    *state = EMPTY;
    for (int64_t start = first; start < last; start += LOGITS_BLOCK) {
        const int64_t size = last - start < LOGITS_BLOCK ? last - start : LOGITS_BLOCK;
        const int64_t whole = size - size % step, filled = padded(size, LANES);
        for (int64_t i = 0; i < whole; i += step)
            for (int which = 0; which < T::PARTS; which++) store(z + i + which * LANES, T::part(row + start + i, which));
        for (int64_t i = whole; i < filled; i++) z[i] = i < size ? T::one(row[start + i]) : -INF;
        vf m = all(-INF);
        vi where = vi{}, nan = vi{};
        for (int64_t i = 0; i < filled; i += LANES) {
            vf value = load<vf>(z + i);
            vi more = value > m;
            nan |= value != value;
            m = more ? value : m;
            where = more ? all_int((int32_t)i) : where;
        }
        float best = -INF;
        int64_t best_place = -1;
        for (int i = 0; i < LANES; i++) {
            state->nan |= nan[i];
            if (m[i] > best) {
                best = m[i];
                best_place = where[i] + i;
            }
        }
        if (job.k > 0 && (count < job.k || best > heap[0].value)) {
            for (int64_t i = 0; i < size; i++) {
                const float value = T::PARTS == 1 ? z[i] : T::one(row[start + i]);  // z is in packed order
                if (value == value && (count < job.k || value > heap[0].value))
                    offer(heap, job.k, &count, value, start + i);
            }
        }
        const bool grown = best > state->m;
        const float base_value = grown ? best : (float)state->m;
        const vf base = all(base_value == -INF ? 0.0f : base_value);
        if (grown) z[best_place] = -INF;
        double r_sum = 0.0, t_sum = 0.0;
        for (int64_t begin = 0; begin < filled; begin += 32 * LANES) {
            const int64_t end = begin + 32 * LANES < filled ? begin + 32 * LANES : filled;
            vf r_part = vf{}, t_part = vf{};
            for (int64_t i = begin; i < end; i += LANES) {
                vf x = load<vf>(z + i) - base;
                vf power = exp_negative(x);
                r_part += power;
                t_part += (x > all(-87.0f) ? x : all(-87.0f)) * power;
            }
            r_sum += (double)sum(r_part);
            t_sum += (double)sum(t_part);
        }
        join(state, best, r_sum, t_sum);
    }
    for (int64_t i = count; i < job.k; i++) heap[i] = Candidate{-INF, -1};
}

void logits_chunk(const LogitsJob &job, int64_t row, int64_t first, int64_t last, RowState *state, Candidate *heap) {
    if (job.dtype == PC_FLOAT32)
        logits_row<Float32>((const float *)job.logits + row * job.stride, job, first, last, state, heap);
    else if (job.dtype == PC_BFLOAT16)
        logits_row<BFloat16>((const uint16_t *)job.logits + row * job.stride, job, first, last, state, heap);
    else
        logits_row<Float16>((const uint16_t *)job.logits + row * job.stride, job, first, last, state, heap);
}

}  // namespace
#endif
