//! The formats that a model gets without `--dtype`, on every device, and the error when a format is
//! too small for a model.

use sconce_engine::hub::{Files, Options};
use sconce_engine::{DTypeChoice, DeviceChoice, Embedder, ErrorClass, LoadOptions, Plan, Task};
use sconce_ops::{DType, Device, KvCacheFormat};
use sconce_testkit::materialize;
use serde_json::{Map, Value, json};
use std::fs::File;
use std::io::Write;
use std::path::Path;

const GPUS: [Device; 2] = [Device::Cuda(0), Device::Metal(0)];

fn options() -> LoadOptions {
    let cache = std::env::temp_dir();
    LoadOptions::new(Options::new(cache.clone(), cache)).with_batch_tokens(Some(64))
}

fn plan(dir: &Path, device: Device, dtype: DTypeChoice) -> Plan {
    let files = Files::local(dir);
    Task::detect(dir).unwrap().plan(&files, device, &options().with_dtype(dtype)).unwrap()
}

/// The shape of a model with Llama's block.
struct Shape {
    kind: &'static str,
    vocabulary: usize,
    hidden: usize,
    layers: usize,
    heads: usize,
    kv_heads: usize,
    inner: usize,
}

const LLAMA_2_7B: Shape =
    Shape { kind: "llama", vocabulary: 32_000, hidden: 4096, layers: 32, heads: 32, kv_heads: 32, inner: 11_008 };
const MISTRAL_7B: Shape = Shape { kind: "mistral", kv_heads: 8, inner: 14_336, ..LLAMA_2_7B };
const QWEN2_5_7B: Shape =
    Shape { kind: "qwen2", vocabulary: 152_064, hidden: 3584, layers: 28, heads: 28, kv_heads: 4, inner: 18_944 };
const SMALL: Shape = Shape { kind: "llama", vocabulary: 64, hidden: 32, layers: 1, heads: 4, kv_heads: 2, inner: 64 };

impl Shape {
    fn config(&self) -> Value {
        json!({"model_type": self.kind, "architectures": ["LlamaForCausalLM"], "vocab_size": self.vocabulary,
            "hidden_size": self.hidden, "num_hidden_layers": self.layers, "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads, "intermediate_size": self.inner, "hidden_act": "silu",
            "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
            "tie_word_embeddings": false})
    }

    fn tensors(&self) -> Vec<(String, Vec<usize>)> {
        let (h, kv) = (self.hidden, self.hidden / self.heads * self.kv_heads);
        let mut all = vec![
            ("model.embed_tokens.weight".into(), vec![self.vocabulary, h]),
            ("model.norm.weight".into(), vec![h]),
            ("lm_head.weight".into(), vec![self.vocabulary, h]),
        ];
        for layer in 0..self.layers {
            let mut add =
                |name: &str, dims: &[usize]| all.push((format!("model.layers.{layer}.{name}"), dims.to_vec()));
            for (name, rows) in [("q", h), ("k", kv), ("v", kv)] {
                add(&format!("self_attn.{name}_proj.weight"), &[rows, h]);
                if self.kind == "qwen2" {
                    add(&format!("self_attn.{name}_proj.bias"), &[rows]);
                }
            }
            add("self_attn.o_proj.weight", &[h, h]);
            add("mlp.gate_proj.weight", &[self.inner, h]);
            add("mlp.up_proj.weight", &[self.inner, h]);
            add("mlp.down_proj.weight", &[h, self.inner]);
            add("input_layernorm.weight", &[h]);
            add("post_attention_layernorm.weight", &[h]);
        }
        all
    }

    /// A folder with this model in `dtype`. The weights are a hole in the file: a plan reads none.
    fn folder(&self, dtype: DType) -> (tempfile::TempDir, u64) {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("config.json"), self.config().to_string()).unwrap();
        let (mut header, mut end) = (Map::new(), 0);
        for (name, dims) in self.tensors() {
            let start = end;
            end += dims.iter().product::<usize>() * dtype.size();
            let dtype = dtype.to_string().to_uppercase();
            header.insert(name, json!({"dtype": dtype, "shape": dims, "data_offsets": [start, end]}));
        }
        let header = Value::Object(header).to_string();
        let mut file = File::create(dir.path().join("model.safetensors")).unwrap();
        file.write_all(&(header.len() as u64).to_le_bytes()).unwrap();
        file.write_all(header.as_bytes()).unwrap();
        let size = (8 + header.len() + end) as u64;
        file.set_len(size).unwrap();
        (dir, size)
    }
}

