/* Attention of a decoding step on a processor, and what is around it: one pass over the keys and values that are seen,
 * where tensors take a dozen calls that lay out most of it anew. Compiled by `compiled.py` for one model's heads:
 * SIZE is D, and SHARE is R.
 *
 * Legend: B rows, K heads of keys, R query heads of each, D head size, M places, S positions of a prompt, L of a row.
 */
#include <stdlib.h>

#include "exponential.h"

#define HALF (SIZE / 2)
#define LINE 16 /* numbers of a line of a processor's cache */

static inline float inverse_root(const float *given, int64_t width, float epsilon)
{
    float squares = 0;
    for (int64_t i = 0; i < width; i++)
        squares += given[i] * given[i];
    return 1.0f / sqrtf(squares / width + epsilon);
}

/* A head [D], normalised if there is a `norm`, rotated and scaled; the first half of `sin` is negated. */
static inline void rotate(const float *given, const float *norm, float epsilon, const float *cos, const float *sin,
                          float scaling, float *out)
{
    float head[SIZE];
    float factor = norm ? inverse_root(given, SIZE, epsilon) : 1;
    for (int i = 0; i < SIZE; i++)
        head[i] = given[i] * factor;
    if (norm)
        for (int i = 0; i < SIZE; i++)
            head[i] *= norm[i];
    for (int i = 0; i < HALF; i++) {
        out[i] = (head[i] * cos[i] + head[i + HALF] * sin[i]) * scaling;
        out[i + HALF] = (head[i + HALF] * cos[i + HALF] + head[i] * sin[i + HALF]) * scaling;
    }
}

/* Have a head's keys, or values, of a position fetched: those of a row come in streams too short to be foreseen. */
static inline void fetch(const float *keys)
{
    for (int i = 0; i < SIZE; i += LINE)
        __builtin_prefetch(keys + i);
}

/* [R, count] of queries [R, D] and keys [count, D]; scores of one query are `stride` apart from the next one's. As many
 * `ahead`, which are read soon, are fetched meanwhile. */
static inline void score(const float *queries, const float *keys, int64_t count, float *scores, int64_t stride,
                         const float *ahead)
{
    for (int64_t at = 0; at < count; at++) {
        fetch(ahead + at * SIZE);
        for (int each = 0; each < SHARE; each++) {
            float sum = 0;
            for (int i = 0; i < SIZE; i++)
                sum += queries[each * SIZE + i] * keys[at * SIZE + i];
            scores[each * stride + at] = sum;
        }
    }
}

/* Add to `found` [R, D] the values [count, D] by their weights; `ahead` as above. */
static inline void add_values(const float *weights, int64_t stride, const float *values, int64_t count, float *found,
                              const float *ahead)
{
    for (int64_t at = 0; at < count; at++) {
        fetch(ahead + at * SIZE);
        for (int each = 0; each < SHARE; each++)
            for (int i = 0; i < SIZE; i++)
                found[each * SIZE + i] += weights[each * stride + at] * values[at * SIZE + i];
    }
}

/* Make weights of scores, with room for LANES more; their sum. */
static float weigh(float *scores, int64_t count)
{
    int64_t padded = (count + LANES - 1) / LANES * LANES;
    for (int64_t at = count; at < padded; at++)
        scores[at] = -INFINITY;
    float largest = largest_of(scores, padded), total = 0;
    for (int64_t at = 0; at < padded; at++)
        scores[at] = exponential(scores[at] - largest);
    for (int64_t at = 0; at < padded; at++)
        total += scores[at];
    return total;
}

/* [B, D] of [B, D], each of the mean square 1, times `weight` [D]. */
void normalize(int64_t rows, int64_t width, const float *given, const float *weight, float epsilon, float *out)
{
    for (; rows; rows--, given += width, out += width) {
        float factor = inverse_root(given, width, epsilon);
        for (int64_t i = 0; i < width; i++)
            out[i] = given[i] * factor * weight[i];
    }
}

/* [B, I] of gates and what they let through, [B, 2 I]: the SiLU of the former times the latter. */
void gate(int64_t rows, int64_t width, const float *given, float *out)
{
    for (; rows; rows--, given += 2 * width, out += width)
        for (int64_t i = 0; i < width; i++)
            out[i] = silu(given[i]) * given[width + i];
}

/* [B, K * R * D] of the rows from `first` to `last`, by queries [B, K * R * D], keys and values [B, K * D], whose rows
 * are `strides` apart; the new key and value are kept at `at` [B] of [.., K, L, D], of the row, or of that in `kept_in` [B]
 * if it is not 0: a row may be behind another one that is kept there, too. `points` [B] of rows, in places of so many
 * `columns`, may be 0: they are one after another. 1 where there is no memory, 2 where `at` is outside, else 0. */
int attend(int64_t first, int64_t last, int64_t K, const float *query, const float *key, const float *value,
           const int64_t *strides, const float *norms, float epsilon, const float *cos, const float *sin, float scaling,
           float *own_keys, float *own_values, int64_t own_positions, const int64_t *kept_in, const int64_t *at,
           const float *prompt_keys, const float *prompt_values, int64_t prompt_positions, const int64_t *lengths,
           const int64_t *points, int64_t columns, float *out)
{
    int64_t room = own_positions + prompt_positions + LANES;
    float *scores = malloc(sizeof(float) * SHARE * room);
    if (!scores)
        return 1;
    for (int64_t row = first; row < last; row++) {
        int64_t place = (points ? points[row] : row) / columns, before = lengths[place], own = at[row] + 1;
        int64_t kept = kept_in ? kept_in[row] : row;
        if (at[row] < 0 || own > own_positions) {
            free(scores);
            return 2;
        }
        for (int64_t head = 0; head < K; head++) {
            float *keys = own_keys + (kept * K + head) * own_positions * SIZE;
            float *values = own_values + (kept * K + head) * own_positions * SIZE;
            const float *their_keys = prompt_keys + (place * K + head) * prompt_positions * SIZE;
            const float *their_values = prompt_values + (place * K + head) * prompt_positions * SIZE;
            float queries[SHARE * SIZE], found[SHARE * SIZE] = {0}, totals[SHARE];

            rotate(key + row * strides[1] + head * SIZE, norms ? norms + (K * SHARE + head) * SIZE : 0, epsilon,
                   cos + row * SIZE, sin + row * SIZE, 1, keys + at[row] * SIZE);
            for (int i = 0; i < SIZE; i++)
                values[at[row] * SIZE + i] = value[row * strides[2] + head * SIZE + i];
            for (int each = 0; each < SHARE; each++) {
                int64_t of_query = (head * SHARE + each) * SIZE;
                rotate(query + row * strides[0] + of_query, norms ? norms + of_query : 0, epsilon, cos + row * SIZE,
                       sin + row * SIZE, scaling, queries + each * SIZE);
            }
            score(queries, their_keys, before, scores, room, their_values);
            score(queries, keys, own, scores + before, room, keys + own_positions * SIZE);
            for (int each = 0; each < SHARE; each++)
                totals[each] = weigh(scores + each * room, before + own);
            add_values(scores, room, their_values, before, found, their_values);
            add_values(scores + before, room, values, own, found, values + own_positions * SIZE);
            float *to = out + (row * K + head) * SHARE * SIZE;
            for (int each = 0; each < SHARE; each++)
                for (int i = 0; i < SIZE; i++)
                    to[each * SIZE + i] = found[each * SIZE + i] / totals[each];
        }
    }
    free(scores);
    return 0;
}
