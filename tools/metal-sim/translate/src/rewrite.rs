//! One pass over the tokens. It collects kernels and function constants, and rewrites constructs
//! that C++ for OpenCL lacks.

use std::collections::HashMap;

use crate::binding::{Binding, attributes, bindings};
use crate::token::Tokens;
use crate::{AddressSpaces, Error};

/// A kernel that the host can look up.
pub(crate) struct Kernel {
    pub(crate) host_name: String,
    /// The function, with its template arguments.
    pub(crate) function: String,
    pub(crate) bindings: Vec<Binding>,
}

/// `constant T NAME [[function_constant(id)]];`
pub(crate) struct FunctionConstant {
    pub(crate) id: String,
    pub(crate) ty: String,
    pub(crate) name: String,
}

/// `constant T NAME = <expression that uses a function constant>;`
pub(crate) struct DerivedConstant {
    pub(crate) name: String,
    pub(crate) expression: String,
}

pub(crate) struct Rewritten {
    pub(crate) tokens: Tokens,
    pub(crate) kernels: Vec<Kernel>,
    pub(crate) constants: Vec<FunctionConstant>,
    pub(crate) derived: Vec<DerivedConstant>,
}

pub(crate) fn rewrite(tokens: Tokens, spaces: AddressSpaces) -> Result<Rewritten, Error> {
    let mut pass = Pass {
        out: Rewritten { tokens, kernels: Vec::new(), constants: Vec::new(), derived: Vec::new() },
        spaces,
        templates: HashMap::new(),
        depth: 0,
        declaration: 0,
        host_name: String::new(),
        threadgroup_variables: 0,
    };
    let mut at = 0;
    while at < pass.out.tokens.len() {
        at = pass.step(at)?;
    }
    Ok(pass.out)
}

struct Pass {
    out: Rewritten,
    spaces: AddressSpaces,
    /// Bindings of kernel templates by name. An explicit instantiation may omit the parameters.
    templates: HashMap<String, Vec<Binding>>,
    /// Number of open braces.
    depth: usize,
    /// Where the declaration at file scope began.
    declaration: usize,
    /// `[[host_name("...")]]` seen before the kernel it names.
    host_name: String,
    threadgroup_variables: usize,
}

impl Pass {
    /// Handles the token at `at` and returns the next position.
    fn step(&mut self, at: usize) -> Result<usize, Error> {
        if self.depth == 0 {
            self.collect_kernel(at)?;
            self.collect_function_constant(at)?;
        }
        if let Some(next) = self.drop_attribute(at)? {
            return Ok(next);
        }
        if let Some(next) = self.rewrite_threadgroup_variable(at)? {
            return Ok(next);
        }
        if let Some(next) = self.drop_member_of_an_address_space(at)? {
            return Ok(next);
        }
        self.rewrite_construction(at)?;
        match self.out.tokens.at(at) {
            "{" => self.depth += 1,
            "}" => {
                let message = "a `}` closes nothing";
                self.depth = self.depth.checked_sub(1).ok_or_else(|| Error(message.into()))?;
                if self.depth == 0 {
                    self.declaration = at + 1;
                }
            }
            ";" if self.depth == 0 => self.declaration = at + 1,
            _ => {}
        }
        Ok(at + 1)
    }

    /// `kernel void f(...)`, `[[kernel]] void f(...)`, a template of either, or an instantiation of
    /// a template.
    fn collect_kernel(&mut self, at: usize) -> Result<(), Error> {
        let tokens = &mut self.out.tokens;
        let as_attribute = tokens.is_attribute(at) && attributes(tokens, at)?.iter().any(|a| a.name == "kernel");
        if tokens.at(at) != "kernel" && !as_attribute {
            return Ok(());
        }
        // The declarator ends at its parameters, or at `;` or `{` where an instantiation has none.
        let mut end = if as_attribute { tokens.closing(at)? + 1 } else { at + 1 };
        loop {
            match tokens.at(end) {
                "" if end >= tokens.len() => return Err(Error("a kernel's declaration does not end".into())),
                "(" | ";" | "{" => break,
                "decltype" => end = tokens.closing(end + 1)? + 1,
                "<" => end = tokens.closing(end)? + 1,
                _ if tokens.is_attribute(end) => end = tokens.closing(end)? + 1,
                _ => end += 1,
            }
        }
        let is_template = tokens.at(self.declaration) == "template";
        if is_template && tokens.at(self.declaration + 1) != "<" {
            self.collect_instantiation(end)?;
        } else if tokens.at(end) == "(" {
            let close = tokens.closing(end)?;
            let bindings = bindings(tokens, end, close)?;
            let name = tokens.at(end - 1).to_string();
            if is_template {
                self.templates.entry(name).or_insert(bindings);
            } else if tokens.at(close + 1) == "{" {
                let given = std::mem::take(&mut self.host_name);
                let host_name = if given.is_empty() { name.clone() } else { given };
                self.out.kernels.push(Kernel { host_name, function: name, bindings });
            }
        }
        let tokens = &mut self.out.tokens;
        if !as_attribute {
            // `kernel` is also a keyword of OpenCL, with other rules. Entry points call kernels as
            // plain functions.
            tokens.replace(at, "");
        }
        Ok(())
    }

