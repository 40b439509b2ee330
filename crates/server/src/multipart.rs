//! Forms (`multipart/form-data`, RFC 7578), read as they arrive. Memory is bounded: the buffer has at
//! most one frame of the body and the head of a field. (Other readers buffer what the client sends
//! faster than it is stored.)

use crate::error::{Fault, FaultKind};
use axum::body::Body;
use http_body_util::BodyExt;
use std::time::{Duration, Instant};

/// The longest boundary (RFC 2046).
const MAX_BOUNDARY: usize = 70;
/// The most bytes of a field's head.
const MAX_HEAD: usize = 8 << 10;

/// Limits on the time of a body.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    /// The longest wait for more of the body.
    pub(crate) silence: Duration,
    /// When the body must be there.
    pub(crate) deadline: Option<Instant>,
}

/// The head of a field.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct FieldHead {
    /// The field's name.
    pub(crate) name: String,
    /// For files: the file's name.
    pub(crate) filename: Option<String>,
}

/// Where a form is being read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// In the content of a field, or in what stands before the first one.
    Content,
    /// After a delimiter.
    Delimiter,
    /// After the last delimiter.
    End,
}

/// A form that is being read.
pub(crate) struct Multipart {
    body: Body,
    clock: Clock,
    /// A line break, two hyphens and the boundary.
    delimiter: Vec<u8>,
    buffer: Vec<u8>,
    place: Place,
}

impl Multipart {
    /// Begins a form with this `Content-Type`.
    pub(crate) fn new(content_type: &str, body: Body, clock: Clock) -> Result<Multipart, Fault> {
        let Some(boundary) = boundary(content_type) else {
            let what = "the body must be a form: `Content-Type: multipart/form-data; boundary=…`";
            return Err(Fault::new(FaultKind::Media, what));
        };
        let delimiter = format!("\r\n--{boundary}").into_bytes();
        // The first delimiter has no line break before it.
        Ok(Multipart { body, clock, delimiter, buffer: b"\r\n".to_vec(), place: Place::Content })
    }

    /// The next field; `None` after the last one. Skips what is left of the field before.
    pub(crate) async fn next_field(&mut self) -> Result<Option<FieldHead>, Fault> {
        while self.chunk().await?.is_some() {}
        if self.place == Place::End {
            return Ok(None);
        }
        while self.buffer.len() < 2 {
            self.fill().await?;
        }
        if self.buffer.starts_with(b"--") {
            self.place = Place::End;
            return Ok(None);
        }
        let length = loop {
            if let Some(at) = find(&self.buffer, b"\r\n\r\n") {
                break at + 4;
            }
            if self.buffer.len() > MAX_HEAD {
                return Err(wrong(&format!("the head of a field has more than {MAX_HEAD} bytes")));
            }
            self.fill().await?;
        };
        let head = self.buffer.drain(..length).collect::<Vec<u8>>();
        self.place = Place::Content;
        field_head(&String::from_utf8_lossy(&head)).map(Some)
    }

    /// The next part of the field's content; `None` at its end.
    pub(crate) async fn chunk(&mut self) -> Result<Option<Vec<u8>>, Fault> {
        while self.place == Place::Content {
            let content = match find(&self.buffer, &self.delimiter) {
                Some(0) => {
                    self.buffer.drain(..self.delimiter.len());
                    self.place = Place::Delimiter;
                    break;
                }
                Some(at) => at,
                // The end of the buffer may be the beginning of a delimiter.
                None => (self.buffer.len() + 1).saturating_sub(self.delimiter.len()),
            };
            if content > 0 {
                return Ok(Some(self.buffer.drain(..content).collect()));
            }
            self.fill().await?;
        }
        Ok(None)
    }

    /// Reads more of the body.
    async fn fill(&mut self) -> Result<(), Fault> {
        let silent = Instant::now() + self.clock.silence;
        let until = self.clock.deadline.map_or(silent, |deadline| deadline.min(silent));
        let slow = |_| {
            let what = "the file did not arrive in time; send it faster, or raise --request-timeout";
            Fault::new(FaultKind::ClientTooSlow, what)
        };
        match tokio::time::timeout_at(until.into(), self.body.frame()).await.map_err(slow)? {
            None => Err(wrong("it ends before its last boundary")),
            Some(Err(e)) => Err(wrong(&e.to_string())),
            Some(Ok(frame)) => {
                self.buffer.extend_from_slice(frame.data_ref().map_or(&[][..], |data| &data[..]));
                Ok(())
            }
        }
    }
}

