use super::{ChatTemplate, ChatTemplates, Message, Options, TemplateError};
use serde_json::json;

fn chat(text: &str) -> Vec<Message> {
    vec![Message::new("system", "S"), Message::new("user", text)]
}

fn render(source: &str) -> Result<String, TemplateError> {
    ChatTemplate::new(source, Some("<s>"), Some("</s>"))?.render(&chat("hello"), &Options::default())
}

#[test]
fn long_chats_are_rendered() {
    let template = "{% for m in messages %}<{{ m.role }}>{{ m.content|trim }}\n{% endfor %}";
    let template = ChatTemplate::new(template, None, None).unwrap();
    let messages: Vec<Message> = (0..4000).map(|_| Message::new("user", &"word ".repeat(500))).collect();
    assert!(template.render(&messages, &Options::default()).unwrap().len() > 9_000_000);
}

#[test]
fn template_errors_are_classified() {
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
fn missing_chat_template_is_an_error() {
    let error = ChatTemplates::read(None, &json!({"bos_token": "<s>"})).unwrap().pick(false).unwrap_err();
    assert_eq!(error, TemplateError::Absent);
    assert!(error.to_string().contains("no chat template") && error.to_string().contains("sconce generate"), "{error}");
}

#[test]
fn named_templates_are_read_from_tokenizer_config() {
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
fn messages_keep_unknown_fields_and_key_order() {
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
