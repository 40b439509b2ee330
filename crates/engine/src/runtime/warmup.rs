//! Warm-up: compiles the kernels of a model before the first request, and stores them for the next
//! process.

use crate::error::Result;
use crate::options::LoadOptions;
use sconce_ops::{Device, Ladder, Place};

/// Opens the device and loads compiled kernels from our cache.
pub(crate) fn open(device: Device, options: &LoadOptions) -> Result<Place> {
    let place = Place::open(device)?;
    set_kernel_cache(&place, options);
    Ok(place)
}

/// Compiles and stores every kernel that `run` uses at up to `most` tokens. A failure does not fail
/// a model that passed its sanity check: missing kernels are compiled on first use.
pub(crate) fn compile_kernels(place: &Place, options: &LoadOptions, most: usize, run: impl Fn(usize) -> Result<()>) {
    // In a separate ladder, so that these op calls are not counted as a request's.
    let _warmup_ladder = Ladder::new(options.policy.clone()).enter();
    let compiled = place.make_kernels(|| row_counts(most).try_for_each(run));
    if let Some(Err(e)) = compiled {
        tracing::debug!("warm-up failed, kernels will be compiled on first use: {e}");
    }
    set_kernel_cache(place, options);
}

/// Sets the folder of compiled kernels, one per version of Sconce, since kernels of another version
/// cannot be used.
fn set_kernel_cache(place: &Place, options: &LoadOptions) {
    let folder = options.hub.cache.join("kernels").join(env!("CARGO_PKG_VERSION"));
    if let Err(e) = place.keep_kernels(&folder) {
        tracing::warn!("compiled kernels cannot be stored, every start will compile them again: {e}");
    }
}

/// Row counts up to `most` that select every kernel there is. The choice of kernel changes at
/// powers of two, just above the rows that a SIMD-group or a tile holds (9, 33), and above certain
/// amounts of work, which double no faster than these counts.
fn row_counts(most: usize) -> impl Iterator<Item = usize> {
    let doubled = std::iter::successors(Some(1usize), |n| n.checked_mul(2)).take_while(move |n| *n < most);
    [9, 33].into_iter().filter(move |n| *n < most).chain(doubled).chain([most])
}

#[cfg(test)]
mod tests {
    use super::row_counts;

    #[test]
    fn row_counts_include_the_maximum_and_stay_within_it() {
        assert_eq!(row_counts(1).collect::<Vec<_>>(), [1]);
        assert_eq!(row_counts(40).collect::<Vec<_>>(), [9, 33, 1, 2, 4, 8, 16, 32, 40]);
        assert_eq!(row_counts(64).collect::<Vec<_>>(), [9, 33, 1, 2, 4, 8, 16, 32, 64]);
    }
}
