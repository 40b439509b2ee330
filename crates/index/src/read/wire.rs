//! The messages between this process and a parser process: a length and JSON.

use std::io::{self, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::error::ReadError;
use super::{Format, Limits};
use crate::document::Document;

/// The longest message. A document's text has 64 MiB at most, and JSON may double it: readers take
/// out the control characters that need longer escapes.
pub(super) const MAX_MESSAGE: usize = 160 << 20;

/// A file to parse.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Request {
    pub(super) root: WirePath,
    pub(super) relative: WirePath,
    pub(super) format: Format,
    pub(super) limits: Limits,
}

/// What the child answers: documents in batches, and then one of the others.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Reply {
    Documents(Vec<Document>),
    Done(Vec<String>),
    Failed(ReadError),
}

/// A path that need not be Unicode.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub(super) enum WirePath {
    Text(String),
    Bytes(Vec<u8>),
}

impl WirePath {
    pub(super) fn new(path: &Path) -> io::Result<Self> {
        match path.to_str() {
            Some(text) => Ok(Self::Text(text.to_string())),
            None => Self::from_bytes(path),
        }
    }

    #[cfg(unix)]
    fn from_bytes(path: &Path) -> io::Result<Self> {
        use std::os::unix::ffi::OsStrExt;
        Ok(Self::Bytes(path.as_os_str().as_bytes().to_vec()))
    }

    #[cfg(not(unix))]
    fn from_bytes(_: &Path) -> io::Result<Self> {
        Err(io::Error::new(ErrorKind::InvalidInput, "the file's name is not Unicode"))
    }

    #[cfg(unix)]
    pub(super) fn into_path(self) -> PathBuf {
        use std::os::unix::ffi::OsStringExt;
        match self {
            Self::Text(text) => text.into(),
            Self::Bytes(bytes) => std::ffi::OsString::from_vec(bytes).into(),
        }
    }

    #[cfg(not(unix))]
    pub(super) fn into_path(self) -> PathBuf {
        match self {
            Self::Text(text) => text.into(),
            Self::Bytes(bytes) => String::from_utf8_lossy(&bytes).into_owned().into(),
        }
    }
}

/// Writes one message.
pub(super) fn write_message(to: &mut impl Write, message: &impl Serialize) -> io::Result<()> {
    let content = serde_json::to_vec(message)?;
    let length = u32::try_from(content.len()).ok().filter(|_| content.len() <= MAX_MESSAGE);
    let length = length.ok_or_else(|| io::Error::new(ErrorKind::InvalidData, "a message is too long"))?;
    to.write_all(&length.to_le_bytes())?;
    to.write_all(&content)?;
    to.flush()
}

/// Reads one message; `None` at the end of the stream.
pub(super) fn read_message<T: DeserializeOwned>(from: &mut impl Read) -> io::Result<Option<T>> {
    let mut length = Vec::new();
    from.by_ref().take(4).read_to_end(&mut length)?;
    let length = match <[u8; 4]>::try_from(&length[..]) {
        Ok(bytes) => u32::from_le_bytes(bytes) as usize,
        Err(_) if length.is_empty() => return Ok(None),
        Err(_) => return Err(ErrorKind::UnexpectedEof.into()),
    };
    if length > MAX_MESSAGE {
        return Err(io::Error::new(ErrorKind::InvalidData, "a message is too long"));
    }
    // Memory grows with what arrives, not with what is announced.
    let mut content = Vec::new();
    from.by_ref().take(length as u64).read_to_end(&mut content)?;
    if content.len() < length {
        return Err(ErrorKind::UnexpectedEof.into());
    }
    Ok(Some(serde_json::from_slice(&content)?))
}
