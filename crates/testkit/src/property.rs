//! Helpers of property tests (proptest).

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use proptest::test_runner::{RngSeed, TestRunner};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

/// A configuration of `cases` cases. The seed is fixed, so that a run of CI can be repeated;
/// `PROPTEST_RNG_SEED` and `PROPTEST_CASES` choose others.
pub fn cases(cases: u32) -> ProptestConfig {
    let environment = ProptestConfig::default();
    ProptestConfig {
        cases: if std::env::var_os("PROPTEST_CASES").is_some() { environment.cases } else { cases },
        rng_seed: if environment.rng_seed == RngSeed::Random { RngSeed::Fixed(0) } else { environment.rng_seed },
        failure_persistence: None,
        ..environment
    }
}

/// Runs a property on `count` inputs, for tests that count what happened or share something costly
/// between cases. Panics with the smallest input for which `property` panics.
#[track_caller]
pub fn check<S: Strategy>(count: u32, inputs: &S, property: impl Fn(S::Value)) {
    let run = |input| {
        property(input);
        Ok(())
    };
    if let Err(failure) = TestRunner::new(cases(count)).run(inputs, run) {
        panic!("{failure}");
    }
}

/// A change to the bytes of a file.
#[derive(Clone, Debug)]
pub enum Mutation {
    /// Replaces a byte.
    Set(Index, u8),
    /// Inverts one of the eight bits of a byte.
    Flip(Index, u8),
    /// Exchanges two bytes.
    Swap(Index, Index),
    /// Removes a byte and those after it, up to a count.
    Remove(Index, usize),
    /// Removes everything from a byte on.
    Truncate(Index),
    /// Inserts some bytes.
    Insert(Index, &'static [u8]),
    /// Copies up to a count of bytes, beginning at the first place, to the second.
    Copy(Index, usize, Index),
}

impl Mutation {
    /// Changes the bytes, if there are any. All indices are below `reach`.
    pub fn apply(&self, bytes: &mut Vec<u8>, reach: usize) {
        let reach = reach.min(bytes.len());
        if reach == 0 {
            return;
        }
        let end = |at: usize, count: usize| (at + count).min(bytes.len());
        match self {
            Mutation::Set(at, byte) => bytes[at.index(reach)] = *byte,
            Mutation::Flip(at, bit) => bytes[at.index(reach)] ^= 1 << bit,
            Mutation::Swap(a, b) => bytes.swap(a.index(reach), b.index(reach)),
            Mutation::Remove(at, count) => {
                let at = at.index(reach);
                bytes.drain(at..end(at, *count));
            }
            Mutation::Truncate(at) => bytes.truncate(at.index(reach)),
            Mutation::Insert(at, inserted) => {
                let at = at.index(reach);
                bytes.splice(at..at, inserted.iter().copied());
            }
            Mutation::Copy(from, count, to) => {
                let (from, to) = (from.index(reach), to.index(reach));
                let copied = bytes[from..end(from, *count)].to_vec();
                bytes.splice(to..to, copied);
            }
        }
    }
}

/// A file with mutations, restored on drop: also when a property fails and is tried on a smaller
/// input.
pub struct DamagedFile {
    path: PathBuf,
    original: Vec<u8>,
}

impl DamagedFile {
    /// Applies the mutations to the first `reach` bytes of a file.
    pub fn new(path: &Path, mutations: &[Mutation], reach: usize) -> DamagedFile {
        let original = std::fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let mut bytes = original.clone();
        mutations.iter().for_each(|mutation| mutation.apply(&mut bytes, reach));
        std::fs::write(path, bytes).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        DamagedFile { path: path.into(), original }
    }
}

impl Drop for DamagedFile {
    fn drop(&mut self) {
        std::fs::write(&self.path, &self.original).unwrap_or_else(|e| panic!("{}: {e}", self.path.display()));
    }
}

/// Lists of mutations. `set` are bytes and `inserted` are strings that the format of the file gives
/// a meaning.
pub fn mutations(
    count: RangeInclusive<usize>,
    set: &'static [u8],
    inserted: &'static [&'static [u8]],
) -> impl Strategy<Value = Vec<Mutation>> {
    let at = any::<Index>;
    let one = prop_oneof![
        2 => in_place(set),
        1 => (at(), at()).prop_map(|(a, b)| Mutation::Swap(a, b)),
        1 => (at(), 1..40usize).prop_map(|(at, count)| Mutation::Remove(at, count)),
        1 => at().prop_map(Mutation::Truncate),
        1 => (at(), select(inserted)).prop_map(|(at, bytes)| Mutation::Insert(at, bytes)),
        1 => (at(), 1..60usize, at()).prop_map(|(from, count, to)| Mutation::Copy(from, count, to)),
    ];
    vec(one, count)
}

/// [`mutations`] that leave all other bytes where they are.
pub fn mutations_in_place(count: RangeInclusive<usize>, set: &'static [u8]) -> impl Strategy<Value = Vec<Mutation>> {
    vec(in_place(set), count)
}

fn in_place(set: &'static [u8]) -> impl Strategy<Value = Mutation> {
    let at = any::<Index>;
    prop_oneof![
        (at(), any::<u8>()).prop_map(|(at, byte)| Mutation::Set(at, byte)),
        (at(), select(set)).prop_map(|(at, byte)| Mutation::Set(at, byte)),
        (at(), 0..8u8).prop_map(|(at, bit)| Mutation::Flip(at, bit)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn check_shrinks_and_panics_with_the_smallest_input() {
        let count = Cell::new(0);
        check(50, &(0..1000u32), |_| count.set(count.get() + 1));
        assert_eq!(count.get(), 50);
        let fails = || check(500, &(0..1000u32), |n| assert!(n < 17, "{n} is too much"));
        let panic = std::panic::catch_unwind(fails).unwrap_err();
        let message = panic.downcast_ref::<String>().unwrap();
        assert!(message.contains("17 is too much"), "{message}");
    }

    #[test]
    fn mutations_change_bytes_within_reach() {
        let changed = Cell::new(0);
        check(500, &mutations(1..=3, b"\0\xff", &[b"12"]), |all| {
            let mut bytes = b"0123456789".to_vec();
            all.iter().for_each(|mutation| mutation.apply(&mut bytes, 1));
            changed.set(changed.get() + usize::from(bytes != b"0123456789"));
            all.iter().for_each(|mutation| mutation.apply(&mut Vec::new(), 5));
            if let [Mutation::Set(..) | Mutation::Flip(..)] = all[..] {
                assert_eq!(bytes[1..], b"123456789"[..]);
            }
        });
        assert!(changed.get() > 300, "{}", changed.get());
    }
}
