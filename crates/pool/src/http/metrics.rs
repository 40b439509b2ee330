//! Prometheus metrics of the whole host: the manager's own, and those of all workers, each with a
//! `worker` label.

use crate::core::{Core, Device, STOPS};
use prometheus::{IntCounterVec, IntGaugeVec, Opts, Registry, TextEncoder};
use std::collections::HashMap;
use std::sync::atomic::AtomicU64;

/// Counters of the router.
#[derive(Debug, Default)]
pub(crate) struct RouteCounts {
    /// Requests that were sent to another worker after the first.
    pub(crate) retries: AtomicU64,
}

/// A metric family.
#[derive(Default)]
struct Family {
    header: Vec<String>,
    samples: Vec<String>,
}

/// The manager's own metrics.
pub(crate) fn manager_metrics(core: &Core, retries: u64, disk_is_well: bool) -> String {
    let mut text = String::new();
    // Cannot fail: the names and labels below are valid, as the tests check, and the writer is
    // memory.
    let _ = gather(core, retries, disk_is_well)
        .and_then(|registry| TextEncoder::new().encode_utf8(&registry.gather(), &mut text));
    text
}

/// The current values, in families with at most one label.
fn gather(core: &Core, retries: u64, disk_is_well: bool) -> prometheus::Result<Registry> {
    let registry = Registry::new();
    let gauge = |name: &str, help: &str, label: Option<&str>, samples: &[(&str, u64)]| {
        let family = IntGaugeVec::new(Opts::new(name, help), label.as_slice())?;
        for (value, n) in samples {
            family.with_label_values(label.map(|_| value).as_slice()).set(i64::try_from(*n).unwrap_or(i64::MAX));
        }
        registry.register(Box::new(family))
    };
    let counter = |name: &str, help: &str, label: Option<&str>, samples: &[(&str, u64)]| {
        let family = IntCounterVec::new(Opts::new(name, help), label.as_slice())?;
        for (value, n) in samples {
            family.with_label_values(label.map(|_| value).as_slice()).inc_by(*n);
        }
        registry.register(Box::new(family))
    };
    let devices = core.snapshot(Default::default()).devices;
    let on = |f: fn(&sconce_api::pool::Device) -> u64| devices.iter().map(|d| (&*d.id, f(d))).collect::<Vec<_>>();
    let gpus = core.devices().iter().map(Device::kind).filter(|k| *k != "cpu").count() as u64;
    gauge("pool_mgr_gpus_total", "GPUs of this host", None, &[("", gpus)])?;
    gauge("pool_mgr_gpu_vram_total_bytes", "Memory of a device", Some("device"), &on(|d| d.total_bytes))?;
    let promised = on(|d| d.allocated_bytes);
    gauge("pool_mgr_gpu_vram_allocated_bytes", "Memory reserved for workers", Some("device"), &promised)?;
    let states: Vec<_> = core.states().into_iter().map(|(state, n)| (state.name(), n)).collect();
    gauge("pool_mgr_workers_total", "Workers by state", Some("status"), &states)?;
    let counts = core.counts();
    let mut starts = vec![("success", counts.started)];
    starts.extend(counts.not_started.iter().map(|(outcome, n)| (*outcome, *n)));
    counter("pool_mgr_worker_starts_total", "Starts of workers", Some("outcome"), &starts)?;
    // A family without samples would not be printed, and its rate could not be computed.
    let mut stops: Vec<_> = STOPS.iter().map(|reason| (*reason, 0)).collect();
    stops.extend(counts.stopped.iter().map(|(reason, n)| (*reason, *n)));
    counter("pool_mgr_worker_stops_total", "Ended workers", Some("reason"), &stops)?;
    let hosts: Vec<_> = core.reachable_hosts().into_iter().map(|(host, answers)| (host, u64::from(answers))).collect();
    gauge("pool_mgr_host_reachable", "1 if the other host answers", Some("host"), &hosts)?;
    counter("pool_mgr_request_retries_total", "Requests sent to another worker", None, &[("", retries)])?;
    let well = u64::from(disk_is_well);
    gauge("pool_mgr_state_saved", "1 if the state on disk is current", None, &[("", well)])?;
    Ok(registry)
}

