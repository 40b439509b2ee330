//! What a worker is started with: one type, so that who starts it and what is started always agree.

use serde::{Deserialize, Serialize};

/// The flags of `sconce worker`. [`Launch::arguments`] writes what the command line reads.
///
/// The key is not among them: arguments can be read by everybody on the machine, so it goes by the environment
/// ([`Launch::KEY`]).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "clap", derive(clap::Args))]
pub struct Launch {
    /// The worker's name: what it calls itself to whoever started it.
    #[cfg_attr(feature = "clap", arg(long, value_name = "ID"))]
    pub worker_id: String,
    /// A directory or .gguf file, a hub id, pip:NAME, or a short name.
    #[cfg_attr(feature = "clap", arg(short, long, value_name = "MODEL"))]
    pub model: String,
    /// Where to listen.
    #[cfg_attr(feature = "clap", arg(long, value_name = "ADDRESS", default_value = "127.0.0.1"))]
    pub hostname: String,
    /// Where to listen. 0 takes any that is free.
    #[cfg_attr(feature = "clap", arg(short, long, value_name = "PORT"))]
    pub port: u16,
    /// Told when the worker is ready, and every 30 seconds from then on. With `localhost:9999` in it, nothing is sent.
    #[cfg_attr(feature = "clap", arg(long, value_name = "URL"))]
    pub callback_url: String,
    /// auto, cpu, cuda[:N] or metal[:N].
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
    /// The name that requests know the model by, besides its own; may be given several times.
    #[cfg_attr(feature = "clap", arg(long = "served-model-name", value_name = "NAME"))]
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub names: Vec<String>,
    /// The most bytes of a request's body.
    #[cfg_attr(feature = "clap", arg(long, value_name = "BYTES"))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payload_limit: Option<u64>,
    #[cfg_attr(feature = "clap", command(flatten))]
    #[serde(default)]
    #[allow(missing_docs, reason = "clap would print it")]
    pub tuning: Tuning,
}

/// How the model is kept and run; all as the engine thinks best by default. A model of a `pool.toml` has the same.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "clap", derive(clap::Args))]
pub struct Tuning {
    /// The format of weights and activations: f32, bf16 or f16; of a language model's weights also q8_0, q4_k, …
    #[cfg_attr(feature = "clap", arg(long, value_name = "DTYPE"))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dtype: Option<String>,
    /// The longest sequence of a language model, prompt and answer together.
    #[cfg_attr(feature = "clap", arg(long, value_name = "TOKENS"))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context: Option<u64>,
    /// The format of what a language model keeps of its tokens.
    #[cfg_attr(feature = "clap", arg(long, value_name = "DTYPE"))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kv_dtype: Option<String>,
    /// The most tokens in a batch.
    #[cfg_attr(feature = "clap", arg(long, value_name = "N", alias = "max-batch-tokens"))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batch_tokens: Option<u64>,
    /// The most requests at once; more are told to come back.
    #[cfg_attr(feature = "clap", arg(long, value_name = "N"))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_concurrent_requests: Option<u64>,
    /// Let a GPU hand ops that it lacks to the CPU.
    #[cfg_attr(feature = "clap", arg(long))]
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub allow_host: bool,
    /// Use only what is already on this machine.
    #[cfg_attr(feature = "clap", arg(long))]
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub offline: bool,
}

impl Launch {
    /// The variable in which a worker finds the key that its callers must know, and that it sends with its callbacks.
    pub const KEY: &str = "SCONCE_API_KEY";

    /// The device, by one name: `auto`, `cpu`, `cuda:0`.
    pub fn device(&self) -> String {
        match (&self.device, self.cuda_device, self.metal_device) {
            (Some(name), ..) => name.clone(),
            (None, Some(n), _) => format!("cuda:{n}"),
            (None, None, Some(n)) => format!("metal:{n}"),
            (None, None, None) => "auto".into(),
        }
    }

    /// Whether callbacks are only pretended.
    pub fn is_dry_run(&self) -> bool {
        self.callback_url.contains(super::DRY_RUN)
    }

    /// What comes behind `sconce worker`. Each flag and its value are one argument, so that a value may look like a flag.
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
        let mut give = |flag: &str, value: Option<String>| all.extend(value.map(|v| format!("--{flag}={v}")));
        give("device", device.clone());
        give("cuda-device", cuda_device.map(|n| n.to_string()));
        give("metal-device", metal_device.map(|n| n.to_string()));
        names.iter().for_each(|name| give("served-model-name", Some(name.clone())));
        give("payload-limit", payload_limit.map(|n| n.to_string()));
        all.extend(tuning.arguments());
        if let Some(n) = tuning.max_concurrent_requests {
            all.push(format!("--max-concurrent-requests={n}"));
        }
        all
    }
}

impl Tuning {
    /// What `sconce plan` reads as well.
    pub fn arguments(&self) -> Vec<String> {
        let Tuning { dtype, context, kv_dtype, batch_tokens, max_concurrent_requests: _, allow_host, offline } = self;
        let mut all = Vec::new();
        let mut give = |flag: &str, value: Option<String>| all.extend(value.map(|v| format!("--{flag}={v}")));
        give("dtype", dtype.clone());
        give("context", context.map(|n| n.to_string()));
        give("kv-dtype", kv_dtype.clone());
        give("batch-tokens", batch_tokens.map(|n| n.to_string()));
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
    fn round(launch: &Launch) {
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
    fn what_the_pool_writes_the_command_line_reads() {
        round(&plain());
        round(&Launch { device: Some("cuda:1".into()), ..plain() });
        round(&Launch { cuda_device: Some(1), ..plain() });
        round(&Launch { metal_device: Some(0), ..plain() });
        round(&Launch { payload_limit: Some(100_000_000), ..plain() });
        let tuning = Tuning {
            dtype: Some("q8_0".into()),
            context: Some(4096),
            kv_dtype: Some("f16".into()),
            batch_tokens: Some(512),
            max_concurrent_requests: Some(7),
            allow_host: true,
            offline: true,
        };
        let names = vec!["chat".into(), "--odd name".into()];
        round(&Launch { model: "-looks-like-a-flag".into(), names, tuning, ..plain() });
    }

    #[test]
    fn a_device_has_one_name() {
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
    fn a_dry_run_is_known_by_its_url() {
        assert!(!plain().is_dry_run());
        assert!(Launch { callback_url: "http://localhost:9999/x".into(), ..plain() }.is_dry_run());
    }
}