    /// `template [[host_name("f_float")]] kernel void f<float>(...);`. The declarator ends at
    /// `end`.
    fn collect_instantiation(&mut self, end: usize) -> Result<(), Error> {
        let tokens = &self.out.tokens;
        let mut host_name = std::mem::take(&mut self.host_name);
        for at in (self.declaration..end).filter(|&at| tokens.is_attribute(at)) {
            for attribute in attributes(tokens, at)?.iter().filter(|a| a.name == "host_name") {
                host_name = attribute.string();
            }
        }
        let mut name = end - 1;
        if tokens.at(name) == ">" {
            name = tokens.opening_angle(name)? - 1;
        }
        let function = tokens.source(name, end);
        if host_name.is_empty() {
            return Err(Error(format!("the instantiation {function} needs a [[host_name]]")));
        }
        // Attributes may be repeated here; otherwise those of the template apply.
        let close = if tokens.at(end) == "(" { tokens.closing(end)? } else { end };
        let bindings = if (end..close).any(|at| tokens.is_attribute(at)) {
            bindings(tokens, end, close)?
        } else {
            let template = self.templates.get(tokens.at(name)).cloned();
            template.ok_or_else(|| Error(format!("{function} instantiates no kernel template at file scope")))?
        };
        self.out.kernels.push(Kernel { host_name, function, bindings });
        Ok(())
    }

    /// Function constants become globals that the host sets before a dispatch; derived constants
    /// are computed from them.
    fn collect_function_constant(&mut self, at: usize) -> Result<(), Error> {
        let tokens = &mut self.out.tokens;
        let start = match tokens.at(at) {
            "constant" => at,
            "static" if tokens.at(at + 1) == "constant" => at + 1,
            _ => return Ok(()),
        };
        if at != self.declaration {
            return Ok(());
        }
        let mut end = start;
        while end < tokens.len() && !matches!(tokens.at(end), ";" | "{" | "(" | "<") && !tokens.is_attribute(end) {
            end += 1;
        }
        if tokens.is_attribute(end)
            && let Some(id) = attributes(tokens, end)?.into_iter().find(|a| a.name == "function_constant")
        {
            let (ty, name) = (tokens.source(start + 1, end - 1), tokens.at(end - 1).to_string());
            self.out.constants.push(FunctionConstant { id: id.argument, ty, name });
            tokens.replace(start, "__global");
        }
        let end = tokens.find(start, &[";"])?;
        let Some(equals) = (start..end).find(|&i| tokens.at(i) == "=") else { return Ok(()) };
        let is_set_by_host = |name: &str| {
            self.out.constants.iter().any(|c| c.name == name) || self.out.derived.iter().any(|d| d.name == name)
        };
        if (equals..end).any(|i| is_set_by_host(tokens.at(i))) {
            let (name, expression) = (tokens.at(equals - 1).to_string(), tokens.source(equals + 1, end));
            self.out.derived.push(DerivedConstant { name, expression });
            tokens.replace(start, "__global");
            tokens.erase(equals..end);
        }
        Ok(())
    }

    /// Removes an attribute, which was read before: clang knows none of them.
    fn drop_attribute(&mut self, at: usize) -> Result<Option<usize>, Error> {
        let tokens = &mut self.out.tokens;
        if !tokens.is_attribute(at) {
            return Ok(None);
        }
        for attribute in attributes(tokens, at)?.iter().filter(|a| a.name == "host_name") {
            self.host_name = attribute.string();
        }
        let end = tokens.closing(at)?;
        tokens.erase(at..=end);
        Ok(Some(end + 1))
    }

