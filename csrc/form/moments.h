// Second moments: rows centred in float64, their products formed in float32 a panel of columns at a time.
#ifndef PRECOLLAPSE_FORM_MOMENTS_H
#define PRECOLLAPSE_FORM_MOMENTS_H

#include "../jobs.h"
#include "vectors.h"

namespace {

const int PANEL = 2 * LANES;  // columns of a state that are worked on together

inline double element(const MomentsJob &job, int64_t row, int64_t column) {
    const int64_t at = row * job.stride + column;
    return job.dtype == PC_FLOAT32    ? ((const float *)job.x)[at]
           : job.dtype == PC_BFLOAT16 ? from_bfloat16(((const uint16_t *)job.x)[at])
                                      : from_float16(((const uint16_t *)job.x)[at]);
}

void row_square(const MomentsJob &job, int64_t row) {
    double parts[8] = {};
    int64_t i = 0;
    for (; i + 8 <= job.d; i += 8)
        for (int q = 0; q < 8; q++) {
            const double y = element(job, row, i + q) - job.pivot[i + q];
            parts[q] += y * y;
        }
    double total = 0;
    for (int q = 0; q < 8; q++) total += parts[q];
    for (; i < job.d; i++) {
        const double y = element(job, row, i) - job.pivot[i];
        total += y * y;
    }
    job.squares[row] = total;
}

// Mean of the block's columns, their centred floats, and Chan's rank-one term as one more row.
void centre_panel(const MomentsJob &job, int64_t panel) {
    const int64_t first = panel * PANEL, used = job.d - first < PANEL ? job.d - first : PANEL;
    float *out = job.packed + panel * (job.rows + 1) * PANEL;
    double sums[PANEL] = {}, cubes[PANEL] = {};
    for (int64_t r = 0; r < job.rows; r++)
        for (int64_t c = 0; c < used; c++) {
            const double x = element(job, r, first + c);
            sums[c] += x;
            cubes[c] += job.squares[r] * (x - job.pivot[first + c]);
        }
    for (int64_t c = 0; c < used; c++) sums[c] /= (double)job.rows;
    for (int64_t r = 0; r < job.rows; r++)
        for (int64_t c = 0; c < PANEL; c++)
            out[r * PANEL + c] = c < used ? (float)(element(job, r, first + c) - sums[c]) : 0.0f;
    for (int64_t c = 0; c < PANEL; c++) {
        const double delta = c < used ? sums[c] - job.mean[first + c] : 0.0;
        out[job.rows * PANEL + c] = (float)(delta * job.weight);
        if (c >= used) continue;
        job.mean[first + c] += delta * ((double)job.rows / (double)(job.seen + job.rows));
        job.cube[first + c] += cubes[c];
    }
}

// Adds the products of this panel's columns with those of every panel from it on.
void product_panels(const MomentsJob &job, int64_t panel) {
    const int R = 4;
    const int64_t panels = (job.d + PANEL - 1) / PANEL, rows = job.rows + 1, size = rows * PANEL;
    for (int64_t other = panel; other < panels; other++)
        for (int64_t high = 0; high < PANEL; high += R) {
            const float *left = job.packed + panel * size + high, *right = job.packed + other * size;
            vf sums[R][2];
            for (int r = 0; r < R; r++) sums[r][0] = sums[r][1] = vf{};
            for (int64_t k = 0; k < rows; k++) {
                vf b0 = load<vf>(right + k * PANEL), b1 = load<vf>(right + k * PANEL + LANES);
#pragma GCC unroll 4
                for (int r = 0; r < R; r++) {
                    vf a = all(left[k * PANEL + r]);
                    sums[r][0] += a * b0;
                    sums[r][1] += a * b1;
                }
            }
            for (int r = 0; r < R; r++) {
                const int64_t row = panel * PANEL + high + r, first = other * PANEL;
                if (row >= job.d) break;
                double *out = job.m2 + row * job.d + first;
                float products[PANEL];
                store(products, sums[r][0]);
                store(products + LANES, sums[r][1]);
                const int64_t used = job.d - first < PANEL ? job.d - first : PANEL;
                for (int64_t c = 0; c < used; c++) out[c] += (double)products[c];
            }
        }
}

}  // namespace
#endif
