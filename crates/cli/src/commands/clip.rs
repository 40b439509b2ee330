//! `sconce clip`: images, and the texts that describe them.

use super::classify::Labels;
use super::{ran_line, with_ran};
use crate::Failure;
use crate::args::TaskModel;
use crate::cells::Floats;
use crate::input::Text;
use crate::output::{Answers, Output};
use crate::report::Report;
use clap::Args;
use sconce_engine::{Clip as Model, Embeddings, Error, Image, Label, Loaded};
use serde_json::{Map, json};
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

/// Images decoded at a time.
const WINDOW: usize = 32;

/// Bytes of decoded images beyond which no further one joins a window: they are many times larger in memory than on disk.
const HELD: usize = 256 << 20;

/// No picture's file is larger; what is must be something else.
const LARGEST: u64 = 256 << 20;

/// Say which text describes an image, or turn images into vectors.
///
/// With --text, each image gets the model's score of each text: shares of one for CLIP, each by itself for SigLIP. Without, the
/// vectors of the images are written, as `sconce embed` writes those of texts.
#[derive(Args)]
#[command(after_help = "Examples:\n  \
    sconce clip -m openai/clip-vit-base-patch32 cat.jpg dog.png --text \"a photo of a cat\" --text \"a photo of a dog\"\n  \
    sconce clip -m openai/clip-vit-base-patch32 photos/*.jpg -o photos.npy\n  \
    curl -s https://example.org/cat.jpg | sconce clip -m google/siglip-base-patch16-224 - --text \"a cat\" --json")]
pub(crate) struct Clip {
    /// Image files (`-` is standard input).
    #[arg(value_name = "IMAGE", required = true)]
    images: Vec<PathBuf>,
    #[command(flatten)]
    model: TaskModel,
    #[command(flatten)]
    output: Output,
    /// What an image may show. May be given more than once.
    #[arg(short, long, value_name = "TEXT")]
    text: Vec<String>,
    /// Print the cosine of image and text instead of the model's score.
    #[arg(long, requires = "text")]
    cosine: bool,
}

impl Clip {
    pub(crate) fn run(self, report: &Report) -> Result<ExitCode, Failure> {
        let is_scored = !self.text.is_empty();
        self.output.check(!is_scored)?;
        if self.images.iter().filter(|path| is_stdin(path)).count() > 1 {
            return Err("standard input holds one image; `-` was given more than once".into());
        }
        // A name spelled wrong must not come to light after the model and the other images.
        self.images.iter().filter(|path| !is_stdin(path)).try_for_each(|path| openable(path))?;
        let mut paths = self.images.iter();
        // What is no picture should not wait for a model to load.
        let mut window = next_window(&mut paths)?;
        let clip = self.model.load(report, Model::load)?;
        let texts = if is_scored { clip.texts(&self.text).map_err(|e| self.placed(e))? } else { Embeddings::default() };
        self.tell_cut(&texts, &clip, report);
        let answers = match is_scored {
            true => Answers { many: "results", one: Some("labels"), array: None },
            false => {
                Answers { many: "embeddings", one: Some("embedding"), array: Some(("<f4", clip.plan().dimension)) }
            }
        };
        let mut writer = self.output.open(answers)?;
        let bar = report.bar("{msg} [{bar:30}] {pos}/{len} {eta}", Some(self.images.len() as u64));
        let start = Instant::now();
        while !window.is_empty() {
            let (names, images): (Vec<Text>, Vec<Image>) = window.into_iter().unzip();
            if is_scored {
                let vectors = clip.images(&images).map_err(|e| seen(e, &names))?;
                for (name, labels) in names.iter().zip(self.score(&clip, &vectors, &texts)) {
                    writer.write(name, &Labels(labels), None)?;
                }
            } else {
                let vectors = clip.images(&images).map_err(|e| seen(e, &names))?;
                for (name, row) in names.iter().zip(vectors.rows()) {
                    writer.write(name, &Floats(row), None)?;
                }
            }
            writer.show()?;
            bar.inc(names.len() as u64);
            drop(images);
            window = next_window(&mut paths)?;
        }
        bar.finish_and_clear();
        let images: Vec<String> = self.images.iter().map(|p| name(p)).collect();
        let about = json!({"images": images, "texts": self.text, "truncated_texts": texts.truncated,
            "dimension": clip.plan().dimension, "score": if self.cosine { "cosine" } else { "model" }});
        writer.finish(&with_ran(about, &clip))?;
        let (n, seconds) = (images.len(), start.elapsed().as_secs_f64());
        let s = if n == 1 { "" } else { "s" };
        report.say(&format!("{n} image{s}, {} texts in {seconds:.2} s on {}", self.text.len(), ran_line(&clip)));
        Ok(ExitCode::SUCCESS)
    }

