//! What a restarted manager does with the workers of its predecessor. Pure.

use crate::core::{Leaving, Origin, Record, Spec};

/// Difference between the declared workers and those of an earlier manager.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Reconciled {
    /// Adopt these.
    pub(crate) keep: Vec<Record>,
    /// Stop these.
    pub(crate) stop: Vec<Record>,
    /// Start these.
    pub(crate) start: Vec<Spec>,
}

/// Keeps the workers that requests started, and of the declared ones as many as are still declared.
pub(crate) fn reconcile(specs: &[Spec], records: Vec<Record>) -> Reconciled {
    let mut missing = specs.to_vec();
    let (mut keep, mut stop) = (Vec::new(), Vec::new());
    for record in records {
        match missing.iter().position(|s| *s == record.spec) {
            // Its stop was interrupted. It continues and does not count as a declared worker.
            _ if record.leaving == Leaving::Stop => stop.push(record),
            _ if record.spec.origin == Origin::Requested => keep.push(record),
            Some(at) => {
                missing.remove(at);
                keep.push(record);
            }
            None => stop.push(record),
        }
    }
    Reconciled { keep, stop, start: missing }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sconce_api::worker::Tuning;

    #[test]
    fn reconcile_keeps_declared_workers_and_stops_removed_ones() {
        let spec = |name: &str, origin| Spec {
            name: name.into(),
            model: name.into(),
            device: "auto".into(),
            tuning: Tuning::default(),
            origin,
        };
        let record = |id: &str, spec: &Spec| Record {
            id: id.into(),
            spec: spec.clone(),
            device: None,
            planned: None,
            process: None,
            port: 0,
            been_ready: false,
            leaving: Leaving::No,
            restarts: 0,
        };
        let (a, b, c) = (spec("a", Origin::Declared), spec("b", Origin::Declared), spec("c", Origin::Requested));
        let records = vec![record("a1", &a), record("a2", &a), record("b1", &b), record("c1", &c)];
        let changes = reconcile(&[a.clone(), spec("d", Origin::Declared)], records.clone());
        assert_eq!(changes.keep, [records[0].clone(), records[3].clone()]);
        assert_eq!(changes.stop, [records[1].clone(), records[2].clone()]);
        assert_eq!(changes.start, [spec("d", Origin::Declared)]);
        // A worker whose stop was interrupted counts neither as declared nor as requested.
        let leaving = |r: &Record| Record { leaving: Leaving::Stop, ..r.clone() };
        let changes = reconcile(std::slice::from_ref(&a), vec![leaving(&records[0]), leaving(&records[3])]);
        assert_eq!((changes.keep, changes.start), (vec![], vec![a.clone()]));
        assert_eq!(changes.stop, [leaving(&records[0]), leaving(&records[3])]);
        // A drained worker stays drained.
        let drained = Record { leaving: Leaving::Drain, ..records[0].clone() };
        assert_eq!(reconcile(&[a], vec![drained.clone()]).keep, [drained]);
    }
}
