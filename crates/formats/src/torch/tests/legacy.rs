//! The format before torch 1.6.

use super::*;

const MAGIC: &[u8] = b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.";
const VERSION: &[u8] = b"\x80\x02M\xe9\x03.";

/// The pickles before the object; `little` is the value of little_endian.
fn head(little: &[u8]) -> Vec<u8> {
    [MAGIC, VERSION, b"\x80\x02}", &text("little_endian"), little, b"s."].concat()
}

/// A tensor in this format: its storage tuple has a sixth item.
fn legacy_tensor(key: &str, length: i64, dims: &[i64], view: &[u8]) -> Vec<u8> {
    replace_first(tensor(key, length, 0, dims, &[1]), b"tQ", &[view, b"tQ"].concat())
}

fn keys(keys: &[&str]) -> Vec<u8> {
    [b"\x80\x02](".to_vec(), keys.iter().flat_map(|key| text(key)).collect(), b"e.".to_vec()].concat()
}

fn storage(count: i64, bytes: &[u8]) -> Vec<u8> {
    [&count.to_le_bytes(), bytes].concat()
}

/// A file whose object is a dict in which `w` is `value`.
fn file(value: &[u8], listed: &[&str], storages: &[Vec<u8>]) -> Vec<u8> {
    [head(b"\x88"), dict(value), keys(listed), storages.concat()].concat()
}

#[test]
fn test_builders_make_valid_files() {
    let bytes = file(&legacy_tensor("5", 3, &[3], b"N"), &["5"], &[storage(3, &[9; 12])]);
    let at = bytes.len() - 12..bytes.len();
    let entry = Entry { dtype: Dtype::F32, dims: vec![3], bytes: at, column_major: false };
    assert_eq!(index(&bytes).unwrap(), [("w".into(), entry.clone())]);
    // As Python 2 wrote it; another file may follow.
    let two = replace_first(bytes, b"](X\x01\0\0\x005e.", b"]U\x015a.");
    assert_eq!(index(&[two.as_slice(), b"more"].concat()).unwrap()[0].1.bytes.len(), 12);
}

#[test]
fn legacy_header_is_validated() {
    let value = legacy_tensor("5", 3, &[3], b"N");
    let sound = file(&value, &["5"], &[storage(3, &[9; 12])]);
    assert_error(&replace_first(sound.clone(), b"\x6c\xfc", b"\x6c\xfd"), "not a checkpoint of torch.save");
    assert_error(
        &replace_first(sound.clone(), b"M\xe9\x03", b"M\xea\x03"),
        "another version of torch's older format than 1001",
    );
    assert_error(&replace_first(sound.clone(), b"M\xe9\x03", b"N"), "another version");
    assert_error(&replace_first(sound.clone(), b"M\xe9\x03", b"cos\nsystem\n"), "names os.system");
    let order = |code: &[u8]| [head(code), dict(&value), keys(&["5"]), storage(3, &[9; 12])].concat();
    assert_eq!(order(b"\x88"), sound);
    assert_error(&order(b"\x89"), "big-endian");
    assert_error(&order(b"K\x01"), "in which order its bytes are");
    assert_error(&order(&[b"\x88s", text("little_endian").as_slice(), b"\x89"].concat()), "big-endian");
    assert_error(&order(b"cos\nsystem\n)R"), "names os.system");
    assert_error(&replace_first(sound.clone(), b"little_endian", b"little_indian"), "in which order");
    assert_error(&[MAGIC, VERSION, b"N.", &sound].concat(), "on what machine");
    assert_error(&replace_first(sound, b"](", b"cos\nsystem\n("), "names os.system");
}

