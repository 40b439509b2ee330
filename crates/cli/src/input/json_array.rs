//! JSON files that hold one array of objects or strings, read item by item.

use super::MAX_ROW_BYTES;
use super::lines::open_file;
use super::record::{Content, Record};
use crate::Failure;
use crate::row::Row;
use serde_json::Value;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

pub(super) struct JsonArray {
    reader: Box<dyn BufRead + Send>,
    name: String,
    /// Items read so far.
    items: usize,
    is_over: bool,
}

impl JsonArray {
    pub(super) fn open(path: &Path) -> Result<JsonArray, Failure> {
        let (file, name) = open_file(path)?;
        Ok(JsonArray::new(Box::new(BufReader::with_capacity(1 << 16, file)), name))
    }

    pub(super) fn new(reader: Box<dyn BufRead + Send>, name: String) -> JsonArray {
        JsonArray { reader, name, items: 0, is_over: false }
    }

    /// The bytes of the next item; `None` at the end of the array.
    fn item(&mut self) -> Result<Option<Vec<u8>>, String> {
        let fail = |e: io::Error| e.to_string();
        let mut next = self.next_byte().map_err(fail)?;
        if self.items == 0 {
            if next != Some(b'[') {
                return Err("not an array of objects or strings; for one object per line, name the file .jsonl".into());
            }
            next = self.next_byte().map_err(fail)?;
        }
        match next {
            Some(b']') => return self.end(),
            // The first item has no comma before it.
            Some(b',') if self.items > 0 => next = self.next_byte().map_err(fail)?,
            Some(_) if self.items == 0 => {}
            Some(_) => return Err("a comma is missing before this item".into()),
            None => {}
        }
        self.items += 1;
        match next {
            Some(first) => self.rest_of_item(first).map(Some),
            None => Err("the file ends within the array".into()),
        }
    }

    /// After the array, only blanks may follow.
    fn end(&mut self) -> Result<Option<Vec<u8>>, String> {
        self.is_over = true;
        match self.next_byte().map_err(|e| e.to_string())? {
            None => Ok(None),
            Some(_) => Err("more follows after the end of the array".into()),
        }
    }

    /// The next byte that is no blank.
    fn next_byte(&mut self) -> io::Result<Option<u8>> {
        for byte in self.reader.by_ref().bytes() {
            let byte = byte?;
            if !byte.is_ascii_whitespace() {
                return Ok(Some(byte));
            }
        }
        Ok(None)
    }

    /// The item that begins with `first`: up to its closing bracket or quote, or for other values
    /// up to the next comma or bracket, which stays unread.
    fn rest_of_item(&mut self, first: u8) -> Result<Vec<u8>, String> {
        let mut item = vec![first];
        let (mut depth, mut is_string, mut is_escaped) =
            (usize::from(matches!(first, b'{' | b'[')), first == b'"', false);
        while depth > 0 || is_string {
            let buffer = self.reader.fill_buf().map_err(|e| e.to_string())?;
            if buffer.is_empty() {
                return Err("the file ends within the array".into());
            }
            let mut used = 0;
            for byte in buffer {
                used += 1;
                match (is_string, *byte) {
                    (true, _) if is_escaped => is_escaped = false,
                    (true, b'\\') => is_escaped = true,
                    (_, b'"') => is_string = !is_string,
                    (false, b'{' | b'[') => depth += 1,
                    (false, b'}' | b']') => depth -= 1,
                    _ => {}
                }
                if depth == 0 && !is_string {
                    break;
                }
            }
            item.extend_from_slice(&buffer[..used]);
            self.reader.consume(used);
            if item.len() > MAX_ROW_BYTES {
                return Err(format!("the item is longer than {} MiB", MAX_ROW_BYTES >> 20));
            }
        }
        if !matches!(first, b'{' | b'[' | b'"') {
            return Err("not an object or a string".into());
        }
        Ok(item)
    }
}

impl Iterator for JsonArray {
    type Item = Result<Record, Failure>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.is_over {
            return None;
        }
        let item = self.item();
        let origin = format!("{}: item {}", self.name, self.items.max(1));
        let fail = |why: String| Some(Err(format!("{origin}: {why}").into()));
        let item = match item {
            Ok(Some(item)) => item,
            Ok(None) => return None,
            Err(why) => {
                self.is_over = true;
                return fail(why);
            }
        };
        let bytes = item.len() as u64 + 1;
        match serde_json::from_slice(&item) {
            Ok(Value::Object(fields)) => Some(Ok(Record { content: Content::Row(Row::Object(fields)), origin, bytes })),
            Ok(Value::String(text)) => Some(Ok(Record { content: Content::Text(text), origin, bytes })),
            Ok(_) => fail("not an object or a string".into()),
            Err(e) => fail(format!("not JSON: {e}")),
        }
    }
}
