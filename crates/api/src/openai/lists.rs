//! Lists of objects in pages, and deleted objects.

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

/// A page of a list.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct List<T> {
    /// `list`.
    pub object: String,
    /// The objects.
    pub data: Vec<T>,
    /// The id of the first object of the page.
    pub first_id: Option<String>,
    /// The id of the last object of the page: `after` of the next page.
    pub last_id: Option<String>,
    /// Whether there are objects after the last one.
    pub has_more: bool,
}

/// Which page of a list.
#[derive(Clone, Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct PageQuery {
    /// Only objects after this id, in the order of the list.
    pub after: Option<String>,
    /// Only objects before this id.
    pub before: Option<String>,
    /// The most objects.
    #[param(minimum = 1)]
    pub limit: Option<usize>,
    /// By the time of creation; the default is `desc`, newest first.
    #[param(inline)]
    pub order: Option<Order>,
}

/// The order of a list.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, PartialEq, Eq, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Order {
    /// Oldest first.
    Asc,
    /// Newest first.
    #[default]
    Desc,
}

/// An object that was deleted.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct Deleted {
    /// Its id.
    pub id: String,
    /// The kind of object.
    pub object: String,
    /// `true`.
    pub deleted: bool,
}
