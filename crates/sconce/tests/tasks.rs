//! The commands of each task compared with reference results, on tiny models.

#[allow(dead_code, reason = "other tests use the rest")]
mod common;
#[path = "common/golden.rs"]
mod golden;

use common::{err, numbers, out, parse, sconce};
use golden::{Model, TOLERANCE, assert_close, assert_ran, list, text};
use sconce_testkit::{materialize, worst};
use serde_json::{Value, json};

#[test]
fn rerank_matches_reference_order_and_scores() {
    let model = Model::new("task-rerank");
    let (queries, documents) = (list(&model.golden["queries"]), list(&model.golden["documents"]));
    let stdin: String = documents.iter().map(|d| text(d).to_string() + "\n").collect();
    let arrays = model.arrays();
    for (options, name) in [
        (&[][..], "sigmoid"),
        (&["--raw"], "logits"),
        (&["--raw", "--pooling", "cls"], "cls"),
        (&["--raw", "--representation", "mean"], "mean"),
    ] {
        let want = arrays.f32(name).values;
        for (q, query) in queries.iter().enumerate() {
            let mut args = vec!["rerank", "-m", model.path(), "--json", "--texts", "--query", text(query)];
            args.extend(options);
            let all = parse(&out(&args, stdin.as_bytes()));
            let results = list(&all["results"]);
            if options.len() < 2 {
                let order: Vec<&Value> = results.iter().map(|r| &r["index"]).collect();
                assert_eq!(json!(order), model.golden["ranking"][q], "{query}");
            }
            assert_eq!(results.len(), documents.len());
            for r in results {
                let d = r["index"].as_u64().unwrap() as usize;
                assert!((r["score"].as_f64().unwrap() - f64::from(want[q * documents.len() + d])).abs() < TOLERANCE);
                assert_eq!(r["text"], documents[d]);
            }
            assert!(list(&all["truncated"]).contains(&json!(4)) && all["tokens"].as_u64() > Some(50), "{all}");
            assert_ran(&all);
        }
    }
}

#[test]
fn show_names_the_family_its_tasks_and_its_reference() {
    let model = Model::new("task-rerank");
    let shown = out(&["show", model.path()], b"");
    let family = "family        BERT: sparse, embed, multi, rerank, classify, tag\n";
    let checked = "against transformers: cargo test --release -p sconce-engine --test architectures\n";
    assert!(shown.contains(family) && shown.contains(checked) && shown.contains("GGUF (bert)"), "{shown}");
    let family = &parse(&out(&["show", model.path(), "--json"], b""))["family"];
    assert_eq!(family["model_types"], json!(["bert"]));
    assert_eq!(family["tasks"], json!(["sparse", "embed", "multi", "rerank", "classify", "tag"]));
    assert_eq!((&family["reference"], &family["test"]), (&json!("transformers"), &json!("architectures")));
    assert!(list(&family["models"]).contains(&json!("sentence-transformers/all-MiniLM-L6-v2")));

    let model = Model::new("gliner-deberta");
    let shown = out(&["show", model.path()], b"");
    for line in [
        "task          gliner: sconce tag --labels LABELS -m ",
        "architecture  gliner\n",
        "reads         labels and text up to 250 tokens\n",
        "family        GLiNER: gliner\n",
        "checked       against gliner: cargo test --release -p sconce-engine --test gliner\n",
    ] {
        assert!(shown.contains(line), "{line}{shown}");
    }
}

