//! Stub of `amx` for other architectures. It is never called: `Isa::Amx` is not available there.
#![allow(dead_code, reason = "fields of a task that nothing reads here")]

use super::Lanes;
use super::gemm::{GemmScratch, Panels, Sink};
use super::rows::Rows;
use half::bf16;
use std::ops::Range;

#[derive(Clone, Copy)]
pub(crate) struct Operand<'a> {
    pub(crate) data: &'a [u8],
    pub(crate) stride: usize,
}

pub(crate) struct Task<'a> {
    pub(crate) a: Operand<'a>,
    pub(crate) b: Operand<'a>,
    pub(crate) steps: usize,
    pub(crate) rows: Range<usize>,
    pub(crate) panels: Range<usize>,
}

pub(super) fn multiply_bytes<S: Lanes>(_: Task<'_>, _: &mut Vec<f32>, _: &mut impl Sink) {
    unreachable!("this architecture has no AMX")
}

pub(super) fn multiply<S: Lanes>(
    _: Rows<'_, bf16>,
    _: Panels<'_, bf16>,
    _: Range<usize>,
    _: Range<usize>,
    _: &mut GemmScratch,
    _: &mut impl Sink,
) {
    unreachable!("this architecture has no AMX")
}

pub(crate) mod bf16x3 {
    use super::*;

    pub(crate) const DEPTH: usize = 1;

    pub(in crate::cpu) fn multiply<S: Lanes>(
        _: Rows<'_, f32>,
        _: Panels<'_, f32>,
        _: Range<usize>,
        _: Range<usize>,
        _: &mut GemmScratch,
        _: &mut impl Sink,
    ) {
        unreachable!("this architecture has no AMX")
    }
}
