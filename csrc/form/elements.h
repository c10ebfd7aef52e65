// Elements of each dtype as vectors of floats: how a run of them is loaded, and in which order it comes out.
#ifndef PRECOLLAPSE_FORM_ELEMENTS_H
#define PRECOLLAPSE_FORM_ELEMENTS_H

#include "../precollapse.h"
#include "vectors.h"

namespace {

// A step is the run of elements that is loaded at once and becomes PARTS vectors of floats. `order` says which element
// of a step comes at a place of those vectors; hidden rows are packed in the same order.
struct Float32 {
    typedef float raw;
    static const int PARTS = 1;
    static int order(int place) { return place; }
    static float one(raw x) { return x; }
    static vf part(const raw *p, int) { return load<vf>(p); }
};

alignas(64) const vu UPPER_HALVES = vu{} + 0xffff0000u;

// Two bfloat16 are one 32-bit word: its upper half shifted or masked is a float already.
struct BFloat16 {
    typedef uint16_t raw;
    static const int PARTS = 2;
    static int order(int place) { return place < LANES ? 2 * place : 2 * (place - LANES) + 1; }
    static float one(raw x) { return from_bfloat16(x); }
    static vf part(const raw *p, int which) {
        const vu words = load<vu>(p);
        if (which == 0) return as_float(words << 16);
        const vu *mask = &UPPER_HALVES;
        asm("" : "+r"(mask));  // read from memory each time: a register for it would be taken from the sums
        return as_float(words & *mask);
    }
};

struct Float16 {
    typedef uint16_t raw;
    static const int PARTS = 1;
    static int order(int place) { return place; }
    static float one(raw x) { return from_float16(x); }
    static vf part(const raw *p, int) {
#if defined(__AVX512F__) && PC_LANES == 16
        return (vf)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
#elif defined(__F16C__) && PC_LANES == 8
        return (vf)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
#else
        vf v;
        for (int i = 0; i < LANES; i++) v[i] = from_float16(p[i]);
        return v;
#endif
    }
};

}  // namespace
#endif