#[test]
fn rerank_table_shows_top_n_and_reports_truncation() {
    let model = Model::new("task-rerank");
    let documents: Vec<&str> = list(&model.golden["documents"]).iter().map(text).collect();
    let mut args = vec!["rerank", "-m", model.path(), "--query", text(&model.golden["queries"][0]), "--top-n", "2"];
    args.extend(&documents);
    let o = sconce(&args, b"");
    let (stdout, stderr) = (String::from_utf8(o.stdout).unwrap(), String::from_utf8(o.stderr).unwrap());
    let lines: Vec<Vec<&str>> = stdout.lines().map(|l| l.split_whitespace().collect()).collect();
    assert_eq!(lines.len(), 3, "{stdout}");
    assert_eq!(lines[0], ["score", "index", "text"]);
    let first = model.golden["ranking"][0][0].as_u64().unwrap() as usize;
    assert_eq!(lines[1][1], first.to_string());
    assert!(stdout.contains(documents[first]));
    assert!(stderr.contains("of 7 texts are longer than 24 tokens") && stderr.contains("7 texts, "), "{stderr}");
    assert!(stderr.contains("1 of 7 texts are blank"), "{stderr}");

    // More than one window, and equal documents, which stay in the given order.
    let many = "the cat\n".repeat(1200);
    let all = parse(&out(&["rerank", "-m", model.path(), "--query", "cat", "--json", "--top-n", "3"], many.as_bytes()));
    let order: Vec<&Value> = list(&all["results"]).iter().map(|r| &r["index"]).collect();
    assert_eq!((json!(order), &all["documents"]), (json!([0, 1, 2]), &json!(1200)));
    assert!(all["results"][0].get("text").is_none());
}

#[test]
fn classify_matches_reference_on_texts_and_pairs() {
    let model = Model::new("task-classify");
    let cases = list(&model.golden["cases"]);
    let assert_labels = |got: &Value, case: &Value| {
        for (g, w) in list(got).iter().zip(list(&case["scores"])) {
            assert_eq!(g["label"], w["label"]);
            assert_close(&g["score"], w["score"].as_f64().unwrap());
        }
        assert_eq!(list(got).len(), list(&case["scores"]).len());
    };
    let (single, pairs): (Vec<&Value>, Vec<&Value>) = cases.iter().partition(|c| c.get("text_pair").is_none());
    let mut args = vec!["classify", "-m", model.path(), "--json"];
    args.extend(single.iter().map(|c| text(&c["text"])));
    let all = parse(&out(&args, b""));
    assert_eq!(list(&all["results"]).len(), single.len());
    list(&all["results"]).iter().zip(&single).for_each(|(g, c)| assert_labels(g, c));
    assert_eq!(all["labels"], json!(["negative", "neutral", "positive"]));
    assert_ran(&all);

    let lines: String =
        pairs.iter().map(|c| json!({"id": 7, "one": c["text"], "two": c["text_pair"]}).to_string() + "\n").collect();
    let jsonl = ["classify", "-m", model.path(), "--field", "one", "--pair-field", "two", "--format", "jsonl"];
    let objects: Vec<Value> = out(&jsonl, lines.as_bytes()).lines().map(parse).collect();
    assert_eq!(objects.len(), pairs.len());
    for (object, case) in objects.iter().zip(&pairs) {
        assert_labels(&object["labels"], case);
        assert_eq!((&object["id"], &object["two"]), (&json!(7), &case["text_pair"]));
        let second = text(&case["text_pair"]);
        let one = parse(&out(&["classify", "-m", model.path(), "--json", text(&case["text"]), "--pair", second], b""));
        assert_labels(&one["results"][0], case);
    }
    let e = err(&jsonl, b"{\"one\": \"x\", \"two\": \"y\"}\n{\"one\": \"x\"}\n");
    assert!(e.contains("stdin:2") && e.contains("no field `two`"), "{e}");
}

#[test]
fn classify_supports_raw_top_k_and_threshold() {
    let model = Model::new("task-classify");
    let logits = model.arrays().f32("logits").values;
    let base = ["classify", "-m", model.path(), "hello world"];
    let run = |extra: &[&str]| out(&[&base[..], extra].concat(), b"");
    let raw = parse(&run(&["--raw", "--json"]));
    let mut got = numbers(&json!(list(&raw["results"][0]).iter().map(|l| &l["score"]).collect::<Vec<_>>()));
    let mut want = logits[3..6].to_vec();
    got.sort_by(f32::total_cmp);
    want.sort_by(f32::total_cmp);
    assert!(worst(&got, &want) < 2e-5);
    assert_eq!(run(&["--top-k", "1"]), "negative 0.8696  | hello world\n");
    assert_eq!(run(&["--threshold", "0.1"]), "negative 0.8696  neutral 0.1021  | hello world\n");
    let e = err(&[&base[..], &["--format", "npy"]].concat(), b"");
    assert!(e.contains("json or jsonl"), "{e}");
    // A reranker has one score; a classifier cannot rerank.
    let e = err(&["rerank", "-m", model.path(), "--query", "q", "d"], b"");
    assert!(e.contains("this is a model for classify; run `sconce classify`"), "{e}");
    // There is no default model.
    assert_eq!(sconce(&["classify", "hello"], b"").status.code(), Some(2));
}

