// GGUF's quantized blocks as in the file, 32 weights at a time: a weight is scale · code + min, and
// codes are signed bytes, four per word, as integer dot products take them. Only `pair` differs
// between formats.
//
// Weights that share bytes in a block are unpacked together: a pair is two groups of sixteen
// consecutive weights, of which the second begins 16 · APART elements after the first.
#pragma once
#include "launch/cuda/prelude.cuh"

struct Pair {
    uint4 q[2];
    float scale[2], minimum[2];
};

// A block format: pairs per block, bytes per block, the distance between the two groups of a pair,
// whether the two groups of 32 consecutive weights have scales of their own, and whether there are
// minimums.
template <uint PAIRS_, uint BYTES_, uint APART_, bool SCALE_PER_16_, bool HAS_MIN_> struct Format {
    static constexpr uint PAIRS = PAIRS_, BYTES = BYTES_, APART = APART_;
    static constexpr bool SCALE_PER_16 = SCALE_PER_16_, HAS_MIN = HAS_MIN_;
    // The first group of sixteen of a pair, counted from the start of the block; the same for pairs
    // of the whole row.
    static __device__ __forceinline__ uint first(uint pair) { return pair / APART * (2 * APART) + pair % APART; }
};

// ---- bytes

__device__ __forceinline__ uint byte_at(const uint8_t *p) { return __ldg(p); }
// The 16-bit field at `p`, which is aligned because blocks have an even size.
__device__ __forceinline__ uint word_at(const uint8_t *p) { return __ldg(reinterpret_cast<const unsigned short *>(p)); }
__device__ __forceinline__ float half_of(uint bits) { return __half2float(__ushort_as_half((unsigned short)bits)); }
__device__ __forceinline__ float half_at(const uint8_t *p) { return half_of(word_at(p)); }
__device__ __forceinline__ uint four_at(const uint8_t *p) { return __ldg(reinterpret_cast<const uint *>(p)); }
__device__ __forceinline__ uint two_words_at(const uint8_t *p) { return word_at(p) | word_at(p + 2) << 16; }

// Sixteen bytes at `p`, which is aligned to ALIGN. If that is less than four, whole words are read
// from up to three bytes before: a tensor is aligned to 16, so those bytes belong to it. The rest
// at the end is read in smaller pieces.
template <uint ALIGN> __device__ __forceinline__ uint4 sixteen(const uint8_t *p) {
    if constexpr (ALIGN >= 16) {
        return __ldg(reinterpret_cast<const uint4 *>(p));
    } else if constexpr (ALIGN == 8) {
        const uint2 a = __ldg(reinterpret_cast<const uint2 *>(p)), b = __ldg(reinterpret_cast<const uint2 *>(p + 8));
        return make_uint4(a.x, a.y, b.x, b.y);
    } else if constexpr (ALIGN == 4) {
        return make_uint4(four_at(p), four_at(p + 4), four_at(p + 8), four_at(p + 12));
    } else {
        const uint off = uint(reinterpret_cast<uintptr_t>(p)) % 4, shift = 8 * off;
        const uint8_t *a = p - off;
        const uint w0 = four_at(a), w1 = four_at(a + 4), w2 = four_at(a + 8), w3 = four_at(a + 12);
        uint tail; // the `off` bytes after them
        if constexpr (ALIGN == 2) tail = word_at(p + 14);
        else tail = (byte_at(p + 13) | byte_at(p + 14) << 8 | byte_at(p + 15) << 16) >> (24 - shift);
        return make_uint4(__funnelshift_r(w0, w1, shift), __funnelshift_r(w1, w2, shift), __funnelshift_r(w2, w3, shift),
            __funnelshift_r(w3, tail, shift));
    }
}

// ---- four codes in a word

