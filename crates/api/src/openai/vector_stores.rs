//! Vector stores: files that can be searched.

use super::common::OneOrMore;
use super::lists::Order;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use utoipa::{IntoParams, ToSchema};

/// Key–value pairs of a file, which filters of a search can use. (Fields name the type itself: the
/// OpenAPI document cannot see through an alias.)
pub type Attributes = BTreeMap<String, Attribute>;

/// A value of an attribute.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq, ToSchema)]
#[serde(untagged)]
pub enum Attribute {
    /// True or false.
    Bool(bool),
    /// A whole number.
    Integer(i64),
    /// A number.
    Float(f64),
    /// A text of at most 512 characters.
    Text(String),
}

/// How files are cut into chunks.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, PartialEq, Eq, ToSchema)]
#[serde(tag = "type", rename_all = "lowercase")]
pub enum ChunkingStrategy {
    /// As suits the model.
    #[default]
    Auto,
    /// Chunks of a given length.
    Static {
        /// The lengths.
        #[serde(rename = "static")]
        sizes: StaticChunking,
    },
}

/// The lengths of chunks. The model's limit holds, if it is less; the response has what was used.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq, Eq, ToSchema)]
pub struct StaticChunking {
    /// The most tokens of a chunk, 100 to 4,096 in requests.
    pub max_chunk_size_tokens: usize,
    /// The tokens that a chunk shares with the one before it, at most half of the chunk.
    pub chunk_overlap_tokens: usize,
}

/// When a vector store expires.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq, Eq, ToSchema)]
pub struct ExpiresAfter {
    /// `last_active_at`.
    pub anchor: String,
    /// Days after the last search or change, 1 to 365.
    #[schema(minimum = 1, maximum = 365)]
    pub days: u64,
}

/// `POST /v1/vector_stores`.
#[derive(Clone, Debug, Default, Deserialize, ToSchema)]
pub struct CreateVectorStore {
    /// A name for people.
    pub name: Option<String>,
    /// What the store is for.
    pub description: Option<String>,
    /// Files to index.
    pub file_ids: Option<Vec<String>>,
    /// How these files are cut into chunks.
    pub chunking_strategy: Option<ChunkingStrategy>,
    /// When the store expires.
    pub expires_after: Option<ExpiresAfter>,
    /// At most 16 key–value pairs of the client.
    pub metadata: Option<BTreeMap<String, String>>,
    /// The model of the embeddings; by default the server's first one that embeds. Our own.
    pub embedding_model: Option<String>,
}

/// `POST /v1/vector_stores/{id}`. Fields that are left out stay; null clears.
#[derive(Clone, Debug, Default, Deserialize, ToSchema)]
pub struct UpdateVectorStore {
    /// A name for people.
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Option<String>)]
    pub name: Option<Option<String>>,
    /// When the store expires.
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Option<ExpiresAfter>)]
    pub expires_after: Option<Option<ExpiresAfter>>,
    /// At most 16 key–value pairs of the client.
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Option<BTreeMap<String, String>>)]
    pub metadata: Option<Option<BTreeMap<String, String>>>,
}

/// A field that is there, null or not.
fn given<'de, D: Deserializer<'de>, T: Deserialize<'de>>(from: D) -> Result<Option<Option<T>>, D::Error> {
    Option::<T>::deserialize(from).map(Some)
}

/// A vector store.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct VectorStore {
    /// Its id.
    pub id: String,
    /// `vector_store`.
    pub object: String,
    /// When it was created, in seconds since 1970.
    pub created_at: u64,
    /// Its name; may be empty.
    pub name: String,
    /// What it is for.
    pub description: Option<String>,
    /// The size of its texts and embeddings.
    pub usage_bytes: u64,
    /// Its files by status.
    pub file_counts: FileCounts,
    /// `in_progress` while files are indexed, then `completed`; `expired` when it can no longer be
    /// searched.
    pub status: StoreStatus,
    /// When it expires.
    pub expires_after: Option<ExpiresAfter>,
    /// When it expires, in seconds since 1970.
    pub expires_at: Option<u64>,
    /// The last search or change, in seconds since 1970.
    pub last_active_at: Option<u64>,
    /// The client's key–value pairs.
    pub metadata: BTreeMap<String, String>,
    /// The model of the embeddings. Our own.
    pub embedding_model: String,
}

/// Status of a vector store.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq, Eq, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum StoreStatus {
    /// It can no longer be searched.
    Expired,
    /// Files are being indexed.
    InProgress,
    /// All files are done.
    Completed,
}

