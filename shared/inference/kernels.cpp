// What torch is slow at when a step has few rows: products that wait for memory, and attention over scattered blocks.
// Compiled on demand by native.py, with HEAD_DIM and BLOCK_SIZE. Arrays are contiguous unless strides are given, and
// float32 unless they say otherwise. "omp simd reduction" allows the compiler to sum in any order, which vector
// instructions need; everything else is computed as it is written.
#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstdint>
#include <cstring>

static inline float dot(const float* x, const float* y, int n) {
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int k = 0; k < n; k++) sum += x[k] * y[k];
    return sum;
}

// Levels of activations come with 128 added, for the instruction that multiplies bytes takes one side unsigned.
static inline int32_t dot(const uint8_t* x, const int8_t* y, int n) {
    int32_t sum = 0;
    for (int k = 0; k < n; k++) sum += (int32_t)x[k] * (int32_t)y[k];
    return sum;
}

// exp(x) for x <= 0, to 5e-6 of its value, and 0 below -87: 2^(n + r) with a whole n, which is an exponent, and
// |r| <= 1/2, a polynomial.
static inline float exp_negative(float x) {
    const float y = std::max(x, -87.0f) * 1.44269504f, n = std::nearbyint(y), r = (y - n) * 0.69314718f;
    float p = 1.0f / 720;
    p = p * r + 1.0f / 120, p = p * r + 1.0f / 24, p = p * r + 1.0f / 6, p = p * r + 0.5f, p = p * r + 1, p = p * r + 1;
    const int32_t bits = ((int32_t)n + 127) << 23;
    float power;
    std::memcpy(&power, &bits, 4);
    return x < -87 ? 0 : p * power;
}

// One key head's queries of one token over the token's sequence, block by block. q, out: [group, HEAD_DIM]. The softmax
// runs along (Milakov & Gimelshein 2018): when a block holds a larger score than all before, what was summed up shrinks.
// It begins with the lowest number and not with -infinity, which a score may be: their difference would be NaN.
static void attend(const float* q, const float* keys, const float* values, const int64_t* table, int length, int group,
                   int head, int kv_heads, float scale, float* out) {
    for (int g = 0; g < group; g++) {
        float sum[HEAD_DIM] = {}, total = 0, top = -FLT_MAX;
        for (int start = 0; start < length; start += BLOCK_SIZE) {
            const int64_t at = (table[start / BLOCK_SIZE] * kv_heads + head) * BLOCK_SIZE * HEAD_DIM;
            const float *k = keys + at, *v = values + at;
            const int n = std::min(length - start, BLOCK_SIZE);
            float scores[BLOCK_SIZE], weights[BLOCK_SIZE], highest = top;
            for (int j = 0; j < n; j++) scores[j] = dot(q + g * HEAD_DIM, k + j * HEAD_DIM, HEAD_DIM) * scale;
            for (int j = 0; j < n; j++) highest = std::max(highest, scores[j]);
            const float shrink = exp_negative(top - highest);
            for (int j = 0; j < BLOCK_SIZE; j++) weights[j] = j < n ? exp_negative(scores[j] - highest) : 0;
            total *= shrink, top = highest;
            for (int d = 0; d < HEAD_DIM; d++) sum[d] *= shrink;
            for (int j = 0; j < n; j++) {
                total += weights[j];
                for (int d = 0; d < HEAD_DIM; d++) sum[d] += weights[j] * v[j * HEAD_DIM + d];
            }
        }
        for (int d = 0; d < HEAD_DIM; d++) out[g * HEAD_DIM + d] = sum[d] / total;
    }
}