__device__ __forceinline__ uint4 operator>>(uint4 v, uint s) { return make_uint4(v.x >> s, v.y >> s, v.z >> s, v.w >> s); }
__device__ __forceinline__ uint4 operator<<(uint4 v, uint s) { return make_uint4(v.x << s, v.y << s, v.z << s, v.w << s); }
__device__ __forceinline__ uint4 operator&(uint4 v, uint m) { return make_uint4(v.x & m, v.y & m, v.z & m, v.w & m); }
__device__ __forceinline__ uint4 operator|(uint4 a, uint4 b) { return make_uint4(a.x | b.x, a.y | b.y, a.z | b.z, a.w | b.w); }

constexpr uint ONES = 0x01010101u, TWOS = 0x03030303u, NIBBLES = 0x0f0f0f0fu;

// Subtracts N from codes below 128: the upper bit keeps each from borrowing from the next.
template <uint N> __device__ __forceinline__ uint less(uint v) { return ((v | 0x80808080u) - N * ONES) ^ 0x80808080u; }
template <uint N> __device__ __forceinline__ uint4 less(uint4 v) {
    return make_uint4(less<N>(v.x), less<N>(v.y), less<N>(v.z), less<N>(v.w));
}

// Spreads four bits to a byte each: no two of the shifted copies have a bit in the same place.
__device__ __forceinline__ uint apart(uint bits) { return ((bits & 15) * 0x00204081u) & ONES; }
__device__ __forceinline__ uint4 sixteen_apart(uint bits) {
    return make_uint4(apart(bits), apart(bits >> 4), apart(bits >> 8), apart(bits >> 12));
}

__device__ __forceinline__ uint byte_of(uint word, uint i) { return word >> (8 * i) & 255; }

// ---- formats with linear codes

struct Q4_0 : Format<1, 18, 1, false, false> {
    static __device__ __forceinline__ Pair pair(const uint8_t *b, const uint16_t *, uint) {
        const uint4 v = sixteen<2>(b + 2);
        const float d = half_at(b);
        return {{less<8>(v & NIBBLES), less<8>(v >> 4 & NIBBLES)}, {d, d}, {}};
    }
};

struct Q4_1 : Format<1, 20, 1, false, true> {
    static __device__ __forceinline__ Pair pair(const uint8_t *b, const uint16_t *, uint) {
        const uint4 v = sixteen<4>(b + 4);
        const uint head = four_at(b);
        const float d = half_of(head & 0xffff), m = half_of(head >> 16);
        return {{v & NIBBLES, v >> 4 & NIBBLES}, {d, d}, {m, m}};
    }
};

struct Q5_0 : Format<1, 22, 1, false, false> {
    static __device__ __forceinline__ Pair pair(const uint8_t *b, const uint16_t *, uint) {
        const uint4 v = sixteen<2>(b + 6);
        const uint low = word_at(b + 2), high = word_at(b + 4);
        const float d = half_at(b);
        return {{less<16>((v & NIBBLES) | sixteen_apart(low) << 4), less<16>((v >> 4 & NIBBLES) | sixteen_apart(high) << 4)},
            {d, d}, {}};
    }
};

struct Q5_1 : Format<1, 24, 1, false, true> {
    static __device__ __forceinline__ Pair pair(const uint8_t *b, const uint16_t *, uint) {
        const uint4 v = sixteen<8>(b + 8);
        const uint head = four_at(b), bits = four_at(b + 4);
        const float d = half_of(head & 0xffff), m = half_of(head >> 16);
        return {{(v & NIBBLES) | sixteen_apart(bits) << 4, (v >> 4 & NIBBLES) | sixteen_apart(bits >> 16) << 4}, {d, d}, {m, m}};
    }
};

struct Q8_0 : Format<1, 34, 1, false, false> {
    static __device__ __forceinline__ Pair pair(const uint8_t *b, const uint16_t *, uint) {
        // As in `sixteen`, with the scale in between.
        const uint8_t *p = b + 2;
        const uint off = uint(reinterpret_cast<uintptr_t>(p)) % 4;
        uint w[9], q[8];
#pragma unroll
        for (int i = 0; i < 8; i++) w[i] = four_at(p - off + 4 * i);
        w[8] = word_at(p + 30);
#pragma unroll
        for (int i = 0; i < 8; i++) q[i] = __funnelshift_r(w[i], w[i + 1], 8 * off);
        const float d = half_at(b);
        return {{make_uint4(q[0], q[1], q[2], q[3]), make_uint4(q[4], q[5], q[6], q[7])}, {d, d}, {}};
    }
};

