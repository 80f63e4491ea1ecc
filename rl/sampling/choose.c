/* Tokens that uniform numbers choose, and their log-probs: a row's scores are read twice, where tensors lay out its weights
 * and their sums and read them again. */
#include <stdlib.h>

#include "../model/exponential.h"

#define BLOCK 256 /* weights that are added up by themselves, a multiple of LANES */

static inline int64_t padded_to(int64_t count, int64_t block) { return (count + block - 1) / block * block; }

/* [B] of scores [B, V], that the sum of weights passes the uniform number's share of all at; never one of weight 0. 1 where
 * there is no memory, else 0. */
int choose(int64_t first, int64_t last, int64_t width, const float *all_scores, const float *uniform, int64_t *tokens,
           float *logprobs)
{
    int64_t room = padded_to(width, BLOCK), whole = width / LANES * LANES;
    float *weights = malloc(sizeof(float) * room);
    if (!weights)
        return 1;
    for (int64_t row = first; row < last; row++) {
        const float *scores = all_scores + row * width;
        float largest = largest_of(scores, whole);
        for (int64_t at = whole; at < width; at++)
            largest = scores[at] > largest ? scores[at] : largest;
        for (int64_t at = 0; at < width; at++)
            weights[at] = exponential(scores[at] - largest);
        for (int64_t at = width; at < room; at++)
            weights[at] = 0;
        double total = 0;
        for (int64_t block = 0; block < room; block += BLOCK) {
            float sum = 0;
            for (int64_t at = block; at < block + BLOCK; at++)
                sum += weights[at];
            total += sum;
        }
        double share = uniform[row] * total, before = 0;
        int64_t chosen = width - 1, block = 0;
        for (; block < room; block += BLOCK) {
            float sum = 0;
            for (int64_t at = block; at < block + BLOCK; at++)
                sum += weights[at];
            if (before + sum > share)
                break;
            before += sum;
        }
        for (int64_t at = block; at < block + BLOCK && at < width; at++) {
            if (weights[at] > 0)
                chosen = at; /* the last one, where the block's sum, rounded in another order, is never passed */
            before += weights[at];
            if (before > share)
                break;
        }
        tokens[row] = chosen;
        logprobs[row] = scores[chosen] - largest - log(total);
    }
    free(weights);
    return 0;
}
