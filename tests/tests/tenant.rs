//! Whose a request is: as a keyed hash, the same over every version of HTTP and for every turn of a conversation, and only where it is asked for.
#![allow(clippy::unwrap_used, reason = "a test states its expectations so")]

use std::sync::Arc;

use tokengauge_core::tenant::{Hasher as _, Key, Tenants};
use tokengauge_tests::flow::{Flow, Measured, Meter};
use tokengauge_tests::h2::{Style, over_h2, together, websocket_over_h2};

const SECRETS: [&str; 3] = ["sk-planted-0011", "sk-planted-2233", "org-planted-4455"];

fn key() -> Key {
    Key::new(b"a key of some length").unwrap()
}

fn hash(name: &str) -> String {
    key().hash(name.as_bytes()).as_str().to_owned()
}

fn measure(flow: &Flow, fields: &[&str]) -> Measured {
    flow.measure_by(Meter::default().naming(Arc::new(Tenants::new(fields.iter().copied(), Box::new(key())))))
}

fn tenants(measured: &Measured) -> Vec<Option<String>> {
    let shown = format!("{:?}", measured.inferences);
    assert!(SECRETS.iter().all(|s| !shown.contains(s)), "{shown}");
    measured.inferences.iter().map(|i| i.request.tenant.map(|t| t.as_str().to_owned())).collect()
}

/// Three requests on one connection: with two fields, with one of them, with none.
fn flow() -> Flow {
    let ask = |at: u32, fields: &str| {
        format!(
            "{at} > @post https://api.openai.com/v1/chat/completions {fields}{{\"model\":\"m\",\"messages\":[{{\"role\":\"user\",\"content\":\"hi\"}}]}}\n\
             {} < @json 200 {{\"id\":\"c\",\"object\":\"chat.completion\",\"model\":\"m\",\"choices\":[{{\"index\":0,\"message\":{{\"content\":\"a\"}},\"finish_reason\":\"stop\"}}]}}\n",
            at + 10
        )
    };
    let both = format!("x-api-key:{} OpenAI-Organization:{} ", SECRETS[0], SECRETS[2]);
    let one = format!("X-API-Key:{} ", SECRETS[1]);
    Flow::parse("tenants", &[ask(0, &both), ask(100, &one), ask(200, &both), ask(300, "")].concat()).unwrap()
}

#[test]
fn every_version_of_http_names_the_same_tenant() {
    let [first, second, organisation] = SECRETS.map(|s| Some(hash(s)));
    for (fields, want) in [
        (&["x-api-key", "openai-organization"][..], [first.clone(), second.clone(), first.clone(), None]),
        (&["openai-organization", "x-api-key"], [organisation.clone(), second, organisation, None]),
        (&["x-tenant"], [None, None, None, None]),
    ] {
        assert_eq!(tenants(&measure(&flow(), fields)), want, "HTTP/1.1");
        assert_eq!(tenants(&measure(&flow().cut(3), fields)), want, "HTTP/1.1 in pieces");
        for style in [Style::PLAIN, Style::USUAL, Style::ODD] {
            let h2 = over_h2(&flow(), style).unwrap();
            assert_eq!(tenants(&measure(&h2, fields)), want, "{style:?}");
            assert_eq!(tenants(&measure(&h2.cut(5), fields)), want, "{style:?} in pieces");
            let (_, shared) = together(&[(flow(), Default::default())], style).unwrap();
            assert_eq!(tenants(&measure(&shared, fields)), want, "{style:?} among others");
        }
    }
}

#[test]
fn nobody_is_named_unless_it_is_asked_for() {
    assert_eq!(tenants(&flow().measure()), [None, None, None, None]);
}

#[test]
fn every_turn_of_a_websocket_is_the_tenants_that_opened_it() {
    let text = format!(
        "0 > @ws-open https://api.openai.com/v1/realtime?model=m x-api-key:{}\n5 < @ws-accept\n\
         10 > @ws {{\"type\":\"response.create\"}}\n\
         12 < @ws {{\"type\":\"response.created\",\"response\":{{\"id\":\"r1\",\"status\":\"in_progress\"}}}}\n\
         20 < @ws {{\"type\":\"response.output_text.delta\",\"response_id\":\"r1\",\"item_id\":\"i\",\"output_index\":0,\"content_index\":0,\"delta\":\"a\"}}\n\
         30 < @ws {{\"type\":\"response.done\",\"response\":{{\"id\":\"r1\",\"status\":\"completed\"}}}}\n\
         40 > @ws {{\"type\":\"response.create\"}}\n\
         42 < @ws {{\"type\":\"response.created\",\"response\":{{\"id\":\"r2\",\"status\":\"in_progress\"}}}}\n\
         50 < @ws {{\"type\":\"response.done\",\"response\":{{\"id\":\"r2\",\"status\":\"completed\"}}}}\n\
         60 > @ws-close 1000\n61 < @ws-close 1000\n",
        SECRETS[0]
    );
    let flow = Flow::parse("ws", &text).unwrap();
    let want = vec![Some(hash(SECRETS[0])); 2];
    assert_eq!(tenants(&measure(&flow, &["x-api-key"])), want);
    for style in [Style::PLAIN, Style::USUAL, Style::ODD] {
        assert_eq!(tenants(&measure(&websocket_over_h2(&flow, style).unwrap(), &["x-api-key"])), want, "{style:?}");
    }
}
