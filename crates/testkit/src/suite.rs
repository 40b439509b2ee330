//! Tests that need a device. Where it is missing they are reported as ignored, and they fail if
//! `SCONCE_REQUIRE` names it: `SCONCE_REQUIRE="cuda amx" cargo test`.

use libtest_mimic::{Arguments, Trial};

/// The kinds of devices that models run on.
const KINDS: [&str; 3] = ["cpu", "cuda", "metal"];

/// The tests of one file, in place of `#[test]`. The file needs `harness = false` in `Cargo.toml`.
pub struct Suite {
    devices: Vec<(&'static str, bool)>,
    required: Vec<String>,
    trials: Vec<Trial>,
}

impl Suite {
    /// A suite for `devices`: their names, and whether this machine has them.
    ///
    /// # Panics
    /// If `SCONCE_REQUIRE` names something that is not in `devices`.
    pub fn new(devices: Vec<(&'static str, bool)>) -> Suite {
        let required = std::env::var("SCONCE_REQUIRE").unwrap_or_default();
        let required: Vec<String> = required.split_whitespace().map(str::to_owned).collect();
        let unknown = required.iter().find(|name| devices.iter().all(|(device, _)| device != name));
        assert!(unknown.is_none(), "SCONCE_REQUIRE: `{}` is not one of {devices:?}", unknown.map_or("", |name| name));
        Suite { devices, required, trials: Vec::new() }
    }

    /// Adds a test that runs everywhere.
    pub fn test(mut self, name: &str, run: impl FnOnce() + Send + 'static) -> Suite {
        self.trials.push(Trial::test(name, || {
            run();
            Ok(())
        }));
        self
    }

    /// Adds a test that needs `device`.
    ///
    /// # Panics
    /// If the suite does not know `device`.
    pub fn on(mut self, device: &'static str, name: &str, run: impl FnOnce() + Send + 'static) -> Suite {
        let known = self.devices.iter().find(|(name, _)| *name == device);
        let (_, is_here) = *known.unwrap_or_else(|| panic!("{name}: there is no device `{device}`"));
        let is_required = self.required.iter().any(|name| name == device);
        let trial = Trial::test(format!("{name}_on_{device}"), move || {
            if is_required && !is_here {
                return Err(format!("SCONCE_REQUIRE names {device}, which this machine or this build lacks").into());
            }
            run();
            Ok(())
        });
        self.trials.push(trial.with_ignored_flag(!is_here && !is_required));
        self
    }

    /// Adds a test that runs once for each kind of device and receives its name.
    pub fn on_each(self, name: &str, run: fn(&str)) -> Suite {
        KINDS.into_iter().fold(self, |suite, kind| suite.on(kind, name, move || run(kind)))
    }

    /// Runs the tests that the command line selects, as `#[test]` does, and exits.
    pub fn run(self) -> ! {
        libtest_mimic::run(&Arguments::from_args(), self.trials).exit()
    }
}
