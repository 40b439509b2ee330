//! The KV cache's formats, and tensors of keys or values in them.

use crate::quant::q8_0_apart;
use crate::tensor::host;
use crate::{DType, Error, Place, Quant, Result, Tensor};
use half::vec::HalfBitsVecExt;
use half::{bf16, f16};
use std::fmt;
use std::str::FromStr;

/// Elements per quantization scale.
pub(crate) const BLOCK: usize = 32;

/// Format of keys and values in a KV cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvCacheFormat {
    /// One number per element.
    Float(DType),
    /// GGML's q8_0: a signed byte per element and an f16 scale per 32 of them, 34 bytes in all.
    Q8,
}

impl KvCacheFormat {
    /// Every format.
    pub const ALL: [KvCacheFormat; 4] = [
        KvCacheFormat::Float(DType::F32),
        KvCacheFormat::Float(DType::BF16),
        KvCacheFormat::Float(DType::F16),
        KvCacheFormat::Q8,
    ];

    /// Bytes of a vector of `size` elements.
    pub(crate) fn bytes(self, size: usize) -> usize {
        match self {
            KvCacheFormat::Float(dtype) => size.saturating_mul(dtype.size()),
            KvCacheFormat::Q8 => size.saturating_add(size.div_ceil(BLOCK) * DType::F16.size()),
        }
    }
}

impl From<DType> for KvCacheFormat {
    fn from(dtype: DType) -> KvCacheFormat {
        KvCacheFormat::Float(dtype)
    }
}

impl fmt::Display for KvCacheFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KvCacheFormat::Float(dtype) => dtype.fmt(f),
            KvCacheFormat::Q8 => Quant::Q8_0.fmt(f),
        }
    }
}

impl FromStr for KvCacheFormat {
    type Err = Error;
    fn from_str(s: &str) -> Result<Self> {
        KvCacheFormat::ALL.into_iter().find(|format| format.to_string() == s).ok_or_else(|| {
            Error::Parse(format!("unknown KV cache format `{s}`; must be one of f32, bf16, f16 and q8_0"))
        })
    }
}

/// Keys or values `[rows, heads, size]`: the output of a projection, or in the format of a KV
/// cache.
#[derive(Clone, Debug)]
pub enum KvTensor {
    /// One number per element.
    Float(Tensor),
    /// Blocks of 32. Codes and scales are separate tensors, so that codes can be read in whole
    /// vectors.
    Q8 {
        /// Signed bytes, `[rows, heads, size]`.
        codes: Tensor,
        /// In f16, `[rows, heads, size / 32]`.
        scales: Tensor,
    },
}

impl From<Tensor> for KvTensor {
    fn from(floats: Tensor) -> KvTensor {
        KvTensor::Float(floats)
    }
}

impl From<&Tensor> for KvTensor {
    fn from(floats: &Tensor) -> KvTensor {
        KvTensor::Float(floats.clone())
    }
}

impl From<&KvTensor> for KvTensor {
    fn from(tensor: &KvTensor) -> KvTensor {
        tensor.clone()
    }
}

impl KvTensor {
    /// All zeros.
    pub(super) fn zeros(
        dims @ [rows, heads, size]: [usize; 3],
        format: KvCacheFormat,
        place: &Place,
    ) -> Result<KvTensor> {
        match format {
            KvCacheFormat::Float(dtype) => Ok(KvTensor::Float(zeros(dims, dtype, place)?)),
            KvCacheFormat::Q8 if size.is_multiple_of(BLOCK) => Ok(KvTensor::Q8 {
                codes: zeros(dims, DType::U8, place)?,
                scales: zeros([rows, heads, size / BLOCK], DType::F16, place)?,
            }),
            KvCacheFormat::Q8 => {
                let what = format!("a KV cache in {format} has blocks of {BLOCK}, which do not divide heads of {size}");
                Err(Error::call("kv_write", what + ": use f16 instead (--kv-dtype f16)"))
            }
        }
    }

