//! Checks the schema in the footer of a Parquet file before the `parquet` crate reads it: the crate
//! allocates as many children as a group claims and recurses as deep as groups are nested.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};

/// Deepest nesting of groups.
const MAX_DEPTH: usize = 64;

/// Largest footer.
const MAX_FOOTER_BYTES: u64 = 256 << 20;

const NO_SCHEMA: &str = "damaged: its schema cannot be read";

/// Checks the schema. Rewinds the file.
pub(super) fn check(file: &mut File) -> Result<(), String> {
    let fail = |e: std::io::Error| e.to_string();
    let size = file.metadata().map_err(fail)?.len();
    let mut end = [0; 8];
    if size < 12 {
        return Err(format!("not a Parquet file: it has only {size} bytes"));
    }
    file.seek(SeekFrom::End(-8)).map_err(fail)?;
    file.read_exact(&mut end).map_err(fail)?;
    let length = length(end, size)?;
    let mut footer = vec![0; length as usize];
    file.seek(SeekFrom::End(-8 - length as i64)).map_err(fail)?;
    file.read_exact(&mut footer).map_err(fail)?;
    file.rewind().map_err(fail)?;
    check_metadata(&footer)
}

/// Bytes of the footer, by the last bytes of a file of this size.
pub(crate) fn length(end: [u8; 8], size: u64) -> Result<u64, String> {
    match &end[4..] {
        b"PAR1" => {}
        b"PARE" => return Err("encrypted, which is not supported".into()),
        _ => return Err("not a Parquet file, or not complete: it does not end with `PAR1`".into()),
    }
    let length = u64::from(u32::from_le_bytes([end[0], end[1], end[2], end[3]]));
    if length + 8 > size || length > MAX_FOOTER_BYTES {
        return Err(format!("damaged: its footer claims {length} bytes of {size}"));
    }
    Ok(length)
}

/// Checks the schema of serialized metadata.
pub(super) fn check_metadata(footer: &[u8]) -> Result<(), String> {
    let counts = Thrift { bytes: footer }.schema().ok_or(NO_SCHEMA)?;
    // Children that each open group still expects.
    let mut open: Vec<usize> = Vec::new();
    for (i, children) in counts.iter().enumerate() {
        if i > 0 {
            // An element after the end of the root is reported by the crate.
            let Some(left) = open.last_mut() else { return Ok(()) };
            *left -= 1;
        }
        if *children > counts.len() {
            return Err(format!(
                "damaged: its schema has a group of {children} fields, but only {} in all",
                counts.len()
            ));
        }
        if *children > 0 {
            open.push(*children);
        }
        if open.len() > MAX_DEPTH {
            return Err(format!("its columns are nested more than {MAX_DEPTH} deep"));
        }
        while open.last() == Some(&0) {
            open.pop();
        }
    }
    Ok(())
}

/// Thrift's compact protocol, as much as finding the schema needs.
struct Thrift<'a> {
    bytes: &'a [u8],
}

impl Thrift<'_> {
    /// The number of children of each schema element: field 2 of the metadata is the list, field 5
    /// of an element the number.
    fn schema(&mut self) -> Option<Vec<usize>> {
        let mut last = 0;
        while let Some((id, of)) = self.field(&mut last)? {
            if id == 2 && of == 9 {
                let (count, of) = self.list()?;
                // An element has at least one byte.
                if of != 12 || count > self.bytes.len() {
                    return None;
                }
                return (0..count).map(|_| self.children()).collect();
            }
            self.skip(of, MAX_DEPTH)?;
        }
        None
    }

    fn children(&mut self) -> Option<usize> {
        let (mut last, mut children) = (0, 0);
        while let Some((id, of)) = self.field(&mut last)? {
            if id == 5 && of == 5 {
                let zigzag = self.varint()?;
                // A negative number is reported by the crate.
                children = if zigzag & 1 == 0 { usize::try_from(zigzag >> 1).ok()? } else { 0 };
            } else {
                self.skip(of, MAX_DEPTH)?;
            }
        }
        Some(children)
    }

    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.bytes.split_first()?;
        self.bytes = rest;
        Some(*first)
    }

    fn varint(&mut self) -> Option<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Some(value);
            }
        }
        None
    }

    /// Number and type of the next field of a struct; `Some(None)` at its end.
    #[expect(clippy::option_option, reason = "the end of a struct is not the end of the bytes")]
    fn field(&mut self, last: &mut u64) -> Option<Option<(u64, u8)>> {
        let header = self.byte()?;
        if header == 0 {
            return Some(None);
        }
        *last = match header >> 4 {
            0 => self.varint()? >> 1,
            delta => last.checked_add(u64::from(delta))?,
        };
        Some(Some((*last, header & 0x0f)))
    }

    /// Length and element type of a list.
    fn list(&mut self) -> Option<(usize, u8)> {
        let header = self.byte()?;
        let count = match header >> 4 {
            15 => usize::try_from(self.varint()?).ok()?,
            count => usize::from(count),
        };
        Some((count, header & 0x0f))
    }

    fn take(&mut self, count: usize) -> Option<()> {
        self.bytes = self.bytes.get(count..)?;
        Some(())
    }

    /// Skips an element of a list or a map, where a boolean is a byte.
    fn skip_element(&mut self, of: u8, depth: usize) -> Option<()> {
        if matches!(of, 1 | 2) { self.take(1) } else { self.skip(of, depth) }
    }

    fn skip(&mut self, of: u8, depth: usize) -> Option<()> {
        let depth = depth.checked_sub(1)?;
        match of {
            // A boolean field is its type.
            1 | 2 => Some(()),
            3 => self.take(1),
            4..=6 => self.varint().map(drop),
            7 => self.take(8),
            8 => {
                let count = usize::try_from(self.varint()?).ok()?;
                self.take(count)
            }
            9 | 10 => {
                let (count, of) = self.list()?;
                (0..count).try_for_each(|_| self.skip_element(of, depth))
            }
            11 => {
                let count = self.varint()?;
                let of = if count > 0 { self.byte()? } else { 0 };
                (0..count).try_for_each(|_| {
                    self.skip_element(of >> 4, depth)?;
                    self.skip_element(of & 0x0f, depth)
                })
            }
            12 => {
                let mut last = 0;
                while let Some((_, of)) = self.field(&mut last)? {
                    self.skip(of, depth)?;
                }
                Some(())
            }
            _ => None,
        }
    }
}
