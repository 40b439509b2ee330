//! Checks of an untrusted `tokenizer.json` before the `tokenizers` crate reads it. The crate frees
//! tries recursively, one level for each byte of a string, and allocates whatever length the file
//! states. Both can end the process instead of returning an error.

/// Longer strings are not tokens. Regular expressions and templates are shorter, too.
const LONGEST: usize = 4096;

/// The one string that is legitimately long: SentencePiece's normalization table, in base64.
const TABLE: &[u8] = b"precompiled_charsmap";

/// Checks the strings of a JSON document. It does not validate the JSON.
pub(super) fn check_strings(json: &[u8]) -> Result<(), String> {
    let (mut at, mut before): (usize, &[u8]) = (0, b"");
    while let Some(start) = json[at..].iter().position(|b| *b == b'"').map(|i| at + i + 1) {
        let end = string_end(json, start);
        let string = &json[start..end];
        if before == TABLE {
            check_table(string)?;
        } else if string.len() > LONGEST {
            return Err(format!("it has a string of {} bytes; tokens have at most {LONGEST}", string.len()));
        }
        before = string;
        at = (end + 1).min(json.len());
    }
    Ok(())
}

/// The end of the string that begins at `start`.
fn string_end(json: &[u8], start: usize) -> usize {
    let mut at = start;
    while at < json.len() && json[at] != b'"' {
        at += if json[at] == b'\\' { 2 } else { 1 };
    }
    at.min(json.len())
}

/// The table begins with the length of its trie in bytes, which must fit the data.
fn check_table(base64: &[u8]) -> Result<(), String> {
    let value = |b: u8| match b {
        b'A'..=b'Z' => Some(u32::from(b - b'A')),
        b'a'..=b'z' => Some(u32::from(b - b'a') + 26),
        b'0'..=b'9' => Some(u32::from(b - b'0') + 52),
        b'+' => Some(62),
        b'/' => Some(63),
        _ => None,
    };
    let head: Option<Vec<u32>> = base64.iter().take(6).map(|b| value(*b)).collect();
    let Some([a, b, c, d, e, f]) = head.as_deref().and_then(|h| <[u32; 6]>::try_from(h).ok()) else {
        // Too short to hold a length: the library refuses it.
        return Ok(());
    };
    let bits = u64::from(a << 18 | b << 12 | c << 6 | d) << 12 | u64::from(e << 6 | f);
    let length = u32::swap_bytes((bits >> 4) as u32) as usize;
    if length > base64.len() / 4 * 3 {
        return Err(format!(
            "its precompiled_charsmap claims {length} bytes and has {} characters of base64",
            base64.len()
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_strings_and_wrong_table_lengths_are_rejected() {
        let long = "x".repeat(LONGEST + 1);
        assert!(check_strings(format!(r#"{{"vocab": [["a\"b", 1], ["{long}", 2]]}}"#).as_bytes()).is_err());
        assert!(check_strings(format!(r#"{{"vocab": [["{}", 2]]}}"#, &long[1..]).as_bytes()).is_ok());
        // "AAEAAA==" are 0x00 0x01 0x00 0x00: 256 bytes.
        let table = |rest: usize| format!(r#"{{"precompiled_charsmap": "AAEAAA{}"}}"#, "A".repeat(rest));
        assert!(check_strings(table(400).as_bytes()).is_ok());
        assert!(check_strings(table(100).as_bytes()).unwrap_err().contains("256 bytes"));
        for cut in [r#"{"a"#, r#"{"a\"#, r#"""#, "", r#"{"precompiled_charsmap": ""#] {
            assert!(check_strings(cut.as_bytes()).is_ok());
        }
    }
}