fn wrong(why: &str) -> Fault {
    Fault::invalid(format!("the form cannot be read: {why}"))
}

/// The boundary in a `Content-Type`.
fn boundary(content_type: &str) -> Option<String> {
    let (kind, parameters) = content_type.split_once(';')?;
    if !kind.trim().eq_ignore_ascii_case("multipart/form-data") {
        return None;
    }
    let boundary = parameter(parameters, "boundary")?;
    let is_allowed = |c: char| c == ' ' || c.is_ascii_graphic();
    ((1..=MAX_BOUNDARY).contains(&boundary.len()) && boundary.chars().all(is_allowed)).then_some(boundary)
}

/// Reads `Content-Disposition`; other lines have no effect.
fn field_head(head: &str) -> Result<FieldHead, Fault> {
    let lines = head.split("\r\n").filter_map(|line| line.split_once(':'));
    let mut values = lines.filter(|(name, _)| name.trim().eq_ignore_ascii_case("content-disposition"));
    let disposition = values.next().and_then(|(_, value)| value.split_once(';'));
    let parameters = disposition.filter(|(kind, _)| kind.trim().eq_ignore_ascii_case("form-data"));
    let name = parameters.and_then(|(_, parameters)| parameter(parameters, "name"));
    let (Some((_, parameters)), Some(name)) = (parameters, name) else {
        return Err(wrong("a field has no `Content-Disposition: form-data; name=…`"));
    };
    let extended = parameter(parameters, "filename*").and_then(|value| decode_extended(&value));
    Ok(FieldHead { name, filename: extended.or_else(|| parameter(parameters, "filename")) })
}

/// The value of a parameter in `a=b; c="d"`. Backslashes escape quotes and backslashes, as curl
/// writes them.
fn parameter(parameters: &str, wanted: &str) -> Option<String> {
    let mut rest = parameters.chars().peekable();
    loop {
        let name: String = std::iter::from_fn(|| rest.next_if(|c| !matches!(c, '=' | ';'))).collect();
        let mut value = String::new();
        if rest.next_if_eq(&'=').is_some() {
            if rest.next_if_eq(&'"').is_some() {
                while let Some(c) = rest.next_if(|c| *c != '"') {
                    let escaped = if c == '\\' { rest.next_if(|c| matches!(c, '"' | '\\')) } else { None };
                    value.push(escaped.unwrap_or(c));
                }
                // What stands between the quote and the next semicolon means nothing.
                while rest.next_if(|c| *c != ';').is_some() {}
            } else {
                value = std::iter::from_fn(|| rest.next_if(|c| *c != ';')).collect();
                value = value.trim().to_owned();
            }
        }
        if name.trim().eq_ignore_ascii_case(wanted) {
            return Some(value);
        }
        rest.next()?;
    }
}

/// `UTF-8''a%20b` (RFC 5987).
fn decode_extended(value: &str) -> Option<String> {
    let (charset, rest) = value.split_once('\'')?;
    let (_, encoded) = rest.split_once('\'')?;
    if !charset.eq_ignore_ascii_case("utf-8") {
        return None;
    }
    let mut bytes = Vec::with_capacity(encoded.len());
    let mut rest = encoded.bytes();
    while let Some(byte) = rest.next() {
        match byte {
            b'%' => {
                let digit = |byte: Option<u8>| char::from(byte?).to_digit(16);
                let (high, low) = (digit(rest.next())?, digit(rest.next())?);
                bytes.push((high * 16 + low) as u8);
            }
            byte => bytes.push(byte),
        }
    }
    String::from_utf8(bytes).ok()
}

