//! Loads, runs and compares the goldens of architectures. A test file names a family's goldens and
//! calls [`family`].

use sconce_engine::Checkpoint;
use sconce_models::{Backbone, Batch, Sequence, Task, backbone, head, sequence_backbone};
use sconce_ops::case::{half_formats, places};
use sconce_ops::{DType, Ladder, Place, Policy, Rung, Tensor, Weights};
use sconce_testkit::{Arrays, Half, golden, json, materialize, relative_distance, worst};
use serde_json::Value;
use std::path::PathBuf;
use std::sync::Arc;

/// The worst element, relative to the largest of the layer. Goldens compute rotary angles in f64,
/// models in f32: after 300 tokens that alone is 1.8e-5 of a radian, and as much of a value of
/// typical size.
const WORST: f64 = 1e-5;

/// The usual error, rms against rms. A missing or wrong term shows here, however small against the
/// largest value.
const USUAL: f64 = 2e-6;

/// Rows of bf16 and f16: see [`Half`]. The worst are in residual streams that no norm rescales
/// (ModernBERT); the usual ones reach 2.63 in language models that read both ways, on an H200.
const HALF: [f64; 2] = [3.0, 15.0];

/// One golden with its weights written to files.
pub(crate) struct Golden {
    name: String,
    dir: PathBuf,
    config: Value,
    arrays: Arrays,
    /// Removes `dir` when dropped.
    _written: Option<tempfile::TempDir>,
}

/// An encoder with its weights.
struct Loaded {
    encoder: Box<dyn Backbone>,
    weights: Weights,
    place: Place,
}

impl Golden {
    pub(crate) fn open(name: &str) -> Golden {
        let folder = golden(name);
        assert!(folder.is_dir(), "no golden {name}; tools/goldens makes them");
        let written = folder.join("tensors.json").exists().then(|| materialize(name));
        let dir = written.as_ref().map_or(folder, |dir| dir.path().to_owned());
        let (config, arrays) = (json(&dir.join("config.json")), Arrays::open(&dir.join("golden.safetensors")));
        Golden { name: name.into(), dir, config, arrays, _written: written }
    }

    /// Whether all weights together are about a megabyte.
    fn is_small(&self) -> bool {
        let bytes = |name: &str| std::fs::metadata(self.dir.join(name)).map_or(0, |file| file.len());
        bytes("model.safetensors") < 4 << 20
    }

    fn load(&self, dtype: DType, place: &Place) -> Loaded {
        self.try_load(dtype, place).unwrap_or_else(|e| panic!("{}: {e}", self.name))
    }

    fn try_load(&self, dtype: DType, place: &Place) -> sconce_models::Result<Loaded> {
        let store = Checkpoint::open(&self.dir).unwrap_or_else(|e| panic!("{}: {e}", self.name));
        let weights = Weights::new(Arc::new(store), dtype, place.clone());
        let class = self.config["architectures"][0].as_str().unwrap_or_default();
        let build = if class.ends_with("ForSequenceClassification") { sequence_backbone } else { backbone };
        Ok(Loaded { encoder: build(&self.config, &weights)?, weights, place: place.clone() })
    }

    /// The error of loading with `field` changed.
    pub(crate) fn refusal(&mut self, field: &str, value: Value) -> String {
        let fields = self.config.as_object_mut().expect("a configuration");
        let before = fields.insert(field.into(), value);
        let answer = self.try_load(DType::F32, &Place::cpu()).and_then(|loaded| match self.task() {
            Some(task) => head(task, &self.config, &loaded.weights).map(drop),
            None => Ok(()),
        });
        let fields = self.config.as_object_mut().expect("a configuration");
        match before {
            Some(before) => fields.insert(field.into(), before),
            None => fields.remove(field),
        };
        answer.err().unwrap_or_else(|| panic!("{}: {field} was not refused", self.name)).to_string()
    }

    fn sequences(&self) -> Vec<Sequence> {
        let [ids, types, ends] = ["ids", "type_ids", "cu_seqlens"].map(|name| self.arrays.u32(name).values);
        let cut = |v: &[u32], w: &[u32]| v[w[0] as usize..w[1] as usize].to_vec();
        ends.windows(2).map(|w| Sequence { ids: cut(&ids, w), types: cut(&types, w), ..Sequence::default() }).collect()
    }

