// The k best of a row, as a heap whose root is the worst that is kept.
#ifndef PRECOLLAPSE_FORM_CANDIDATES_H
#define PRECOLLAPSE_FORM_CANDIDATES_H

#include "../row_state.h"

namespace {

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

}  // namespace
#endif
