// Which form runs, how work is cut into tasks, threads, and the merging of what the tasks found.
#include "precollapse.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <new>
#include <thread>
#include <vector>

#include "jobs.h"

namespace {

const double LOG2E = 1.4426950408889634074;
const double INFINITE = HUGE_VAL;
const int64_t REFINED = 8;  // largest logits that are formed again in float64

const Form *form_of(int form) {
    if (form < 0 || form >= PC_FORMS || !(pc_forms() >> form & 1)) return nullptr;
#ifdef PC_HAVE_AVX2
    if (form == PC_AVX2) return pc_form_avx2();
#endif
#ifdef PC_HAVE_AVX512
    if (form == PC_AVX512) return pc_form_avx512();
#endif
#ifdef PC_HAVE_AVX512_BF16
    if (form == PC_AVX512_BF16) return pc_form_avx512_bf16();
#endif
    return pc_form_portable();
}

struct Freed {
    void operator()(void *p) const { free(p); }
};
typedef std::unique_ptr<void, Freed> Buffer;

Buffer aligned(int64_t bytes) {
    void *p = nullptr;
    if (posix_memalign(&p, 64, (size_t)std::max<int64_t>(bytes, 64)) != 0) throw std::bad_alloc();
    return Buffer(p);
}

// Calls work(worker, task) for every task. Threads take tasks as they come free. They live for this call only, so that a
// process that forks is never left with a pool whose threads are gone. Memory that runs out in one of them stops the
// others and is thrown from here: an exception that left a thread would end the process.
template <class Work>
void run(int threads, int64_t tasks, const Work &work) {
    std::atomic<int64_t> next(0);
    std::atomic<bool> failed(false);
    auto worker = [&](int which) {
        try {
            for (int64_t task; !failed && (task = next.fetch_add(1)) < tasks;) work(which, task);
        } catch (const std::exception &) {
            failed = true;
        }
    };
    std::vector<std::thread> others;
    try {
        for (int i = 1; i < threads; i++) others.emplace_back(worker, i);
    } catch (const std::exception &) {  // the system gives no more threads: those there are do the work
    }
    worker(0);
    for (auto &other : others) other.join();
    if (failed) throw std::bad_alloc();
}

int useful_threads(int threads, int64_t tasks, double bytes) {
    const double enough = bytes / (256 << 10) + 1;
    return (int)std::max<double>(1, std::min<double>(std::min<double>(threads, (double)tasks), enough));
}

float from_bfloat16(uint16_t x) {
    const uint32_t bits = (uint32_t)x << 16;
    float y;
    memcpy(&y, &bits, 4);
    return y;
}

float from_float16(uint16_t x) {
    const int exponent = x >> 10 & 31, fraction = x & 1023;
    const double size = exponent == 31 ? (fraction ? NAN : INFINITE)
                        : exponent     ? ldexp(1024 + fraction, exponent - 25)
                                       : ldexp(fraction, -24);
    return (float)(x & 0x8000 ? -size : size);
}

RowState merged(const RowState &a, const RowState &b) {
    const bool first = a.m >= b.m;
    const RowState &high = first ? a : b, &low = first ? b : a;
    RowState out = high;
    out.nan = a.nan | b.nan;
    if (low.m == -INFINITE) return out;
    const double delta = low.m == high.m ? 0.0 : low.m - high.m;
    const double factor = exp(delta), whole = 1.0 + low.r;
    out.r += factor * whole;
    out.t += factor * (low.t + delta * whole);
    return out;
}

void finish(const RowState &state, double *entropy, double *logsumexp) {
    if (state.nan || state.m == -INFINITE || state.m == INFINITE) {
        *entropy = NAN;
        *logsumexp = state.nan ? NAN : state.m;
        return;
    }
    const double bits = state.r < 0.5 ? log1p(state.r) * LOG2E : log2(1.0 + state.r);
    *entropy = bits - state.t * LOG2E / (1.0 + state.r);
    *logsumexp = state.m + log1p(state.r);
}

// Merges one row's chunks, which lie `pitch` apart, in order.
RowState merge_chunks(const RowState *states, int64_t chunks, int64_t pitch) {
    RowState state = states[0];
    for (int64_t c = 1; c < chunks; c++) state = merged(state, states[c * pitch]);
    return state;
}

bool better(const Candidate &a, const Candidate &b) {
    return a.value > b.value || (a.value == b.value && a.column < b.column);
}

// The `kept` best of one row's candidates, best first.
std::vector<Candidate> best_of(const Candidate *heaps, int64_t chunks, int64_t pitch, int64_t kept) {
    std::vector<Candidate> pool;
    for (int64_t c = 0; c < chunks; c++)
        for (int64_t i = 0; i < kept; i++)
            if (heaps[c * pitch * kept + i].column >= 0) pool.push_back(heaps[c * pitch * kept + i]);
    const int64_t found = std::min<int64_t>(kept, (int64_t)pool.size());
    std::partial_sort(pool.begin(), pool.begin() + found, pool.end(), better);
    pool.resize((size_t)found);
    return pool;
}

void write_top(const RowState &state, const std::vector<Candidate> &best, int64_t k, float *logits, int64_t *ids) {
    for (int64_t i = 0; i < k; i++) {
        const bool there = i < (int64_t)best.size() && !state.nan;
        logits[i] = there ? best[i].value : NAN;
        ids[i] = there ? best[i].column : -1;
    }
}

double element(int dtype, const void *p, int64_t i) {
    if (dtype == PC_FLOAT32) return ((const float *)p)[i];
    const uint16_t bits = ((const uint16_t *)p)[i];
    return dtype == PC_BFLOAT16 ? from_bfloat16(bits) : from_float16(bits);
}

// One logit in float64, for a form that rounds nothing; less the pivot.
double exact_logit(const VocabJob &job, const void *hidden, int64_t column) {
    const int64_t bytes = job.dtype == PC_FLOAT32 ? 4 : 2;
    const void *weight = (const char *)job.weight + column * job.weight_stride * bytes;
    const Transform &how = job.transform;
    double parts[4] = {0, 0, 0, 0};
    for (int64_t i = 0; i < job.d; i++) parts[i & 3] += element(job.dtype, hidden, i) * element(job.dtype, weight, i);
    double z = (parts[0] + parts[1]) + (parts[2] + parts[3]);
    if (how.bias) z += (double)how.bias[column] - how.pivot;
    z *= how.scale;
    return how.softcap != 0.0 ? how.softcap * tanh(z / how.softcap) : z;
}

// The largest logits again in float64, in the state and in the list. A sum of d products in float32 is off by about
// 1e-6 at logits of 20; a distribution that few columns make up would show that in its entropy.
void refine(const VocabJob &job, const void *hidden, RowState *state, std::vector<Candidate> *best) {
    if (state->nan || !(state->m > -INFINITE && state->m < INFINITE)) return;
    struct Exact {
        double value;
        int64_t column;
    };
    std::vector<Exact> exact;
    double r = state->r, t = state->t, top = -INFINITE;
    bool leader = true;  // the first is the maximum, whose term is not in r
    for (const Candidate &c : *best) {
        if (c.value == -INFINITE) break;
        const double x = (double)c.value - state->m;
        if (!leader) {
            r -= exp(x);
            t -= x * exp(x);
        }
        leader = false;
        exact.push_back(Exact{exact_logit(job, hidden, c.column), c.column});
        top = std::max(top, exact.back().value);
    }
    std::stable_sort(exact.begin(), exact.end(), [](const Exact &a, const Exact &b) {
        return a.value > b.value || (a.value == b.value && a.column < b.column);
    });
    const double shift = state->m - top;
    r = std::max(r, 0.0);
    t = std::min(t, 0.0);
    if (r > 0.0) {  // of a huge scale exp(shift) may be infinite, and nothing times that is no number
        t = exp(shift) * (t + shift * r);
        r *= exp(shift);
    } else {
        t = 0.0;
    }
    for (size_t i = 0; i < exact.size(); i++) {
        (*best)[i] = Candidate{(float)exact[i].value, exact[i].column};
        if (i == 0) continue;
        const double x = exact[i].value - top;
        r += exp(x);
        t += x * exp(x);
    }
    state->r = r;
    state->t = t;
    state->m = top;
}

int64_t element_bytes(int dtype) { return dtype == PC_FLOAT32 ? 4 : 2; }

}  // namespace

