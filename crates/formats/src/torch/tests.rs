//! Checkpoints that torch wrote (`goldens/make.py`), and hostile ones.

mod legacy;

use super::{Dtype, Entry, index};
use proptest::prelude::{any, prop_oneof};
use proptest::sample::Index;
use sconce_testkit::{check, mutations, mutations_in_place};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::path::PathBuf;

fn goldens() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("src/torch/goldens")
}

fn golden(file: &str) -> Vec<u8> {
    std::fs::read(goldens().join(file)).unwrap()
}

fn expected() -> BTreeMap<String, Vec<Vec<String>>> {
    let mut files = BTreeMap::<String, Vec<Vec<String>>>::new();
    for line in std::fs::read_to_string(goldens().join("expected.txt")).unwrap().lines() {
        let (file, rest) = line.split_once('\t').unwrap();
        files.entry(file.into()).or_default().push(rest.split('\t').map(String::from).collect());
    }
    files
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// Names, dtypes, shapes, order and every byte equal torch's; refusals give the right reason.
#[test]
fn index_matches_torch_goldens() {
    let files = expected();
    assert!(files.len() > 30);
    for (file, lines) in files {
        let bytes = golden(&file);
        let found = index(&bytes);
        if lines[0][0] == "refused" {
            let why = found.expect_err(&file);
            assert!(why.contains(&lines[0][1]), "{file}: {why}");
            continue;
        }
        let found: Vec<Vec<String>> = found
            .unwrap_or_else(|why| panic!("{file}: {why}"))
            .into_iter()
            .map(|(name, Entry { dtype, dims, bytes: at, .. })| {
                let dims: Vec<String> = dims.iter().map(usize::to_string).collect();
                vec![name, format!("{dtype:?}"), dims.join(","), hex(&bytes[at])]
            })
            .collect();
        assert_eq!(found, lines, "{file}");
    }
}

#[test]
fn shared_storages_are_not_copied() {
    let found: BTreeMap<_, _> = index(&golden("shared.pt")).unwrap().into_iter().collect();
    assert_eq!(found["whole"], found["tied"]);
    assert_eq!(found["rows"].bytes.start, found["whole"].bytes.start + 2 * 4 * 4);
}

/// A minimal zip of stored entries.
fn zip(entries: &[(&str, &[u8])]) -> Vec<u8> {
    let (mut file, mut list) = (Vec::new(), Vec::new());
    for (name, body) in entries {
        let (at, size, named) =
            ((file.len() as u32).to_le_bytes(), (body.len() as u32).to_le_bytes(), (name.len() as u16).to_le_bytes());
        let sizes = [&size[..], &size, &named, &[0; 2]].concat();
        file.extend([b"PK\x03\x04".as_slice(), &[0; 14], &sizes, name.as_bytes(), body].concat());
        list.extend([b"PK\x01\x02".as_slice(), &[0; 16], &sizes, &[0; 10], &at, name.as_bytes()].concat());
    }
    let (size, at, count) = (list.len() as u32, file.len() as u32, (entries.len() as u16).to_le_bytes());
    file.extend(&list);
    file.extend(
        [b"PK\x05\x06\0\0\0\0".as_slice(), &count, &count, &size.to_le_bytes(), &at.to_le_bytes(), &[0; 2]].concat(),
    );
    file
}

/// A checkpoint of this pickle, and a storage of 24 bytes.
fn checkpoint(pickle: &[u8]) -> Vec<u8> {
    zip(&[("a/data.pkl", pickle), ("a/data/0", &[7; 24])])
}

fn int(n: i64) -> Vec<u8> {
    [&[0x8a, 8], n.to_le_bytes().as_slice()].concat()
}

fn text(text: &str) -> Vec<u8> {
    [b"X", (text.len() as u32).to_le_bytes().as_slice(), text.as_bytes()].concat()
}

fn ints(list: &[i64]) -> Vec<u8> {
    [b"(".to_vec(), list.iter().flat_map(|&n| int(n)).collect(), b"t".to_vec()].concat()
}

/// A tensor of floats in the storage `data/KEY`.
fn tensor(key: &str, length: i64, offset: i64, dims: &[i64], strides: &[i64]) -> Vec<u8> {
    [
        b"ctorch._utils\n_rebuild_tensor_v2\n((".to_vec(),
        text("storage"),
        b"ctorch\nFloatStorage\n".to_vec(),
        text(key),
        text("cpu"),
        int(length),
        b"tQ".to_vec(),
        int(offset),
        ints(dims),
        ints(strides),
        b"\x89}tR".to_vec(),
    ]
    .concat()
}

/// Replaces the first `old` by `new`.
fn replace_first(mut bytes: Vec<u8>, old: &[u8], new: &[u8]) -> Vec<u8> {
    let at = bytes.windows(old.len()).position(|w| w == old).unwrap();
    bytes.splice(at..at + old.len(), new.iter().copied());
    bytes
}

/// A pickle of a dict in which `w` is `value`.
fn dict(value: &[u8]) -> Vec<u8> {
    [b"\x80\x02}", text("w").as_slice(), value, b"s."].concat()
}

#[track_caller]
fn assert_error(bytes: &[u8], words: &str) {
    match index(bytes) {
        Err(why) => assert!(why.contains(words), "{why}"),
        Ok(found) => panic!("expected an error with {words:?}, found {found:?}"),
    }
}

#[test]
fn test_builders_make_valid_files() {
    let bytes = checkpoint(&dict(&tensor("0", 6, 2, &[2, 2], &[2, 1])));
    let found = index(&bytes).unwrap();
    let start = bytes.windows(24).position(|w| w == [7; 24]).unwrap();
    assert_eq!(
        found,
        [(
            "w".into(),
            Entry { dtype: Dtype::F32, dims: vec![2, 2], bytes: start + 8..start + 24, column_major: false }
        )]
    );
}

#[test]
fn pickles_cannot_call_functions_or_make_objects() {
    let assert_value_error = |code: &[u8], words: &str| assert_error(&checkpoint(&dict(code)), words);
    assert_value_error(b"cos\nsystem\n(X\x02\0\0\0lstR", "names os.system");
    assert_value_error(b"\x8c\x02os\x8c\x06system\x93(X\x02\0\0\0lstR", "names os.system");
    assert_value_error(b"(X\x02\0\0\0lsios\nsystem\n", "makes an object of os.system (INST)");
    assert_value_error(b"(ccollections\nOrderedDict\no", "OBJ");
    assert_value_error(b"ccollections\nOrderedDict\n)\x81", "NEWOBJ");
    assert_value_error(b"ccollections\nOrderedDict\n)}\x92", "NEWOBJ");
    assert_value_error(b"\x82\x01", "opcode 0x82");
    assert_value_error(b"Pabc\n", "opcode 0x50");
    assert_value_error(b"ctorch\nFloatStorage\n)R", "REDUCE");
    assert_value_error(b"ccollections\nOrderedDict\nK\x01\x85R", "REDUCE");
    assert_value_error(b"ctorch._utils\n_rebuild_parameter\nK\x01\x85R", "REDUCE");
    assert_value_error(b"X\x01\0\0\0f)R", "REDUCE");
    assert_value_error(b"K\x01}b", "BUILD");
    assert_value_error(&[tensor("0", 6, 0, &[6], &[1]), b"}b".to_vec()].concat(), "BUILD");
    assert_value_error(b"]K\x01K\x02s", "SETITEMS");
    assert_value_error(b"ctorch\n\n", "names torch.");
    // Names match whole; in messages they are short and on one line.
    assert_value_error(b"ctorch\nFloatStorages\n", "names torch.FloatStorages");
    assert_value_error(&[b"cev\x1bil\n".as_slice(), &[b'x'; 5000], b"\n"].concat(), "names ev\\u{1b}il.xxx");
    let why = index(&checkpoint(&dict(&[b"ca\n".as_slice(), &[b'x'; 5000], b"\n"].concat()))).unwrap_err();
    assert!(why.len() < 500, "{why}");
}

#[test]
fn shapes_must_fit_their_storages() {
    let assert_value_error = |t: Vec<u8>, words: &str| assert_error(&checkpoint(&dict(&t)), words);
    let byte_length = |t: Vec<u8>| index(&checkpoint(&dict(&t))).unwrap()[0].1.bytes.len();
    assert_eq!(byte_length(tensor("0", 6, 5, &[1], &[1])), 4);
    assert_value_error(tensor("0", 6, 6, &[1], &[1]), "does not fit its storage of 6");
    assert_value_error(tensor("0", 6, 1, &[2, 3], &[3, 1]), "does not fit");
    assert_value_error(tensor("0", 5, 0, &[6], &[1]), "does not fit its storage of 5");
    assert_value_error(tensor("0", 7, 0, &[1], &[1]), "should have 7 elements of 4 bytes, the file has 24");
    assert_value_error(tensor("0", i64::MAX, 0, &[1], &[1]), "should have");
    assert_value_error(tensor("0", 6, i64::MAX, &[1], &[1]), "does not fit");
    assert_value_error(tensor("0", 6, i64::MAX / 4, &[1], &[1]), "does not fit");
    assert_value_error(tensor("0", 6, -1, &[1], &[1]), "negative");
    assert_value_error(tensor("0", -6, 0, &[1], &[1]), "negative");
    assert_value_error(tensor("0", 6, 0, &[-1], &[1]), "negative");
    assert_value_error(tensor("0", 6, 0, &[1 << 62, 4], &[4, 1]), "larger than any memory");
    assert_value_error(tensor("0", 6, 0, &[i64::MAX, i64::MAX, 0], &[0, 0, 0]), "larger than any memory");
    assert_value_error(tensor("0", 6, 0, &[0, i64::MAX, i64::MAX], &[0, 0, 0]), "larger than any memory");
    assert_value_error(tensor("0", 6, 0, &[1 << 40], &[1]), "does not fit");
    // A transposed matrix is accepted.
    assert!(index(&checkpoint(&dict(&tensor("0", 6, 0, &[2, 3], &[1, 2])))).is_ok_and(|found| found[0].1.column_major));
    assert_value_error(tensor("0", 24, 0, &[2, 3, 4], &[1, 2, 6]), "gaps or permuted axes");
    assert_value_error(tensor("0", 6, 0, &[2, 3], &[1]), "do not match");
    assert_value_error(tensor("0", 6, 0, &[1; 9], &[1; 9]), "too many axes");
    assert_eq!(byte_length(tensor("0", 6, 0, &[1, 1, 6, 1], &[0, 99, 1, i64::MAX])), 24);
    assert_eq!(byte_length(tensor("0", 6, 0, &[], &[])), 4);
    assert_eq!(byte_length(tensor("0", 6, 6, &[0, 5], &[5, 1])), 0);
    // Integers use as few bytes as they need, with the sign in the last.
    let offset = |digits: &[u8]| replace_first(tensor("0", 6, 77, &[1], &[1]), &int(77), &[&[0x8a], digits].concat());
    assert_eq!(byte_length(offset(&[0])) + byte_length(offset(&[1, 5])) + byte_length(offset(&[2, 5, 0])), 12);
    assert_value_error(offset(&[1, 0x80]), "negative");
    assert_value_error(offset(&[2, 0x80, 0]), "does not fit");
    assert_value_error(offset(&[9, 0, 0, 0, 0, 0, 0, 0, 0, 1]), "not built as torch.save builds a tensor");
    let retyped =
        |name: &str| replace_first(tensor("0", 6, 0, &[6], &[1]), b"}tR", format!("}}ctorch\n{name}\ntR").as_bytes());
    assert_eq!(byte_length(retyped("float32")), 24);
    assert_value_error(retyped("float16"), "it and its storage differ in format");
    let untyped = |t: Vec<u8>| replace_first(t, b"FloatStorage", b"UntypedStorage");
    assert_value_error(untyped(tensor("0", 24, 0, &[6], &[1])), "no format");
    assert_eq!(byte_length(replace_first(untyped(retyped("float32")), &int(6), &int(24))), 24);
    assert_value_error(tensor("1", 6, 0, &[6], &[1]), "data/1, are missing");
    assert_value_error(tensor("../0", 6, 0, &[6], &[1]), "are missing");
    assert_value_error(tensor(&"0".repeat(65), 6, 0, &[6], &[1]), "torch.save would not give");
}

#[test]
fn pickle_bombs_stay_within_limits() {
    // (t, t) of (t, t) of …: 2^60000 leaves if walked.
    let doubled = [b")\x94".to_vec(), b"0h\0h\0\x86q\0".repeat(60_000)].concat();
    let good = tensor("0", 6, 0, &[6], &[1]);
    let beside =
        |junk: &[u8]| checkpoint(&[b"}", text("junk").as_slice(), junk, b"s", &text("w"), &good, b"s."].concat());
    assert_eq!(index(&beside(&doubled)).unwrap().len(), 1);
    // Deep tuples, nested lists, dicts that contain themselves.
    assert_eq!(index(&beside(&[b")".to_vec(), b"\x85".repeat(1_000_000)].concat())).unwrap().len(), 1);
    assert_eq!(index(&beside(&[b"]".repeat(200_000), b"a".repeat(199_999)].concat())).unwrap().len(), 1);
    assert_eq!(index(&beside(&[b"(".repeat(200_000), b"t".repeat(200_000)].concat())).unwrap().len(), 1);
    assert_error(&checkpoint(&[b"}\x94", text("model").as_slice(), b"h\0s."].concat()), "holds no state dict");
    // More values than any state dict has; a memo number far ahead.
    assert_error(&beside(&b"N".repeat(2_000_000)), "more than 1572864 values");
    assert_error(&beside(&b"(".repeat(2_000_000)), "more than 1572864 values");
    assert_error(&beside(&[b")".to_vec(), b"\x94".repeat(2_000_000)].concat()), "more than 1572864 values");
    assert_error(&beside(b"Nr\xff\xff\xff\xff"), "makes no sense");
    assert_error(&beside(b"h\xff"), "makes no sense");
    assert_error(&beside(b"X\xff\xff\xff\xff"), "makes no sense");
    assert_error(&beside(&[b"\x8d".as_slice(), &[0xff; 8]].concat()), "makes no sense");
    assert_error(&checkpoint(&vec![0x80; (64 << 20) + 1]), "has a pickle of 67108865 bytes");
    // One long name repeated; one tensor under too many names.
    let long = [
        b"}(".to_vec(),
        text(&"n".repeat(1 << 16)),
        b"\x94".to_vec(),
        good.clone(),
        b"\x94".to_vec(),
        b"h\0h\x01".repeat(5_000),
        b"u.".to_vec(),
    ];
    assert_error(&checkpoint(&long.concat()), "holds two tensors of the name nnn");
    let names = (0..70_000).flat_map(|i| [text(&i.to_string()), b"h\0".to_vec()].concat()).collect();
    assert_error(
        &checkpoint(&[b"}(".to_vec(), text("w"), good, b"\x94".to_vec(), names, b"u.".to_vec()].concat()),
        "more than 65536",
    );
}

#[test]
fn stack_underflow_is_an_error() {
    for code in [
        b".".as_slice(),
        b"0.",
        b"1.",
        b"t.",
        b"\x85.",
        b"s.",
        b"u.",
        b"a.",
        b"e.",
        b"R.",
        b"b.",
        b"Q.",
        b"\x93.",
        b"\x94.",
        b"q\0.",
        b"N(.",
        b"NN(\x86.",
        b"N(\x94.",
        b"N(0R.",
        b"}(NNs.",
        b"}((NNs.",
        b"}(Nu.",
        b"(u.",
        b"N(\x85.",
        b"]N(a.",
        b"",
    ] {
        assert!(index(&checkpoint(code)).is_err(), "{code:?}");
    }
}

#[test]
fn invalid_zip_containers_are_rejected() {
    let pickle = dict(&tensor("0", 6, 0, &[6], &[1]));
    let sound = checkpoint(&pickle);
    assert_eq!(index(&[sound.as_slice()].concat()).unwrap().len(), 1);
    let nth = |bytes: &[u8], n: usize| sound.windows(4).enumerate().filter(|(_, w)| *w == bytes).nth(n).unwrap().0;
    let (local, central) = (|n| nth(b"PK\x03\x04", n), |n| nth(b"PK\x01\x02", n));
    let patched = |at: usize, with: &[u8]| {
        let mut bytes = sound.clone();
        bytes[at..at + with.len()].copy_from_slice(with);
        bytes
    };
    assert_error(&patched(central(1) + 10, &[8]), "a/data/0 compressed");
    assert_error(&patched(central(1) + 8, &[1]), "a/data/0 encrypted");
    assert_error(&patched(central(1) + 20, &[23]), "outside the file");
    assert_error(&patched(central(1) + 24, &[23]), "outside the file");
    assert_error(&patched(central(1) + 20, &[25, 0, 0, 0, 25]), "outside the file");
    assert_error(&patched(central(1) + 20, &[0xfe, 0xff, 0xff, 0xff, 0xfe, 0xff, 0xff, 0xff]), "outside the file");
    assert_error(&patched(central(1) + 20, &[0xff; 8]), "cut short");
    assert_error(&patched(central(1) + 42, &[0xf0, 0xff, 0xff, 0xff]), "cut short");
    assert_error(&patched(central(1) + 42, &0_u32.to_le_bytes()), "something else in its local header");
    assert_error(&patched(local(1) + 30, b"b"), "something else in its local header");
    assert_error(&patched(local(1) + 28, &[1]), "outside the file");
    assert_error(&patched(central(0) + 20, &[200, 1, 0, 0, 200, 1]), "outside the file");
    let longer = (pickle.len() as u32 + 40).to_le_bytes();
    assert_error(&patched(central(0) + 20, &[longer, longer].concat()), "entries that overlap");
    assert_error(&patched(sound.len() - 22 + 12, &[0xff]), "cut short");
    assert_error(&patched(sound.len() - 22 + 16, &[0xff; 4]), "cut short");
    assert_error(
        &zip(&[("a/data.pkl", &pickle), ("a/data/0", &[7; 24]), ("a/data/0", &[8; 24])]),
        "two entries of the name a/data/0",
    );
    assert_error(&zip(&[("data.pkl", &pickle)]), "a file without a folder");
    assert_error(&zip(&[("b/x", b""), ("a/data.pkl", &pickle)]), "without data.pkl");
    assert_error(&zip(&[]), "not a checkpoint of torch.save");
    assert_error(b"", "not a checkpoint of torch.save");
    assert_error(b"version https://git-lfs.github.com/spec/v1\n", "fetch it again");
    // A comment after the end record is allowed, other trailing bytes are not.
    let mut commented = patched(sound.len() - 2, &[5, 0]);
    commented.extend(b"PK\x05\x06!");
    assert_eq!(index(&commented).unwrap().len(), 1);
    commented.push(b'!');
    assert_error(&commented, "cut short");
}

/// zip64 records: torch always writes them, and needs them beyond 4 GiB.
#[test]
fn zip64_offsets_outside_the_file_are_rejected() {
    let sound = golden("zip64.pt");
    assert!(sound.windows(4).any(|w| w == [0xff; 4]), "the golden has no zip64 sizes");
    let torch = golden("module.pt");
    let end = torch.windows(4).position(|w| w == b"PK\x06\x06").unwrap();
    for (at, size) in [(end + 40, 8), (end + 48, 8), (torch.len() - 22 - 20 + 8, 8)] {
        let mut bytes = torch.clone();
        bytes[at..at + size].fill(0xff);
        assert_error(&bytes, "cut short");
        bytes[at + size - 1] = 0x7f;
        assert_error(&bytes, "cut short");
    }
}

#[test]
fn truncated_files_are_rejected() {
    for file in expected().into_keys() {
        let bytes = golden(&file);
        // All of `many.pt` would take too long; only its pickle differs.
        for end in (0..bytes.len()).step_by(if file == "many.pt" { 97 } else { 1 }) {
            assert!(index(&bytes[..end]).is_err(), "{file} cut at {end}");
        }
    }
    for pickle in pickles() {
        for end in 0..pickle.len() {
            assert!(
                index(&zip(&[("a/data.pkl", &pickle[..end]), ("a/data/0", &[7; 24])])).is_err(),
                "pickle cut at {end}"
            );
        }
    }
}

/// The pickles of the valid zips.
fn pickles() -> Vec<Vec<u8>> {
    let good = expected().into_iter().filter(|(file, lines)| lines[0][0] != "refused" && file != "many.pt");
    good.map(|(file, _)| golden(&file))
        .filter(|bytes| super::zip::is_one(bytes))
        .map(|bytes| bytes[super::zip::entries(&bytes).unwrap()["data.pkl"].clone()].to_vec())
        .collect()
}

/// Bytes and opcodes of pickles that mutations use.
const VALUES: &[u8] = b"\x00\x01\x7f\x80\xff";
const OPCODES: &[&[u8]] = &[
    b"(", b")", b"0", b".", b"1", b"N", b"K", b"Q", b"R", b"a", b"b", b"c", b"e", b"h", b"j", b"q", b"s", b"t", b"u",
    b"}", b"]", b"\x85", b"\x86", b"\x87", b"\x93", b"\x94",
];

/// Checks that every tensor is inside the file and has the size of its shape. Counts refused and
/// read files.
fn check_index(bytes: &[u8], counts: &[Cell<usize>]) {
    let found = index(bytes);
    let count = &counts[usize::from(found.is_ok())];
    count.set(count.get() + 1);
    for (name, Entry { dtype, dims, bytes: at, .. }) in found.unwrap_or_default() {
        assert!(bytes.get(at.clone()).is_some(), "{name} at {at:?} of {}", bytes.len());
        assert_eq!(at.len(), dims.iter().product::<usize>() * dtype.size(), "{name}");
    }
}

/// Any bytes: no panic, no hang, and tensors found are inside the file and have the size of their
/// shape.
#[test]
fn mutated_checkpoints_never_panic() {
    let files: Vec<Vec<u8>> =
        expected().into_keys().filter(|file| file != "many.pt").map(|file| golden(&file)).collect();
    let pickles = pickles();
    let storages: Vec<String> = (0..16).map(|i| format!("a/data/{i}")).collect();
    let wrap = |pickle: &[u8]| {
        let all = storages.iter().map(|name| (name.as_str(), [7; 128].as_slice()));
        zip(&[("a/data.pkl", pickle)].into_iter().chain(all).collect::<Vec<_>>())
    };
    pickles.iter().for_each(|pickle| assert!(index(&wrap(pickle)).is_ok()));
    let counts = [const { Cell::new(0) }; 4];
    let damage = prop_oneof![7 => mutations_in_place(1..=2, VALUES), 1 => mutations(1..=2, VALUES, OPCODES)];
    check(25_000, &(any::<Index>(), damage), |(file, damage)| {
        let mut bytes = file.get(&files).clone();
        damage.iter().for_each(|mutation| mutation.apply(&mut bytes, usize::MAX));
        check_index(&bytes, &counts[..2]);
    });
    // Most damage to a container is detected there, so half of the cases damage a pickle and wrap
    // it in a valid zip.
    let damage = prop_oneof![mutations_in_place(1..=2, VALUES), mutations(1..=2, VALUES, OPCODES)];
    check(25_000, &(any::<Index>(), damage), |(pickle, damage)| {
        let mut pickle = pickle.get(&pickles).clone();
        damage.iter().for_each(|mutation| mutation.apply(&mut pickle, usize::MAX));
        check_index(&wrap(&pickle), &counts[2..]);
    });
    assert!(counts.iter().all(|n| n.get() > 1_000), "{counts:?}: too few files were refused or read");
}
