//! Passes that are recorded once and replayed: a GPU that is given a whole pass at once waits for nobody between its kernels.
//!
//! A pass is uploading a batch and running a model on it. It can be replayed for another batch if it would make the very same
//! launches: of the same kernels, over the same buffers, with the same numbers. So everything that differs from batch to batch is in
//! one array of words, the tape: ids and positions, which are uploaded as the batch is made, and what kernels are told of the
//! sequences, which is worked out again from [`Given`]. A replay writes the tape, and the device copies it and runs the rest.
//!
//! What a recording cannot know ends it, and the pass runs as ever: a model that looks at ids or lengths itself, an upload that is
//! not on the tape, an op that is not by a kernel of ours. Results are in buffers of the recording, and good until the next pass.

mod now;

pub use now::look;
#[cfg(cuda)]
pub(crate) use now::{Again, grow, tell};
pub(crate) use now::{own, refuse, stray, upload};

use self::now::{Feed, Notes, Now, Told, during};
use crate::ladder::{self, Counted, Ladder};
use crate::launch::cuda::graph::{Graph, Tape};
use crate::ledger::Lease;
use crate::{Device, Error, Keys, Place, Result, Rung, Segments, Tensor};
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

/// Recordings that are kept; of more, the one goes that was used the longest time ago.
const MOST: usize = 64;

/// Recordings of one shape, where what kernels are told calls for different launches: texts that grow to half a million tokens do so at
/// every power of two.
const MOST_ALIKE: usize = 16;

/// Shapes that are remembered.
const MOST_SEEN: usize = 256;

/// How often a pass is run before it is recorded, at most; and how often that is tried.
const WARM_UPS: usize = 4;
const TRIES: usize = 3;

/// Buffers of recordings are used by all of them in turn, but not freed to make room for larger ones, which lie beside them. This many
/// times what the largest pass holds at once is allowed for.
const BESIDE: u64 = 2;

/// Tokens and sequences of encoders that are worth a recording: larger batches keep a device busy as they are.
const TOKENS: usize = 512;
const SEQUENCES: usize = 32;

/// What kernels may be told of a batch besides the numbers that are uploaded with it.
#[derive(Clone, Debug)]
pub struct Given {
    /// Where the sequences lie.
    pub segments: Segments,
    /// Where their keys do, for each kind of attention: a decoder looks at its own and at those of what was read.
    pub keys: Vec<Keys>,
    /// Tokens at the head of each that are not pooled.
    pub skips: Vec<usize>,
}

/// What a batch is filled up to, so that others are of the same shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fill {
    /// Tokens in all.
    pub tokens: usize,
    /// Sequences in all: at least one more than there are, which has what is missing in tokens.
    pub sequences: usize,
}

impl Fill {
    /// For so many, or none where it would not pay.
    fn of(tokens: usize, sequences: usize) -> Option<Fill> {
        let step = match tokens {
            ..=128 => 16,
            129..=256 => 32,
            _ => 64,
        };
        let pays = (1..=TOKENS).contains(&tokens) && sequences <= SEQUENCES;
        pays.then(|| Fill { tokens: tokens.next_multiple_of(step), sequences: sequences.next_power_of_two() + 1 })
    }
}

/// Tokens of the largest pass of an encoder that may be recorded on a device: recordings have buffers of their own, which a plan
/// counts. None where nothing is recorded.
pub fn most_tokens(device: Device) -> Option<usize> {
    matches!(device, Device::Cuda(_)).then_some(TOKENS)
}

/// Bytes to be planned for recordings, of which the largest holds so many at once.
pub fn planned(largest: u64) -> u64 {
    largest.saturating_mul(BESIDE)
}

/// A batch, and what is run on it.
pub trait Pass {
    /// The batch on its device.
    type Batch;
    /// What goes wrong.
    type Error: From<Error>;
    /// Uploads the batch.
    fn batch(&self, fill: Option<Fill>) -> Result<Self::Batch, Self::Error>;
    /// What kernels may be told of it.
    fn given(&self, batch: &Self::Batch) -> Given;
    /// Runs the model.
    fn forward(&self, batch: &Self::Batch) -> Result<Vec<Tensor>, Self::Error>;
}

/// A batch, and what came of it.
pub type Ran<P> = (<P as Pass>::Batch, Vec<Tensor>);

/// Runs a pass by itself.
pub fn run<P: Pass>(pass: &P) -> Result<Ran<P>, P::Error> {
    let batch = pass.batch(None)?;
    let results = pass.forward(&batch)?;
    Ok((batch, results))
}

/// The recordings of one model on one device. They belong to the thread that owns it.
pub struct Passes(Option<RefCell<Recordings>>);

