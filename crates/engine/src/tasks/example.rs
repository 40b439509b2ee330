//! The L2 norm of a text's mean-pooled embedding: the smallest task there can be.

use super::TaskType;
use crate::config::{FileFacts, InputSpec, plain_input_spec};
use crate::error::Result;
use crate::options::LoadOptions;
use crate::plan::Plan;
use crate::runtime::{Loaded, ModelInfo, RequestSettings};
use crate::workloads::encode::{self, OutputKind, Parts, Pipeline, Session, Texts};
use sconce_hub::{Files, Progress};
use sconce_models::{Backbone, Batch, Limits};
use sconce_ops::{Device, Pooling, Tensor, pool};
use std::path::Path;

/// A model that computes norms, loaded and checked.
#[derive(Clone)]
pub struct Norms {
    session: Session<Mean>,
}

impl Norms {
    /// The norm of each text's mean-pooled embedding, in the order of the texts.
    pub fn norms<T: AsRef<str> + Sync>(&self, texts: &[T]) -> Result<Vec<f32>> {
        let encoded = self.session.read(|reader| reader.encode(texts, ""))?;
        let norm = |_, rows: &[&[f32]]| Ok(rows[0].iter().map(|v| v * v).sum::<f32>().sqrt());
        Ok(self.session.outputs(OutputKind::Task, Texts::of(encoded, 0), norm)?.results)
    }
}

impl Loaded for Norms {
    fn model(&self) -> &ModelInfo {
        &self.session.info
    }
    fn settings(&mut self) -> &mut RequestSettings {
        &mut self.session.settings
    }
}

impl TaskType for Norms {
    fn serves(_: &FileFacts) -> bool {
        // Any encoder works, so no files are made for this task.
        false
    }
    fn also_reads(_: &FileFacts) -> bool {
        true
    }
    fn plan_files(files: &Files, device: Device, options: &LoadOptions) -> Result<Plan> {
        encode::plan::<Mean>(files, device, options, spec)
    }
    fn load_files(files: &Files, options: &LoadOptions, progress: &dyn Progress) -> Result<Norms> {
        Ok(Norms { session: Session::load(files, options, progress, spec)? })
    }
}

/// The task's settings from the model's files: tokenization only.
fn spec(dir: &Path) -> Result<InputSpec> {
    plain_input_spec(dir)
}

/// What runs on the device: an encoder and mean pooling.
struct Mean {
    encoder: Box<dyn Backbone>,
}

impl Pipeline for Mean {
    type Spec = InputSpec;

    fn input_spec(spec: &InputSpec) -> &InputSpec {
        spec
    }
    fn load(parts: &Parts, _: &InputSpec) -> Result<Mean> {
        Ok(Mean { encoder: parts.encoder()? })
    }
    fn limits(&self) -> Limits {
        self.encoder.limits()
    }
    fn width(&self) -> usize {
        self.encoder.hidden_size()
    }
    /// f32 `[sequences, hidden]`.
    fn forward(&self, batch: &Batch, skips: &[usize]) -> Result<Vec<Tensor>> {
        let hidden = self.encoder.forward(batch, &mut |_, _| {})?;
        Ok(vec![pool(&hidden, &batch.segments, skips, &[Pooling::Mean])?])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Prompt;
    use crate::options::DeviceChoice;
    use crate::tasks::{Embedder, Task, TaskModel};

    /// The norms are those of the embeddings that a mean pooling model gives before it normalizes
    /// them.
    #[test]
    fn example_task_loads_by_name_and_computes_norms() {
        let dir = sconce_testkit::materialize("task-classify");
        let files = Files::local(dir.path());
        let options = LoadOptions {
            device: DeviceChoice::Only(Device::Cpu),
            ..LoadOptions::new(sconce_hub::Options::new(dir.path().join("hub"), dir.path().join("cache")))
        };
        let texts = ["the cat sat", "on the mat"];
        let TaskModel::Norms(model) = "norms".parse::<Task>().unwrap().load(&files, &options, &()).unwrap() else {
            panic!("another task")
        };
        let embedder = Embedder::load_files(&files, &options, &()).unwrap();
        let vectors = embedder.embed(&texts, &Prompt::Default).unwrap();
        let lengths: Vec<f32> = vectors.rows().map(|row| row.iter().map(|v| v * v).sum::<f32>().sqrt()).collect();
        assert_eq!(model.norms(&texts).unwrap(), lengths);
    }

    #[test]
    fn contributing_shows_this_file() {
        let example = include_str!("example.rs").split("\n#[cfg(test)]").next().unwrap();
        let page = include_str!("../../../../CONTRIBUTING.md");
        assert!(page.contains(example), "CONTRIBUTING.md shows another example than tasks/example.rs");
        assert!(
            include_str!("mod.rs").contains(page.lines().find(|line| line.contains("Norms(example::Norms)")).unwrap())
        );
    }
}
