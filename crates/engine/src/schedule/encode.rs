//! Which texts go together. Pure: lengths in, batches out.

/// Groups sequences into batches of at most `budget` tokens (a longer one goes alone) and `most` sequences, long ones first.
///
/// Batches are packed, so mixing lengths would waste no padding; but alike lengths make alike tasks, which the threads of a
/// CPU and the blocks of a GPU share evenly, and the largest batch comes first, so that memory runs out early or never.
pub(crate) fn batches(lengths: &[usize], budget: usize, most: usize) -> Vec<Vec<usize>> {
    let mut order: Vec<usize> = (0..lengths.len()).collect();
    order.sort_by_key(|i| std::cmp::Reverse(lengths[*i]));
    let mut batches: Vec<Vec<usize>> = Vec::new();
    let mut tokens = 0;
    for i in order {
        match batches.last_mut() {
            Some(batch) if tokens + lengths[i] <= budget && batch.len() < most => {
                batch.push(i);
                tokens += lengths[i];
            }
            _ => {
                batches.push(vec![i]);
                tokens = lengths[i];
            }
        }
    }
    batches
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_text_is_in_one_batch_and_no_batch_is_over_budget() {
        let lengths: Vec<usize> = (0..1000).map(|i| (i * 7919) % 97 + 1).collect();
        let batches = batches(&lengths, 100, usize::MAX);
        let mut seen: Vec<usize> = batches.iter().flatten().copied().collect();
        seen.sort_unstable();
        assert_eq!(seen, (0..1000).collect::<Vec<_>>());
        assert!(batches.iter().all(|b| b.iter().map(|i| lengths[*i]).sum::<usize>() <= 100));
        let total: usize = lengths.iter().sum();
        assert!(batches.len() < total / 100 * 2, "{} batches for {total} tokens", batches.len());
    }

    #[test]
    fn a_text_over_budget_goes_alone_and_nothing_gives_nothing() {
        assert_eq!(batches(&[5, 500, 5], 100, 9), [vec![1], vec![0, 2]]);
        assert_eq!(batches(&[5, 5, 5], 100, 2), [vec![0, 1], vec![2]]);
        assert!(batches(&[], 100, 9).is_empty());
    }
}
