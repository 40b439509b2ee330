//! Embeddings as bytes.

use half::f16;

use crate::models::Embedding;

/// An embedding as the database stores it. Little-endian on every machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StoredEmbedding {
    /// Dense: f32, L2-normalized. Sparse: pairs of u32 and f32. Multi-vector: f16.
    pub(crate) main: Vec<u8>,
    /// For a multi-vector embedding: the mean of its vectors, L2-normalized, as f32. It finds
    /// candidates for late interaction.
    pub(crate) mean: Option<Vec<u8>>,
}

impl StoredEmbedding {
    /// The bytes of an embedding.
    pub(crate) fn new(embedding: &Embedding, dimensions: usize) -> StoredEmbedding {
        match embedding {
            Embedding::Dense(values) => StoredEmbedding { main: f32_bytes(&normalized(values)), mean: None },
            Embedding::Sparse(weights) => {
                let pair = |(id, weight): &(u32, f32)| [id.to_le_bytes(), weight.to_le_bytes()].concat();
                StoredEmbedding { main: weights.iter().flat_map(pair).collect(), mean: None }
            }
            Embedding::MultiVector { values, .. } => {
                let main = values.iter().flat_map(|value| f16::from_f32(*value).to_le_bytes()).collect();
                StoredEmbedding { main, mean: Some(f32_bytes(&mean(values, dimensions))) }
            }
        }
    }
}

/// The L2-normalized mean of vectors, which are one after another.
pub(crate) fn mean(values: &[f32], dimensions: usize) -> Vec<f32> {
    let mut sum = vec![0.0; dimensions];
    for row in values.chunks_exact(dimensions.max(1)) {
        sum.iter_mut().zip(row).for_each(|(sum, value)| *sum += value);
    }
    normalized(&sum)
}

/// A vector of length 1 in the same direction; zeros stay zeros.
pub(crate) fn normalized(values: &[f32]) -> Vec<f32> {
    let length = values.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>().sqrt();
    // A vector that has length 1 but for rounding stays as it is, bit by bit.
    if length == 0.0 || (length - 1.0).abs() < 1e-6 {
        return values.to_vec();
    }
    values.iter().map(|value| (f64::from(*value) / length) as f32).collect()
}

pub(crate) fn f32_bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

/// The values of a blob; bytes that are too few for a value are left out.
pub(crate) fn f32_values(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}

/// The product of a stored vector with another one; the lengths may differ only in a damaged file.
pub(crate) fn dot_stored(bytes: &[u8], other: &[f32]) -> f32 {
    // Eight sums, so that the compiler can use vectors.
    let mut sums = [0.0f32; 8];
    let (eights, rest) = other.as_chunks::<8>();
    let stored = bytes.as_chunks::<4>().0;
    let (stored_eights, stored_rest) = stored.as_chunks::<8>();
    for (stored, other) in stored_eights.iter().zip(eights) {
        for ((sum, stored), other) in sums.iter_mut().zip(stored).zip(other) {
            *sum += f32::from_le_bytes(*stored) * other;
        }
    }
    let rest: f32 = stored_rest.iter().zip(rest).map(|(stored, other)| f32::from_le_bytes(*stored) * other).sum();
    sums.iter().sum::<f32>() + rest
}

/// The values of a multi-vector embedding.
pub(crate) fn f16_values(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks::<2>().0.iter().map(|bytes| f16::from_le_bytes(*bytes).to_f32()).collect()
}

/// The ids and weights of a sparse embedding.
pub(crate) fn sparse_values(bytes: &[u8]) -> impl Iterator<Item = (u32, f32)> {
    bytes
        .as_chunks::<8>()
        .0
        .iter()
        .map(|[a, b, c, d, e, f, g, h]| (u32::from_le_bytes([*a, *b, *c, *d]), f32::from_le_bytes([*e, *f, *g, *h])))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn embeddings_come_back() {
        let dense = StoredEmbedding::new(&Embedding::Dense(vec![3.0, 4.0]), 2);
        assert_eq!(f32_values(&dense.main), [0.6, 0.8]);
        assert_eq!(StoredEmbedding::new(&Embedding::Dense(vec![0.0; 3]), 3).main, [0; 12]);
        let weights = vec![(7, 0.5), (70_000, 2.0)];
        let sparse = StoredEmbedding::new(&Embedding::Sparse(weights.clone()), 0);
        assert_eq!(sparse_values(&sparse.main).collect::<Vec<_>>(), weights);
        let values = vec![1.0, 0.0, 0.0, 1.0];
        let multi = StoredEmbedding::new(&Embedding::MultiVector { rows: 2, values: values.clone() }, 2);
        assert_eq!(f16_values(&multi.main), values);
        let mean = f32_values(&multi.mean.unwrap());
        assert!((mean[0] - 0.5f32.sqrt()).abs() < 1e-6 && mean[0] == mean[1]);
    }

    #[test]
    fn products_of_stored_vectors() {
        for n in [0, 1, 7, 8, 9, 384, 385] {
            let (a, b): (Vec<f32>, Vec<f32>) = (0..n).map(|i| (i as f32 * 0.25, 1.0 - i as f32 * 0.5)).unzip();
            let expected: f64 = a.iter().zip(&b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
            let found = f64::from(dot_stored(&f32_bytes(&a), &b));
            assert!((found - expected).abs() <= 1e-6 * expected.abs(), "{n}: {found} {expected}");
        }
    }
}
