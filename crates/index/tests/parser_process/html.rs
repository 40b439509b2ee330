//! HTML pages, friendly and hostile.

use std::time::{Duration, Instant};

use sconce_index::Kind;

use super::{one, text};

pub(crate) fn html_becomes_text() {
    let page = "<!DOCTYPE html><html lang=en><head><title> A  page </title><meta name=description content='What it is'>\
        <style>p {}</style></head><body><nav>Menu</nav><h1>One<a href=#one>§</a></h1><p>First\n  line,<b>bold</b>.<br>\
        Second<script>alert(1)</script></p><ul><li>a<li>b</ul><div hidden>secret</div><pre>  x\n    y</pre>\
        <h2>Two</h2><table><tr><td>1<td>2</table><p style='display: none'>no</p><p>&lt;end&gt;</body></html>";
    let document = one("a.html", page);
    assert_eq!(document.kind, Kind::Html);
    assert_eq!(document.title.as_deref(), Some("A page"));
    assert_eq!(document.metadata["lang"], text("en"));
    assert_eq!(document.metadata["description"], text("What it is"));
    let expected = "One§\n\nFirst line,bold.\nSecond\n\na\nb\n\n  x\n    y\n\n\nTwo\n\n1 2\n\n<end>";
    assert_eq!(document.text, expected);
    let headings: Vec<(usize, u8, &str)> =
        document.layout.headings.iter().map(|h| (h.offset, h.level, h.text.as_str())).collect();
    assert_eq!(headings, [(0, 1, "One"), (expected.find("Two").unwrap(), 2, "Two")]);
}

pub(crate) fn html_of_other_encodings() {
    let latin = b"<meta charset=iso-8859-1><p>Gr\xfc\xdfe \x96 \x80";
    assert_eq!(one("a.html", latin).text, "Grüße – €");
    let utf16: Vec<u8> = "\u{feff}<p>Grüße".encode_utf16().flat_map(u16::to_le_bytes).collect();
    assert_eq!(one("a.html", utf16).text, "Grüße");
}

pub(crate) fn deep_html_keeps_its_text() {
    for tag in ["div", "b", "span", "table", "svg", "a", "p", "li", "font"] {
        let depth = 200_000;
        let (open, close) = (format!("<{tag}>"), format!("</{tag}>"));
        let page = format!("<p>before</p>{}inside{}<p>after</p>", open.repeat(depth), close.repeat(depth));
        let began = Instant::now();
        let document = one("a.html", page);
        assert!(document.text.contains("before") && document.text.contains("after"), "{tag}: {}", document.text);
        // The content of a drawing is left out.
        assert!(tag == "svg" || document.text.contains("inside"), "{tag}");
        assert!(began.elapsed() < Duration::from_secs(20), "{tag}: {:?}", began.elapsed());
    }
    let unclosed = "<div>x ".repeat(200_000);
    assert_eq!(one("a.html", unclosed).text.matches('x').count(), 200_000);
}

/// The text of a page, with `|` for each break of lines.
fn lines(page: &str) -> String {
    one("a.html", page).text.split('\n').filter(|line| !line.is_empty()).collect::<Vec<_>>().join("|")
}

pub(crate) fn left_out_end_tags_are_supplied() {
    for (page, expected) in [
        ("<ul><li hidden>no<li>a<ul><li>b</ul><li>c</ul>d", "a|b|c|d"),
        ("<p hidden>no<p>a", "a"),
        ("<p hidden>no<div>a</div>", "a"),
        ("<p hidden>no<h2>a</h2>", "a"),
        ("<div hidden><p>no</div>a", "a"),
        ("<table><tr hidden><td>no<tr><td>a<td hidden>no<td>b</table>", "a b"),
        ("<table><thead hidden><tr><th>no<tbody><tr><td>a</table>", "a"),
        ("<dl><dt hidden>no<dd>a<dt>b</dl>", "a|b"),
        ("<p hidden><b>no<p>a</b>b", "ab"),
        ("<h1>One<h2>Two</h2>", "One|Two"),
        ("<pre>\n a\n  b</pre>", " a|  b"),
    ] {
        assert_eq!(lines(page), expected, "{page}");
    }
    let headings: Vec<String> =
        one("a.html", "<h1>One<h2>Two</h2>").layout.headings.into_iter().map(|heading| heading.text).collect();
    assert_eq!(headings, ["One", "Two"]);
}

pub(crate) fn html_that_breaks_rules_keeps_its_text() {
    for (page, expected) in [
        ("<div>a</span></b></p></div></div>b", "a|b"),
        ("<b><div>a</b>b</div>c", "ab|c"),
        ("<svg><title/><path></svg>a", "a"),
        ("<svg><style/></svg>a", "a"),
        ("<svg/>a", "a"),
        ("<svg><g><p>a", "a"),
        ("<svg><foreignObject><p>no</p></foreignObject></svg>a", "a"),
        ("a<script>if (a < b) { '</div>' }</script>b<style><p></style>c", "abc"),
        ("a<!-- <p> --><![CDATA[ x ]]>b", "ab"),
        ("<p title='a > b'>a &amp; b &#x1b;[31m</body></html>c", "a & b [31m|c"),
        ("<p>a<br/>b<hr>c", "a|b|c"),
        ("a<", "a<"),
        ("a</", "a</"),
        ("a<b", "a"),
    ] {
        assert_eq!(lines(page), expected, "{page}");
    }
    // Names without end, which a tree or an index of names would pay for more than once.
    let many: String = (0..100_000).map(|i| format!("<x{i}>a</y{i}>")).collect();
    assert_eq!(one("a.html", many).text, "a".repeat(100_000));
}
