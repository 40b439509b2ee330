//! The format of torch.save before 1.6: no container, but five consecutive pickles (magic number,
//! version, machine information, the object itself, the keys of its storages), and then the
//! storages in the order of their keys, each after its element count. The position of a storage
//! depends on all storages before it, so every storage must match the pickle, even those outside
//! the state dict.

use super::Checkpoint;
use super::pickle::{LONGEST, Machine, Value, escaped};
use super::state::{Storage, storage};
use std::collections::HashMap;
use std::collections::hash_map::Entry::{Occupied, Vacant};

/// The number 0x1950a86a20f9469cfc6c, and the end of its pickle.
const MAGIC: &[u8] = b"\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.";
const VERSION: i64 = 1001;

/// The offset after the magic number, if the file begins with it.
pub(super) fn after_magic(bytes: &[u8]) -> Option<usize> {
    let mut rest = bytes.strip_prefix(b"\x80")?.get(1..)?;
    // Since protocol 4 it is framed.
    if rest.first() == Some(&0x95) {
        rest = rest.get(9..)?;
    }
    rest.strip_prefix(MAGIC).map(|rest| bytes.len() - rest.len())
}

/// Parses the checkpoint `bytes`; `at` is the offset after the magic number. Bytes after the last
/// storage are ignored: several such files may be concatenated, and torch reads the first.
pub(super) fn checkpoint(bytes: &[u8], mut at: usize) -> Result<Checkpoint<'_>, String> {
    match next(bytes, &mut at)?.1 {
        Value::Int(VERSION) => {}
        _ => {
            return Err(format!(
                "is of another version of torch's older format than {VERSION}; save it again in Python"
            ));
        }
    }
    let (system, about) = next(bytes, &mut at)?;
    let is_order = |(key, _): &_| matches!(key, Value::Text(b"little_endian"));
    match about {
        // As in Python, the last entry of a key counts.
        Value::Dict(dict) => match system.entries(dict).filter(is_order).last() {
            Some((_, Value::Bool(true))) => {}
            Some((_, Value::Bool(false))) => return Err(super::BIG_ENDIAN.into()),
            _ => return Err("does not say in which order its bytes are (little_endian); save it again".into()),
        },
        _ => return Err("does not say on what machine it was written; it is damaged, fetch it again".into()),
    }
    let (machine, value) = next(bytes, &mut at)?;
    let mut named = named(&machine)?;
    let (list, Value::List(keys)) = next(bytes, &mut at)? else {
        return Err("does not list its storages; it is damaged, fetch it again".into());
    };
    let mut storages = HashMap::new();
    for key in list.texts(keys) {
        let Some((key, storage)) = std::str::from_utf8(key).ok().and_then(|key| named.remove_entry(key)) else {
            return Err(format!("lists the storage {} twice, or its pickle does not name it", escaped(key)));
        };
        let start = at.saturating_add(8);
        let count = bytes.get(at..start).and_then(|count| Some(u64::from_le_bytes(count.try_into().ok()?)));
        if count.is_some_and(|count| count != storage.length as u64) {
            let (count, length) = (count.unwrap_or(0), storage.length);
            return Err(format!(
                "counts {count} elements in the storage {} that its pickle gives {length}; it is damaged, fetch it again",
                escaped(key.as_bytes())
            ));
        }
        let size = storage.length.checked_mul(storage.dtype.map_or(1, super::Dtype::size));
        let end = size.and_then(|size| start.checked_add(size)).filter(|&end| end <= bytes.len());
        at = end.filter(|_| count.is_some()).ok_or_else(|| {
            format!("ends before its storage {} does; it is cut short, fetch it again", escaped(key.as_bytes()))
        })?;
        storages.insert(key, start..at);
    }
    match named.keys().next() {
        Some(key) => Err(format!("does not list the storage {} that its pickle names", escaped(key.as_bytes()))),
        None => Ok(Checkpoint { machine, value, storages }),
    }
}

/// Parses the pickle at `at` and moves `at` past it.
fn next<'a>(bytes: &'a [u8], at: &mut usize) -> Result<(Machine<'a>, Value<'a>), String> {
    // The storages may have many gigabytes; no search for a line end may run into them.
    let rest = &bytes[*at..];
    let near = &rest[..rest.len().min(LONGEST)];
    let (machine, value) = Machine::run(near)?;
    *at += near.len() - machine.rest.len();
    Ok((machine, value))
}

/// The storages that the pickle names. Tensors that share one name it repeatedly, and must agree.
fn named<'a>(machine: &Machine<'a>) -> Result<HashMap<&'a str, Storage<'a>>, String> {
    let mut named = HashMap::new();
    for &id in machine.storages() {
        let found = storage(machine, id).map_err(|what| format!("holds a tensor that cannot be read: {what}"))?;
        match named.entry(found.key) {
            Vacant(free) => drop(free.insert(found)),
            Occupied(same) if *same.get() == found => {}
            Occupied(_) => return Err(format!("describes the storage {} in two ways", escaped(found.key.as_bytes()))),
        }
    }
    Ok(named)
}
