//! Which provider has which nodes, from ONNX Runtime's own record. `ort` does not wrap it.
#![allow(unsafe_code, reason = "calls ONNX Runtime's C API")]

use ort::session::Session;
use ort::{AsPointer, ortsys};
use sconce_engine::ProviderNodes;
use std::collections::BTreeMap;
use std::ffi::{CStr, c_char};
use std::ptr;

/// The nodes of an opened session by provider and operator.
pub(crate) fn assigned(session: &Session) -> ort::Result<Vec<ProviderNodes>> {
    let mut counts: BTreeMap<(String, String), u64> = BTreeMap::new();
    let (mut subgraphs, mut count) = (ptr::null(), 0);
    // The session is open and recorded its assignment; the arrays and strings that these calls
    // return belong to it and live as long.
    ortsys![unsafe Session_GetEpGraphAssignmentInfo(session.ptr(), &mut subgraphs, &mut count)?];
    // SAFETY: the call above set both.
    for subgraph in unsafe { slice(subgraphs, count) } {
        let mut provider = ptr::null();
        ortsys![unsafe EpAssignedSubgraph_GetEpName(*subgraph, &mut provider)?];
        let (mut nodes, mut count) = (ptr::null(), 0);
        ortsys![unsafe EpAssignedSubgraph_GetNodes(*subgraph, &mut nodes, &mut count)?];
        // SAFETY: the call above set both.
        for node in unsafe { slice(nodes, count) } {
            let mut operator = ptr::null();
            ortsys![unsafe EpAssignedNode_GetOperatorType(*node, &mut operator)?];
            // SAFETY: the calls above set them to strings of the session.
            let key = unsafe { (text(operator), text(provider)) };
            *counts.entry(key).or_default() += 1;
        }
    }
    let node = |((operator, provider), nodes)| ProviderNodes { operator, provider, nodes };
    Ok(counts.into_iter().map(node).collect())
}

/// # Safety
/// `start` is null or points to `count` pointers.
unsafe fn slice<'a, T>(start: *const *const T, count: usize) -> &'a [*const T] {
    // SAFETY: as the caller promises.
    if start.is_null() { &[] } else { unsafe { std::slice::from_raw_parts(start, count) } }
}

/// # Safety
/// `text` is null or a string that ends with a zero.
unsafe fn text(text: *const c_char) -> String {
    // SAFETY: as the caller promises.
    if text.is_null() { String::new() } else { unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned() }
}
