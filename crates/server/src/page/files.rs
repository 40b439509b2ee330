//! The page's files. A test compares the list with the folder.

/// A file of the page.
pub(super) struct File {
    /// Its path below `/page/`.
    path: &'static str,
    pub(super) content: &'static [u8],
}

macro_rules! file {
    ($path:literal) => {
        File { path: $path, content: include_bytes!(concat!("../../page/", $path)) }
    };
}

/// The page itself.
pub(super) const INDEX: File = file!("index.html");

/// What it loads.
const FILES: &[File] = &[
    file!("api.js"),
    file!("chat/answer.js"),
    file!("chat/composer.js"),
    file!("chat/message.js"),
    file!("chat/panel.js"),
    file!("chat/settings.js"),
    file!("chat/sidebar.js"),
    file!("chat/storage.js"),
    file!("chat/tools.js"),
    file!("chat/transfer.js"),
    file!("chat/tree.js"),
    file!("dom.js"),
    file!("format.js"),
    file!("icon.svg"),
    file!("main.js"),
    file!("markdown/blocks.js"),
    file!("markdown/inline.js"),
    file!("markdown/stream.js"),
    file!("markdown/view.js"),
    file!("models/card.js"),
    file!("models/charts.js"),
    file!("models/metrics.js"),
    file!("models/panel.js"),
    file!("models/plan.js"),
    file!("panels.css"),
    file!("panels/classify.js"),
    file!("panels/embeddings.js"),
    file!("panels/form.js"),
    file!("panels/heatmap.js"),
    file!("panels/hits.js"),
    file!("panels/images.js"),
    file!("panels/map.js"),
    file!("panels/rerank.js"),
    file!("panels/search.js"),
    file!("panels/stores.js"),
    file!("panels/tag.js"),
    file!("panels/vectors.js"),
    file!("served.js"),
    file!("sse.js"),
    file!("style.css"),
];

/// The file at a path below `/page/`.
pub(super) fn find(path: &str) -> Option<&'static File> {
    FILES.iter().find(|file| file.path == path)
}

impl File {
    /// The media type, by the name's ending.
    pub(super) fn kind(&self) -> &'static str {
        match self.path.rsplit_once('.').map(|(_, ending)| ending) {
            Some("html") => "text/html; charset=utf-8",
            Some("css") => "text/css; charset=utf-8",
            Some("js") => "text/javascript; charset=utf-8",
            Some("svg") => "image/svg+xml",
            _ => "application/octet-stream",
        }
    }

    /// The entity tag: the same as long as the content is the same (FNV-1a).
    pub(super) fn etag(&self) -> String {
        let add = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        format!("\"{:016x}\"", self.content.iter().fold(0xcbf2_9ce4_8422_2325, add))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::path::Path;

    /// What the page may weigh, with all panels.
    const MOST_BYTES: usize = 250_000;

    #[test]
    fn list_has_exactly_the_files_of_the_folder() {
        fn walk(dir: &Path, root: &Path, found: &mut BTreeSet<String>) {
            for entry in std::fs::read_dir(dir).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    walk(&path, root, found);
                } else {
                    found.insert(path.strip_prefix(root).unwrap().to_str().unwrap().replace('\\', "/"));
                }
            }
        }
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("page");
        let mut there = BTreeSet::new();
        walk(&root, &root, &mut there);
        let listed: BTreeSet<String> = FILES.iter().chain([&INDEX]).map(|file| file.path.to_owned()).collect();
        assert_eq!(listed, there);
        assert_eq!(FILES.len() + 1, listed.len(), "a file is listed twice");
    }

    #[test]
    fn page_is_small_and_has_no_inline_code() {
        let bytes: usize = FILES.iter().chain([&INDEX]).map(|file| file.content.len()).sum();
        assert!(bytes < MOST_BYTES, "{bytes} bytes");
        let index = std::str::from_utf8(INDEX.content).unwrap();
        assert!(!index.contains("style=") && !index.contains(" on") && !index.contains("<script>"));
        for file in FILES.iter().filter(|file| file.path.ends_with(".js")) {
            let code = std::str::from_utf8(file.content).unwrap();
            // Words, not the comment that explains them.
            for banned in [".innerHTML", ".outerHTML", "insertAdjacentHTML", "document.write", "eval(", "DOMParser"] {
                assert!(!code.contains(banned), "{} uses {banned}", file.path);
            }
            // Every module is served; a wrong path would show in the browser only.
            for import in [" from \"", "import(\""].iter().flat_map(|start| code.split(start).skip(1)) {
                let import = import.split('"').next().unwrap();
                let mut target: Vec<&str> = file.path.split('/').collect();
                target.pop();
                for part in import.split('/') {
                    match part {
                        "." => {}
                        ".." => drop(target.pop()),
                        part => target.push(part),
                    }
                }
                assert!(find(&target.join("/")).is_some(), "{} imports {import}", file.path);
            }
        }
    }

    #[test]
    fn tags_differ_and_types_are_known() {
        let tags: BTreeSet<String> = FILES.iter().map(File::etag).collect();
        assert_eq!(tags.len(), FILES.len());
        assert!(FILES.iter().all(|file| file.kind() != "application/octet-stream"));
        assert!(find("../Cargo.toml").is_none() && find("").is_none());
    }
}
