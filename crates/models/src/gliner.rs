//! GLiNER (Zaratiana et al. 2023, arXiv:2311.08526): entities of any labels. The labels stand before
//! the text, each behind a token of its own; a span or a word is scored against that token. One
//! encoder reads labels and text; the `gliner` package calls such models uni-encoders.

use crate::config::{default_true, default_usize, parse, refuse};
use crate::{Backbone, Batch, Error, Limits, Marks, Result, backbone};
use sconce_ops::{Activation, DType, Linear, Lstm, Pooling, Segments, Tensor, Weights, pair, pool};
use serde::Deserialize;
use serde_json::Value;
use std::ops::Range;

/// Scores of spans that are computed at once, about, which limits the memory of their indices.
const SCORES: usize = 1 << 20;

/// Pairs of a word and a label whose hidden layers are computed at once, which limits their memory.
const PAIRS: usize = 4096;

/// Labels of a sequence without marks, at most: those of a dry run.
const DRY_LABELS: usize = 25;

/// The fields of `gliner_config.json`.
#[derive(Deserialize)]
struct Config {
    #[serde(default = "default_usize::<512>")]
    hidden_size: usize,
    #[serde(default = "default_usize::<12>")]
    max_width: usize,
    #[serde(default = "default_usize::<1>")]
    num_rnn_layers: usize,
    #[serde(default = "marker_v0")]
    span_mode: String,
    #[serde(default = "first")]
    subtoken_pooling: String,
    #[serde(default = "default_true")]
    embed_ent_token: bool,
    #[serde(default)]
    fuse_layers: bool,
    #[serde(default)]
    post_fusion_schema: Option<String>,
    #[serde(default)]
    represent_spans: bool,
    #[serde(default)]
    precomputed_prompts_mode: Option<bool>,
    encoder_config: Option<Value>,
    span_encoder_config: Option<Value>,
    labels_encoder: Option<Value>,
    labels_decoder: Option<Value>,
    relations_layer: Option<Value>,
    labels_encoder_config: Option<Value>,
    decoder_config: Option<Value>,
}

fn marker_v0() -> String {
    "markerV0".into()
}

fn first() -> String {
    "first".into()
}

impl Config {
    fn check(&self) -> Result<()> {
        let unsupported = [
            (self.fuse_layers, "fuse_layers: the hidden states of several layers"),
            (
                self.post_fusion_schema.as_ref().is_some_and(|s| !s.is_empty()),
                "post_fusion_schema: attention after the encoder",
            ),
            (self.represent_spans, "represent_spans: spans that a token head finds and a span head scores"),
            (self.precomputed_prompts_mode == Some(true), "precomputed_prompts_mode: stored labels"),
            (self.span_encoder_config.is_some(), "span_encoder_config: an encoder of words"),
            (self.labels_encoder.is_some() || self.labels_encoder_config.is_some(), "labels_encoder: bi-encoders"),
            (self.decoder_config.is_some(), "decoder_config: a language model that reads a stream"),
            (self.labels_decoder.is_some(), "labels_decoder: generated labels"),
            (self.relations_layer.is_some(), "relations_layer: relations between entities"),
        ];
        for (is_there, what) in unsupported {
            refuse(is_there, || {
                format!("{what} is not supported; GLiNER's uni-encoders with span or token heads are")
            })?;
        }
        refuse(!["first", "last", "mean", "max"].contains(&&*self.subtoken_pooling), || {
            format!("subtoken_pooling `{}` is unknown; `first`, `last`, `mean` and `max` are", self.subtoken_pooling)
        })?;
        refuse(!self.is_token_level() && self.span_mode != "markerV0", || {
            format!("span_mode `{}` is not supported; `markerV0` and `token_level` are", self.span_mode)
        })?;
        refuse(
            !(2..=1 << 20).contains(&self.hidden_size)
                || self.num_rnn_layers > 16
                || !(1..=1024).contains(&self.max_width),
            || "hidden_size, num_rnn_layers or max_width is out of range".into(),
        )
    }

    /// How the tokens of a word become one vector; `None`: one of them stands for the word.
    fn pooling(&self) -> Option<Pooling> {
        match &*self.subtoken_pooling {
            "mean" => Some(Pooling::Mean),
            "max" => Some(Pooling::Max),
            _ => None,
        }
    }

    fn is_token_level(&self) -> bool {
        ["token_level", "token-level"].contains(&&*self.span_mode)
    }
}

