//! Pages of lists, with OpenAI's cursors.

use crate::error::Fault;
use sconce_api::openai::lists::{List, Order};

/// Which page of a list.
pub(crate) struct Page<'a> {
    /// Only objects after this id, in the order of the list.
    pub(crate) after: Option<&'a str>,
    /// Only objects before this id.
    pub(crate) before: Option<&'a str>,
    /// The most objects.
    pub(crate) limit: usize,
    /// The order.
    pub(crate) order: Order,
}

impl<'a> Page<'a> {
    /// Checks a request's `limit`.
    pub(crate) fn limit(asked: Option<usize>, default: usize, most: usize) -> Result<usize, Fault> {
        match asked.unwrap_or(default) {
            limit if (1..=most).contains(&limit) => Ok(limit),
            limit => Err(Fault::invalid(format!("`limit` is {limit}; it must be 1 to {most}")).at("limit")),
        }
    }

    /// The page of `all`, which are in the order of their creation. Only the objects of the page are
    /// made into `T`.
    pub(crate) fn of<R, T>(
        &self,
        all: &[R],
        id: impl Fn(&R) -> &str,
        object: impl Fn(&R) -> T,
    ) -> Result<List<T>, Fault> {
        let ordered: Vec<&R> = match self.order {
            Order::Asc => all.iter().collect(),
            Order::Desc => all.iter().rev().collect(),
        };
        let find = |cursor: &str, param: &str| {
            let absent = || Fault::invalid(format!("`{param}`: there is no `{cursor}` in this list")).at(param);
            ordered.iter().position(|one| id(one) == cursor).ok_or_else(absent)
        };
        let start = self.after.map(|cursor| find(cursor, "after")).transpose()?.map_or(0, |at| at + 1);
        let end = self.before.map(|cursor| find(cursor, "before")).transpose()?.unwrap_or(ordered.len()).max(start);
        // Without `after`, the page before a cursor is the one that ends there.
        let page = match (self.after, self.before) {
            (None, Some(_)) => end.saturating_sub(self.limit).max(start)..end,
            _ => start..end.min(start.saturating_add(self.limit)),
        };
        let has_more = match (self.after, self.before) {
            (None, Some(_)) => page.start > start,
            _ => page.end < end,
        };
        let page = ordered.get(page).unwrap_or_default();
        Ok(List {
            object: "list".into(),
            first_id: page.first().map(|one| id(one).to_owned()),
            last_id: page.last().map(|one| id(one).to_owned()),
            data: page.iter().map(|one| object(one)).collect(),
            has_more,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cursors_lead_through_a_list() {
        let all = ["a", "b", "c", "d", "e"];
        let page = |after: Option<&str>, before: Option<&str>, order| {
            let page = Page { after, before, limit: 2, order };
            let list = page.of(&all, |one| one, |one| one.to_string()).unwrap();
            (list.data.concat(), list.has_more)
        };
        assert_eq!(page(None, None, Order::Asc), ("ab".into(), true));
        assert_eq!(page(Some("b"), None, Order::Asc), ("cd".into(), true));
        assert_eq!(page(Some("d"), None, Order::Asc), ("e".into(), false));
        assert_eq!(page(Some("e"), None, Order::Asc), (String::new(), false));
        assert_eq!(page(None, None, Order::Desc), ("ed".into(), true));
        assert_eq!(page(None, Some("d"), Order::Asc), ("bc".into(), true));
        assert_eq!(page(None, Some("b"), Order::Asc), ("a".into(), false));
        assert_eq!(page(Some("a"), Some("c"), Order::Asc), ("b".into(), false));
        assert_eq!(page(Some("c"), Some("a"), Order::Asc), (String::new(), false));
        let lost = Page { after: Some("z"), before: None, limit: 2, order: Order::Asc };
        assert_eq!(lost.of(&all, |one| one, |_| ()).unwrap_err().param.as_deref(), Some("after"));
        assert!(Page::limit(Some(0), 20, 100).is_err() && Page::limit(Some(101), 20, 100).is_err());
        assert_eq!(Page::limit(None, 20, 100).unwrap(), 20);
    }
}
