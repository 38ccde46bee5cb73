// The two products of small matrices that a step is made of, their sums held in registers.
#pragma once
#include "vector.h"

namespace {

inline int64_t blocks(int64_t n, int64_t most) { return (n + most - 1) / most; }
inline int64_t padded(int64_t n) { return blocks(n, LANES) * LANES; }

// Result (R, C) of products of lines: result[r][c] = bias[c] + sum over i of x[r][i] * w[c][i].
// The lines of w are padded with zeros; those of x lie where the samples lie, so nothing is read beyond `n`.
template <int R, int C>
void dot(const float *const *x, const float *w, int64_t line, int64_t n, const float *bias, float *result, int64_t out) {
    Vec total[R * C];
    for (int k = 0; k < R * C; ++k) total[k] = all(0);
    const float *row[R];
    for (int r = 0; r < R; ++r) row[r] = x[r];
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        Vec b[C];
        for (int c = 0; c < C; ++c) b[c] = load(w + c * line + i);
        for (int r = 0; r < R; ++r) {
            const Vec a = load(row[r] + i);
            for (int c = 0; c < C; ++c) total[r * C + c] = fma(a, b[c], total[r * C + c]);
        }
    }
    if (i < n) {
        for (int r = 0; r < R; ++r) {
            const Vec a = load_first(row[r] + i, n - i);
            for (int c = 0; c < C; ++c) total[r * C + c] = fma(a, load(w + c * line + i), total[r * C + c]);
        }
    }
    float found[(R * C + 7) / 8 * 8];
    for (int k = 0; k < R * C; k += 8) sums(total + k, R * C - k < 8 ? R * C - k : 8, found + k);
    for (int r = 0; r < R; ++r)
        for (int c = 0; c < C; ++c) result[r * out + c] = bias ? found[r * C + c] + bias[c] : found[r * C + c];
}

// What `outer` begins with, where that is not zero: beta * itself + pull * centre.
struct Begin {
    float beta, pull;
    const float *centre;  // null where there is none; its lines are not padded
    int64_t line;
};

// Result (R, 16 C) of a sum of outer products: result[r] = begin + sum over k of a[k][r] * b[k].
// `last` is how many of the last sixteen columns there are; nothing is read beyond.
template <int R, int C>
void outer(const float *a, int64_t step, const float *const *b, int64_t terms, int64_t last, int64_t at, const Begin *begin,
           float *result, int64_t line) {
    Vec total[R * C];
    if (!begin) {
        for (int k = 0; k < R * C; ++k) total[k] = all(0);
    } else {
        const Vec beta = all(begin->beta), pull = all(begin->pull);
        for (int r = 0; r < R; ++r)
            for (int c = 0; c < C; ++c) {
                total[r * C + c] = beta * load(result + r * line + c * LANES);
                if (begin->centre) {
                    const float *from = begin->centre + r * begin->line + c * LANES;
                    const Vec centre = c + 1 < C || last == LANES ? load(from) : load_first(from, last);
                    total[r * C + c] = fma(pull, centre, total[r * C + c]);
                }
            }
    }
    if (last == LANES) {
        for (int64_t k = 0; k < terms; ++k) {
            Vec x[C];
            for (int c = 0; c < C; ++c) x[c] = load(b[k] + at + c * LANES);
            for (int r = 0; r < R; ++r) {
                const Vec factor = all(a[k * step + r]);
                for (int c = 0; c < C; ++c) total[r * C + c] = fma(factor, x[c], total[r * C + c]);
            }
        }
    } else {
        for (int64_t k = 0; k < terms; ++k) {
            Vec x[C];
            for (int c = 0; c + 1 < C; ++c) x[c] = load(b[k] + at + c * LANES);
            x[C - 1] = load_first(b[k] + at + (C - 1) * LANES, last);
            for (int r = 0; r < R; ++r) {
                const Vec factor = all(a[k * step + r]);
                for (int c = 0; c < C; ++c) total[r * C + c] = fma(factor, x[c], total[r * C + c]);
            }
        }
    }
    for (int r = 0; r < R; ++r)
        for (int c = 0; c < C; ++c) store(result + r * line + c * LANES, total[r * C + c]);
}

// Functions by their numbers of rows and columns, found at run time in a table made by the compiler.
template <int R, int C> struct Dots {
    static auto find(int64_t rows, int64_t columns) {
        if (rows == R && columns == C) return &dot<R, C>;
        if constexpr (C > 1) { if (columns < C) return Dots<R, C - 1>::find(rows, columns); }
        if constexpr (R > 1) { if (rows < R) return Dots<R - 1, C>::find(rows, columns); }
        return &dot<1, 1>;
    }
};
template <int R, int C> struct Outers {
    static auto find(int64_t rows, int64_t columns) {
        if (rows == R && columns == C) return &outer<R, C>;
        if constexpr (C > 1) { if (columns < C) return Outers<R, C - 1>::find(rows, columns); }
        if constexpr (R > 1) { if (rows < R) return Outers<R - 1, C>::find(rows, columns); }
        return &outer<1, 1>;
    }
};

// Cuts 0 .. n into parts of nearly equal length, `most` at most.
template <class Part> inline void parts(int64_t n, int64_t most, Part part) {
    const int64_t many = blocks(n, most);
    for (int64_t k = 0, low = 0; k < many; ++k) {
        const int64_t high = low + (n - low + many - k - 1) / (many - k);
        part(low, high - low);
        low = high;
    }
}

// result (rows, columns) = x (rows, n) times w (columns, n) transposed, plus a bias.
inline void dots(const float *const *x, int64_t rows, const float *w, int64_t columns, int64_t n, const float *bias,
                 float *result, int64_t out) {
    const int64_t line = padded(n);
    parts(columns, DOT_COLUMNS, [&](int64_t c, int64_t many) {
        parts(rows, DOT_ROWS, [&](int64_t r, int64_t some) {
            Dots<DOT_ROWS, DOT_COLUMNS>::find(some, many)(x + r, w + c * line, line, n, bias ? bias + c : nullptr,
                                                          result + r * out + c, out);
        });
    });
}

// result (rows, n) = begin + sum over k of the outer products of a[k] (rows) and b[k] (n).
// `ahead` is called with a beginning and a number of columns before they are worked on.
template <class Ahead>
inline void outers(const float *a, int64_t step, int64_t rows, const float *const *b, int64_t terms, int64_t n,
                   const Begin *begin, float *result, Ahead ahead) {
    const int64_t line = padded(n), vectors = blocks(n, LANES);
    parts(vectors, OUTER_COLUMNS, [&](int64_t v, int64_t many) {
        const int64_t at = v * LANES, last = least(LANES, n - at - (many - 1) * LANES);
        ahead(at, many * LANES);
        parts(rows, OUTER_ROWS, [&](int64_t r, int64_t some) {
            Begin own{};
            if (begin) own = *begin;
            if (own.centre) own.centre += r * own.line + at;
            Outers<OUTER_ROWS, OUTER_COLUMNS>::find(some, many)(a + r, step, b, terms, last, at, begin ? &own : nullptr,
                                                                result + r * line + at, line);
        });
    });
}

}  // namespace