/// A stage of the forward pass, for tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GlinerStage {
    /// Hidden states of all tokens, after the projection if there is one.
    Tokens,
    /// The token of each label.
    Labels,
    /// The token of each word, or the mean or maximum of its tokens.
    Words,
    /// The words after a layer of the LSTM.
    Lstm(usize),
}

/// Receives the result of every stage.
pub type GlinerHook<'a> = &'a mut dyn FnMut(GlinerStage, &Tensor);

/// A GLiNER model.
pub struct Gliner {
    encoder: Box<dyn Backbone>,
    /// From the encoder's hidden size to that of the layers after it.
    projection: Option<Linear>,
    lstm: Vec<Lstm>,
    head: Scorer,
    /// Whether a label's token is the one after its mark.
    after_mark: bool,
    /// How the tokens of a word become one vector; `None`: one of them stands for the word.
    pooling: Option<Pooling>,
}

#[allow(clippy::large_enum_variant, reason = "a model has one")]
enum Scorer {
    Spans(SpanScorer),
    Words(WordScorer),
}

impl Gliner {
    /// Loads the model that `gliner_config.json` describes.
    pub fn load(config: &Value, w: &Weights) -> Result<Gliner> {
        let parsed: Config = parse(config)?;
        parsed.check()?;
        let Some(encoder_config) = &parsed.encoder_config else {
            return Err(Error::Config("encoder_config is missing".into()));
        };
        let layer = w.sub("token_rep_layer");
        let encoder = backbone(encoder_config, &layer.sub("bert_layer.model"))?;
        let (hidden, n) = (encoder.hidden_size(), parsed.hidden_size);
        refuse(encoder.cache().is_some(), || "a language model as the encoder is not supported".into())?;
        // Pooling returns f32, so what follows it is in f32.
        let pooling = parsed.pooling();
        let w = if pooling.is_some() { &w.of_head().in_dtype(DType::F32) } else { &w.of_head() };
        let projection = (hidden != n).then(|| Linear::load(&layer.of_head().sub("projection"), hidden, n, true));
        refuse(parsed.num_rnn_layers > 0 && !n.is_multiple_of(2), || format!("hidden_size {n} is odd"))?;
        let lstm = (0..parsed.num_rnn_layers).map(|i| Ok(Lstm::load(&w.sub("rnn.lstm"), i, n, n / 2)?));
        let lstm = lstm.collect::<Result<_>>()?;
        let head = match parsed.is_token_level() {
            true => Scorer::Words(WordScorer::load(&w.sub("scorer"), n)?),
            false => Scorer::Spans(SpanScorer::load(w, n, parsed.max_width)?),
        };
        Ok(Gliner {
            encoder,
            projection: projection.transpose()?,
            lstm,
            head,
            after_mark: !parsed.embed_ent_token,
            pooling,
        })
    }

    /// The encoder's limits.
    pub fn limits(&self) -> Limits {
        self.encoder.limits()
    }

    /// The widest span in words; `None` for a token head, which finds spans of any width.
    pub fn max_width(&self) -> Option<usize> {
        match &self.head {
            Scorer::Spans(scorer) => Some(scorer.max_width),
            Scorer::Words(_) => None,
        }
    }

    /// Numbers per row of the result.
    pub fn outputs(&self) -> usize {
        if self.max_width().is_some() { 1 } else { WordScorer::LOGITS }
    }

    /// The rows of each sequence in the result; see [`Gliner::forward`].
    pub fn result_rows(&self, batch: &Batch) -> Vec<Range<usize>> {
        let mut end = 0;
        let rows = |marks: Marks| {
            let start = end;
            end += marks.labels.len()
                * self.max_width().map_or(marks.words.len(), |w| spans(marks.words.len(), w).count());
            start..end
        };
        marks(batch).into_iter().map(rows).collect()
    }

