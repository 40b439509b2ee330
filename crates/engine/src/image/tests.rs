//! Compares with results of Pillow and transformers, which `tools/goldens/images.py` stored, and
//! tests hostile files.

use super::resize::{Filter, resize_window};
use super::*;
use proptest::sample::select;
use sconce_testkit::{check, mutations};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::cell::Cell;
use std::path::PathBuf;

fn goldens() -> PathBuf {
    sconce_testkit::golden("images")
}

fn list(name: &str) -> Vec<Value> {
    serde_json::from_slice(&std::fs::read(goldens().join(name)).unwrap()).unwrap()
}

fn sha(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().take(16).map(|b| format!("{b:02x}")).collect()
}

/// The bytes that `images.py` calls noise.
fn noise(width: usize, height: usize, seed: usize) -> Image {
    let byte = |i: usize| {
        let x = ((i + seed * 1_000_003 + 1) as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        ((x ^ (x >> 29)).wrapping_mul(0xBF58_476D_1CE4_E5B9) >> 56) as u8
    };
    Image::new(width, height, (0..width * height * 3).map(byte).collect()).unwrap()
}

#[test]
fn images_decode_as_in_pillow() {
    let mut wrong = Vec::new();
    for case in list("decode.json") {
        let name = case["file"].as_str().unwrap();
        let result = decode(&std::fs::read(goldens().join(name)).unwrap());
        let image = match (case["kind"].as_str().unwrap(), result) {
            ("refused", Err(why)) => {
                println!("{name}: {why}");
                continue;
            }
            ("refused", Ok(_)) => {
                wrong.push(format!("{name}: decoded, but Pillow refuses it"));
                continue;
            }
            (_, Ok(image)) => image,
            (_, Err(why)) => {
                wrong.push(format!("{name}: {why}"));
                continue;
            }
        };
        let size = (case["width"].as_u64().unwrap() as usize, case["height"].as_u64().unwrap() as usize);
        if (image.width, image.height) != size {
            wrong.push(format!("{name}: {image:?} is not {size:?}"));
        } else if case["kind"] == "exact" {
            if sha(&image.rgb) != case["sha256"].as_str().unwrap() {
                wrong.push(format!("{name}: different pixels: {:?}", &image.rgb[..30]));
            }
        } else {
            let want = std::fs::read(goldens().join(format!("{name}.rgb"))).unwrap();
            let off: Vec<u32> = image.rgb.iter().zip(&want).map(|(a, b)| u32::from(a.abs_diff(*b))).collect();
            let (worst, mean) = (*off.iter().max().unwrap(), off.iter().sum::<u32>() as f64 / off.len() as f64);
            println!("{name}: worst {worst}, mean {mean:.3}");
            // Decoders may round the inverse transform and the chroma upsampling differently: 2 and
            // 0.36 here, 5 and 0.36 on photographs of a megapixel. A 15-bit BMP's steps of 8 are
            // rounded there and truncated in Pillow.
            if worst > 4 || mean > 0.5 {
                wrong.push(format!("{name}: worst {worst}, mean {mean:.3}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn images_resize_as_in_pillow() {
    let cases = list("resize.json");
    let wrong: Vec<_> = (cases.iter().enumerate())
        .filter(|(i, case)| {
            let n = |k: usize| case[k].as_u64().unwrap() as usize;
            let filter = Filter::from_number(case[0].as_u64().unwrap()).unwrap();
            let image = noise(n(1), n(2), i / 6);
            sha(&resize_window(&image, (n(3), n(4)), 0..n(3), 0..n(4), filter).rgb) != case[5].as_str().unwrap()
        })
        .map(|(_, case)| case.to_string())
        .collect();
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
}

#[test]
fn resized_window_equals_part_of_the_whole() {
    for filter in (0..6).map(|n| Filter::from_number(n).unwrap()) {
        let image = noise(90, 70, 1);
        let whole = resize_window(&image, (61, 130), 0..61, 0..130, filter);
        let part = resize_window(&image, (61, 130), 7..40, 33..101, filter);
        for (y, row) in part.rgb.chunks_exact(33 * 3).enumerate() {
            assert_eq!(row, &whole.rgb[((y + 33) * 61 + 7) * 3..((y + 33) * 61 + 40) * 3], "{filter:?} row {y}");
        }
    }
}

fn folder(name: &str) -> PathBuf {
    let dir = std::env::temp_dir().join(format!("sconce-image-{}-{name}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    dir
}

fn processor(name: &str, file: &str, config: &Value) -> Result<Processor, String> {
    let dir = folder(name);
    std::fs::write(dir.join(file), config.to_string()).unwrap();
    let result = Processor::read(&dir);
    std::fs::remove_dir_all(dir).unwrap();
    result
}

#[test]
fn pixels_equal_transformers() {
    let mut wrong = Vec::new();
    for case in list("pixels.json") {
        let name = case["name"].as_str().unwrap();
        let plain = processor(name, "preprocessor_config.json", &case["config"]).unwrap();
        let nested = json!({"image_processor": case["config"], "processor_class": "CLIPProcessor"});
        let nested = processor(name, "processor_config.json", &nested).unwrap();
        for (i, picture) in case["pictures"].as_array().unwrap().iter().enumerate() {
            let (w, h) = (picture[0].as_u64().unwrap() as usize, picture[1].as_u64().unwrap() as usize);
            let image = noise(w, h, i);
            let values = plain.pixels(&image);
            assert_eq!(values, nested.pixels(&image));
            assert_eq!(json!([3, plain.side().0, plain.side().1]), picture[2], "{name} {w}x{h}");
            let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
            if sha(&bytes) != picture[3].as_str().unwrap() {
                let ours = [values[0], values[values.len() / 2], values[values.len() - 1]];
                wrong.push(format!("{name} {w}x{h}: {ours:?}, not {}", picture[4]));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Mean and standard deviation of CLIP's training images, per channel.
const CLIP_MEAN_STD: [(f32, f32); 3] =
    [(0.481_454_66, 0.268_629_54), (0.457_827_5, 0.261_302_6), (0.408_210_73, 0.275_777_1)];

#[test]
fn extreme_aspect_ratios_resize_only_the_crop() {
    let clip =
        processor("thin", "preprocessor_config.json", &json!({"image_processor_type": "CLIPImageProcessor"})).unwrap();
    for (w, h) in [(1, 5000), (5000, 1), (1, 65_535), (65_535, 1), (2048, 65_535)] {
        let pixels = clip.pixels(&Image::new(w, h, vec![128; w * h * 3]).unwrap());
        assert_eq!(pixels.len(), 3 * 224 * 224);
        // A grey image stays grey: each channel has the one value that normalization gives 128.
        for (channel, (mean, std)) in pixels.chunks(224 * 224).zip(CLIP_MEAN_STD) {
            let expected = (128.0 / 255.0 - mean) / std;
            assert!(channel.iter().all(|value| (value - expected).abs() < 1e-5), "{w}x{h}: {expected}");
        }
    }
}

#[test]
fn unsupported_processor_settings_are_refused() {
    let base = json!({"image_processor_type": "CLIPImageProcessor"});
    let cases = [
        ("image_processor_type", json!("ViTImageProcessor"), "ViTImageProcessor"),
        ("image_processor_type", json!("Siglip2ImageProcessor"), "Siglip2ImageProcessor"),
        ("image_processor_type", json!(7), "7"),
        ("image_processor_type", Value::Null, "image_processor_type"),
        ("size", json!({"shortest_edge": 224, "longest_edge": 300}), "longest_edge"),
        ("size", json!({"max_height": 3, "max_width": 3}), "max_height"),
        ("size", json!(0), "size is 0"),
        ("size", json!(1e12), "size"),
        ("size", json!(-3), "size"),
        ("crop_size", json!({"height": 224}), "crop_size"),
        ("crop_size", json!({"shortest_edge": 224}), "crop_size"),
        ("do_center_crop", json!(false), "one size"),
        ("do_center_crop", json!("yes"), "do_center_crop"),
        ("do_pad", json!(true), "do_pad"),
        ("resample", json!(6), "resample"),
        ("resample", json!("bicubic"), "resample"),
        ("image_mean", json!([0.5, 0.5]), "image_mean"),
        ("image_std", json!([0.5, 0.0, 0.5]), "finite"),
        ("rescale_factor", json!("1/255"), "rescale_factor"),
        ("data_format", json!("channels_last"), "data_format"),
        ("do_thumbnail", json!(true), "do_thumbnail"),
        ("auto_map", json!({"AutoImageProcessor": "x.py"}), "auto_map"),
    ];
    for (i, (name, value, expected)) in cases.into_iter().enumerate() {
        let mut config = base.clone();
        config[name] = value;
        let why = processor(&format!("refused{i}"), "preprocessor_config.json", &config).unwrap_err();
        println!("{why}");
        assert!(why.contains(expected) && why.starts_with("preprocessor_config.json: "), "{why}");
    }
    for (i, text) in ["", "[]", "{", "\u{0}", "{\"image_processor\": 3}"].into_iter().enumerate() {
        let dir = folder(&format!("broken{i}"));
        std::fs::write(dir.join("processor_config.json"), text).unwrap();
        println!("{}", Processor::read(&dir).unwrap_err());
        std::fs::remove_dir_all(dir).unwrap();
    }
    assert!(Processor::read(&folder("none")).unwrap_err().contains("no preprocessor_config.json"));
    // A processor_config.json without an image processor is skipped.
    let dir = folder("both");
    std::fs::write(dir.join("processor_config.json"), json!({"processor_class": "CLIPProcessor"}).to_string()).unwrap();
    std::fs::write(dir.join("preprocessor_config.json"), base.to_string()).unwrap();
    assert_eq!(Processor::read(&dir).unwrap().side(), (224, 224));
    std::fs::remove_dir_all(dir).unwrap();
}

/// One small file of every kind that decodes.
fn files() -> Vec<(String, Vec<u8>)> {
    let read = |case: &Value| {
        let name = case["file"].as_str().unwrap().to_owned();
        let bytes = std::fs::read(goldens().join(&name)).unwrap();
        (name, bytes)
    };
    list("decode.json").iter().map(read).collect()
}

#[test]
fn truncated_files_are_refused() {
    for name in [
        "rgb.png",
        "interlaced.png",
        "420.jpg",
        "progressive.jpg",
        "cmyk.jpg",
        "still.gif",
        "lossless.webp",
        "lossy.webp",
        "rgb.bmp",
        "tiff_lzw.tif",
    ] {
        let bytes = std::fs::read(goldens().join(name)).unwrap();
        // The last bytes may be a checksum, padding or metadata that no pixel needs.
        let needed = bytes.len() * 9 / 10;
        for end in 0..needed {
            assert!(decode(&bytes[..end]).is_err(), "{name} was read from {end} of its {} bytes", bytes.len());
        }
    }
    for name in ["420.jpg", "progressive.jpg"] {
        let bytes = std::fs::read(goldens().join(name)).unwrap();
        assert!(decode(&bytes[..bytes.len() - 2]).unwrap_err().contains("truncated"));
    }
}

#[test]
fn hostile_headers_are_refused_before_allocation() {
    let patched = |name: &str, at: usize, with: &[u8]| {
        let mut bytes = std::fs::read(goldens().join(name)).unwrap();
        bytes[at..at + with.len()].copy_from_slice(with);
        bytes
    };
    let be = |w: u32, h: u32| [w.to_be_bytes(), h.to_be_bytes()].concat();
    let le = |w: u32, h: u32| [w.to_le_bytes(), h.to_le_bytes()].concat();
    let png = |w, h| {
        let mut bytes = patched("rgb.png", 16, &be(w, h));
        let crc = crc32(&bytes[12..29]).to_be_bytes();
        bytes[29..33].copy_from_slice(&crc);
        bytes
    };
    let jpeg = std::fs::read(goldens().join("420.jpg")).unwrap();
    let sof = jpeg.windows(4).position(|w| w == [0xFF, 0xC0, 0, 17]).unwrap() + 5;
    let cases = [
        ("PNG", png(60_000, 60_000), "60000x60000"),
        ("PNG", png(0, 5), ""),
        ("PNG", png(1, 100_000), "1x100000"),
        ("PNG", png(0x7FFF_FFFF, 0x7FFF_FFFF), ""),
        ("JPEG", patched("420.jpg", sof, &[0xEA, 0x60, 0xEA, 0x60]), "60000x60000"),
        ("JPEG", patched("420.jpg", sof, &[0, 0, 0, 5]), ""),
        ("JPEG", patched("420.jpg", sof, &[0x20, 0, 0x20, 0]), "cannot hold 8192x8192"),
        ("GIF", patched("still.gif", 6, &[0x60, 0xEA, 0x60, 0xEA]), "60000x60000"),
        ("BMP", patched("rgb.bmp", 18, &le(60_000, 60_000)), "60000x60000"),
        ("BMP", patched("rgb.bmp", 18, &le(0, 60_000)), ""),
    ];
    for (format, bytes, expected) in cases {
        let why = decode(&bytes).unwrap_err();
        println!("{why}");
        assert!(why.starts_with(&format!("{format} image: ")) && why.contains(expected), "{why}");
    }
    assert!(decode(b"").unwrap_err().contains("0 bytes"));
    assert!(decode(b"hello").unwrap_err().contains("JPEG, PNG"));
    assert!(decode(&[0; 64]).unwrap_err().contains("JPEG, PNG"));
    assert!(decode(b"\0\0\0\x1cftypavif\0\0\0\0").unwrap_err().contains("Avif"));
}

/// PNG's checksum, for patched headers.
fn crc32(bytes: &[u8]) -> u32 {
    let bit = |crc: u32| if crc & 1 == 1 { (crc >> 1) ^ 0xEDB8_8320 } else { crc >> 1 };
    !bytes.iter().fold(!0, |crc, &b| (0..8).fold(crc ^ u32::from(b), |crc, _| bit(crc)))
}

#[test]
fn mutated_files_never_panic() {
    let [read, refused, caught] = [const { Cell::new(0) }; 3];
    let count = |of: &Cell<usize>| of.set(of.get() + 1);
    // Half of the damage is to the header.
    let inputs =
        (select(&[80, usize::MAX]), mutations(1..=4, b"\x00\xff\x7f\x80", &[b"\0\0\0\0", b"\xff\xff\xff\xff"]));
    for (_, whole) in files() {
        check(40, &inputs, |(reach, damage)| {
            let mut bytes = whole.clone();
            damage.iter().for_each(|mutation| mutation.apply(&mut bytes, reach));
            match decode(&bytes) {
                Ok(image) => {
                    assert_eq!(image.rgb.len(), image.width * image.height * 3);
                    count(&read);
                }
                Err(why) if why.contains("inconsistent") => count(&caught),
                Err(_) => count(&refused),
            }
        });
    }
    let [read, refused, caught] = [read, refused, caught].map(Cell::into_inner);
    println!("{read} read, {refused} refused, {caught} panics of a decoder caught");
    assert!(read > 0 && refused > 0);
}
