//! Stands where attention in tiles is on processors of other families. Nothing of it is ever run: `Isa::Amx` is not available there.
#![allow(dead_code, reason = "what a task is made of, and nobody reads")]

use super::Attention;
use super::cpu::Scratch;
use super::kv_view::Lines;
use crate::Result;
use crate::cpu::Isa;
use crate::cpu::rows::{Output, Rows};
use half::bf16;

#[derive(Default)]
pub(super) struct Pairs;

pub(super) struct Head<'a> {
    pub(super) q: Rows<'a, bf16>,
    pub(super) keys: usize,
    pub(super) how: &'a Attention,
    pub(super) place: usize,
    pub(super) bias: Option<&'a [f32]>,
    pub(super) origin: usize,
    pub(super) first: usize,
    pub(super) stride: usize,
    pub(super) out: &'a Output<bf16>,
}

pub(super) fn run(_: Isa, _: &[Lines<'_>; 2], _: Head<'_>, _: &mut Scratch) -> Result<()> {
    unreachable!("no tiles on this processor")
}
