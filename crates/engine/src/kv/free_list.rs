//! The free KV blocks: a queue of small integers with O(1) removal from the middle.

/// Integers below a bound, each at most once, in order: a linked list whose links are in one array.
pub(crate) struct FreeList {
    links: Vec<Link>,
    head: Option<u32>,
    tail: Option<u32>,
    len: usize,
}

#[derive(Clone, Copy, Default)]
struct Link {
    before: Option<u32>,
    after: Option<u32>,
}

impl FreeList {
    /// All integers below `bound`, ascending.
    pub(crate) fn full(bound: u32) -> FreeList {
        let mut queue = FreeList { links: vec![Link::default(); bound as usize], head: None, tail: None, len: 0 };
        (0..bound).for_each(|i| queue.push_back(i));
        queue
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Adds `i`, which must not be in the queue, at the end.
    pub(crate) fn push_back(&mut self, i: u32) {
        self.links[i as usize] = Link { before: self.tail, after: None };
        *self.after(self.tail) = Some(i);
        self.tail = Some(i);
        self.len += 1;
    }

    /// Adds `i`, which must not be in the queue, at the front.
    pub(crate) fn push_front(&mut self, i: u32) {
        self.links[i as usize] = Link { before: None, after: self.head };
        *self.before(self.head) = Some(i);
        self.head = Some(i);
        self.len += 1;
    }

    pub(crate) fn pop_front(&mut self) -> Option<u32> {
        let i = self.head?;
        self.remove(i);
        Some(i)
    }

    /// Removes `i`, which must be in the queue.
    pub(crate) fn remove(&mut self, i: u32) {
        let Link { before, after } = std::mem::take(&mut self.links[i as usize]);
        *self.after(before) = after;
        *self.before(after) = before;
        self.len -= 1;
    }

    /// The link to the successor of `i`; for `None`, to the first element.
    fn after(&mut self, i: Option<u32>) -> &mut Option<u32> {
        match i {
            Some(i) => &mut self.links[i as usize].after,
            None => &mut self.head,
        }
    }

    /// The link to the predecessor of `i`; for `None`, to the last element.
    fn before(&mut self, i: Option<u32>) -> &mut Option<u32> {
        match i {
            Some(i) => &mut self.links[i as usize].before,
            None => &mut self.tail,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::any;
    use proptest::sample::Index;
    use sconce_testkit::check;
    use std::collections::VecDeque;

    #[test]
    fn free_list_behaves_like_a_deque() {
        let inputs = (1..=50u32, vec((0..4, any::<Index>()), 0..300));
        check(100, &inputs, |(bound, operations)| {
            let mut queue = FreeList::full(bound);
            let mut plain: VecDeque<u32> = (0..bound).collect();
            let mut out: Vec<u32> = Vec::new();
            for (operation, which) in operations {
                match operation {
                    0 => {
                        assert_eq!(queue.pop_front(), plain.front().copied());
                        out.extend(plain.pop_front());
                    }
                    1 if !plain.is_empty() => {
                        let i = plain.remove(which.index(plain.len())).unwrap();
                        queue.remove(i);
                        out.push(i);
                    }
                    2 if !out.is_empty() => {
                        let i = out.swap_remove(which.index(out.len()));
                        queue.push_front(i);
                        plain.push_front(i);
                    }
                    _ if !out.is_empty() => {
                        let i = out.swap_remove(which.index(out.len()));
                        queue.push_back(i);
                        plain.push_back(i);
                    }
                    _ => {}
                }
                assert_eq!(queue.len(), plain.len());
            }
            let rest: Vec<u32> = std::iter::from_fn(|| queue.pop_front()).collect();
            assert_eq!(rest, Vec::from(plain));
        });
    }
}
