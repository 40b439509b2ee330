//! The flags of a worker: one type, so that the pool and `sconce worker` always agree.

use crate::time::Seconds;
use serde::{Deserialize, Serialize};

/// The flags of `sconce worker`. [`Launch::arguments`] writes what the command line reads.
///
/// The API key is not among them: every user of the machine can read arguments, so the key is in
/// the environment ([`Launch::KEY`]).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "clap", derive(clap::Args))]
pub struct Launch {
    /// The worker's id in callbacks and heartbeats.
    #[cfg_attr(feature = "clap", arg(long, value_name = "ID"))]
    pub worker_id: String,
    /// A directory or .gguf file, a hub id, pip:NAME, or a short name.
    #[cfg_attr(feature = "clap", arg(short, long, value_name = "MODEL"))]
    pub model: String,
    /// Address to listen on.
    #[cfg_attr(feature = "clap", arg(long, value_name = "ADDRESS", default_value = "127.0.0.1"))]
    pub hostname: String,
    /// Port to listen on; 0 picks a free port.
    #[cfg_attr(feature = "clap", arg(short, long, value_name = "PORT"))]
    pub port: u16,
    /// URL, http or https, that receives a callback when the worker is ready. Heartbeats follow
    /// every 30 seconds, to /v1/worker-heartbeat of the same host. If it contains `localhost:9999`,
    /// nothing is sent.
    #[cfg_attr(feature = "clap", arg(long, value_name = "URL"))]
    pub callback_url: String,
    /// auto, cpu, cuda[:N] or metal[:N]; for ONNX Runtime cpu (also for auto), cuda[:N], coreml or
    /// directml.
    #[allow(rustdoc::broken_intra_doc_links, reason = "clap prints it: the brackets are no link")]
    #[cfg_attr(feature = "clap", arg(short, long, value_name = "DEVICE", env = "SCONCE_DEVICE"))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// The same as --device cuda:N.
    #[cfg_attr(feature = "clap", arg(long, value_name = "N", conflicts_with_all = ["device", "metal_device"]))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cuda_device: Option<u32>,
    /// The same as --device metal:N.
    #[cfg_attr(feature = "clap", arg(long, value_name = "N", conflicts_with = "device"))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metal_device: Option<u32>,
    /// Further name of the model in requests; may be given several times.
    #[cfg_attr(feature = "clap", arg(long = "served-model-name", value_name = "NAME"))]
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub names: Vec<String>,
    /// Largest request body, in bytes.
    #[cfg_attr(feature = "clap", arg(long, value_name = "BYTES"))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payload_limit: Option<u64>,
    #[cfg_attr(feature = "clap", command(flatten))]
    #[serde(default)]
    #[allow(missing_docs, reason = "clap would print it")]
    pub tuning: Tuning,
}

