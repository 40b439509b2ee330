use super::{ChatTemplate, ChatTemplates, Clock, Message, Options, TemplateError};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

fn chat(text: &str) -> Vec<Message> {
    vec![Message::new("system", "S"), Message::new("user", text)]
}

fn render(source: &str) -> Result<String, TemplateError> {
    ChatTemplate::new(source, Some("<s>"), Some("</s>"))?.render(&chat("hello"), &Options::default())
}

/// Templates in the style of the families, and single expressions, against what transformers made of them.
#[test]
fn as_transformers() {
    let file: Value = serde_json::from_str(include_str!("cases.json")).unwrap();
    let now = Clock { unix: file["unix"].as_i64().unwrap(), offset: 0 };
    let cases = file["cases"].as_array().unwrap();
    assert!(cases.len() > 200);
    let mut wrong = Vec::new();
    for case in cases {
        let messages: Vec<Message> =
            serde_json::from_value(file["messages"][case["messages"].as_u64().unwrap() as usize].clone()).unwrap();
        let options = Options {
            tools: case["tools"].as_u64().map(|i| &file["tools"][i as usize]),
            add_generation_prompt: case["agp"].as_bool().unwrap(),
            extra: case["extra"].as_object().unwrap().clone(),
            now,
            ..Options::default()
        };
        let template = ChatTemplate::new(case["source"].as_str().unwrap(), Some("<s>"), Some("</s>"));
        let got = template.and_then(|t| t.render(&messages, &options));
        if got.as_deref().ok() != case["want"].as_str() {
            wrong.push(format!("{}: {got:?}, not {}", case["name"], case["want"]));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// What no template of a model does: each must end soon, with an error that says why.
#[test]
fn hostile_templates_are_stopped() {
    let deep = |open: &str, close: &str, n: usize| format!("{{{{ {}1{} }}}}", open.repeat(n), close.repeat(n));
    let blocks = format!("{}{}", "{% if true %}".repeat(5000), "{% endif %}".repeat(5000));
    let run: Vec<String> = [
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
    for source in run {
        let began = Instant::now();
        let got = render(&source);
        let source = &source[..source.len().min(100)];
        assert!(got.is_err(), "{source} gave a text of {:?} bytes", got.map(|t| t.len()));
        assert!(began.elapsed() < Duration::from_secs(100), "{source} took {:?}", began.elapsed());
    }
}

#[test]
fn long_expressions_are_no_deep_ones() {
    assert_eq!(render(&format!("{{{{ 1{} }}}}", " + 1".repeat(9999))).unwrap(), "10000");
    assert_eq!(render(&format!("{{{{ 'a'{} }}}}", " ~ 'a'".repeat(99))).unwrap(), "a".repeat(100));
    let elif = format!("{{% if false %}}{}{{% endif %}}", "{% elif false %}".repeat(3000));
    assert_eq!(render(&elif).unwrap(), "");
}

#[test]
fn what_has_no_order_has_a_place() {
    let with = |rest: &str| render(&format!("{{% set n = 'nan'|float %}}{rest}"));
    // Long enough for the standard library to see that an order is none, which it panics at.
    assert_eq!(with("{{ (([3, n, 1] * 40)|sort)[:80] == [1] * 40 + [3] * 40 }}").unwrap(), "True");
    assert_eq!(with("{{ (([3, n, 1] * 40)|sort(true))[:80] == [3] * 40 + [1] * 40 }}").unwrap(), "True");
    assert_eq!(with("{{ [n, 2, 5]|min }} {{ [n, 2, 5]|max }}").unwrap(), "2 5");
    assert!(with("{{ ([[3], [n], [1]] * 40)|sort|length }}").is_ok());
    for mixed in ["([1, 'a', none] * 40)|sort", "([3, nothing, 1] * 40)|sort", "[1, 'a']|max"] {
        let error = with(&format!("{{{{ {mixed} }}}}"));
        assert!(matches!(error, Err(TemplateError::Failed { .. })), "{mixed}: {error:?}");
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
fn strings_side_by_side_are_read_once() {
    let began = Instant::now();
    assert_eq!(render(&format!("{{{{ {} }}}}", "'a'".repeat(300_000))).unwrap().len(), 300_000);
    assert!(began.elapsed() < Duration::from_secs(20), "took {:?}", began.elapsed());
}

/// The longest chains within the deepest brackets: a tree that is still taken apart on the stack of a thread.
#[test]
fn the_deepest_tree_fits_the_stack() {
    let (mut open, mut close) = (String::new(), String::new());
    for _ in 0..62 {
        open += "x[";
        close += &format!("]{}{}", ".a".repeat(63), "|f".repeat(64));
    }
    let source = format!("{{{{ {open}1{close} }}}}");
    assert!(ChatTemplate::new(&source, None, None).is_ok());
}

#[test]
fn namespaces_that_hold_themselves_end_with_the_rendering() {
    assert_eq!(
        render("{% set a = namespace() %}{% set b = namespace(a=a) %}{% set a.b = b %}{{ a.b.a.b is defined }}")
            .unwrap(),
        "True"
    );
    let chain =
        "{% set n = namespace(x=none) %}{% for i in range(50000) %}{% set n.x = namespace(x=n.x) %}{% endfor %}ok";
    assert_eq!(render(chain).unwrap(), "ok");
}

#[test]
fn long_chats_are_rendered() {
    let template = "{% for m in messages %}<{{ m.role }}>{{ m.content|trim }}\n{% endfor %}";
    let template = ChatTemplate::new(template, None, None).unwrap();
    let messages: Vec<Message> = (0..4000).map(|_| Message::new("user", &"word ".repeat(500))).collect();
    assert!(template.render(&messages, &Options::default()).unwrap().len() > 9_000_000);
}

#[test]
fn refusals_and_failures_are_told_apart() {
    assert_eq!(render("{{ raise_exception('no system') }}"), Err(TemplateError::Refused("no system".into())));
    assert!(matches!(render("\n\n{{ messages.x.y }}"), Err(TemplateError::Failed { line: Some(3), .. })));
    assert!(matches!(render("\n{% if %}"), Err(TemplateError::Syntax { line: 2, .. })));
    assert!(matches!(render("{{ 'a' * 10**12 }}"), Err(TemplateError::TooMuch { .. })));
    let template = ChatTemplate::new("x", None, None).unwrap();
    assert!(matches!(template.render(&[], &Options::default()), Err(TemplateError::Input(_))));
    let tools = json!({"name": "f"});
    let options = Options { tools: Some(&tools), ..Options::default() };
    assert!(matches!(template.render(&chat("x"), &options), Err(TemplateError::Input(_))));
}

#[test]
fn a_fault_of_ours_ends_no_process() {
    let error =
        super::contained(|| -> Result<(), super::Fault> { panic!("a fault, as this test wants it") }).unwrap_err();
    assert!(error.to_string().contains("a fault of this program"), "{error}");
    let fine = super::contained(|| Ok(1));
    assert_eq!(fine, Ok(1));
}

#[test]
fn a_model_without_a_template_is_said_to_have_none() {
    let error = ChatTemplates::read(None, &json!({"bos_token": "<s>"})).unwrap().pick(false).unwrap_err();
    assert_eq!(error, TemplateError::Absent);
    assert!(error.to_string().contains("no chat template") && error.to_string().contains("sconce generate"), "{error}");
}

#[test]
fn templates_of_a_configuration() {
    let named = json!({
        "bos_token": {"content": "<b>"},
        "chat_template": [{"name": "default", "template": "{{ bos_token }}d{{ eos_token is defined }}"},
            {"name": "tool_use", "template": "t"}, {"name": "rag", "template": "r"}],
    });
    let templates = ChatTemplates::read(None, &named).unwrap();
    let text = |tools| templates.pick(tools).unwrap().render(&chat("x"), &Options::default()).unwrap();
    assert_eq!((text(false).as_str(), text(true).as_str()), ("<b>dFalse", "t"));
    let file = ChatTemplates::read(Some("f"), &named).unwrap();
    assert_eq!(file.pick(true).unwrap().render(&chat("x"), &Options::default()).unwrap(), "f");
}

#[test]
fn messages_keep_what_they_came_with() {
    let source = r#"{"role":"user","zeta":1,"content":[{"type":"text","text":"a"}],"alpha":{"b":1,"a":2}}"#;
    let message: Message = serde_json::from_str(source).unwrap();
    assert_eq!(serde_json::to_string(&message).unwrap(), source);
    for wrong in
        [r#"{"content":"x"}"#, r#"{"role":1}"#, r#"{"role":"user","content":3}"#, r#"{"role":"a","tool_calls":[1]}"#]
    {
        assert!(serde_json::from_str::<Message>(wrong).is_err(), "{wrong}");
    }
    let call = r#"{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":"{\"x\":1}"}},{"function":{"arguments":"no"}}]}"#;
    let message = serde_json::from_str::<Message>(call).unwrap().with_objects_as_arguments();
    assert_eq!(message.get("tool_calls").unwrap()[0]["function"]["arguments"], json!({"x": 1}));
    assert_eq!(message.get("tool_calls").unwrap()[1]["function"]["arguments"], json!("no"));
}