struct Q2K : Format<8, 84, 2, true, true> {
    static __device__ __forceinline__ Pair pair(const uint8_t *b, const uint16_t *, uint p) {
        const uint4 v = sixteen<4>(b + 16 + 32 * (p / 4) + 16 * (p % 2)) >> (p / 2 % 2 * 4);
        const uint s0 = byte_at(b + first(p)), s1 = byte_at(b + first(p) + 2), head = four_at(b + 80);
        const float d = half_of(head & 0xffff), m = -half_of(head >> 16);
        return {{v & TWOS, v >> 2 & TWOS}, {d * float(s0 & 15), d * float(s1 & 15)}, {m * float(s0 >> 4), m * float(s1 >> 4)}};
    }
};

struct Q3K : Format<8, 110, 2, true, false> {
    static __device__ __forceinline__ float scale(const uint8_t *b, uint part) {
        const uint s = (byte_at(b + 96 + part % 8) >> (part / 8 * 4) & 15) | (byte_at(b + 104 + part % 4) >> (part / 4 * 2) & 3) << 4;
        return float(int(s) - 32);
    }
    static __device__ __forceinline__ Pair pair(const uint8_t *b, const uint16_t *, uint p) {
        const uint4 v = sixteen<2>(b + 32 + 32 * (p / 4) + 16 * (p % 2)) >> (p / 2 % 2 * 4);
        const uint4 h = sixteen<2>(b + 16 * (p % 2)) >> (p / 2 * 2);
        const float d = half_at(b + 108);
        return {{less<4>((v & TWOS) | (h & ONES) << 2), less<4>((v >> 2 & TWOS) | (h >> 1 & ONES) << 2)},
            {d * scale(b, first(p)), d * scale(b, first(p) + 2)}, {}};
    }
};

// Scales and minimums of a pair, in 6 bits each, after the two f16 factors that they are multiplied
// by. Those of the last four units have their upper bits above the first four's.
__device__ __forceinline__ void six_bits(uint4 head, uint p, Pair &pair) {
    constexpr uint SIX = 0x3f3f3f3fu, TOP = 0x30303030u;
    const bool last = p >= 4;
    const uint scales = last ? (head.w & NIBBLES) | (head.y >> 2 & TOP) : head.y & SIX;
    const uint minimums = last ? (head.w >> 4 & NIBBLES) | (head.z >> 2 & TOP) : head.z & SIX;
    const float d = half_of(head.x & 0xffff), m = -half_of(head.x >> 16);
    const uint unit = p / 2 % 2 * 2;
#pragma unroll
    for (uint i = 0; i < 2; i++) {
        pair.scale[i] = d * float(byte_of(scales, unit + i));
        pair.minimum[i] = m * float(byte_of(minimums, unit + i));
    }
}

struct Q4K : Format<8, 144, 2, false, true> {
    static __device__ __forceinline__ Pair pair(const uint8_t *b, const uint16_t *, uint p) {
        const uint4 v = sixteen<16>(b + 16 + 16 * p), head = sixteen<16>(b);
        Pair pair = {{v & NIBBLES, v >> 4 & NIBBLES}, {}, {}};
        six_bits(head, p, pair);
        return pair;
    }
};

struct Q5K : Format<8, 176, 2, false, true> {
    static __device__ __forceinline__ Pair pair(const uint8_t *b, const uint16_t *, uint p) {
        const uint4 v = sixteen<16>(b + 48 + 16 * p), head = sixteen<16>(b);
        const uint4 h = sixteen<16>(b + 16 + 16 * (p % 2)) >> (p / 2 * 2);
        Pair pair = {{(v & NIBBLES) | (h & ONES) << 4, (v >> 4 & NIBBLES) | (h >> 1 & ONES) << 4}, {}, {}};
        six_bits(head, p, pair);
        return pair;
    }
};

