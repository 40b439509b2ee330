//! Numeric kernel parameters, four bytes each.

/// A number that a kernel takes: an `unsigned`, an `int`, a `float`, or a flag that is 0 or 1.
pub(crate) trait Param {
    fn bits(self) -> u32;
}

impl Param for usize {
    fn bits(self) -> u32 {
        self as u32
    }
}

impl Param for i32 {
    fn bits(self) -> u32 {
        self as u32
    }
}

impl Param for f32 {
    fn bits(self) -> u32 {
        self.to_bits()
    }
}

impl Param for bool {
    fn bits(self) -> u32 {
        u32::from(self)
    }
}

/// Numbers of any kind, in the order of a kernel's parameters or of the fields of its struct.
macro_rules! params {
    ($($number:expr),+ $(,)?) => {
        [$($crate::launch::params::Param::bits($number)),+]
    };
}
pub(crate) use params;