/// Files by status.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, PartialEq, Eq, ToSchema)]
pub struct FileCounts {
    /// Waiting or being indexed.
    pub in_progress: usize,
    /// Indexed.
    pub completed: usize,
    /// Not indexed, because of an error.
    pub failed: usize,
    /// Not indexed, because the client cancelled.
    pub cancelled: usize,
    /// All.
    pub total: usize,
}

impl FileCounts {
    /// Counts one file.
    pub fn add(&mut self, status: FileStatus) {
        self.total += 1;
        match status {
            FileStatus::InProgress => self.in_progress += 1,
            FileStatus::Completed => self.completed += 1,
            FileStatus::Failed => self.failed += 1,
            FileStatus::Cancelled => self.cancelled += 1,
        }
    }
}

/// Status of a file in a vector store.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq, Eq, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum FileStatus {
    /// Waiting or being indexed.
    InProgress,
    /// It can be found.
    Completed,
    /// The client cancelled.
    Cancelled,
    /// It could not be indexed.
    Failed,
}

/// Why a file could not be indexed.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq, Eq, ToSchema)]
pub struct LastError {
    /// The kind of error.
    pub code: FileErrorCode,
    /// What failed.
    pub message: String,
}

/// Kind of error of a file.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq, Eq, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum FileErrorCode {
    /// The server or its model failed.
    ServerError,
    /// The format is not supported.
    UnsupportedFile,
    /// The file is damaged.
    InvalidFile,
}

/// `POST /v1/vector_stores/{id}/files`.
#[derive(Clone, Debug, Deserialize, ToSchema)]
pub struct AttachFile {
    /// An uploaded file.
    pub file_id: String,
    /// At most 16 key–value pairs, which filters of a search can use.
    pub attributes: Option<BTreeMap<String, Attribute>>,
    /// How the file is cut into chunks.
    pub chunking_strategy: Option<ChunkingStrategy>,
}

/// `POST /v1/vector_stores/{id}/files/{file_id}`.
#[derive(Clone, Debug, Deserialize, ToSchema)]
pub struct UpdateFile {
    /// The new attributes, all of them; null for none.
    #[serde(deserialize_with = "Option::deserialize")]
    #[schema(required = true)]
    pub attributes: Option<BTreeMap<String, Attribute>>,
}

/// A file in a vector store.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct VectorStoreFile {
    /// The file's id.
    pub id: String,
    /// `vector_store.file`.
    pub object: String,
    /// When it was attached, in seconds since 1970.
    pub created_at: u64,
    /// The vector store.
    pub vector_store_id: String,
    /// The size of its text and embeddings.
    pub usage_bytes: u64,
    /// Whether it can be found.
    pub status: FileStatus,
    /// Why it could not be indexed.
    pub last_error: Option<LastError>,
    /// Key–value pairs, which filters of a search can use.
    pub attributes: BTreeMap<String, Attribute>,
    /// How the file is cut into chunks; once it is indexed, the lengths that were used.
    pub chunking_strategy: ChunkingStrategy,
}

/// Which files of a vector store.
#[derive(Clone, Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct VectorStoreFileQuery {
    /// Only files after this id, in the order of the list.
    pub after: Option<String>,
    /// Only files before this id.
    pub before: Option<String>,
    /// The most files; the default is 20.
    #[param(minimum = 1, maximum = 100)]
    pub limit: Option<usize>,
    /// By the time of attaching; the default is `desc`, newest first.
    #[param(inline)]
    pub order: Option<Order>,
    /// Only files with this status.
    #[param(inline)]
    pub filter: Option<FileStatus>,
}

/// The text of a file in a vector store.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct FileContentPage {
    /// `vector_store.file_content.page`.
    pub object: String,
    /// The text; for a table, a part for each row.
    pub data: Vec<ContentPart>,
    /// `false`.
    pub has_more: bool,
    /// Always null.
    pub next_page: Option<String>,
}

/// A part of a text.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq, Eq, ToSchema)]
pub struct ContentPart {
    /// `text`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The text.
    pub text: String,
}

impl ContentPart {
    /// A text.
    pub fn text(text: String) -> ContentPart {
        ContentPart { kind: "text".into(), text }
    }
}

/// `POST /v1/vector_stores/{id}/file_batches`: either `file_ids`, or `files`.
#[derive(Clone, Debug, Default, Deserialize, ToSchema)]
pub struct CreateFileBatch {
    /// Uploaded files, at most 2,000.
    pub file_ids: Option<Vec<String>>,
    /// The attributes of all `file_ids`.
    pub attributes: Option<BTreeMap<String, Attribute>>,
    /// How all `file_ids` are cut into chunks.
    pub chunking_strategy: Option<ChunkingStrategy>,
    /// Uploaded files, each with its own attributes and chunking, at most 2,000.
    pub files: Option<Vec<AttachFile>>,
}