#[test]
fn tag_reads_long_texts_in_windows() {
    let model = Model::new("task-tag-cased");
    for case in list(&model.golden["strided"]) {
        let (stride, text) = (case["stride"].to_string(), text(&case["text"]));
        let all = parse(&out(&["tag", "-m", model.path(), "--json", "--stride", &stride, text], b""));
        let found: Vec<_> = list(&all["results"][0]).iter().map(|e| (&e["label"], &e["start"], &e["end"])).collect();
        let want: Vec<_> = list(&case["simple"]).iter().map(|e| (&e["entity_group"], &e["start"], &e["end"])).collect();
        assert_eq!((found, &all["truncated"]), (want, &json!([])), "stride {stride}: {text}");
    }
    let long = text(&model.golden["strided"][0]["text"]);
    let why = err(&["tag", "-m", model.path(), "--stride", "4", "--aggregation", "none", long], b"");
    assert!(why.contains("aggregation strategy"), "{why}");
    // Without it the warning names it.
    let o = sconce(&["tag", "-m", model.path(), long], b"");
    assert!(String::from_utf8_lossy(&o.stderr).contains("--stride reads them whole"));
}

#[test]
fn tag_finds_the_entities_of_the_reference() {
    let model = Model::new("task-tag");
    let cases = list(&model.golden["cases"]);
    for aggregation in ["none", "simple", "first", "average", "max"] {
        let mut args = vec!["tag", "-m", model.path(), "--json", "--aggregation", aggregation];
        args.extend(cases.iter().map(|c| text(&c["text"])));
        let all = parse(&out(&args, b""));
        assert_eq!(list(&all["results"]).len(), cases.len());
        for (found, case) in list(&all["results"]).iter().zip(cases) {
            let want = list(&case[aggregation]);
            assert_eq!(list(found).len(), want.len(), "{aggregation}: {case}");
            for (g, w) in list(found).iter().zip(want) {
                let label = w.get("entity_group").unwrap_or(&w["entity"]);
                assert_eq!(
                    (&g["label"], &g["start"], &g["end"]),
                    (label, &w["start"], &w["end"]),
                    "{aggregation}: {case}"
                );
                assert_eq!(g["word"], w["word"], "{aggregation}: {case}");
                assert_close(&g["score"], w["score"].as_f64().unwrap());
                let (start, end) = (w["start"].as_u64().unwrap() as usize, w["end"].as_u64().unwrap() as usize);
                let own: String = text(&case["text"]).chars().skip(start).take(end - start).collect();
                assert_eq!(g["text"], own);
            }
        }
        assert_ran(&all);
    }
    let one = out(&["tag", "-m", model.path(), "--threshold", "0.65", "Anna lives in Paris."], b"");
    assert_eq!(one, "0..2 PER 0.6863 An\n6..7 PER 0.6581 i\n19..20 PER 0.6524 .\n");
    let two = out(&["tag", "-m", model.path(), "--threshold", "0.65"], b"\nAnna lives in Paris.\n");
    assert!(two.starts_with("stdin:2: 0..2 PER") && two.lines().count() == 3, "{two}");
}

