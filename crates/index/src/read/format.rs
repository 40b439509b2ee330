//! The format of a file, by its name and first bytes.

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::document::{Kind, Language};

/// How a file is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Format {
    /// Plain text, and source code without a grammar.
    Text,
    /// Markdown.
    Markdown,
    /// Source code.
    Code(Language),
    /// HTML.
    Html,
    /// PDF.
    Pdf,
    /// Values separated by commas or semicolons; the first row names the columns.
    Csv,
    /// Values separated by tabs.
    Tsv,
    /// One JSON object per line.
    JsonLines,
    /// Parquet.
    Parquet,
}

impl Format {
    /// The format of a file; `None` if no reader takes it. `head` is how the content begins.
    pub fn of(path: &Path, head: &[u8]) -> Option<Self> {
        if let Some(format) = Self::by_name(path) {
            return Some(format);
        }
        if Self::is_binary_name(path) {
            return None;
        }
        let start = head.trim_ascii_start();
        let begins = |with: &[u8]| start.len() >= with.len() && start[..with.len()].eq_ignore_ascii_case(with);
        if head.starts_with(b"%PDF-") {
            Some(Self::Pdf)
        } else if head.starts_with(b"PAR1") {
            Some(Self::Parquet)
        } else if begins(b"<!doctype html") || begins(b"<html") {
            Some(Self::Html)
        } else {
            looks_like_text(head).then_some(Self::Text)
        }
    }

    /// The format that a file's name alone decides.
    pub fn by_name(path: &Path) -> Option<Self> {
        use Language::{C, Go, Java, JavaScript, Python, Ruby, Rust, TypeScript};
        Some(match ending(path)?.as_str() {
            "md" | "markdown" | "mdx" | "mkd" => Self::Markdown,
            "txt" | "text" | "rst" | "adoc" | "org" | "tex" | "log" => Self::Text,
            "htm" | "html" | "xhtml" => Self::Html,
            "pdf" => Self::Pdf,
            "csv" => Self::Csv,
            "tsv" | "tab" => Self::Tsv,
            "jsonl" | "ndjson" => Self::JsonLines,
            "parquet" => Self::Parquet,
            "c" | "h" => Self::Code(C),
            "go" => Self::Code(Go),
            "java" => Self::Code(Java),
            "js" | "mjs" | "cjs" | "jsx" => Self::Code(JavaScript),
            "py" | "pyi" => Self::Code(Python),
            "rb" | "rake" | "gemspec" => Self::Code(Ruby),
            "rs" => Self::Code(Rust),
            "ts" | "mts" | "cts" | "tsx" => Self::Code(TypeScript),
            _ => return None,
        })
    }

    /// Whether the name says that the content is not text, so that the file need not be opened.
    pub fn is_binary_name(path: &Path) -> bool {
        const ENDINGS: &[&str] = &[
            "7z",
            "a",
            "apk",
            "avi",
            "avif",
            "bin",
            "bmp",
            "bz2",
            "class",
            "db",
            "deb",
            "dll",
            "dmg",
            "doc",
            "docx",
            "dylib",
            "eot",
            "epub",
            "exe",
            "flac",
            "gguf",
            "gif",
            "gz",
            "heic",
            "ico",
            "iso",
            "jar",
            "jpeg",
            "jpg",
            "lib",
            "lz4",
            "mkv",
            "mov",
            "mp3",
            "mp4",
            "npy",
            "npz",
            "o",
            "obj",
            "odt",
            "ogg",
            "onnx",
            "otf",
            "png",
            "ppt",
            "pptx",
            "pt",
            "pyc",
            "rlib",
            "rpm",
            "safetensors",
            "so",
            "sqlite",
            "tar",
            "tgz",
            "tif",
            "tiff",
            "ttf",
            "wasm",
            "wav",
            "webm",
            "webp",
            "woff2",
            "zip",
        ];
        ending(path).is_some_and(|ending| ENDINGS.contains(&ending.as_str()))
    }

    /// Whether the format is read in a child process.
    pub fn needs_parser(self) -> bool {
        !matches!(self, Self::Text | Self::Markdown | Self::Code(_))
    }

    /// The kind of the documents that the format gives.
    pub fn kind(self) -> Kind {
        match self {
            Self::Text => Kind::Text,
            Self::Markdown => Kind::Markdown,
            Self::Code(language) => Kind::Code(language),
            Self::Html => Kind::Html,
            Self::Pdf => Kind::Pdf,
            Self::Csv | Self::Tsv | Self::JsonLines | Self::Parquet => Kind::Table,
        }
    }
}

fn ending(path: &Path) -> Option<String> {
    Some(path.extension()?.to_str()?.to_ascii_lowercase())
}

/// Whether the beginning of a file is text: UTF-16 with a byte order mark, or bytes without NUL
/// and with few control characters.
pub(super) fn looks_like_text(head: &[u8]) -> bool {
    if head.starts_with(&[0xff, 0xfe]) || head.starts_with(&[0xfe, 0xff]) {
        return true;
    }
    let control = head.iter().filter(|&&b| b < 0x20 && !matches!(b, b'\t' | b'\n' | b'\r' | 0x0c | 0x1b)).count();
    !head.contains(&0) && control * 50 <= head.len()
}
