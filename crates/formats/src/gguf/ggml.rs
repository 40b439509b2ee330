//! The formats that ggml stores numbers in: how many of them make a block, and how many bytes a block takes. Facts of the
//! format; what a block means is the business of whoever reads it.

/// One format.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Kind {
    /// Its number in the file.
    pub(super) id: u32,
    pub(super) name: &'static str,
    /// Numbers in a block; a row holds whole blocks.
    pub(super) block: usize,
    /// Bytes of a block.
    pub(super) size: usize,
}

pub(super) const F32: u32 = 0;
pub(super) const F16: u32 = 1;
pub(super) const BF16: u32 = 30;

/// Numbers that are missing were given up by ggml (4, 5, 31 to 33, 36 to 38); files with them are no longer read anywhere.
const KINDS: [Kind; 35] = [
    kind(F32, "F32", 1, 4),
    kind(F16, "F16", 1, 2),
    kind(2, "Q4_0", 32, 18),
    kind(3, "Q4_1", 32, 20),
    kind(6, "Q5_0", 32, 22),
    kind(7, "Q5_1", 32, 24),
    kind(8, "Q8_0", 32, 34),
    kind(9, "Q8_1", 32, 36),
    kind(10, "Q2_K", 256, 84),
    kind(11, "Q3_K", 256, 110),
    kind(12, "Q4_K", 256, 144),
    kind(13, "Q5_K", 256, 176),
    kind(14, "Q6_K", 256, 210),
    kind(15, "Q8_K", 256, 292),
    kind(16, "IQ2_XXS", 256, 66),
    kind(17, "IQ2_XS", 256, 74),
    kind(18, "IQ3_XXS", 256, 98),
    kind(19, "IQ1_S", 256, 50),
    kind(20, "IQ4_NL", 32, 18),
    kind(21, "IQ3_S", 256, 110),
    kind(22, "IQ2_S", 256, 82),
    kind(23, "IQ4_XS", 256, 136),
    kind(24, "I8", 1, 1),
    kind(25, "I16", 1, 2),
    kind(26, "I32", 1, 4),
    kind(27, "I64", 1, 8),
    kind(28, "F64", 1, 8),
    kind(29, "IQ1_M", 256, 56),
    kind(BF16, "BF16", 1, 2),
    kind(34, "TQ1_0", 256, 54),
    kind(35, "TQ2_0", 256, 66),
    kind(39, "MXFP4", 32, 17),
    kind(40, "NVFP4", 64, 36),
    kind(41, "Q1_0", 128, 18),
    kind(42, "Q2_0", 64, 18),
];

const fn kind(id: u32, name: &'static str, block: usize, size: usize) -> Kind {
    Kind { id, name, block, size }
}

/// The format with that number.
pub(super) fn find(id: u32) -> Option<&'static Kind> {
    KINDS.iter().find(|kind| kind.id == id)
}

impl Kind {
    /// Bytes of a tensor of these dimensions; `None` where its rows do not hold whole blocks, or no memory is that large.
    pub(super) fn bytes(&self, dims: &[usize]) -> Option<usize> {
        let (row, rows) = dims.split_last().map_or((1, &[][..]), |(row, rows)| (*row, rows));
        if row % self.block != 0 {
            return None;
        }
        rows.iter().try_fold((row / self.block).checked_mul(self.size)?, |n, &d| n.checked_mul(d))
    }

    /// Whether it holds plain floats, which can be computed with one by one.
    pub(super) fn is_float(&self) -> bool {
        matches!(self.id, F32 | F16 | BF16)
    }
}
