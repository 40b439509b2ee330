//! Fuzzes the head of ONNX files: a random or mutated file gives a head or an error. A panic, a hang
//! or a large allocation is a finding. ONNX Runtime itself is not loaded: it sees a file only after
//! this reader accepted it.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    if let Ok(header) = sconce_onnx::parse(data) {
        // Names and shapes cannot be longer than the file that they are in.
        let names: usize = header.inputs.iter().chain(&header.outputs).map(|port| port.name.len()).sum();
        assert!(names <= data.len());
        assert!(header.operators.len() <= data.len());
    }
});