/// The metrics of the manager and of all workers, each family once.
pub(crate) fn merge(own: &str, workers: &[(String, String)]) -> String {
    let mut order: Vec<String> = Vec::new();
    let mut families: HashMap<String, Family> = HashMap::new();
    let mut add = |worker: Option<&str>, text: &str| {
        let mut current = String::new();
        for line in text.lines().map(str::trim_end).filter(|l| !l.is_empty()) {
            let header = line.strip_prefix("# HELP ").or_else(|| line.strip_prefix("# TYPE "));
            if line.starts_with('#') && header.is_none() {
                continue;
            }
            let name = match header {
                Some(rest) => rest.split(' ').next().unwrap_or_default(),
                None => {
                    let name = line.split(['{', ' ']).next().unwrap_or_default();
                    // A histogram's `_bucket`, `_sum` and `_count` belong to it.
                    if !current.is_empty() && name.starts_with(&current) { current.as_str() } else { name }
                }
            }
            .to_string();
            if !is_name(&name) {
                continue;
            }
            if !families.contains_key(&name) {
                order.push(name.clone());
            }
            let family = families.entry(name.clone()).or_default();
            match header {
                Some(_) if !family.header.iter().any(|a| same_kind(a, line)) => family.header.push(line.into()),
                Some(_) => {}
                None => family.samples.push(worker.map_or_else(|| line.into(), |w| with_label(line, w))),
            }
            current = name;
        }
    };
    add(None, own);
    workers.iter().for_each(|(id, text)| add(Some(id), text));
    let mut out = String::new();
    for family in order.iter().filter_map(|name| families.get(name)) {
        for line in family.header.iter().chain(&family.samples) {
            out.push_str(line);
            out.push('\n');
        }
    }
    out
}

/// The valid lines of a page from another host, which may be hostile: a scrape fails as a whole if
/// one line is invalid, and a label `worker` would stand for another worker.
pub(crate) fn valid_lines(page: &str) -> String {
    let is_valid = |line: &&str| if line.starts_with('#') { is_header(line) } else { is_sample(line).unwrap_or(false) };
    page.lines().map(str::trim_end).filter(is_valid).flat_map(|line| [line, "\n"]).collect()
}

/// Whether a line is a valid HELP or TYPE.
fn is_header(line: &str) -> bool {
    let kinds = ["counter", "gauge", "histogram", "summary", "untyped"];
    match (line.strip_prefix("# HELP "), line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' '))) {
        // An unknown escape is an error for some parsers.
        (Some(rest), _) => is_name(rest.split(' ').next().unwrap_or_default()) && !rest.contains('\\'),
        (_, Some((name, kind))) => is_name(name) && kinds.contains(&kind),
        _ => false,
    }
}

/// Whether a line is a valid sample without a label `worker`.
fn is_sample(line: &str) -> Option<bool> {
    let (name, mut rest) = line.split_at(line.find(['{', ' '])?);
    if let Some(labels) = rest.strip_prefix('{') {
        rest = after_labels(labels)?;
    }
    let mut words = rest.split_ascii_whitespace();
    let value = words.next()?.parse::<f64>().is_ok();
    let time = words.next().is_none_or(|time| time.parse::<i64>().is_ok());
    Some(is_name(name) && value && time && words.next().is_none())
}

/// What follows the labels of a sample.
fn after_labels(mut rest: &str) -> Option<&str> {
    loop {
        if let Some(after) = rest.strip_prefix('}') {
            return Some(after);
        }
        let (label, value) = rest.split_once("=\"")?;
        if !is_name(label) || label.contains(':') || label == "worker" {
            return None;
        }
        let mut escaped = false;
        let end = value.find(|c: char| {
            let ends = c == '"' && !escaped;
            escaped = c == '\\' && !escaped;
            ends
        })?;
        rest = value.get(end + 1..)?;
        rest = rest.strip_prefix(',').or(rest.starts_with('}').then_some(rest))?;
    }
}

/// Whether both are HELP, or both TYPE.
fn same_kind(a: &str, b: &str) -> bool {
    a.get(..6) == b.get(..6)
}

fn is_name(name: &str) -> bool {
    let first = name.chars().next().is_some_and(|c| c.is_ascii_alphabetic() || "_:".contains(c));
    first && name.chars().all(|c| c.is_ascii_alphanumeric() || "_:".contains(c))
}

