//! The steps of a tokenizer's decoder. They are read from the decoder's JSON form, because the
//! library keeps some of their fields private and can decode only whole texts.

use serde_json::Value;
use tokenizers::Tokenizer;

/// One step of a decoder.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum DecoderStep {
    /// Replaces a string within each token.
    Replace { from: String, to: String },
    /// Puts a space before each token but the first, unless it has the prefix.
    WordPiece { prefix: String, cleanup: bool },
    /// The replacement character becomes a space, or nothing in the first token if `drops_first`.
    Metaspace { replacement: char, drops_first: bool },
    /// The end-of-word suffix becomes a space, or nothing in the last token.
    Suffix(String),
    /// Byte-level: characters of the byte alphabet become bytes, then text.
    ByteLevel,
    /// `<0xNN>` becomes a byte; consecutive bytes become text.
    ByteFallback,
    /// Concatenates all tokens.
    Fuse,
    /// Removes up to this many of a character at each end.
    Strip { content: char, start: usize, stop: usize },
}

/// The steps in order. `None` if a step cannot run incrementally (CTC, a regular expression).
pub(super) fn steps(tokenizer: &Tokenizer) -> Option<Vec<DecoderStep>> {
    let decoder = tokenizer.get_decoder()?;
    let json = serde_json::to_value(decoder).ok()?;
    let mut steps = Vec::new();
    read(&json, &mut steps)?;
    Some(steps)
}

fn read(json: &Value, steps: &mut Vec<DecoderStep>) -> Option<()> {
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
            DecoderStep::Replace { from: from.into(), to: text("content")?.into() }
        }
        "WordPiece" => {
            DecoderStep::WordPiece { prefix: text("prefix")?.into(), cleanup: json.get("cleanup")?.as_bool()? }
        }
        "Metaspace" => DecoderStep::Metaspace {
            replacement: char("replacement")?,
            drops_first: text("prepend_scheme").is_none_or(|scheme| scheme != "never"),
        },
        "BPEDecoder" => DecoderStep::Suffix(text("suffix")?.into()),
        "ByteLevel" => DecoderStep::ByteLevel,
        "ByteFallback" => DecoderStep::ByteFallback,
        "Fuse" => DecoderStep::Fuse,
        "Strip" => DecoderStep::Strip { content: char("content")?, start: size("start")?, stop: size("stop")? },
        _ => return None,
    });
    Some(())
}

/// The byte of a character of the byte alphabet: printable ones map to themselves, the others from
/// U+0100 on in order.
fn byte_of(c: char) -> Option<u8> {
    match c as u32 {
        code @ (0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff) => Some(code as u8),
        code @ 0x100..=0x120 => Some((code - 0x100) as u8),
        code @ 0x121..=0x142 => Some((code - 0x121 + 0x7f) as u8),
        0x143 => Some(0xad),
        _ => None,
    }
}

/// Decodes a token in the byte alphabet; any other token is its own text.
pub(super) fn byte_level(token: &str) -> Vec<u8> {
    let bytes: Option<Vec<u8>> = token.chars().map(byte_of).collect();
    bytes.unwrap_or_else(|| token.as_bytes().to_vec())
}

/// The byte of `<0xNN>`.
pub(super) fn fallback_byte(token: &str) -> Option<u8> {
    let hex = token.strip_prefix("<0x")?.strip_suffix('>')?;
    // Like the library, accepts a sign.
    (hex.len() == 2).then(|| u8::from_str_radix(hex, 16).ok())?
}

/// What a token adds to a text.
#[derive(Clone, Debug, PartialEq)]
pub enum TokenBytes {
    /// These bytes.
    Text(Vec<u8>),
    /// No text: a special token of this name.
    Special(String),
    /// No token has this id.
    None,
}

/// The bytes that every token adds in the middle of a text, by id.
///
/// Fails if the decoder does not work token by token.
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
    // Ids come from an untrusted file.
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

fn bytes(steps: &[DecoderStep], token: String) -> Vec<u8> {
    let mut text = token;
    for step in steps {
        match step {
            DecoderStep::Replace { from, to } => text = text.replace(from, to),
            DecoderStep::Metaspace { replacement, .. } => text = text.replace(*replacement, " "),
            DecoderStep::Suffix(suffix) => text = text.replace(suffix, " "),
            DecoderStep::WordPiece { prefix, cleanup } => text = word(&text, prefix, *cleanup, false),
            DecoderStep::ByteLevel => return byte_level(&text),
            DecoderStep::ByteFallback => {
                if let Some(byte) = fallback_byte(&text) {
                    return vec![byte];
                }
            }
            // These change only the ends of a text.
            DecoderStep::Fuse | DecoderStep::Strip { .. } => {}
        }
    }
    text.into_bytes()
}

/// A word or a continuation.
pub(super) fn word(token: &str, prefix: &str, cleanup: bool, first: bool) -> String {
    let text = match token.strip_prefix(prefix) {
        _ if first => token.to_string(),
        Some(rest) => rest.to_string(),
        None => format!(" {token}"),
    };
    if cleanup { tokenizers::decoders::wordpiece::cleanup(&text) } else { text }
}
