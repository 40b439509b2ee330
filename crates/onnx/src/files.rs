//! The `.onnx` file in a model's folder, and the files beside it that hold its weights.
#![allow(unsafe_code, reason = "mapping a file")]

use crate::header::{self, External, Port};
use memmap2::Mmap;
use sconce_engine::{Element, FileError, GraphPort, GraphSummary};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Component, Path, PathBuf};

/// The usual places: that of a plain export, and that of Optimum and of models on the hub.
const USUAL: [&str; 2] = ["model.onnx", "onnx/model.onnx"];
/// Protobuf cannot represent more; larger models have their weights in other files.
const LARGEST: u64 = 2 << 30;

/// Marks a location that ONNX Runtime takes for an address in memory instead of a file.
const ADDRESS: &str = "_ORT_MEM_ADDR_";

/// Whether the folder has an ONNX model, under any name.
pub(crate) fn finds(root: &Path) -> bool {
    !names(root).is_empty()
}

/// Reads the head of the model in a folder: the usual file, or the one that the user names.
pub(crate) fn inspect(root: &Path, file: Option<&str>) -> Result<GraphSummary, FileError> {
    let path = choose(root, file)?;
    let bytes = map(&path)?;
    let header = header::parse(&bytes).map_err(|what| FileError::new(&path, format!("{what}; fetch it again")))?;
    let external = external_bytes(&path, &header.external)?;
    let ports = |ports: &[Port]| ports.iter().map(port).collect();
    Ok(GraphSummary {
        bytes: (bytes.len() as u64).saturating_add(external),
        inputs: ports(&header.inputs),
        outputs: ports(&header.outputs),
        is_batch_dependent: header.is_dynamically_quantized(),
        operators: header.operators,
        path,
    })
}

fn choose(root: &Path, file: Option<&str>) -> Result<PathBuf, FileError> {
    if let Some(file) = file {
        if !is_inside(Path::new(file)) {
            return Err(FileError::new(root, format!("`{file}` leads out of the model's folder")));
        }
        let found = [root.join(file), root.join("onnx").join(file)].into_iter().find(|path| path.is_file());
        let there = || match &names(root)[..] {
            [] => "it has no ONNX file".into(),
            names => format!("it has {}", names.join(", ")),
        };
        return found.ok_or_else(|| FileError::new(root, format!("no {file}; {}", there())));
    }
    let usual = USUAL.map(|name| root.join(name)).into_iter().find(|path| path.is_file());
    if let Some(usual) = usual {
        return Ok(usual);
    }
    let what = match &names(root)[..] {
        [only] => return Ok(root.join(only)),
        [] => "no ONNX model: no model.onnx and no onnx/model.onnx".into(),
        several => format!("no model.onnx; choose one of its files with --onnx-file: {}", several.join(", ")),
    };
    Err(FileError::new(root, what))
}

/// The ONNX files of a folder.
fn names(root: &Path) -> Vec<String> {
    let mut names = Vec::new();
    for (folder, prefix) in [(root.to_path_buf(), ""), (root.join("onnx"), "onnx/")] {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        let all = entries.filter_map(|entry| entry.file_name().into_string().ok());
        names.extend(all.filter(|name| name.ends_with(".onnx")).map(|name| format!("{prefix}{name}")));
    }
    names.sort();
    names
}

fn is_inside(path: &Path) -> bool {
    path.components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir))
}

fn map(path: &Path) -> Result<Mmap, FileError> {
    let file = File::open(path).map_err(|e| FileError::new(path, e))?;
    let bytes = file.metadata().map_err(|e| FileError::new(path, e))?.len();
    if bytes > LARGEST {
        return Err(FileError::new(path, format!("{bytes} bytes; an ONNX file has at most {LARGEST}")));
    }
    // SAFETY: the map is only read. Truncating the file while we run can make reads fail with
    // SIGBUS, as with every mapped file of weights.
    unsafe { Mmap::map(&file) }.map_err(|e| FileError::new(path, e))
}

/// Checks that the weights in other files are there, inside the model's folder, and returns the
/// bytes of these files.
fn external_bytes(path: &Path, external: &[External]) -> Result<u64, FileError> {
    let folder = path.parent().unwrap_or(Path::new("."));
    // Several names may lead to one file.
    let (mut files, mut sizes) = (BTreeMap::<&str, u64>::new(), BTreeMap::<PathBuf, u64>::new());
    for External { location, offset, length } in external {
        let size = match files.get(location.as_str()) {
            Some(size) => *size,
            None => {
                let (file, size) = external_file(folder, location).map_err(|what| FileError::new(path, what))?;
                files.insert(location, size);
                sizes.insert(file, size);
                size
            }
        };
        if offset.checked_add(*length).is_none_or(|end| end > size) {
            let what =
                format!("weights at {offset} of {location}, {length} bytes, and that file has {size}: truncated");
            return Err(FileError::new(path, what));
        }
    }
    Ok(sizes.values().fold(0, |sum, size| sum.saturating_add(*size)))
}

