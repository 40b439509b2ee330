// Sampling of the next token from each row of logits: greedy, or random after temperature, top_k,
// top_p and min_p.
//
// A threadgroup per row. Tokens are ordered by one number each, their rank key, which has
// no ties. A row is never sorted: a window holds its best tokens, in order, and the next window
// those after them, if they are needed. Sums are trees of a fixed order.

struct Shape {
    uint n;
    // Elements from one row to the next.
    uint stride;
};

struct SamplingParams {
    float temperature;
    uint top_k;
    float top_p;
    float min_p;
    float u;
};

// Key of a logit that is not finite; no token has it.
constant ulong NON_FINITE = 0xffffffffffffffff;

// Rank key: rises with the logit, and of equal logits is largest for the lowest id; never 0.
METAL_FUNC ulong rank_key_of(float logit, uint id) {
    uint bits = as_type<uint>(logit);
    if ((bits & 0x7fffffffu) >= 0x7f800000u) {
        return NON_FINITE;
    }
    // Turns -0 into 0. Then the bits of positive floats rise with them, those of others fall.
    bits = (bits << 1) == 0u ? 0u : bits;
    uint rising = (bits >> 31) == 0u ? bits | 0x80000000u : ~bits;
    return (ulong(rising) << 32) | ulong(~id);
}

METAL_FUNC float logit_at(ulong key) {
    uint rising = uint(key >> 32);
    return as_type<float>((rising >> 31) == 1u ? rising & 0x7fffffffu : ~rising);
}

METAL_FUNC uint id_at(ulong key) {
    return ~uint(key);
}

// Weight of a token relative to the best, which has 1; 0 below f32's normal numbers.
METAL_FUNC float weight_of(float logit, float best, float temperature) {
    float x = (logit - best) / temperature;
    return x > -87.3f ? precise::exp(x) : 0.0f;
}

// Index of a thread.
struct Self {
    uint tid;
    uint threads;
    uint lane;
    uint simd;
    uint simds;
};

// Threadgroup memory.
struct Scratch {
    // The window: twice as many as threads.
    threadgroup ulong *found;
    // Each thread's largest key.
    threadgroup ulong *thread_max;
    // One per SIMD-group.
    threadgroup ulong *keys;
    threadgroup float *sums;
    threadgroup uint *ends;
    threadgroup atomic_uint *count;
    threadgroup float *sum;
};

