// The C interface of the CPU forms. No torch and no Python: pointers, sizes and strides in elements.
//
// Every function may be called from any thread, keeps nothing between calls and never touches Python. Results do not
// depend on the number of threads: columns are cut into fixed chunks, and the chunks are merged in order.
#ifndef PRECOLLAPSE_H
#define PRECOLLAPSE_H

#include <stdint.h>

#define PC_API __attribute__((visibility("default")))

#ifdef __cplusplus
extern "C" {
#endif

enum PcDtype { PC_FLOAT32 = 0, PC_BFLOAT16 = 1, PC_FLOAT16 = 2 };
enum PcRounding { PC_KEEP = 0, PC_TO_BFLOAT16 = 1, PC_TO_FLOAT16 = 2 };
enum PcForm { PC_PORTABLE = 0, PC_AVX2 = 1, PC_AVX512 = 2, PC_AVX512_BF16 = 3, PC_FORMS = 4 };

// Changed with every change of the functions below: a library of another make is refused rather than called wrongly.
#define PC_ABI 2

PC_API int pc_abi(void);

// Bit i is set when form i was compiled in and this processor runs it.
PC_API int pc_forms(void);

// Statistics of z = softcap(scale * (hidden @ weight.T + bias)). hidden [n, d], weight [V, d], both with unit inner
// stride. bias [V] or null, minus infinity excludes a column; pivot a number near the largest biases, or 0 where softcap
// or rounding is asked for; softcap 0 for none; k <= V. Outputs: entropy (bits) and
// logsumexp (nats) [n]; top_logits and top_ids [n, k]. Returns 0, or 1 when memory ran out, in whatever thread, or the
// form does not run here; the outputs are then not to be used.
PC_API int pc_vocab_stats(int form, int threads, int dtype, const void *hidden, int64_t n, int64_t d, int64_t hidden_stride,
                          const void *weight, int64_t columns, int64_t weight_stride, const float *bias, float pivot,
                          double softcap, double scale, int rounding, int64_t k, double *entropy, double *logsumexp,
                          float *top_logits, int64_t *top_ids);

// The same of logits [n, V] that exist.
PC_API int pc_logits_stats(int form, int threads, int dtype, const void *logits, int64_t n, int64_t columns, int64_t stride,
                           int64_t k, double *entropy, double *logsumexp, float *top_logits, int64_t *top_ids);

// Rows x [n, d] of one layer join its moments, in place: mean [d], the upper triangle of m2 [d, d], and about pivot the
// sums of |y|^2, |y|^2 y [d] and |y|^4. `seen` rows are in them already.
PC_API int pc_moments_update(int form, int threads, int dtype, const void *x, int64_t n, int64_t d, int64_t stride,
                             int64_t seen, const double *pivot, double *mean, double *m2, double *square,
                             double *cube, double *fourth);

#ifdef __cplusplus
}
#endif
#endif
