//! Language models as embedders, classifiers and rerankers, against the libraries they come from.

use sconce_engine::hub::{Options, Reference};
use sconce_engine::{
    Checkpoint, Classifier, DeviceChoice, Embedder, Llm, LoadOptions, Prompt, RankOptions, Reranker, TextOrPair,
};
use sconce_models::{Backbone, Batch, Sequence, Task, backbone, head};
use sconce_ops::case::{devices, places};
use sconce_ops::{DType, Device, Ladder, Place, Policy, Tensor, Weights};
use sconce_testkit::{Arrays, Suite, golden, json, materialize, worst};
use serde_json::{Value, json};
use std::path::Path;
use std::sync::Arc;
use tempfile::TempDir;

/// Goldens are f32 runs of small models; ours sums in another order.
const F32: f32 = 1e-5;

fn options() -> LoadOptions {
    let cache = std::env::temp_dir();
    LoadOptions::new(Options::new(cache.clone(), cache)).with_device(DeviceChoice::Only(Device::Cpu))
}

fn reference(dir: &Path) -> Reference {
    dir.to_str().unwrap().parse().unwrap()
}

fn arrays(name: &str) -> Arrays {
    Arrays::open(&golden(name).join("golden.safetensors"))
}

fn answers(name: &str) -> Value {
    json(&golden(name).join("golden.json"))
}