    /// The logits of every sequence, in parts that follow each other: `[.., 1]` of every span, by its
    /// first word and then its width, and each label; or `[.., 3]` of every word and each label: that
    /// an entity starts there, ends there, contains the word.
    pub fn forward(&self, batch: &Batch, hook: GlinerHook<'_>) -> Result<Vec<Tensor>> {
        let mut x = self.encoder.forward(batch, &mut |_, _| {})?;
        if let Some(projection) = &self.projection {
            x = projection.forward(&x)?;
        }
        hook(GlinerStage::Tokens, &x);
        let marks = marks(batch);
        let (mut label_rows, mut word_rows, mut word_lengths) = (Vec::new(), Vec::new(), Vec::new());
        for (range, marks) in batch.segments.observe().iter().zip(&marks) {
            let last = range.len() as u32 - 1;
            let row = |mark: u32| range.start as u32 + mark.min(last);
            label_rows.extend(marks.labels.iter().map(|mark| row(mark + u32::from(self.after_mark))));
            word_rows.extend(marks.words.iter().cloned().flatten().map(row));
            word_lengths.extend(marks.words.iter().map(|word| word.len()));
        }
        let (mut labels, mut words) = (batch.rows(&x, &label_rows)?, batch.rows(&x, &word_rows)?);
        if let Some(pooling) = self.pooling {
            let each = vec![1; label_rows.len()];
            labels = pool(&labels, &Segments::new(&each)?, &vec![0; each.len()], &[Pooling::Cls])?;
            words = pool(&words, &Segments::new(&word_lengths)?, &vec![0; word_lengths.len()], &[pooling])?;
        }
        hook(GlinerStage::Labels, &labels);
        hook(GlinerStage::Words, &words);
        let segments = Segments::new(&marks.iter().map(|marks| marks.words.len()).collect::<Vec<_>>())?;
        for (i, lstm) in self.lstm.iter().enumerate() {
            words = lstm.forward(&words, &segments)?;
            hook(GlinerStage::Lstm(i), &words);
        }
        match &self.head {
            Scorer::Spans(scorer) => scorer.forward(&words, &labels, (batch, &marks)),
            Scorer::Words(scorer) => scorer.forward(&words, &labels, (batch, &marks)),
        }
    }
}

/// The marks of each sequence. One without marks, of a dry run or a sanity check, has words alone,
/// and as many labels as such a text might have.
fn marks(batch: &Batch) -> Vec<Marks> {
    let lengths = batch.segments.observe().iter().map(|range| range.len());
    let of = |(marks, n): (&Option<Marks>, usize)| match marks {
        Some(marks) if !marks.labels.is_empty() && !marks.words.is_empty() => marks.clone(),
        _ => Marks { labels: vec![0; (n / 4).clamp(1, DRY_LABELS)], words: (0..n as u32).map(|i| i..i + 1).collect() },
    };
    batch.observe_marks().iter().zip(lengths).map(of).collect()
}

/// The spans of `words` words: the first word and the last.
pub fn spans(words: usize, max_width: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..words).flat_map(move |first| (first..words.min(first + max_width)).map(move |last| (first, last)))
}

/// Two layers with ReLU between them, and after them if `relu`.
struct Projection {
    up: Linear,
    down: Linear,
}

impl Projection {
    fn load(w: &Weights, n: usize, relu: bool) -> Result<Projection> {
        let up = Linear::load(&w.sub(0), n, 4 * n, true)?.with(Activation::Relu);
        let down = Linear::load(&w.sub(3), 4 * n, n, true)?;
        Ok(Projection { up, down: if relu { down.with(Activation::Relu) } else { down } })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        Ok(self.down.forward(&self.up.forward(x)?)?)
    }
}

/// Scores of spans (`markerV0`): an MLP of a span's first and last word, times the label.
///
/// The MLP's first layer is a sum over both words, so it runs per word. Its last layer and the
/// product with the label are one linear map, so the label goes through the layer instead of every
/// span: s·p = (W·h + b)·p = h·(Wᵀ·p) + b·p.
struct SpanScorer {
    labels: Projection,
    start: Projection,
    end: Projection,
    /// The first layer of the MLP for the first word, with the bias, and for the last.
    hidden: [Linear; 2],
    /// The last layer of the MLP, transposed, and its bias `[1, n]`.
    out: Linear,
    bias: Tensor,
    max_width: usize,
}

impl SpanScorer {
    fn load(w: &Weights, n: usize, max_width: usize) -> Result<SpanScorer> {
        let layer = w.sub("span_rep_layer.span_rep_layer");
        let (first, last) = (layer.sub("out_project.0"), layer.sub("out_project.3"));
        let hidden = [0, 1].map(|part| Linear::part(&first, n, 4 * n, (part, 2)));
        let [start, end] = hidden;
        Ok(SpanScorer {
            labels: Projection::load(&w.sub("prompt_rep_layer"), n, false)?,
            // The MLP begins with ReLU.
            start: Projection::load(&layer.sub("project_start"), n, true)?,
            end: Projection::load(&layer.sub("project_end"), n, true)?,
            hidden: [start?.with_bias(first.tensor("bias", &[4 * n])?)?, end?],
            out: Linear::transposed(&last, n, 4 * n, false)?,
            bias: last.tensor("bias", &[n])?.reshape(&[1, n])?,
            max_width,
        })
    }

