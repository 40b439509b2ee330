use super::{is_gbnf, to_lark};

#[test]
fn regular_grammar_is_one_lexeme() {
    assert_eq!(to_lark(r#"root ::= "a"{5,5}"#).unwrap(), "start: T0\nT0: (\"a\"){5,5}\n");
    let lark = to_lark("root ::= sign? [0-9]+ # a number\nsign ::= \"-\" |\n  \"+\"\nunused ::= root\n").unwrap();
    assert_eq!(lark, "start: T0\nT0: ((T1)? (/[\\x{30}-\\x{39}]/)+)\nT1: (\"\\u002d\" | \"\\u002b\")\n");
}

#[test]
fn recursive_grammar_has_lexemes_of_its_regular_parts() {
    let lark = to_lark("root ::= \"[\" ws (root (\",\" ws root)*)? \"]\" ws | [a-z]\nws ::= [ \\t]*").unwrap();
    let expected = [
        "X0: (\"\\u005b\" T1)",
        "X1: (\"\\u002c\" T1)",
        "X2: (\"\\u005d\" T1)",
        "X3: /[\\x{61}-\\x{7a}]/",
        "start: r0",
        "r0: ((X0 ((r0 ((X1 r0))*))? X2) | X3)",
        "T1: (/[\\x{20}-\\x{20}\\x{9}-\\x{9}]/)*",
    ];
    let mut lines: Vec<&str> = lark.lines().collect();
    lines.sort_unstable();
    let mut expected = expected.to_vec();
    expected.sort_unstable();
    assert_eq!(lines, expected);
}

#[test]
fn every_form_is_translated() {
    for (gbnf, lark) in [
        (r#"root ::= "\x41\u00e9\U0001F600\n\"""#, "T0: \"A\\u00e9\\ud83d\\ude00\\u000a\\u0022\""),
        ("root ::= .", "T0: /(?s:.)/"),
        ("root ::= [^\\]a-]", "T0: /[^\\x{5d}-\\x{5d}\\x{61}-\\x{61}\\x{2d}-\\x{2d}]/"),
        ("root ::= \"a\"{2,}", "T0: (\"a\"){2,}"),
        ("root ::= \"a\"{3}", "T0: (\"a\"){3,3}"),
        ("root ::= \"a\"{0}", "T0: \"\""),
        ("root ::= | \"a\"", "T0: (\"\" | \"a\")"),
        ("root ::= <[7]> \"a\" !<[7]> <think>", "r0: (<[7]> X0 <[^7]> <think>)"),
        ("root ::= (\n  \"a\" # one\n  \"b\"\n)", "T0: (\"a\" \"b\")"),
    ] {
        let all = to_lark(gbnf).unwrap();
        assert!(all.lines().any(|line| line == lark), "{gbnf}: {all}");
    }
}

#[test]
fn errors_name_line_and_column() {
    for (gbnf, what) in [
        ("", "no rule `root`"),
        ("rot ::= \"a\"", "no rule `root`"),
        ("root ::= this is (not valid GBNF", "line 1, column 33: `)` is expected, for the `(` in line 1, column 18"),
        ("root ::= a\n", "line 1, column 10: the rule `a` is not defined"),
        ("root ::= \"a\"\n\n  root ::= \"b\"", "line 3, column 3: the rule `root` is defined a second time"),
        ("root = \"a\"", "line 1, column 6: `::=` is expected"),
        ("root ::= \"a", "line 1, column 10: this text has no closing"),
        ("root ::= [a", "line 1, column 10: this class"),
        ("root ::= []", "no characters"),
        ("root ::= [z-a]", "line 1, column 14: the range ends"),
        ("root ::= \"\\q\"", "line 1, column 11: unknown escape `\\q`"),
        ("root ::= \"\\x4\"", "2 hexadecimal digits"),
        ("root ::= \"\\ud800\"", "no character has the code d800"),
        ("root ::= * \"a\"", "nothing before it"),
        ("root ::= \"a\"{x}", "a number of repetitions is expected"),
        ("root ::= \"a\"{3,2}", "fewer than the least"),
        ("root ::= \"a\"{3", "`}` is expected"),
        ("root ::= \"a\"{2001}", "more than 2000 repetitions"),
        ("root ::= ((\"a\"{100}){100})", "more than 2000 repetitions"),
        ("root ::= \"a\" )", "line 1, column 14: the end of the rule is expected"),
        ("root ::= !<think>", "needs its id"),
        ("root ::= <[x]>", "is a number"),
        ("root ::= <a b>", "without blanks"),
        ("é ::= \"a\"", "line 1, column 1: the name of a rule"),
    ] {
        let why = to_lark(gbnf).unwrap_err();
        assert!(why.contains(what), "{gbnf:?}: {why}");
    }
}

#[test]
fn size_and_depth_are_limited() {
    let groups = format!("root ::= {}\"a\"{}", "(".repeat(100), ")".repeat(100));
    assert!(to_lark(&groups).unwrap_err().contains("nested more than 64"));
    let chain: String = (0..1000).map(|i| format!("r{i} ::= r{}\n", i + 1)).collect();
    assert!(to_lark(&format!("root ::= r0\n{chain}r1000 ::= \"a\"")).unwrap_err().contains("nested more than 64"));
    // Every mark is a level of recursion, although there is no bracket.
    for mark in ["*", "+", "?", "{1}", "{1,} "] {
        let marks = format!("root ::= \"a\"{}", mark.repeat(50_000));
        assert!(to_lark(&marks).unwrap_err().contains("more than 4 marks"), "{mark}");
    }
    assert!(to_lark("root ::= ((\"a\"*+?{1})*)+").is_ok());
    // Twenty rules make a million repetitions.
    let double: String = (0..20).map(|i| format!("r{i} ::= r{0} r{0}\n", i + 1)).collect();
    let double = |leaf: &str| to_lark(&format!("root ::= r0\n{double}r20 ::= {leaf}"));
    assert!(double("[^a]*").unwrap_err().contains("more than 2000 repetitions follow"));
    assert!(double("\"a\"").is_ok());
    assert!(to_lark(&format!("root ::= {}\na ::= [^a]?", "a ".repeat(3000))).is_err());
    assert!(to_lark(&format!("root ::= {} root\na ::= [^a]?", "a ".repeat(3000))).is_err());
    let many: String = (0..3000).map(|i| format!("r{i} ::= \"a\"\n")).collect();
    assert!(to_lark(&format!("root ::= r0\n{many}")).unwrap_err().contains("more than 2000 rules"));
}

#[test]
fn gbnf_is_told_from_lark() {
    assert!(is_gbnf("# a comment\nroot ::= \"a\""));
    assert!(is_gbnf("root ::=\n  item+"));
    assert!(!is_gbnf("start: term (\"+\" term)*\nterm: /[0-9]{1,3}/"));
    assert!(!is_gbnf("start: \"a ::= b\""));
}