    /// The texts of each image, the best first.
    fn score(&self, clip: &Model, vectors: &Embeddings, texts: &Embeddings) -> Vec<Vec<Label>> {
        let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
        let scores = match self.cosine {
            true => vectors.rows().map(|image| texts.rows().map(|text| dot(image, text)).collect()).collect(),
            false => clip.score(vectors, texts),
        };
        let named = |scores: Vec<f32>| {
            let label = |(text, score): (&String, f32)| Label { label: text.clone(), score };
            let mut labels: Vec<Label> = self.text.iter().zip(scores).map(label).collect();
            labels.sort_by(|a, b| b.score.total_cmp(&a.score));
            labels
        };
        scores.into_iter().map(named).collect()
    }

    fn placed(&self, e: Error) -> Failure {
        match e {
            Error::Text { text, why } | Error::TooLong { text, why } => {
                format!("--text {:?}: {why}", self.text.get(text)).into()
            }
            e => e.into(),
        }
    }

    fn tell_cut(&self, texts: &Embeddings, clip: &Model, report: &Report) {
        if let Some(first) = texts.truncated.first() {
            let (cut, all, most) = (texts.truncated.len(), self.text.len(), clip.plan().max_tokens);
            report.warn(&format!(
                "{cut} of {all} texts are longer than {most} tokens and were cut (the first: {:?})",
                self.text[*first]
            ));
        }
    }
}

/// The next images, each as outputs know a text: as many as make good batches, fewer where they are large.
fn next_window<'a>(paths: &mut impl Iterator<Item = &'a PathBuf>) -> Result<Vec<(Text, Image)>, Failure> {
    let (mut window, mut held) = (Vec::new(), 0);
    while window.len() < WINDOW && held < HELD {
        let Some(path) = paths.next() else { break };
        let image = read(path)?;
        held += image.rgb().len();
        window.push((named(path), image));
    }
    Ok(window)
}

fn is_stdin(path: &Path) -> bool {
    path == Path::new("-")
}

fn name(path: &Path) -> String {
    if is_stdin(path) { "stdin".into() } else { path.display().to_string() }
}

fn named(path: &Path) -> Text {
    let object = Map::from_iter([("image".to_string(), json!(name(path)))]);
    Text { text: name(path), object: Some(object), origin: name(path), bytes: 0 }
}

fn openable(path: &Path) -> Result<(), Failure> {
    let is_dir = File::open(path).and_then(|f| f.metadata()).map_err(|e| format!("{}: {e}", path.display()))?.is_dir();
    if is_dir { Err(format!("{}: is a directory", path.display()).into()) } else { Ok(()) }
}

/// A picture, or an error that names its file.
fn read(path: &Path) -> Result<Image, Failure> {
    let fail = |e: &dyn std::fmt::Display| Failure::from(format!("{}: {e}", name(path)));
    let mut bytes = Vec::new();
    let source: Box<dyn Read> = match is_stdin(path) {
        true => Box::new(std::io::stdin()),
        false => Box::new(File::open(path).map_err(|e| fail(&e))?),
    };
    source.take(LARGEST + 1).read_to_end(&mut bytes).map_err(|e| fail(&e))?;
    if bytes.len() as u64 > LARGEST {
        return Err(fail(&format!("larger than {} MiB", LARGEST >> 20)));
    }
    Image::decode(&bytes).map_err(|e| fail(&e))
}

/// An image's error, at the image's name.
fn seen(e: Error, names: &[Text]) -> Failure {
    match e {
        Error::Image { image, why } => format!("{}: {why}", names[image].origin).into(),
        e => e.into(),
    }
}
