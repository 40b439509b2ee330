//! Model references, directories, and the environment.

use super::*;

#[test]
fn references_parse_in_every_form() {
    let parse = |text: &str| text.parse::<Reference>().unwrap();
    let chosen = |repo: &str, revision: Option<&str>, choice: Choice| Reference::Hub {
        repo: repo.to_owned(),
        revision: revision.map(str::to_owned),
        choice,
    };
    let hub = |repo: &str, revision: Option<&str>| chosen(repo, revision, Choice::Usual);
    let tag = |tag: &str| Choice::Quantization(tag.to_owned());
    let file = |file: &str| Choice::File(file.to_owned());
    let wheel = |package: &str, version: Option<&str>, inside: Option<&str>| Reference::Wheel {
        package: package.to_owned(),
        version: version.map(str::to_owned),
        inside: inside.map(str::to_owned),
    };
    assert_eq!(parse("BAAI/bge-small-en-v1.5"), hub("BAAI/bge-small-en-v1.5", None));
    assert_eq!(parse("org/name@refs/pr/3"), hub("org/name", Some("refs/pr/3")));
    assert_eq!(parse("org/name@v1.0"), hub("org/name", Some("v1.0")));
    assert_eq!(parse("org/name:q4_k_m"), chosen("org/name", None, tag("q4_k_m")));
    assert_eq!(parse("org/name@refs/pr/3:UD-Q4_K_XL"), chosen("org/name", Some("refs/pr/3"), tag("UD-Q4_K_XL")));
    assert_eq!(parse("org/name/x.Q8_0.gguf"), chosen("org/name", None, file("x.Q8_0.gguf")));
    let part = "BF16/x y-00001-of-00002.gguf";
    assert_eq!(parse(&format!("org/name/{part}@v1/2")), chosen("org/name", Some("v1/2"), file(part)));
    assert_eq!(parse("org/name.gguf"), hub("org/name.gguf", None));
    assert_eq!(parse("bert-base-uncased"), hub("bert-base-uncased", None));
    assert_eq!(parse("gpt2@v1:Q8_0"), chosen("gpt2", Some("v1"), tag("Q8_0")));
    assert_eq!(parse("pip:m/a/x.gguf"), wheel("m", None, Some("a/x.gguf")));
    assert_eq!(parse("pip:some-model"), wheel("some-model", None, None));
    assert_eq!(parse("pip:some_model==1.0.post1"), wheel("some_model", Some("1.0.post1"), None));
    assert_eq!(parse("pip:m==1.0/a/b/"), wheel("m", Some("1.0"), Some("a/b")));
    assert_eq!(parse("minilm"), Reference::Short(&SHORT_NAMES[0]));
    assert_eq!(parse("smollm"), Reference::Short(&SHORT_NAMES[1]));
    let tmp = TempDir::new().unwrap();
    let here = tmp.path().to_str().unwrap();
    assert_eq!(parse(here), Reference::Dir(tmp.path().to_owned()));
    fs::write(tmp.path().join("x.GGUF"), "").unwrap();
    assert_eq!(parse(&format!("{here}/x.GGUF")), Reference::Gguf(tmp.path().join("x.GGUF")));
}

#[test]
fn invalid_references_are_rejected() {
    let forms = ["a directory", "org/name", "pip:NAME", "minilm"];
    for text in [
        "",
        " ",
        "x.gguf",
        "no--name",
        "a/b/c",
        "../../no-such",
        "..\\..",
        "a/../..",
        "org/..",
        "org/../x",
        "./nowhere",
        "/nowhere/at/all",
        "~/x",
        "-org/name",
        "org/-name",
        "org/na--me",
        "org/name@",
        "org/name@../x",
        "org/name@a//b",
        "org/name@-x",
        "o rg/name",
        "https://example.com/a",
        "C:\\models\\x",
        "org/na\0me",
        "pip:",
        "pip:-r",
        "pip:a b",
        "pip:x==",
        "pip:x==-1",
        "pip:x>=1",
        "pip:x@http://y",
        "pip:x/../y",
        "pip:x//y",
        "pip:x/",
        "pip:x/C:y",
        "örg/name",
        "org/näme",
        "org/name:",
        "org/name:-x",
        "org/name:a/b",
        "org/name:a:b",
        "org/name:Q4_K_M@main",
        "org/name/",
        "org/name/.gguf",
        "org/name/x/.gguf",
        "org/name//x.gguf",
        "org/name/../x.gguf",
        "org/name/x.gguf:Q4_K_M",
        "org/name@main/x.gguf",
        "./x.gguf",
        "/nowhere/x.gguf",
    ] {
        expect_error(text.parse::<Reference>(), &forms);
    }
    expect_error("./nowhere".parse::<Reference>(), &["no such directory"]);
    expect_error("./x.gguf".parse::<Reference>(), &["no such file"]);
    expect_error(
        "org/name:Q4_K_M@v1".parse::<Reference>(),
        &["before the quantization: org/name@revision:QUANTIZATION"],
    );
    expect_error("org/name@v1/x.gguf".parse::<Reference>(), &["after the file: org/name/file.gguf@revision"]);
    expect_error("org/name/x.gguf:Q8_0".parse::<Reference>(), &["the file alone"]);
    expect_error("org/name/x.txt".parse::<Reference>(), &["a .gguf file in it"]);
    let tmp = TempDir::new().unwrap();
    fs::write(tmp.path().join("f"), "").unwrap();
    expect_error(tmp.path().join("f").to_str().unwrap().parse::<Reference>(), &["it is a file but not a .gguf"]);
}

