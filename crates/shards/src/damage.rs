//! Outputs and records that a full disk damaged, or a crash of the system.

use crate::commit::remove_local;
use crate::coordinator::Coordinator;
use crate::error::Result;
use crate::record::{self, DoneRecord};
use std::collections::BTreeMap;
use std::path::Path;

/// End of the names of files that were taken away.
pub(crate) const TAKEN: &str = ".damaged";

impl Coordinator {
    /// Finds outputs that are not as long as their record says. Objects are written whole, so they
    /// are not checked.
    pub(crate) fn find_damaged(&self) -> Result<()> {
        if !self.store.shares_scratch() {
            return Ok(());
        }
        let listed = self.store.list(record::DATA)?;
        let listed: BTreeMap<&str, u64> = listed.iter().map(|entry| (entry.name.as_str(), entry.size)).collect();
        let known: Vec<usize> = self.state().done.iter().enumerate().filter_map(|(i, d)| d.then_some(i)).collect();
        for shard in known {
            let (data, _) = self.manifest.output_names(shard);
            let name = data.rsplit('/').next().unwrap_or_default();
            let record = self.done_record(shard)?;
            let is_listed = record.as_ref().is_some_and(|record| listed.get(name) == Some(&record.bytes));
            // A network file system may list less than there is.
            if !is_listed && !self.is_intact(shard, record.as_ref())? {
                let mut state = self.state();
                state.done[shard] = false;
                state.damaged.insert(shard);
            }
        }
        Ok(())
    }

    /// Whether the output of a shard is as long as this record says.
    fn is_intact(&self, shard: usize, record: Option<&DoneRecord>) -> Result<bool> {
        let Some(record) = record else { return Ok(false) };
        Ok(self.store.size(&self.manifest.output_names(shard).0)? == Some(record.bytes))
    }

    /// Removes the record of a damaged shard, once the shard is claimed. Its output is replaced when
    /// the new one is committed.
    pub(crate) fn repair(&self, shard: usize) -> Result<()> {
        if !self.state().damaged.contains(&shard) {
            return Ok(());
        }
        // Another process may have repaired it meanwhile.
        if !self.is_intact(shard, self.done_record(shard)?.as_ref())? {
            self.take_damaged(&record::done_name(shard), |local| {
                let content = std::fs::read(local).ok();
                let record: Option<DoneRecord> = content.and_then(|content| serde_json::from_slice(&content).ok());
                self.is_intact(shard, record.as_ref())
            })?;
        }
        self.state().damaged.remove(&shard);
        Ok(())
    }

    /// Takes a damaged file away. If this process is late, another one may have replaced the file
    /// after this one judged it. So the file that was really taken is judged again, and gets its
    /// name back if it is good.
    pub(crate) fn take_damaged(&self, name: &str, is_good: impl FnOnce(&Path) -> Result<bool>) -> Result<()> {
        // No other process removes a file of such a name.
        let local = format!("{}-{}{TAKEN}", self.holder.id, name.replace('/', "-"));
        let local = self.store.scratch()?.join(local);
        if !self.store.take_away(name, &local)? {
            return Ok(());
        }
        let is_good = is_good(&local);
        if !matches!(is_good, Ok(false)) {
            self.store.publish(&local, name)?;
        }
        remove_local(&local);
        is_good.map(drop)
    }
}
