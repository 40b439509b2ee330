//! Attention masks and biases.

use crate::{Error, Result, Tensor};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// Attention mask: which keys of its sequence a query attends to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mask {
    /// All of them.
    #[default]
    All,
    /// Those at most this many positions away, before or after.
    Window(usize),
    /// Itself and those before it. With more keys than queries, the queries are at the last
    /// positions.
    Causal,
    /// Causal sliding window: at most this many keys, the query's own included.
    CausalWindow(usize),
}

impl Mask {
    /// Position of the first query among the keys: 0, or such that the last query is at the last
    /// key.
    pub(super) fn query_offset(self, queries: usize, keys: usize) -> usize {
        match self {
            Mask::All | Mask::Window(_) => 0,
            Mask::Causal | Mask::CausalWindow(_) => keys.saturating_sub(queries),
        }
    }

    /// The keys that a query at position `i` attends to.
    pub(super) fn range(self, i: usize, keys: usize) -> Range<usize> {
        match self {
            Mask::All => 0..keys,
            Mask::Window(reach) => {
                i.saturating_sub(reach).min(keys)..i.saturating_add(reach).saturating_add(1).min(keys)
            }
            Mask::Causal => 0..(i + 1).min(keys),
            Mask::CausalWindow(most) => (i + 1).saturating_sub(most).min(keys)..(i + 1).min(keys),
        }
    }

    /// The keys that some of `queries` queries attend to: keys before a causal window are not even
    /// read.
    pub(super) fn reachable_keys(self, queries: usize, keys: usize) -> Range<usize> {
        match self {
            Mask::CausalWindow(_) => self.range(self.query_offset(queries, keys), keys).start..keys,
            _ => 0..keys,
        }
    }
}

impl fmt::Display for Mask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Mask::All => Ok(()),
            Mask::Window(reach) => write!(f, ", window ±{reach}"),
            Mask::Causal => write!(f, ", causal"),
            Mask::CausalWindow(most) => write!(f, ", causal, window {most}"),
        }
    }
}

/// Attention bias: added to the scores.
#[derive(Clone, Debug, Default)]
pub enum Bias {
    /// Nothing.
    #[default]
    None,
    /// −slope·|i − j|, one slope per head (Press et al. 2021, arXiv:2108.12409; here on both
    /// sides). Never stored as a table.
    Alibi(Arc<[f32]>),
    /// `table[bucket(j − i)][head]` with T5's relative position buckets: exact for near keys,
    /// logarithmic up to `far`.
    Buckets {
        /// `[buckets, heads]`.
        table: Arc<[f32]>,
        /// From this distance on, all keys share a bucket.
        far: usize,
        /// Whether keys on both sides have buckets, half of them each (encoder), or only those
        /// before (decoder).
        both: bool,
    },
    /// DeBERTa's content and position terms, before the scale (He et al. 2020, arXiv:2006.03654).
    Disentangled(Disentangled),
}

/// q·key[δ(i − j)] + k·query[δ(i − j)], where δ selects a row of tables of `2·span` positions.
#[derive(Clone, Debug)]
pub struct Disentangled {
    /// Content-to-position: projected positions multiplied with queries, `[2·span, heads, size]`.
    pub keys: Option<Tensor>,
    /// Position-to-content: projected positions multiplied with keys, `[2·span, heads, size]`.
    pub queries: Option<Tensor>,
    /// Half the number of rows.
    pub span: usize,
    /// Distances beyond half a span are bucketed logarithmically up to this one. `None`: no
    /// buckets.
    pub far: Option<usize>,
}

impl Disentangled {
    pub(super) fn rows(&self) -> usize {
        2 * self.span
    }

    /// The row for a query `distance` positions after its key.
    pub(super) fn row(&self, distance: i64) -> usize {
        let span = self.span as i64;
        let steps = match self.far {
            None => distance,
            Some(far) => log_steps(distance, span, far as i64),
        };
        (steps + span).clamp(0, 2 * span - 1) as usize
    }
}

/// Distances up to half of `buckets` are exact, farther ones take as many logarithmic steps up to
/// `far`; in f32, as published.
fn log_steps(distance: i64, buckets: i64, far: i64) -> i64 {
    let middle = buckets / 2;
    let away = distance.abs();
    if away <= middle {
        return distance;
    }
    let m = middle as f32;
    let steps = (away as f32 / m).ln() / (((far - 1) as f64 / middle as f64) as f32).ln() * (m - 1.0);
    (steps.ceil() as i64 + middle) * distance.signum()
}

/// T5's bucket of a key `distance` positions after its query.
fn t5_bucket(distance: i64, buckets: usize, far: usize, both: bool) -> usize {
    let side = if both { buckets / 2 } else { buckets };
    let after = if both && distance > 0 { side } else { 0 };
    let away = if both { distance.abs() } else { (-distance).max(0) } as usize;
    let exact = side / 2;
    if away < exact {
        return after + away;
    }
    let (a, e) = (away as f32, exact as f32);
    let steps = (a / e).ln() / (far as f64 / exact as f64).ln() as f32 * (side - exact) as f32;
    after + (exact + steps as usize).min(side - 1)
}

