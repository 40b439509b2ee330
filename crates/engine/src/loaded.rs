//! What can be asked of any model that is loaded, whatever its task.

use crate::Result;
use crate::line::Waiting;
use crate::plan::Plan;
use sconce_hub::Files;
use sconce_ops::Counted;
use sconce_text::TextToken;

/// A model that is loaded and proven, whatever its task.
pub trait Loaded {
    /// What was planned before loading.
    fn plan(&self) -> &Plan;
    /// Where the files came from.
    fn files(&self) -> &Files;
    /// What really ran since loading, by op, device, dtype and rung.
    fn counts(&self) -> Vec<(Counted, u64)>;
    /// The most bytes that tensors held at once since loading, weights included.
    fn peak_bytes(&self) -> u64;
    /// What waits for it, and what it ran last.
    fn waiting(&self) -> Waiting;
    /// The tokens of a text and where in it they come from, uncut; with those that begin and end one if `special`.
    fn tokenize(&self, text: &str, special: bool) -> Result<Vec<TextToken>>;
    /// The text of tokens; without those that begin and end one, and others that are no text, if `skip_special`.
    fn detokenize(&self, ids: &[u32], skip_special: bool) -> Result<String>;
}

/// Lets a task tell what the model inside it can tell, and work for somebody.
macro_rules! loaded {
    ($task:ident, $self:ident => $inner:expr, $how:ident => $other:expr) => {
        impl $crate::loaded::Loaded for $task {
            fn plan(&$self) -> &$crate::Plan {
                $crate::loaded::Loaded::plan($inner)
            }
            fn files(&$self) -> &sconce_hub::Files {
                $crate::loaded::Loaded::files($inner)
            }
            fn counts(&$self) -> Vec<(sconce_ops::Counted, u64)> {
                $crate::loaded::Loaded::counts($inner)
            }
            fn peak_bytes(&$self) -> u64 {
                $crate::loaded::Loaded::peak_bytes($inner)
            }
            fn waiting(&$self) -> $crate::Waiting {
                $crate::loaded::Loaded::waiting($inner)
            }
            fn tokenize(&$self, text: &str, special: bool) -> $crate::Result<Vec<$crate::TextToken>> {
                $crate::loaded::Loaded::tokenize($inner, text, special)
            }
            fn detokenize(&$self, ids: &[u32], skip_special: bool) -> $crate::Result<String> {
                $crate::loaded::Loaded::detokenize($inner, ids, skip_special)
            }
        }

        impl $task {
            /// The same model, working for `caller`: what is asked of it ends when that is cancelled or late. Cheap; works of all
            /// callers run in common batches.
            pub fn on_behalf_of(&self, caller: &$crate::Caller) -> $task {
                self.but(&$crate::session::How { caller: Some(caller.clone()), ..Default::default() })
            }

            /// The same model, with another way to deal with texts that are longer than it can take. Cheap.
            pub fn truncating(&self, truncate: $crate::Truncate) -> $task {
                self.but(&$crate::session::How { truncate: Some(truncate), ..Default::default() })
            }

            pub(crate) fn but(&$self, $how: &$crate::session::How) -> $task {
                $other
            }
        }
    };
}
pub(crate) use loaded;
