//! `generation_config.json`: recommended parameters, for any kind of model that generates text.

use crate::sampling::GenerationParams;
use serde_json::Value;

/// Options that change answers and are not supported, with their neutral values.
const UNSUPPORTED: [(&str, f64); 8] = [
    ("no_repeat_ngram_size", 0.0),
    ("encoder_no_repeat_ngram_size", 0.0),
    ("min_length", 0.0),
    ("min_new_tokens", 0.0),
    ("num_beam_groups", 1.0),
    ("diversity_penalty", 0.0),
    ("encoder_repetition_penalty", 1.0),
    ("penalty_alpha", 0.0),
];
const UNSUPPORTED_LISTS: [&str; 6] = [
    "forced_bos_token_id",
    "forced_eos_token_id",
    "bad_words_ids",
    "suppress_tokens",
    "begin_suppress_tokens",
    "sequence_bias",
];

/// A note for each unsupported option that is set.
pub(crate) fn unsupported_notes(config: &Value) -> Vec<String> {
    let is_set = |(key, neutral): &&(&str, f64)| config[key].as_f64().is_some_and(|v| v != *neutral);
    let numbers = UNSUPPORTED.iter().filter(is_set).map(|(key, _)| *key);
    let empty = |value: &Value| value.is_null() || value.as_array().is_some_and(Vec::is_empty);
    let others = UNSUPPORTED_LISTS.into_iter().filter(|key| !empty(&config[*key]));
    numbers.chain(others).map(|key| unsupported_note(config, key)).collect()
}

/// The note that `key` is not supported.
pub(crate) fn unsupported_note(config: &Value, key: &str) -> String {
    let mut value: String = config[key].to_string().chars().take(60).collect();
    if value.len() < config[key].to_string().len() {
        value.push('…');
    }
    format!("generation_config.json asks for {key} = {value}, which is not supported: answers may differ")
}

/// A count in the file.
pub(crate) fn count(config: &Value, key: &str) -> Option<usize> {
    config[key].as_u64().map(|n| usize::try_from(n).unwrap_or(usize::MAX))
}

/// Greedy decoding: the least surprising default where the files recommend nothing.
pub(crate) fn greedy() -> GenerationParams {
    GenerationParams { temperature: 0.0, ..GenerationParams::default() }
}

/// The recommended sampling parameters. As in transformers, penalties apply to greedy decoding too.
pub(crate) fn params(config: &Value) -> Result<GenerationParams, String> {
    let number = |key: &str, usual: f32| match &config[key] {
        Value::Null => Ok(usual),
        value => value.as_f64().map(|v| v as f32).ok_or_else(|| format!("{key} is {value}, not a number")),
    };
    let greedy = GenerationParams { repetition_penalty: number("repetition_penalty", 1.0)?, ..greedy() };
    let params = if config["do_sample"].as_bool() == Some(true) {
        // Fifty is the default of transformers; zero keeps all.
        let top_k = config["top_k"].as_u64().unwrap_or(50) as u32;
        GenerationParams {
            temperature: number("temperature", 1.0)?,
            top_k: Some(top_k).filter(|k| *k > 0),
            top_p: number("top_p", 1.0)?,
            min_p: number("min_p", 0.0)?,
            ..greedy
        }
    } else {
        greedy
    };
    params.check(usize::MAX).map_err(|invalid| invalid.to_string())?;
    Ok(params)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn repetition_penalty_applies_to_greedy_decoding() {
        let greedy = params(&json!({"repetition_penalty": 1.2, "temperature": 0.6, "top_k": 3})).unwrap();
        assert_eq!(
            greedy,
            GenerationParams { temperature: 0.0, repetition_penalty: 1.2, ..GenerationParams::default() }
        );
        let sampled = params(&json!({"do_sample": true, "repetition_penalty": 1.2, "temperature": 0.6})).unwrap();
        assert_eq!((sampled.temperature, sampled.top_k, sampled.repetition_penalty), (0.6, Some(50), 1.2));
        for wrong in [json!({"repetition_penalty": "much"}), json!({"repetition_penalty": -1})] {
            assert!(params(&wrong).unwrap_err().contains("repetition_penalty"), "{wrong}");
        }
    }

    #[test]
    fn unsupported_settings_are_noted() {
        let neutral =
            json!({"no_repeat_ngram_size": 0, "num_beam_groups": 1, "bad_words_ids": null, "suppress_tokens": []});
        assert_eq!(unsupported_notes(&neutral), Vec::<String>::new());
        let value =
            json!({"no_repeat_ngram_size": 3, "suppress_tokens": vec![1; 1000], "begin_suppress_tokens": [220]});
        let notes = unsupported_notes(&value);
        assert_eq!(notes.len(), 3, "{notes:?}");
        assert!(notes[0].contains("no_repeat_ngram_size = 3"), "{notes:?}");
        assert!(notes[1].contains("suppress_tokens = [1,1") && notes[1].len() < 200, "{notes:?}");
        assert!(unsupported_notes(&Value::Null).is_empty());
    }
}