impl Bias {
    /// Checks that the bias fits q's heads.
    pub(super) fn check(&self, q: &Tensor) -> Result<()> {
        let (heads, size) = (q.dims()[1], q.dims()[2]);
        let fits = match self {
            Bias::None => true,
            Bias::Alibi(slopes) => slopes.len() == heads,
            Bias::Buckets { table, far, both } => {
                let buckets = table.len() / heads.max(1);
                let exact = if *both { buckets / 4 } else { buckets / 2 };
                table.len() == buckets * heads && buckets >= 4 && *far > exact
            }
            Bias::Disentangled(d) => {
                let fits = |t: &Tensor| t.dims() == [d.rows(), heads, size] && t.dtype() == q.dtype();
                d.span > 0
                    && d.keys.as_ref().is_none_or(fits)
                    && d.queries.as_ref().is_none_or(fits)
                    && d.far.is_none_or(|far| d.span >= 4 && far > d.span / 2 + 1)
            }
        };
        if fits {
            Ok(())
        } else {
            Err(Error::call("attention", format!("the bias{self} does not fit {heads} heads of {size}")))
        }
    }

    /// What each head adds for a key `j − i` positions after its query, from −(positions − 1) to
    /// keys − 1: `[heads][distances]`.
    pub(super) fn by_distance(&self, heads: usize, positions: usize, keys: usize) -> Option<Vec<f32>> {
        let distances = 1 - positions as i64..keys as i64;
        match self {
            Bias::None | Bias::Disentangled(_) => None,
            Bias::Alibi(slopes) => {
                Some(slopes.iter().flat_map(|slope| distances.clone().map(move |d| -slope * d.abs() as f32)).collect())
            }
            Bias::Buckets { table, far, both } => {
                let rows: Vec<usize> = distances.map(|d| t5_bucket(d, table.len() / heads, *far, *both)).collect();
                Some((0..heads).flat_map(|head| rows.iter().map(move |row| table[row * heads + head])).collect())
            }
        }
    }

    pub(super) fn map(&self, to: &dyn Fn(&Tensor) -> Result<Tensor>) -> Result<Bias> {
        Ok(match self {
            Bias::Disentangled(d) => Bias::Disentangled(Disentangled {
                keys: d.keys.as_ref().map(to).transpose()?,
                queries: d.queries.as_ref().map(to).transpose()?,
                ..d.clone()
            }),
            other => other.clone(),
        })
    }
}

impl fmt::Display for Bias {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Bias::None => Ok(()),
            Bias::Alibi(_) => write!(f, ", ALiBi"),
            Bias::Buckets { far, .. } => write!(f, ", relative to {far}"),
            Bias::Disentangled(d) => write!(f, ", disentangled ±{}", d.span),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values computed by transformers' T5 and DeBERTa.
    #[test]
    fn position_buckets_equal_transformers() {
        let t5: Vec<usize> = [-200, -128, -127, -9, -8, -7, -1, 0, 1, 7, 8, 12, 20, 127, 500]
            .map(|d| t5_bucket(d, 32, 128, true))
            .to_vec();
        assert_eq!(t5, [15, 15, 15, 8, 8, 7, 1, 0, 17, 23, 24, 25, 26, 31, 31]);
        let past: Vec<usize> =
            [-200, -113, -50, -17, -16, -15, -1, 0, 1, 9].map(|d| t5_bucket(d, 32, 128, false)).to_vec();
        assert_eq!(past, [31, 31, 24, 16, 16, 15, 1, 0, 0, 0]);
        let log: Vec<i64> = [0, 1, 127, 128, 129, 130, 200, 511, -129].map(|d| log_steps(d, 256, 512)).to_vec();
        assert_eq!(log, [0, 1, 127, 128, 129, 130, 169, 255, -129]);
        let d = Disentangled { keys: None, queries: None, span: 4, far: None };
        assert_eq!([-9, -4, -1, 0, 3, 4, 9].map(|i| d.row(i)), [0, 0, 3, 4, 7, 7, 7]);
    }

    #[test]
    fn masks_give_the_visible_key_range() {
        assert_eq!(Mask::Window(2).range(0, 10), 0..3);
        assert_eq!(Mask::Window(2).range(9, 10), 7..10);
        assert_eq!(Mask::Window(usize::MAX).range(3, 10), 0..10);
        assert_eq!(Mask::Window(2).range(9, 5), 5..5);
        assert_eq!(Mask::Causal.range(3, 10), 0..4);
        assert_eq!(Mask::CausalWindow(3).range(3, 10), 1..4);
        assert_eq!(Mask::CausalWindow(9).range(3, 10), 0..4);
        assert_eq!(
            (Mask::CausalWindow(3).query_offset(2, 10), Mask::CausalWindow(3).reachable_keys(2, 10)),
            (8, 6..10)
        );
        assert_eq!((Mask::Window(3).query_offset(2, 10), Mask::Causal.reachable_keys(2, 10)), (0, 0..10));
        assert_eq!(Mask::All.range(3, 10), 0..10);
    }
}
