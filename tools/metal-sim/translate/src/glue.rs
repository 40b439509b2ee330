//! Writes the entry points and the table by which the runtime calls a kernel by name.

use std::fmt::Write as _;

use crate::Translation;
use crate::binding::Binding;
use crate::rewrite::{Kernel, Rewritten};

/// Mirrors `runtime/abi.h`, which the table cannot include: it is compiled on its own.
const TABLE_HEAD: &str = "\
struct sim_thread;
struct sim_kernel { const char *name; void (*run)(const sim_thread *); };
struct sim_constant { int id; const char *name; void (*set)(const void *, unsigned); };
extern \"C\" {
void sim_register(const sim_kernel *, int, const sim_constant *, int);
";

pub(crate) fn emit(library: &str, rewritten: Rewritten) -> Translation {
    let Rewritten { tokens, kernels, constants, derived } = rewritten;
    let mut source = format!("#include \"metal_sim.h\"\n{}\n# 1 \"entry points\"\n", tokens.write_all());
    let mut table = String::from(TABLE_HEAD);
    let (mut kernel_rows, mut constant_rows) = (String::new(), String::new());
    for (i, kernel) in kernels.iter().enumerate() {
        let symbol = format!("__sim_{library}_{i}");
        source.push_str(&entry_point(&symbol, kernel));
        put(&mut table, format_args!("void {symbol}(const sim_thread *);\n"));
        put(&mut kernel_rows, format_args!("{{\"{}\", {symbol}}},\n", kernel.host_name));
    }
    let derive = format!("__sim_{library}_derive");
    put(&mut source, format_args!("extern \"C\" void {derive}() {{"));
    for constant in &derived {
        put(&mut source, format_args!(" {} = {};", constant.name, constant.expression));
    }
    source.push_str(" }\n");
    for constant in &constants {
        let (id, ty, name) = (&constant.id, &constant.ty, &constant.name);
        let symbol = format!("__sim_{library}_set_{id}");
        put(
            &mut source,
            format_args!(
                "extern \"C\" void {symbol}(const void *p, uint size) {{ \
                 if (size == sizeof({ty})) {name} = *(const {ty} *)p; {derive}(); }}\n"
            ),
        );
        put(&mut table, format_args!("void {symbol}(const void *, unsigned);\n"));
        put(&mut constant_rows, format_args!("{{{id}, \"{name}\", {symbol}}},\n"));
    }
    put(
        &mut table,
        format_args!(
            "}}\n\
             static const sim_kernel kernels[] = {{\n{kernel_rows}{{0, 0}}}};\n\
             static const sim_constant constants[] = {{\n{constant_rows}{{0, 0, 0}}}};\n\
             __attribute__((constructor)) static void init() {{ sim_register(kernels, {}, constants, {}); }}\n",
            kernels.len(),
            constants.len()
        ),
    );
    Translation {
        kernels_source: source,
        table_source: table,
        kernel_names: kernels.into_iter().map(|kernel| kernel.host_name).collect(),
    }
}

fn entry_point(symbol: &str, kernel: &Kernel) -> String {
    let arguments: Vec<String> = kernel.bindings.iter().enumerate().map(|(i, binding)| argument(i, binding)).collect();
    format!(
        "extern \"C\" void {symbol}(const __sim_thread *t) {{ using F = decltype({f}); {f}({arguments}); }}\n",
        f = kernel.function,
        arguments = arguments.join(", ")
    )
}

fn argument(position: usize, binding: &Binding) -> String {
    let ty = format!("__sim_parameter<F, {position}>");
    match binding {
        Binding::Buffer { index, when: None } => format!("__sim_bind<{ty}>::at(t->buffers[{index}])"),
        // A kernel must not read an argument whose function constant is false: it is
        // bound to a page of 0xFF.
        Binding::Buffer { index, when: Some(constant) } => {
            format!("__sim_bind<{ty}>::at({constant} ? t->buffers[{index}] : __sim_absent())")
        }
        Binding::Threadgroup { index } => format!("__sim_bind<{ty}>::at(t->threadgroup_memory[{index}])"),
        Binding::Vector(field) => format!("__sim_vector<{ty}>(t->{field})"),
        Binding::Scalar(field) => format!("{ty}(t->{field})"),
    }
}

fn put(text: &mut String, arguments: std::fmt::Arguments<'_>) {
    text.write_fmt(arguments).expect("writing to a String cannot fail");
}
