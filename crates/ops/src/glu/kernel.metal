// y = act(gate) * value, where gate and value are the two halves of a row, times the row's scale if
// there are scales: in f32, one rounding. Without a gate, y = act(x). A thread computes four
// adjacent elements.

constant ushort ACTIVATION [[function_constant(0)]];
// Whether the gate is the second half.
constant bool IS_SECOND [[function_constant(1)]];
// Whether each row has a scale.
constant bool IS_SCALED [[function_constant(2)]];
// Whether one half is a gate; otherwise all of a row goes through the activation.
constant bool IS_GATED [[function_constant(3)]];

struct Halves {
    // Elements of a result, and row stride of x.
    uint n;
    uint stride;
};

template <typename T>
[[kernel]] void glu(device const T *x [[buffer(0)]], device const T *scales [[buffer(1)]], device T *y [[buffer(2)]],
    constant Halves &p [[buffer(3)]], uint3 at [[thread_position_in_grid]]) {
    x += ulong(at.y) * ulong(p.stride);
    y += ulong(at.y) * ulong(p.n);
    uint i = 4 * at.x;
    float4 gate = four_at<T>(x + (IS_SECOND ? p.n : 0), i, p.n, 0.0f);
    float4 value = float4(1.0f);
    if (IS_GATED) value = four_at<T>(x + (IS_SECOND ? 0 : p.n), i, p.n, 0.0f);
    float4 active = float4(activate(gate[0], ACTIVATION), activate(gate[1], ACTIVATION), activate(gate[2], ACTIVATION),
        activate(gate[3], ACTIVATION));
    float scale = IS_SCALED ? float(scales[at.y]) : 1.0f;
    put_four<T>(y, i, p.n, active * value * scale);
}
FLOATS(glu)
