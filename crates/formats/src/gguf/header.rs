//! Parser of the GGUF header: metadata keys with values, and the tensors' positions. It checks
//! everything once, so that later code can slice without checks. Only names are copied; long values
//! stay in the file.

use super::ggml::{self, GgmlType};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry::{Occupied, Vacant};
use std::ops::Range;

/// The limit of ggml.
const MAX_DIMS: u32 = 4;
/// Most tensors, and most keys. Bounded, because an entry takes more memory here than in the file;
/// no model has a tenth as many.
const MAX_ENTRIES: u64 = 1 << 16;

/// The header of one file.
pub(super) struct Header {
    pub(super) values: BTreeMap<String, Value>,
    /// In the order of the file; names are unique and ranges do not overlap.
    pub(super) tensors: Vec<(String, Tensor)>,
}

/// A tensor as the file stores it.
#[derive(Clone, Debug)]
pub(super) struct Tensor {
    pub(super) kind: &'static GgmlType,
    /// Row-major; the file writes them in reverse order.
    pub(super) dims: Vec<usize>,
    /// Its range in the file, exactly as long as its dimensions say.
    pub(super) bytes: Range<usize>,
}

/// A metadata value. Texts and arrays are ranges of the file.
#[derive(Clone, Debug)]
pub(super) enum Value {
    Unsigned(u64),
    Signed(i64),
    F32(f32),
    F64(f64),
    Bool(bool),
    Text(Range<usize>),
    Array(Array),
}

#[derive(Clone, Debug)]
pub(super) struct Array {
    pub(super) item: Item,
    pub(super) count: usize,
    pub(super) bytes: Range<usize>,
}

/// Type of a value or of an array's items.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Item {
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    F32,
    Bool,
    Text,
    U64,
    I64,
    F64,
}

impl Item {
    /// Size in bytes; a text has no fixed size.
    pub(super) fn size(self) -> Option<usize> {
        match self {
            Item::U8 | Item::I8 | Item::Bool => Some(1),
            Item::U16 | Item::I16 => Some(2),
            Item::U32 | Item::I32 | Item::F32 => Some(4),
            Item::U64 | Item::I64 | Item::F64 => Some(8),
            Item::Text => None,
        }
    }
}

/// Why a read failed. `at` adds where.
enum ReadError {
    Cut,
    NotText,
    /// An array of arrays, which no model has and which could nest without limit.
    Nested,
    NotBool(u8),
    UnknownType(u32),
}

impl ReadError {
    fn at(self, place: &str) -> String {
        match self {
            ReadError::Cut => format!("ends inside {place}; it is cut short, fetch it again"),
            ReadError::NotText => format!("has {place} that is not UTF-8 text; it is damaged, fetch it again"),
            ReadError::Nested => format!("has an array of arrays in {place}, which is not supported"),
            ReadError::NotBool(byte) => {
                format!("has {byte} for a boolean in {place}; it is damaged, fetch it again")
            }
            ReadError::UnknownType(id) => {
                format!("has {place} of the unknown type {id}; it is damaged, or newer than this program")
            }
        }
    }
}

/// Parses the header of the file `bytes`. The error completes a sentence that begins with the
/// file's name.
pub(super) fn parse(bytes: &[u8]) -> Result<Header, String> {
    let mut reader = Reader { bytes, at: 0 };
    let inside = |place: &'static str| move |error: ReadError| error.at(place);
    if !bytes.starts_with(b"GGUF") {
        return Err(
            "is not a GGUF file: it has another format, or the download saved a Git LFS pointer or a web page instead; \
                    fetch it again"
                .into(),
        );
    }
    reader.at = 4;
    match reader.u32().map_err(inside("its version"))? {
        2 | 3 => {}
        1 => return Err("is GGUF version 1, of 2023, which is not supported; convert the model again".into()),
        version if matches!(version.swap_bytes(), 1..=0xffff) => {
            return Err(
                "was written for a big-endian machine, which is not supported; convert the model again without \
                        --bigendian"
                    .into(),
            );
        }
        version => return Err(format!("is GGUF version {version}; 2 and 3 are supported")),
    }
    let tensors = reader.u64().map_err(inside("its number of tensors"))?;
    let keys = reader.u64().map_err(inside("its number of keys"))?;
    for (what, count) in [("tensors", tensors), ("keys", keys)] {
        if count > MAX_ENTRIES {
            return Err(format!(
                "says that it has {count} {what}; no model has more than {MAX_ENTRIES}, so it is damaged"
            ));
        }
    }
    let values = reader.values(keys)?;
    let alignment = alignment(&values)?;
    let mut infos = Vec::new();
    for index in 0..tensors {
        infos.push(reader.info(index)?);
    }
    // The data begins at the next multiple. A file without tensors may end before it.
    let data = reader.at.checked_next_multiple_of(alignment).ok_or("is longer than any memory")?;
    let mut placed = BTreeMap::new();
    let mut tensors = Vec::with_capacity(infos.len());
    for info in infos {
        let name = info.name.clone();
        let tensor = info.locate(data, alignment, bytes.len())?;
        match placed.entry(name.clone()) {
            Vacant(free) => drop(free.insert(tensor.bytes.clone())),
            Occupied(_) => return Err(format!("holds the tensor {} twice", quoted(&name))),
        }
        tensors.push((name, tensor));
    }
    check_no_overlap(&placed)?;
    Ok(Header { values, tensors })
}

