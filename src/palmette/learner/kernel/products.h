// The two products of small matrices that a step is made of, their sums held in registers.
#pragma once
#include "functions.h"

namespace {

// Result (R, C) of products of lines: result[r][c] = bias[c] + sum over i of x[r][i] * w[c][i].
// The lines of w are padded with zeros; those of x lie where the samples lie, so nothing is read beyond `n`.
template <int R, int C>
void dot(const float *const *x, const float *w, int64_t line, int64_t n, const float *bias, float *result, int64_t out) {
    Vec total[R * C];
    EACH for (int k = 0; k < R * C; ++k) total[k] = all(0);
    const float *row[R];
    EACH for (int r = 0; r < R; ++r) row[r] = x[r];
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        Vec b[C];
        EACH for (int c = 0; c < C; ++c) b[c] = load(w + c * line + i);
        EACH for (int r = 0; r < R; ++r) {
            const Vec a = load(row[r] + i);
            EACH for (int c = 0; c < C; ++c) total[r * C + c] = fma(a, b[c], total[r * C + c]);
        }
    }
    if (i < n) {
        EACH for (int r = 0; r < R; ++r) {
            const Vec a = load_first(row[r] + i, n - i);
            EACH for (int c = 0; c < C; ++c) total[r * C + c] = fma(a, load(w + c * line + i), total[r * C + c]);
        }
    }
    float found[(R * C + 7) / 8 * 8];
    EACH for (int k = 0; k < R * C; k += 8) sums(total + k, R * C - k < 8 ? R * C - k : 8, found + k);
    EACH for (int r = 0; r < R; ++r)
        EACH for (int c = 0; c < C; ++c) result[r * out + c] = bias ? found[r * C + c] + bias[c] : found[r * C + c];
}

// What `outer` adds to: row + pull * (centre - row) - decay * row. Sums go beside products, which are what takes time.
struct Before {
    float pull, decay;
    const float *centre;  // null where there is none; its lines are not padded
    int64_t line;
};

inline Vec kept(Vec row, const Before &before, Vec centre, Vec total) {
    if (before.centre) total = fma(all(before.pull), centre - row, total);
    if (before.decay != 0) total = fma(all(-before.decay), row, total);
    return total + row;
}

