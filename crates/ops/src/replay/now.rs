//! What a thread is about while a batch is fed or a pass is recorded: ops and tensors ask here, and say what a recording must know.

use super::Given;
use crate::launch::cuda::graph::Tape;
use crate::{Error, Result};
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// Arrays on the tape begin at multiples of so many words.
const GRAIN: usize = 64;

/// Words that kernels are told, and how they are worked out: none where launches would differ.
pub(super) struct Told {
    key: String,
    pub(super) at: usize,
    pub(super) len: usize,
    pub(super) again: Again,
}

pub(crate) type Again = Box<dyn Fn(&Given) -> Option<Vec<u32>>>;

/// What this thread is about.
#[derive(Default)]
pub(super) enum Now {
    #[default]
    Nothing,
    Feeding(Feed),
    Noting(Notes),
}

/// A batch is made, whose arrays go on the tape.
pub(super) struct Feed {
    pub(super) tape: Rc<Tape>,
    pub(super) uploads: Vec<usize>,
    pub(super) words: usize,
}

/// A pass is run to be recorded, whose kernels are told things from the tape.
pub(super) struct Notes {
    pub(super) tape: Rc<Tape>,
    pub(super) given: Given,
    pub(super) told: Vec<Told>,
    pub(super) words: usize,
    /// Whether it is written down, so that nothing new may be told any more, nor memory be taken.
    pub(super) is_second: bool,
    /// Whether memory was taken.
    pub(super) has_grown: bool,
    /// Whether something differs from batch to batch in a way that is not known.
    pub(super) is_lost: bool,
}

thread_local! {
    static NOW: RefCell<Now> = const { RefCell::new(Now::Nothing) };
    /// How many ops are looking at sequences for themselves.
    static OWN: Cell<usize> = const { Cell::new(0) };
}

/// Runs `f` while the thread is about `now`, and gives back what became of both.
pub(super) fn during<T>(now: Now, f: impl FnOnce() -> T) -> (T, Now) {
    struct Reset;
    impl Drop for Reset {
        fn drop(&mut self) {
            NOW.take();
        }
    }
    NOW.set(now);
    let _reset = Reset;
    let out = f();
    (out, NOW.take())
}

/// The pass depends on what it is given in a way that a recording does not know.
fn lose() {
    NOW.with_borrow_mut(|now| {
        if let Now::Noting(notes) = now {
            notes.is_lost = true;
        }
    });
}

/// An array is uploaded that is not on the tape.
pub(crate) fn stray() {
    lose();
    NOW.with_borrow_mut(|now| {
        if let Now::Feeding(_) = now {
            *now = Now::Nothing;
        }
    });
}

/// Something is to run that no recording may hold. It must not begin: it would keep buffers, or give them up, that recordings write
/// to.
pub(crate) fn refuse() -> Result<()> {
    NOW.with_borrow_mut(|now| match now {
        Now::Noting(notes) => {
            notes.is_lost = true;
            Err(Error::call("cuda", "this cannot be recorded"))
        }
        _ => Ok(()),
    })
}

/// A result takes memory from the driver: not while a pass is written down, which would take it again each time.
#[cfg_attr(not(cuda), allow(dead_code, reason = "elsewhere nothing is recorded"))]
pub(crate) fn grow() -> Result<()> {
    NOW.with_borrow_mut(|now| match now {
        Now::Noting(notes) if notes.is_second => {
            notes.is_lost = true;
            Err(Error::call("cuda", "a pass that is recorded takes memory"))
        }
        Now::Noting(notes) => {
            notes.has_grown = true;
            Ok(())
        }
        _ => Ok(()),
    })
}

/// Somebody looks at the lengths of sequences, or at ids: if it is not an op, the pass may be another for others.
pub fn look() {
    if OWN.get() == 0 {
        lose();
    }
}

/// Until it is dropped an op looks: at what it checks, or tells its kernels from the tape.
pub(crate) fn own() -> impl Drop {
    struct Leave;
    impl Drop for Leave {
        fn drop(&mut self) {
            OWN.set(OWN.get() - 1);
        }
    }
    OWN.set(OWN.get() + 1);
    Leave
}

/// An array that is uploaded: on the tape, while a batch is fed.
pub(crate) fn upload(values: &[u32]) -> Option<Result<candle_core::Tensor>> {
    NOW.with_borrow_mut(|now| match now {
        Now::Nothing => None,
        Now::Noting(notes) => {
            notes.is_lost = true;
            None
        }
        Now::Feeding(feed) => {
            let at = feed.words;
            feed.uploads.push(values.len());
            feed.words = (at + values.len()).next_multiple_of(GRAIN);
            Some(feed.tape.write(at, values).and_then(|()| feed.tape.view(at, values.len())))
        }
    })
}

/// The address on the tape of what kernels are told, while a pass is recorded that was given what they are told of. `key` stands for
/// `again`: where it is the same, so are the words for every batch.
#[cfg_attr(not(cuda), allow(dead_code, reason = "elsewhere nothing is recorded"))]
pub(crate) fn tell(
    is_given: impl FnOnce(&Given) -> bool,
    key: impl FnOnce(&Given) -> String,
    again: impl FnOnce(&Given) -> Again,
) -> Option<Result<u64>> {
    NOW.with_borrow_mut(|now| {
        let Now::Noting(notes) = now else { return None };
        if !is_given(&notes.given) {
            return None;
        }
        let key = key(&notes.given);
        if let Some(told) = notes.told.iter().find(|told| told.key == key) {
            return Some(Ok(notes.tape.address(told.at)));
        }
        let again = again(&notes.given);
        let Some(words) = again(&notes.given).filter(|_| !notes.is_second) else {
            notes.is_lost = true;
            return None;
        };
        let (at, len) = (notes.words, words.len());
        notes.words = (at + len).next_multiple_of(GRAIN);
        let sent = notes.tape.write(at, &words).and_then(|()| notes.tape.send(at, len));
        notes.told.push(Told { key, at, len, again });
        Some(sent.map(|()| notes.tape.address(at)))
    })
}
