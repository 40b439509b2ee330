// GGUF's quantized blocks as in the file, sixteen weights at a time: a weight is scale · code +
// min. Codes have so few bits that a half holds them, and only `codes` differs between formats.

// A block format: units of 32 elements per block, and its bytes.
#define FORMAT(TAG, UNITS_, BYTES_) \
struct TAG { \
    enum { UNITS = UNITS_, BYTES = BYTES_ }; \
};
FORMAT(Q4_0, 1, 18)
FORMAT(Q4_1, 1, 20)
FORMAT(Q5_0, 1, 22)
FORMAT(Q5_1, 1, 24)
FORMAT(Q8_0, 1, 34)
FORMAT(Q2K, 8, 84)
FORMAT(Q3K, 8, 110)
FORMAT(Q4K, 8, 144)
FORMAT(Q5K, 8, 176)
FORMAT(Q6K, 8, 210)
FORMAT(IQ4NL, 1, 18)
FORMAT(IQ4XS, 8, 136)
FORMAT(MXFP4, 1, 17)
FORMAT(TQ2_0, 8, 66)
FORMAT(TQ1_0, 8, 54)
FORMAT(IQ1S, 8, 50)
FORMAT(IQ1M, 8, 56)
FORMAT(IQ2XXS, 8, 66)
FORMAT(IQ2XS, 8, 74)
FORMAT(IQ2S, 8, 82)
FORMAT(IQ3XXS, 8, 98)
FORMAT(IQ3S, 8, 110)

// The 16-bit field at `p`, which is aligned because blocks have an even size.
METAL_FUNC uint word_at(device const uchar *p) {
    return uint(*(device const ushort *)p);
}

METAL_FUNC float half_at(device const uchar *p) {
    return float(as_type<half>(*(device const ushort *)p));
}

// Four bytes at `p`, which is aligned to ALIGN.
template <uint ALIGN>
METAL_FUNC uint bytes_at(device const uchar *p) {
    if (ALIGN >= 4) {
        return *(device const uint *)p;
    }
    if (ALIGN == 2) {
        return word_at(p) | word_at(p + 2) << 16;
    }
    return uint(p[0]) | uint(p[1]) << 8 | uint(p[2]) << 16 | uint(p[3]) << 24;
}

// BITS bits of the codes of elements 16·part to 16·part + 15, a byte each. The bit plane begins at
// `p`: WIDTH consecutive elements are in consecutive bytes, and the next WIDTH in the next higher
// bits of the same bytes.
template <uint BITS, uint WIDTH, uint ALIGN>
METAL_FUNC uint4 plane(device const uchar *p, uint part) {
    uint run = part * 16 / WIDTH;
    uint shift = run % (8 / BITS) * BITS;
    uint mask = (1u << BITS) - 1u;
    mask |= mask << 8;
    mask |= mask << 16;
    p += run / (8 / BITS) * WIDTH + part * 16 % WIDTH;
    uint4 all;
    if (ALIGN == 16) {
        all = *(device const uint4 *)p;
    } else {
        all = uint4(bytes_at<ALIGN>(p), bytes_at<ALIGN>(p + 4), bytes_at<ALIGN>(p + 8), bytes_at<ALIGN>(p + 12));
    }
    return (all >> shift) & mask;
}

// Spreads sixteen bits to a byte each.
METAL_FUNC uint4 bits_apart(uint bits) {
    uint4 four = uint4(bits, bits >> 4, bits >> 8, bits >> 12) & 15;
    // Each bit of four is moved to a byte of its own: no two of the shifted copies have a bit in
    // the same place.
    return (four * 0x00204081) & 0x01010101;
}

METAL_FUNC void as_they_are(uint4 packed, thread half *q) {
    #pragma unroll
    for (uint i = 0; i < 16; i++) {
        q[i] = half((packed[i / 4] >> (i % 4 * 8)) & 255);
    }
}

METAL_FUNC void chosen(uint4 packed, constant char *steps, thread half *q) {
    #pragma unroll
    for (uint i = 0; i < 16; i++) {
        q[i] = half(steps[(packed[i / 4] >> (i % 4 * 8)) & 255]);
    }
}

