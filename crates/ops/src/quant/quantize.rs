//! Placeholder until the quantisers arrive.
use super::Quant;
pub(crate) fn quantize(quant: Quant, values: &[f32], out: &mut Vec<u8>) {
    let _ = (quant, values, out);
    todo!()
}
