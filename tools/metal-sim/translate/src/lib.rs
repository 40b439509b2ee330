//! Rewrites a preprocessed Metal source (`clang -E`) into C++ for OpenCL, a dialect of clang's. In
//! it Metal's `device`, `threadgroup` and `constant` are real address spaces, so that clang
//! compiles the source for a CPU and still rejects a pointer into the wrong space. It also writes a
//! C++ table that registers every kernel by its host name.
//!
//! It rewrites tokens and does not parse. It relies on the subset of Metal that the README lists.
//! It reports some violations as an [`Error`]; clang rejects the others.

mod binding;
mod glue;
mod rewrite;
mod token;

use std::fmt;

/// How to translate `device`, `threadgroup` and `constant`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddressSpaces {
    /// Kept: clang checks them. The output is C++ for OpenCL.
    Checked,
    /// Erased, for sources that C++ for OpenCL cannot express. The output is C++17.
    Erased,
}

/// A translated library.
#[derive(Debug)]
pub struct Translation {
    /// The kernels, and an entry point for each that unpacks its arguments.
    pub kernels_source: String,
    /// C++ that registers the entry points with the runtime when the library is loaded.
    pub table_source: String,
    /// Host names, in the order of the source.
    pub kernel_names: Vec<String>,
}

/// Why a source could not be translated.
#[derive(Debug, PartialEq, Eq)]
pub struct Error(pub(crate) String);

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Error {}

/// Translates one preprocessed source. `library` becomes part of its symbols, because a process may
/// load several libraries.
pub fn translate(preprocessed: &str, library: &str, spaces: AddressSpaces) -> Result<Translation, Error> {
    let library = library.replace(|c: char| !c.is_ascii_alphanumeric(), "_");
    let rewritten = rewrite::rewrite(token::Tokens::lex(preprocessed)?, spaces)?;
    Ok(glue::emit(&library, rewritten))
}