/// Checks that no two tensors overlap.
fn check_no_overlap(placed: &BTreeMap<String, Range<usize>>) -> Result<(), String> {
    let mut order: Vec<_> = placed.iter().collect();
    order.sort_by_key(|(_, bytes)| bytes.start);
    for pair in order.windows(2) {
        if let [(first, a), (second, b)] = pair
            && a.end > b.start
        {
            return Err(format!(
                "has the tensors {} and {} in the same place; it is damaged, fetch it again",
                quoted(first),
                quoted(second)
            ));
        }
    }
    Ok(())
}

/// The alignment of the data and of every tensor in it.
fn alignment(values: &BTreeMap<String, Value>) -> Result<usize, String> {
    match values.get("general.alignment") {
        None => Ok(32),
        Some(Value::Unsigned(n)) => usize::try_from(*n)
            .ok()
            .filter(|n| n.is_power_of_two())
            .ok_or_else(|| format!("has the alignment {n} (general.alignment), which is not a power of two")),
        Some(_) => Err("has a general.alignment that is not a whole number".into()),
    }
}

/// A tensor description, before the start of the data is known.
struct Info {
    name: String,
    kind: u32,
    dims: Vec<u64>,
    offset: u64,
}

impl Info {
    fn locate(self, data: usize, alignment: usize, end: usize) -> Result<Tensor, String> {
        let Info { name, kind, dims, offset } = self;
        let fail = |what: String| format!("holds a tensor that cannot be read: {}: {what}", quoted(&name));
        let kind = ggml::find(kind).ok_or_else(|| {
            fail(format!("its type {kind} is unknown; it is damaged, newer than this program, or no longer supported"))
        })?;
        let sizes: Option<Vec<usize>> =
            dims.iter().rev().map(|&d| usize::try_from(d).ok().filter(|&d| d > 0)).collect();
        let sizes = sizes.ok_or_else(|| fail(format!("its dimensions {dims:?} are not all larger than 0")))?;
        if sizes.last().is_some_and(|row| row % kind.block != 0) {
            let row = sizes.last().copied().unwrap_or(0);
            return Err(fail(format!("its rows of {row} are not whole blocks of {} in {}", kind.block, kind.name)));
        }
        // The element count must not overflow either.
        let count = sizes.iter().try_fold(1usize, |n, &d| n.checked_mul(d));
        let length = kind.bytes(&sizes).filter(|_| count.is_some());
        let length = length.ok_or_else(|| fail(format!("its dimensions {sizes:?} are larger than any memory")))?;
        if offset % alignment as u64 != 0 {
            return Err(fail(format!("it begins at {offset}, which is no multiple of the alignment {alignment}")));
        }
        let start = usize::try_from(offset).ok().and_then(|offset| data.checked_add(offset));
        let range = start.and_then(|start| Some(start..start.checked_add(length)?)).filter(|range| range.end <= end);
        let bytes = range.ok_or_else(|| {
            fail(format!(
                "its {length} bytes from {offset} on reach beyond the end; the file is cut short, fetch it again"
            ))
        })?;
        Ok(Tensor { kind, dims: sizes, bytes })
    }
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Reader<'_> {
    fn values(&mut self, count: u64) -> Result<BTreeMap<String, Value>, String> {
        let mut values = BTreeMap::new();
        // The count is untrusted; each round reads at least twelve bytes or fails.
        for index in 0..count {
            let key = self.text().map_err(|error| error.at(&format!("the name of key {index}")))?;
            let key = self.str(key);
            let value = self.value().map_err(|error| error.at(&format!("the value of {}", quoted(&key))))?;
            if values.contains_key(&key) {
                return Err(format!("has the key {} twice", quoted(&key)));
            }
            values.insert(key, value);
        }
        Ok(values)
    }