struct Q6K : Format<8, 210, 4, true, false> {
    static __device__ __forceinline__ Pair pair(const uint8_t *b, const uint16_t *, uint p) {
        const uint4 v = sixteen<2>(b + 16 * p);
        const uint4 h = sixteen<2>(b + 128 + 32 * (p / 4) + 16 * (p % 2)) >> (p / 2 % 2 * 2);
        const int s0 = int8_t(byte_at(b + 192 + first(p))), s1 = int8_t(byte_at(b + 192 + first(p) + 4));
        const float d = half_at(b + 208);
        return {{less<32>((v & NIBBLES) | (h & TWOS) << 4), less<32>((v >> 4 & NIBBLES) | (h >> 4 & TWOS) << 4)},
            {d * float(s0), d * float(s1)}, {}};
    }
};

struct TQ2_0 : Format<8, 66, 2, false, false> {
    static __device__ __forceinline__ Pair pair(const uint8_t *b, const uint16_t *, uint p) {
        const uint4 v = sixteen<2>(b + 32 * (p / 4) + 16 * (p % 2)) >> (p / 2 % 2 * 4);
        const float d = half_at(b + 64);
        return {{less<1>(v & TWOS), less<1>(v >> 2 & TWOS)}, {d, d}, {}};
    }
};

// Each byte has five base-3 digits, the first as the most significant: digit i becomes the most
// significant after a multiplication by 3^i.
struct TQ1_0 : Format<8, 54, 1, false, false> {
    static __device__ __forceinline__ uint4 part_of(const uint8_t *b, uint part) {
        uint q[4];
#pragma unroll
        for (uint i = 0; i < 4; i++) {
            // Bytes 0 to 31 have 32 elements per digit, the next sixteen bytes sixteen, the last
            // four bytes the last part.
            const uint digit = part < 10 ? part / 2 : part < 15 ? part - 10 : i;
            const uint power = digit < 2 ? (digit == 0 ? 1 : 3) : digit == 2 ? 9 : digit == 3 ? 27 : 81;
            const uint8_t *at = b + (part < 10 ? part % 2 * 16 + 4 * i : part < 15 ? 32 + 4 * i : 48);
            const uint v = two_words_at(at);
            q[i] = 0;
#pragma unroll
            for (uint j = 0; j < 4; j++) q[i] |= (((byte_of(v, j) * power) & 255) * 3 >> 8) << (8 * j);
        }
        return less<1>(make_uint4(q[0], q[1], q[2], q[3]));
    }
    static __device__ __forceinline__ Pair pair(const uint8_t *b, const uint16_t *, uint p) {
        const float d = half_at(b + 52);
        return {{part_of(b, 2 * p), part_of(b, 2 * p + 1)}, {d, d}, {}};
    }
};

// ---- formats with a codebook

// A table of eight bytes.
struct Eight {
    uint low, high;
};
constexpr __host__ __device__ uint bytes_of(int a, int b, int c, int d) {
    return uint(uint8_t(a)) | uint(uint8_t(b)) << 8 | uint(uint8_t(c)) << 16 | uint(uint8_t(d)) << 24;
}

// Looks up the lower four nibbles in a table of sixteen.
__device__ __forceinline__ uint four_chosen(uint nibbles, Eight low, Eight high) {
    const uint at = nibbles & 0x7777u;
    const uint a = __byte_perm(low.low, low.high, at), b = __byte_perm(high.low, high.high, at);
    return __byte_perm(a, b, 0x3210u | (nibbles & 0x8888u) >> 1);
}
// Looks up the nibbles of sixteen bytes: the lower nibbles are the first sixteen.
__device__ __forceinline__ void chosen(uint4 v, Eight low, Eight high, uint4 *q) {
    const uint in[4] = {v.x, v.y, v.z, v.w};
    uint first[4], second[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const uint a = four_chosen(in[i], low, high), b = four_chosen(in[i] >> 16, low, high);
        first[i] = __byte_perm(a, b, 0x6420);
        second[i] = __byte_perm(a, b, 0x7531);
    }
    q[0] = make_uint4(first[0], first[1], first[2], first[3]);
    q[1] = make_uint4(second[0], second[1], second[2], second[3]);
}