// Scale and minimum of 32 elements, in 6 bits each, times the two f16 factors at the start of the
// block.
METAL_FUNC float2 six_bits(device const uchar *b, uint unit) {
    device const uchar *s = b + 4;
    // Those of the last four have their upper bits above the first four's.
    uint scale = unit < 4 ? uint(s[unit]) & 63 : (uint(s[unit + 4]) & 15) | (uint(s[unit - 4]) >> 6 << 4);
    uint least = unit < 4 ? uint(s[unit + 4]) & 63 : (uint(s[unit + 4]) >> 4) | (uint(s[unit]) >> 6 << 4);
    return float2(half_at(b) * float(scale), -(half_at(b + 2) * float(least)));
}

// Reads the codes of the lower or upper sixteen of the 32 elements `unit` of the block at `b`;
// returns scale and minimum. `grid`: the codebook, for the formats that have one.
#define CODES(TAG) \
METAL_FUNC float2 codes(TAG, device const uchar *b, constant ushort *grid, uint unit, uint upper, thread half *q)

CODES(Q4_0) {
    float d = half_at(b);
    as_they_are(plane<4, 16, 2>(b + 2, upper), q);
    return float2(d, -8.0f * d);
}

CODES(Q4_1) {
    as_they_are(plane<4, 16, 4>(b + 4, upper), q);
    return float2(half_at(b), half_at(b + 2));
}

CODES(Q5_0) {
    float d = half_at(b);
    as_they_are(plane<4, 16, 2>(b + 6, upper) | bits_apart(word_at(b + 2 + 2 * upper)) << 4, q);
    return float2(d, -16.0f * d);
}

CODES(Q5_1) {
    as_they_are(plane<4, 16, 4>(b + 8, upper) | bits_apart(word_at(b + 4 + 2 * upper)) << 4, q);
    return float2(half_at(b), half_at(b + 2));
}

CODES(Q8_0) {
    #pragma unroll
    for (uint i = 0; i < 8; i++) {
        uint two = word_at(b + 2 + 16 * upper + 2 * i);
        q[2 * i] = half(as_type<char>(uchar(two & 255)));
        q[2 * i + 1] = half(as_type<char>(uchar(two >> 8)));
    }
    return float2(half_at(b), 0.0f);
}

CODES(Q2K) {
    uint part = 2 * unit + upper;
    as_they_are(plane<2, 32, 4>(b + 16, part), q);
    return float2(half_at(b + 80) * float(uint(b[part]) & 15), -(half_at(b + 82) * float(uint(b[part]) >> 4)));
}

CODES(Q3K) {
    uint part = 2 * unit + upper;
    uint s = (uint(b[96 + part % 8]) >> (part / 8 * 4) & 15) | (uint(b[104 + part % 4]) >> (part / 4 * 2) & 3) << 4;
    float d = half_at(b + 108) * float(int(s) - 32);
    as_they_are(plane<2, 32, 2>(b + 32, part) | plane<1, 32, 2>(b, part) << 2, q);
    return float2(d, -4.0f * d);
}

CODES(Q4K) {
    as_they_are(plane<4, 32, 16>(b + 16, 2 * unit + upper), q);
    return six_bits(b, unit);
}

CODES(Q5K) {
    uint part = 2 * unit + upper;
    as_they_are(plane<4, 32, 16>(b + 48, part) | plane<1, 32, 16>(b + 16, part) << 4, q);
    return six_bits(b, unit);
}

CODES(Q6K) {
    uint part = 2 * unit + upper;
    float d = half_at(b + 208) * float(as_type<char>(b[192 + part]));
    as_they_are(plane<4, 64, 2>(b, part) | plane<2, 32, 2>(b + 128, part) << 4, q);
    return float2(d, -32.0f * d);
}

