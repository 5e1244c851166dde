//! The house rules hold, and each of them can fail.

use tokengauge_core::dialect::DIALECTS;
use tokengauge_tests::flow::fixtures;
use tokengauge_tests::root;
use tokengauge_tests::tidy::{RULES, Tree, read};

#[test]
fn the_tree_is_tidy() {
    let tree = read(&root());
    assert!(tree.len() > 100 && tree.contains_key("agent/core/src/lib.rs"), "the tree was not read");
    let broken: Vec<String> = RULES.iter().flat_map(|r| (r.check)(&tree).into_iter().map(|b| format!("{}: {b}", r.name))).collect();
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

#[test]
fn every_rule_can_fail() {
    for rule in RULES {
        let (path, text) = rule.bad;
        let tree = Tree::from([(path.to_owned(), text.to_owned())]);
        assert!(!(rule.check)(&tree).is_empty(), "{} finds nothing wrong with {path}", rule.name);
        let tree = Tree::new();
        assert!((rule.check)(&tree).is_empty(), "{} complains about nothing", rule.name);
    }
}

#[test]
fn flows_measure_as_the_dialect_of_their_folder() {
    for (_, flow) in fixtures() {
        let folder = flow.name.split('/').next().unwrap_or_default();
        let Some(dialect) = DIALECTS.iter().find(|d| d.about().api == folder) else {
            assert_eq!(folder, "http", "{}: no dialect of that name", flow.name);
            continue;
        };
        for i in flow.measure().inferences {
            assert_eq!(i.api, dialect.about().api, "{}", flow.name);
        }
    }
}