#[test]
fn tag_with_labels_finds_the_entities_of_the_gliner_package() {
    let model = Model::new("gliner-token");
    let cases = list(&model.golden["cases"]);
    let labels: Vec<&str> = list(&model.golden["labels"]).iter().map(text).collect();
    for (i, options) in list(&model.golden["options"]).iter().enumerate() {
        let threshold = options["threshold"].to_string();
        let labels = labels.join(", ");
        let mut args = vec!["tag", "-m", model.path(), "--json", "--labels", &labels, "--threshold", &threshold];
        args.extend((options["flat_ner"] == false).then_some("--nested"));
        args.extend((options["multi_label"] == true).then_some("--multi-label"));
        args.extend(cases.iter().map(|c| text(&c["text"])));
        let all = parse(&out(&args, b""));
        for (found, case) in list(&all["results"]).iter().zip(cases) {
            let want = list(&case["found"][i]);
            assert_eq!(list(found).len(), want.len(), "{options}: {case}");
            for (g, w) in list(found).iter().zip(want) {
                let fields = |e: &Value| ["label", "start", "end", "text"].map(|field| e[field].clone());
                assert_eq!(fields(g), fields(w), "{options}: {case}");
                assert_close(&g["score"], w["score"].as_f64().unwrap());
            }
        }
        assert_ran(&all);
    }
    let refused = sconce(&["tag", "-m", model.path(), "--labels", "person,,date", "x"], b"");
    assert!(String::from_utf8(refused.stderr).unwrap().contains("an empty label"));
    let refused = sconce(&["tag", "-m", model.path(), "--labels", "person", "--threshold", "2", "x"], b"");
    assert!(String::from_utf8(refused.stderr).unwrap().contains("threshold"));
    let refused = sconce(&["tag", "-m", model.path(), "--nested", "x"], b"");
    let e = String::from_utf8(refused.stderr).unwrap();
    assert!(refused.status.code() == Some(2) && e.contains("--labels"), "{e}");
}

#[test]
fn invalid_options_are_rejected() {
    let assert_usage_error = |args: &[&str]| {
        let o = sconce(args, b"");
        assert_eq!(o.status.code(), Some(2), "{args:?}: {}", String::from_utf8_lossy(&o.stderr));
    };
    for other in [&["--dimensions", "8"][..], &["--precision", "int8"], &["--base64"], &["--prompt", "p"]] {
        assert_usage_error(&[&["embed", "x", "--sparse"], other].concat());
    }
    for other in [&["--dimensions", "8"][..], &["--precision", "int8"], &["--base64"], &["--prompt-name", "p"]] {
        assert_usage_error(&[&["embed", "x", "--multi"], other].concat());
    }
    assert_usage_error(&["embed", "x", "--query"]);
    assert_usage_error(&["embed", "x", "--base64", "--precision", "int8"]);
    assert_usage_error(&["embed", "x", "--precision", "int4"]);
    assert_usage_error(&["rerank", "-m", "x", "document"]);
    assert_usage_error(&["clip", "-m", "x"]);
    assert_usage_error(&["clip", "-m", "x", "a.png", "--cosine"]);
    // These are refused before the model, which does not exist, is loaded.
    assert!(err(&["classify", "-m", "./absent", "--pair-field", "two", "x"], b"").contains("--pair-field"));
    let assert_refused = |args: &[&str], why: &str| {
        let e = err(&[&["embed", "-m", "./absent", "x"], args].concat(), b"");
        assert!(e.contains(why), "{args:?}: {e}");
    };
    assert_refused(&["--sparse", "--format", "npy"], "npy");
    assert_refused(&["--multi", "-o", "v.bin"], "bin");
    assert_refused(&["--base64"], "--format json");
    assert_refused(&["--ranges", "r.json"], "int8 and uint8");
    assert_refused(&["--ranges", "r.json", "--precision", "int8"], "r.json");

    let model = Model::new("task-outputs-truncate");
    let error = |args: &[&str]| err(&[&["embed", "-m", model.path(), "x"], args].concat(), b"");
    assert!(error(&["--dimensions", "33"]).contains("33 cannot be chosen: use 1 to 32"));
    assert!(error(&["--precision", "int8"]).contains("a single vector has none"));
    let ranges = model.dir.path().join("ranges.json");
    std::fs::write(&ranges, "{\"low\": [0.0], \"high\": [1.0]}").unwrap();
    let e = error(&["--precision", "int8", "--ranges", ranges.to_str().unwrap()]);
    assert!(e.contains("ranges of 1 dimensions for vectors of 32"), "{e}");
    std::fs::write(&ranges, "{\"low\": [0.0], \"hi\": [1.0]}").unwrap();
    assert!(error(&["--precision", "int8", "--ranges", ranges.to_str().unwrap()]).contains("low and high"));
}