// The non-linear codebook of IQ4_NL and IQ4_XS, and the 4-bit floats of MXFP4, doubled.
constant char STEPS[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
constant char FLOATS_OF_4[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

CODES(IQ4NL) {
    chosen(plane<4, 16, 2>(b + 2, upper), STEPS, q);
    return float2(half_at(b), 0.0f);
}

CODES(IQ4XS) {
    uint s = (uint(b[4 + unit / 2]) >> (unit % 2 * 4) & 15) | (word_at(b + 2) >> (2 * unit) & 3) << 4;
    chosen(plane<4, 16, 4>(b + 8, 2 * unit + upper), STEPS, q);
    return float2(half_at(b) * float(int(s) - 32), 0.0f);
}

CODES(MXFP4) {
    // Half of 2^(e − 127), which is subnormal below 2^-126.
    uint e = uint(b[0]);
    chosen(plane<4, 16, 1>(b + 1, upper), FLOATS_OF_4, q);
    return float2(as_type<float>(e < 2 ? 0x00200000u << e : (e - 1) << 23), 0.0f);
}

CODES(TQ2_0) {
    float d = half_at(b + 64);
    as_they_are(plane<2, 32, 2>(b, 2 * unit + upper), q);
    return float2(d, -d);
}

// Each byte has five base-3 digits, the first as the most significant: digit i becomes the most
// significant after a multiplication by 3^i.
constant uint POWERS[5] = {1, 3, 9, 27, 81};

CODES(TQ1_0) {
    uint part = 2 * unit + upper;
    #pragma unroll
    for (uint i = 0; i < 16; i++) {
        // Bytes 0 to 31 have 32 elements per digit, the next sixteen bytes sixteen, the last four
        // bytes the last part.
        uint digit = part < 10 ? part / 2 : part < 15 ? part - 10 : i / 4;
        uint at = part < 10 ? part % 2 * 16 + i : part < 15 ? 32 + i : 48 + i % 4;
        q[i] = half(((uint(b[at]) * POWERS[digit]) & 255) * 3 >> 8);
    }
    float d = half_at(b + 52);
    return float2(d, -d);
}

// The values of the grids' codes.
constant char OF_IQ2[4] = {8, 25, 43, 0};
constant char OF_IQ3XXS[8] = {4, 12, 20, 28, 36, 44, 52, 62};
constant char OF_IQ3S[8] = {1, 3, 5, 7, 9, 11, 13, 15};

// Eight elements of 2 bits, or four of 4, from an entry of a grid.
template <uint BITS>
METAL_FUNC void group(ushort entry, uint signs, constant char *values, thread half *q) {
    #pragma unroll
    for (uint i = 0; i < 16 / BITS; i++) {
        half v = half(values[(uint(entry) >> (i * BITS)) & (BITS == 2 ? 3 : 7)]);
        q[i] = (signs >> i & 1) == 1 ? -v : v;
    }
}

// Seven sign bits, and an eighth that makes the parity even.
METAL_FUNC uint even_signs(uint seven) {
    seven &= 127;
    return seven | (popcount(seven) & 1) << 7;
}

CODES(IQ2XXS) {
    uint tail = bytes_at<2>(b + 6 + 8 * unit);
    #pragma unroll
    for (uint i = 0; i < 2; i++) {
        uint j = 2 * upper + i;
        group<2>(grid[b[2 + 8 * unit + j]], even_signs(tail >> (7 * j)), OF_IQ2, q + 8 * i);
    }
    return float2(half_at(b) * (0.5f + float(tail >> 28)) * 0.25f, 0.0f);
}

CODES(IQ2XS) {
    #pragma unroll
    for (uint i = 0; i < 2; i++) {
        uint code = word_at(b + 2 + 8 * unit + 4 * upper + 2 * i);
        group<2>(grid[code & 511], even_signs(code >> 9), OF_IQ2, q + 8 * i);
    }
    return float2(half_at(b) * (0.5f + float(uint(b[66 + unit]) >> (4 * upper) & 15)) * 0.25f, 0.0f);
}

CODES(IQ2S) {
    #pragma unroll
    for (uint i = 0; i < 2; i++) {
        uint j = 2 * upper + i;
        uint high = uint(b[66 + unit]) >> (2 * j) & 3;
        uint entry = uint(b[2 + 4 * unit + j]) | high << 8;
        group<2>(grid[entry], uint(b[34 + 4 * unit + j]), OF_IQ2, q + 8 * i);
    }
    return float2(half_at(b) * (0.5f + float(uint(b[74 + unit]) >> (4 * upper) & 15)) * 0.25f, 0.0f);
}

CODES(IQ3XXS) {
    uint tail = bytes_at<2>(b + 66 + 4 * unit);
    #pragma unroll
    for (uint i = 0; i < 4; i++) {
        uint j = 4 * upper + i;
        group<4>(grid[b[2 + 8 * unit + j]], even_signs(tail >> (j / 2 * 7)) >> (j % 2 * 4), OF_IQ3XXS, q + 4 * i);
    }
    return float2(half_at(b) * (0.5f + float(tail >> 28)) * 0.5f, 0.0f);
}

CODES(IQ3S) {
    #pragma unroll
    for (uint i = 0; i < 4; i++) {
        uint j = 4 * upper + i;
        uint entry = uint(b[2 + 8 * unit + j]) | (uint(b[66 + unit]) >> j & 1) << 8;
        group<4>(grid[entry], uint(b[74 + 4 * unit + j / 2]) >> (j % 2 * 4), OF_IQ3S, q + 4 * i);
    }
    return float2(half_at(b) * float(1 + 2 * (uint(b[106 + unit / 2]) >> (unit % 2 * 4) & 15)), 0.0f);
}

// Eight of -1, 0 and 1, with the offset of IQ1.
METAL_FUNC void ternary(ushort entry, bool down, thread half *q) {
    #pragma unroll
    for (uint i = 0; i < 8; i++) {
        q[i] = half((uint(entry) >> (2 * i)) & 3) - (down ? 1.125h : 0.875h);
    }
}

CODES(IQ1S) {
    uint word = word_at(b + 34 + 2 * unit);
    #pragma unroll
    for (uint i = 0; i < 2; i++) {
        uint j = 2 * upper + i;
        ternary(grid[uint(b[2 + 4 * unit + j]) | (word >> (3 * j) & 7) << 8], word >> 15 == 1, q + 8 * i);
    }
    return float2(half_at(b) * float(2 * (word >> 12 & 7) + 1), 0.0f);
}

CODES(IQ1M) {
    uint part = 2 * unit + upper;
    uint high = uint(b[32 + part]);
    #pragma unroll
    for (uint i = 0; i < 2; i++) {
        uint above = high >> (4 * i);
        ternary(grid[uint(b[2 * part + i]) | (above & 7) << 8], (above & 8) != 0, q + 8 * i);
    }
    // The f16 scale is in four parts, one above the 3-bit scales of each word.
    uint bits = 0;
    #pragma unroll
    for (uint i = 0; i < 4; i++) {
        bits |= word_at(b + 48 + 2 * i) >> 12 << (4 * i);
    }
    uint s = word_at(b + 48 + part / 4 * 2) >> (part % 4 * 3) & 7;
    return float2(float(as_type<half>(ushort(bits))) * float(2 * s + 1), 0.0f);
}

// X(name, tag) of every format.
#define EVERY_FORMAT(X) \
X("q4_0", Q4_0) \
X("q4_1", Q4_1) \
X("q5_0", Q5_0) \
X("q5_1", Q5_1) \
X("q8_0", Q8_0) \
X("q2_k", Q2K) \
X("q3_k", Q3K) \
X("q4_k", Q4K) \
X("q5_k", Q5K) \
X("q6_k", Q6K) \
X("iq4_nl", IQ4NL) \
X("iq4_xs", IQ4XS) \
X("mxfp4", MXFP4) \
X("tq2_0", TQ2_0) \
X("tq1_0", TQ1_0) \
X("iq1_s", IQ1S) \
X("iq1_m", IQ1M) \
X("iq2_xxs", IQ2XXS) \
X("iq2_xs", IQ2XS) \
X("iq2_s", IQ2S) \
X("iq3_xxs", IQ3XXS) \
X("iq3_s", IQ3S)