// Result (R, 16 C) of a sum of outer products: result[r] = sum over k of a[k][r] * b[k], plus what is kept of `before`.
// `last` is how many of the last sixteen columns there are; nothing is read beyond.
template <int R, int C, bool Whole>
void outer(const float *a, int64_t step, const float *const *b, int64_t terms, int64_t at, int64_t last, const Before *before,
           float *result, int64_t line) {
    const auto read = [last](const float *from, int c) { return Whole || c + 1 < C ? load(from) : load_first(from, last); };
    Vec total[R * C];
    EACH for (int k = 0; k < R * C; ++k) total[k] = all(0);
    for (int64_t k = 0; k < terms; ++k) {
        Vec x[C];
        EACH for (int c = 0; c < C; ++c) x[c] = read(b[k] + at + c * LANES, c);
        EACH for (int r = 0; r < R; ++r) {
            const Vec factor = all(a[k * step + r]);
            EACH for (int c = 0; c < C; ++c) total[r * C + c] = fma(factor, x[c], total[r * C + c]);
        }
    }
    if (before) {
        EACH for (int r = 0; r < R; ++r)
            EACH for (int c = 0; c < C; ++c) {
                const float *centre = before->centre + r * before->line + c * LANES;
                const Vec row = load(result + r * line + c * LANES);
                total[r * C + c] = kept(row, *before, before->centre ? read(centre, c) : row, total[r * C + c]);
            }
    }
    EACH for (int r = 0; r < R; ++r)
        EACH for (int c = 0; c < C; ++c) store(result + r * line + c * LANES, total[r * C + c]);
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
    static auto find(int64_t rows, int64_t columns, bool whole) {
        if (rows == R && columns == C) return whole ? &outer<R, C, true> : &outer<R, C, false>;
        if constexpr (C > 1) { if (columns < C) return Outers<R, C - 1>::find(rows, columns, whole); }
        if constexpr (R > 1) { if (rows < R) return Outers<R - 1, C>::find(rows, columns, whole); }
        return &outer<1, 1, false>;
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

// How many products of registers `dots` and `outers` make.
inline int64_t many_dots(int64_t rows, int64_t columns) { return blocks(rows, DOT_ROWS) * blocks(columns, DOT_COLUMNS); }
inline int64_t many_outers(int64_t rows, int64_t n) {
    return blocks(rows, OUTER_ROWS) * blocks(blocks(n, LANES), OUTER_COLUMNS);
}

// result (rows, columns) = x (rows, n) times w (columns, n) transposed, plus a bias.
// `ahead` is called before each product of registers, here and in `outers`.
template <class Ahead>
inline void dots(const float *const *x, int64_t rows, const float *w, int64_t columns, int64_t n, const float *bias,
                 float *result, int64_t out, Ahead ahead) {
    const int64_t line = padded(n);
    parts(columns, DOT_COLUMNS, [&](int64_t c, int64_t many) {
        parts(rows, DOT_ROWS, [&](int64_t r, int64_t some) {
            ahead();
            Dots<DOT_ROWS, DOT_COLUMNS>::find(some, many)(x + r, w + c * line, line, n, bias ? bias + c : nullptr,
                                                          result + r * out + c, out);
        });
    });
}

// result (rows, n) = sum over k of the outer products of a[k] (rows) and b[k] (n), plus what is kept of `before`.
template <class Ahead>
inline void outers(const float *a, int64_t step, int64_t rows, const float *const *b, int64_t terms, int64_t n,
                   const Before *before, float *result, Ahead ahead) {
    const int64_t line = padded(n), vectors = blocks(n, LANES);
    parts(vectors, OUTER_COLUMNS, [&](int64_t v, int64_t many) {
        const int64_t at = v * LANES, last = least(LANES, n - at - (many - 1) * LANES);
        parts(rows, OUTER_ROWS, [&](int64_t r, int64_t some) {
            ahead();
            const auto product = Outers<OUTER_ROWS, OUTER_COLUMNS>::find(some, many, last == LANES);
            float *into = result + r * line + at;
            if (before == nullptr || before->centre == nullptr) {
                product(a + r, step, b, terms, at, last, before, into, line);
                return;
            }
            const Before own{before->pull, before->decay, before->centre + r * before->line + at, before->line};
            product(a + r, step, b, terms, at, last, &own, into, line);
        });
    });
}

// Room for the terms of some rows that are not zero.
struct Few {
    float *factors;
    const float **lines;
};

// `outers` where many numbers of a are zero, as they are behind rectified linear units: row by row, without those. A product
// with zero adds nothing, so the bits are the same. Returns false, having done nothing, where too few are zero to gain by it.
template <class Ahead>
inline bool few_outers(const float *a, int64_t step, int64_t rows, const float *const *b, int64_t terms, int64_t n,
                       const Before *before, float *result, const Few &few, Ahead ahead) {
    int64_t zeros = 0;
    for (int64_t k = 0; k < terms; ++k)
        for (int64_t r = 0; r < rows; ++r) zeros += a[k * step + r] == 0;
    if (4 * zeros < rows * terms) return false;
    const int64_t line = padded(n), vectors = blocks(n, LANES);
    parts(rows, FEW_ROWS, [&](int64_t low, int64_t some) {
        int64_t count[FEW_ROWS];
        for (int64_t r = 0; r < some; ++r) {
            int64_t found = 0;
            for (int64_t k = 0; k < terms; ++k) {
                const float factor = a[k * step + low + r];
                few.factors[r * terms + found] = factor, few.lines[r * terms + found] = b[k];
                found += factor != 0;
            }
            count[r] = found;
        }
        parts(vectors, FEW_COLUMNS, [&](int64_t v, int64_t many) {
            const int64_t at = v * LANES, last = least(LANES, n - at - (many - 1) * LANES);
            const auto product = Outers<1, FEW_COLUMNS>::find(1, many, last == LANES);
            for (int64_t r = 0; r < some; ++r) {
                ahead();
                Before own = *before;
                if (own.centre) own.centre += (low + r) * own.line + at;
                product(few.factors + r * terms, 1, few.lines + r * terms, count[r], at, last, &own,
                        result + (low + r) * line + at, line);
            }
        });
    });
    return true;
}

}  // namespace
