//! What YAML means here, against what Go makes of it.

use super::*;

fn text(s: &str) -> Value {
    Value::Text(s.into())
}

#[test]
fn scalars_mean_what_they_mean_to_go() {
    for (written, value) in [
        ("y", Value::Bool(true)),
        ("On", Value::Bool(true)),
        ("no", Value::Bool(false)),
        ("yES", text("yES")),
        ("'y'", text("y")),
        ("!!str y", text("y")),
        ("1_0", Value::Int(10)),
        ("0o7", Value::Int(7)),
        ("010", Value::Int(8)),
        ("08", Value::Float(8.0)),
        ("0x1F", Value::Int(31)),
        ("0b11", Value::Int(3)),
        ("-0b11", Value::Int(-3)),
        ("+1", Value::Int(1)),
        ("1.", Value::Float(1.0)),
        (".5", Value::Float(0.5)),
        ("1e3", Value::Float(1000.0)),
        ("1:30", text("1:30")),
        ("2026-01-01", text("2026-01-01")),
        ("18446744073709551615", Value::Int(18_446_744_073_709_551_615)),
        ("~", Value::Null),
        ("Null", Value::Null),
        ("!!float 1", Value::Float(1.0)),
        ("!mine 5", text("5")),
        ("<<", text("<<")),
    ] {
        let root = parse(&format!("k: {written}"), 0).unwrap().root;
        assert_eq!(root.get("k").unwrap().value, value, "{written}");
    }
    for refused in ["!!int x", "!!bool 1", "!!null x", ".nan", ".inf", "!!timestamp x"] {
        assert!(parse(&format!("k: {refused}"), 0).is_err(), "{refused}");
    }
}

#[test]
fn keys_aliases_and_merges() {
    let root = parse("y: 1\n5: 2\n1.5: 3\n", 0).unwrap().root;
    let keys: Vec<&str> = root.entries().iter().map(|e| e.key.as_str()).collect();
    assert_eq!(keys, ["true", "5", "1.5"]);
    assert!(parse("null: 1", 0).is_err() && parse("[a]: 1", 0).is_err());
    // As v2 of Go's library has it, a merge replaces what stands before it, and of a list the earlier map holds.
    let root = parse("base: &b {a: 1, b: 2}\nother: &o {a: 3}\none: {a: 0, <<: *b, b: 5}\ntwo: {<<: [*o, *b]}\n", 0).unwrap().root;
    let number = |map: &str, key: &str| root.get(map).unwrap().get(key).unwrap().number().unwrap();
    assert_eq!((number("one", "a"), number("one", "b")), (1.0, 5.0));
    assert_eq!((number("two", "a"), number("two", "b")), (3.0, 2.0));
    assert!(parse("<<: 5", 0).is_err());
    let twice = parse("a: 1\na: 2", 0).unwrap();
    assert_eq!(twice.root.get("a").unwrap().number(), Some(2.0));
    assert_eq!(twice.twice, [("a".to_owned(), Pos { line: 2, column: 1 }, Pos { line: 1, column: 1 })]);
}

#[test]
fn places_are_those_of_the_file() {
    let root = parse("a:\n  - b: 'ü c'\n    d: 5\n", 10).unwrap().root;
    let item = &root.get("a").unwrap().items()[0];
    assert_eq!(item.entry("d").unwrap().key_pos, Pos { line: 13, column: 5 });
    assert_eq!(item.get("d").unwrap().pos, Pos { line: 13, column: 8 });
    assert_eq!(item.get("b").unwrap().inside(2), Pos { line: 12, column: 11 });
    let json = parse_json("{\"a\":\n [1, {\"b\": true}]}").unwrap();
    assert_eq!(json.get("a").unwrap().items()[1].get("b").unwrap().pos, Pos { line: 2, column: 12 });
}

