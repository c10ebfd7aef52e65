// Vectors of PC_LANES floats in the compiler's own vector types, and the few functions that need more than arithmetic.
//
// Everything is in an unnamed namespace and no standard template is used: a translation unit compiled for a newer
// instruction set must not leave a shared inline function behind that an older processor would then run.
#ifndef PRECOLLAPSE_FORM_VECTORS_H
#define PRECOLLAPSE_FORM_VECTORS_H

#include <math.h>
#include <stdint.h>
#include <string.h>
#if defined(__F16C__) || defined(__AVX512F__)
#include <immintrin.h>
#endif

namespace {

const int LANES = PC_LANES;
typedef float vf __attribute__((vector_size(4 * PC_LANES)));
typedef int32_t vi __attribute__((vector_size(4 * PC_LANES)));
typedef uint32_t vu __attribute__((vector_size(4 * PC_LANES)));

const float INF = __builtin_inff();

template <class V, class T>
inline V load(const T *p) {
    V v;
    memcpy(&v, p, sizeof v);
    return v;
}

template <class V, class T>
inline void store(T *p, V v) {
    memcpy(p, &v, sizeof v);
}

// x - 0 rather than 0 + x, which would have to turn -0 into +0 and so costs an addition.
inline vf all(float x) { return x - vf{}; }
inline vi all_int(int32_t x) { return x - vi{}; }
inline vf as_float(vu x) { return (vf)x; }

inline float sum(vf v) {
    float part[LANES];
    store(part, v);
    for (int width = LANES / 2; width >= 1; width /= 2)
        for (int i = 0; i < width; i++) part[i] += part[i + width];
    return part[0];
}

inline float from_bfloat16(uint16_t x) {
    uint32_t bits = (uint32_t)x << 16;
    float y;
    memcpy(&y, &bits, 4);
    return y;
}

inline float from_float16(uint16_t x) {
    uint32_t sign = (uint32_t)(x & 0x8000) << 16, exponent = (x >> 10) & 31, fraction = x & 1023;
    float y;
    if (exponent == 0) {
        y = (float)fraction * 5.9604644775390625e-08f;  // 2^-24
        return sign ? -y : y;
    }
    uint32_t bits = sign | ((exponent == 31 ? 255 : exponent + 112) << 23) | (fraction << 13);
    memcpy(&y, &bits, 4);
    return y;
}

// To the nearest bfloat16, ties to even; NaN stays NaN.
inline vf round_bfloat16(vf x) {
    vu bits = (vu)x;
    vu rounded = (bits + 0x7fff + ((bits >> 16) & 1)) & 0xffff0000u;
    return x == x ? as_float(rounded) : x;
}

// To the nearest float16, ties to even. Adding and taking away 2^k rounds to a multiple of 2^(k - 23); k is chosen so
// that this is float16's spacing at x, and never under that of its subnormals.
inline vf round_float16(vf x) {
    vu magnitude_bits = (vu)x & 0x7fffffffu;
    vf magnitude = as_float(magnitude_bits);
    vu exponent = magnitude_bits & 0x7f800000u;
    vu least = vu{} + (113u << 23);
    vu spacing = (exponent > least ? exponent : least) + (13u << 23);
    vf step = as_float(spacing);
    vf rounded = (magnitude + step) - step;
    rounded = rounded > all(65504.0f) ? all(INF) : rounded;
    rounded = magnitude < all(131072.0f) ? rounded : all(INF);
    vf signed_value = as_float((vu)rounded | ((vu)x & 0x80000000u));
    return x == x ? signed_value : x;
}

// exp(x) for x <= 0, to 2e-7 relative; 0 below -87, which includes minus infinity. Not for NaN.
inline vf exp_negative(vf x) {
    vi kept = x > all(-87.0f);
    x = kept ? x : all(-87.0f);
    const vf magic = all(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
    vf shifted = x * all(1.44269504f) + magic;
    vf n = shifted - magic;
    vf g = (x - n * all(0.693359375f)) - n * all(-2.12194440e-4f);  // ln 2 in two parts, the first exact in products
    vf p = all(1.9875691500e-4f);
    p = p * g + all(1.3981999507e-3f);
    p = p * g + all(8.3334519073e-3f);
    p = p * g + all(4.1665795894e-2f);
    p = p * g + all(1.6666665459e-1f);
    p = p * g + all(5.0000001201e-1f);
    p = p * (g * g) + g + all(1.0f);
    vi power = ((vi)shifted - (vi)magic) << 23;
    return (vf)(((vi)p + power) & kept);
}

// tanh: an odd polynomial near 0, so that a large soft cap keeps all digits; 1 - 2 / (exp(2|x|) + 1) elsewhere.
inline vf tanh_vector(vf x) {
    vf magnitude = as_float((vu)x & 0x7fffffffu);
    vf decay = exp_negative(magnitude * all(-2.0f));
    vf large = (all(1.0f) - decay) / (all(1.0f) + decay);
    vf square = x * x;
    vf p = all(-5.70498872745e-3f);
    p = p * square + all(2.06390887954e-2f);
    p = p * square + all(-5.37397155531e-2f);
    p = p * square + all(1.33314422036e-1f);
    p = p * square + all(-3.33332819422e-1f);
    vf small = p * square * x + x;
    vf signed_large = as_float((vu)large | ((vu)x & 0x80000000u));
    vf value = magnitude < all(0.625f) ? small : signed_large;
    return x == x ? value : x;
}

}  // namespace
#endif