    /// The head in the configuration, if the golden has its output.
    fn task(&self) -> Option<Task> {
        let class = self.config["architectures"][0].as_str().unwrap_or_default();
        self.arrays.has("logits").then(|| match class {
            c if c.ends_with("SequenceClassification") => Task::Classify,
            c if c.ends_with("TokenClassification") => Task::Tag,
            c if c.ends_with("MaskedLM") => Task::Vocabulary,
            other => panic!("{}: logits of {other}?", self.name),
        })
    }

    /// Compares `got` with the golden's `what`; returns the worst error.
    fn check(&self, what: &str, got: &[f32], on: &str) -> [f64; 2] {
        let want = self.arrays.f32(what).values;
        let largest = f64::from(worst(&want, &vec![0.0; want.len()]));
        let off = [f64::from(worst(got, &want)) / largest, relative_distance(got, &want)];
        let [most, usual] = off;
        let within = most <= WORST && usual <= USUAL;
        assert!(within, "{} {what} on {on}: off by {most:.1e} of the largest, {usual:.1e} in the rms", self.name);
        off
    }

    /// Every layer and the head, on every place of a kind.
    fn equals_the_reference(&self, kind: &str) {
        for (place, force) in places(kind) {
            let on = format!("{}{}", place.device(), force.map_or_else(String::new, |rung| format!(", {rung}")));
            let ladder = Ladder::new(Policy::default().with_force(force));
            let _here = ladder.clone().enter();
            let loaded = self.load(DType::F32, &place);
            let batch = loaded.batch(&self.sequences());
            let (states, last) = loaded.states(&batch);
            assert!(
                !self.arrays.has(&format!("hidden.{}", states.len())),
                "{}: fewer layers than the golden",
                self.name
            );
            let mut off = [0f64; 2];
            let mut check = |what: &str, got: &[f32]| {
                let now = self.check(what, got, &on);
                off = [off[0].max(now[0]), off[1].max(now[1])];
            };
            states.iter().enumerate().for_each(|(i, got)| check(&format!("hidden.{i}"), got));
            assert_eq!(&last.to_f32().unwrap(), states.last().unwrap(), "{}: the output of forward", self.name);
            if let Some(task) = self.task() {
                check("logits", &loaded.logits(task, self, &batch, &last));
            }
            for task in 0..loaded.encoder.tasks().len() {
                let (states, _) = loaded.states(&batch.clone().for_task(Some(task)));
                states.iter().enumerate().for_each(|(i, got)| check(&format!("task{task}.hidden.{i}"), got));
            }
            let is_expected = |rung| force.map_or(rung != Rung::Host, |force| rung == force);
            assert!(ladder.counts().iter().all(|(c, n)| is_expected(c.rung) && *n > 0), "{} on {on}", self.name);
            println!("{} on {on}: {:.1e} of the largest, {:.1e} in the rms", self.name, off[0], off[1]);
        }
    }

    /// The same in half formats. All logits count as one row: a single one may be small against the
    /// rounding.
    fn half_formats_are_near_the_reference(&self, kind: &str) {
        for (place, force) in places(kind) {
            let on = format!("{}{}", place.device(), force.map_or_else(String::new, |rung| format!(", {rung}")));
            let _here = Ladder::new(Policy::default().with_force(force)).enter();
            for dtype in half_formats() {
                let loaded = self.load(dtype, &place);
                let batch = loaded.batch(&self.sequences());
                let (states, last) = loaded.states(&batch);
                let check = |what: &str, layers: usize, got: &[f32], width: usize| {
                    let half = Half { unit: dtype.unit_roundoff(), layers, roundings: HALF, strays: self.strays(0.1) };
                    let named = format!("{} {what} on {on} in {dtype}", self.name);
                    half.assert_close(&named, got, &self.arrays.f32(what).values, width);
                };
                let width = loaded.encoder.hidden_size();
                states.iter().enumerate().for_each(|(i, got)| check(&format!("hidden.{i}"), i + 1, got, width));
                for task in 0..loaded.encoder.tasks().len() {
                    let (states, _) = loaded.states(&batch.clone().for_task(Some(task)));
                    let name = |i: usize| format!("task{task}.hidden.{i}");
                    states.iter().enumerate().for_each(|(i, got)| check(&name(i), i + 1, got, width));
                }
                if let Some(task) = self.task() {
                    let logits = loaded.logits(task, self, &batch, &last);
                    check("logits", states.len() + 1, &logits, logits.len());
                }
            }
        }
    }

