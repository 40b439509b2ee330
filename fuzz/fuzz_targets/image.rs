//! Fuzzes image decoding in all formats: an image decodes or is refused, within memory limits.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sconce_engine::Image;

fuzz_target!(|bytes: &[u8]| {
    let _ = Image::decode(bytes);
});
