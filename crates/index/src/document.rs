//! What readers make of files: documents, their metadata, and the chunks of their texts.

use std::collections::BTreeMap;
use std::ops::Range;

use serde::{Deserialize, Serialize};

/// A value in a document's metadata.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Value {
    /// No value.
    Null,
    /// True or false.
    Bool(bool),
    /// A whole number.
    Integer(i64),
    /// A number.
    Float(f64),
    /// A text.
    Text(String),
}

/// The metadata of a document, by key.
pub type Metadata = BTreeMap<String, Value>;

/// A programming language with a grammar, so that chunks follow the structure of the code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Language {
    /// C.
    C,
    /// Go.
    Go,
    /// Java.
    Java,
    /// JavaScript.
    JavaScript,
    /// Python.
    Python,
    /// Ruby.
    Ruby,
    /// Rust.
    Rust,
    /// TypeScript.
    TypeScript,
}

/// The kind of a document's text; it decides where chunks may end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Kind {
    /// Plain text, and source code without a grammar.
    Text,
    /// Markdown.
    Markdown,
    /// The text of an HTML page.
    Html,
    /// The text of a PDF file.
    Pdf,
    /// Source code.
    Code(Language),
    /// A row of a table.
    Table,
}

impl Kind {
    /// The name that filters use: that of the built-in key `kind`.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Text => "text",
            Kind::Markdown => "markdown",
            Kind::Html => "html",
            Kind::Pdf => "pdf",
            Kind::Code(_) => "code",
            Kind::Table => "table",
        }
    }
}

/// What numbers a place in a document's source.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Unit {
    /// Lines of the file.
    Line,
    /// Pages.
    Page,
    /// The source has no places that a person could look up.
    #[default]
    None,
}

/// A heading of a document.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Heading {
    /// The offset in bytes in the document's text.
    pub offset: usize,
    /// 1 for the outermost.
    pub level: u8,
    /// The heading's text.
    pub text: String,
}

/// Where the parts of a text are in its source.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Layout {
    /// What `starts` counts.
    pub unit: Unit,
    /// Offsets in bytes in the text, and the number of the line or page that begins there. Empty
    /// with [`Unit::Line`]: the text is the file itself, so newlines are counted.
    pub starts: Vec<(usize, u32)>,
    /// The headings, in the order of the text.
    pub headings: Vec<Heading>,
}

/// A document as a reader returns it: a file, or one row of a table.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Document {
    /// The title, where the source names one.
    pub title: Option<String>,
    /// The kind of text.
    pub kind: Kind,
    /// The text that is chunked and searched.
    pub text: String,
    /// Key–value pairs that filters can use.
    pub metadata: Metadata,
    /// The row's number, from 1, for a row of a table.
    pub row: Option<u64>,
    /// Lines, pages and headings.
    pub layout: Layout,
}

/// A part of a document's text, which is embedded and found on its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chunk {
    /// The bytes of the document's text.
    pub range: Range<usize>,
    /// The headings above, outermost first, joined by ` > `.
    pub heading: Option<String>,
    /// The line or page where the chunk begins, as [`Layout::unit`] says.
    pub place: Option<u32>,
    /// How many tokens the text has, special tokens not counted.
    pub tokens: u32,
}