#[test]
fn storages_must_match_the_pickle() {
    let one =
        |count: i64, bytes: usize| file(&legacy_tensor("5", 3, &[3], b"N"), &["5"], &[storage(count, &vec![9; bytes])]);
    assert!(index(&one(3, 12)).is_ok());
    assert_error(&one(3, 11), "ends before its storage 5 does");
    assert_error(&one(2, 12), "counts 2 elements in the storage 5 that its pickle gives 3");
    assert_error(&one(-1, 12), "counts 18446744073709551615 elements");
    let huge = |n: i64| file(&legacy_tensor("5", n, &[3], b"N"), &["5"], &[storage(n, &[9; 12])]);
    assert_error(&huge(i64::MAX), "ends before");
    assert_error(&huge(i64::MAX / 4), "ends before");
    assert_error(&huge(-3), "negative");
    let view = [b"(".as_slice(), &text("6"), &int(0), &int(3), b"t"].concat();
    let list = [b"](".as_slice(), &text("6"), &int(0), &int(3), b"e"].concat();
    for view in [&view[..], &list, b"C\x03abc", b"NN"] {
        assert_error(
            &file(&legacy_tensor("5", 3, &[3], view), &["5"], &[storage(3, &[9; 12])]),
            "not named as torch.save names it",
        );
    }

    let data = || storage(3, &[9; 12]);
    let value = legacy_tensor("5", 3, &[3], b"N");
    assert_error(&file(&value, &["5", "5"], &[data(), data()]), "lists the storage 5 twice");
    assert_error(
        &file(&value, &["5", "6"], &[data(), data()]),
        "lists the storage 6 twice, or its pickle does not name it",
    );
    assert_error(&file(&value, &[], &[data()]), "does not list the storage 5");
    // Also for a storage outside the state dict: the positions of all later ones depend on it.
    let hidden = |second: Vec<u8>| [b"]".as_slice(), &second, b"as", &text("v"), &value].concat();
    let both = file(&hidden(legacy_tensor("6", 1, &[1], b"N")), &["6", "5"], &[storage(1, &[1; 4]), data()]);
    assert_eq!(index(&both).unwrap()[0].1.bytes, both.len() - 12..both.len());
    assert_error(&file(&hidden(legacy_tensor("6", 1, &[1], b"N")), &["5"], &[data()]), "does not list the storage 6");
    assert_error(
        &file(&hidden(legacy_tensor("5", 4, &[1], b"N")), &["5"], &[data()]),
        "describes the storage 5 in two ways",
    );
    let typed = replace_first(legacy_tensor("5", 3, &[3], b"N"), b"FloatStorage", b"IntStorage");
    assert_error(&file(&hidden(typed), &["5"], &[data()]), "describes the storage 5 in two ways");
    let not_a_list = [head(b"\x88"), dict(&value), b"N.".to_vec(), data()].concat();
    assert_error(&not_a_list, "does not list its storages");
    // Only the list that is left at the end counts.
    let other = replace_first(file(&value, &["5"], &[data()]), b"](X\x01\0\0\x005e.", b"]X\x01\0\0\x005a0].");
    assert_error(&other, "does not list the storage 5");
}

#[test]
fn pickle_bombs_stay_within_limits() {
    let around = |junk: &[u8]| {
        [head(b"\x88"), [b"}", text("j").as_slice(), junk, b"s."].concat(), keys(&[]), vec![0; 64]].concat()
    };
    assert_error(&around(b"N"), "holds no state dict");
    let named = [b"(".as_slice(), &text("storage"), b"t\x94", &b"h\0Q0".repeat(2_000_000), b"N"].concat();
    assert_error(&around(&named), "more than 1572864 values");
    let texts = [text("x").as_slice(), b"\x94]", &b"h\0a".repeat(2_000_000)].concat();
    assert_error(&around(&texts), "more than 1572864 values");
    // A name without end and an endless pickle are not followed into the storages.
    assert_error(
        &[head(b"\x88"), b"ctorch".to_vec(), vec![b'x'; (64 << 20) + 9], b"\nx\n".to_vec()].concat(),
        "makes no sense",
    );
    assert_error(&[head(b"\x88"), b"N0".repeat((32 << 20) + 9), b"N.".to_vec()].concat(), "makes no sense");
}

#[test]
fn mutated_files_never_panic() {
    let files = ["legacy.pt", "legacy_nested.pt", "legacy_protocol4.pt"].map(golden);
    let counts = [const { Cell::new(0) }; 2];
    let damage = prop_oneof![mutations_in_place(1..=2, VALUES), mutations(1..=2, VALUES, OPCODES)];
    check(10_000, &(0..files.len(), damage), |(file, damage)| {
        let mut bytes = files[file].clone();
        damage.iter().for_each(|mutation| mutation.apply(&mut bytes, usize::MAX));
        check_index(&bytes, &counts);
    });
    assert!(counts.iter().all(|n| n.get() > 500), "{counts:?}: too few files were refused or read");
}