#[test]
fn plan_names_the_task_and_compares_devices() {
    for (name, task) in
        [("task-rerank", "rerank"), ("task-tag", "tag"), ("task-sparse", "sparse"), ("task-colbert", "multi")]
    {
        let model = Model::new(name);
        assert_eq!(parse(&out(&["plan", model.path(), "-d", "cpu", "--json"], b""))["task"], task);
        let all = parse(&out(&["plan", model.path(), "--all-devices", "--json"], b""));
        assert_eq!(all["task"], task);
        let devices: Vec<&str> = list(&all["devices"]).iter().map(|d| text(&d["device"])).collect();
        assert_eq!(devices, ["cpu", "cuda:0", "metal:0"]);
        for device in list(&all["devices"]) {
            let others = ["composed", "host", "refused"].map(|rung| device[rung].as_u64());
            assert_eq!(others, [Some(0); 3], "{name}: {device}");
            assert!(device["fused"].as_u64() > Some(0));
        }
        assert_eq!(all["devices"][0]["runs"], true);
        let stdout = out(&["plan", model.path(), "--all-devices"], b"");
        assert!(stdout.starts_with(&format!("task {task}; op calls")) && stdout.lines().count() == 6, "{stdout}");
        // A rung that does not exist on some device is refused there, as the host rung on the CPU,
        // and the exit code is 1.
        let o = sconce(&["plan", model.path(), "--all-devices", "--rung", "host"], b"");
        assert_eq!(o.status.code(), Some(1));
    }
    let devices = parse(&out(&["devices", "--json"], b""));
    assert_eq!(list(&devices["devices"]).iter().filter(|d| d["best"] == true).count(), 1);
    assert!(out(&["devices"], b"").lines().any(|l| l.starts_with("best ")));
}

#[test]
fn fallback_needs_permission_and_is_reported() {
    let model = Model::new("task-classify");
    let args = ["classify", "-m", model.path(), "-d", "cuda:63", "--json", "hello"];
    assert!(err(&args, b"").contains("cuda:63"));
    let o = sconce(&[&args[..], &["--fallback"]].concat(), b"");
    let stderr = String::from_utf8(o.stderr).unwrap();
    assert!(o.status.success() && stderr.contains("cuda:63: ") && stderr.contains("falling back to"), "{stderr}");
    let all = parse(&String::from_utf8(o.stdout).unwrap());
    assert_ne!(all["device"], "cuda:63");
    let plan = sconce(&["plan", model.path(), "-d", "cuda:63", "--fallback"], b"");
    assert!(plan.status.success() && String::from_utf8(plan.stderr).unwrap().contains("falling back to"));
}

