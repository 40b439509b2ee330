//! Leases: which process works on which shard.
//!
//! A lease is a file per shard and generation: `leases/00007.g2.json`. A process claims a shard by
//! creating the file of the next generation, which succeeds for one process only. After that only
//! this process writes the file: its heartbeat is a counter in it. So no file ever has two writers,
//! and a store needs nothing but exclusive creation. The holder of the highest generation is the
//! holder of the shard.

use crate::error::Result;
use crate::store::Store;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Folder of leases.
pub(crate) const FOLDER: &str = "leases";

/// A process that works on shards.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    /// Random, so that two processes never have the same.
    pub id: String,
    /// Its host, for people.
    pub host: String,
    /// Its process id on that host, for people.
    pub pid: u32,
}

impl Holder {
    /// This process, on a host of this name.
    pub fn new(host: String) -> Result<Holder, getrandom::Error> {
        let mut random = [0; 8];
        getrandom::fill(&mut random)?;
        let id = format!("{:016x}", u64::from_le_bytes(random));
        Ok(Holder { id, host, pid: std::process::id() })
    }
}

/// What a lease's file says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LeaseRecord {
    /// Who works on the shard.
    pub holder: Holder,
    /// Counts up with every heartbeat.
    pub heartbeat: u64,
    /// How many processes have begun to compute the shard, this one included.
    pub attempts: u32,
    /// Whether the holder gave the shard back.
    pub released: bool,
    /// Rows of the shard that are computed.
    pub rows: u64,
    /// Rows per second of the holder, over all its shards, by its own clock.
    pub rate: f64,
}

/// Name of a lease's file.
pub(crate) fn file_name(shard: usize, generation: u32) -> String {
    format!("{FOLDER}/{shard:05}.g{generation}.json")
}

/// Shard and generation of a file in the folder of leases.
pub(crate) fn parse_name(name: &str) -> Option<(usize, u32)> {
    let (shard, generation) = name.strip_suffix(".json")?.split_once(".g")?;
    Some((shard.parse().ok()?, generation.parse().ok()?))
}

/// The leases that exist of the first `count` shards, each with its highest generation.
pub(crate) fn highest(store: &dyn Store, count: usize) -> Result<BTreeMap<usize, u32>> {
    let mut all = BTreeMap::new();
    for entry in store.list(FOLDER)? {
        if let Some((shard, generation)) = parse_name(&entry.name).filter(|(shard, _)| *shard < count) {
            let highest = all.entry(shard).or_insert(generation);
            *highest = generation.max(*highest);
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_leases_are_read_back() {
        for (shard, generation) in [(0, 1), (7, 12), (123_456, 3)] {
            let name = file_name(shard, generation);
            assert_eq!(parse_name(name.strip_prefix("leases/").unwrap()), Some((shard, generation)), "{name}");
        }
        for name in ["", "00007.json", "00007.g.json", "x.g1.json", "00007.g1.json.tmp", "00007.g-1.json"] {
            assert_eq!(parse_name(name), None, "{name}");
        }
    }
}
