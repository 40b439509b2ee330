//! One page of numbers for the whole host: the manager's own, and those of all workers with a `worker` label each.

use crate::core::{Core, Device, STOPS};
use prometheus::{IntCounterVec, IntGaugeVec, Opts, Registry, TextEncoder};
use std::collections::HashMap;
use std::sync::atomic::AtomicU64;

/// What the manager counts besides what the core does.
#[derive(Debug, Default)]
pub(crate) struct RouteCounts {
    /// Requests that went to another worker.
    pub(crate) retries: AtomicU64,
}

/// A family of samples.
#[derive(Default)]
struct Family {
    about: Vec<String>,
    samples: Vec<String>,
}

/// The manager's own.
pub(crate) fn own(core: &Core, retries: u64, disk_is_well: bool) -> String {
    let mut text = String::new();
    // Names and labels are those below, which the tests have all been through; writing to memory does not fail.
    let _ = gathered(core, retries, disk_is_well)
        .and_then(|registry| TextEncoder::new().encode_utf8(&registry.gather(), &mut text));
    text
}

/// The numbers of now, in families with one label or none.
fn gathered(core: &Core, retries: u64, disk_is_well: bool) -> prometheus::Result<Registry> {
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
    let devices = core.everything(Default::default()).devices;
    let on = |f: fn(&sconce_api::pool::Device) -> u64| devices.iter().map(|d| (&*d.id, f(d))).collect::<Vec<_>>();
    let gpus = core.found().iter().map(Device::kind).filter(|k| *k != "cpu").count() as u64;
    gauge("pool_mgr_gpus_total", "GPUs of this host", None, &[("", gpus)])?;
    gauge("pool_mgr_gpu_vram_total_bytes", "Memory of a device", Some("device"), &on(|d| d.total_bytes))?;
    let promised = on(|d| d.allocated_bytes);
    gauge("pool_mgr_gpu_vram_allocated_bytes", "Memory promised to workers", Some("device"), &promised)?;
    let states: Vec<_> = core.states().into_iter().map(|(state, n)| (state.name(), n)).collect();
    gauge("pool_mgr_workers_total", "Workers by what they are", Some("status"), &states)?;
    let counts = core.counts();
    let mut starts = vec![("success", counts.started)];
    starts.extend(counts.not_started.iter().map(|(outcome, n)| (*outcome, *n)));
    counter("pool_mgr_worker_starts_total", "Starts of workers", Some("outcome"), &starts)?;
    // A family without a sample would not be written, so that nothing could be said of its rate.
    let mut stops: Vec<_> = STOPS.iter().map(|reason| (*reason, 0)).collect();
    stops.extend(counts.stopped.iter().map(|(reason, n)| (*reason, *n)));
    counter("pool_mgr_worker_stops_total", "Ends of workers", Some("reason"), &stops)?;
    counter("pool_mgr_request_retries_total", "Requests sent to another worker", None, &[("", retries)])?;
    let well = u64::from(disk_is_well);
    gauge("pool_mgr_state_saved", "1 if the state on disk is current", None, &[("", well)])?;
    Ok(registry)
}

/// All of them, each family once.
pub(crate) fn merged(own: &str, workers: &[(String, String)]) -> String {
    let mut order: Vec<String> = Vec::new();
    let mut families: HashMap<String, Family> = HashMap::new();
    let mut add = |worker: Option<&str>, text: &str| {
        let mut current = String::new();
        for line in text.lines().map(str::trim_end).filter(|l| !l.is_empty()) {
            let about = line.strip_prefix("# HELP ").or_else(|| line.strip_prefix("# TYPE "));
            if line.starts_with('#') && about.is_none() {
                continue;
            }
            let name = match about {
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
            match about {
                Some(_) if !family.about.iter().any(|a| same_kind(a, line)) => family.about.push(line.into()),
                Some(_) => {}
                None => family.samples.push(worker.map_or_else(|| line.into(), |w| labelled(line, w))),
            }
            current = name;
        }
    };
    add(None, own);
    workers.iter().for_each(|(id, text)| add(Some(id), text));
    let mut out = String::new();
    for family in order.iter().filter_map(|name| families.get(name)) {
        for line in family.about.iter().chain(&family.samples) {
            out.push_str(line);
            out.push('\n');
        }
    }
    out
}

/// Whether both are HELP, or both TYPE.
fn same_kind(a: &str, b: &str) -> bool {
    a.get(..6) == b.get(..6)
}

fn is_name(name: &str) -> bool {
    let first = name.chars().next().is_some_and(|c| c.is_ascii_alphabetic() || "_:".contains(c));
    first && name.chars().all(|c| c.is_ascii_alphanumeric() || "_:".contains(c))
}

/// A sample with one label more.
fn labelled(sample: &str, worker: &str) -> String {
    let worker = escaped(worker);
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

fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::Timings;

    #[test]
    fn every_family_is_told_once_and_every_sample_names_its_worker() {
        let a = "# HELP te_n Requests\n# TYPE te_n counter\nte_n 1\n# HELP te_t Time\n# TYPE te_t histogram\n\
                 te_t_bucket{le=\"1\"} 2\nte_t_sum 3\nte_t_count 4\n";
        let b = "# HELP te_n Requests\n# TYPE te_n counter\nte_n{} 5\nworse line\n{bad} 1\n";
        let own = "# HELP pool_x X\n# TYPE pool_x gauge\npool_x{device=\"cpu\"} 9\n";
        let all = merged(own, &[("a".into(), a.into()), ("b\"".into(), b.into())]);
        let want = "# HELP pool_x X\n# TYPE pool_x gauge\npool_x{device=\"cpu\"} 9\n\
                    # HELP te_n Requests\n# TYPE te_n counter\nte_n{worker=\"a\"} 1\nte_n{worker=\"b\\\"\"} 5\n\
                    # HELP te_t Time\n# TYPE te_t histogram\nte_t_bucket{worker=\"a\",le=\"1\"} 2\n\
                    te_t_sum{worker=\"a\"} 3\nte_t_count{worker=\"a\"} 4\nworse{worker=\"b\\\"\"} line\n";
        assert_eq!(all, want);
    }

    #[test]
    fn the_managers_own_have_the_names_of_the_contract() {
        let device = |id: &str| Device {
            device: id.into(),
            description: String::new(),
            free_bytes: 1,
            total_bytes: 2,
            best: false,
        };
        let core = Core::new(Timings::default(), vec![device("cpu"), device("cuda:0")]);
        let text = own(&core, 3, true);
        for line in [
            "pool_mgr_gpus_total 1",
            "pool_mgr_gpu_vram_total_bytes{device=\"cuda:0\"} 2",
            "pool_mgr_gpu_vram_allocated_bytes{device=\"cpu\"} 0",
            "pool_mgr_workers_total{status=\"ready\"} 0",
            "pool_mgr_worker_starts_total{outcome=\"success\"} 0",
            "# HELP pool_mgr_worker_stops_total Ends of workers",
            "# TYPE pool_mgr_worker_stops_total counter",
            "# TYPE pool_mgr_workers_total gauge",
            "pool_mgr_state_saved 1",
            "pool_mgr_request_retries_total 3",
        ] {
            assert!(text.lines().any(|l| l == line), "{line} is missing in\n{text}");
        }
    }
}
