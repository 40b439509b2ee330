//! Warm-up: a device compiles the kernels of a model before the first request waits for them, and keeps them for the next
//! process.

use crate::error::Result;
use crate::options::LoadOptions;
use sconce_ops::{Device, Ladder, Place};

/// Opens the device, and has it look for compiled kernels in our cache.
pub(crate) fn open(device: Device, options: &LoadOptions) -> Result<Place> {
    let place = Place::open(device)?;
    keep(&place, options);
    Ok(place)
}

/// Compiles every kernel that `run` calls for at up to `most` tokens, and keeps them. A failure here does not fail a model that
/// passed its sanity check: what is missing is compiled when it is needed.
pub(crate) fn compile_kernels(place: &Place, options: &LoadOptions, most: usize, run: impl Fn(usize) -> Result<()>) {
    // Under a ladder of its own: this is nobody's request, and is not counted as one.
    let _apart = Ladder::new(options.policy.clone()).enter();
    let made = place.make_kernels(|| sizes(most).try_for_each(run));
    if let Some(Err(e)) = made {
        tracing::debug!("kernels will be compiled when they are needed: {e}");
    }
    keep(place, options);
}

/// Where compiled kernels are kept is a folder of this version's, since another's are of no use to it.
fn keep(place: &Place, options: &LoadOptions) {
    let folder = options.hub.cache.join("kernels").join(env!("CARGO_PKG_VERSION"));
    if let Err(e) = place.keep_kernels(&folder) {
        tracing::warn!("compiled kernels are not kept, and every start compiles them again: {e}");
    }
}

/// Numbers of rows up to `most` that call for every kernel there is: kernels change at powers of two, behind the few rows that
/// SIMD-groups hold and behind a tile, or where there is a certain amount of work, which doubles no faster than they do.
fn sizes(most: usize) -> impl Iterator<Item = usize> {
    let doubled = std::iter::successors(Some(1usize), |n| n.checked_mul(2)).take_while(move |n| *n < most);
    [9, 33].into_iter().filter(move |n| *n < most).chain(doubled).chain([most])
}

#[cfg(test)]
mod tests {
    use super::sizes;

    #[test]
    fn sizes_reach_the_largest_and_none_is_beyond_it() {
        assert_eq!(sizes(1).collect::<Vec<_>>(), [1]);
        assert_eq!(sizes(40).collect::<Vec<_>>(), [9, 33, 1, 2, 4, 8, 16, 32, 40]);
        assert_eq!(sizes(64).collect::<Vec<_>>(), [9, 33, 1, 2, 4, 8, 16, 32, 64]);
    }
}