fn ids(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

/// A model with the settings of its files.
struct Model {
    encoder: Box<dyn Backbone>,
    config: Value,
    weights: Weights,
    place: Place,
}

impl Model {
    fn load(dir: &Path, place: &Place) -> Model {
        let config = json(&dir.join("config.json"));
        let weights = Weights::new(Arc::new(Checkpoint::open(dir).unwrap()), DType::F32, place.clone());
        Model { encoder: backbone(&config, &weights).unwrap(), config, weights, place: place.clone() }
    }

    fn batch(&self, sequences: &[Vec<u32>]) -> Batch {
        let of = |ids: &Vec<u32>| Sequence { ids: ids.clone(), ..Sequence::default() };
        let sequences: Vec<_> = sequences.iter().map(of).collect();
        Batch::new(&sequences, self.encoder.limits(), &self.place).unwrap()
    }

    /// Compares every layer of one sequence with the golden's `hidden`, relative to its scale where
    /// that is large (Gemma).
    fn assert_layers_equal(&self, name: &str, ids: Vec<u32>) {
        let (arrays, mut seen) = (arrays(name), 0);
        let mut check = |i: usize, x: &Tensor| {
            let want = arrays.f32(&format!("hidden.{i}")).values;
            let scale = worst(&want, &vec![0.0; want.len()]).max(1.0);
            let off = worst(&x.to_f32().unwrap(), &want) / scale;
            assert!(off <= F32, "{name} layer {i}: off by {off:.1e}");
            seen += 1;
        };
        self.encoder.forward(&self.batch(&[ids]), &mut check).unwrap();
        assert!(!arrays.has(&format!("hidden.{seen}")), "{name}: fewer layers than the golden");
    }
}

fn for_each_place(kind: &str, mut f: impl FnMut(&Place)) {
    for (place, rung) in places(kind) {
        let _here = Ladder::new(Policy::default().with_force(rung)).enter();
        f(&place);
    }
}

/// With the tensors under `model.` and without, with an unused head and without, with special
/// tokens at either end, with causal attention and in both directions; and all texts of a prompt in
/// one batch, where each attends only to itself.
fn embedders_equal_sentence_transformers(kind: &str) {
    let causal = ["task-embed-qwen3", "task-embed-mistral", "task-embed-llama"];
    for name in causal.into_iter().chain(["task-embed-gemma", "task-embed-gte-qwen2", "task-embed-pplx"]) {
        let (dir, answers, want) = (materialize(name), answers(name), arrays(name).f32("embeddings"));
        let cases = answers["cases"].as_array().unwrap();
        let shown = &cases[answers["hidden_of"].as_u64().unwrap() as usize];
        for_each_place(kind, |place| Model::load(dir.path(), place).assert_layers_equal(name, ids(&shown["ids"])));

        let embedder = Embedder::load(&reference(dir.path()), &options(), &()).unwrap();
        let mut seen = 0;
        for cases in cases.chunk_by(|a, b| a["prompt_name"] == b["prompt_name"]) {
            let prompt = cases[0]["prompt_name"].as_str().map_or(Prompt::Default, |name| Prompt::Named(name.into()));
            let texts: Vec<&str> = cases.iter().map(|c| c["text"].as_str().unwrap()).collect();
            let got = embedder.embed(&texts, &prompt).unwrap();
            for (i, case) in cases.iter().enumerate() {
                assert_eq!(got.tokens[i], ids(&case["ids"]).len(), "{name}: {case}");
                let off = worst(got.row(i), &want.values[(seen + i) * want.dims[1]..][..want.dims[1]]);
                assert!(off <= F32, "{name} {prompt:?} {:?}: off by {off:.1e}", texts[i]);
                let alone = embedder.embed(&texts[i..=i], &prompt).unwrap();
                assert_eq!(
                    alone.values,
                    got.row(i),
                    "{name} {prompt:?} {:?}: other texts of the batch change it",
                    texts[i]
                );
            }
            seen += cases.len();
        }
        assert_eq!(seen, want.dims[0], "{name}");
    }
}

/// A classifier reads the last token that is not padding, if there is a padding id; else the last.
fn classifiers_read_the_last_non_padding_token(kind: &str) {
    for name in ["llama-sequence", "mistral-sequence", "qwen2-sequence", "qwen3-sequence"] {
        let (dir, arrays) = (materialize(name), arrays(name));
        let (all, ends) = (arrays.u32("ids").values, arrays.u32("cu_seqlens").values);
        let sequences: Vec<Vec<u32>> = ends.windows(2).map(|w| all[w[0] as usize..w[1] as usize].to_vec()).collect();
        let want = arrays.f32("logits");
        for_each_place(kind, |place| {
            let model = Model::load(dir.path(), place);
            model.assert_layers_equal(name, sequences[1].clone());
            let head = head(Task::Classify, &model.config, &model.weights).unwrap();
            let logits = |sequences: &[Vec<u32>]| {
                let batch = model.batch(sequences);
                let hidden = model.encoder.forward(&batch, &mut |_, _| {}).unwrap();
                let rows = head.pooled(&hidden, &batch, &vec![0; sequences.len()]).unwrap();
                head.forward(&rows).unwrap().to_f32().unwrap()
            };
            let off = worst(&logits(&sequences), &want.values);
            assert!(off <= F32, "{name}: off by {off:.1e}");
            // If all tokens are padding, it reads the first.
            if head.padding == Some(0) {
                assert!(worst(&logits(&[vec![0; 3]]), &logits(&[vec![0]])) <= F32, "{name}");
            }
        });
    }
}

/// `name`'s embedder with a classifier of `labels` labels, and the classifier's rows.
fn write_classifier(name: &str, class: &str, labels: usize) -> (TempDir, Vec<Vec<f32>>) {
    let dir = materialize(name);
    let path = dir.path().join("config.json");
    let mut config = json(&path);
    let width = config["hidden_size"].as_u64().unwrap() as usize;
    config["architectures"] = json!([class]);
    let named = (0..labels).map(|i| (i.to_string(), json!(format!("label {i}"))));
    config["id2label"] = Value::Object(named.collect());
    std::fs::write(&path, config.to_string()).unwrap();
    let row = |label: usize| (0..width).map(|i| ((i * 7 + label * 5) % 11) as f32 / 11.0 - 0.5).collect();
    let rows: Vec<Vec<f32>> = (0..labels).map(row).collect();
    let bytes: Vec<u8> = rows.iter().flatten().flat_map(|v| v.to_le_bytes()).collect();
    let path = dir.path().join("model.safetensors");
    let file = std::fs::read(&path).unwrap();
    let stored = safetensors::SafeTensors::deserialize(&file).unwrap();
    let score = safetensors::tensor::TensorView::new(safetensors::Dtype::F32, vec![labels, width], &bytes).unwrap();
    let all = stored.tensors().into_iter().chain([("score.weight".to_string(), score)]);
    let written = safetensors::serialize(all, None).unwrap();
    std::fs::write(path, written).unwrap();
    (dir, rows)
}

/// From a text to its labels, through the tokenizer and the session. The reference's last hidden
/// state is a golden's.
fn decoder_with_a_head_classifies_and_reranks() {
    let name = "task-embed-mistral";
    let answers = answers(name);
    let case = &answers["cases"][answers["hidden_of"].as_u64().unwrap() as usize];
    let hidden = arrays(name).f32("hidden.2");
    let last = &hidden.values[hidden.values.len() - hidden.dims[1]..];
    let logit = |row: &[f32]| row.iter().zip(last).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>() as f32;
    let text = case["text"].as_str().unwrap();

    let (dir, rows) = write_classifier(name, "MistralForSequenceClassification", 3);
    let classifier = Classifier::load(&reference(dir.path()), &options(), &()).unwrap();
    let got = classifier.classify(&[TextOrPair::from(text)], true).unwrap();
    for (label, row) in rows.iter().enumerate() {
        let own = got.results[0].iter().find(|l| l.label == format!("label {label}")).unwrap();
        assert!((own.score - logit(row)).abs() <= F32, "label {label}: {} for {}", own.score, logit(row));
    }
    let error = Reranker::load(&reference(dir.path()), &options(), &()).err().unwrap().to_string();
    assert!(error.contains("this is a model for"), "{error}");

    let (dir, _) = write_classifier(name, "MistralForSequenceClassification", 1);
    let reranker = Reranker::load(&reference(dir.path()), &options(), &()).unwrap();
    let raw = RankOptions::default().with_raw(true);
    let ranked = reranker.rerank("the cat", &["sat on the mat.", "ate.", ""], raw).unwrap().ranked;
    assert!(ranked.len() == 3 && ranked.is_sorted_by(|a, b| a.score >= b.score));
    let pair = Classifier::load(&reference(dir.path()), &options(), &()).unwrap();
    let alone = pair.classify(&[TextOrPair::from(("the cat", "ate."))], true).unwrap();
    assert_eq!(alone.results[0][0].score, ranked.iter().find(|r| r.index == 1).unwrap().score);
}

/// The golden's scores, all documents of a query and task in one batch; and the token counts.
fn llm_reranker_equals_the_reference(kind: &str) {
    let name = "task-rerank-qwen3";
    let (dir, answers, arrays) = (materialize(name), answers(name), arrays(name));
    // The reference truncates at 200 tokens and computes rotary positions without a limit.
    let change = |file: &str, key: &str, value: u64| {
        let path = dir.path().join(file);
        let mut fields = json(&path);
        fields[key] = value.into();
        std::fs::write(path, fields.to_string()).unwrap();
    };
    change("config.json", "max_position_embeddings", 256);
    change("tokenizer_config.json", "model_max_length", answers["max_length"].as_u64().unwrap());
    let pairs = answers["pairs"].as_array().unwrap();
    let shown = ids(&pairs[answers["hidden_of"].as_u64().unwrap() as usize]["ids"]);
    for_each_place(kind, |place| Model::load(dir.path(), place).assert_layers_equal(name, shown.clone()));

    let strings = |key: &str| -> Vec<String> { serde_json::from_value(answers[key].clone()).unwrap() };
    let (queries, documents) = (strings("queries"), strings("documents"));
    let (logits, scores) = (arrays.f32("logits").values, arrays.f32("scores").values);
    let mut seen = 0;
    for group in pairs.chunk_by(|a, b| (&a["task"], &a["query"]) == (&b["task"], &b["query"])) {
        let mut reranker = Reranker::load(&reference(dir.path()), &options(), &()).unwrap();
        if let Some(task) = group[0]["task"].as_str() {
            reranker = reranker.with_instruction(task).unwrap();
        }
        let of = |pair: &Value| &documents[pair["document"].as_u64().unwrap() as usize];
        let own: Vec<&String> = group.iter().map(of).collect();
        let query = &queries[group[0]["query"].as_u64().unwrap() as usize];
        for raw in [false, true] {
            let got = reranker.rerank(query, &own, RankOptions::default().with_raw(raw)).unwrap();
            assert_eq!(got.tokens, group.iter().map(|pair| ids(&pair["ids"]).len()).sum::<usize>());
            for ranked in &got.ranked {
                let i = seen + ranked.index;
                let want = if raw { logits[2 * i + 1] - logits[2 * i] } else { scores[i] };
                let off = (ranked.score - want).abs();
                assert!(off <= 2.0 * F32, "pair {i}, raw {raw}: {} for {want}", ranked.score);
            }
            let cut: Vec<usize> = (0..own.len()).filter(|i| ids(&group[*i]["ids"]).len() == 200).collect();
            assert_eq!(got.truncated, cut);
        }
        seen += group.len();
    }
    assert_eq!(seen, scores.len());
    let (other, _) = write_classifier("task-embed-mistral", "MistralForSequenceClassification", 1);
    let other = Reranker::load(&reference(other.path()), &options(), &()).unwrap();
    assert!(other.with_instruction("look").err().unwrap().to_string().contains("no instruction"));
}

/// The golden's logits, all documents of a query in one batch; and which pairs are truncated.
fn passage_reranker_equals_the_reference(kind: &str) {
    let name = "task-rerank-gemma";
    let (dir, answers) = (materialize(name), answers(name));
    let (most, logits) = (answers["max_length"].as_u64().unwrap(), arrays(name).f32("logits").values);
    // A logit is a sum of terms as large as the largest logit.
    let largest = worst(&logits, &vec![0.0; logits.len()]);
    let path = dir.path().join("tokenizer_config.json");
    let mut fields = json(&path);
    fields["model_max_length"] = most.into();
    std::fs::write(path, fields.to_string()).unwrap();
    let pairs = answers["pairs"].as_array().unwrap();
    let shown = ids(&pairs[answers["hidden_of"].as_u64().unwrap() as usize]["ids"]);
    for_each_place(kind, |place| Model::load(dir.path(), place).assert_layers_equal(name, shown.clone()));

    let strings = |key: &str| -> Vec<String> { serde_json::from_value(answers[key].clone()).unwrap() };
    let (queries, documents) = (strings("queries"), strings("documents"));
    let reranker = Reranker::load(&reference(dir.path()), &options(), &()).unwrap();
    let mut seen = 0;
    for group in pairs.chunk_by(|a, b| a["query"] == b["query"]) {
        let query = &queries[group[0]["query"].as_u64().unwrap() as usize];
        let got = reranker.rerank(query, &documents, RankOptions::default().with_raw(true)).unwrap();
        assert_eq!(got.tokens, group.iter().map(|pair| ids(&pair["ids"]).len()).sum::<usize>(), "{query}");
        for ranked in &got.ranked {
            let want = logits[seen + ranked.index];
            let off = (ranked.score - want).abs();
            assert!(off <= 2.0 * F32 * largest, "{query} {}: {} for {want}", ranked.index, ranked.score);
        }
        let is_cut = |i: &usize| group[*i]["truncated"].as_bool().unwrap();
        assert_eq!(got.truncated, (0..group.len()).filter(is_cut).collect::<Vec<_>>(), "{query}");
        seen += group.len();
    }
    assert_eq!(seen, logits.len());
}

/// A family without a reference for bidirectional attention is refused where a configuration
/// declares it, and no model generates text or answers a question with it.
fn bidirectional_attention_is_refused_where_it_is_not_supported() {
    let declared = |dir: &Path, key: &str, value: bool| {
        let path = dir.join("config.json");
        let mut config = json(&path);
        config[key] = value.into();
        std::fs::write(path, config.to_string()).unwrap();
        reference(dir)
    };
    for (key, value) in [("is_causal", false), ("use_bidirectional_attention", true)] {
        for name in ["falcon-7b", "gemma-2"] {
            let dir = materialize(name);
            for file in ["tokenizer.json", "tokenizer_config.json"] {
                std::fs::copy(golden("task-embed-mistral").join(file), dir.path().join(file)).unwrap();
            }
            let error = Embedder::load(&declared(dir.path(), key, value), &options(), &()).err();
            let error = error.unwrap_or_else(|| panic!("{name} with {key}: loaded")).to_string();
            assert!(error.contains("bidirectional attention"), "{name} with {key}: {error}");
        }
        let dir = materialize("task-rerank-qwen3");
        let model = declared(dir.path(), key, value);
        let errors = [
            (Llm::load(&model, &options(), &()).err().map(|e| e.to_string()), "a model for embed"),
            (Reranker::load(&model, &options(), &()).err().map(|e| e.to_string()), "cannot predict the next token"),
        ];
        for (error, part) in errors {
            let error = error.unwrap_or_else(|| panic!("qwen3 with {key}: loaded"));
            assert!(error.contains(part), "qwen3 with {key}: {error}");
        }
    }
    // Sliding windows of one kind only: each key has its own.
    let dir = materialize("task-embed-gemma");
    let error = Embedder::load(&declared(dir.path(), "is_causal", false), &options(), &()).err().unwrap().to_string();
    assert!(error.contains("use_bidirectional_attention"), "{error}");
    let dir = materialize("task-embed-mistral");
    let model = declared(dir.path(), "use_bidirectional_attention", true);
    let error = Embedder::load(&model, &options(), &()).err().unwrap().to_string();
    assert!(error.contains("is_causal"), "{error}");
}

fn main() {
    Suite::new(devices())
        .on_each("embedders_equal_sentence_transformers", embedders_equal_sentence_transformers)
        .on_each("classifiers_read_the_last_non_padding_token", classifiers_read_the_last_non_padding_token)
        .test("decoder_with_a_head_classifies_and_reranks", decoder_with_a_head_classifies_and_reranks)
        .on_each("llm_reranker_equals_the_reference", llm_reranker_equals_the_reference)
        .on_each("passage_reranker_equals_the_reference", passage_reranker_equals_the_reference)
        .test(
            "bidirectional_attention_is_refused_where_it_is_not_supported",
            bidirectional_attention_is_refused_where_it_is_not_supported,
        )
        .run()
}