// The non-linear codebook of IQ4_NL and IQ4_XS, and the 4-bit floats of MXFP4, doubled.
__device__ __forceinline__ void steps(uint4 v, uint4 *q) {
    chosen(v, {bytes_of(-127, -104, -83, -65), bytes_of(-49, -35, -22, -10)}, {bytes_of(1, 13, 25, 38), bytes_of(53, 69, 89, 113)}, q);
}
__device__ __forceinline__ void floats_of_4(uint4 v, uint4 *q) {
    chosen(v, {bytes_of(0, 1, 2, 3), bytes_of(4, 6, 8, 12)}, {bytes_of(0, -1, -2, -3), bytes_of(-4, -6, -8, -12)}, q);
}

struct IQ4NL : Format<1, 18, 1, false, false> {
    static __device__ __forceinline__ Pair pair(const uint8_t *b, const uint16_t *, uint) {
        const float d = half_at(b);
        Pair pair = {{}, {d, d}, {}};
        steps(sixteen<2>(b + 2), pair.q);
        return pair;
    }
};

struct IQ4XS : Format<8, 136, 1, false, false> {
    static __device__ __forceinline__ Pair pair(const uint8_t *b, const uint16_t *, uint p) {
        const uint head = four_at(b);
        const uint s = (byte_at(b + 4 + p / 2) >> (p % 2 * 4) & 15) | (head >> (16 + 2 * p) & 3) << 4;
        const float d = half_of(head & 0xffff) * float(int(s) - 32);
        Pair pair = {{}, {d, d}, {}};
        steps(sixteen<8>(b + 8 + 16 * p), pair.q);
        return pair;
    }
};

struct MXFP4 : Format<1, 17, 1, false, false> {
    static __device__ __forceinline__ Pair pair(const uint8_t *b, const uint16_t *, uint) {
        // Half of 2^(e − 127), which is subnormal below 2^-126.
        const uint e = byte_at(b);
        const float d = __uint_as_float(e < 2 ? 0x00200000u << e : (e - 1) << 23);
        Pair pair = {{}, {d, d}, {}};
        floats_of_4(sixteen<1>(b + 1), pair.q);
        return pair;
    }
};

// ---- formats with groups from a grid: `grid` has their codes, 16 bits per group

__device__ __forceinline__ uint group_at(const uint16_t *grid, uint i) { return __ldg(grid + i); }

// Negates those of four positive numbers whose bit is set.
__device__ __forceinline__ uint with_signs(uint v, uint bits) {
    const uint ones = apart(bits);
    return (v ^ ones * 255u) + ones;
}
// Looks up four fields of 2 bits.
__device__ __forceinline__ uint four_of_2(uint fields, uint table) {
    uint at = fields & 255;
    at = (at | at << 4) & 0x0f0fu;
    at = (at | at << 2) & 0x3333u;
    return __byte_perm(table, 0, at);
}
// Eight elements of 2 bits, with signs.
__device__ __forceinline__ uint2 eight_of_iq2(uint entry, uint signs) {
    constexpr uint TABLE = bytes_of(8, 25, 43, 0);
    return make_uint2(with_signs(four_of_2(entry, TABLE), signs), with_signs(four_of_2(entry >> 8, TABLE), signs >> 4));
}
// Four elements of 4 bits, of which three are used.
__device__ __forceinline__ uint four_of_iq3(uint entry, uint signs, Eight table) {
    return with_signs(__byte_perm(table.low, table.high, entry & 0x7777u), signs);
}
// Seven sign bits, and an eighth that makes the parity even.
__device__ __forceinline__ uint even_signs(uint seven) {
    seven &= 127;
    return seven | (__popc(seven) & 1) << 7;
}
__device__ __forceinline__ uint4 joined(uint2 a, uint2 b) { return make_uint4(a.x, a.y, b.x, b.y); }

