//! Static models against their formula.

use sconce_engine::Checkpoint;
use sconce_models::{Batch, Sequence, backbone};
use sconce_ops::{DType, Place, Weights};
use serde_json::json;
use std::sync::Arc;

fn weights(dir: &tempfile::TempDir) -> Weights {
    Weights::new(Arc::new(Checkpoint::open(dir.path()).unwrap()), DType::F32, Place::cpu())
}

/// A file with these tensors: name, shape, bytes.
fn write_model(dtype: safetensors::Dtype, tensors: &[(&str, &[usize], Vec<u8>)]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let views = tensors.iter().map(|(name, dims, bytes)| {
        let dtype = if *name == "mapping" { safetensors::Dtype::I64 } else { dtype };
        (*name, safetensors::tensor::TensorView::new(dtype, dims.to_vec(), bytes).unwrap())
    });
    safetensors::serialize_to_file(views, None, &dir.path().join("model.safetensors")).unwrap();
    dir
}

#[test]
fn static_model_hidden_state_is_the_weighted_row() {
    let config = json!({ "model_type": "model2vec", "normalize": true });
    let rows: Vec<f32> = (0..12).map(|v| v as f32 - 5.5).collect();
    let factors = [0.5f32, 2.0, 1.0, -1.0];
    let bytes = |values: &[f32]| values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>();
    let hidden = |files: &tempfile::TempDir| {
        let w = weights(files);
        let model = backbone(&config, &w).unwrap();
        assert_eq!((model.hidden_size(), model.limits().vocabulary, w.unused().len()), (3, 4, 0));
        let sequences = [vec![3, 1], vec![0]].map(|ids| Sequence { ids, ..Sequence::default() });
        let batch = Batch::new(&sequences, model.limits(), &Place::cpu()).unwrap();
        model.forward(&batch, &mut |_, _| {}).unwrap().to_f32().unwrap()
    };
    let f32s = safetensors::Dtype::F32;
    let plain = [3.5, 4.5, 5.5, -2.5, -1.5, -0.5, -5.5, -4.5, -3.5];
    assert_eq!(hidden(&write_model(f32s, &[("embeddings", &[4, 3], bytes(&rows))])), plain);
    assert_eq!(hidden(&write_model(f32s, &[("embedding.weight", &[4, 3], bytes(&rows))])), plain);
    let weighted = write_model(f32s, &[("embeddings", &[4, 3], bytes(&rows)), ("weights", &[4], bytes(&factors))]);
    assert_eq!(hidden(&weighted), [-3.5, -4.5, -5.5, -5.0, -3.0, -1.0, -2.75, -2.25, -1.75]);

    let refused = |files: &tempfile::TempDir| backbone(&config, &weights(files)).err().unwrap().to_string();
    let mapped = |last: i64| {
        let mapping = [0i64, 3, 1, last].iter().flat_map(|row| row.to_le_bytes()).collect();
        write_model(f32s, &[("embeddings", &[4, 3], bytes(&rows)), ("mapping", &[4], mapping)])
    };
    assert_eq!(hidden(&mapped(2)), [0.5, 1.5, 2.5, 3.5, 4.5, 5.5, -5.5, -4.5, -3.5]);
    assert!(refused(&mapped(4)).contains("row 4 of 4"), "{}", refused(&mapped(4)));
    assert!(refused(&write_model(f32s, &[("embeddings", &[12], bytes(&rows))])).contains("two dimensions"));
    assert!(refused(&write_model(f32s, &[("words", &[4, 3], bytes(&rows))])).contains("embeddings"));
}
