//! Quantizes floats to blocks. Formats of 32 elements follow GGML's rule, bit for bit; K-quants and
//! formats with a non-linear codebook use our own search for the least squared error.

mod fit;
mod k;
mod small;

pub(crate) use small::q8_0_apart;

use super::Quant;
use crate::cpu::{Isa, Kernel, Lanes};
use crate::{Error, Result};

impl Quant {
    /// Whether `quantize` supports the format.
    pub fn quantizes(self) -> bool {
        use Quant::*;
        matches!(self, Q4_0 | Q4_1 | Q5_0 | Q5_1 | Q8_0 | Q2K | Q3K | Q4K | Q5K | Q6K | Iq4Nl)
    }
}

/// Appends the blocks of `x`, which must be whole blocks, to `out`. Blocks of `x` with infinities
/// or NaN are meaningless.
pub(crate) fn quantize(quant: Quant, x: &[f32], out: &mut Vec<u8>) -> Result<()> {
    let (elements, size) = quant.block();
    let Some(bytes) = quant.bytes(x.len()) else {
        return Err(Error::call(
            "quantize",
            format!("{} elements are not whole blocks of {quant}, which have {elements}", x.len()),
        ));
    };
    if !quant.quantizes() {
        let can = Quant::all().filter(|q| q.quantizes()).map(|q| q.to_string()).collect::<Vec<_>>().join(", ");
        return Err(Error::call("quantize", format!("cannot quantize to {quant}; supported formats: {can}")));
    }
    let start = out.len();
    out.resize(start + bytes, 0);
    // The result is the same for every instruction set: nothing is fused or summed in another
    // order.
    Isa::best().run(Blocks { quant, x, elements, size, out: &mut out[start..] });
    Ok(())
}

/// Quantizes consecutive blocks, compiled for the processor's instruction set.
struct Blocks<'a> {
    quant: Quant,
    x: &'a [f32],
    elements: usize,
    size: usize,
    out: &'a mut [u8],
}

/// Runs `$make` on every block of `$n` elements.
macro_rules! each {
    ($self:ident, $n:literal, $make:expr) => {
        for (x, out) in $self.x.as_chunks::<$n>().0.iter().zip($self.out.chunks_exact_mut($self.size)) {
            $make(x, out);
        }
    };
}

impl Kernel for Blocks<'_> {
    type Output = ();
    const BF16: bool = false;

    #[inline(always)]
    fn run<S: Lanes>(self) {
        debug_assert!(self.elements == 32 || self.elements == 256);
        match self.quant {
            Quant::Q8_0 => each!(self, 32, small::q8_0),
            Quant::Q4_0 => each!(self, 32, small::symmetric::<4>),
            Quant::Q5_0 => each!(self, 32, small::symmetric::<5>),
            Quant::Q4_1 => each!(self, 32, small::with_min::<4>),
            Quant::Q5_1 => each!(self, 32, small::with_min::<5>),
            Quant::Iq4Nl => each!(self, 32, k::iq4_nl),
            Quant::Q2K => each!(self, 256, k::q2_k),
            Quant::Q3K => each!(self, 256, k::q3_k),
            Quant::Q4K => each!(self, 256, k::q45_k::<4>),
            Quant::Q5K => each!(self, 256, k::q45_k::<5>),
            Quant::Q6K => each!(self, 256, k::q6_k),
            _ => unreachable!("refused above"),
        }
    }
}
