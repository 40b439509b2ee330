//! A table of word embeddings as an encoder has it: rows of floats, or of quantized blocks as in the
//! file. A vocabulary may be most of a small model's weights.

use super::{embed, embed_normed};
use crate::weights::Stored;
use crate::{Error, LayerNorm, Linear, Result, Tensor, WeightFormat, Weights};

/// Rows and their ids `[t]`, to be added.
type Pair<'a> = (&'a Tensor, &'a Tensor);

/// A table of word embeddings.
#[derive(Clone, Debug)]
pub struct Table(Rows);

#[derive(Clone, Debug)]
enum Rows {
    /// `[rows, n]`, in the dtype of the activations.
    Floats(Tensor),
    /// In blocks.
    Blocks(Linear),
}

impl Table {
    /// Loads `name` `[rows, n]`. Blocks stay blocks where matrices keep the format of the file.
    pub fn load(w: &Weights, name: &str, dims: [usize; 2]) -> Result<Table> {
        let w = w.of_head();
        let in_blocks = w.format() == WeightFormat::File && matches!(w.stored(name)?, Some(Stored::Blocks(_)));
        Ok(Table(match in_blocks {
            true => Rows::Blocks(Linear::shaped(&[(w, name)], &dims)?),
            false => Rows::Floats(w.tensor(name, &dims)?),
        }))
    }

    /// The sum of the rows of `ids` and of those of other tables: see [`super::embed`]. In blocks it
    /// takes one other table at most.
    pub fn embed(&self, ids: &Tensor, others: &[Pair<'_>]) -> Result<Tensor> {
        match (&self.0, others) {
            (Rows::Floats(rows), others) => embed(&with(rows, ids, others)),
            (Rows::Blocks(rows), []) => rows.embed(ids, 1.0, None),
            (Rows::Blocks(rows), [other]) => rows.embed(ids, 1.0, Some(*other)),
            (Rows::Blocks(_), _) => Err(Error::call("embed", "a table in blocks takes one other table at most")),
        }
    }

    /// The norm of that sum, for any number of tables.
    pub fn embed_normed(&self, ids: &Tensor, others: &[Pair<'_>], norm: &LayerNorm) -> Result<Tensor> {
        match (&self.0, others) {
            (Rows::Floats(rows), others) => embed_normed(&with(rows, ids, others), norm),
            (Rows::Blocks(_), [] | [_]) => norm.forward(&self.embed(ids, others)?),
            (Rows::Blocks(_), [first, rest @ ..]) => norm.forward_residual(&self.embed(ids, &[*first])?, &embed(rest)?),
        }
    }
}

fn with<'a>(rows: &'a Tensor, ids: &'a Tensor, others: &[Pair<'a>]) -> Vec<Pair<'a>> {
    [(rows, ids)].into_iter().chain(others.iter().copied()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::case::{InBlocks, Input, weights};
    use crate::{DType, Place, Quant};

    /// Sums over a table in blocks against the same sums over its dequantized rows.
    #[test]
    fn tables_in_blocks_equal_their_floats() {
        let (rows, n, place) = (5, 64, Place::cpu());
        let blocks = InBlocks::of(1, Quant::Q8_0, [rows, n], move || {
            (0..rows * n).map(|i| (i * 31 % 37) as f32 / 10.0 - 1.8).collect()
        });
        let load =
            |format| Table::load(&blocks.weights(DType::F32, &place).with_format(format), "weight", [rows, n]).unwrap();
        let (kept, widened) = (load(WeightFormat::File), load(WeightFormat::Activations));
        assert!(matches!((&kept.0, &widened.0), (Rows::Blocks(_), Rows::Floats(_))));
        let ids = Tensor::from_u32(&[3, 0, 4, 3], &place).unwrap();
        let table = |seed| Input::normal(seed, &[2, n], DType::F32, (0.0, 1.0)).on(&place).unwrap();
        let (first, second, places) = (table(5), table(6), Tensor::from_u32(&[0, 1, 1, 0], &place).unwrap());
        let [weight, bias] = [7, 8].map(|seed| Input::normal(seed, &[n], DType::F32, (0.0, 1.0)));
        let norm = LayerNorm::load(&weights(&[("weight", &weight), ("bias", &bias)], &place), n, 1e-5, true).unwrap();
        let all: [Pair<'_>; 2] = [(&first, &places), (&second, &places)];
        for others in 0..=2 {
            let normed = |table: &Table| table.embed_normed(&ids, &all[..others], &norm).unwrap().to_f32().unwrap();
            let (got, want) = (normed(&kept), normed(&widened));
            assert!(got.iter().zip(&want).all(|(a, b)| (a - b).abs() <= 1e-5), "{others} other tables");
        }
        let sum = |table: &Table| table.embed(&ids, &all[..1]).unwrap().to_f32().unwrap();
        assert_eq!(sum(&kept), sum(&widened));
        assert!(kept.embed(&ids, &all).is_err());
    }
}
