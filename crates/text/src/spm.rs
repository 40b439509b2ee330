//! SentencePiece's `.model` file: the protobuf fields that affect tokenization.

/// Longer pieces exist only in hostile files: the library frees its trie by recursion, one level
/// for each byte.
const LONGEST_PIECE: usize = 1024;
/// Limit for all pieces together. The largest vocabularies on the hub have 3 MB; the library's trie
/// takes about 100 bytes for each byte.
const MAX_PIECE_BYTES: usize = 16 << 20;
/// The longest replacement that SentencePiece ships has 33 bytes. One of a megabyte would turn a
/// page of text into gigabytes.
const LONGEST_REPLACEMENT: usize = 256;

/// Type of a piece.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum PieceKind {
    /// Normal, unknown, unused or byte: no special treatment.
    Plain,
    /// Never matched in text, such as `</s>`.
    Control,
    /// Always matched whole.
    UserDefined,
}

#[derive(Debug)]
pub(crate) struct Piece {
    pub(crate) text: String,
    pub(crate) score: f32,
    pub(crate) kind: PieceKind,
}

#[derive(Debug)]
pub(crate) struct Model {
    pub(crate) pieces: Vec<Piece>,
    /// BPE, merging by score; otherwise unigram.
    pub(crate) bpe: bool,
    pub(crate) unk_id: usize,
    pub(crate) unk_piece: String,
    /// Characters without a piece become byte tokens rather than the unknown piece.
    pub(crate) byte_fallback: bool,
    /// The precompiled normalization table; may be empty.
    pub(crate) charsmap: Vec<u8>,
    pub(crate) add_dummy_prefix: bool,
    pub(crate) remove_extra_whitespaces: bool,
}

impl Model {
    /// Parses a file.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Model, String> {
        let mut model = Model {
            pieces: Vec::new(),
            bpe: false,
            unk_id: 0,
            unk_piece: "<unk>".into(),
            byte_fallback: false,
            charsmap: Vec::new(),
            add_dummy_prefix: true,
            remove_extra_whitespaces: true,
        };
        let mut piece_bytes = 0;
        for field in Fields(bytes) {
            match field? {
                (1, Value::Bytes(piece)) => {
                    let piece = Piece::parse(piece).map_err(|e| format!("piece {}: {e}", model.pieces.len()))?;
                    piece_bytes += piece.text.len();
                    if piece_bytes > MAX_PIECE_BYTES {
                        return Err(format!("its pieces have more than {MAX_PIECE_BYTES} bytes in all"));
                    }
                    model.pieces.push(piece);
                }
                (2, Value::Bytes(spec)) => model.trainer(spec)?,
                (3, Value::Bytes(spec)) => model.normalizer(spec)?,
                _ => {}
            }
        }
        if model.pieces.is_empty() {
            return Err("it has no pieces; it is not a SentencePiece model".into());
        }
        if model.unk_id >= model.pieces.len() {
            return Err(format!("its unknown piece (unk_id) is number {} of {}", model.unk_id, model.pieces.len()));
        }
        Ok(model)
    }

    fn trainer(&mut self, spec: &[u8]) -> Result<(), String> {
        for field in Fields(spec) {
            match field? {
                (3, Value::Number(1)) => self.bpe = false,
                (3, Value::Number(2)) => self.bpe = true,
                (3, Value::Number(n)) => {
                    return Err(format!("it is a SentencePiece model type {n}; supported are unigram (1) and BPE (2)"));
                }
                (35, Value::Number(n)) => self.byte_fallback = n != 0,
                (40, Value::Number(n)) => {
                    self.unk_id = usize::try_from(n).map_err(|_| "its unk_id is not a valid index")?
                }
                (45, Value::Bytes(text)) => self.unk_piece = utf8(text)?,
                _ => {}
            }
        }
        Ok(())
    }

    fn normalizer(&mut self, spec: &[u8]) -> Result<(), String> {
        for field in Fields(spec) {
            match field? {
                (2, Value::Bytes(map)) => {
                    check_charsmap(map)?;
                    self.charsmap = map.to_vec();
                }
                (3, Value::Number(n)) => self.add_dummy_prefix = n != 0,
                (4, Value::Number(n)) => self.remove_extra_whitespaces = n != 0,
                _ => {}
            }
        }
        Ok(())
    }
}