    /// The fraction of outliers allowed among the rows of a mixture of experts: see [`Half`].
    fn strays(&self, part: f64) -> f64 {
        if self.config.get("num_experts").is_some() { part } else { 0.0 }
    }

    /// A row is computed in the same order in any batch.
    fn alone_equals_packed(&self) {
        let (loaded, sequences) = (self.load(DType::F32, &Place::cpu()), self.sequences());
        let last = |s: &[Sequence]| loaded.states(&loaded.batch(s)).0.pop().unwrap();
        let alone: Vec<f32> = sequences.iter().flat_map(|s| last(std::slice::from_ref(s))).collect();
        assert!(last(&sequences) == alone, "{}: other sequences of the batch change a sequence", self.name);
    }

    /// Sequences of 1, 2, 17, 512 and the maximum number of tokens (here at most 2,048), in one
    /// batch.
    fn half_formats_stay_within_their_rounding(&self) {
        let whole = self.load(DType::F32, &Place::cpu());
        let limits = whole.encoder.limits();
        let id = |i: usize| (i * 31 + 7) % limits.vocabulary;
        let sequence = |n: usize| Sequence { ids: (0..n).map(|i| id(i + n) as u32).collect(), ..Sequence::default() };
        let sequences: Vec<_> =
            [1, 2, 17, 512, 2048].map(|n: usize| sequence(n.min(limits.positions))).into_iter().collect();
        let (want, _) = whole.states(&whole.batch(&sequences));
        for dtype in [DType::BF16, DType::F16] {
            let loaded = self.load(dtype, &Place::cpu());
            let (got, _) = loaded.states(&loaded.batch(&sequences));
            assert_eq!(got.len(), want.len());
            let width = whole.encoder.hidden_size();
            for (i, (got, want)) in got.iter().zip(&want).enumerate() {
                let half =
                    Half { unit: dtype.unit_roundoff(), layers: i + 1, roundings: HALF, strays: self.strays(0.01) };
                half.assert_close(&format!("{} {dtype} layer {i}", self.name), got, want, width);
            }
        }
    }
}

impl Loaded {
    fn batch(&self, sequences: &[Sequence]) -> Batch {
        Batch::new(sequences, self.encoder.limits(), &self.place).unwrap()
    }

    /// Hidden states of every layer, the embeddings first, and the output of `forward`.
    fn states(&self, batch: &Batch) -> (Vec<Vec<f32>>, Tensor) {
        let mut seen = Vec::new();
        let watch = &mut |i: usize, x: &Tensor| {
            assert_eq!(i, seen.len());
            seen.push(x.to_f32().unwrap());
        };
        let last = self.encoder.forward(batch, watch).unwrap();
        (seen, last)
    }

    fn logits(&self, task: Task, golden: &Golden, batch: &Batch, x: &Tensor) -> Vec<f32> {
        // Pooled rows are f32, and so is the head.
        let weights = match task {
            Task::Classify => self.weights.in_dtype(DType::F32),
            Task::Tag | Task::Vocabulary => self.weights.clone(),
        };
        let head = head(task, &golden.config, &weights).unwrap_or_else(|e| panic!("{}: {e}", golden.name));
        let rows = match task {
            Task::Classify => &head.pooled(x, batch, &vec![0; batch.segments.count()]).unwrap(),
            Task::Tag | Task::Vocabulary => x,
        };
        head.forward(rows).unwrap().to_f32().unwrap()
    }
}

/// All checks of an architecture on one kind of device: on the CPU `goldens` against the reference
/// and alone, and the `tiny` ones in half formats; on a GPU all against the reference, the small
/// ones also in half formats. `SCONCE_TEST_SMALL=1` leaves out models of real width, which take
/// minutes on a simulated device.
pub(crate) fn family(kind: &str, goldens: &[&str], tiny: &[&str]) {
    let is_wanted = |golden: &Golden| golden.is_small() || std::env::var_os("SCONCE_TEST_SMALL").is_none();
    for golden in goldens.iter().map(|name| Golden::open(name)).filter(is_wanted) {
        golden.equals_the_reference(kind);
        if kind == "cpu" {
            golden.alone_equals_packed();
            if tiny.contains(&golden.name.as_str()) {
                golden.half_formats_stay_within_their_rounding();
            }
        } else if golden.is_small() {
            golden.half_formats_are_near_the_reference(kind);
        }
    }
}
