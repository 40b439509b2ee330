//! Uploaded files.

use super::lists::Order;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use utoipa::{IntoParams, ToSchema};

/// What a file is for.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq, Eq, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Purpose {
    /// Vector stores.
    Assistants,
    /// Input of a batch.
    Batch,
    /// Output of a batch; made by the server.
    BatchOutput,
    /// Fine-tuning.
    #[serde(rename = "fine-tune")]
    FineTune,
    /// Images.
    Vision,
    /// Anything.
    UserData,
    /// Evaluations.
    Evals,
}

impl Purpose {
    const NAMES: [(&'static str, Purpose); 7] = [
        ("assistants", Purpose::Assistants),
        ("batch", Purpose::Batch),
        ("batch_output", Purpose::BatchOutput),
        ("fine-tune", Purpose::FineTune),
        ("vision", Purpose::Vision),
        ("user_data", Purpose::UserData),
        ("evals", Purpose::Evals),
    ];
}

impl FromStr for Purpose {
    type Err = String;
    fn from_str(text: &str) -> Result<Purpose, String> {
        let found = Purpose::NAMES.into_iter().find(|(name, _)| *name == text);
        found
            .map(|(_, purpose)| purpose)
            .ok_or_else(|| "use one of assistants, batch, fine-tune, vision, user_data, evals".to_owned())
    }
}

impl fmt::Display for Purpose {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let found = Purpose::NAMES.into_iter().find(|(_, purpose)| purpose == self);
        f.write_str(found.map_or("", |(name, _)| name))
    }
}

/// An uploaded file.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct FileObject {
    /// Its id.
    pub id: String,
    /// `file`.
    pub object: String,
    /// Its size.
    pub bytes: u64,
    /// When it was uploaded, in seconds since 1970.
    pub created_at: u64,
    /// When it is deleted, in seconds since 1970.
    pub expires_at: Option<u64>,
    /// Its name.
    pub filename: String,
    /// What it is for.
    pub purpose: Purpose,
    /// `processed`.
    pub status: String,
    /// Always null.
    pub status_details: Option<String>,
}

/// `POST /v1/files`, as `multipart/form-data`.
#[derive(ToSchema)]
#[allow(dead_code, reason = "read by the derive alone")]
pub struct UploadForm {
    /// The file, with its name.
    #[schema(value_type = String, format = Binary)]
    pub file: Vec<u8>,
    /// What it is for.
    pub purpose: Purpose,
    /// `created_at`: the file is deleted some time after its upload.
    #[schema(rename = "expires_after[anchor]")]
    pub expires_after_anchor: Option<String>,
    /// Seconds from the upload until the file is deleted.
    #[schema(rename = "expires_after[seconds]", minimum = 3600, maximum = 2592000)]
    pub expires_after_seconds: Option<u64>,
}

/// Which files of the list.
#[derive(Clone, Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct FileQuery {
    /// Only files after this id, in the order of the list.
    pub after: Option<String>,
    /// The most files; the default is 10,000.
    #[param(minimum = 1, maximum = 10000)]
    pub limit: Option<usize>,
    /// By the time of the upload; the default is `desc`, newest first.
    #[param(inline)]
    pub order: Option<Order>,
    /// Only files for this purpose.
    pub purpose: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn purposes_have_one_name_in_json_and_text() {
        for (name, purpose) in Purpose::NAMES {
            assert_eq!(serde_json::to_value(purpose).unwrap(), name);
            assert_eq!((purpose.to_string().as_str(), name.parse()), (name, Ok(purpose)));
        }
        assert!("assistant".parse::<Purpose>().is_err());
    }
}