struct IQ2XXS : Format<8, 66, 1, false, false> {
    static __device__ __forceinline__ Pair pair(const uint8_t *b, const uint16_t *grid, uint p) {
        const uint at = two_words_at(b + 2 + 8 * p), tail = two_words_at(b + 6 + 8 * p);
        uint2 q[4];
#pragma unroll
        for (uint j = 0; j < 4; j++) q[j] = eight_of_iq2(group_at(grid, byte_of(at, j)), even_signs(tail >> (7 * j)));
        const float d = half_at(b) * (0.5f + float(tail >> 28)) * 0.25f;
        return {{joined(q[0], q[1]), joined(q[2], q[3])}, {d, d}, {}};
    }
};

struct IQ2XS : Format<8, 74, 1, true, false> {
    static __device__ __forceinline__ Pair pair(const uint8_t *b, const uint16_t *grid, uint p) {
        uint2 q[4];
#pragma unroll
        for (uint j = 0; j < 4; j++) {
            const uint code = word_at(b + 2 + 8 * p + 2 * j);
            q[j] = eight_of_iq2(group_at(grid, code & 511), even_signs(code >> 9));
        }
        const uint s = byte_at(b + 66 + p);
        const float d = half_at(b) * 0.25f;
        return {{joined(q[0], q[1]), joined(q[2], q[3])}, {d * (0.5f + float(s & 15)), d * (0.5f + float(s >> 4))}, {}};
    }
};

struct IQ2S : Format<8, 82, 1, true, false> {
    static __device__ __forceinline__ Pair pair(const uint8_t *b, const uint16_t *grid, uint p) {
        const uint at = two_words_at(b + 2 + 4 * p), signs = two_words_at(b + 34 + 4 * p), high = byte_at(b + 66 + p);
        uint2 q[4];
#pragma unroll
        for (uint j = 0; j < 4; j++) {
            q[j] = eight_of_iq2(group_at(grid, byte_of(at, j) | (high >> (2 * j) & 3) << 8), byte_of(signs, j));
        }
        const uint s = byte_at(b + 74 + p);
        const float d = half_at(b) * 0.25f;
        return {{joined(q[0], q[1]), joined(q[2], q[3])}, {d * (0.5f + float(s & 15)), d * (0.5f + float(s >> 4))}, {}};
    }
};

struct IQ3XXS : Format<8, 98, 1, false, false> {
    static __device__ __forceinline__ Pair pair(const uint8_t *b, const uint16_t *grid, uint p) {
        constexpr Eight TABLE = {bytes_of(4, 12, 20, 28), bytes_of(36, 44, 52, 62)};
        const uint at[2] = {two_words_at(b + 2 + 8 * p), two_words_at(b + 6 + 8 * p)}, tail = two_words_at(b + 66 + 4 * p);
        uint q[8];
#pragma unroll
        for (uint j = 0; j < 8; j++) {
            q[j] = four_of_iq3(group_at(grid, byte_of(at[j / 4], j % 4)), even_signs(tail >> (j / 2 * 7)) >> (j % 2 * 4), TABLE);
        }
        const float d = half_at(b) * (0.5f + float(tail >> 28)) * 0.5f;
        return {{make_uint4(q[0], q[1], q[2], q[3]), make_uint4(q[4], q[5], q[6], q[7])}, {d, d}, {}};
    }
};

