#include <math.h>
#include <stdint.h>

#define LANES 16 /* scores are taken so many at a time */

/* e to the power of x, 0 at most: Cephes' polynomial of what 2 to the power of a whole number leaves. Nothing below -87.
 * Loops over it become vectors; what is no number stays none. */
static inline float exponential(float x)
{
    float given = x < -87.0f ? -87.0f : x;
    float whole = rintf(given * 1.44269504f);
    float rest = given - whole * 0.693359375f + whole * 2.12194440e-4f;
    float sum = 1.9875691500e-4f;
    sum = sum * rest + 1.3981999507e-3f;
    sum = sum * rest + 8.3334519073e-3f;
    sum = sum * rest + 4.1665795894e-2f;
    sum = sum * rest + 1.6666665459e-1f;
    sum = sum * rest + 5.0000001201e-1f;
    sum = sum * rest * rest + rest + 1.0f;
    union {
        int32_t bits;
        float number;
    } power = {.bits = ((int32_t)whole + 127) << 23};
    return x < -87.0f ? 0.0f : sum * power.number;
}

static inline float silu(float x)
{
    float power = exponential(-fabsf(x));
    return x * ((x < 0 ? power : 1.0f) / (1.0f + power));
}

/* The largest of scores, as many as a multiple of LANES: of the others, if some are no numbers. */
static inline float largest_of(const float *scores, int64_t padded)
{
    float most[LANES];
    for (int i = 0; i < LANES; i++)
        most[i] = -INFINITY;
    for (int64_t at = 0; at < padded; at += LANES)
        for (int i = 0; i < LANES; i++)
            most[i] = scores[at + i] > most[i] ? scores[at + i] : most[i];
    for (int step = LANES / 2; step; step /= 2)
        for (int i = 0; i < step; i++)
            most[i] = most[i + step] > most[i] ? most[i + step] : most[i];
    return most[0];
}
