//! Divides input files into shards that several processes work on: the manifest that pins a run,
//! leases with heartbeats and generations, publishing of results, and the status. Knows no model.

mod clock;
mod commit;
mod coordinator;
mod damage;
mod disk;
mod error;
mod input;
mod lease;
mod lines;
mod location;
mod manifest;
#[cfg(test)]
mod memory;
#[cfg(feature = "object-store")]
mod object;
mod observer;
mod record;
mod status;
mod store;

pub use clock::{Clock, Monotonic};
pub use commit::Committed;
pub use coordinator::{Claim, Coordinator, Next, Progress, Start};
pub use disk::Disk;
pub use error::{Error, Result};
pub use input::{InputStore, Listed};
pub use lease::{Holder, LeaseRecord};
pub use lines::{LinePart, LineSplitter, SplitLimits};
pub use location::{Location, open_inputs, open_output};
pub use manifest::{Digest, InputFile, Job, MAX_SHARDS, Manifest, ModelPin, Part, Shard, footer_digest};
pub use record::{DoneRecord, Finished};
pub use status::{InWork, Status, Watch};
pub use store::{Created, Entry, Published, Store};
