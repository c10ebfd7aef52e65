// The work itself, written once for any vector width and compiled once per instruction set.
#ifndef PRECOLLAPSE_FORM_H
#define PRECOLLAPSE_FORM_H

#include "precollapse.h"
#include "row_state.h"
#include "vectors.h"

namespace {

// ---- weights of each dtype -------------------------------------------------------------------------------------

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

// ---- few tokens: dot products along d, the weights read once from memory ---------------------------------------

const int64_t FEW_TOKENS = PC_LANES == 16 ? 8 : 12;
const int64_t GROUP_BYTES = 160 << 10;  // of weights that stay in a near cache while groups of tokens pass by
const int ROWS = PC_LANES == 16 ? 12 : 6;  // columns of the vocabulary in the many-token tile
const int TILE = 2 * LANES;                // tokens in it
const int64_t DEPTH = 256;                 // elements of d worked on at once there: short sums lose less, too

// Tokens of the panel that begins at token j: the last is narrow when that holds what is left.
inline int64_t panel_width(int64_t tokens, int64_t j) { return tokens - j > LANES ? TILE : LANES; }

inline int64_t padded(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

// out[r][j] = weight row r . hidden row j.
template <class T, int R, int N>
inline void dots(const typename T::raw *weight, int64_t stride, const float *hidden, int64_t d, float *out,
                 int64_t width) {
    const int step = LANES * T::PARTS;
    const int64_t whole = d - d % step;
    vf sums[R][N];
    for (int r = 0; r < R; r++)
        for (int j = 0; j < N; j++) sums[r][j] = vf{};
    for (int64_t i = 0; i < whole; i += step) {
        for (int r = 0; r < R; r++) __builtin_prefetch(weight + (R + r) * stride + i);
        for (int which = 0; which < T::PARTS; which++) {
            vf w[R];
#pragma GCC unroll 8
            for (int r = 0; r < R; r++) w[r] = T::part(weight + r * stride + i, which);
#pragma GCC unroll 8
            for (int j = 0; j < N; j++) {
                vf h = load<vf>(hidden + j * d + i + which * LANES);
#pragma GCC unroll 8
                for (int r = 0; r < R; r++) sums[r][j] += w[r] * h;
            }
        }
    }
    for (int r = 0; r < R; r++)
        for (int j = 0; j < N; j++) {
            float total = sum(sums[r][j]);
            for (int64_t i = whole; i < d; i++) total += T::one(weight[r * stride + i]) * hidden[j * d + i];
            out[r * width + j] = total;
        }
}

template <class T, int R, int N>
inline void dots_rows(const typename T::raw *weight, int64_t stride, int64_t rows, const float *hidden, int64_t d,
                      float *out, int64_t width) {
    int64_t r = 0;
    for (; r + R <= rows; r += R) dots<T, R, N>(weight + r * stride, stride, hidden, d, out + r * width, width);
    for (; r < rows; r++) dots<T, 1, N>(weight + r * stride, stride, hidden, d, out + r * width, width);
}

template <class T>
void few_tokens(const VocabJob &job, int64_t first, int64_t rows, float *z, int64_t width) {
    const typename T::raw *weight = (const typename T::raw *)job.weight + first * job.weight_stride;
    const float *packed = (const float *)job.packed;
    const int64_t stride = job.weight_stride, d = job.d;
    const bool wide = LANES == 16;  // 32 registers rather than 16
    // One group of tokens needs no second look at the weights; more take so many rows that the second look is near.
    const int64_t near = GROUP_BYTES / (d * (int64_t)sizeof(*weight)) / 6 * 6;
    const int64_t group = job.tokens <= (wide ? 8 : 4) ? rows : near < 6 ? 6 : near > 24 ? 24 : near;
    for (int64_t start = 0; start < rows; start += group) {
        const int64_t some = rows - start < group ? rows - start : group;
        const typename T::raw *w = weight + start * stride;
        const float *h = packed;
        float *out = z + start * width;
        int64_t left = job.tokens;
        if (wide)
            for (; left >= 8; left -= 8, h += 8 * d, out += 8)
                dots_rows<T, wide ? 3 : 1, 8>(w, stride, some, h, d, out, width);
        for (; left >= 4; left -= 4, h += 4 * d, out += 4)
            dots_rows<T, wide ? 6 : 3, 4>(w, stride, some, h, d, out, width);
        switch (left) {
            case 3: dots_rows<T, wide ? 6 : 3, 3>(w, stride, some, h, d, out, width); break;
            case 2: dots_rows<T, 6, 2>(w, stride, some, h, d, out, width); break;
            case 1: dots_rows<T, 6, 1>(w, stride, some, h, d, out, width); break;
        }
    }
}

// ---- many tokens: outer products on tiles held in registers ----------------------------------------------------

// R columns of the vocabulary by N vectors of tokens; the panel is [depth][N * LANES].
template <int R, int N>
inline void tile(const float *weight, int64_t stride, const float *panel, int64_t depth, float *out, int64_t width,
                 bool add) {
    vf sums[R][N];
    for (int r = 0; r < R; r++)
        for (int v = 0; v < N; v++) sums[r][v] = vf{};
    for (int64_t i = 0; i < depth; i++) {
        vf b[N];
#pragma GCC unroll 2
        for (int v = 0; v < N; v++) b[v] = load<vf>(panel + (i * N + v) * LANES);
#pragma GCC unroll 12
        for (int r = 0; r < R; r++) {
            vf a = all(weight[r * stride + i]);
#pragma GCC unroll 2
            for (int v = 0; v < N; v++) sums[r][v] += a * b[v];
        }
    }
    for (int r = 0; r < R; r++)
        for (int v = 0; v < N; v++) {
            float *place = out + r * width + v * LANES;
            store(place, add ? load<vf>(place) + sums[r][v] : sums[r][v]);
        }
}

template <int N>
inline void tiles(const float *weight, int64_t rows, const float *panel, int64_t depth, float *out, int64_t width,
                  bool add) {
    if (rows == ROWS)
        tile<ROWS, N>(weight, DEPTH, panel, depth, out, width, add);
    else
        for (int64_t r = 0; r < rows; r++)
            tile<1, N>(weight + r * DEPTH, DEPTH, panel, depth, out + r * width, width, add);
}

// Floats of elements [from, to) of some weight rows, in the packed order.
template <class T>
void widen(const typename T::raw *weight, int64_t stride, int64_t rows, int64_t from, int64_t to, int64_t whole,
           float *out) {
    for (int64_t r = 0; r < rows; r++) {
        const typename T::raw *w = weight + r * stride;
        float *o = out + r * DEPTH - from;
        int64_t i = from;
        for (; i < to && i < whole; i += LANES * T::PARTS) {
            __builtin_prefetch(w + ROWS * stride + i);
            for (int which = 0; which < T::PARTS; which++) store(o + i + which * LANES, T::part(w + i, which));
        }
        for (; i < to; i++) o[i] = T::one(w[i]);
    }
}

template <class T>
void many_tokens(const VocabJob &job, int64_t first, int64_t rows, float *z, int64_t width, float *wide) {
    const typename T::raw *weight = (const typename T::raw *)job.weight + first * job.weight_stride;
    const float *packed = (const float *)job.packed;
    const int64_t whole = job.d - job.d % (LANES * T::PARTS);
    for (int64_t from = 0; from < job.d; from += DEPTH) {
        const int64_t to = from + DEPTH < job.d ? from + DEPTH : job.d;
        widen<T>(weight, job.weight_stride, rows, from, to, whole, wide);
        // A panel stays in the nearest cache while all columns of the block pass by.
        for (int64_t j = 0; j < job.tokens; j += TILE)
            for (int64_t r = 0; r < rows; r += ROWS) {
                const int64_t some = rows - r < ROWS ? rows - r : ROWS;
                const float *w = wide + r * DEPTH;
                float *out = z + r * width + j;
                if (panel_width(job.tokens, j) == TILE)
                    tiles<2>(w, some, packed + j * job.d + from * TILE, to - from, out, width, from > 0);
                else
                    tiles<1>(w, some, packed + j * job.d + from * LANES, to - from, out, width, from > 0);
            }
    }
}

// ---- bfloat16 dot products in hardware -------------------------------------------------------------------------

#ifdef PC_BF16_DOT
#ifdef PC_EMULATE
inline vf dot_pairs(vf sums, vu a, vu b) {
    return sums + as_float(a << 16) * as_float(b << 16) + as_float(a & 0xffff0000u) * as_float(b & 0xffff0000u);
}
#else
inline vf dot_pairs(vf sums, vu a, vu b) { return (vf)_mm512_dpbf16_ps((__m512)sums, (__m512bh)a, (__m512bh)b); }
#endif

// hidden stays bfloat16, rows `pitch` pairs apart and filled up with zeros.
template <int R, int N>
inline void pair_dots(const uint16_t *weight, int64_t stride, const uint32_t *hidden, int64_t pitch, int64_t d,
                      float *out, int64_t out_stride) {
    const int64_t whole = d - d % (2 * LANES);
    vf sums[R][N];
    for (int r = 0; r < R; r++)
        for (int j = 0; j < N; j++) sums[r][j] = vf{};
    for (int64_t i = 0; i < d; i += 2 * LANES) {
        vu w[R];
        if (i < whole) {
            for (int r = 0; r < R; r++) {
                __builtin_prefetch(weight + (R + r) * stride + i);
                w[r] = load<vu>(weight + r * stride + i);
            }
        } else {
            for (int r = 0; r < R; r++) {
                w[r] = vu{};
                memcpy(&w[r], weight + r * stride + i, 2 * (d - i));
            }
        }
#pragma GCC unroll 8
        for (int j = 0; j < N; j++) {
            vu h = load<vu>(hidden + j * pitch + i / 2);
#pragma GCC unroll 8
            for (int r = 0; r < R; r++) sums[r][j] = dot_pairs(sums[r][j], w[r], h);
        }
    }
    for (int r = 0; r < R; r++)
        for (int j = 0; j < N; j++) out[r * out_stride + j] = sum(sums[r][j]);
}

template <int R, int N>
inline void pair_rows(const uint16_t *weight, int64_t stride, int64_t rows, const uint32_t *hidden, int64_t pitch,
                      int64_t d, float *out, int64_t out_stride) {
    int64_t r = 0;
    for (; r + R <= rows; r += R)
        pair_dots<R, N>(weight + r * stride, stride, hidden, pitch, d, out + r * out_stride, out_stride);
    for (; r < rows; r++) pair_dots<1, N>(weight + r * stride, stride, hidden, pitch, d, out + r * out_stride, out_stride);
}

inline int64_t pair_pitch(int64_t d) { return padded(d, 2 * LANES) / 2; }

void few_tokens_pairs(const VocabJob &job, int64_t first, int64_t rows, float *z, int64_t width) {
    const uint16_t *w = (const uint16_t *)job.weight + first * job.weight_stride;
    const uint32_t *hidden = (const uint32_t *)job.packed;
    const int64_t stride = job.weight_stride, d = job.d, pitch = pair_pitch(d);
    int64_t j = 0;
    for (; j + 8 <= job.tokens; j += 8) pair_rows<3, 8>(w, stride, rows, hidden + j * pitch, pitch, d, z + j, width);
    for (; j + 4 <= job.tokens; j += 4) pair_rows<6, 4>(w, stride, rows, hidden + j * pitch, pitch, d, z + j, width);
    for (; j + 2 <= job.tokens; j += 2) pair_rows<6, 2>(w, stride, rows, hidden + j * pitch, pitch, d, z + j, width);
    for (; j < job.tokens; j++) pair_rows<8, 1>(w, stride, rows, hidden + j * pitch, pitch, d, z + j, width);
}

template <int R, int N>
inline void pair_tile(const uint16_t *weight, int64_t stride, const uint32_t *panel, int64_t d, float *out,
                      int64_t width) {
    vf sums[R][N];
    for (int r = 0; r < R; r++)
        for (int v = 0; v < N; v++) sums[r][v] = vf{};
    for (int64_t i = 0; i < d; i += 2) {
        vu b[N];
#pragma GCC unroll 2
        for (int v = 0; v < N; v++) b[v] = load<vu>(panel + (i / 2 * N + v) * LANES);
#pragma GCC unroll 12
        for (int r = 0; r < R; r++) {
            uint32_t pair = 0;
            if (i + 2 <= d)
                memcpy(&pair, weight + r * stride + i, 4);
            else
                pair = weight[r * stride + i];
            vu a = pair - vu{};
#pragma GCC unroll 2
            for (int v = 0; v < N; v++) sums[r][v] = dot_pairs(sums[r][v], a, b[v]);
        }
    }
    for (int r = 0; r < R; r++)
        for (int v = 0; v < N; v++) store(out + r * width + v * LANES, sums[r][v]);
}

template <int N>
inline void pair_tiles(const uint16_t *weight, int64_t stride, int64_t rows, const uint32_t *panel, int64_t d,
                       float *out, int64_t width) {
    if (rows >= ROWS)
        pair_tile<ROWS, N>(weight, stride, panel, d, out, width);
    else
        for (int64_t r = 0; r < rows; r++)
            pair_tile<1, N>(weight + r * stride, stride, panel, d, out + r * width, width);
}

void many_tokens_pairs(const VocabJob &job, int64_t first, int64_t rows, float *z, int64_t width) {
    const uint16_t *weight = (const uint16_t *)job.weight + first * job.weight_stride;
    const uint32_t *packed = (const uint32_t *)job.packed;
    const int64_t stride = job.weight_stride, pairs = (job.d + 1) / 2;
    for (int64_t r = 0; r < rows; r += ROWS)
        for (int64_t j = 0; j < job.tokens; j += TILE) {
            const uint16_t *w = weight + r * stride;
            float *out = z + r * width + j;
            if (panel_width(job.tokens, j) == TILE)
                pair_tiles<2>(w, stride, rows - r, packed + j * pairs, job.d, out, width);
            else
                pair_tiles<1>(w, stride, rows - r, packed + j * pairs, job.d, out, width);
        }
}
#endif

// ---- hidden rows, packed for either of the two -----------------------------------------------------------------

int64_t packed_bytes(int64_t tokens, int64_t d) {
    return 4 * (tokens <= FEW_TOKENS ? tokens : padded(tokens, TILE)) * (d + 2 * LANES);
}

// Place of element i of token j where a panel holds [d][its tokens].
inline int64_t panel_place(int64_t tokens, int64_t j, int64_t i, int64_t d) {
    const int64_t first = j / TILE * TILE;
    return first * d + i * panel_width(tokens, first) + j - first;
}

// Few tokens: row after row. Many: for each TILE of tokens, [d][TILE]. The order along d is that of the weights' steps.
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

// ---- from dot products to row states ---------------------------------------------------------------------------

inline vf rounded(vf z, int rounding) {
    return rounding == PC_KEEP ? z : rounding == PC_TO_BFLOAT16 ? round_bfloat16(z) : round_float16(z);
}

inline vf transformed(vf z, const Transform &how, int64_t column) {
    bool excluded = false;
    if (how.bias) {
        const float bias = how.bias[column];
        excluded = bias == -INF;
        z = z + all(bias - how.pivot);
    }
    z = rounded(z, how.rounding);
    if (how.scale != 1.0) z = rounded(z * all((float)how.scale), how.rounding);
    if (how.softcap != 0.0) {
        const vf softcap = all((float)how.softcap);
        z = tanh_vector(rounded(z / softcap, how.rounding));
        z = rounded(rounded(z, how.rounding) * softcap, how.rounding);
    }
    return excluded ? all(-INF) : z;
}

inline bool worse(Candidate a, Candidate b) {
    return a.value < b.value || (a.value == b.value && a.column > b.column);
}

// Columns come in rising order, so an equal value never displaces one that is there.
inline void offer(Candidate *heap, int64_t k, int64_t *count, float value, int64_t column) {
    Candidate fresh = {value, column};
    if (*count < k) {
        int64_t i = (*count)++;
        while (i > 0 && worse(fresh, heap[(i - 1) / 2])) {
            heap[i] = heap[(i - 1) / 2];
            i = (i - 1) / 2;
        }
        heap[i] = fresh;
        return;
    }
    if (!(value > heap[0].value)) return;
    int64_t i = 0;
    for (;;) {
        int64_t child = 2 * i + 1;
        if (child >= k) break;
        if (child + 1 < k && worse(heap[child + 1], heap[child])) child++;
        if (!worse(heap[child], fresh)) break;
        heap[i] = heap[child];
        i = child;
    }
    heap[i] = fresh;
}

// A block of columns joins a state: `m` is its maximum, `r` and `t` its sums about max(m, state.m), without the
// maximum's own term when m is the greater.
inline void join(RowState *state, float m, double r, double t) {
    if (m > state->m) {
        const double delta = state->m - (double)m;
        const double factor = state->m == -INF ? 0.0 : exp(delta);
        const double step = state->m == -INF ? 0.0 : delta;
        const double whole = 1.0 + state->r;
        state->r = r + factor * whole;
        state->t = t + factor * (state->t + step * whole);
        state->m = m;
    } else {
        state->r += r;
        state->t += t;
    }
}

inline float read_floor(const VocabJob &job, int64_t token) {
    float floor;
    __atomic_load(job.floors + token, &floor, __ATOMIC_RELAXED);
    return floor;
}

const RowState EMPTY = {-INF, 0.0, 0.0, 0};

// z [rows][width] of columns first... : made into logits in place, then added to the states, one token per lane.
void reduce_block(const VocabJob &job, int64_t first, int64_t rows, float *z, int64_t width, RowState *states,
                  Candidate *heaps, int64_t *counts) {
    const Transform &how = job.transform;
    const bool plain = !how.bias && how.scale == 1.0 && how.softcap == 0.0 && how.rounding == PC_KEEP;
    for (int64_t j = 0; j < job.tokens; j += LANES) {
        const int64_t used = job.tokens - j < LANES ? job.tokens - j : LANES;
        vf m = all(-INF);
        vi where = all_int(-1), nan = vi{};
        for (int64_t r = 0; r < rows; r++) {
            vf value = load<vf>(z + r * width + j);
            if (!plain) {
                value = transformed(value, how, first + r);
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
            for (int64_t r = 0; r < rows; r++) {
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
        for (int64_t start = 0; start < rows; start += 16) {  // short sums first: float32 then loses nothing
            const int64_t end = start + 16 < rows ? start + 16 : rows;
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

int64_t block_width(int64_t tokens) { return padded(tokens, tokens <= FEW_TOKENS ? LANES : TILE); }

int64_t scratch_bytes(const VocabJob &job) {
    return 4 * VOCAB_BLOCK * (block_width(job.tokens) + DEPTH) + 8 * MAX_TOKENS + 256;
}

template <class T>
void block_dots(const VocabJob &job, int64_t first, int64_t rows, float *z, int64_t width, float *wide) {
    if (job.tokens <= FEW_TOKENS)
        few_tokens<T>(job, first, rows, z, width);
    else
        many_tokens<T>(job, first, rows, z, width, wide);
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
        const int64_t rows = last - start < VOCAB_BLOCK ? last - start : VOCAB_BLOCK;
#ifdef PC_BF16_DOT
        if (job.dtype == PC_BFLOAT16) {
            if (job.tokens <= FEW_TOKENS)
                few_tokens_pairs(job, start, rows, z, width);
            else
                many_tokens_pairs(job, start, rows, z, width);
        } else
#endif
            if (job.dtype == PC_FLOAT32)
            block_dots<Float32>(job, start, rows, z, width, wide);
        else if (job.dtype == PC_BFLOAT16)
            block_dots<BFloat16>(job, start, rows, z, width, wide);
        else
            block_dots<Float16>(job, start, rows, z, width, wide);
        reduce_block(job, start, rows, z, width, states, heaps, counts);
    }
    for (int64_t j = 0; j < job.tokens && job.kept > 0; j++) {
        Candidate *heap = heaps + j * job.kept;
        for (int64_t i = counts[j]; i < job.kept; i++) heap[i] = Candidate{-INF, -1};
        if (counts[j] == job.kept && heap[0].value > read_floor(job, j))
            __atomic_store(job.floors + j, &heap[0].value, __ATOMIC_RELAXED);  // another's lower value does no harm
    }
}

// ---- logits that exist: one row at a time, lanes along the columns ---------------------------------------------

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

// ---- second moments --------------------------------------------------------------------------------------------

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
    const int64_t first = panel * TILE, used = job.d - first < TILE ? job.d - first : TILE;
    float *out = job.packed + panel * (job.rows + 1) * TILE;
    double sums[TILE] = {}, cubes[TILE] = {};
    for (int64_t r = 0; r < job.rows; r++)
        for (int64_t c = 0; c < used; c++) {
            const double x = element(job, r, first + c);
            sums[c] += x;
            cubes[c] += job.squares[r] * (x - job.pivot[first + c]);
        }
    for (int64_t c = 0; c < used; c++) sums[c] /= (double)job.rows;
    for (int64_t r = 0; r < job.rows; r++)
        for (int64_t c = 0; c < TILE; c++)
            out[r * TILE + c] = c < used ? (float)(element(job, r, first + c) - sums[c]) : 0.0f;
    for (int64_t c = 0; c < TILE; c++) {
        const double delta = c < used ? sums[c] - job.mean[first + c] : 0.0;
        out[job.rows * TILE + c] = (float)(delta * job.weight);
        if (c >= used) continue;
        job.mean[first + c] += delta * ((double)job.rows / (double)(job.seen + job.rows));
        job.cube[first + c] += cubes[c];
    }
}

// Adds the products of this panel's columns with those of every panel from it on.
void product_panels(const MomentsJob &job, int64_t panel) {
    const int R = 4;
    const int64_t panels = (job.d + TILE - 1) / TILE, rows = job.rows + 1, size = rows * TILE;
    for (int64_t other = panel; other < panels; other++)
        for (int64_t high = 0; high < TILE; high += R) {
            const float *left = job.packed + panel * size + high, *right = job.packed + other * size;
            vf sums[R][2];
            for (int r = 0; r < R; r++) sums[r][0] = sums[r][1] = vf{};
            for (int64_t k = 0; k < rows; k++) {
                vf b0 = load<vf>(right + k * TILE), b1 = load<vf>(right + k * TILE + LANES);
#pragma GCC unroll 4
                for (int r = 0; r < R; r++) {
                    vf a = all(left[k * TILE + r]);
                    sums[r][0] += a * b0;
                    sums[r][1] += a * b1;
                }
            }
            for (int r = 0; r < R; r++) {
                const int64_t row = panel * TILE + high + r, first = other * TILE;
                if (row >= job.d) break;
                double *out = job.m2 + row * job.d + first;
                float products[TILE];
                store(products, sums[r][0]);
                store(products + LANES, sums[r][1]);
                const int64_t used = job.d - first < TILE ? job.d - first : TILE;
                for (int64_t c = 0; c < used; c++) out[c] += (double)products[c];
            }
        }
}

const Form FORM = {packed_bytes, pack_hidden,  scratch_bytes, vocab_chunk, logits_chunk,
                   TILE,         row_square, centre_panel,  product_panels};

}  // namespace
#endif
