// A bidirectional LSTM: i, f, g, o = x + W·h, c = σ(f)·c + σ(i)·tanh(g), h = σ(o)·tanh(c). All in f32,
// one rounding of each result.
//
// A threadgroup runs one direction of one sequence, token by token, with h and c in threadgroup
// memory. A thread computes the four gates of a unit: neighbours read neighbouring units. There are
// two copies of h, read and written by turns, so that one barrier per token suffices.

// Units side by side in the weight, and gates.
constant uint UNITS = 16;
constant uint GATES = 4;

struct Layer {
    // Hidden size, at most 1024.
    uint n;
    // Token stride in elements.
    uint stride;
};

// The rows of a sequence.
struct Sequence {
    uint start;
    uint end;
};

template <typename T>
[[kernel]] void lstm(device const T *x [[buffer(0)]], device const T *w [[buffer(1)]],
    constant Sequence *sequences [[buffer(2)]], device T *y [[buffer(3)]], constant Layer &p [[buffer(4)]],
    uint3 group [[threadgroup_position_in_grid]], uint tid [[thread_index_in_threadgroup]],
    uint3 size [[threads_per_threadgroup]]) {
    threadgroup float h[2048];
    threadgroup float c[1024];
    uint n = p.n;
    uint direction = group.y;
    constant Sequence &s = sequences[group.x];
    uint panel = n * GATES * UNITS;
    w += ulong(direction) * ulong((n + UNITS - 1) / UNITS) * ulong(panel);
    for (uint unit = tid; unit < n; unit += size.x) {
        h[unit] = 0.0f;
        c[unit] = 0.0f;
    }
    for (uint step = 0; step < s.end - s.start; step++) {
        threadgroup_barrier(mem_flags::mem_threadgroup); // the last h is written
        uint token = direction == 0 ? s.start + step : s.end - 1 - step;
        uint last = step % 2 * 1024;
        uint next = 1024 - last;
        device const T *own = x + ulong(token) * ulong(p.stride) + ulong(direction * GATES * n);
        for (uint unit = tid; unit < n; unit += size.x) {
            device const T *row = w + ulong(unit / UNITS) * ulong(panel) + ulong(unit % UNITS);
            float4 sums = float4(0.0f);
            for (uint k = 0; k < n; k++) {
                float4 gates = float4(float(row[0]), float(row[UNITS]), float(row[2 * UNITS]), float(row[3 * UNITS]));
                sums += gates * h[last + k];
                row += GATES * UNITS;
            }
            float i = sigmoid_of(sums[0] + float(own[unit]));
            float f = sigmoid_of(sums[1] + float(own[n + unit]));
            float g = precise::tanh(sums[2] + float(own[2 * n + unit]));
            float o = sigmoid_of(sums[3] + float(own[3 * n + unit]));
            c[unit] = fma(f, c[unit], i * g);
            float result = o * precise::tanh(c[unit]);
            h[next + unit] = result;
            y[ulong(token) * ulong(2 * n) + ulong(direction * n + unit)] = T(result);
        }
    }
}
FLOATS(lstm)