/// Files that were attached together.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct VectorStoreFileBatch {
    /// Its id.
    pub id: String,
    /// `vector_store.files_batch`.
    pub object: String,
    /// When it was created, in seconds since 1970.
    pub created_at: u64,
    /// The vector store.
    pub vector_store_id: String,
    /// `in_progress` while its files are indexed.
    pub status: FileStatus,
    /// Its files by status.
    pub file_counts: FileCounts,
}

/// `POST /v1/vector_stores/{id}/search`.
#[derive(Clone, Debug, Deserialize, ToSchema)]
pub struct SearchRequest {
    /// A query, or several, whose results are joined.
    pub query: OneOrMore,
    /// A comparison `{"type": "eq", "key": …, "value": …}` (`eq`, `ne`, `gt`, `gte`, `lt`, `lte`,
    /// `in`, `nin`) or a combination `{"type": "and", "filters": […]}` (`and`, `or`).
    #[schema(value_type = Option<Object>)]
    pub filters: Option<Value>,
    /// The most results; the default is 10.
    #[schema(minimum = 1, maximum = 50)]
    pub max_num_results: Option<usize>,
    /// How results are ranked.
    pub ranking_options: Option<RankingOptions>,
    /// Must be false: the server does not rewrite queries.
    pub rewrite_query: Option<bool>,
}

/// How results are ranked.
#[derive(Clone, Copy, Debug, Default, Deserialize, ToSchema)]
pub struct RankingOptions {
    /// The ranker; the default is `auto`.
    pub ranker: Option<Ranker>,
    /// Only results with at least this score, 0 to 1.
    #[schema(minimum = 0, maximum = 1)]
    pub score_threshold: Option<f64>,
}

/// How results are ranked.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, PartialEq, Eq, ToSchema)]
pub enum Ranker {
    /// By words and by meaning (BM25 and embeddings, a weighted sum of their scores). The score is
    /// 1 for what both rank first.
    #[default]
    #[serde(rename = "auto")]
    Auto,
    /// The same as `auto`.
    #[serde(rename = "default-2024-11-15")]
    Default20241115,
    /// By meaning alone; the score is the cosine similarity.
    #[serde(rename = "none")]
    None,
}

/// The results of a search.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct SearchPage {
    /// `vector_store.search_results.page`.
    pub object: String,
    /// The queries.
    pub search_query: Vec<String>,
    /// The results, best first.
    pub data: Vec<SearchResult>,
    /// `false`.
    pub has_more: bool,
    /// Always null.
    pub next_page: Option<String>,
}

/// A passage that was found.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct SearchResult {
    /// The file.
    pub file_id: String,
    /// Its name.
    pub filename: String,
    /// How well the passage fits, 0 to 1.
    pub score: f64,
    /// The file's attributes.
    pub attributes: BTreeMap<String, Attribute>,
    /// The passage.
    pub content: Vec<ContentPart>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn chunking_strategies_are_tagged() {
        assert_eq!(
            serde_json::from_value::<ChunkingStrategy>(json!({"type": "auto"})).unwrap(),
            ChunkingStrategy::Auto
        );
        let fixed = json!({"type": "static", "static": {"max_chunk_size_tokens": 100, "chunk_overlap_tokens": 50}});
        let strategy: ChunkingStrategy = serde_json::from_value(fixed.clone()).unwrap();
        assert_eq!(serde_json::to_value(strategy).unwrap(), fixed);
        assert!(serde_json::from_value::<ChunkingStrategy>(json!({"type": "static"})).is_err());
    }

    #[test]
    fn null_clears_and_absent_fields_stay() {
        let update: UpdateVectorStore = serde_json::from_value(json!({"name": null, "metadata": {"a": "b"}})).unwrap();
        assert_eq!((update.name, update.expires_after), (Some(None), None));
        assert_eq!(update.metadata.flatten().unwrap()["a"], "b");
        assert!(serde_json::from_value::<UpdateFile>(json!({})).is_err());
        assert!(serde_json::from_value::<UpdateFile>(json!({"attributes": null})).unwrap().attributes.is_none());
    }

    #[test]
    fn attributes_keep_their_types() {
        let json = json!({"a": true, "b": 5, "c": 5.5, "d": "5"});
        let attributes: Attributes = serde_json::from_value(json.clone()).unwrap();
        assert_eq!(attributes["b"], Attribute::Integer(5));
        assert_eq!(serde_json::to_value(attributes).unwrap(), json);
    }
}
