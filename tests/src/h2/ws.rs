//! A WebSocket on a stream of HTTP/2 (RFC 8441), written: a flow of HTTP/1.1 that upgrades, each message at the same instants.

use super::*;

/// The flow over HTTP/2; `None` when it is no handshake with messages behind it, or has holes or ends that are not the same there.
pub fn websocket_over_h2(flow: &Flow, style: Style) -> Option<Flow> {
    let mut steps = flow.steps.iter();
    let mut head = |of: Who| match steps.next()? {
        Step::Data(at, who, bytes) if *who == of && bytes.ends_with(b"\r\n\r\n") => Message::read(*who, 0, *at, *at, bytes),
        _ => None,
    };
    let (mut asked, mut answer) = (head(Who::Client)?, head(Who::Server)?);
    let switches = answer.fields.first().is_some_and(|(_, status)| status == "101");
    if !flow.from_start || !switches {
        return None;
    }
    asked.fields.retain(|(name, _)| name != ":method");
    asked.fields.splice(0..0, [(":method", "CONNECT"), (":protocol", "websocket")].map(|(n, v)| (n.to_owned(), v.to_owned())));
    answer.fields.retain(|(name, _)| name != ":status" && name != "sec-websocket-accept");
    answer.fields.insert(0, (":status".to_owned(), "200".to_owned()));
    let mut conn = Connection::new(style, asked.begun, Vec::new());
    for message in [asked, answer] {
        conn.operate((message.begun, message.who, (0, 0), Op::Head(message.fields, false, None)));
    }
    for step in steps {
        match step {
            Step::Data(at, who, bytes) => conn.operate((*at, *who, (0, 0), Op::Body(bytes.clone(), false))),
            Step::Gap(..) => return None,
            end => conn.steps.push(end.clone()),
        }
    }
    Some(Flow { steps: conn.steps, ..flow.clone() })
}
