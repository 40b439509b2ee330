//! Ids of workers and random tokens.

/// A model name as part of a worker id: letters, digits and dashes.
pub(crate) fn slug(name: &str) -> String {
    let last = name.rsplit('/').next().unwrap_or(name).to_lowercase();
    let plain: String = last.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).take(32).collect();
    let trimmed = plain.trim_matches('-');
    if trimmed.is_empty() { "worker".into() } else { trimmed.into() }
}

/// Unpredictable hexadecimal digits.
pub(crate) fn random_hex(bytes: usize) -> String {
    let mut all = vec![0; bytes];
    // Fails only if the system has no source of randomness, where nothing of ours would be safe.
    getrandom::fill(&mut all).expect("the system has random numbers");
    all.iter().map(|b| format!("{b:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slugs_are_safe_file_names_and_ids_are_random() {
        assert_eq!(slug("HuggingFaceTB/SmolLM2-135M"), "smollm2-135m");
        assert_eq!(slug("../../etc/pass wd"), "pass-wd");
        assert_eq!(slug("/"), "worker");
        assert_eq!(slug(&"é".repeat(99)), "worker");
        assert_ne!(random_hex(16), random_hex(16));
        assert_eq!(random_hex(16).len(), 32);
    }
}