/// A sample with a `worker` label added.
fn with_label(sample: &str, worker: &str) -> String {
    let worker = escape(worker);
    match (sample.find('{'), sample.find(' ')) {
        (Some(brace), space) if space.is_none_or(|s| brace < s) => {
            let (name, rest) = (&sample[..brace], &sample[brace + 1..]);
            let comma = if rest.trim_start().starts_with('}') { "" } else { "," };
            format!("{name}{{worker=\"{worker}\"{comma}{rest}")
        }
        (_, Some(space)) => format!("{}{{worker=\"{worker}\"}}{}", &sample[..space], &sample[space..]),
        _ => sample.to_string(),
    }
}

fn escape(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::Timings;

    #[test]
    fn merged_metrics_have_one_header_per_family_and_worker_labels() {
        let a = "# HELP te_n Requests\n# TYPE te_n counter\nte_n 1\n# HELP te_t Time\n# TYPE te_t histogram\n\
                 te_t_bucket{le=\"1\"} 2\nte_t_sum 3\nte_t_count 4\n";
        let b = "# HELP te_n Requests\n# TYPE te_n counter\nte_n{} 5\nworse line\n{bad} 1\n";
        let own = "# HELP pool_x X\n# TYPE pool_x gauge\npool_x{device=\"cpu\"} 9\n";
        let all = merge(own, &[("a".into(), a.into()), ("b\"".into(), b.into())]);
        let want = "# HELP pool_x X\n# TYPE pool_x gauge\npool_x{device=\"cpu\"} 9\n\
                    # HELP te_n Requests\n# TYPE te_n counter\nte_n{worker=\"a\"} 1\nte_n{worker=\"b\\\"\"} 5\n\
                    # HELP te_t Time\n# TYPE te_t histogram\nte_t_bucket{worker=\"a\",le=\"1\"} 2\n\
                    te_t_sum{worker=\"a\"} 3\nte_t_count{worker=\"a\"} 4\nworse{worker=\"b\\\"\"} line\n";
        assert_eq!(all, want);
    }

    #[test]
    fn invalid_metrics_of_another_host_are_left_out() {
        let page = "# HELP te_n Requests\n# TYPE te_n counter\nte_n 1\nte_n{a=\"b\",c=\"d \\\"}\"} 2.5e3 17\nte_n{} NaN\n\
                    te_n{worker=\"other\"} 1\nte_n{a=\"b\",worker=\"other\"} 1\nte_n{a=\"b\" 1\nte_n{a=\"\\\"} 1\nte_n x\n\
                    te_n 1 2 3\nbad name 1\n# TYPE te_x banana\n# HELP te_x \\q\n# HELP a b\n# else\n<html>\n{a=\"b\"} 1\nte_n{a:b=\"c\"} 1\nte_n\n";
        let want = "# HELP te_n Requests\n# TYPE te_n counter\nte_n 1\nte_n{a=\"b\",c=\"d \\\"}\"} 2.5e3 17\nte_n{} NaN\n# HELP a b\n";
        assert_eq!(valid_lines(page), want);
    }

    #[test]
    fn manager_metrics_have_the_documented_names() {
        let device = |id: &str| Device {
            device: id.into(),
            description: String::new(),
            free_bytes: 1,
            total_bytes: 2,
            best: false,
        };
        let core = Core::new(Timings::default(), vec![device("cpu"), device("cuda:0")]);
        let text = manager_metrics(&core, 3, true);
        for line in [
            "pool_mgr_gpus_total 1",
            "pool_mgr_gpu_vram_total_bytes{device=\"cuda:0\"} 2",
            "pool_mgr_gpu_vram_allocated_bytes{device=\"cpu\"} 0",
            "pool_mgr_workers_total{status=\"ready\"} 0",
            "pool_mgr_worker_starts_total{outcome=\"success\"} 0",
            "# HELP pool_mgr_worker_stops_total Ended workers",
            "# TYPE pool_mgr_worker_stops_total counter",
            "# TYPE pool_mgr_workers_total gauge",
            "pool_mgr_state_saved 1",
            "pool_mgr_request_retries_total 3",
        ] {
            assert!(text.lines().any(|l| l == line), "{line} is missing in\n{text}");
        }
    }
}
