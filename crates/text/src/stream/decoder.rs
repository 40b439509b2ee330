//! A tokenizer's decoder, read from its own JSON form: the library keeps part of it to itself, and can run it only over a whole
//! text.

use serde_json::Value;
use tokenizers::Tokenizer;

/// One step of a decoder.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Step {
    /// A text within each token becomes another.
    Replace { from: String, to: String },
    /// Each token but the first begins a word, unless it has the prefix.
    WordPiece { prefix: String, cleanup: bool },
    /// The replacement stands for a space, and for nothing in the first token if `drops_first`.
    Metaspace { replacement: char, drops_first: bool },
    /// The end of a word becomes a space, and nothing in the last token.
    Suffix(String),
    /// Letters of the byte alphabet become bytes, these one text.
    ByteLevel,
    /// `<0xNN>` becomes a byte; bytes in a row become a text.
    ByteFallback,
    /// All tokens become one.
    Fuse,
    /// So many of a character go at both ends.
    Strip { content: char, start: usize, stop: usize },
}

/// The steps in their order; none where the decoder has one we cannot take apart (CTC, a regular expression).
pub(super) fn steps(tokenizer: &Tokenizer) -> Option<Vec<Step>> {
    let decoder = tokenizer.get_decoder()?;
    let json = serde_json::to_value(decoder).ok()?;
    let mut steps = Vec::new();
    read(&json, &mut steps)?;
    Some(steps)
}

fn read(json: &Value, steps: &mut Vec<Step>) -> Option<()> {
    let text = |name: &str| json.get(name).and_then(Value::as_str);
    let size = |name: &str| json.get(name).and_then(Value::as_u64).map(|n| n as usize);
    let char = |name: &str| text(name).and_then(|t| t.chars().next());
    steps.push(match text("type")? {
        "Sequence" => {
            for inner in json.get("decoders")?.as_array()? {
                read(inner, steps)?;
            }
            return Some(());
        }
        "Replace" => {
            let from = json.pointer("/pattern/String")?.as_str()?;
            Step::Replace { from: from.into(), to: text("content")?.into() }
        }
        "WordPiece" => Step::WordPiece { prefix: text("prefix")?.into(), cleanup: json.get("cleanup")?.as_bool()? },
        "Metaspace" => Step::Metaspace {
            replacement: char("replacement")?,
            drops_first: text("prepend_scheme").is_none_or(|scheme| scheme != "never"),
        },
        "BPEDecoder" => Step::Suffix(text("suffix")?.into()),
        "ByteLevel" => Step::ByteLevel,
        "ByteFallback" => Step::ByteFallback,
        "Fuse" => Step::Fuse,
        "Strip" => Step::Strip { content: char("content")?, start: size("start")?, stop: size("stop")? },
        _ => return None,
    });
    Some(())
}

/// The byte a letter of the byte alphabet stands for: printable ones for themselves, the others from U+0100 on in their order.
fn byte_of(c: char) -> Option<u8> {
    match c as u32 {
        code @ (0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff) => Some(code as u8),
        code @ 0x100..=0x120 => Some((code - 0x100) as u8),
        code @ 0x121..=0x142 => Some((code - 0x121 + 0x7f) as u8),
        0x143 => Some(0xad),
        _ => None,
    }
}

/// A token in the byte alphabet; one that is not in it is its own text.
pub(super) fn byte_level(token: &str) -> Vec<u8> {
    let bytes: Option<Vec<u8>> = token.chars().map(byte_of).collect();
    bytes.unwrap_or_else(|| token.as_bytes().to_vec())
}

/// The byte of `<0xNN>`.
pub(super) fn fallback_byte(token: &str) -> Option<u8> {
    let hex = token.strip_prefix("<0x")?.strip_suffix('>')?;
    // As the library reads it, with a sign where there is one.
    (hex.len() == 2).then(|| u8::from_str_radix(hex, 16).ok())?
}

/// A token within a text.
#[derive(Clone, Debug, PartialEq)]
pub enum TokenBytes {
    /// It adds these bytes.
    Text(Vec<u8>),
    /// It is a mark of its own, of this name, and no text.
    Special(String),
    /// No token has this id.
    None,
}

/// What every id adds in the middle of a text, by id.
///
/// Fails with a sentence where the tokenizer's decoder does not work token by token.
#[allow(dead_code, reason = "structured output will ask for them")]
pub fn token_bytes(tokenizer: &Tokenizer) -> Result<Vec<TokenBytes>, String> {
    let whole =
        || "this tokenizer's decoder does not work token by token, so that its tokens have no bytes".to_string();
    let steps = match tokenizer.get_decoder() {
        Some(_) => steps(tokenizer).ok_or_else(whole)?,
        None => Vec::new(),
    };
    let spaced = tokenizer.get_decoder().is_none();
    let ids = tokenizer.get_vocab(true);
    let len = ids.values().max().map_or(0, |id| *id as usize + 1);
    // The ids are the file's, and so may be anything.
    if len > ids.len().saturating_mul(16).saturating_add(1 << 20) {
        return Err(format!("this tokenizer has {} tokens, and ids up to {len}", ids.len()));
    }
    let mut all = vec![TokenBytes::None; len];
    let added = tokenizer.get_added_vocabulary();
    for (token, id) in ids {
        all[id as usize] = match added.is_special_token(&token) {
            true => TokenBytes::Special(token),
            false if spaced => TokenBytes::Text(format!(" {token}").into_bytes()),
            false => TokenBytes::Text(bytes(&steps, token)),
        };
    }
    Ok(all)
}

fn bytes(steps: &[Step], token: String) -> Vec<u8> {
    let mut text = token;
    for step in steps {
        match step {
            Step::Replace { from, to } => text = text.replace(from, to),
            Step::Metaspace { replacement, .. } => text = text.replace(*replacement, " "),
            Step::Suffix(suffix) => text = text.replace(suffix, " "),
            Step::WordPiece { prefix, cleanup } => text = word(&text, prefix, *cleanup, false),
            Step::ByteLevel => return byte_level(&text),
            Step::ByteFallback => {
                if let Some(byte) = fallback_byte(&text) {
                    return vec![byte];
                }
            }
            // About the ends of the text, and this is its middle.
            Step::Fuse | Step::Strip { .. } => {}
        }
    }
    text.into_bytes()
}

/// A word or the rest of one.
pub(super) fn word(token: &str, prefix: &str, cleanup: bool, first: bool) -> String {
    let text = match token.strip_prefix(prefix) {
        _ if first => token.to_string(),
        Some(rest) => rest.to_string(),
        None => format!(" {token}"),
    };
    if cleanup { tokenizers::decoders::wordpiece::cleanup(&text) } else { text }
}