    fn info(&mut self, index: u64) -> Result<Info, String> {
        let name = self.text().map_err(|error| error.at(&format!("the name of tensor {index}")))?;
        let name = self.str(name);
        let place = |error: ReadError| error.at(&format!("the description of tensor {}", quoted(&name)));
        let count = self.u32().map_err(place)?;
        // A scalar has one dimension of 1. Later code relies on at least one dimension.
        if !(1..=MAX_DIMS).contains(&count) {
            let name = quoted(&name);
            return Err(format!("has a tensor of {count} dimensions, {name}; 1 to {MAX_DIMS} are supported"));
        }
        let dims = (0..count).map(|_| self.u64()).collect::<Result<_, _>>().map_err(place)?;
        let kind = self.u32().map_err(place)?;
        let offset = self.u64().map_err(place)?;
        Ok(Info { name, kind, dims, offset })
    }

    fn value(&mut self) -> Result<Value, ReadError> {
        const ARRAY: u32 = 9;
        let id = self.u32()?;
        if id != ARRAY {
            let item = item(id)?;
            return self.scalar(item);
        }
        let id = self.u32()?;
        let item = if id == ARRAY { return Err(ReadError::Nested) } else { item(id)? };
        let count = usize::try_from(self.u64()?).map_err(|_| ReadError::Cut)?;
        let start = self.at;
        match item.size() {
            Some(size) => drop(self.take(count.checked_mul(size).ok_or(ReadError::Cut)?)?),
            None => {
                for _ in 0..count {
                    self.text()?;
                }
            }
        }
        Ok(Value::Array(Array { item, count, bytes: start..self.at }))
    }

    fn scalar(&mut self, item: Item) -> Result<Value, ReadError> {
        Ok(match item {
            Item::U8 => Value::Unsigned(u8::from_le_bytes(self.array()?).into()),
            Item::I8 => Value::Signed(i8::from_le_bytes(self.array()?).into()),
            Item::U16 => Value::Unsigned(u16::from_le_bytes(self.array()?).into()),
            Item::I16 => Value::Signed(i16::from_le_bytes(self.array()?).into()),
            Item::U32 => Value::Unsigned(self.u32()?.into()),
            Item::I32 => Value::Signed(i32::from_le_bytes(self.array()?).into()),
            Item::F32 => Value::F32(f32::from_le_bytes(self.array()?)),
            Item::U64 => Value::Unsigned(self.u64()?),
            Item::I64 => Value::Signed(i64::from_le_bytes(self.array()?)),
            Item::F64 => Value::F64(f64::from_le_bytes(self.array()?)),
            Item::Bool => match self.array()? {
                [byte @ 0..=1] => Value::Bool(byte == 1),
                [byte] => return Err(ReadError::NotBool(byte)),
            },
            Item::Text => Value::Text(self.text()?),
        })
    }

    /// The range of a text, checked to be UTF-8.
    fn text(&mut self) -> Result<Range<usize>, ReadError> {
        let length = usize::try_from(self.u64()?).map_err(|_| ReadError::Cut)?;
        let start = self.at;
        std::str::from_utf8(self.take(length)?).map_err(|_| ReadError::NotText)?;
        Ok(start..self.at)
    }

    fn str(&self, at: Range<usize>) -> String {
        String::from_utf8_lossy(&self.bytes[at]).into_owned()
    }

    fn u32(&mut self) -> Result<u32, ReadError> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, ReadError> {
        self.array().map(u64::from_le_bytes)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], ReadError> {
        self.take(N)?.try_into().map_err(|_| ReadError::Cut)
    }

    fn take(&mut self, length: usize) -> Result<&[u8], ReadError> {
        let end = self.at.checked_add(length).ok_or(ReadError::Cut)?;
        let taken = self.bytes.get(self.at..end).ok_or(ReadError::Cut)?;
        self.at = end;
        Ok(taken)
    }
}

fn item(id: u32) -> Result<Item, ReadError> {
    Ok(match id {
        0 => Item::U8,
        1 => Item::I8,
        2 => Item::U16,
        3 => Item::I16,
        4 => Item::U32,
        5 => Item::I32,
        6 => Item::F32,
        7 => Item::Bool,
        8 => Item::Text,
        10 => Item::U64,
        11 => Item::I64,
        12 => Item::F64,
        id => return Err(ReadError::UnknownType(id)),
    })
}

/// Quotes a name from a file for a message: limited in length, and with control characters escaped.
pub(super) fn quoted(name: &str) -> String {
    const LONGEST: usize = 80;
    let mut text: String = name.chars().take(LONGEST).flat_map(char::escape_debug).collect();
    if name.chars().nth(LONGEST).is_some() {
        text.push('…');
    }
    format!("`{text}`")
}
