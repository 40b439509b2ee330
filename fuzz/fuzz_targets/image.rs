//! Pictures of any format: decoded or refused, within bounds.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sconce_engine::Image;

fuzz_target!(|bytes: &[u8]| {
    let _ = Image::decode(bytes);
});
