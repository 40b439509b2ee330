//! Stands where tiles are on processors of other families. Nothing of it is ever called: `Isa::Amx` is not available there.

use super::Lanes;
use super::gemm::{Panels, Room, Sink};
use super::rows::Rows;
use half::bf16;
use std::ops::Range;

pub(super) fn multiply<S: Lanes>(
    _: Rows<'_, bf16>,
    _: Panels<'_, bf16>,
    _: Range<usize>,
    _: Range<usize>,
    _: &mut Room,
    _: &mut impl Sink,
) {
    unreachable!("no tiles on this processor")
}

pub(crate) mod thirds {
    use super::*;

    pub(crate) const LEAST: usize = usize::MAX;
    pub(crate) const DEPTH: usize = 1;

    pub(in crate::cpu) fn multiply<S: Lanes>(
        _: Rows<'_, f32>,
        _: Panels<'_, f32>,
        _: Range<usize>,
        _: Range<usize>,
        _: &mut Room,
        _: &mut impl Sink,
    ) {
        unreachable!("no tiles on this processor")
    }
}
