//! The line or page of a chunk, and the headings above it.

use crate::document::{Heading, Layout, Unit};

/// Finds places for offsets that grow.
pub(super) struct Locator<'a> {
    text: &'a str,
    layout: &'a Layout,
    /// The line at `counted`, where lines are counted in the text.
    line: u32,
    counted: usize,
    /// The headings above, outermost first, and how many headings were seen.
    path: Vec<&'a Heading>,
    seen: usize,
}

impl<'a> Locator<'a> {
    pub(super) fn new(text: &'a str, layout: &'a Layout) -> Self {
        Self { text, layout, line: 1, counted: 0, path: Vec::new(), seen: 0 }
    }

    /// The line or page, and the path of headings, of an offset that is not before the last one.
    pub(super) fn locate(&mut self, offset: usize) -> (Option<u32>, Option<String>) {
        (self.place(offset), self.heading(offset))
    }

    fn place(&mut self, offset: usize) -> Option<u32> {
        let starts = &self.layout.starts;
        if self.layout.unit == Unit::Line && starts.is_empty() {
            let passed = self.text.as_bytes().get(self.counted..offset).unwrap_or_default();
            let lines = passed.iter().filter(|&&b| b == b'\n').count();
            self.line = self.line.saturating_add(u32::try_from(lines).unwrap_or(u32::MAX));
            self.counted = offset.max(self.counted);
            return Some(self.line);
        }
        if self.layout.unit == Unit::None {
            return None;
        }
        let after = starts.partition_point(|(start, _)| *start <= offset);
        starts.get(after.saturating_sub(1)).map(|(_, number)| *number)
    }

    fn heading(&mut self, offset: usize) -> Option<String> {
        while let Some(heading) = self.layout.headings.get(self.seen).filter(|heading| heading.offset <= offset) {
            self.path.retain(|above| above.level < heading.level);
            self.path.push(heading);
            self.seen += 1;
        }
        if self.path.is_empty() {
            return None;
        }
        Some(self.path.iter().map(|heading| heading.text.as_str()).collect::<Vec<_>>().join(" > "))
    }
}
