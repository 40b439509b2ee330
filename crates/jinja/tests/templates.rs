//! Templates compared with their rendering by transformers, and hostile templates.

use sconce_jinja::{Clock, Fault, Template};
use serde_json::{Map, Value, json};
use std::time::{Duration, Instant};

fn render(source: &str) -> Result<String, Fault> {
    let messages = json!([{"role": "system", "content": "S"}, {"role": "user", "content": "hello"}]);
    let (bos, eos) = (json!("<s>"), json!("</s>"));
    let names = [("messages", &messages), ("bos_token", &bos), ("eos_token", &eos)];
    Template::new(source)?.render(&names, &Map::new(), Clock::utc_now())
}

/// Reasoning text has three names. As in transformers, a template finds it under the first, and
/// under the second, which then precedes all other keys.
fn with_reasoning(mut messages: Value) -> Value {
    for message in messages.as_array_mut().into_iter().flatten().filter_map(Value::as_object_mut) {
        let mut named = ["reasoning_content", "thinking", "reasoning"].iter().filter_map(|name| message.get(*name));
        if let Some(reasoning) = named.find(|reasoning| !reasoning.is_null()).cloned() {
            let rest = std::mem::take(message);
            message.insert("thinking".into(), reasoning.clone());
            message.extend(rest);
            message.insert("reasoning_content".into(), reasoning);
        }
    }
    messages
}