// Attention of n single tokens over a paged cache, nothing gathered. keys, values: [blocks, kv_heads, BLOCK_SIZE,
// HEAD_DIM]; tokens: [n], their rows in q and out; tables: [n, max_blocks]; lengths: [n], how many tokens each sees;
// q, out: [tokens, heads, HEAD_DIM] with the strides of a token and a head.
extern "C" void paged_attention(const float* q, int64_t q_token, int64_t q_head, const float* keys, const float* values,
                                const int64_t* tokens, const int64_t* tables, const int64_t* lengths, float* out,
                                int n, int heads, int kv_heads, int max_blocks, float scale, int threads) {
    const int group = heads / kv_heads;
#pragma omp parallel for schedule(dynamic) num_threads(threads) if (threads > 1)
    for (int task = 0; task < n * kv_heads; task++) {
        const int i = task / kv_heads, head = task % kv_heads;
        float queries[64 * HEAD_DIM];
        for (int g = 0; g < group; g++)
            std::memcpy(queries + g * HEAD_DIM, q + tokens[i] * q_token + (head * group + g) * q_head, 4 * HEAD_DIM);
        attend(queries, keys, values, tables + (int64_t)i * max_blocks, lengths[i], group, head, kv_heads, scale,
               out + (tokens[i] * heads + head * group) * HEAD_DIM);
    }
}

// Put the keys or values of n tokens, x [n, kv_heads, HEAD_DIM] with strides, into their slots of a pool.
extern "C" void store(const float* x, int64_t x_token, int64_t x_head, const int64_t* slots, float* pool, int n,
                      int kv_heads) {
    for (int i = 0; i < n; i++)
        for (int head = 0; head < kv_heads; head++) {
            const int64_t row = (slots[i] / BLOCK_SIZE * kv_heads + head) * BLOCK_SIZE + slots[i] % BLOCK_SIZE;
            std::memcpy(pool + row * HEAD_DIM, x + i * x_token + head * x_head, 4 * HEAD_DIM);
        }
}

// The product of a few rows with a weight [n_out, n_in]: the weight is read in order, and once; the rows stay in cache.
extern "C" void linear(const float* x, const float* w, float* out, int rows, int n_out, int n_in, int threads) {
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (int64_t c = 0; c < n_out; c++)
        for (int64_t r = 0; r < rows; r++) out[r * n_out + c] = dot(x + r * n_in, w + c * n_in, n_in);
}

// The same in whole numbers. step: [rows]; scale: [n_out]; w_sums: [n_out], the sum of each row of w, by which the 128
// is taken away again.
extern "C" void linear_int8(const uint8_t* x, const float* step, const int8_t* w, const float* scale,
                            const int32_t* w_sums, float* out, int rows, int n_out, int n_in, int threads) {
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (int64_t c = 0; c < n_out; c++)
        for (int64_t r = 0; r < rows; r++) {
            const int32_t product = dot(x + r * n_in, w + c * n_in, n_in) - 128 * w_sums[c];
            out[r * n_out + c] = (float)product * scale[c] * step[r];
        }
}

// Quantise each row of x [rows, n] by itself to levels from -127 to 127, plus `offset`; step: [rows]. The bits of |x|,
// as whole numbers, have the order of the values, and NaN, which a maximum of floats would pass over, is the largest.
// A row with NaN or infinity becomes zeros with a step like that: whatever they are multiplied by gives NaN.
extern "C" void quantize_rows(const float* x, uint8_t* levels, float* step, int rows, int n, int offset,
                              int threads) {
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (int r = 0; r < rows; r++) {
        const float* row = x + (int64_t)r * n;
        uint8_t* into = levels + (int64_t)r * n;
        int32_t bits = 0;
#pragma omp simd reduction(max : bits)
        for (int k = 0; k < n; k++) {
            int32_t own;
            std::memcpy(&own, row + k, 4);
            bits = std::max(bits, own & 0x7fffffff);
        }
        float top;
        std::memcpy(&top, &bits, 4);
        const float one = step[r] = std::max(top / 127, 1e-12f);
        if (!std::isfinite(one)) {
            std::memset(into, offset, n);
            continue;
        }
        for (int k = 0; k < n; k++) into[k] = (uint8_t)((int)std::nearbyint(row[k] / one) + offset);
    }
}

// out[r, c] = product[r, c] * scale[c] * step[r]
extern "C" void scale_back(const int32_t* product, const float* scale, const float* step, float* out, int rows, int n,
                           int threads) {
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < n; c++) out[(int64_t)r * n + c] = (float)product[(int64_t)r * n + c] * scale[c] * step[r];
}
