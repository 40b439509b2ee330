// Top-k selection of a token's experts.
#pragma once
#include "experts/weights.cuh"

// Lane i gets the i-th likeliest expert, of equals the first, and its probability; up to 32 · EACH
// experts, of which a lane examines EACH.
template <uint EACH>
__device__ __forceinline__ void top_k_of(
    const float *logits, uint experts, uint top, bool is_renormalised, uint &mine, float &probability) {
    const uint lane = threadIdx.x % LANES;
    float own[EACH];
    // A bit for each expert lane, lane + 32, … that has been selected or does not exist.
    uint taken = 0;
#pragma unroll
    for (uint j = 0; j < EACH; j++) {
        const uint e = j * LANES + lane;
        own[j] = e < experts ? logits[e] : -INFINITY;
        taken |= e < experts ? 0 : 1u << j;
    }
    float largest = 0.0f, sum = 0.0f, logit = 0.0f;
    mine = 0;
    for (uint s = 0; s < top; s++) {
        float best = -INFINITY;
        uint at = ~0u;
#pragma unroll
        for (uint j = 0; j < EACH; j++) {
            // NaN counts as largest: something must be selected, and the result shall be NaN.
            const float here = isnan(own[j]) ? INFINITY : own[j];
            if (!(taken >> j & 1) && (at == ~0u || here > best)) {
                best = here;
                at = j * LANES + lane;
            }
        }
#pragma unroll
        for (int step = 16; step > 0; step /= 2) {
            const float other = __shfl_xor_sync(ALL_LANES, best, step);
            const uint there = __shfl_xor_sync(ALL_LANES, at, step);
            // Lanes with none left contribute ~0 and -inf, and lose to all others.
            if (other > best || (other == best && there < at)) {
                best = other;
                at = there;
            }
        }
        if (at % LANES == lane) taken |= 1u << at / LANES;
        const float selected_logit = logits[at];
        if (s == 0) largest = selected_logit;
        if (lane == s) {
            mine = at;
            logit = selected_logit;
        }
        sum += expf(selected_logit - largest);
    }
    if (!is_renormalised) {
        sum = 0.0f;
#pragma unroll
        for (uint j = 0; j < EACH; j++) sum += j * LANES + lane < experts ? expf(own[j] - largest) : 0.0f;
        sum = warp_sum(sum);
    }
    probability = expf(logit - largest) / sum;
}

__device__ __forceinline__ void top_k(
    const float *logits, uint experts, uint top, bool is_renormalised, uint &mine, float &probability) {
    if (experts <= 4 * LANES) top_k_of<4>(logits, experts, top, is_renormalised, mine, probability);
    else top_k_of<MAX_EXPERTS / LANES>(logits, experts, top, is_renormalised, mine, probability);
}
