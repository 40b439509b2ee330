//! CSV and TSV files: the first record names the fields, and all values are strings.

use super::lines::open_file;
use super::record::{Content, Record};
use super::{MAX_ROW_BYTES, check_names};
use crate::Failure;
use crate::row::Row;
use csv::{ByteRecord, ErrorKind, Reader, ReaderBuilder};
use serde_json::{Map, Value};
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::Path;

pub(super) struct CsvRecords {
    reader: Reader<CheckedBytes<File>>,
    names: Vec<String>,
    name: String,
    record: ByteRecord,
    broken: bool,
}

impl CsvRecords {
    pub(super) fn open(path: &Path, delimiter: u8) -> Result<CsvRecords, Failure> {
        let (file, name) = open_file(path)?;
        let bytes = CheckedBytes::new(file, delimiter);
        let reader = ReaderBuilder::new().delimiter(delimiter).has_headers(false).from_reader(bytes);
        let (names, record) = (Vec::new(), ByteRecord::new());
        let mut records = CsvRecords { reader, names, name, record, broken: false };
        if !records.read()? {
            return Err(format!("{}: empty; the first line must name the fields", records.name).into());
        }
        let names = (0..records.record.len()).map(|i| records.value(i)).collect::<Result<Vec<_>, _>>()?;
        check_names(&records.name, &names)?;
        records.names = names;
        Ok(records)
    }

    pub(super) fn names(&self) -> &[String] {
        &self.names
    }

    /// Reads the next record; `false` at the end.
    fn read(&mut self) -> Result<bool, Failure> {
        self.reader.get_mut().left = MAX_ROW_BYTES;
        let line = self.reader.position().line();
        let why = match self.reader.read_byte_record(&mut self.record) {
            Ok(more) => return Ok(more),
            Err(e) => e,
        };
        let (line, why) = match why.kind() {
            ErrorKind::UnequalLengths { pos, expected_len, len } => {
                let line = pos.as_ref().map_or(line, csv::Position::line);
                (line, format!("{len} values, but the first line names {expected_len} fields; check the quotes"))
            }
            ErrorKind::Io(e) => (line, e.to_string()),
            _ => (line, why.to_string()),
        };
        Err(format!("{}:{line}: {why}", self.name).into())
    }

    fn origin(&self) -> String {
        let line = self.record.position().map_or(1, csv::Position::line);
        format!("{}:{line}", self.name)
    }

    /// Value `i` of the current record.
    fn value(&self, i: usize) -> Result<String, Failure> {
        match std::str::from_utf8(&self.record[i]) {
            Ok(value) => Ok(value.to_string()),
            Err(_) => {
                let why = format!("value {} is not UTF-8; convert the file first, for example with iconv", i + 1);
                Err(format!("{}: {why}", self.origin()).into())
            }
        }
    }

    fn row(&self) -> Result<Record, Failure> {
        let field = |(i, name): (usize, &String)| Ok((name.clone(), Value::String(self.value(i)?)));
        let fields = self.names.iter().enumerate().map(field).collect::<Result<Map<_, _>, Failure>>()?;
        let start = self.record.position().map_or(0, csv::Position::byte);
        let bytes = self.reader.position().byte().saturating_sub(start);
        Ok(Record { content: Content::Row(Row::Object(fields)), origin: self.origin(), bytes })
    }
}

impl Iterator for CsvRecords {
    type Item = Result<Record, Failure>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.broken {
            return None;
        }
        match self.read() {
            Ok(true) => Some(self.row()),
            Ok(false) => None,
            Err(e) => {
                self.broken = true;
                Some(Err(e))
            }
        }
    }
}

/// The bytes of a CSV file without its byte order mark. Reading fails where the crate would go on:
/// in a record that is too long, and at the end of the file within quotes.
struct CheckedBytes<R: Read> {
    bytes: BufReader<R>,
    delimiter: u8,
    state: QuoteState,
    /// Bytes that the current record may still have.
    left: usize,
    is_started: bool,
}

/// The states of csv-core that matter for quotes.
#[derive(Clone, Copy, PartialEq)]
enum QuoteState {
    FieldStart,
    Unquoted,
    Quoted,
    /// After a quote within quotes, which ends the field unless another quote follows.
    QuoteInQuotes,
}

impl<R: Read> CheckedBytes<R> {
    fn new(bytes: R, delimiter: u8) -> CheckedBytes<R> {
        let bytes = BufReader::with_capacity(1 << 16, bytes);
        CheckedBytes { bytes, delimiter, state: QuoteState::FieldStart, left: MAX_ROW_BYTES, is_started: false }
    }

    fn follow(&mut self, byte: u8) {
        let is_end = byte == self.delimiter || byte == b'\n' || byte == b'\r';
        self.state = match (self.state, byte) {
            (QuoteState::FieldStart | QuoteState::QuoteInQuotes, b'"') => QuoteState::Quoted,
            (QuoteState::Quoted, b'"') => QuoteState::QuoteInQuotes,
            (QuoteState::Quoted, _) => QuoteState::Quoted,
            _ if is_end => QuoteState::FieldStart,
            _ => QuoteState::Unquoted,
        };
    }

    fn skip_byte_order_mark(&mut self) -> io::Result<()> {
        use io::BufRead;
        self.is_started = true;
        if self.bytes.fill_buf()?.starts_with(b"\xef\xbb\xbf") {
            self.bytes.consume(3);
        }
        Ok(())
    }
}

impl<R: Read> Read for CheckedBytes<R> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        if !self.is_started {
            self.skip_byte_order_mark()?;
        }
        if self.left == 0 {
            let why = format!("the record is longer than {} MiB; check the quotes", MAX_ROW_BYTES >> 20);
            return Err(io::Error::new(io::ErrorKind::InvalidData, why));
        }
        let most = to.len().min(self.left);
        let read = self.bytes.read(&mut to[..most])?;
        self.left -= read;
        to[..read].iter().for_each(|byte| self.follow(*byte));
        if read == 0 && !to.is_empty() && self.state == QuoteState::Quoted {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "a quote is opened and never closed"));
        }
        Ok(read)
    }
}
