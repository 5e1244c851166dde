//! An answer that is no stream, or the body of an HTTP error: read when it is complete.

use super::*;

/// An answer that is no stream.
pub(super) struct Whole {
    pub(super) facts: Facts,
    /// Whose form it has.
    pub(super) dialect: &'static dyn Dialect,
    /// Whether it could be read.
    pub(super) readable: bool,
}

impl Call {
    /// Reads an answer that is no stream, or an HTTP error's body. `None` when it is of no form that the dialect knows, and the
    /// dialect was no more than a guess.
    pub(super) fn answer(&self, skeleton: &Skeleton, http_error: bool, how: Over, cx: &mut Scratch<'_>) -> Option<Whole> {
        let mut dialect = self.dialect?;
        // What the head said stays.
        let Facts { ref server, unread, recognised, ref usage, .. } = self.measure.facts;
        let mut facts = Facts { server: server.clone(), unread, recognised, ..Facts::default() };
        let body = match skeleton.finish() {
            Ok(body) if how == Over::Complete => body,
            Ok(_) => return Some(Whole { facts, dialect, readable: false }),
            Err(what) => {
                cx.anomalies.count(what);
                return Some(Whole { facts, dialect, readable: false });
            }
        };
        if http_error {
            let said = || self.response.as_ref().and_then(|r| r.error_type.clone());
            facts.failed = http_error_kind(body).or_else(said).map(Some);
            return Some(Whole { facts, dialect, readable: true });
        }
        // What the head counted is the answer's, where its body does not say it better.
        facts.usage.clone_from(usage);
        cx.events.clear();
        let mut kind = dialect.reader().answer(body, cx.events);
        if kind == FrameKind::Unknown {
            let known = |reader: &mut dyn Reader| {
                cx.events.clear();
                kind = reader.answer(body, cx.events);
                matches!(kind, FrameKind::Event | FrameKind::Last)
            };
            match dialect::by_answer(&self.head, &self.asked, dialect, known) {
                Some((other, _)) => dialect = other,
                None => {
                    cx.events.clear();
                    kind = FrameKind::Unknown;
                }
            }
        }
        let surprise = match kind {
            FrameKind::BadJson => Some(Anomaly::BadJson),
            FrameKind::Unknown => Some(Anomaly::UnknownEvent),
            _ => None,
        };
        let sure = self.is_sure();
        if sure {
            surprise.into_iter().for_each(|what| cx.anomalies.count(what));
        }
        let readable = surprise.is_none();
        facts.recognised |= readable && (sure || kind != FrameKind::Perhaps);
        facts.foreign |= !readable;
        cx.events.drain(..).for_each(|e| facts.take(e));
        // A tentative dialect whose answer it does not know was the wrong guess.
        (readable || self.certainty == Match::Certain).then_some(Whole { facts, dialect, readable })
    }
}
