//! Stand-in for `tiles.rs` on processors other than x86-64. Never runs: `Isa::Amx` is not available
//! there.
#![allow(dead_code, reason = "fields that only the AMX kernel reads")]

use super::Attention;
use super::cpu::Scratch;
use super::kv_view::HeadView;
use crate::Result;
use crate::cpu::Isa;
use crate::cpu::rows::{Output, Rows};
use half::bf16;

#[derive(Default)]
pub(super) struct TileBuffers;

pub(super) struct HeadTask<'a> {
    pub(super) q: Rows<'a, bf16>,
    pub(super) keys: usize,
    pub(super) options: &'a Attention,
    pub(super) offset: usize,
    pub(super) bias: Option<&'a [f32]>,
    pub(super) origin: usize,
    pub(super) first: usize,
    pub(super) stride: usize,
    pub(super) out: &'a Output<bf16>,
}

pub(super) fn run(_: Isa, _: &[HeadView<'_>; 2], _: HeadTask<'_>, _: &mut Scratch) -> Result<()> {
    unreachable!("no AMX tiles on this processor")
}
