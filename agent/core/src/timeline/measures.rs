//! The measures that are made of the marks (`formulas.md` §3.2).

use super::*;

impl Timeline {
    /// The marks and measures, with `usage` as the provider gave it.
    pub fn finish(self, end: &Ending, usage: Option<&Usage>) -> Timing {
        let last_generated = self.last_generated();
        let since = |t: Option<Timestamp>| t.map(|t| t.since(self.start));
        let mark = |t: Option<Timestamp>, hidden: bool| if hidden { None } else { since(t) };
        let absent = if end.stream { end.reason } else { self.absent_answer(end) };
        let first = |t: Option<Timestamp>| match t {
            _ if !end.stream => Err(absent),
            _ if self.hole_before_output => Err(Reason::CaptureGap),
            Some(t) => Ok(t.since(self.start)),
            None => Err(absent),
        };
        let ttft = first(self.first_generated);
        // A hole behind reasoning may hold the first answer.
        let answer_hidden = self.hole_behind_output && self.first_output.is_none_or(|t| Some(t) != self.first_generated);
        let ttfa = match first(self.first_output) {
            _ if answer_hidden && end.stream && !self.hole_before_output => Err(Reason::CaptureGap),
            Err(_) if ttft.is_ok() => Err(Reason::NoOutput),
            other => other,
        };
        // Where neither the end nor a finish reason was seen, more output may have come: what was seen last is not the last.
        let unseen = self.end_unseen(end);
        let max_stall = match (self.chunks.arrivals > 1).then(|| Duration::from_nanos(self.max_stall)) {
            _ if !end.stream => Err(absent),
            _ if self.hole_in_response() => Err(Reason::CaptureGap),
            _ if unseen => Err(absent),
            Some(stall) => Ok(stall),
            None if ttft.is_ok() => Err(Reason::OneArrival),
            None => Err(absent),
        };
        let (tpot, tpot_without_reasoning) = self.tpot(end, usage, absent);
        let tpot_after_first_chunk = self.tpot_after_first_chunk(tpot.is_ok(), usage);
        let duration = match self.terminator {
            _ if self.holes > 0 => Err(Reason::CaptureGap),
            Some(t) => Ok(t.since(self.start)),
            None if end.response_ended => Ok(end.at.since(self.start)),
            None => Err(end.reason),
        };
        // Where the echo ends and the output begins is not on the wire: figures that begin with the first output are withheld.
        let apart = |known: bool| !(end.echoed && known && self.first_output.is_some() && self.first_reasoning.is_none());
        let told = |figure: Result<Duration, Reason>| if apart(figure.is_ok()) { figure } else { Err(Reason::Unparsed) };
        let (ttft, ttfa, max_stall) = (told(ttft), told(ttfa), told(max_stall));
        let tpot = if apart(tpot.is_ok()) { tpot } else { Err(Reason::Unparsed) };
        let echo = !apart(true);
        let unknown = self.start_unseen;
        let timing = Timing {
            start: self.start,
            end: self.terminator.unwrap_or(end.at),
            request_sent: mark(self.request_sent, self.hole_in_request),
            response_head: mark(self.response_head, self.hole_before_head),
            first_body_byte: mark(self.first_body_byte, self.hole_before_body),
            first_event: mark(self.first_event, self.hole_before_event || !end.stream),
            first_reasoning: mark(
                self.first_reasoning,
                self.hole_before_output || self.hole_behind_output && self.first_reasoning != self.first_generated,
            ),
            first_output: mark(self.first_output, self.hole_before_output || answer_hidden || echo),
            ttft,
            ttfa,
            last_generated: mark(last_generated, self.hole_in_response() || !end.stream || unseen),
            duration,
            tpot_after_first_chunk: tpot_after_first_chunk.filter(|_| tpot.is_ok()),
            tpot,
            tpot_without_reasoning,
            max_stall,
            gaps: if end.stream && !echo { self.gaps } else { Gaps::default() },
            holes: self.kept_holes,
        };
        if unknown { without_start(timing) } else { timing }
    }

    /// Why an answer that is no stream has no first token.
    fn absent_answer(&self, end: &Ending) -> Reason {
        match (end.outcome, end.reason) {
            (Outcome::Completed, Reason::CaptureGap) => Reason::CaptureGap,
            (Outcome::Completed, _) | (_, Reason::NoOutput) => Reason::NotStreaming,
            (_, reason) => reason,
        }
    }

    fn end_unseen(&self, end: &Ending) -> bool {
        matches!(end.outcome, Outcome::Truncated | Outcome::Lost) && end.choices < self.choices().max(1)
    }

    fn tpot(&self, end: &Ending, usage: Option<&Usage>, absent: Reason) -> (Result<f64, Reason>, bool) {
        let plain = |why| (Err(why), false);
        let (Some(first), Some(last), true) = (self.first_generated, self.last_generated(), end.stream) else {
            return plain(if self.hole_in_response() && end.stream { Reason::CaptureGap } else { absent });
        };
        if self.hole_in_response() {
            return plain(Reason::CaptureGap);
        }
        if self.end_unseen(end) {
            return plain(absent);
        }
        if self.choices().max(end.choices) > 1 {
            return plain(Reason::SeveralChoices);
        }
        let Some(tokens) = usage.and_then(|u| u.output) else {
            return plain(Reason::NoUsage);
        };
        if tokens < 2 {
            return plain(Reason::OneToken);
        }
        if self.chunks.arrivals < 2 {
            return plain(Reason::OneArrival);
        }
        // Reasoning that was not sent, or only as a summary, is in the usage: only the visible tokens have a pace.
        let shown = self.chunks.reasoning > 0 && !self.summarised;
        let hidden = usage.and_then(|u| u.reasoning).filter(|n| *n > 0 && !shown);
        let (from, tokens) = match hidden {
            Some(hidden) => (self.first_output, tokens.saturating_sub(hidden)),
            None => (Some(first), tokens),
        };
        if tokens < 2 {
            return (Err(Reason::OneToken), hidden.is_some());
        }
        let Some(from) = from.filter(|from| *from < last) else {
            return (Err(Reason::OneArrival), hidden.is_some());
        };
        (Ok(last.since(from).as_secs_f64() / (tokens - 1) as f64), hidden.is_some())
    }

    /// The tokens behind the first event with output over the time they took, where it is exactly known how many they are.
    fn tpot_after_first_chunk(&self, measured: bool, usage: Option<&Usage>) -> Option<f64> {
        let (first, last) = (self.first_generated.filter(|_| measured)?, self.last_generated);
        let usage = usage?;
        let hidden = usage.reasoning.filter(|_| self.chunks.reasoning == 0 || self.summarised).unwrap_or(0);
        let behind = match self.first_tokens? {
            FirstTokens::Shown(n) => usage.output?.checked_sub(hidden)?.checked_sub(n)?,
            FirstTokens::Counted(n) => usage.output?.checked_sub(n)?,
        };
        (behind > 0).then(|| last.since(first).as_secs_f64() / behind as f64)
    }
}

/// The same without what begins with the request.
fn without_start(t: Timing) -> Timing {
    let known = |figure: Result<Duration, Reason>| figure.and(Err(Reason::MissedStart));
    Timing {
        request_sent: None,
        response_head: None,
        first_body_byte: None,
        first_event: None,
        first_reasoning: None,
        first_output: None,
        last_generated: None,
        ttft: known(t.ttft),
        ttfa: known(t.ttfa),
        duration: known(t.duration),
        ..t
    }
}
