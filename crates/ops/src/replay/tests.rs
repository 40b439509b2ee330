//! The shapes of batches, and what ends a capture.

use super::*;

#[test]
fn similar_batches_are_padded_to_the_same_shape() {
    assert_eq!(Fill::of(13, 1), Fill::of(16, 1));
    assert_eq!(Fill::of(16, 1), Some(Fill { tokens: 16, sequences: 2 }));
    assert_eq!(Fill::of(40, 3), Some(Fill { tokens: 48, sequences: 5 }));
    assert_eq!(Fill::of(257, 4), Some(Fill { tokens: 320, sequences: 5 }));
    assert!(Fill::of(513, 1).is_none() && Fill::of(100, 33).is_none() && Fill::of(0, 0).is_none());
    // A result with a row per token is never taken for one with a row per sequence.
    for (tokens, sequences) in (1..=MAX_TOKENS).flat_map(|t| (1..=MAX_SEQUENCES.min(t)).map(move |s| (t, s))) {
        let fill = Fill::of(tokens, sequences).unwrap();
        assert!(fill.tokens >= tokens && fill.sequences > sequences && fill.tokens != fill.sequences);
    }
}

#[test]
fn passes_run_directly_without_graph_support() {
    struct Ids(Vec<u32>);
    impl Pass for Ids {
        type Batch = Tensor;
        type Error = Error;
        fn batch(&self, fill: Option<Fill>) -> Result<Tensor> {
            assert!(fill.is_none());
            Tensor::from_u32(&self.0, &Place::cpu())
        }
        fn layout(&self, _: &Tensor) -> BatchLayout {
            let segments = Segments::new(&[self.0.len()]).unwrap();
            BatchLayout { keys: vec![segments.clone().into()], segments, skips: Vec::new() }
        }
        fn forward(&self, batch: &Tensor) -> Result<Vec<Tensor>> {
            Ok(vec![batch.clone()])
        }
    }
    let cache = GraphCache::new(&Place::cpu(), 0).unwrap();
    assert!(cache.fill(16, 1).is_none());
    for n in [3, 3, 4] {
        let (_, results) = cache.replay(&Ids(vec![n; 3]), 0, None).unwrap();
        assert_eq!(results[0].to_u32().unwrap(), [n; 3]);
    }
    assert_eq!(cache.count(), 0);
}

/// A pass over sequences of `self.lengths` that runs the tested code in `forward`. Without a GPU a
/// graph runs nothing, but the same rules decide whether it is captured.
#[cfg(not(cuda))]
mod captures {
    use super::*;
    use crate::{DType, Pooling, pool};

    struct Probe<F> {
        lengths: &'static [usize],
        forward: F,
    }

    impl<F: Fn(&Segments) -> Result<()>> Pass for Probe<F> {
        type Batch = Segments;
        type Error = Error;
        fn batch(&self, _: Option<Fill>) -> Result<Segments> {
            let segments = Segments::new(self.lengths)?;
            // The code that makes a batch may observe it.
            assert_eq!(segments.observe().range(0).len(), self.lengths[0]);
            Ok(segments)
        }
        fn layout(&self, segments: &Segments) -> BatchLayout {
            BatchLayout { segments: segments.clone(), keys: vec![segments.clone().into()], skips: Vec::new() }
        }
        fn forward(&self, segments: &Segments) -> Result<Vec<Tensor>> {
            (self.forward)(segments).map(|()| Vec::new())
        }
    }

    /// Number of graphs after four passes of one shape.
    fn graphs_of(forward: impl Fn(&Segments) -> Result<()>) -> usize {
        let lease = ladder::current().ledger.lease(1 << 20);
        let graphs = Graphs::new(GraphParams::default(), Policy::default(), lease);
        let cache = GraphCache(Some(RefCell::new(graphs)));
        for lengths in [&[3, 1], &[2, 2], &[1, 3], &[3, 1]] {
            cache.replay(&Probe { lengths, forward: &forward }, 0, None).unwrap();
        }
        cache.count()
    }

    fn rows() -> Tensor {
        Tensor::from_f32(&[1.0; 8], &[4, 2], DType::F32, &Place::cpu()).unwrap()
    }

