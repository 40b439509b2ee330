//! What a family of models is used for, from what its code offers.

use super::Task;
use sconce_models::{Family, Task as Head};

/// The tasks of models of this family. A model has the weights for some of them.
pub fn family_tasks(family: &Family) -> Vec<Task> {
    let has = |head| family.heads.contains(&head);
    let fits = |task: &Task| match task {
        Task::Clip => family.is_dual(),
        Task::Embed => !family.is_dual() && !family.is_gliner(),
        // SPLADE weighs the vocabulary; ColBERT's projection is trained on the same encoders.
        Task::Sparse | Task::Multi => has(Head::Vocabulary),
        // One model, which also embeds, weighs the vocabulary and has a vector per token.
        Task::M3 => false,
        // A reranker is a classifier with one label.
        Task::Classify | Task::Rerank => has(Head::Classify),
        Task::Tag => has(Head::Tag),
        Task::Seq2Seq => family.is_seq2seq(),
        Task::Generate => family.is_language_model(),
        Task::Gliner => family.is_gliner(),
        #[cfg(test)]
        Task::Norms => false,
    };
    Task::ALL.iter().copied().filter(fits).collect()
}
