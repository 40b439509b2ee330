//! One test per rewriting rule, each with a minimal source.

use msl_translate::{AddressSpaces, Translation, translate};

fn translate_checked(source: &str) -> Translation {
    translate(source, "lib", AddressSpaces::Checked).unwrap()
}

fn error(source: &str) -> String {
    translate(source, "lib", AddressSpaces::Checked).unwrap_err().to_string()
}

/// The rewritten kernels with single spaces, without the text before and after them.
fn body(translation: &Translation) -> String {
    let source = &translation.kernels_source;
    let (_, rest) = source.split_once("#include \"metal_sim.h\"\n").expect("the shim comes first");
    let (body, _) = rest.split_once("# 1 \"entry points\"").expect("entry points come last");
    body.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn rewrite(source: &str) -> String {
    body(&translate_checked(source))
}

/// The arguments with which the only entry point calls its kernel.
fn arguments(source: &str) -> Vec<String> {
    let translation = translate_checked(source);
    let (_, entry) = translation.kernels_source.split_once("using F = decltype(").expect("an entry point");
    let (_, call) = entry.split_once("; ").expect("a call");
    let (list, _) = call.split_once("); }").expect("a call");
    let (_, list) = list.split_once('(').expect("arguments");
    list.replace("__sim_parameter<F, ", "P<").split(", ").map(str::to_string).collect()
}

#[test]
fn a_plain_kernel_is_registered_under_its_own_name() {
    let translation = translate_checked("kernel void f(__global float *x) { }");
    assert_eq!(translation.kernel_names, ["f"]);
    assert_eq!(body(&translation), "void f(__global float *x) { }");
    assert!(translation.kernels_source.contains("extern \"C\" void __sim_lib_0(const __sim_thread *t)"));
    assert!(translation.table_source.contains("{\"f\", __sim_lib_0},"));
    assert!(translation.table_source.contains("sim_register(kernels, 1, constants, 0)"));
}

#[test]
fn a_declaration_without_a_body_is_not_a_kernel() {
    assert!(translate_checked("kernel void f(__global float *x);").kernel_names.is_empty());
}

#[test]
fn the_kernel_attribute_is_recognized() {
    let translation = translate_checked("[[kernel]] void f(__global float *x [[buffer(0)]]) { }");
    assert_eq!(translation.kernel_names, ["f"]);
    assert_eq!(body(&translation), "void f(__global float *x ) { }");
}

#[test]
fn a_host_name_replaces_the_name_of_one_kernel_only() {
    let source = "[[host_name(\"a\" \"b\")]] kernel void f(__global float *x) { } kernel void g(__global float *x) { }";
    assert_eq!(translate_checked(source).kernel_names, ["ab", "g"]);
}

#[test]
fn an_instantiation_takes_the_bindings_of_its_template() {
    let source =
        "template <typename T> kernel void f(__global T *x [[buffer(3)]], uint i [[thread_position_in_grid]]) { }
        template [[host_name(\"f_int\")]] kernel void f<int>(__global int *, uint);
        template [[host_name(\"f_half\")]] kernel decltype(f<half>) f<half>;";
    let translation = translate_checked(source);
    assert_eq!(translation.kernel_names, ["f_int", "f_half"]);
    for function in ["f<int>", "f<half>"] {
        let call = format!(
            "using F = decltype({function}); {function}(__sim_bind<__sim_parameter<F, 0>>::at(t->buffers[3]), \
             __sim_vector<__sim_parameter<F, 1>>(t->thread_position_in_grid));"
        );
        assert!(translation.kernels_source.contains(&call), "{}", translation.kernels_source);
    }
}

#[test]
fn an_instantiation_may_override_its_bindings() {
    let source = "template <typename T> kernel void f(__global T *x [[buffer(3)]]) { }
        template [[host_name(\"f_int\")]] kernel void f<int>(__global int *x [[buffer(2)]]);";
    assert!(translate_checked(source).kernels_source.contains("t->buffers[2]"));
}

#[test]
fn an_instantiation_without_host_name_or_template_is_refused() {
    let template = "template <typename T> kernel void f(__global T *x) { }";
    assert_eq!(
        error(&format!("{template} template kernel void f<int>(__global int *);")),
        "the instantiation f<int> needs a [[host_name]]"
    );
    assert_eq!(
        error("template [[host_name(\"g\")]] kernel void g<int>(__global int *);"),
        "g<int> instantiates no kernel template at file scope"
    );
}

#[test]
fn parameters_bind_by_their_attributes() {
    let source = "kernel void f(__global float *x [[buffer(1)]], __local float *m [[__local(2)]],
        uint3 g [[threadgroup_position_in_grid]], ushort lane [[thread_index_in_simdgroup]]) { }";
    assert_eq!(
        arguments(source),
        [
            "__sim_bind<P<0>>::at(t->buffers[1])",
            "__sim_bind<P<1>>::at(t->threadgroup_memory[2])",
            "__sim_vector<P<2>>(t->threadgroup_position_in_grid)",
            "P<3>(t->thread_index_in_simdgroup)",
        ]
    );
}

#[test]
fn every_used_metal_built_in_is_supported() {
    for name in [
        "thread_position_in_grid",
        "thread_position_in_threadgroup",
        "threadgroup_position_in_grid",
        "threads_per_threadgroup",
        "threadgroups_per_grid",
        "threads_per_grid",
        "thread_index_in_threadgroup",
        "thread_index_in_simdgroup",
        "simdgroup_index_in_threadgroup",
        "simdgroups_per_threadgroup",
        "threads_per_simdgroup",
    ] {
        let arguments = arguments(&format!("kernel void f(uint x [[{name}]]) {{ }}"));
        assert!(arguments[0].contains(&format!("t->{name}")), "{arguments:?}");
    }
}

#[test]
fn parameters_without_an_index_take_the_lowest_free_one() {
    let source =
        "kernel void f(__global float *a, __global float *b [[buffer(0)]], constant uint &c, __local float *m) { }";
    assert_eq!(
        arguments(source),
        [
            "__sim_bind<P<0>>::at(t->buffers[1])",
            "__sim_bind<P<1>>::at(t->buffers[0])",
            "__sim_bind<P<2>>::at(t->buffers[2])",
            "__sim_bind<P<3>>::at(t->threadgroup_memory[0])",
        ]
    );
}

#[test]
fn an_argument_without_its_function_constant_is_absent() {
    let source = "kernel void f(__global float *m [[buffer(5), function_constant(has_mask)]]) { }";
    assert_eq!(arguments(source), ["__sim_bind<P<0>>::at(has_mask ? t->buffers[5] : __sim_absent())"]);
    let message = error("kernel void f(uint i [[thread_position_in_grid, function_constant(c)]]) { }");
    assert!(message.starts_with("only a buffer may depend on a function constant"), "{message}");
}

#[test]
fn a_buffer_index_must_be_a_literal() {
    assert_eq!(error("kernel void f(__global float *x [[buffer(N)]]) { }"), "[[buffer(N)]] needs a literal index");
}

#[test]
fn function_constants_become_globals_that_the_host_sets() {
    let translation =
        translate_checked("constant bool masked [[function_constant(7)]];\nkernel void f(__global float *x) { }");
    assert_eq!(body(&translation), "__global bool masked ; void f(__global float *x) { }");
    assert!(translation.kernels_source.contains("__sim_lib_set_7(const void *p, uint size)"));
    assert!(translation.kernels_source.contains("if (size == sizeof(bool)) masked = *(const bool *)p;"));
    assert!(translation.table_source.contains("{7, \"masked\", __sim_lib_set_7},"));
}

#[test]
fn constants_derived_from_function_constants_become_globals() {
    let source = "constant bool masked [[function_constant(7)]];
        static constant bool plain = !masked; constant bool both = plain && masked; constant int four = 4;";
    let translation = translate_checked(source);
    assert_eq!(
        body(&translation),
        "__global bool masked ; static __global bool plain ; __global bool both ; constant int four = 4;"
    );
    assert!(
        translation.kernels_source.contains("void __sim_lib_derive() { plain = !masked; both = plain && masked; }"),
        "{}",
        translation.kernels_source
    );
}

#[test]
fn attributes_are_dropped_and_subscripts_are_kept() {
    assert_eq!(
        rewrite("[[max_total_threads_per_threadgroup(64)]] int a[2] = { b [ [ ] { } ] };"),
        "int a[2] = { b [ [ ] { } ] };"
    );
}

#[test]
fn a_threadgroup_variable_becomes_a_reference() {
    assert_eq!(
        rewrite("void f() { __local float a[2][3]; __local int b; }"),
        "void f() { struct __sim_tag_0 {}; __local float (&a)[2][3] = __sim_threadgroup_variable<float[2][3], __sim_tag_0>(\"a\") ; \
         struct __sim_tag_1 {}; __local int (&b) = __sim_threadgroup_variable<int, __sim_tag_1>(\"b\") ; }"
    );
}

#[test]
fn threadgroup_pointers_and_parameters_are_unchanged() {
    let source = "void f(__local float *p) { __local float *q = p; __local float (&r)[4] = *(__local float (*)[4])p; }";
    assert_eq!(rewrite(source), source);
}

#[test]
fn two_threadgroup_variables_in_one_declaration_are_refused() {
    let message = error("void f() { __local float a[2], b[2]; }");
    assert_eq!(message, "one threadgroup variable a declaration, without initialiser: __local float a[2],");
}

#[test]
fn address_space_members_are_dropped_when_spaces_are_erased() {
    let source =
        "struct S { int f() const { return x; } int f() const __local { return x; } S() __global = default; int x; };";
    let erased = translate(source, "lib", AddressSpaces::Erased).unwrap();
    assert_eq!(body(&erased), "struct S { int f() const { return x; } int x; };");
    assert_eq!(rewrite(source), source);
}

#[test]
fn vector_constructors_become_make_calls() {
    assert_eq!(rewrite("a = float4(b, c);"), "a = metal::__make<float4>(b, c);");
    assert_eq!(rewrite("a = metal::vec<T, 4>(b);"), "a = metal::__make<metal::vec<T, 4>>(b);");
    assert_eq!(rewrite("a = vec<T, 2>(b);"), "a = metal::__make<metal::vec<T, 2>>(b);");
}

#[test]
fn vector_types_without_construction_are_unchanged() {
    for source in ["float4 a = b;", "vec<T, 4> a;", "a = sizeof(float4);", "a = float5(b);", "float4 (*p)[2];"] {
        assert_eq!(rewrite(source), source);
    }
}

#[test]
fn vector_casts_become_a_cast_operator() {
    assert_eq!(rewrite("a = (half4)b;"), "a = metal::__cast<half4>() ->* b;");
    assert_eq!(rewrite("return (half4)(b + c);"), "return metal::__cast<half4>() ->* (b + c);");
    assert_eq!(rewrite("a = f(half4) (b);"), "a = f(half4) (b);");
}

#[test]
fn static_cast_becomes_a_convert_call() {
    assert_eq!(rewrite("a = static_cast<half>(b);"), "a = metal::__convert<half>(b);");
}

#[test]
fn library_names_become_identifiers() {
    let translation = translate("kernel void f(__global int *x) { }", "my-lib.v2", AddressSpaces::Checked).unwrap();
    assert!(translation.table_source.contains("__sim_my_lib_v2_0"));
}

#[test]
fn unbalanced_sources_are_refused() {
    assert_eq!(error("void f() { } }"), "a `}` closes nothing");
    assert!(error("kernel void f(__global int *x").starts_with("unbalanced `(`"));
    assert_eq!(error("kernel void f"), "a kernel's declaration does not end");
}
