//! Protobuf's wire format: a message as a sequence of numbered fields.

/// The value of a field.
#[derive(Clone, Copy, Debug)]
pub(super) enum Value<'a> {
    /// A number of variable length.
    Varint(u64),
    /// A string, bytes, a message, or packed numbers.
    Bytes(&'a [u8]),
    /// A number of 4 or 8 bytes, which no field that we read has.
    Fixed,
}

/// The fields of a message that are left to read.
pub(super) struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    pub(super) fn new(message: &'a [u8]) -> Fields<'a> {
        Fields(message)
    }

    /// The next field: its number and value; `None` at the end of the message.
    pub(super) fn next(&mut self) -> Result<Option<(u64, Value<'a>)>, String> {
        if self.0.is_empty() {
            return Ok(None);
        }
        let key = varint(&mut self.0)?;
        let value = match key & 7 {
            0 => Value::Varint(varint(&mut self.0)?),
            1 => self.take(8).map(|_| Value::Fixed)?,
            2 => {
                let length = varint(&mut self.0)?;
                Value::Bytes(self.take(length)?)
            }
            5 => self.take(4).map(|_| Value::Fixed)?,
            // Groups (3 and 4) were removed from protobuf before ONNX existed.
            other => return Err(format!("wire type {other} does not exist")),
        };
        match key >> 3 {
            0 => Err("field number 0 does not exist".into()),
            number => Ok(Some((number, value))),
        }
    }

    fn take(&mut self, length: u64) -> Result<&'a [u8], String> {
        let left = self.0.len();
        let split = usize::try_from(length).ok().and_then(|length| self.0.split_at_checked(length));
        let (taken, rest) =
            split.ok_or_else(|| format!("a field of {length} bytes, where {left} are left: truncated"))?;
        self.0 = rest;
        Ok(taken)
    }
}

/// Reads a varint: seven bits a byte, at most ten bytes.
fn varint(bytes: &mut &[u8]) -> Result<u64, String> {
    let mut value = 0u64;
    for shift in (0..70).step_by(7) {
        let (byte, rest) = bytes.split_first().ok_or("a number without its end: truncated")?;
        *bytes = rest;
        value |= u64::from(byte & 0x7f).checked_shl(shift).unwrap_or(0);
        if byte & 0x80 == 0 {
            return Ok(value);
        }
    }
    Err("a number of more than 10 bytes".into())
}

/// The numbers of a repeated field, packed or single.
pub(super) fn numbers(value: Value<'_>, most: usize, into: &mut Vec<i64>) -> Result<(), String> {
    let mut push = |number: u64| match into.len() < most {
        true => {
            into.push(number as i64);
            Ok(())
        }
        false => Err(format!("a list of more than {most} numbers")),
    };
    match value {
        Value::Varint(number) => push(number),
        Value::Bytes(mut packed) => {
            while !packed.is_empty() {
                push(varint(&mut packed)?)?;
            }
            Ok(())
        }
        Value::Fixed => Err("a number in a format that its field does not have".into()),
    }
}

/// A string of at most `most` bytes.
pub(super) fn string(value: Value<'_>, most: usize) -> Result<String, String> {
    let Value::Bytes(bytes) = value else { return Err("a number where a string belongs".into()) };
    if bytes.len() > most {
        return Err(format!("a name of {} bytes; at most {most} are read", bytes.len()));
    }
    std::str::from_utf8(bytes).map(str::to_owned).map_err(|_| "a name that is not UTF-8".into())
}

/// A message.
pub(super) fn message(value: Value<'_>) -> Result<Fields<'_>, String> {
    match value {
        Value::Bytes(bytes) => Ok(Fields::new(bytes)),
        Value::Varint(_) | Value::Fixed => Err("a number where a message belongs".into()),
    }
}