int pc_abi(void) { return PC_ABI; }

int pc_forms(void) {
    int found = 1 << PC_PORTABLE;
#if defined(PC_HAVE_AVX2) || defined(PC_HAVE_AVX512)
    __builtin_cpu_init();
#endif
#ifdef PC_HAVE_AVX2
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c"))
        found |= 1 << PC_AVX2;
#endif
#ifdef PC_HAVE_AVX512
    const bool wide = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                      __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
    if (wide) found |= 1 << PC_AVX512;
#ifdef PC_HAVE_AVX512_BF16
    if (wide && __builtin_cpu_supports("avx512bf16")) found |= 1 << PC_AVX512_BF16;
#endif
#endif
#ifdef PC_EMULATE  // a test build whose wide forms are made of narrower instructions
    found |= 1 << PC_AVX512 | 1 << PC_AVX512_BF16;
#endif
    return found;
}

int pc_vocab_stats(int form, int threads, int dtype, const void *hidden, int64_t n, int64_t d, int64_t hidden_stride,
                   const void *weight, int64_t columns, int64_t weight_stride, const float *bias, float pivot,
                   double softcap, double scale, int rounding, int64_t k, double *entropy, double *logsumexp,
                   float *top_logits, int64_t *top_ids) try {
    const Form *use = form_of(form);
    if (!use) return 1;
    const int64_t chunks = (columns + VOCAB_CHUNK - 1) / VOCAB_CHUNK;
    const int64_t kept = rounding == PC_KEEP ? std::min(k + REFINED, columns) : k;
    // As many tokens at once as keep the packed rows and the candidates in a few MB.
    int64_t together = std::max<int64_t>(32, (2 << 20) / (4 * d) / 32 * 32);
    if (kept > 0)
        together = std::min(together, std::max<int64_t>(1, (2 << 20) / (chunks * kept * (int64_t)sizeof(Candidate))));
    together = std::min(std::min(together, MAX_TOKENS), std::max<int64_t>(n, 1));
    const double bytes = (double)columns * d * element_bytes(dtype);
    threads = useful_threads(threads, chunks, bytes * (1 + (double)n / 16));

    VocabJob job = {};
    job.weight = weight;
    job.columns = columns;
    job.weight_stride = weight_stride;
    job.d = d;
    job.tokens = together;
    job.transform = Transform{bias, pivot, softcap, scale, rounding};
    job.kept = kept;
    job.dtype = dtype;
    Buffer packed = aligned(use->packed_bytes(together, d));
    const int64_t scratch_bytes = use->scratch_bytes(job);
    std::vector<Buffer> scratch;
    for (int i = 0; i < threads; i++) scratch.push_back(aligned(scratch_bytes));
    std::vector<RowState> states((size_t)(chunks * together));
    std::vector<Candidate> heaps((size_t)(chunks * together * kept));
    std::vector<float> floors((size_t)together);
    job.packed = packed.get();
    job.floors = floors.data();

    for (int64_t start = 0; start < n; start += together) {
        job.tokens = std::min(together, n - start);
        const char *rows = (const char *)hidden + start * hidden_stride * element_bytes(dtype);
        use->pack_hidden(dtype, rows, hidden_stride, job.tokens, d, packed.get());
        std::fill(floors.begin(), floors.end(), (float)-INFINITE);
        run(threads, chunks, [&](int worker, int64_t chunk) {
            const int64_t first = chunk * VOCAB_CHUNK, last = std::min(columns, first + VOCAB_CHUNK);
            use->vocab_chunk(job, first, last, scratch[worker].get(), &states[chunk * together],
                             heaps.data() + chunk * together * kept);
        });
        const int settlers = useful_threads(threads, job.tokens, (double)job.tokens * (kept * d * 8 + chunks * 64));
        run(settlers, job.tokens, [&](int, int64_t j) {
            RowState state = merge_chunks(&states[j], chunks, together);
            std::vector<Candidate> best = best_of(heaps.data() + j * kept, chunks, together, kept);
            if (rounding == PC_KEEP) refine(job, rows + j * hidden_stride * element_bytes(dtype), &state, &best);
            const double offset = bias ? (double)pivot * scale : 0.0;
            for (Candidate &c : best) c.value = (float)(c.value + offset);
            finish(state, entropy + start + j, logsumexp + start + j);
            logsumexp[start + j] += offset;
            write_top(state, best, k, top_logits + (start + j) * k, top_ids + (start + j) * k);
        });
    }
    return 0;
} catch (const std::exception &) {
    return 1;
}