/// Templates in the style of the model families, and single expressions, compared with
/// transformers.
#[test]
fn rendering_matches_transformers() {
    let file: Value = serde_json::from_str(include_str!("cases.json")).unwrap();
    let now = Clock { unix: file["unix"].as_i64().unwrap(), offset: 0 };
    let cases = file["cases"].as_array().unwrap();
    assert!(cases.len() > 200);
    let mut wrong = Vec::new();
    for case in cases {
        let of = |list: &str| case[list].as_u64().map_or(Value::Null, |i| file[list][i as usize].clone());
        let (messages, tools) = (with_reasoning(of("messages")), of("tools"));
        let (bos, eos, documents) = (json!("<s>"), json!("</s>"), Value::Null);
        let names = [
            ("messages", &messages),
            ("tools", &tools),
            ("documents", &documents),
            ("add_generation_prompt", &case["agp"]),
            ("bos_token", &bos),
            ("eos_token", &eos),
        ];
        let template = Template::new(case["source"].as_str().unwrap());
        let got = template.and_then(|t| t.render(&names, case["extra"].as_object().unwrap(), now));
        if got.as_deref().ok() != case["want"].as_str() {
            wrong.push(format!("{}: {got:?}, not {}", case["name"], case["want"]));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Hostile templates: each must end soon with an error.
#[test]
fn hostile_templates_end_with_an_error() {
    let deep = |open: &str, close: &str, n: usize| format!("{{{{ {}1{} }}}}", open.repeat(n), close.repeat(n));
    let blocks = format!("{}{}", "{% if true %}".repeat(5000), "{% endif %}".repeat(5000));
    let templates: Vec<String> = [
        "{% for a in range(10**9) %}{% endfor %}",
        "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}{% endfor %}{% endfor %}{% endfor %}",
        "{% for a in range(99999) %}{% for b in range(99999) %}x{{ a }}{% endfor %}{% endfor %}",
        "{{ 'a' * 10**12 }}",
        "{{ ('a' * 10**7) * 10**7 }}",
        "{{ [0] * 10**12 }}",
        "{% set ns = namespace(x='ab') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
        "{% set ns = namespace(x='ab') %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
        "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
        "{% set ns = namespace(x='ab') %}{% for i in range(60) %}{% set ns.x = '%s%s' % (ns.x, ns.x) %}{% endfor %}",
        "{% set ns = namespace(x='ab') %}{% for i in range(60) %}{% set ns.x = '{0}{0}'.format(ns.x) %}{% endfor %}",
        "{% set ns = namespace(x='ab') %}{% for i in range(60) %}{% set ns.x = ns.x.replace('a', ns.x) %}{% endfor %}",
        "{% set ns = namespace(x='ab') %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x]|join(ns.x) %}{% endfor %}",
        "{% set ns = namespace(x='ab') %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x]|tojson %}{% endfor %}",
        "{% set ns = namespace(x='ab') %}{% for i in range(60) %}{% set y %}{{ ns.x }}{{ ns.x }}{% endset %}{% set ns.x = y %}{% endfor %}",
        "{% set ns = namespace(x=1) %}{% for i in range(99999) %}{% set ns.x = [ns.x] %}{% endfor %}",
        "{% set ns = namespace(x=1) %}{% for i in range(99999) %}{% set ns.x = {'a': ns.x} %}{% endfor %}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{% macro m(n) %}{{ m(n + 1) }}{{ m(n + 1) }}{% endmacro %}{{ m(0) }}",
        "{% for a in [[1]] recursive %}{{ loop([a]) }}{% endfor %}",
        "{{ 'a'|center(10**11) }}",
        "{{ 'a'.zfill(10**11) }}",
        "{{ '%100000000000d' % 1 }}",
        "{{ '{:>100000000000}'.format(1) }}",
        "{{ '%.99999999f' % 1.5 }}",
        "{{ 'a'|indent(10**11, true) }}",
        "{{ [1]|tojson(indent=10**11) }}",
        "{{ [1]|batch(10**11, 0)|list }}",
        "{{ [1]|batch(576460752303423489, 0)|list }}",
        "{{ [1]|slice(10**11)|list }}",
        "{{ [1]|slice(10**11, 0)|list }}",
        "{{ '%.99999999d' % 1 }}",
        "{% set x = ' ' * 10**6 %}{% for i in range(99999) %}{% if x|int or x|float %}{% endif %}{% endfor %}",
        "{% set x = 'a' * 10**6 %}{% for i in range(99999) %}{{ x[i] }}{% endfor %}",
        "{% set x = 'a' * 10**6 %}{% for i in range(99999) %}{% if x == x ~ '' %}{% endif %}{% endfor %}",
        "{% set x = range(99999)|list %}{% for i in x %}{% if -1 in x %}{% endif %}{% endfor %}",
        "{% set x = range(99999)|list %}{{ x|unique|list|length }}",
        "{% for i in range(99999) %}{{ 'a' * 1000 }}{% endfor %}",
        "{{ 10 ** 10 ** 10 }}",
        "{% set x = ('a\n' * 10**7).splitlines() %}{% set y = ('a\n' * 10**7).splitlines() %}",
        "{% set x = ('a ' * 10**7).split() %}",
    ]
    .into_iter()
    .map(String::from)
    .chain([deep("(", ")", 5000), deep("[", "]", 5000), deep("-", "", 5000), deep("not ", "", 5000), blocks])
    .chain([format!("{{{{ 'x'{} }}}}", "|upper".repeat(5000)), format!("{{{{ x{} }}}}", ".a".repeat(5000))])
    .chain([format!("{{{{ 1{} }}}}", " if 1".repeat(100_000)), format!("{{{{ 1|a{} }}}}", ".a".repeat(200_000))])
    .collect();
    for source in templates {
        let began = Instant::now();
        let got = render(&source);
        let source = &source[..source.len().min(100)];
        assert!(got.is_err(), "{source} gave a text of {:?} bytes", got.map(|t| t.len()));
        assert!(began.elapsed() < Duration::from_secs(100), "{source} took {:?}", began.elapsed());
    }
}

#[test]
fn long_flat_expressions_are_accepted() {
    assert_eq!(render(&format!("{{{{ 1{} }}}}", " + 1".repeat(9999))).unwrap(), "10000");
    assert_eq!(render(&format!("{{{{ 'a'{} }}}}", " ~ 'a'".repeat(99))).unwrap(), "a".repeat(100));
    let elif = format!("{{% if false %}}{}{{% endif %}}", "{% elif false %}".repeat(3000));
    assert_eq!(render(&elif).unwrap(), "");
}

#[test]
fn sort_handles_nan_and_rejects_mixed_types() {
    let with = |rest: &str| render(&format!("{{% set n = 'nan'|float %}}{rest}"));
    // Long enough for the standard library's sort to notice an inconsistent order and panic.
    assert_eq!(with("{{ (([3, n, 1] * 40)|sort)[:80] == [1] * 40 + [3] * 40 }}").unwrap(), "True");
    assert_eq!(with("{{ (([3, n, 1] * 40)|sort(true))[:80] == [3] * 40 + [1] * 40 }}").unwrap(), "True");
    assert_eq!(with("{{ [n, 2, 5]|min }} {{ [n, 2, 5]|max }}").unwrap(), "2 5");
    assert!(with("{{ ([[3], [n], [1]] * 40)|sort|length }}").is_ok());
    for mixed in ["([1, 'a', none] * 40)|sort", "([3, nothing, 1] * 40)|sort", "[1, 'a']|max"] {
        let error = with(&format!("{{{{ {mixed} }}}}"));
        assert!(matches!(error, Err(Fault::Wrong { .. })), "{mixed}: {error:?}");
    }
    assert_eq!(
        render(
            "{{ [{'a': 1, 'b': 2}, {'a': 1, 'b': 1}, {'a': 0, 'b': 9}]|sort(attribute='a,b')|map(attribute='b')|list }}"
        )
        .unwrap(),
        "[9, 1, 2]"
    );
}

#[test]
fn adjacent_strings_parse_in_linear_time() {
    let began = Instant::now();
    assert_eq!(render(&format!("{{{{ {} }}}}", "'a'".repeat(300_000))).unwrap().len(), 300_000);
    assert!(began.elapsed() < Duration::from_secs(20), "took {:?}", began.elapsed());
}

/// The longest chains within the deepest brackets: dropping this tree must not overflow the stack
/// of a thread.
#[test]
fn deepest_syntax_tree_fits_the_stack() {
    let (mut open, mut close) = (String::new(), String::new());
    for _ in 0..62 {
        open += "x[";
        close += &format!("]{}{}", ".a".repeat(63), "|e".repeat(64));
    }
    let source = format!("{{{{ {open}1{close} }}}}");
    assert!(Template::new(&source).is_ok());
}

#[test]
fn cyclic_and_long_namespace_chains_render() {
    assert_eq!(
        render("{% set a = namespace() %}{% set b = namespace(a=a) %}{% set a.b = b %}{{ a.b.a.b is defined }}")
            .unwrap(),
        "True"
    );
    let chain =
        "{% set n = namespace(x=none) %}{% for i in range(50000) %}{% set n.x = namespace(x=n.x) %}{% endfor %}ok";
    assert_eq!(render(chain).unwrap(), "ok");
}
