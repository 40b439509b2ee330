//! Low-rank updates of matrices (LoRA: Hu et al. 2021, arXiv:2106.09685), one for each task of a
//! model: W + s · B · A, computed as W x + s · B (A x), so that all tasks share W.

use crate::config::{defaults, refuse};
use crate::{Error, Result};
use sconce_ops::{LayerNorm, Linear, Table, Tensor, WeightFormat, Weights, embed};

defaults! {
    /// The fields of `config.json`, as in jina-embeddings-v3.
    pub(crate) struct LoraConfig {
        /// The tasks, in the order of the file's factors.
        pub lora_adaptations: Option<Vec<String>> = None,
        lora_rank: usize = 4,
        lora_alpha: f64 = 1.0,
    }
}

impl LoraConfig {
    /// The names of the tasks.
    pub(crate) fn tasks(&self) -> &[String] {
        self.lora_adaptations.as_deref().unwrap_or_default()
    }

    /// The rank, and the factor of B.
    fn sizes(&self) -> Result<(usize, f32)> {
        refuse(self.lora_rank == 0, || "lora_rank is 0".into())?;
        Ok((self.lora_rank, (self.lora_alpha / self.lora_rank as f64) as f32))
    }
}

/// The name of a matrix in `w`: training keeps a matrix with an update under another name.
fn matrix(w: &Weights) -> Result<&'static str> {
    const ORIGINAL: &str = "parametrizations.weight.original";
    Ok(if w.has(ORIGINAL)? { ORIGINAL } else { "weight" })
}

/// The matrix `[n, k]` and bias in `w`, without its updates.
pub(crate) fn linear(w: &Weights, k: usize, n: usize) -> Result<Linear> {
    Ok(Linear::shaped(&[(w.clone(), matrix(w)?)], &[n, k])?.with_bias(w.tensor("bias", &[n])?)?)
}

/// The table of word embeddings `[rows, n]` in `w`, without its updates.
pub(crate) fn word_table(w: &Weights, rows: usize, n: usize) -> Result<Table> {
    Ok(Table::load(w, matrix(w)?, [rows, n])?)
}

/// The table `[rows, n]` in `w`, without its updates.
pub(crate) fn table(w: &Weights, rows: usize, n: usize) -> Result<Tensor> {
    Ok(w.tensor(matrix(w)?, &[rows, n])?)
}

/// One of the two factors of every task, on the host.
struct Factor {
    values: Vec<f32>,
    dims: [usize; 2],
}

impl Factor {
    /// `dims` of each task, in `w` as `[tasks, ..dims]`.
    fn read(w: &Weights, name: &str, tasks: usize, dims: [usize; 2]) -> Result<Factor> {
        let values = w.sub("parametrizations.weight.0").values(name, &[tasks, dims[0], dims[1]])?;
        Ok(Factor { values, dims })
    }

    fn of(&self, task: usize) -> &[f32] {
        let size = self.dims[0] * self.dims[1];
        &self.values[task * size..][..size]
    }
}

/// The update of a matrix for one task: s · B (A x).
pub(crate) struct LowRank {
    down: Linear,
    up: Linear,
}

impl LowRank {
    /// The updates of the matrix `[n, k]` in `w`, one for each task.
    pub(crate) fn load(w: &Weights, c: &LoraConfig, k: usize, n: usize) -> Result<Vec<LowRank>> {
        let (tasks, (rank, scale)) = (c.tasks().len(), c.sizes()?);
        let down = Factor::read(w, "lora_A", tasks, [rank, k])?;
        let up = Factor::read(w, "lora_B", tasks, [n, rank])?;
        let load = |task| {
            let scaled: Vec<f32> = up.of(task).iter().map(|v| v * scale).collect();
            Ok(LowRank { down: small(w, down.of(task), k, rank)?, up: small(w, &scaled, rank, n)? })
        };
        (0..tasks).map(load).collect()
    }

    pub(crate) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        Ok(self.up.forward(&self.down.forward(x)?)?)
    }

    pub(crate) fn forward_residual(&self, x: &Tensor, residual: &Tensor) -> Result<Tensor> {
        Ok(self.up.forward_residual(&self.down.forward(x)?, residual)?)
    }
}

/// A factor as a linear layer. It is not quantized: it is a small part of the work.
fn small(w: &Weights, values: &[f32], k: usize, n: usize) -> Result<Linear> {
    Ok(Linear::from_values(&w.with_format(WeightFormat::Activations), values, k, n)?)
}

/// The update of the word embeddings for one task: rows of A, then s · B. Type embeddings are few,
/// so theirs is added to a copy.
pub(crate) struct EmbeddingUpdate {
    rows: Tensor,
    up: Linear,
    /// The type embeddings of the task.
    pub types: Tensor,
}

impl EmbeddingUpdate {
    /// The updates of the tables in `words` `[vocabulary, n]` and `types` `[types, n]`, one for each
    /// task.
    pub(crate) fn load(
        (words, vocabulary): (&Weights, usize),
        (types, type_rows): (&Weights, usize),
        c: &LoraConfig,
        n: usize,
    ) -> Result<Vec<EmbeddingUpdate>> {
        let (tasks, (rank, scale)) = (c.tasks().len(), c.sizes()?);
        // The factors of a table have the opposite order: x · (T + s · A · B).
        let factors = |w: &Weights, rows: usize| -> Result<_> {
            Ok((Factor::read(w, "lora_A", tasks, [rows, rank])?, Factor::read(w, "lora_B", tasks, [rank, n])?))
        };
        let (down, up) = factors(words, vocabulary)?;
        let (type_down, type_up) = factors(types, type_rows)?;
        let plain = types.values(matrix(types)?, &[type_rows, n])?;
        let load = |task| {
            let b = up.of(task);
            let transposed: Vec<f32> = (0..n * rank).map(|i| b[i % rank * n + i / rank] * scale).collect();
            let (a, b) = (type_down.of(task), type_up.of(task));
            let update = |i: usize| (0..rank).map(|r| a[i / n * rank + r] * b[r * n + i % n]).sum::<f32>();
            let table: Vec<f32> = plain.iter().enumerate().map(|(i, v)| v + scale * update(i)).collect();
            Ok(EmbeddingUpdate {
                rows: words.put(down.of(task), &[vocabulary, rank])?,
                up: small(words, &transposed, rank, n)?,
                types: types.put(&table, &[type_rows, n])?,
            })
        };
        (0..tasks).map(load).collect()
    }

    /// norm(x + the update of the words), where `x` has the embeddings without it.
    pub(crate) fn forward_normed(&self, x: &Tensor, ids: &Tensor, norm: &LayerNorm) -> Result<Tensor> {
        Ok(self.up.forward_normed(&embed(&[(&self.rows, ids)])?, x, norm)?)
    }
}

/// The update that a batch asks for, if it asks for one.
pub(crate) fn of_task<T>(updates: &[T], task: Option<usize>) -> Result<Option<&T>> {
    let missing = |task| Error::Input(format!("the model has {} tasks, so it has no task {task}", updates.len()));
    task.map(|task| updates.get(task).ok_or_else(|| missing(task))).transpose()
}