/// Options of the model; the engine chooses the defaults. A model of a `pool.toml` has the same
/// options.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "clap", derive(clap::Args))]
pub struct Tuning {
    /// Task: embed, classify, rerank, tag, sparse, multi, m3, clip, generate or seq2seq. Default:
    /// detected from the model's files.
    #[cfg_attr(feature = "clap", arg(long, value_name = "TASK"))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<String>,
    /// Format of weights and activations: f32, bf16 or f16; for the weights of a language model
    /// also q8_0, q4_k, …
    #[cfg_attr(feature = "clap", arg(long, value_name = "DTYPE"))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dtype: Option<String>,
    /// Context length of a language model in tokens: prompt and answer together.
    #[cfg_attr(feature = "clap", arg(long, value_name = "TOKENS"))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context: Option<u64>,
    /// Format of the KV cache of a language model.
    #[cfg_attr(feature = "clap", arg(long, value_name = "DTYPE"))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kv_dtype: Option<String>,
    /// Size of the KV cache of a language model in tokens, over all sequences. Default: all
    /// sequences at full length, but at most a quarter of the free memory.
    #[cfg_attr(feature = "clap", arg(long, value_name = "TOKENS"))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kv_cache_tokens: Option<u64>,
    /// Most tokens per micro-batch.
    #[cfg_attr(feature = "clap", arg(long, value_name = "N", alias = "max-batch-tokens"))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batch_tokens: Option<u64>,
    /// Most concurrent requests; further ones are refused and may be retried.
    #[cfg_attr(feature = "clap", arg(long, value_name = "N"))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_concurrent_requests: Option<u64>,
    /// Time-out of a request in seconds; 0 for none. Default: 600.
    #[cfg_attr(feature = "clap", arg(long, value_name = "SECONDS", env = "REQUEST_TIMEOUT"))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_timeout: Option<Seconds>,
    /// Allow ops that the GPU lacks to run on the CPU.
    #[cfg_attr(feature = "clap", arg(long))]
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub allow_host: bool,
    /// Use only files that are already on this machine.
    #[cfg_attr(feature = "clap", arg(long))]
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub offline: bool,
    /// native, onnx (ONNX Runtime), or auto: native where the architecture is supported and the
    /// model has weights for it, else onnx. Default: auto.
    #[cfg_attr(feature = "clap", arg(long, value_name = "ENGINE", env = "SCONCE_ENGINE"))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub engine: Option<String>,
    /// The .onnx file in the model's folder or in onnx/. Default: model.onnx, else the only one.
    #[cfg_attr(feature = "clap", arg(long, value_name = "FILE"))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub onnx_file: Option<String>,
    /// Let texts of a dynamically quantized ONNX model share a call; the result of a text then
    /// depends on the others.
    #[cfg_attr(feature = "clap", arg(long))]
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub batch_dependent: bool,
}

impl Launch {
    /// Environment variable of the API key, which the worker requires from clients and sends with
    /// callbacks.
    pub const KEY: &str = "SCONCE_API_KEY";

    /// Environment variable of the API key that existing managers set. [`Launch::KEY`] has
    /// precedence.
    pub const MANAGER_KEY: &str = "LLORCH_API_TOKEN";

    /// The device: `auto`, `cpu`, `cuda:0`.
    pub fn device(&self) -> String {
        match (&self.device, self.cuda_device, self.metal_device) {
            (Some(name), ..) => name.clone(),
            (None, Some(n), _) => format!("cuda:{n}"),
            (None, None, Some(n)) => format!("metal:{n}"),
            (None, None, None) => "auto".into(),
        }
    }

    /// Whether no callbacks are sent.
    pub fn is_dry_run(&self) -> bool {
        self.callback_url.contains(super::DRY_RUN)
    }

    /// The arguments of `sconce worker`. Each flag and its value are one argument, so that a value
    /// may look like a flag.
    pub fn arguments(&self) -> Vec<String> {
        let Launch {
            worker_id,
            model,
            hostname,
            port,
            callback_url,
            device,
            cuda_device,
            metal_device,
            names,
            payload_limit,
            tuning,
        } = self;
        let mut all = vec![
            format!("--worker-id={worker_id}"),
            format!("--model={model}"),
            format!("--hostname={hostname}"),
            format!("--port={port}"),
            format!("--callback-url={callback_url}"),
        ];
        let mut add_flag = |flag: &str, value: Option<String>| all.extend(value.map(|v| format!("--{flag}={v}")));
        add_flag("device", device.clone());
        add_flag("cuda-device", cuda_device.map(|n| n.to_string()));
        add_flag("metal-device", metal_device.map(|n| n.to_string()));
        names.iter().for_each(|name| add_flag("served-model-name", Some(name.clone())));
        add_flag("payload-limit", payload_limit.map(|n| n.to_string()));
        all.extend(tuning.arguments());
        let mut add_flag = |flag: &str, value: Option<String>| all.extend(value.map(|v| format!("--{flag}={v}")));
        add_flag("max-concurrent-requests", tuning.max_concurrent_requests.map(|n| n.to_string()));
        add_flag("request-timeout", tuning.request_timeout.map(|seconds| seconds.to_string()));
        all
    }
}