    #[test]
    fn ops_and_shapes_are_captured() {
        let x = rows();
        assert_eq!(graphs_of(|_| Ok(())), 1);
        assert_eq!(graphs_of(|s| pool(&x, s, &[0, 0], &[Pooling::Mean]).map(drop)), 1);
        assert_eq!(graphs_of(|s| if (s.count(), s.tokens()) == (2, 4) { Ok(()) } else { Err(Error::Phantom) }), 1);
        assert_eq!(graphs_of(|s| if format!("{s:?}").contains('3') { Err(Error::Phantom) } else { Ok(()) }), 1);
    }

    #[test]
    fn reading_lengths_or_values_outside_an_op_ends_the_capture() {
        let x = rows();
        let ids = PerBatch::new(vec![7u32; 4]);
        assert_eq!(graphs_of(|s| if s.observe().range(0).is_empty() { Err(Error::Phantom) } else { Ok(()) }), 0);
        assert_eq!(graphs_of(|s| s.heads(&[1, 1]).map(drop)), 0);
        assert_eq!(graphs_of(|_| (ids.observe()[0] == 7).then_some(()).ok_or(Error::Phantom)), 0);
        assert_eq!(graphs_of(|_| x.to_f32().map(drop)), 0);
        assert_eq!(graphs_of(|_| Tensor::from_u32(&[1], &Place::cpu()).map(drop)), 0);
        // Also under another ladder.
        assert_eq!(
            graphs_of(|s| {
                let _here = Ladder::new(Policy::default()).enter();
                s.observe();
                Ok(())
            }),
            0
        );
        // An op that does not run one of our kernels does not start during a capture, and the pass
        // runs launch by launch.
        assert_eq!(
            graphs_of(|s| {
                let _here = Ladder::new(Policy { force: Some(Rung::Composed), ..Policy::default() }).enter();
                pool(&x, s, &[0, 0], &[Pooling::Mean]).map(drop)
            }),
            0
        );
    }

    fn pass_capture() -> PassCapture {
        let segments = Segments::new(&[3, 1]).unwrap();
        let given = BatchLayout { keys: vec![segments.clone().into()], segments, skips: Vec::new() };
        PassCapture::new(Rc::new(GraphParams::default()), given, 0)
    }

    fn during(pass: PassCapture, f: impl FnOnce()) -> PassCapture {
        let ((), CaptureState::Pass(pass)) = CaptureState::Pass(pass).during(&Arc::default(), f) else { panic!() };
        pass
    }

    #[test]
    fn allocation_during_stream_capture_is_an_error() {
        let pass = during(pass_capture(), || capture::note_allocation().unwrap());
        assert!(pass.has_allocated && !pass.is_untracked);
        let pass = during(PassCapture { is_capturing: true, ..pass }, || assert!(capture::note_allocation().is_err()));
        assert!(pass.is_untracked);
        capture::note_allocation().unwrap();
    }

    #[test]
    fn dynamic_params_are_shared_by_key_and_fixed_during_capture() {
        let lengths = |key: &'static str| {
            let recompute =
                |given: &BatchLayout| Some(given.segments.lengths(op_scope()).iter().map(|r| r.len() as u32).collect());
            capture::dynamic_param(|_| true, |_| key.into(), |_| Box::new(recompute))
        };
        assert!(lengths("a").is_none(), "nothing is captured");
        let pass = during(pass_capture(), || {
            assert_eq!(lengths("a").unwrap().unwrap(), lengths("a").unwrap().unwrap());
            assert_ne!(lengths("a").unwrap().unwrap(), lengths("b").unwrap().unwrap());
        });
        assert!(!pass.is_untracked && pass.dynamic.len() == 2);
        let pass = during(PassCapture { is_capturing: true, ..pass }, || {
            assert!(lengths("a").is_some());
            assert!(lengths("c").is_none());
        });
        assert!(pass.is_untracked);
    }

    #[test]
    fn uploaded_arrays_become_graph_parameters() {
        let upload = Upload { params: Rc::default(), lengths: Vec::new(), words: 0 };
        let ((), state) = CaptureState::Upload(upload).during(&Arc::default(), || {
            for ids in [[7, 8], [9, 1]] {
                assert_eq!(capture::upload(&ids).unwrap().unwrap().to_vec1::<u32>().unwrap(), ids);
            }
        });
        let CaptureState::Upload(upload) = state else { panic!() };
        assert_eq!(upload.lengths, [2, 2]);
        let ((), state) = CaptureState::Upload(upload).during(&Arc::default(), mark_untracked);
        assert!(matches!(state, CaptureState::Untracked));
    }
}