int pc_logits_stats(int form, int threads, int dtype, const void *logits, int64_t n, int64_t columns, int64_t stride,
                    int64_t k, double *entropy, double *logsumexp, float *top_logits, int64_t *top_ids) try {
    const Form *use = form_of(form);
    if (!use) return 1;
    const int64_t chunks = (columns + LOGITS_CHUNK - 1) / LOGITS_CHUNK;
    const int64_t together = std::min<int64_t>(n, 1024);  // rows whose chunks are held before they are merged
    const LogitsJob job = {logits, columns, stride, k, dtype};
    threads = useful_threads(threads, together * chunks, (double)n * columns * 4);
    std::vector<RowState> states((size_t)(chunks * together));
    std::vector<Candidate> heaps((size_t)(chunks * together * k));
    for (int64_t start = 0; start < n; start += together) {
        const int64_t rows = std::min(together, n - start);
        run(threads, rows * chunks, [&](int, int64_t task) {
            const int64_t row = task / chunks, chunk = task % chunks, first = chunk * LOGITS_CHUNK;
            use->logits_chunk(job, start + row, first, std::min(columns, first + LOGITS_CHUNK), &states[task],
                              heaps.data() + task * k);
        });
        for (int64_t row = 0; row < rows; row++) {
            const RowState state = merge_chunks(&states[row * chunks], chunks, 1);
            const std::vector<Candidate> best = best_of(heaps.data() + row * chunks * k, chunks, 1, k);
            finish(state, entropy + start + row, logsumexp + start + row);
            write_top(state, best, k, top_logits + (start + row) * k, top_ids + (start + row) * k);
        }
    }
    return 0;
} catch (const std::exception &) {
    return 1;
}