#[test]
fn hostile_files_are_bounded() {
    let deep = "[".repeat(100_000);
    assert!(parse(&deep, 0).is_err());
    assert!(parse(&"- ".repeat(100), 0).unwrap_err().message.contains("levels"));
    assert!(parse_json(&deep).unwrap_err().message.contains("levels"));
    let mut laughs = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n");
    for i in 1..10 {
        let alias = format!("*a{}", i - 1);
        laughs += &format!("a{i}: &a{i} [{}]\n", [alias.as_str(); 10].join(", "));
    }
    assert!(parse(&laughs, 0).unwrap_err().message.contains("aliases expanded"));
    assert!(parse("a: &a [*a]", 0).is_err());
    assert!(parse("a: *nowhere", 0).is_err());
    let keys: String = (0..5000).map(|i| format!("k{i}: 1\n")).collect();
    assert!(parse(&keys, 0).unwrap_err().message.contains("keys"));
    assert!(parse(&" ".repeat(MAX_BYTES + 1), 0).is_err());
}

#[test]
fn documents_are_cut_as_the_sdk_cuts_them() {
    let texts = |text: &'static str| split(text).into_iter().map(|p| (p.text, p.lines_before)).collect::<Vec<_>>();
    assert_eq!(texts("a\n---\nb\n--- # c\nd"), [("a", 0), ("b", 2), ("d", 4)]);
    assert_eq!(texts("---\na\n---"), [("---\na", 0)]);
    assert_eq!(texts("\n\n---\n"), []);
    assert_eq!(split("# x\n- a")[0].shape, Shape::List);
    assert_eq!(split("---\n\n[a]")[0].shape, Shape::List);
    assert_eq!(split("a: [b]")[0].shape, Shape::Object);
}

#[test]
fn tabs_indent_only_where_go_lets_them() {
    for taken in [
        "a: [\n\tb]",
        "a: &x {\n\tb: 1\n\t}",
        "a: \"x\n\ty\"",
        "a:\n  b: {\n  c: d\n  }\n  e: \"x\ny\"\n",
        "a: |\n  x\n  \ty\n",
        "a: {b: 1,\n\tc: 2}",
        "a:\tb",
    ] {
        assert!(parse(taken, 0).is_ok(), "{taken:?}");
    }
    for refused in ["a:\n\tb: 1", "a: 1\n\t\nb: 2", "a: 1\n\t# c\nb: 2", "a: |\n  x\n\t\nb: 1", "...\na: 1"] {
        assert!(parse(refused, 0).is_err(), "{refused:?}");
    }
}

/// Large and hostile: the test ends, because nothing takes more than a pass for each of them.
#[test]
fn large_files_are_read_in_passes() {
    let tabs = format!("a: [{}]", "[x],\n\t".repeat(40_000));
    let quoted = format!("a: [{}]", "\"x\n\ty\", ".repeat(40_000));
    let anchors =
        (0..60).map(|i| format!("{}- &a{i}\n", " ".repeat(i))).collect::<String>() + &" ".repeat(60) + "[" + &"x, ".repeat(20_000) + "]";
    let hostile = [tabs, quoted, anchors, "a: b\n".repeat(90_000), "- ".repeat(1_000_000), "{".repeat(1_000_000), "&a ".repeat(1_000_000)];
    for (text, taken) in hostile.into_iter().zip([true, true, true, true, false, false, true]) {
        assert_eq!(parse(&text, 0).is_ok(), taken, "{:?}", text.get(..20));
        assert!(crate::spec::load(&[("slo.yaml", &text), ("slo.json", &text)]).refused());
    }
}

#[test]
fn what_is_read_again_keeps_its_places() {
    let root = parse("a:\n  b: {x: 1,\n\tw: 2, z: [\n3]}\n  c: 4 # [\n  d: |\n    [ {\n  e: it's {\n", 0).unwrap().root;
    let a = root.get("a").unwrap();
    let b = a.get("b").unwrap();
    assert_eq!(b.entry("w").unwrap().key_pos, Pos { line: 3, column: 2 });
    assert_eq!(b.get("z").unwrap().items()[0].pos, Pos { line: 4, column: 1 });
    assert_eq!(a.get("c").unwrap().pos, Pos { line: 5, column: 6 });
    assert_eq!((a.get("d").unwrap().text(), a.get("e").unwrap().text()), (Some("[ {\n"), Some("it's {")));
    assert_eq!(parse("a: {b: 1,\nc: ]\n", 5).unwrap_err().pos.line, 7);
}