    fn forward(&self, words: &Tensor, labels: &Tensor, (batch, marks): (&Batch, &[Marks])) -> Result<Vec<Tensor>> {
        let labels = self.labels.forward(labels)?;
        let start = self.hidden[0].forward(&self.start.forward(words)?)?;
        let end = self.hidden[1].forward(&self.end.forward(words)?)?;
        let each = batch.upload(&(0..labels.dims()[0] as u32).collect::<Vec<_>>())?;
        let zeros = batch.upload(&vec![0; labels.dims()[0]])?;
        let offsets = pair::dot((&labels, &each), (&self.bias, &zeros))?;
        let folded = self.out.forward(&labels)?;
        let score = |ids: &[Vec<u32>; 3]| -> Result<Tensor> {
            let [a, b, c] = [batch.upload(&ids[0])?, batch.upload(&ids[1])?, batch.upload(&ids[2])?];
            Ok(pair::score((&start, &a), (&end, &b), (&folded, &c), &offsets)?)
        };
        let (mut parts, mut ids) = (Vec::new(), [const { Vec::new() }; 3]);
        let (mut word, mut label) = (0, 0);
        for marks in marks {
            for (first, last) in spans(marks.words.len(), self.max_width) {
                for i in 0..marks.labels.len() {
                    let row = [word + first, word + last, label + i];
                    ids.iter_mut().zip(row).for_each(|(ids, row)| ids.push(row as u32));
                }
                if ids[0].len() >= SCORES {
                    parts.push(score(&ids)?);
                    ids.iter_mut().for_each(Vec::clear);
                }
            }
            word += marks.words.len();
            label += marks.labels.len();
        }
        if !ids[0].is_empty() {
            parts.push(score(&ids)?);
        }
        Ok(parts)
    }
}

/// Scores of words (`token_level`): an MLP of projections of the word and the label, and of the
/// product of two others.
struct WordScorer {
    /// Both projections of a word, and of a label.
    word: Linear,
    label: Linear,
    /// The first layer of the MLP for the word, with the bias, for the label and for the product.
    hidden: [Linear; 3],
    out: Linear,
}

impl WordScorer {
    /// Start, end, inside.
    const LOGITS: usize = 3;

    fn load(w: &Weights, n: usize) -> Result<WordScorer> {
        let first = w.sub("out_mlp.0");
        let [word, label, product] = [0, 1, 2].map(|part| Linear::part(&first, n, 4 * n, (part, 3)));
        Ok(WordScorer {
            word: Linear::load(&w.sub("proj_token"), n, 2 * n, true)?,
            label: Linear::load(&w.sub("proj_label"), n, 2 * n, true)?,
            hidden: [word?.with_bias(first.tensor("bias", &[4 * n])?)?, label?, product?],
            out: Linear::load(&w.sub("out_mlp.3"), 4 * n, WordScorer::LOGITS, true)?,
        })
    }

    fn forward(&self, words: &Tensor, labels: &Tensor, (batch, marks): (&Batch, &[Marks])) -> Result<Vec<Tensor>> {
        let halves = |x: &Tensor| -> Result<[Tensor; 2]> {
            let n = x.dims()[1] / 2;
            Ok([x.narrow(1, 0, n)?, x.narrow(1, n, n)?])
        };
        let [word, word_factor] = halves(&self.word.forward(words)?)?;
        let [label, label_factor] = halves(&self.label.forward(labels)?)?;
        let (word, label) = (self.hidden[0].forward(&word)?, self.hidden[1].forward(&label)?);
        let (mut word_ids, mut label_ids): (Vec<u32>, Vec<u32>) = (Vec::new(), Vec::new());
        let mut first = [0, 0];
        for marks in marks {
            for i in 0..marks.words.len() {
                word_ids.resize(word_ids.len() + marks.labels.len(), (first[0] + i) as u32);
                label_ids.extend((0..marks.labels.len()).map(|i| (first[1] + i) as u32));
            }
            first = [first[0] + marks.words.len(), first[1] + marks.labels.len()];
        }
        let mut parts = Vec::new();
        for (words, labels) in word_ids.chunks(PAIRS).zip(label_ids.chunks(PAIRS)) {
            let each = batch.upload(&(0..words.len() as u32).collect::<Vec<_>>())?;
            let (words, labels) = (batch.upload(words)?, batch.upload(labels)?);
            let product = pair::product((&word_factor, &words), (&label_factor, &labels))?;
            let product = self.hidden[2].forward(&product)?;
            let hidden = pair::relu_sum(&[(&word, &words), (&label, &labels), (&product, &each)])?;
            parts.push(self.out.forward(&hidden)?);
        }
        Ok(parts)
    }
}