    /// `threadgroup T name[N];` in a body becomes a reference into the threadgroup's memory. The
    /// tag type makes each declaration a different instantiation, and so a different address.
    fn rewrite_threadgroup_variable(&mut self, at: usize) -> Result<Option<usize>, Error> {
        let tokens = &mut self.out.tokens;
        let begins_statement = matches!(tokens.before(at, 1), ";" | "{" | "}" | ":" | "");
        if tokens.at(at) != "__local" || self.depth == 0 || !begins_statement {
            return Ok(None);
        }
        let (mut end, mut name) = (at + 1, None);
        while !matches!(tokens.at(end), ";" | "=" | ",") {
            match tokens.at(end) {
                "" if end >= tokens.len() => return Err(Error("a declaration does not end".into())),
                // A pointer into threadgroup memory needs no rewriting.
                "(" | "*" | "&" => return Ok(None),
                "<" => end = tokens.closing(end)? + 1,
                "[" => {
                    name.get_or_insert(end - 1);
                    end = tokens.closing(end)? + 1;
                }
                _ => end += 1,
            }
        }
        if tokens.at(end) != ";" {
            let declaration = tokens.source(at, end + 1);
            return Err(Error(format!("one threadgroup variable a declaration, without initialiser: {declaration}")));
        }
        let name = name.unwrap_or(end - 1);
        let (ty, sizes) = (tokens.source(at + 1, name), tokens.source(name + 1, end));
        let tag = format!("__sim_tag_{}", self.threadgroup_variables);
        let reference = format!(
            "struct {tag} {{}}; __local {ty} (&{0}){sizes} = __sim_threadgroup_variable<{ty}{sizes}, {tag}>(\"{0}\")",
            tokens.at(name)
        );
        self.threadgroup_variables += 1;
        tokens.erase(at..end);
        tokens.replace(at, &reference);
        Ok(Some(end))
    }

    /// If address spaces are erased, members that differ only by address space would clash. Only
    /// the unqualified one is kept.
    fn drop_member_of_an_address_space(&mut self, at: usize) -> Result<Option<usize>, Error> {
        let tokens = &mut self.out.tokens;
        let qualifies_member = matches!(tokens.at(at), "__local" | "__global" | "constant")
            && (tokens.before(at, 1) == ")" || (tokens.before(at, 1) == "const" && tokens.before(at, 2) == ")"))
            && matches!(tokens.at(at + 1), "=" | "{" | ":");
        if self.spaces == AddressSpaces::Checked || self.depth == 0 || !qualifies_member {
            return Ok(None);
        }
        let (mut from, mut parentheses) = (at, 0);
        while from > 0 {
            match tokens.at(from - 1) {
                ")" => parentheses += 1,
                "(" => parentheses -= 1,
                ";" | "{" | "}" if parentheses == 0 => break,
                _ => {}
            }
            from -= 1;
        }
        let mut end = tokens.find(at, &[";", "{"])?;
        if tokens.at(end) == "{" {
            end = tokens.closing(end)?;
        }
        tokens.erase(from..=end);
        Ok(Some(end + 1))
    }

    /// Vector constructors and casts have another syntax in OpenCL. They become calls of templates
    /// in `metal_sim.h`.
    fn rewrite_construction(&mut self, at: usize) -> Result<(), Error> {
        let tokens = &mut self.out.tokens;
        let word = tokens.at(at).to_string();
        if is_vector(&word) && tokens.at(at + 1) == "(" && !matches!(tokens.at(at + 2), "*" | "&") {
            // float4(a, b)  →  __make<float4>(a, b)
            tokens.replace(at, &format!("metal::__make<{word}>"));
        } else if is_vector(&word) && is_cast(tokens, at) {
            // (float4)x  →  __cast<float4>() ->* x; `->*` binds almost as tightly as a cast
            tokens.replace(at - 1, "");
            tokens.replace(at, &format!("metal::__cast<{word}>() ->* "));
            tokens.replace(at + 1, "");
        } else if word == "static_cast" {
            tokens.replace(at, "metal::__convert");
        } else if word == "vec" && tokens.at(at + 1) == "<" {
            // vec<T, 4>(a, b)  →  __make<metal::vec<T, 4>>(a, b)
            let close = tokens.closing(at + 1)?;
            if tokens.at(close + 1) == "(" {
                let namespace = if tokens.before(at, 1) == ":" { "" } else { "metal::" };
                tokens.replace(at, &format!("{namespace}__make<metal::vec"));
                tokens.replace(close, ">>");
            }
        }
        Ok(())
    }
}

fn is_vector(word: &str) -> bool {
    const ELEMENTS: [&str; 12] =
        ["char", "uchar", "short", "ushort", "int", "uint", "long", "ulong", "half", "float", "bfloat", "bool"];
    ELEMENTS.iter().any(|element| word.strip_prefix(element).is_some_and(|n| matches!(n, "2" | "3" | "4")))
}

/// Whether the vector type at `at` is a cast such as `(float4)x`, not an argument such as in
/// `sizeof(float4)`.
fn is_cast(tokens: &Tokens, at: usize) -> bool {
    let in_parentheses = tokens.before(at, 1) == "(" && tokens.at(at + 1) == ")";
    let has_operand = tokens.is_word(at + 2) || tokens.at(at + 2) == "(";
    let is_call = at >= 2 && tokens.is_word(at - 2) && tokens.at(at - 2) != "return";
    in_parentheses && has_operand && !is_call
}
