//! The engine's counts in Prometheus's text format, read at each scrape.

use crate::app::App;
use crate::model_manager::ModelSummary;
use sconce_engine::{Activity, CacheConfig, TaskModel};
use std::fmt::{Display, Write};

/// All metric families that models provide.
pub(super) fn text(app: &App) -> String {
    let all = app.models.list();
    let mut text = Text { text: String::new(), family: "" };
    text.family("sconce_build_info", "gauge", "Version of the server");
    text.line(&[("version", env!("CARGO_PKG_VERSION"))], 1);
    text.family("sconce_uptime_seconds", "gauge", "Seconds since the server started");
    text.line(&[], app.started_at.elapsed().as_secs());
    text.family("sconce_model_state", "gauge", "1 for the current state of a model");
    for model in &all {
        text.line(&[("model", &model.spec.id), ("state", model.status.name())], 1);
    }
    let loaded: Vec<&ModelSummary> = all.iter().filter(|m| m.served.is_some()).collect();
    let each = || loaded.iter().filter_map(|m| m.served.as_ref().map(|s| (m, s)));
    text.family("sconce_model_bytes", "gauge", "Bytes of a model: planned, and peak of its tensors");
    for (model, served) in each() {
        let device = served.model.loaded().plan().runs_on();
        let labels = |kind| [("model", model.spec.id.as_str()), ("device", device.as_str()), ("kind", kind)];
        text.line(&labels("planned"), served.bytes());
        text.line(&labels("peak"), served.model.loaded().peak_bytes());
    }
    text.family("sconce_model_leases", "gauge", "Requests that hold a lease of a model");
    for model in &loaded {
        text.line(&[("model", &model.spec.id)], model.leases);
    }
    text.family("sconce_op_calls_total", "counter", "Calls of an op, by the device, dtype and rung that ran them");
    for (model, served) in each() {
        for counted in served.model.loaded().op_calls() {
            let labels = [
                ("op", counted.op.as_str()),
                ("device", counted.device.as_str()),
                ("dtype", counted.dtype.as_str()),
                ("rung", counted.rung.as_str()),
                ("model", model.spec.id.as_str()),
            ];
            text.line(&labels, counted.calls);
        }
    }
    encoders(&mut text, &loaded);
    language(&mut text, &loaded);
    text.text
}

/// Queue and micro-batches of all encoders together, under text-embeddings-inference's names.
fn encoders(text: &mut Text, loaded: &[&ModelSummary]) {
    let waiting = || loaded.iter().filter_map(|m| m.served.as_ref()).map(|s| s.model.loaded().queue());
    text.family("te_queue_size", "gauge", "Requests in the queue");
    text.line(&[], waiting().map(|w| w.requests).sum::<usize>());
    text.family("te_batch_next_size", "gauge", "Texts of the last micro-batch, of the model that had the most");
    text.line(&[], waiting().map(|w| w.batch_sequences).max().unwrap_or(0));
    text.family("te_batch_next_tokens", "gauge", "Tokens of the last micro-batch, of the model that had the most");
    text.line(&[], waiting().map(|w| w.batch_tokens).max().unwrap_or(0));
}

/// Language models, under vLLM's names. `docs/kubernetes.md` says which of them the Gateway API
/// inference extension reads: name, type and labels of those must stay as they are.
fn language(text: &mut Text, loaded: &[&ModelSummary]) {
    let models: Vec<(&str, CacheConfig, Activity)> = loaded
        .iter()
        .filter_map(|m| match m.served.as_ref().map(|s| &s.model) {
            Some(TaskModel::Generate(llm)) => Some((m.spec.id.as_str(), llm.cache_config(), llm.activity())),
            _ => None,
        })
        .collect();
    if models.is_empty() {
        return;
    }
    // The extension reads the size of a block and their number from the labels.
    text.family("vllm:cache_config_info", "gauge", "The KV cache of a model, in its labels; always 1");
    for (model, cache, _) in &models {
        let (size, blocks) = (cache.block_size.to_string(), cache.blocks.to_string());
        let dtype = cache.format.to_string();
        text.line(
            &[("model_name", model), ("block_size", &size), ("num_gpu_blocks", &blocks), ("cache_dtype", &dtype)],
            1,
        );
    }
    type Read = fn(&Activity) -> f64;
    let families: [(&'static str, &str, &str, Read); 8] = [
        ("vllm:num_requests_running", "gauge", "Running sequences", |a| a.running as f64),
        ("vllm:num_requests_waiting", "gauge", "Requests that wait for KV cache blocks", |a| a.waiting as f64),
        ("vllm:kv_cache_usage_perc", "gauge", "Used fraction of the KV cache, 0 to 1", |a| f64::from(a.cache_used)),
        ("vllm:num_preemptions_total", "counter", "Sequences preempted to free KV cache blocks", |a| {
            a.preemptions as f64
        }),
        ("vllm:prefix_cache_queries_total", "counter", "Tokens looked up in the prefix cache", |a| {
            a.prefix_queries as f64
        }),
        ("vllm:prefix_cache_hits_total", "counter", "Tokens found in the prefix cache", |a| a.prefix_hits as f64),
        ("vllm:prompt_tokens_total", "counter", "Prompt tokens", |a| a.prompt_tokens as f64),
        ("vllm:generation_tokens_total", "counter", "Generated tokens", |a| a.generated_tokens as f64),
    ];
    for (name, kind, help, read) in families {
        text.family(name, kind, help);
        for (model, _, activity) in &models {
            text.line(&[("model_name", model)], read(activity));
        }
    }
}

/// Writer of Prometheus's text format.
struct Text {
    text: String,
    /// The current metric family.
    family: &'static str,
}

impl Text {
    fn family(&mut self, name: &'static str, kind: &str, help: &str) {
        // Writing to a string cannot fail.
        let _ = write!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
        self.family = name;
    }

    fn line(&mut self, labels: &[(&str, &str)], value: impl Display) {
        let label = |(name, value): &(&str, &str)| format!("{name}=\"{}\"", escaped(value));
        let labels: Vec<String> = labels.iter().map(label).collect();
        let labels = if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
        let _ = writeln!(self.text, "{}{labels} {value}", self.family);
    }
}

fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_escaped() {
        let mut text = Text { text: String::new(), family: "" };
        text.family("a_total", "counter", "What it is");
        text.line(&[("model", "a\"b\\c\nd")], 3);
        assert_eq!(
            text.text,
            "# HELP a_total What it is\n# TYPE a_total counter\na_total{model=\"a\\\"b\\\\c\\nd\"} 3\n"
        );
    }
}