    /// `values` rounded to `format`.
    pub(crate) fn from_f32(values: &[f32], dims: &[usize], format: KvCacheFormat, place: &Place) -> Result<KvTensor> {
        if let KvCacheFormat::Float(dtype) = format {
            return Ok(KvTensor::Float(Tensor::from_f32(values, dims, dtype, place)?));
        }
        let [rows, heads, size] = *dims else {
            return Err(Error::call("kv_write", "a tensor in Q8 blocks must have three axes"));
        };
        let mut codes = vec![0; values.len()];
        let blocks = values.as_chunks::<BLOCK>().0.iter().zip(codes.chunks_exact_mut(BLOCK));
        let scales: Vec<f16> = blocks.map(|(x, codes)| q8_0_apart(x, codes)).collect();
        let scale_dims = [rows, heads, size / BLOCK];
        Ok(KvTensor::Q8 {
            codes: Tensor::upload(dims, DType::U8, place, || host(codes, dims))?,
            scales: Tensor::upload(&scale_dims, DType::F16, place, || host(scales, &scale_dims))?,
        })
    }

    /// Rows, heads, and elements of a head.
    pub fn dims(&self) -> &[usize] {
        self.elements().dims()
    }

    /// The format.
    pub fn format(&self) -> KvCacheFormat {
        match self {
            KvTensor::Float(floats) => KvCacheFormat::Float(floats.dtype()),
            KvTensor::Q8 { .. } => KvCacheFormat::Q8,
        }
    }

    /// The tensor with an entry for each element.
    pub(crate) fn elements(&self) -> &Tensor {
        match self {
            KvTensor::Float(floats) => floats,
            KvTensor::Q8 { codes, .. } => codes,
        }
    }

    /// All tensors of it.
    pub(super) fn tensors(&self) -> impl Iterator<Item = &Tensor> {
        match self {
            KvTensor::Float(floats) => [Some(floats), None],
            KvTensor::Q8 { codes, scales } => [Some(codes), Some(scales)],
        }
        .into_iter()
        .flatten()
    }

    /// Applies `to` to every tensor.
    pub(crate) fn map(&self, to: &dyn Fn(&Tensor) -> Result<Tensor>) -> Result<KvTensor> {
        Ok(match self {
            KvTensor::Float(floats) => KvTensor::Float(to(floats)?),
            KvTensor::Q8 { codes, scales } => KvTensor::Q8 { codes: to(codes)?, scales: to(scales)? },
        })
    }

    /// The dequantized values.
    pub fn to_f32(&self) -> Result<Vec<f32>> {
        match self {
            KvTensor::Float(floats) => floats.to_f32(),
            KvTensor::Q8 { codes, scales } => {
                let (codes, scales) = (codes.to_f32()?, scales.to_f32()?);
                let signed = |code: f32| f32::from(code as u8 as i8);
                Ok(codes.iter().enumerate().map(|(i, code)| signed(*code) * scales[i / BLOCK]).collect())
            }
        }
    }
}

/// Memory that the system provides as zeros, so that rows never written take no physical memory.
fn zeros(dims: [usize; 3], dtype: DType, place: &Place) -> Result<Tensor> {
    let n = dims.iter().fold(1, |n: usize, d| n.saturating_mul(*d));
    Tensor::upload(&dims, dtype, place, || match dtype {
        DType::F32 => host(vec![0f32; n], &dims),
        DType::BF16 => host(vec![0u16; n].reinterpret_into::<bf16>(), &dims),
        DType::F16 => host(vec![0u16; n].reinterpret_into::<f16>(), &dims),
        DType::U8 => host(vec![0u8; n], &dims),
        DType::U32 | DType::F64 | DType::I64 => Err(Error::call("kv_write", format!("a KV cache cannot hold {dtype}"))),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kv_cache_formats_parse_their_names_and_count_bytes() {
        for format in KvCacheFormat::ALL {
            assert_eq!(format.to_string().parse::<KvCacheFormat>().unwrap(), format);
        }
        let error = "q4_0".parse::<KvCacheFormat>().unwrap_err().to_string();
        assert!(error.contains("q4_0") && error.contains("q8_0"), "{error}");
        assert_eq!(KvCacheFormat::ALL.map(|format| format.bytes(64)), [256, 128, 128, 68]);
    }

    #[test]
    fn q8_kv_cache_refuses_partial_blocks_and_suggests_f16() {
        for place in [Place::cpu(), Place::phantom(crate::Device::Cpu)] {
            let error = KvTensor::zeros([4, 2, 80], KvCacheFormat::Q8, &place).unwrap_err().to_string();
            assert!(error.contains("heads of 80") && error.contains("--kv-dtype f16"), "{error}");
        }
    }
}
