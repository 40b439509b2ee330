//! Recommended generation settings of a sequence-to-sequence model.

use super::generation_config::{count, unsupported_note, unsupported_notes};
use crate::error::{Error, Result};
use crate::sampling::{BeamSearch, EarlyStopping, GenerationParams, Search};
use sconce_formats::optional_json;
use serde_json::Value;
use std::path::Path;

/// The recommendations of `generation_config.json` and `config.json`.
#[derive(Clone, Debug)]
pub(crate) struct Seq2SeqGeneration {
    /// The token that begins every answer.
    pub(crate) start: u32,
    pub(crate) search: Search,
    /// The most tokens of an answer.
    pub(crate) most: Option<usize>,
    /// Notes on unsupported options.
    pub(crate) notes: Vec<String>,
}

impl Seq2SeqGeneration {
    /// Reads the settings of the model in `root`; `params` are its sampling parameters.
    pub(crate) fn read(root: &Path, config: &Value, params: &GenerationParams) -> Result<Seq2SeqGeneration> {
        let path = root.join("generation_config.json");
        let generation: Value = optional_json(&path)?.unwrap_or_default();
        Seq2SeqGeneration::of(&generation, config, params).map_err(|what| Error::file(root, what))
    }

    /// Refuses a start token outside of the vocabulary.
    pub(crate) fn check(&self, root: &Path, vocabulary: usize) -> Result<()> {
        if self.start as usize >= vocabulary {
            let what = format!("the start token {} is outside of the model's vocabulary of {vocabulary}", self.start);
            return Err(Error::file(root, what));
        }
        Ok(())
    }

    fn of(generation: &Value, config: &Value, params: &GenerationParams) -> Result<Seq2SeqGeneration, String> {
        let named = [&generation["decoder_start_token_id"], &config["decoder_start_token_id"], &config["pad_token_id"]];
        let start = named.iter().find_map(|id| id.as_u64());
        let start = start.and_then(|id| u32::try_from(id).ok());
        let start = start.ok_or("config.json has no start token: neither decoder_start_token_id nor pad_token_id")?;
        let number = |key: &str| count(generation, key);
        // `max_length` counts the start token.
        let most = number("max_new_tokens").or(number("max_length").map(|n| n.saturating_sub(1))).filter(|n| *n > 0);
        let mut notes = unsupported_notes(generation);
        let beams = number("num_beams").unwrap_or(1);
        let samples = generation["do_sample"].as_bool() == Some(true);
        if beams > 1 && samples {
            notes.push(unsupported_note(generation, "num_beams"));
        }
        let search = if beams > 1 && !samples {
            let early_stopping = match &generation["early_stopping"] {
                Value::Null | Value::Bool(false) => EarlyStopping::No,
                Value::Bool(true) => EarlyStopping::Yes,
                Value::String(s) if s == "never" => EarlyStopping::Never,
                other => return Err(format!("early_stopping is {other}; it must be true, false or \"never\"")),
            };
            let length_penalty = generation["length_penalty"].as_f64().unwrap_or(1.0) as f32;
            let num_return_sequences = number("num_return_sequences").unwrap_or(1).clamp(1, beams);
            Search::Beams(BeamSearch { num_beams: beams, length_penalty, early_stopping, num_return_sequences })
        } else {
            Search::Sample(params.clone())
        };
        Ok(Seq2SeqGeneration { start, search, most, notes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn of(generation: Value, config: Value) -> Result<Seq2SeqGeneration, String> {
        Seq2SeqGeneration::of(&generation, &config, &GenerationParams::default())
    }

    #[test]
    fn generation_config_sets_start_token_search_and_limits() {
        let config = json!({"decoder_start_token_id": 3, "pad_token_id": 0});
        let plain = of(json!({}), config.clone()).unwrap();
        assert_eq!((plain.start, plain.most, plain.notes.len()), (3, None, 0));
        assert_eq!(plain.search, Search::Sample(GenerationParams::default()));
        assert_eq!(of(json!({}), json!({"pad_token_id": 0})).unwrap().start, 0);
        assert!(of(json!({}), json!({})).unwrap_err().contains("decoder_start_token_id"));
        let beyond = of(json!({"decoder_start_token_id": 10}), config.clone()).unwrap();
        assert!(beyond.check(Path::new("t5"), 10).unwrap_err().to_string().contains("vocabulary of 10"));
        assert!(beyond.check(Path::new("t5"), 11).is_ok());
        let generation = json!({"num_beams": 5, "length_penalty": 0.6, "early_stopping": "never", "max_length": 21});
        let searched = of(generation, config.clone()).unwrap();
        let beams = BeamSearch {
            num_beams: 5,
            length_penalty: 0.6,
            early_stopping: EarlyStopping::Never,
            ..BeamSearch::default()
        };
        assert_eq!((searched.search, searched.most), (Search::Beams(beams), Some(20)));
        let limited =
            json!({"no_repeat_ngram_size": 3, "min_length": 0, "forced_eos_token_id": 1, "max_new_tokens": 7});
        let limited = of(limited, config.clone()).unwrap();
        assert!(
            limited.notes.len() == 2 && limited.notes[0].contains("no_repeat_ngram_size = 3"),
            "{:?}",
            limited.notes
        );
        assert_eq!(limited.most, Some(7));
        assert!(of(json!({"num_beams": 2, "early_stopping": 3}), config).is_err());
    }
}