impl Passes {
    /// For passes on `place`, under the policy of this thread's ladder, in buffers of `most` bytes, which are booked there. Where a
    /// device has no recordings, or our kernels are not to be used, every pass runs by itself.
    pub fn new(place: &Place, most: u64) -> Result<Passes> {
        let here = ladder::current();
        let Ladder { policy, ledger, .. } = &*here;
        let ours = policy.force.is_none_or(|rung| rung == Rung::Fused);
        let tape = if ours { Tape::open(place)? } else { None };
        let recordings = |tape| Recordings {
            tape: Rc::new(tape),
            ladder: Ladder::new(policy.clone()),
            most,
            _booked: ledger.lease(most as usize),
            made: Vec::new(),
            seen: Vec::new(),
        };
        Ok(Passes(tape.map(recordings).map(RefCell::new)))
    }

    /// What a batch of an encoder is to be filled up to.
    pub fn fill(&self, tokens: usize, sequences: usize) -> Option<Fill> {
        self.0.as_ref().and_then(|_| Fill::of(tokens, sequences))
    }

    /// How many recordings there are.
    pub fn count(&self) -> usize {
        self.0.as_ref().map_or(0, |recordings| recordings.borrow().made.len())
    }

    /// Runs a pass: by a recording where one fits, which is made when a shape comes for the second time. `kind` tells passes apart
    /// that do different things with batches of the same shape. Results are good until the next pass.
    pub fn replay<P: Pass>(&self, pass: &P, kind: u32, fill: Option<Fill>) -> Result<Ran<P>, P::Error> {
        let replayed =
            self.0.as_ref().map(|recordings| recordings.borrow_mut().replay(pass, kind, fill)).transpose()?;
        replayed.flatten().map_or_else(|| run(pass), Ok)
    }
}

/// Which passes may fit the same recording, as far as that can be told before anything is worked out.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Shape {
    kind: u32,
    /// The length of each array that is uploaded.
    uploads: Vec<usize>,
    sequences: usize,
    /// Whether every token of a sequence is a key of it.
    is_plain: bool,
}

struct Recording {
    shape: Shape,
    graph: Graph,
    results: Vec<Tensor>,
    told: Vec<Told>,
    counts: Vec<(Counted, u64)>,
}

impl Recording {
    /// What its kernels are to be told of this batch, if it fits.
    fn again(&self, shape: &Shape, given: &Given) -> Option<Vec<Vec<u32>>> {
        let one = |told: &Told| (told.again)(given).filter(|words| words.len() == told.len);
        (self.shape == *shape).then(|| self.told.iter().map(one).collect()).flatten()
    }
}

struct Recordings {
    tape: Rc<Tape>,
    /// Under which passes are recorded: their buffers are no others', and used by all recordings in turn.
    ladder: Arc<Ladder>,
    most: u64,
    _booked: Arc<Lease>,
    /// The one that was used last is the last.
    made: Vec<Recording>,
    /// Shapes that came, and how often it was tried in vain to record them.
    seen: Vec<(Shape, usize)>,
}

impl Recordings {
    fn replay<P: Pass>(&mut self, pass: &P, kind: u32, fill: Option<Fill>) -> Result<Option<Ran<P>>, P::Error> {
        // What was written last must have left before it is written over.
        self.tape.wait()?;
        let feed = Now::Feeding(Feed { tape: self.tape.clone(), uploads: Vec::new(), words: 0 });
        let (batch, now) = {
            let _here = self.ladder.clone().enter();
            during(feed, || pass.batch(fill))
        };
        let batch = batch?;
        let (Now::Feeding(feed), given) = (now, pass.given(&batch)) else { return Ok(None) };
        let is_plain = given.keys.iter().all(|keys| keys.is(&given.segments));
        let sequences = given.segments.count();
        let shape = Shape { kind, uploads: feed.uploads, sequences, is_plain };
        let fits =
            |made: &[Recording]| made.iter().enumerate().rev().find_map(|(i, r)| Some((i, r.again(&shape, &given)?)));
        let found = fits(&self.made).or_else(|| {
            self.record(|| pass.forward(&batch), &shape, &given, feed.words).then(|| fits(&self.made)).flatten()
        });
        let Some((index, words)) = found else { return Ok(None) };
        self.made[index..].rotate_left(1);
        let recording = &self.made[self.made.len() - 1];
        for (told, words) in recording.told.iter().zip(words) {
            self.tape.write(told.at, &words)?;
        }
        recording.graph.launch()?;
        ladder::current().add(&recording.counts);
        Ok(Some((batch, recording.results.clone())))
    }

    /// Records what `forward` does, unless its shape is new or that was tried too often; whether there is a recording now.
    fn record<E>(
        &mut self,
        forward: impl Fn() -> Result<Vec<Tensor>, E>,
        shape: &Shape,
        given: &Given,
        words: usize,
    ) -> bool {
        let Some(seen) = self.seen.iter().position(|(seen, _)| seen == shape) else {
            if self.seen.len() >= MOST_SEEN {
                self.seen.remove(0);
            }
            self.seen.push((shape.clone(), 0));
            return false;
        };
        if self.seen[seen].1 >= TRIES || self.made.iter().filter(|r| r.shape == *shape).count() >= MOST_ALIKE {
            return false;
        }
        self.seen[seen].1 += 1;
        let recording = self.recorded(forward, shape, given, words);
        if self.ladder.ledger.cuda.bytes() > self.most {
            // Begins anew: what came now is likely the largest, and the buffers that it takes next time do for the others.
            self.made.clear();
            self.ladder = Ladder::new(self.ladder.policy.clone());
            return false;
        }
        let Some(recording) = recording else { return false };
        self.seen[seen].1 = 0;
        if self.made.len() >= MOST {
            self.made.remove(0);
        }
        self.made.push(recording);
        true
    }

