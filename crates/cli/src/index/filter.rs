//! The flag `--filter`.

use clap::Args;
use sconce_index::Filter;

/// Conditions on documents.
#[derive(Args, Clone)]
pub(crate) struct FilterArgs {
    /// Only documents whose metadata pass: KEY=VALUE, with one of = != > >= < <=, or KEY:PATTERN
    /// with * and ?. Every file has the keys `path`, `extension` and `kind`. May be repeated: all
    /// must pass.
    #[arg(long, value_name = "KEY=VALUE", value_parser = parse)]
    filter: Vec<Filter>,
}

impl FilterArgs {
    /// One filter that passes what all pass; `None` if there are none.
    pub(crate) fn all(&self) -> Option<Filter> {
        Filter::all(self.filter.clone())
    }
}

fn parse(text: &str) -> Result<Filter, String> {
    Filter::parse(text).map_err(|e| e.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_are_joined() {
        assert!(FilterArgs { filter: vec![] }.all().is_none());
        let filter = vec![parse("year>=2020").unwrap(), parse("path:docs/*").unwrap()];
        assert!(matches!(FilterArgs { filter }.all(), Some(Filter::And(all)) if all.len() == 2));
        assert!(parse("nonsense").is_err());
    }
}