struct IQ3S : Format<8, 110, 1, false, false> {
    static __device__ __forceinline__ Pair pair(const uint8_t *b, const uint16_t *grid, uint p) {
        constexpr Eight TABLE = {bytes_of(1, 3, 5, 7), bytes_of(9, 11, 13, 15)};
        const uint at[2] = {two_words_at(b + 2 + 8 * p), two_words_at(b + 6 + 8 * p)};
        const uint high = byte_at(b + 66 + p), signs = two_words_at(b + 74 + 4 * p);
        uint q[8];
#pragma unroll
        for (uint j = 0; j < 8; j++) {
            const uint entry = byte_of(at[j / 4], j % 4) | (high >> j & 1) << 8;
            q[j] = four_of_iq3(group_at(grid, entry), signs >> (4 * j), TABLE);
        }
        const float d = half_at(b) * float(1 + 2 * (byte_at(b + 106 + p / 2) >> (p % 2 * 4) & 15));
        return {{make_uint4(q[0], q[1], q[2], q[3]), make_uint4(q[4], q[5], q[6], q[7])}, {d, d}, {}};
    }
};

// Eight of -1, 0 and 1, offset by an eighth: in units of an eighth, so that they are integers.
__device__ __forceinline__ uint2 ternary(uint entry, bool down) {
    const uint table = down ? bytes_of(-9, -1, 7, 0) : bytes_of(-7, 1, 9, 0);
    return make_uint2(four_of_2(entry, table), four_of_2(entry >> 8, table));
}

struct IQ1S : Format<8, 50, 1, false, false> {
    static __device__ __forceinline__ Pair pair(const uint8_t *b, const uint16_t *grid, uint p) {
        const uint at = two_words_at(b + 2 + 4 * p), word = word_at(b + 34 + 2 * p);
        uint2 q[4];
#pragma unroll
        for (uint j = 0; j < 4; j++) {
            q[j] = ternary(group_at(grid, byte_of(at, j) | (word >> (3 * j) & 7) << 8), word >> 15 == 1);
        }
        const float d = half_at(b) * float(2 * (word >> 12 & 7) + 1) * 0.125f;
        return {{joined(q[0], q[1]), joined(q[2], q[3])}, {d, d}, {}};
    }
};

struct IQ1M : Format<8, 56, 1, true, false> {
    static __device__ __forceinline__ Pair pair(const uint8_t *b, const uint16_t *grid, uint p) {
        const uint at = four_at(b + 4 * p), high = word_at(b + 32 + 2 * p);
        uint2 q[4];
#pragma unroll
        for (uint j = 0; j < 4; j++) {
            const uint above = high >> (4 * j);
            q[j] = ternary(group_at(grid, byte_of(at, j) | (above & 7) << 8), (above & 8) != 0);
        }
        // The f16 scale is in four parts, one above the 3-bit scales of each word.
        const uint a = four_at(b + 48), c = four_at(b + 52);
        const uint bits = (a >> 12 & 15) | (a >> 28) << 4 | (c >> 12 & 15) << 8 | (c >> 28) << 12;
        const uint s = word_at(b + 48 + p / 2 * 2) >> (p % 2 * 6);
        const float d = half_of(bits) * 0.125f;
        return {{joined(q[0], q[1]), joined(q[2], q[3])}, {d * float(2 * (s & 7) + 1), d * float(2 * (s >> 3 & 7) + 1)}, {}};
    }
};

// X(name, tag) of every format, in two lists: each is a translation unit, because compiling them
// takes long. The second has the I-quants, the ternary formats and MXFP4.
#define LEGACY_AND_K_QUANTS(X) \
    X(q4_0, Q4_0) X(q4_1, Q4_1) X(q5_0, Q5_0) X(q5_1, Q5_1) X(q8_0, Q8_0) X(q2_k, Q2K) X(q3_k, Q3K) X(q4_k, Q4K) X(q5_k, Q5K) \
    X(q6_k, Q6K)
#define I_QUANTS_AND_OTHERS(X) \
    X(iq4_nl, IQ4NL) X(iq4_xs, IQ4XS) X(mxfp4, MXFP4) X(tq2_0, TQ2_0) X(tq1_0, TQ1_0) X(iq1_s, IQ1S) X(iq1_m, IQ1M) \
    X(iq2_xxs, IQ2XXS) X(iq2_xs, IQ2XS) X(iq2_s, IQ2S) X(iq3_xxs, IQ3XXS) X(iq3_s, IQ3S)
