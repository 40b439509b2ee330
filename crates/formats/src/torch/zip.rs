//! Reads the directory of a checkpoint's zip. Written by hand because the entries must be located
//! in the mapped file, not unpacked.

use std::collections::HashMap;
use std::ops::Range;

const LOCAL: u32 = 0x0403_4b50;
const CENTRAL: u32 = 0x0201_4b50;
const END: &[u8] = b"PK\x05\x06";
const END64: u32 = 0x0606_4b50;
const LOCATOR64: u32 = 0x0706_4b50;
/// In a 32-bit field this means that the value is in the zip64 extra field.
const ELSEWHERE: u64 = 0xffff_ffff;

const CUT: &str = "is cut short or damaged; fetch it again";

/// Whether `bytes` begin like a zip.
pub(super) fn is_one(bytes: &[u8]) -> bool {
    number(bytes, 0, 4) == Some(u64::from(LOCAL))
}

/// The entries of the checkpoint `bytes`, by name without torch's top folder.
pub(super) fn entries(bytes: &[u8]) -> Result<HashMap<&str, Range<usize>>, String> {
    let directory = directory(bytes).ok_or(CUT)?;
    let mut entries = HashMap::new();
    let mut spans = Vec::new();
    let mut folder = None;
    let mut at = directory.start;
    while at < directory.end {
        let (name, span, next) = entry(bytes, &directory, at)?;
        let (top, rest) =
            name.split_once('/').ok_or("is a zip, but not one of torch.save (a file without a folder)")?;
        // Like torch, takes the folder's name from the first entry.
        if *folder.get_or_insert(top) == top && entries.insert(rest, span.clone()).is_some() {
            return Err(format!("holds two entries of the name {}", super::pickle::escaped(name.as_bytes())));
        }
        spans.push((span.start, span.end));
        at = next;
    }
    // Torch writes entries one after the other. If they overlapped, two programs could read two
    // different models.
    spans.sort_unstable();
    if spans.windows(2).any(|pair| pair[0].1 > pair[1].0) {
        return Err("holds entries that overlap".into());
    }
    Ok(entries)
}

/// The range of the central directory.
fn directory(bytes: &[u8]) -> Option<Range<usize>> {
    // The end record is last in the file, except for a comment of at most 64 KiB whose length
    // precedes it.
    let last = bytes.len().checked_sub(22)?;
    let end = (last.saturating_sub(0xffff)..=last)
        .rev()
        .find(|&at| bytes[at..].starts_with(END) && number(bytes, at + 20, 2) == Some((last - at) as u64))?;
    let locator = end.checked_sub(20).filter(|&at| number(bytes, at, 4) == Some(u64::from(LOCATOR64)));
    let (size, start, limit) = match locator {
        Some(at) => {
            let end = usize::try_from(number(bytes, at + 8, 8)?).ok()?;
            if number(bytes, end, 4)? != u64::from(END64) {
                return None;
            }
            (number(bytes, end.checked_add(40)?, 8)?, number(bytes, end.checked_add(48)?, 8)?, end)
        }
        None => (number(bytes, end + 12, 4)?, number(bytes, end + 16, 4)?, end),
    };
    let start = usize::try_from(start).ok()?;
    let stop = start.checked_add(usize::try_from(size).ok()?)?;
    (stop <= limit).then_some(start..stop)
}

/// The directory entry at `at`: its name, its range, and the offset of the next.
fn entry<'a>(bytes: &'a [u8], directory: &Range<usize>, at: usize) -> Result<(&'a str, Range<usize>, usize), String> {
    let listed = &bytes[..directory.end];
    let field = |offset: usize, size: usize| number(listed, at + offset, size).ok_or(CUT);
    if field(0, 4)? != u64::from(CENTRAL) {
        return Err(CUT.into());
    }
    let (flags, method) = (field(8, 2)?, field(10, 2)?);
    let (mut packed, mut size, mut local) = (field(20, 4)?, field(24, 4)?, field(42, 4)?);
    // Three 16-bit lengths: their sum cannot overflow.
    let (names, extras, comment) = (field(28, 2)? as usize, field(30, 2)? as usize, field(32, 2)? as usize);
    let name = listed.get(at + 46..at + 46 + names).ok_or(CUT)?;
    let extra = listed.get(at + 46 + names..at + 46 + names + extras).ok_or(CUT)?;
    let next = at + 46 + names + extras + comment;
    if next > directory.end {
        return Err(CUT.into());
    }
    let escaped = || super::pickle::escaped(name);
    if flags & 1 != 0 || method != 0 {
        let state = if method == 0 { "encrypted" } else { "compressed" };
        return Err(format!("holds {} {state}; torch.save stores it plainly, save it again in Python", escaped()));
    }
    let mut wide = zip64(extra);
    for value in [&mut size, &mut packed, &mut local] {
        if *value == ELSEWHERE {
            let (now, later) = wide.split_first_chunk().ok_or(CUT)?;
            (*value, wide) = (u64::from_le_bytes(*now), later);
        }
    }
    // The data follows a local header, whose extra field (torch pads with it) may have another
    // length.
    let head = usize::try_from(local).ok().filter(|&l| number(bytes, l, 4) == Some(u64::from(LOCAL))).ok_or(CUT)?;
    let tail = |offset: usize| number(bytes, head + offset, 2).map(|n| n as usize).ok_or(CUT);
    let (named, padded) = (tail(26)?, tail(28)?);
    if bytes.get(head + 30..head + 30 + named) != Some(name) {
        return Err(format!("calls an entry {} in its directory and something else in its local header", escaped()));
    }
    let start = head + 30 + named + padded;
    let end = usize::try_from(size).ok().and_then(|size| start.checked_add(size)).filter(|&end| end <= directory.start);
    match (end, std::str::from_utf8(name)) {
        (Some(end), Ok(name)) if packed == size => Ok((name, start..end, next)),
        _ => Err(format!("has an entry {} outside the file; it is cut short or damaged, fetch it again", escaped())),
    }
}

/// The body of the zip64 field among the extra fields.
fn zip64(mut extra: &[u8]) -> &[u8] {
    while let (Some(id), Some(size)) = (number(extra, 0, 2), number(extra, 2, 2)) {
        let Some((field, rest)) = extra[4..].split_at_checked(size as usize) else { break };
        if id == 1 {
            return field;
        }
        extra = rest;
    }
    &[]
}

/// The little-endian number of `size` bytes at `at`.
fn number(bytes: &[u8], at: usize, size: usize) -> Option<u64> {
    let digits = bytes.get(at..at.checked_add(size)?)?;
    Some(digits.iter().rev().fold(0, |n, &digit| n << 8 | u64::from(digit)))
}
