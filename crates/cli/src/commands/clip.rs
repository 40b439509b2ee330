//! `sconce clip`: image–text scores and image embeddings (CLIP, SigLIP).

use super::classify::{LABELS, Labels};
use super::embed::embedding_names;
use super::{run_line, with_run_info};
use crate::Failure;
use crate::args::TaskModel;
use crate::input::Text;
use crate::output::{Output, ResultNames, ResultsOf};
use crate::report::Report;
use crate::row::{Columns, FieldType, Row};
use crate::vector_output::{FLOAT_COLUMN, Floats};
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

/// A window takes no further image beyond this many decoded bytes: images are much larger in memory
/// than on disk.
const MAX_DECODED_BYTES: usize = 256 << 20;

/// Largest image file.
const MAX_FILE_BYTES: u64 = 256 << 20;

/// Score texts against images, or compute image embeddings (CLIP, SigLIP).
///
/// With --text, each image gets a score for each text: probabilities that add up to 1 for CLIP,
/// independent probabilities for SigLIP. Without --text, the embeddings of the images are written,
/// as `sconce embed` writes those of texts.
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
    /// Text to score against each image. May be repeated.
    #[arg(short, long, value_name = "TEXT")]
    text: Vec<String>,
    /// Print the cosine similarity of image and text instead of the model's score.
    #[arg(long, requires = "text")]
    cosine: bool,
}

impl Clip {
    pub(crate) fn run(self, report: &Report) -> Result<ExitCode, Failure> {
        let is_scored = !self.text.is_empty();
        self.output.check(!is_scored, true)?;
        if self.images.iter().filter(|path| is_stdin(path)).count() > 1 {
            return Err("`-` was given more than once, but standard input is one image".into());
        }
        // A misspelled name must not surface after the model and the other images are loaded.
        self.images.iter().filter(|path| !is_stdin(path)).try_for_each(|path| check_readable(path))?;
        let mut paths = self.images.iter();
        // A file that is no image is an error before a model is loaded.
        let mut window = next_window(&mut paths)?;
        let clip = self.model.load(report, Model::load)?;
        let texts =
            if is_scored { clip.texts(&self.text).map_err(|e| self.with_text(e))? } else { Embeddings::default() };
        self.warn_truncated(&texts, &clip, report);
        let answers = match is_scored {
            true => LABELS,
            false => ResultNames { array: Some(("<f4", clip.plan().dimension)), ..embedding_names(FLOAT_COLUMN) },
        };
        let mut columns = Columns::default();
        columns.fields("image")?.add_field("image", Some(FieldType::String))?;
        let mut writer = self.output.open(answers, ResultsOf::Others(columns))?;
        let bar = report.bar("{msg} [{bar:30}] {pos}/{len} {eta}", Some(self.images.len() as u64));
        let start = Instant::now();
        while !window.is_empty() {
            let (names, images): (Vec<Text>, Vec<Image>) = window.into_iter().unzip();
            if is_scored {
                let vectors = clip.images(&images).map_err(|e| with_image_name(e, &names))?;
                for (name, labels) in names.iter().zip(self.score(&clip, &vectors, &texts)?) {
                    writer.write(name, &Labels(labels), None)?;
                }
            } else {
                let vectors = clip.images(&images).map_err(|e| with_image_name(e, &names))?;
                for (name, row) in names.iter().zip(vectors.rows()) {
                    writer.write(name, &Floats(row), None)?;
                }
            }
            writer.flush_stream()?;
            bar.inc(names.len() as u64);
            drop(images);
            window = next_window(&mut paths)?;
        }
        bar.finish_and_clear();
        let images: Vec<String> = self.images.iter().map(|p| name(p)).collect();
        let about = json!({"images": images, "texts": self.text, "truncated_texts": texts.truncated,
            "dimension": clip.plan().dimension, "score": if self.cosine { "cosine" } else { "model" }});
        writer.finish(&with_run_info(about, &clip))?;
        let (n, seconds) = (images.len(), start.elapsed().as_secs_f64());
        let s = if n == 1 { "" } else { "s" };
        report.info(&format!("{n} image{s}, {} texts in {seconds:.2} s on {}", self.text.len(), run_line(&clip)));
        Ok(ExitCode::SUCCESS)
    }

    /// The texts of each image, the best first.
    fn score(&self, clip: &Model, vectors: &Embeddings, texts: &Embeddings) -> Result<Vec<Vec<Label>>, Failure> {
        let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
        let scores = match self.cosine {
            true => vectors.rows().map(|image| texts.rows().map(|text| dot(image, text)).collect()).collect(),
            false => clip.score(vectors, texts)?,
        };
        let named = |scores: Vec<f32>| {
            let label = |(text, score): (&String, f32)| Label { label: text.clone(), score };
            let mut labels: Vec<Label> = self.text.iter().zip(scores).map(label).collect();
            labels.sort_by(|a, b| b.score.total_cmp(&a.score));
            labels
        };
        Ok(scores.into_iter().map(named).collect())
    }

    fn with_text(&self, e: Error) -> Failure {
        match e {
            Error::Text { text, why } | Error::TooLong { text, why } => {
                format!("--text {:?}: {why}", self.text.get(text)).into()
            }
            e => e.into(),
        }
    }

    fn warn_truncated(&self, texts: &Embeddings, clip: &Model, report: &Report) {
        if let Some(first) = texts.truncated.first() {
            let (cut, all, most) = (texts.truncated.len(), self.text.len(), clip.plan().max_tokens);
            report.warn(&format!(
                "{cut} of {all} texts are longer than {most} tokens and were cut (the first: {:?})",
                self.text[*first]
            ));
        }
    }
}

/// The next images with their names: enough to fill batches, fewer if they are large.
fn next_window<'a>(paths: &mut impl Iterator<Item = &'a PathBuf>) -> Result<Vec<(Text, Image)>, Failure> {
    let (mut window, mut decoded) = (Vec::new(), 0);
    while window.len() < WINDOW && decoded < MAX_DECODED_BYTES {
        let Some(path) = paths.next() else { break };
        let image = read(path)?;
        decoded += image.rgb().len();
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
    Text { text: name(path), object: Some(Row::Object(object)), origin: name(path), number: None, bytes: 0 }
}

fn check_readable(path: &Path) -> Result<(), Failure> {
    let is_dir = File::open(path).and_then(|f| f.metadata()).map_err(|e| format!("{}: {e}", path.display()))?.is_dir();
    if is_dir { Err(format!("{}: is a directory", path.display()).into()) } else { Ok(()) }
}

/// Reads an image; errors name its file.
fn read(path: &Path) -> Result<Image, Failure> {
    let fail = |e: &dyn std::fmt::Display| Failure::from(format!("{}: {e}", name(path)));
    let mut bytes = Vec::new();
    let source: Box<dyn Read> = match is_stdin(path) {
        true => Box::new(std::io::stdin()),
        false => Box::new(File::open(path).map_err(|e| fail(&e))?),
    };
    source.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes).map_err(|e| fail(&e))?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        return Err(fail(&format!("larger than {} MiB", MAX_FILE_BYTES >> 20)));
    }
    Image::decode(&bytes).map_err(|e| fail(&e))
}

/// Puts the image's name before its error.
fn with_image_name(e: Error, names: &[Text]) -> Failure {
    match e {
        Error::Image { image, why } => format!("{}: {why}", names[image].origin).into(),
        e => e.into(),
    }
}