/// A file beside the graph, without links, and its size. It must not leave the folder, also not by a
/// link.
fn external_file(folder: &Path, location: &str) -> Result<(PathBuf, u64), String> {
    let outside = || format!("its weights are in `{location}`, outside of its folder, which is not read");
    if !is_inside(Path::new(location)) || location.contains(ADDRESS) {
        return Err(outside());
    }
    let file = folder.join(location);
    let missing = |e| format!("its weights are in {location}, which cannot be read: {e}");
    let real = file.canonicalize().map_err(missing)?;
    // Files of the hub's cache are links to a folder of blobs, so the cache's own layout is allowed.
    let is_blob = |folder: &Path| {
        let snapshot = folder.ancestors().find(|a| a.parent().is_some_and(|p| p.ends_with("snapshots")));
        let blobs = snapshot.and_then(|s| s.parent()?.parent()).map(|repo| repo.join("blobs"));
        blobs.and_then(|blobs| blobs.canonicalize().ok()).is_some_and(|blobs| real.starts_with(blobs))
    };
    let inside = folder.canonicalize().map_err(missing)?;
    if !real.starts_with(&inside) && !is_blob(folder) {
        return Err(outside());
    }
    let size = real.metadata().map_err(missing)?.len();
    Ok((real, size))
}

fn port(port: &Port) -> GraphPort {
    let dims = port.dims.iter().map(|dim| dim.map(|n| usize::try_from(n).unwrap_or(usize::MAX))).collect();
    GraphPort { name: port.name.clone(), element: Element::from_onnx(port.element), dims }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn external(location: &str, offset: u64, length: u64) -> External {
        External { location: location.into(), offset, length }
    }

    #[test]
    fn external_weights_stay_inside_the_folder_and_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("model");
        fs::create_dir(&folder).unwrap();
        fs::write(folder.join("data"), [0; 100]).unwrap();
        fs::write(dir.path().join("secret"), [0; 100]).unwrap();
        let graph = folder.join("model.onnx");
        let sum = |external: &[External]| external_bytes(&graph, external);
        assert_eq!(sum(&[external("data", 0, 60), external("./data", 60, 40)]).unwrap(), 100);
        let refused = |location: &str, offset: u64, length: u64| {
            sum(&[external(location, offset, length)]).unwrap_err().to_string()
        };
        assert!(refused("data", 60, 41).contains("truncated"));
        assert!(refused("data", u64::MAX, 2).contains("truncated"));
        assert!(refused("nothing", 0, 1).contains("cannot be read"));
        // The library takes the last name for an address in memory.
        for outside in ["../secret", "/etc/passwd", "a/../../secret", "*/_ORT_MEM_ADDR_/*"] {
            assert!(refused(outside, 0, 1).contains("outside"), "{outside}");
        }
    }

    #[cfg(unix)]
    #[test]
    fn links_out_of_the_folder_are_refused_except_those_of_the_hub_cache() {
        let dir = tempfile::tempdir().unwrap();
        let (snapshot, blobs) = (dir.path().join("snapshots/abc"), dir.path().join("blobs"));
        fs::create_dir_all(snapshot.join("onnx")).unwrap();
        fs::create_dir(&blobs).unwrap();
        fs::write(blobs.join("1"), [0; 10]).unwrap();
        fs::write(dir.path().join("secret"), [0; 10]).unwrap();
        std::os::unix::fs::symlink("../../../blobs/1", snapshot.join("onnx/blob")).unwrap();
        std::os::unix::fs::symlink("../../../secret", snapshot.join("onnx/leak")).unwrap();
        let graph = snapshot.join("onnx/model.onnx");
        assert_eq!(external_bytes(&graph, &[external("blob", 0, 10)]).unwrap(), 10);
        assert!(external_bytes(&graph, &[external("leak", 0, 10)]).unwrap_err().to_string().contains("outside"));
    }

    #[test]
    fn a_file_that_the_user_names_is_found_in_both_folders_and_nowhere_else() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("onnx")).unwrap();
        fs::write(dir.path().join("onnx/model_quantized.onnx"), "").unwrap();
        assert!(finds(dir.path()) && !finds(&dir.path().join("onnx/onnx")));
        // The only file needs no name.
        assert!(choose(dir.path(), None).unwrap().ends_with("onnx/model_quantized.onnx"));
        fs::write(dir.path().join("onnx/model_fp16.onnx"), "").unwrap();
        let unnamed = choose(dir.path(), None).unwrap_err().to_string();
        assert!(unnamed.contains("onnx/model_quantized.onnx") && unnamed.contains("--onnx-file"), "{unnamed}");
        for name in ["onnx/model_quantized.onnx", "model_quantized.onnx"] {
            assert!(choose(dir.path(), Some(name)).unwrap().ends_with("onnx/model_quantized.onnx"));
        }
        assert!(choose(dir.path(), Some("../model.onnx")).unwrap_err().to_string().contains("leads out"));
        fs::write(dir.path().join("onnx/model.onnx"), "").unwrap();
        assert!(finds(dir.path()) && choose(dir.path(), None).unwrap().ends_with("onnx/model.onnx"));
    }
}