/// Any reference: nothing panics, and accepted ones contain no path traversal.
#[test]
fn arbitrary_references_never_panic_or_escape() {
    let pieces =
        ["..", "/", "\\", "@", "pip:", "==", "a", "-", ".", "~", "é", "\0", " ", "org/name", ":", "%2e", ".gguf"];
    check(20_000, &vec(select(pieces.to_vec()), 0..7), |pieces| {
        let text = pieces.concat();
        let parts = match text.parse() {
            Ok(Reference::Hub { repo, revision, choice }) => {
                let choice = match choice {
                    Choice::Usual => "x".to_owned(),
                    Choice::Quantization(tag) => tag,
                    Choice::File(file) => file,
                };
                vec![repo, revision.unwrap_or("x".to_owned()), choice]
            }
            Ok(Reference::Wheel { package, version, inside }) => {
                vec![package, version.unwrap_or("x".to_owned()), inside.unwrap_or("x".to_owned())]
            }
            _ => return,
        };
        for part in parts {
            let path = Path::new(&part);
            assert!(path.components().all(|c| matches!(c, std::path::Component::Normal(_))), "{text:?}");
            assert!(!part.starts_with('-') || text.contains("/-"), "{text:?}");
        }
    });
}

#[test]
fn directory_without_a_complete_model_is_rejected() {
    let tmp = TempDir::new().unwrap();
    let at = |name: &str| tmp.path().join(name);
    let dir = |name: &str| resolve(&Reference::Dir(at(name)), &options(&tmp), &());
    let write = |path: &str, text: &str| {
        fs::create_dir_all(at(path).parent().unwrap()).unwrap();
        fs::write(at(path), text).unwrap();
    };

    write("none/a.txt", "");
    expect_error(dir("none"), &["no config.json", "a.txt"]);
    write("bare/config.json", "{}");
    expect_error(dir("bare"), &["bare has no weights", "model.safetensors or pytorch_model.bin", "holds config.json"]);
    for pickle in ["model.ckpt", "model.pkl", "model.pth", "model.pt"] {
        write("pickle/config.json", "{}");
        write(&format!("pickle/{pickle}"), "");
        expect_error(dir("pickle"), &[&format!("only {pickle}"), "can run any code", "save_pretrained"]);
        fs::remove_dir_all(at("pickle")).unwrap();
    }
    // These file names are not those of model weights.
    write("bare/training_args.bin", "");
    write("bare/adapter_model.safetensors", "");
    write("bare/sparse_linear.pt", "");
    expect_error(dir("bare"), &["bare has no weights", "adapter_model.safetensors"]);
    write("shards/config.json", "{}");
    write("shards/model-1-of-2.safetensors", "");
    write(
        "shards/model.safetensors.index.json",
        r#"{"weight_map":{"a":"model-1-of-2.safetensors","b":"model-2-of-2.safetensors"}}"#,
    );
    expect_error(dir("shards"), &["model-2-of-2.safetensors: missing", "lists it"]);
    write("shards/model-2-of-2.safetensors", "");
    assert_eq!(dir("shards").unwrap().dir, at("shards"));

    write_files(&at("whole"), &model_files());
    let files = dir("whole").unwrap();
    assert_eq!(files.origin, Origin::Directory(at("whole")));
    assert!(files.origin.to_string().starts_with("directory "));
    fs::remove_file(at("whole/2_Dense/model.safetensors")).unwrap();
    dir("whole").unwrap();
    fs::remove_file(at("whole/2_Dense/pytorch_model.bin")).unwrap();
    expect_error(dir("whole"), &["2_Dense has no weights", "holds config.json"]);
    fs::remove_file(at("whole/1_Pooling/config.json")).unwrap();
    expect_error(dir("whole"), &["1_Pooling/config.json: missing", "modules.json"]);
    for path in ["../../etc", "/etc", "/", "..", "./..", "a/./b", ".//"] {
        write("whole/modules.json", &format!(r#"[{{"path":"{path}","type":"x"}}]"#));
        expect_error(dir("whole"), &["leads outside"]);
    }
    expect_error(dir("nowhere"), &["nowhere"]);
}

/// Broken JSON in a model directory is an error, not a crash.
#[test]
fn mutated_json_never_panics() {
    let tmp = TempDir::new().unwrap();
    let mut files = model_files();
    files.remove("model.safetensors");
    files.insert("model-1-of-1.safetensors".to_owned(), Vec::new());
    files.insert(
        "model.safetensors.index.json".to_owned(),
        br#"{"metadata":{},"weight_map":{"a":"model-1-of-1.safetensors"}}"#.to_vec(),
    );
    write_files(tmp.path(), &files);
    let reference = Reference::Dir(tmp.path().to_owned());
    resolve(&reference, &options(&tmp), &()).unwrap();
    let refused = Cell::new(0);
    let damage = mutations(1..=4, b"\"[]{}:,./\\\x00\xff", &[b"null", b"[]", b"..", b"/", b"\"\""]);
    check(600, &(select(&["modules.json", "model.safetensors.index.json"]), damage), |(name, damage)| {
        let _damaged = DamagedFile::new(&tmp.path().join(name), &damage, usize::MAX);
        refused.set(refused.get() + usize::from(resolve(&reference, &options(&tmp), &()).is_err()));
    });
    assert!(refused.get() > 300, "{}", refused.get());
}

#[test]
fn options_read_environment_like_huggingface_hub() {
    let with = |vars: &'static [(&'static str, &'static str)]| {
        let var = |name: &str| vars.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
        Options::from_vars(&var, Some(Path::new("/h"))).unwrap()
    };
    let plain = with(&[]);
    assert_eq!(plain.hub_cache, Path::new("/h/.cache/huggingface/hub"));
    assert_eq!(plain.endpoint, "https://huggingface.co");
    assert!(!plain.offline && plain.token.is_none());
    let ours = if cfg!(target_os = "macos") { "/h/Library/Caches/sconce" } else { "/h/.cache/sconce" };
    assert_eq!(plain.cache, Path::new(ours));
    let xdg = with(&[("XDG_CACHE_HOME", "/x"), ("HF_HOME", "")]);
    assert_eq!((&*xdg.hub_cache, &*xdg.cache), (Path::new("/x/huggingface/hub"), Path::new("/x/sconce")));
    assert_eq!(with(&[("HF_HOME", "/y")]).hub_cache, Path::new("/y/hub"));
    let all = with(&[
        ("HF_HOME", "/y"),
        ("HF_HUB_CACHE", "~/z"),
        ("SCONCE_CACHE", "/s"),
        ("HF_TOKEN", " hf_secret\n"),
        ("HF_ENDPOINT", "https://mirror.example/hf/"),
        ("HF_HUB_OFFLINE", "Yes"),
    ]);
    assert_eq!((&*all.hub_cache, &*all.cache), (Path::new("/h/z"), Path::new("/s")));
    assert_eq!(all.endpoint, "https://mirror.example/hf");
    assert!(all.offline);
    assert_eq!(all.token.as_ref().unwrap().bearer(), "Bearer hf_secret");
    assert!(!format!("{all:?}").contains("secret"));
    for no in ["0", "false", "no", ""] {
        let var = |name: &str| (name == "HF_HUB_OFFLINE").then(|| no.to_owned());
        assert!(!Options::from_vars(&var, Some(Path::new("/h"))).unwrap().offline);
    }
    expect_error(Options::from_vars(&|_| None, None), &["no home directory", "HF_HUB_CACHE"]);

    let tmp = TempDir::new().unwrap();
    fs::write(tmp.path().join("token"), "hf_file\n").unwrap();
    let var = |name: &str| (name == "HF_HOME").then(|| tmp.path().display().to_string());
    assert_eq!(Options::from_vars(&var, None).map(|o| o.token.unwrap().bearer()).ok(), None);
    let var = |name: &str| ["HF_HOME", "SCONCE_CACHE"].contains(&name).then(|| tmp.path().display().to_string());
    assert_eq!(Options::from_vars(&var, None).unwrap().token.unwrap().bearer(), "Bearer hf_file");
}