impl Tuning {
    /// The arguments that `sconce plan` also accepts.
    pub fn arguments(&self) -> Vec<String> {
        let Tuning {
            task,
            dtype,
            context,
            kv_dtype,
            kv_cache_tokens,
            batch_tokens,
            max_concurrent_requests: _,
            request_timeout: _,
            allow_host,
            offline,
            engine,
            onnx_file,
            batch_dependent,
        } = self;
        let mut all = Vec::new();
        let mut add_flag = |flag: &str, value: Option<String>| all.extend(value.map(|v| format!("--{flag}={v}")));
        add_flag("task", task.clone());
        add_flag("dtype", dtype.clone());
        add_flag("context", context.map(|n| n.to_string()));
        add_flag("kv-dtype", kv_dtype.clone());
        add_flag("kv-cache-tokens", kv_cache_tokens.map(|n| n.to_string()));
        add_flag("batch-tokens", batch_tokens.map(|n| n.to_string()));
        add_flag("engine", engine.clone());
        add_flag("onnx-file", onnx_file.clone());
        all.extend(batch_dependent.then(|| "--batch-dependent".to_string()));
        all.extend(allow_host.then(|| "--allow-host".to_string()));
        all.extend(offline.then(|| "--offline".to_string()));
        all
    }
}

#[cfg(all(test, feature = "clap"))]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    #[command(no_binary_name = true)]
    struct Line {
        #[command(flatten)]
        launch: Launch,
    }

    #[track_caller]
    fn assert_round_trip(launch: &Launch) {
        let line = Line::try_parse_from(launch.arguments()).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(line.launch, *launch);
    }

    fn plain() -> Launch {
        Launch {
            worker_id: "w-1".into(),
            model: "org/model@main:Q4_K_M".into(),
            hostname: "127.0.0.1".into(),
            port: 9301,
            callback_url: "http://127.0.0.1:9200/v2/internal/workers/ready".into(),
            ..Launch::default()
        }
    }

    #[test]
    fn launch_arguments_round_trip_through_the_command_line() {
        assert_round_trip(&plain());
        assert_round_trip(&Launch { device: Some("cuda:1".into()), ..plain() });
        assert_round_trip(&Launch { cuda_device: Some(1), ..plain() });
        assert_round_trip(&Launch { metal_device: Some(0), ..plain() });
        assert_round_trip(&Launch { payload_limit: Some(100_000_000), ..plain() });
        let tuning = Tuning {
            task: Some("rerank".into()),
            dtype: Some("q8_0".into()),
            context: Some(4096),
            kv_dtype: Some("f16".into()),
            kv_cache_tokens: Some(65_536),
            batch_tokens: Some(512),
            max_concurrent_requests: Some(7),
            request_timeout: Some("1.5".parse().unwrap()),
            allow_host: true,
            offline: true,
            engine: Some("onnx".into()),
            onnx_file: Some("onnx/model_quantized.onnx".into()),
            batch_dependent: true,
        };
        let names = vec!["chat".into(), "--odd name".into()];
        assert_round_trip(&Launch { model: "-looks-like-a-flag".into(), names, tuning, ..plain() });
    }

    #[test]
    fn device_flags_are_exclusive_and_default_to_auto() {
        let read = |args: &[&str]| {
            let base = plain().arguments();
            let all = base.iter().map(String::as_str).chain(args.iter().copied());
            Line::try_parse_from(all).map(|l| l.launch.device())
        };
        assert_eq!(read(&[]).unwrap(), "auto");
        assert_eq!(read(&["--cuda-device", "1"]).unwrap(), "cuda:1");
        assert_eq!(read(&["--metal-device", "0"]).unwrap(), "metal:0");
        assert_eq!(read(&["--device", "cpu"]).unwrap(), "cpu");
        assert!(read(&["--device", "cpu", "--cuda-device", "0"]).is_err());
        assert!(read(&["--metal-device", "0", "--cuda-device", "0"]).is_err());
    }

    #[test]
    fn dry_run_is_detected_by_its_callback_url() {
        assert!(!plain().is_dry_run());
        assert!(Launch { callback_url: "http://localhost:9999/x".into(), ..plain() }.is_dry_run());
    }
}