impl Piece {
    fn parse(bytes: &[u8]) -> Result<Piece, String> {
        let mut piece = Piece { text: String::new(), score: 0.0, kind: PieceKind::Plain };
        for field in Fields(bytes) {
            match field? {
                (1, Value::Bytes(text)) => piece.text = utf8(text)?,
                (2, Value::Four(bits)) => piece.score = f32::from_bits(bits),
                (3, Value::Number(3)) => piece.kind = PieceKind::Control,
                (3, Value::Number(4)) => piece.kind = PieceKind::UserDefined,
                (3, Value::Number(_)) => piece.kind = PieceKind::Plain,
                _ => {}
            }
        }
        if piece.text.is_empty() || piece.text.len() > LONGEST_PIECE {
            return Err(format!("its text has {} bytes", piece.text.len()));
        }
        // The library compares scores, and NaN does not compare.
        if !piece.score.is_finite() {
            return Err(format!("its score is {}", piece.score));
        }
        Ok(piece)
    }
}

/// Checks the normalization table: a length, that many bytes of a trie, and texts that end in a
/// zero byte. The library allocates what the length says before it checks.
pub(crate) fn check_charsmap(map: &[u8]) -> Result<(), String> {
    if map.is_empty() {
        return Ok(());
    }
    let bad = || String::from("its normalization table is cut short");
    let (head, rest) = map.split_first_chunk::<4>().ok_or_else(bad)?;
    let trie = u32::from_le_bytes(*head) as usize;
    if trie == 0 || !trie.is_multiple_of(4) || trie > rest.len() {
        return Err(bad());
    }
    match rest[trie..].split(|&b| b == 0).map(<[u8]>::len).max() {
        Some(n) if n > LONGEST_REPLACEMENT => Err(format!("its normalization table replaces a character by {n} bytes")),
        _ => Ok(()),
    }
}

fn utf8(bytes: &[u8]) -> Result<String, String> {
    std::str::from_utf8(bytes).map(str::to_owned).map_err(|_| "a text in it is not UTF-8".into())
}

/// Base64, for bytes in JSON.
pub(crate) fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for three in bytes.chunks(3) {
        let byte = |i: usize| u32::from(*three.get(i).unwrap_or(&0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for i in 0..4 {
            let digit = DIGITS[(bits >> (18 - 6 * i)) as usize & 63] as char;
            out.push(if i <= three.len() { digit } else { '=' });
        }
    }
    out
}

/// A protobuf value by wire type.
#[derive(Debug, PartialEq)]
enum Value<'a> {
    Number(u64),
    Four(u32),
    Bytes(&'a [u8]),
    Eight,
}

/// The fields of a protobuf message. Ends after the first error.
struct Fields<'a>(&'a [u8]);

impl<'a> Iterator for Fields<'a> {
    type Item = Result<(u64, Value<'a>), String>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let field = self.field().ok_or_else(|| "it is not a SentencePiece model, or it is cut short".to_string());
        if field.is_err() {
            self.0 = &[];
        }
        Some(field)
    }
}

impl<'a> Fields<'a> {
    fn field(&mut self) -> Option<(u64, Value<'a>)> {
        let tag = self.varint()?;
        let value = match tag & 7 {
            0 => Value::Number(self.varint()?),
            1 => {
                self.take(8)?;
                Value::Eight
            }
            2 => {
                let length = usize::try_from(self.varint()?).ok()?;
                Value::Bytes(self.take(length)?)
            }
            5 => Value::Four(u32::from_le_bytes(self.take(4)?.try_into().ok()?)),
            _ => return None,
        };
        Some((tag >> 3, value))
    }

    fn take(&mut self, n: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(n)?;
        self.0 = rest;
        Some(taken)
    }

    fn varint(&mut self) -> Option<u64> {
        let mut n = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.take(1)?[0];
            n |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Some(n);
            }
        }
        None
    }
}