#[test]
fn clip_matches_reference_scores_and_embeddings() {
    let images = sconce_testkit::golden("task-images");
    for name in ["task-clip", "task-siglip"] {
        let model = Model::new(name);
        let arrays = model.arrays();
        let files: Vec<String> =
            list(&model.golden["images"]).iter().map(|i| images.join(text(i)).to_str().unwrap().to_string()).collect();
        let texts: Vec<&str> = list(&model.golden["texts"]).iter().map(|t| text(&t["text"])).collect();
        let mut args = vec!["clip", "-m", model.path()];
        args.extend(files.iter().map(String::as_str));
        let text_args: Vec<&str> = texts.iter().flat_map(|t| ["--text", t]).collect();
        let run = |extra: &[&str]| parse(&out(&[&args[..], &text_args, extra].concat(), b""));

        let all = run(&["--json"]);
        let want = arrays.f32("probabilities");
        let (vision, language) = (arrays.f32("image_embeds"), arrays.f32("text_embeds"));
        let cosines = run(&["--json", "--cosine"]);
        for (i, file) in files.iter().enumerate() {
            // JPEG decoders may differ by one level of 255; PNG is exact.
            let near = if file.ends_with(".jpg") { 5e-3 } else { 1e-4 };
            assert_eq!(all["images"][i], *file);
            let (scored, cosine) = (list(&all["results"][i]), list(&cosines["results"][i]));
            assert_eq!((scored.len(), cosine.len()), (texts.len(), texts.len()));
            assert!(scored.is_sorted_by(|a, b| a["score"].as_f64() >= b["score"].as_f64()));
            for label in scored {
                let t = texts.iter().position(|t| label["label"] == *t).unwrap();
                let want = f64::from(want.values[i * texts.len() + t]);
                assert!((label["score"].as_f64().unwrap() - want).abs() < near, "{file}: {label} is not {want}");
            }
            let d = vision.dims[1];
            for label in cosine {
                let t = texts.iter().position(|t| label["label"] == *t).unwrap();
                let (a, b) = (&vision.values[i * d..][..d], &language.values[t * d..][..d]);
                let dot: f32 = a.iter().zip(b).map(|(a, b)| a * b).sum();
                assert!((label["score"].as_f64().unwrap() - f64::from(dot)).abs() < near, "{file}: {label} {dot}");
            }
        }
        assert_ran(&all);
        assert!(list(&all["truncated_texts"]).contains(&json!(4)) && all.get("tokens").is_none(), "{all}");

        let vectors = parse(&out(&[&args[..], &["--json"]].concat(), b""));
        let got: Vec<f32> = list(&vectors["embeddings"]).iter().flat_map(numbers).collect();
        assert!(worst(&got, &vision.values) < 5e-3, "{}", worst(&got, &vision.values));
        let npy = sconce(&[&args[..], &["--format", "npy"]].concat(), b"").stdout;
        let flat: Vec<f32> = npy[128..].chunks(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
        assert_eq!(flat, got);
        let jsonl = out(&[&args[..], &["--format", "jsonl"]].concat(), b"");
        let first = parse(jsonl.lines().next().unwrap());
        assert_eq!((&first["image"], &first["embedding"]), (&json!(files[0]), &vectors["embeddings"][0]));
    }
}

#[test]
fn clip_reports_truncation_and_reads_image_from_stdin() {
    let model = Model::new("task-clip");
    let image = sconce_testkit::golden("task-images").join("odd.png");
    let long = text(&model.golden["texts"][4]["text"]);
    let from_file =
        sconce(&["clip", "-m", model.path(), image.to_str().unwrap(), "--text", "a cat", "--text", long], b"");
    let stderr = String::from_utf8(from_file.stderr).unwrap();
    assert!(stderr.contains("1 of 2 texts are longer than 16 tokens") && stderr.contains("a text of many"), "{stderr}");
    assert!(stderr.contains("1 image, 2 texts in "), "{stderr}");
    let bytes = std::fs::read(&image).unwrap();
    let from_stdin = out(&["clip", "-m", model.path(), "-", "--text", "a cat", "--text", long], &bytes);
    let stdout = String::from_utf8(from_file.stdout).unwrap();
    assert_eq!(stdout.split('|').next(), from_stdin.split('|').next());
    assert!(from_stdin.ends_with("| stdin\n"), "{from_stdin}");
}

#[test]
fn clip_names_the_unreadable_image() {
    let model = Model::new("task-classify");
    let broken = model.dir.path().join("broken.png");
    std::fs::write(&broken, b"\x89PNG\r\n\x1a\nnot a picture").unwrap();
    let run = |images: &[&str]| err(&[&["clip", "-m", model.path(), "--text", "a cat"], images].concat(), b"junk");
    assert!(run(&[broken.to_str().unwrap()]).contains("broken.png: "));
    assert!(run(&["absent.png"]).contains("absent.png"));
    assert!(run(&[model.path()]).contains("is a directory"));
    assert!(run(&["-"]).contains("stdin: "));
    assert!(run(&["-", "-"]).contains("more than once"));
    assert!(run(&[broken.to_str().unwrap(), "--format", "npy"]).contains("npy"));
}

/// A model for another task is refused by its task and the command for it, not by a tensor.
#[test]
fn model_for_another_task_names_its_command() {
    let (embedder, tagger, classifier) =
        (materialize("st-cls-dense"), materialize("task-tag"), materialize("task-classify"));
    let refused = |command: &[&str], model: &tempfile::TempDir, task: &str, expected: &str| {
        let args = [command, &["-m", model.path().to_str().unwrap(), "x", "y"]].concat();
        let e = err(&args, b"");
        assert!(e.contains(&format!("this is a model for {task}; run `sconce {expected}`")), "{args:?}: {e}");
    };
    for command in [&["rerank", "--query", "q"][..], &["tag"], &["classify"], &["generate"]] {
        refused(command, &embedder, "embed", "embed");
    }
    refused(&["classify"], &tagger, "tag", "tag");
    refused(&["tag"], &materialize("gliner-deberta"), "gliner", "tag --labels LABELS");
    refused(&["tag", "--labels", "person"], &tagger, "tag", "tag");
    refused(&["rerank", "--query", "q"], &classifier, "classify", "classify");
    refused(&["tag"], &classifier, "classify", "classify");
}

#[test]
fn embed_splits_long_texts_into_chunks() {
    let model = Model::new("st-prompts");
    let cases = parse(&std::fs::read_to_string(sconce_testkit::golden("st-prompts").join("chunks.json")).unwrap());
    let arrays = sconce_testkit::Arrays::open(&sconce_testkit::golden("st-prompts").join("chunks.safetensors"));
    let [want, means] = ["embeddings", "means"].map(|name| arrays.f32(name).values);
    // The first four cases are of the default prompt and the default windows.
    let cases = &list(&cases)[..4];
    let texts: Vec<&str> = cases.iter().map(|case| text(&case["text"])).collect();
    let (mut places, mut lengths) = (Vec::new(), Vec::new());
    for (number, case) in cases.iter().enumerate() {
        for (index, (ids, range)) in list(&case["windows"]).iter().zip(list(&case["ranges"])).enumerate() {
            places.push(json!({"text": number, "index": index, "start": range[0], "end": range[1]}));
            lengths.push(list(ids).len());
        }
    }
    let all = parse(&out(&[&["embed", "-m", model.path(), "--json", "--chunk"], &texts[..]].concat(), b""));
    assert_eq!((&all["chunks"], &all["tokens"], &all["truncated"]), (&json!(places), &json!(lengths), &json!([])));
    let rows: Vec<f32> = list(&all["embeddings"]).iter().flat_map(numbers).collect();
    assert!(places.len() == 10 && worst(&rows, &want[..rows.len()]) < 1e-5);

    // One line per chunk, with the fields of its row.
    let rows: String = texts.iter().map(|text| json!({"id": text.len(), "text": text}).to_string() + "\n").collect();
    let dir = tempfile::tempdir().unwrap();
    let (from, to) = (dir.path().join("in.jsonl"), dir.path().join("out.jsonl"));
    std::fs::write(&from, rows).unwrap();
    let [from, to] = [&from, &to].map(|path| path.to_str().unwrap());
    out(&["embed", "-m", model.path(), "--chunk", "-f", from, "-o", to], b"");
    let lines: Vec<Value> = std::fs::read_to_string(to).unwrap().lines().map(parse).collect();
    for ((line, place), embedding) in lines.iter().zip(&places).zip(list(&all["embeddings"])) {
        let number = place["text"].as_u64().unwrap() as usize;
        assert_eq!((&line["text"], &line["id"]), (&json!(texts[number]), &json!(texts[number].len())));
        let chunk = json!({"index": place["index"], "start": place["start"], "end": place["end"]});
        assert_eq!((&line["chunk"], &line["embedding"]), (&chunk, embedding));
    }
    assert_eq!(lines.len(), places.len());

    let mean =
        parse(&out(&[&["embed", "-m", model.path(), "--json", "--chunk", "--chunk-mean"], &texts[..]].concat(), b""));
    let rows: Vec<f32> = list(&mean["embeddings"]).iter().flat_map(numbers).collect();
    assert!(rows.len() == 4 * 32 && worst(&rows, &means[..rows.len()]) < 1e-5 && mean.get("chunks").is_none());

    // Without it the warning names it.
    let o = sconce(&["embed", "-m", model.path(), texts[0]], b"");
    assert!(String::from_utf8_lossy(&o.stderr).contains("--chunk reads them whole"));
    let why = err(&["embed", "-m", model.path(), "--chunk=16", "--overlap", "9", texts[0]], b"");
    assert!(why.contains("9 is too many"), "{why}");
}