/// Where `needle`, which begins with a carriage return, is in `hay`.
fn find(hay: &[u8], needle: &[u8]) -> Option<usize> {
    let mut start = 0;
    while let Some(at) = hay[start..].iter().position(|byte| *byte == b'\r') {
        let at = start + at;
        if hay[at..].starts_with(needle) {
            return Some(at);
        }
        start = at + 1;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::stream;
    use std::convert::Infallible;

    /// Reads a form that arrives in frames of this size.
    async fn read(form: &[u8], frame: usize) -> Result<Vec<(FieldHead, Vec<u8>)>, Fault> {
        let frames: Vec<Result<Vec<u8>, Infallible>> = form.chunks(frame).map(|bytes| Ok(bytes.to_vec())).collect();
        let clock = Clock { silence: Duration::from_secs(5), deadline: None };
        let body = Body::from_stream(stream::iter(frames));
        let mut multipart = Multipart::new("multipart/form-data; boundary=\"b b\"", body, clock)?;
        let mut fields = Vec::new();
        while let Some(head) = multipart.next_field().await? {
            let mut content = Vec::new();
            while let Some(part) = multipart.chunk().await? {
                content.extend(part);
            }
            fields.push((head, content));
        }
        Ok(fields)
    }

    #[tokio::test]
    async fn forms_are_read_whatever_their_frames() {
        let content = b"a\r\n--b\r\n\r\n--b c\r--b b\r\n-\n\0\xff";
        let mut form =
            b"preamble\r\n--b b\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\nbatch\r\n".to_vec();
        form.extend(b"--b b\r\ncontent-type: text/plain\r\ncontent-disposition: Form-Data; name=file; filename=\"a \\\"b\\\".txt\"\r\n\r\n");
        form.extend(content);
        form.extend(b"\r\n--b b\r\nContent-Disposition: form-data; name=\"empty\"\r\n\r\n\r\n--b b--\r\nepilogue");
        for frame in [1, 2, 3, 7, 64, 10_000] {
            let fields = read(&form, frame).await.unwrap();
            let names: Vec<&str> = fields.iter().map(|(head, _)| head.name.as_str()).collect();
            assert_eq!(names, ["purpose", "file", "empty"], "{frame}");
            assert_eq!((&fields[0].1[..], &fields[1].1[..], &fields[2].1[..]), (&b"batch"[..], &content[..], &b""[..]));
            assert_eq!(fields[1].0.filename.as_deref(), Some("a \"b\".txt"));
        }
        for end in [0, 5, 60, form.len() - 20] {
            assert!(read(&form[..end], 7).await.is_err(), "{end}");
        }
    }

    #[tokio::test]
    async fn heads_are_bounded_and_need_a_name() {
        let long = format!("--b b\r\nContent-Disposition: form-data; name=\"{}\"", "x".repeat(100_000));
        assert!(read(long.as_bytes(), 1_000).await.unwrap_err().message.contains("more than 8192 bytes"));
        let unnamed = b"--b b\r\nContent-Disposition: form-data; filename=\"a\"\r\n\r\n\r\n--b b--";
        assert!(read(unnamed, 100).await.unwrap_err().message.contains("name="));
        assert!(read(b"", 1).await.is_err());
    }

    #[test]
    fn parameters_are_found_by_their_whole_names() {
        let all = "; name=\"a;b=c\" ; filename=\"x\\y.txt\"; filename*=UTF-8''na%C3%AFve.txt";
        assert_eq!(parameter(all, "name").as_deref(), Some("a;b=c"));
        assert_eq!(parameter(all, "filename").as_deref(), Some("x\\y.txt"));
        assert_eq!(parameter(all, "file"), None);
        let head = field_head(&format!("Content-Disposition: form-data{all}\r\n\r\n")).unwrap();
        assert_eq!(head.filename.as_deref(), Some("naïve.txt"));
        assert_eq!((decode_extended("UTF-8''%zz"), decode_extended("latin1''a")), (None, None));
    }

    #[test]
    fn boundaries_are_checked() {
        assert_eq!(boundary("multipart/form-data; charset=utf-8; boundary=abc").as_deref(), Some("abc"));
        for wrong in [
            "",
            "multipart/form-data",
            "multipart/mixed; boundary=a",
            "multipart/form-data; boundary=",
            "multipart/form-data; boundary=\"a\u{e4}\"",
        ] {
            assert_eq!(boundary(wrong), None, "{wrong}");
        }
        assert_eq!(boundary(&format!("multipart/form-data; boundary={}", "x".repeat(71))), None);
    }
}
