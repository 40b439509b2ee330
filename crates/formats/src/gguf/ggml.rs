//! The tensor types of ggml: elements per block and bytes per block. `quant/` in `ops` decodes the
//! blocks.

/// A ggml tensor type.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct GgmlType {
    /// Its id in the file.
    pub(super) id: u32,
    pub(super) name: &'static str,
    /// Elements per block; a row holds whole blocks.
    pub(super) block: usize,
    /// Bytes per block.
    pub(super) size: usize,
}

pub(super) const F32: u32 = 0;
pub(super) const F16: u32 = 1;
pub(super) const BF16: u32 = 30;

/// Missing ids were dropped by ggml (4, 5, 31 to 33, 36 to 38); nothing reads files with them any
/// more.
const TYPES: [GgmlType; 35] = [
    ggml_type(F32, "F32", 1, 4),
    ggml_type(F16, "F16", 1, 2),
    ggml_type(2, "Q4_0", 32, 18),
    ggml_type(3, "Q4_1", 32, 20),
    ggml_type(6, "Q5_0", 32, 22),
    ggml_type(7, "Q5_1", 32, 24),
    ggml_type(8, "Q8_0", 32, 34),
    ggml_type(9, "Q8_1", 32, 36),
    ggml_type(10, "Q2_K", 256, 84),
    ggml_type(11, "Q3_K", 256, 110),
    ggml_type(12, "Q4_K", 256, 144),
    ggml_type(13, "Q5_K", 256, 176),
    ggml_type(14, "Q6_K", 256, 210),
    ggml_type(15, "Q8_K", 256, 292),
    ggml_type(16, "IQ2_XXS", 256, 66),
    ggml_type(17, "IQ2_XS", 256, 74),
    ggml_type(18, "IQ3_XXS", 256, 98),
    ggml_type(19, "IQ1_S", 256, 50),
    ggml_type(20, "IQ4_NL", 32, 18),
    ggml_type(21, "IQ3_S", 256, 110),
    ggml_type(22, "IQ2_S", 256, 82),
    ggml_type(23, "IQ4_XS", 256, 136),
    ggml_type(24, "I8", 1, 1),
    ggml_type(25, "I16", 1, 2),
    ggml_type(26, "I32", 1, 4),
    ggml_type(27, "I64", 1, 8),
    ggml_type(28, "F64", 1, 8),
    ggml_type(29, "IQ1_M", 256, 56),
    ggml_type(BF16, "BF16", 1, 2),
    ggml_type(34, "TQ1_0", 256, 54),
    ggml_type(35, "TQ2_0", 256, 66),
    ggml_type(39, "MXFP4", 32, 17),
    ggml_type(40, "NVFP4", 64, 36),
    ggml_type(41, "Q1_0", 128, 18),
    ggml_type(42, "Q2_0", 64, 18),
];

const fn ggml_type(id: u32, name: &'static str, block: usize, size: usize) -> GgmlType {
    GgmlType { id, name, block, size }
}

/// The type with this id.
pub(super) fn find(id: u32) -> Option<&'static GgmlType> {
    TYPES.iter().find(|kind| kind.id == id)
}

impl GgmlType {
    /// Bytes of a tensor of these dimensions. `None` if its rows are not whole blocks, or on
    /// overflow.
    pub(super) fn bytes(&self, dims: &[usize]) -> Option<usize> {
        let (row, rows) = dims.split_last().map_or((1, &[][..]), |(row, rows)| (*row, rows));
        if row % self.block != 0 {
            return None;
        }
        rows.iter().try_fold((row / self.block).checked_mul(self.size)?, |n, &d| n.checked_mul(d))
    }

    /// Whether it is a plain float type, not blocks.
    pub(super) fn is_float(&self) -> bool {
        matches!(self.id, F32 | F16 | BF16)
    }
}
