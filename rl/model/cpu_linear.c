/* Products of states with a small model's matrices on a processor, whose results are added or gated before they leave its
 * registers. A tile of TILE rows and COLUMNS columns is summed up at a time, of a panel that holds each input's weights
 * for these columns side by side: `cpu_linear.py` lays them out.
 *
 * Legend: B rows, H inputs, N outputs, P panels of COLUMNS of them.
 */
#include <stddef.h>

#include "exponential.h"

/* sums of a tile and the weights of an input fill the registers: 26 of 32 of AVX-512, 14 of 16 of AVX2 */
#ifdef __AVX512F__
#define WIDTH 16 /* numbers of a register */
#define TILE 12
#else
#define WIDTH 8
#define TILE 6
#endif
#define VECTORS 2
#define COLUMNS (VECTORS * WIDTH)
#define FEW 4     /* rows at a time of those that are left */
#define BLOCK 192 /* rows for which a panel is read once: a multiple of TILE */

typedef float vector __attribute__((vector_size(4 * WIDTH)));
typedef float stored __attribute__((vector_size(4 * WIDTH), aligned(4))); /* anywhere in memory */

const int64_t columns = COLUMNS; /* for who lays out panels */

enum finish { PLAIN, ADDED, GATED };

static inline __attribute__((always_inline)) void sum_up(const int rows, int64_t inputs, const float *states,
                                                         const float *panel, vector sums[TILE][VECTORS])
{
    vector own[TILE][VECTORS] = {0};
    for (int64_t each = 0; each < inputs; each++, panel += COLUMNS) {
        vector weights[VECTORS];
        for (int part = 0; part < VECTORS; part++)
            weights[part] = *(const stored *)(panel + part * WIDTH);
#pragma GCC unroll 12
        for (int row = 0; row < rows; row++)
            for (int part = 0; part < VECTORS; part++)
                own[row][part] += states[row * inputs + each] * weights[part];
    }
    for (int row = 0; row < rows; row++)
        for (int part = 0; part < VECTORS; part++)
            sums[row][part] = own[row][part];
}

/* Write a row's sums of a panel: with the `bias` if there is one, added to what is there, or the SiLU of the first half
 * times the second. */
static inline void finish(enum finish how, const float *sums, const float *bias, int64_t count, float *out)
{
    switch (how) {
    case PLAIN:
        for (int64_t i = 0; i < count; i++)
            out[i] = bias ? sums[i] + bias[i] : sums[i];
        break;
    case ADDED:
        for (int64_t i = 0; i < count; i++)
            out[i] += sums[i];
        break;
    case GATED:
        for (int64_t i = 0; i < count; i++)
            out[i] = silu(sums[i]) * sums[COLUMNS / 2 + i];
    }
}

/* [B, N] of states [B, H] and panels [P, H, COLUMNS], of the panels from `first` to `last`. 0. */
int product(int64_t first, int64_t last, int64_t rows, int64_t inputs, int64_t outputs, int64_t how, const float *states,
            const float *panels, const float *bias, float *out)
{
    int64_t written = how == GATED ? COLUMNS / 2 : COLUMNS; /* of a panel */
    vector sums[TILE][VECTORS];
    for (int64_t block = 0; block < rows; block += BLOCK) {
        int64_t end = block + BLOCK < rows ? block + BLOCK : rows;
        for (int64_t each = first; each < last; each++) {
            const float *panel = panels + each * inputs * COLUMNS;
            int64_t at = each * written, count = outputs - at < written ? outputs - at : written;
            for (int64_t row = block, taken; row < end; row += taken) {
                const float *given = states + row * inputs;
                taken = end - row >= TILE ? TILE : end - row >= FEW ? FEW : 1;
                if (taken == TILE)
                    sum_up(TILE, inputs, given, panel, sums);
                else if (taken == FEW)
                    sum_up(FEW, inputs, given, panel, sums);
                else
                    sum_up(1, inputs, given, panel, sums);
                for (int of = 0; of < taken; of++) {
                    float *to = out + (row + of) * outputs + at;
                    const float *of_panel = bias ? bias + at : NULL, *from = (const float *)sums[of];
                    if (count == written) /* a number that the compiler knows */
                        finish(how, from, of_panel, how == GATED ? COLUMNS / 2 : COLUMNS, to);
                    else
                        finish(how, from, of_panel, count, to);
                }
            }
        }
    }
    return 0;
}
