//! Names of files and folders that hold keys, passwords or tokens.

/// Whether a folder's name is one that only holds secrets, and settings of the same programs.
pub(super) fn is_secret_folder(name: &str) -> bool {
    matches!(name, ".ssh" | ".gnupg" | ".aws" | ".azure" | ".kube" | ".docker" | ".password-store")
}

/// Whether a file's name is one that private keys, passwords or tokens have.
pub fn is_secret_name(name: &str) -> bool {
    const NAMES: &[&str] = &[
        ".netrc",
        "_netrc",
        ".pgpass",
        ".my.cnf",
        ".npmrc",
        ".pypirc",
        ".htpasswd",
        ".git-credentials",
        ".dockercfg",
        ".vault-token",
        ".s3cfg",
        ".boto",
        "credentials",
        "secring.gpg",
        "master.key",
    ];
    const ENDINGS: &[&str] = &[
        ".pem",
        ".key",
        ".p12",
        ".pfx",
        ".kdb",
        ".kdbx",
        ".jks",
        ".keystore",
        ".ppk",
        ".pkcs12",
        ".tfstate",
        ".tfstate.backup",
        ".tfvars",
        ".ovpn",
    ];
    const KEYS: &[&str] = &["id_rsa", "id_dsa", "id_ecdsa", "id_ed25519", "id_ecdsa_sk", "id_ed25519_sk"];
    // Data files of these names hold secrets; `credentials.md` is a text about them.
    const STEMS: &[&str] = &["credentials", "secrets", "client_secret", "service-account"];
    const DATA: &[&str] = &["json", "yaml", "yml", "toml", "ini", "csv", "xml", "properties", "db"];
    let name = name.to_ascii_lowercase();
    let (stem, ending) = name.split_once('.').unwrap_or((name.as_str(), ""));
    name.starts_with(".env")
        || name.ends_with(".env")
        || NAMES.contains(&name.as_str())
        || ENDINGS.iter().any(|ending| name.ends_with(ending))
        || (KEYS.contains(&stem) && ending != "pub")
        || (STEMS.iter().any(|s| stem.starts_with(s)) && DATA.contains(&ending))
}