#[test]
fn models_of_7b_in_bf16_take_no_more_than_their_files_on_a_gpu() {
    for shape in [LLAMA_2_7B, MISTRAL_7B, QWEN2_5_7B] {
        let (dir, size) = shape.folder(DType::BF16);
        for device in GPUS {
            let plan = plan(dir.path(), device, DTypeChoice::Default);
            let limit = size / 100 * 105;
            assert!(plan.weights <= limit, "{} on {device}: {} bytes of {size}", shape.kind, plan.weights);
            assert_eq!((plan.dtype, plan.dtype_reason.as_str()), (DType::BF16, "the type of the files"));
            assert_eq!(plan.cache_format, Some(KvCacheFormat::Float(DType::BF16)));
        }
        // As in the files on a CPU too, but with f32 activations.
        let cpu = plan(dir.path(), Device::Cpu, DTypeChoice::Default);
        assert!(cpu.weights <= size / 100 * 105, "{} on the CPU: {} bytes of {size}", shape.kind, cpu.weights);
        assert_eq!((cpu.dtype, cpu.cache_format), (DType::F32, Some(KvCacheFormat::Float(DType::F16))));
    }
}

#[test]
fn gpu_default_follows_the_files_and_the_architecture() {
    let check = |what: &str, dir: &Path, dtype: DType, reason: &str| {
        for device in GPUS {
            let plan = plan(dir, device, DTypeChoice::Default);
            assert_eq!(plan.dtype, dtype, "{what} on {device}");
            assert!(plan.dtype_reason.contains(reason), "{what} on {device}: {}", plan.dtype_reason);
            assert!(plan.cache_format.is_none_or(|format| format == KvCacheFormat::Float(dtype)), "{what}");
        }
    };
    let llama = |kind, stored| Shape { kind, ..SMALL }.folder(stored).0;
    check("Llama in f32", llama("llama", DType::F32).path(), DType::BF16, "the files are in f32");
    check("Llama in f16", llama("llama", DType::F16).path(), DType::F16, "the type of the files");
    check("Qwen2 in f16", llama("qwen2", DType::F16).path(), DType::BF16, "overflows f16");
    check("an encoder in f32", materialize("st-cls-dense").path(), DType::F16, "the files are in f32");
    check("T5 in f32", materialize("t5-seq2seq").path(), DType::BF16, "overflows f16");
}

#[test]
fn dtype_flag_overrides_the_default() {
    let (dir, _) = SMALL.folder(DType::BF16);
    for device in [Device::Cpu, Device::Cuda(0), Device::Metal(0)] {
        for dtype in DType::FLOATS {
            let plan = plan(dir.path(), device, dtype.into());
            assert_eq!((plan.dtype, plan.cache_format), (dtype, Some(KvCacheFormat::Float(dtype))), "{device}");
            assert_eq!(plan.dtype_reason, format!("as --dtype {dtype} asks"));
        }
    }
}

/// An encoder whose final norm is scaled beyond the range of f16, but not beyond that of bf16.
#[test]
fn overflow_in_f16_is_unsound_output_that_names_bf16() {
    let model = materialize("st-cls-dense");
    let path = model.path().join("model.safetensors");
    let mut bytes = std::fs::read(&path).unwrap();
    let (header, metadata) = safetensors::SafeTensors::read_metadata(&bytes).unwrap();
    let last = metadata.tensors().into_iter().filter(|(name, _)| name.ends_with("output.LayerNorm.weight"));
    let (start, end) = last.max_by(|a, b| a.0.cmp(&b.0)).unwrap().1.data_offsets;
    for value in bytes[header + 8 + start..header + 8 + end].chunks_mut(4) {
        value.copy_from_slice(&60_000_f32.to_le_bytes());
    }
    std::fs::write(&path, bytes).unwrap();
    let load = |dtype: DType| {
        let options = options().with_device(DeviceChoice::Only(Device::Cpu)).with_dtype(dtype);
        Embedder::load(&model.path().to_str().unwrap().parse().unwrap(), &options, &())
    };
    let error = load(DType::F16).err().expect("f16 overflows");
    assert_eq!(error.class(), ErrorClass::Unsound, "{error}");
    assert!(error.to_string().contains("unsound output") && error.to_string().contains("--dtype bf16"), "{error}");
    load(DType::BF16).unwrap();
    load(DType::F32).unwrap();
}