    /// A recording of what `forward` does. Whatever goes wrong here goes wrong again by itself, or does not matter.
    fn recorded<E>(
        &self,
        forward: impl Fn() -> Result<Vec<Tensor>, E>,
        shape: &Shape,
        given: &Given,
        words: usize,
    ) -> Option<Recording> {
        let _here = self.ladder.clone().enter();
        self.tape.send(0, words).ok()?;
        let (tape, given) = (self.tape.clone(), given.clone());
        let mut notes =
            Notes { tape, given, told: Vec::new(), words, is_second: false, has_grown: true, is_lost: false };
        let mut counts = Vec::new();
        // By itself, until it finds all buffers and all that is kept of each shape; as there are more to choose from, it may choose
        // others the next time.
        for _ in 0..WARM_UPS {
            let before = self.ladder.counts();
            notes.has_grown = false;
            let (Ok(_), Now::Noting(noted)) = during(Now::Noting(notes), &forward) else { return None };
            counts = difference(&before, &self.ladder.counts());
            notes = noted;
            if notes.is_lost || !notes.has_grown {
                break;
            }
        }
        if notes.is_lost || notes.has_grown {
            return None;
        }
        // Then the same once more, of which nothing runs but all is written down.
        notes.is_second = true;
        let words = notes.words;
        let again = || {
            self.tape.send(0, words).ok()?;
            let (results, now) = during(Now::Noting(notes), &forward);
            results.ok().zip(Some(now))
        };
        let Ok((Some((results, Now::Noting(notes))), graph)) = self.tape.capture(again) else { return None };
        // Their buffers are the next recording's too.
        let results = results.iter().map(Tensor::unleased).collect::<Result<_>>().ok()?;
        (!notes.is_lost).then(|| Recording { shape: shape.clone(), graph, results, told: notes.told, counts })
    }
}

/// What was counted between two looks.
fn difference(before: &[(Counted, u64)], after: &[(Counted, u64)]) -> Vec<(Counted, u64)> {
    let of = |what: &Counted| before.iter().find(|(counted, _)| counted == what).map_or(0, |(_, n)| *n);
    after.iter().map(|(what, n)| (*what, n - of(what))).filter(|(_, n)| *n > 0).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_a_little_apart_are_filled_up_to_the_same_shape() {
        assert_eq!(Fill::of(13, 1), Fill::of(16, 1));
        assert_eq!(Fill::of(16, 1), Some(Fill { tokens: 16, sequences: 2 }));
        assert_eq!(Fill::of(40, 3), Some(Fill { tokens: 48, sequences: 5 }));
        assert_eq!(Fill::of(257, 4), Some(Fill { tokens: 320, sequences: 5 }));
        assert!(Fill::of(513, 1).is_none() && Fill::of(100, 33).is_none() && Fill::of(0, 0).is_none());
        // A result with a row a token is never taken for one with a row a sequence.
        for (tokens, sequences) in (1..=TOKENS).flat_map(|t| (1..=SEQUENCES.min(t)).map(move |s| (t, s))) {
            let fill = Fill::of(tokens, sequences).unwrap();
            assert!(fill.tokens >= tokens && fill.sequences > sequences && fill.tokens != fill.sequences);
        }
    }

    #[test]
    fn a_device_without_recordings_runs_every_pass_by_itself() {
        struct Ids(Vec<u32>);
        impl Pass for Ids {
            type Batch = Tensor;
            type Error = Error;
            fn batch(&self, fill: Option<Fill>) -> Result<Tensor> {
                assert!(fill.is_none());
                Tensor::from_u32(&self.0, &Place::cpu())
            }
            fn given(&self, _: &Tensor) -> Given {
                let segments = Segments::new(&[self.0.len()]).unwrap();
                Given { keys: vec![segments.clone().into()], segments, skips: Vec::new() }
            }
            fn forward(&self, batch: &Tensor) -> Result<Vec<Tensor>> {
                Ok(vec![batch.clone()])
            }
        }
        let passes = Passes::new(&Place::cpu(), 0).unwrap();
        assert!(passes.fill(16, 1).is_none());
        for n in [3, 3, 4] {
            let (_, results) = passes.replay(&Ids(vec![n; 3]), 0, None).unwrap();
            assert_eq!(results[0].to_u32().unwrap(), [n; 3]);
        }
        assert_eq!(passes.count(), 0);
    }
}