int pc_moments_update(int form, int threads, int dtype, const void *x, int64_t n, int64_t d, int64_t stride,
                      int64_t seen, const double *pivot, double *mean, double *m2, double *square, double *cube,
                      double *fourth) try {
    const Form *use = form_of(form);
    if (!use) return 1;
    const int64_t most = std::min(n, MOMENTS_ROWS), panels = (d + use->panel - 1) / use->panel;
    Buffer packed = aligned(4 * panels * use->panel * (most + 1));
    std::vector<double> squares((size_t)most);
    for (int64_t start = 0; start < n; start += most) {
        MomentsJob job = {};
        job.x = (const char *)x + start * stride * element_bytes(dtype);
        job.rows = std::min(most, n - start);
        job.stride = stride;
        job.d = d;
        job.seen = seen + start;
        job.dtype = dtype;
        job.pivot = pivot;
        job.mean = mean;
        job.cube = cube;
        job.m2 = m2;
        job.squares = squares.data();
        job.packed = (float *)packed.get();
        job.weight = sqrt((double)job.seen * job.rows / (double)(job.seen + job.rows));
        const double bytes = (double)job.rows * d * 8;
        run(useful_threads(threads, job.rows, bytes), job.rows, [&](int, int64_t row) { use->row_square(job, row); });
        for (int64_t r = 0; r < job.rows; r++) {
            *square += squares[r];
            *fourth += squares[r] * squares[r];
        }
        run(useful_threads(threads, panels, bytes), panels, [&](int, int64_t p) { use->centre_panel(job, p); });
        run(useful_threads(threads, panels, bytes * panels), panels,
            [&](int, int64_t p) { use->product_panels(job, p); });
    }
    return 0;
} catch (const std::exception &) {
    return 1;
}