// Reductions. A barrier separates two calls of the same one, so that the memory of the first has
// been read.
METAL_FUNC ulong group_max_key(ulong v, Scratch scratch, Self self) {
    uint high = simd_max(uint(v >> 32));
    uint low = simd_max(uint(v >> 32) == high ? uint(v) : 0u);
    if (self.lane == 0) {
        scratch.keys[self.simd] = (ulong(high) << 32) | ulong(low);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    ulong most = 0;
    for (uint i = 0; i < self.simds; i++) {
        most = max(most, scratch.keys[i]);
    }
    return most;
}

METAL_FUNC uint group_min(uint v, Scratch scratch, Self self) {
    v = simd_min(v);
    if (self.lane == 0) {
        scratch.ends[self.simd] = v;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    uint first = scratch.ends[0];
    for (uint i = 1; i < self.simds; i++) {
        first = min(first, scratch.ends[i]);
    }
    return first;
}

// The sum over the threads before this one.
METAL_FUNC float group_exclusive_sum(float v, Scratch scratch, Self self) {
    float before = simd_prefix_exclusive_sum(v);
    if (self.lane == LANES - 1) {
        scratch.sums[self.simd] = before + v;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    float sum = 0.0f;
    for (uint i = 0; i < self.simd; i++) {
        sum += scratch.sums[i];
    }
    return sum + before;
}

// Sorts a power of two of numbers, the largest first. Synchronizes before and after.
METAL_FUNC void sort_descending(threadgroup ulong *v, uint count, Self self) {
    for (uint size = 2; size <= count; size *= 2) {
        for (uint apart = size / 2; apart > 0; apart /= 2) {
            threadgroup_barrier(mem_flags::mem_threadgroup);
            for (uint i = self.tid; i < count / 2; i += self.threads) {
                uint at = 2 * i - (i & (apart - 1));
                ulong a = v[at];
                ulong b = v[at + apart];
                if ((a < b) == ((at & size) == 0)) {
                    v[at] = b;
                    v[at + apart] = a;
                }
            }
        }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
}

// The largest key up to `upto` among this thread's tokens; 0 if there is none.
template <typename T>
METAL_FUNC ulong max_key_upto(device const T *x, uint n, ulong upto, Self self) {
    ulong most = 0;
    for (uint i = 4 * self.tid; i < n; i += 4 * self.threads) {
        float4 v = four_at<T>(x, i, n, 0.0f);
        for (uint j = 0; j < 4; j++) {
            ulong key = rank_key_of(v[j], i + j);
            most = i + j < n && key <= upto ? max(most, key) : most;
        }
    }
    return most;
}

// Fills `found` with the best keys up to `upto`, in order, and returns their number. `own` is the
// thread's largest.
//
// At least r keys reach the r-th largest of the threads' maxima, and few others do: those are
// collected. If there are too many, because few threads have most of the best, a smaller r is
// tried; r = 1 gives one.
template <typename T>
METAL_FUNC uint window(device const T *x, uint n, ulong upto, ulong own, Scratch scratch, Self self) {
    scratch.thread_max[self.tid] = own;
    sort_descending(scratch.thread_max, self.threads, self);
    uint rank = self.threads / 2 - 1;
    uint count = 0;
    while (true) {
        ulong floor = max(scratch.thread_max[rank], ulong(1));
        threadgroup_barrier(mem_flags::mem_threadgroup); // the last window and count have been read
        if (self.tid == 0) {
            atomic_store_explicit(scratch.count, 0u, memory_order_relaxed);
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        for (uint i = 4 * self.tid; i < n; i += 4 * self.threads) {
            float4 v = four_at<T>(x, i, n, 0.0f);
            for (uint j = 0; j < 4; j++) {
                ulong key = rank_key_of(v[j], i + j);
                if (i + j < n && key >= floor && key <= upto) {
                    uint at = atomic_fetch_add_explicit(scratch.count, 1u, memory_order_relaxed);
                    if (at < 2 * self.threads) {
                        scratch.found[at] = key;
                    }
                }
            }
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        count = atomic_load_explicit(scratch.count, memory_order_relaxed);
        if (count <= 2 * self.threads) {
            break;
        }
        rank /= 8;
    }
    uint size = 2;
    while (size < count) {
        size *= 2;
    }
    for (uint i = count + self.tid; i < size; i += self.threads) {
        scratch.found[i] = 0;
    }
    sort_descending(scratch.found, size, self);
    return count;
}

// Which tokens a walk takes, best first. It always takes the best.
struct Limits {
    // At most this many tokens (top_k),
    uint max_tokens;
    // while the cumulative weight before a token is below this (top_p),
    float sum_before;
    // while a token's weight is at least this, and more than 0 (min_p),
    float min_weight;
    // up to the first token whose cumulative weight exceeds this (the random draw).
    float target;
};

// The weight of the tokens that a walk took, and the last of them.
struct Taken {
    float sum;
    uint id;
};

// A row of logits, and the intermediate results for it.
template <typename T> struct Logits {
    device const T *x;
    uint n;
    float best;
    float temperature;
    // The thread's largest key.
    ulong own;
    // Tokens in the first window; 0 while another window is loaded.
    uint first;
};

template <typename T>
METAL_FUNC Taken walk(thread Logits<T> &row, Limits limits, Scratch scratch, Self self) {
    Taken taken = {0.0f, 0u};
    uint before = 0;
    ulong upto = NON_FINITE;
    while (true) {
        uint count = row.first;
        if (before > 0) {
            count = window<T>(row.x, row.n, upto, max_key_upto<T>(row.x, row.n, upto, self), scratch, self);
            row.first = 0;
        } else if (count == 0) {
            count = window<T>(row.x, row.n, upto, row.own, scratch, self);
            row.first = count;
        }
        if (count == 0) {
            return taken;
        }
        // Two neighbours per thread.
        float weights[2];
        for (uint j = 0; j < 2; j++) {
            uint i = 2 * self.tid + j;
            weights[j] = i < count ? weight_of(logit_at(scratch.found[i]), row.best, row.temperature) : 0.0f;
        }
        float sums[3];
        sums[0] = taken.sum + group_exclusive_sum(weights[0] + weights[1], scratch, self);
        sums[1] = sums[0] + weights[0];
        sums[2] = sums[1] + weights[1];
        uint end = count;
        for (uint j = 0; j < 2; j++) {
            uint i = 2 * self.tid + j;
            bool is_taken = before + i < limits.max_tokens && weights[j] > 0.0f && sums[j] < limits.sum_before && weights[j] >= limits.min_weight;
            if ((i > 0 || before > 0) && !is_taken) {
                end = min(end, i);
            } else if (sums[j + 1] > limits.target) {
                end = min(end, i + 1);
            }
        }
        end = group_min(end, scratch, self);
        if (end > 0) {
            if (self.tid == (end - 1) / 2) {
                *scratch.sum = sums[1 + (end - 1) % 2];
            }
            threadgroup_barrier(mem_flags::mem_threadgroup);
            taken.sum = *scratch.sum;
            taken.id = id_at(scratch.found[end - 1]);
        }
        bool is_over = taken.sum > limits.target;
        if (end < count || is_over) {
            return taken;
        }
        before += count;
        upto = scratch.found[count - 1] - 1;
    }
    return taken;
}

template <typename T>
[[kernel]] void sample(device const T *x [[buffer(0)]], device uint *y [[buffer(1)]], constant Shape &p [[buffer(2)]],
    constant SamplingParams *all [[buffer(3)]], uint group [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]], uint threads [[threads_per_threadgroup]],
    uint lane [[thread_index_in_simdgroup]], uint simd [[simdgroup_index_in_threadgroup]],
    uint simds [[simdgroups_per_threadgroup]]) {
    threadgroup ulong found[2048];
    threadgroup ulong thread_max[1024];
    threadgroup ulong keys[32];
    threadgroup float sums[32];
    threadgroup uint ends[32];
    threadgroup atomic_uint count;
    threadgroup float sum;
    Scratch scratch = {found, thread_max, keys, sums, ends, &count, &sum};
    Self self = {tid, threads, lane, simd, simds};
    constant SamplingParams &params = all[group];
    x += ulong(group) * ulong(p.stride);

    ulong own = max_key_upto<T>(x, p.n, NON_FINITE, self);
    ulong best = group_max_key(own, scratch, self);
    if (best == NON_FINITE || params.temperature == 0.0f) {
        if (tid == 0) {
            y[group] = best == NON_FINITE ? 0xffffffffu : id_at(best);
        }
        return;
    }
    Logits<T> row = {x, p.n, logit_at(best), params.temperature, own, 0u};
    bool is_filtered = params.top_p < 1.0f || params.min_p > 0.0f;
    float total = INFINITY;
    if (params.top_k < p.n) {
        Limits top = {params.top_k, INFINITY, 0.0f, INFINITY};
        total = walk<T>(row, top, scratch, self).sum;
    } else if (params.top_p < 1.0f || !is_filtered) {
        total = 0.0f;
        for (uint i = 4 * tid; i < p.n; i += 4 * threads) {
            float4 v = four_at<T>(x, i, p.n, -INFINITY);
            for (uint j = 0; j < 4; j++) {
                total += weight_of(v[j], row.best, row.temperature);
            }
        }
        total = group_sum(total, sums, lane, simd, simds);
    }
    Limits limits = {params.top_k, params.top_p < 1.0f ? total * params.top_p : INFINITY, params.min_p, INFINITY};
    limits.target = params.u * (is_filtered ? walk<T>(row, limits, scratch, self).sum : total);
    uint id = walk<T>(row, limits, scratch, self).id;
    if (tid == 0) {
        y[group] = id;
    }
}
FLOATS(sample)
