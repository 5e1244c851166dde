//! The marks of one inference in time, and the measures made from them (`formulas.md` §3). Gaps are marks, too: no interval is
//! measured across one (invariant 5), and what is undefined carries its reason instead of a number.

mod measures;

use std::time::Duration;

use crate::dialect::{LlmEvent, Output};
use crate::gaps::Gaps;
use crate::inference::{Chunks, Hole, MAX_HOLES, Outcome, Reason, Timing, Usage};
use crate::stream::Timestamp;

/// Choices that are told apart.
const MAX_CHOICES: usize = 128;

/// The marks of one inference. What every chunk changes stands first and together, because with thousands of streams each further
/// cache line is one more wait for memory.
#[derive(Debug)]
#[repr(C)]
pub struct Timeline {
    /// Means something when `chunks.arrivals > 0`.
    last_generated: Timestamp,
    /// In nanoseconds; means something when `chunks.arrivals > 1`.
    max_stall: u64,
    /// Last output of the choice that came first, which is mostly the only one; `None` after a hole.
    first_choice: Option<(u32, Option<Timestamp>)>,
    chunks: Chunks,
    /// A hole lies somewhere behind the last frame that was seen.
    hole_since_frame: bool,
    /// Whether the `first_` mark of the same name and `terminator` are set.
    seen: Seen,
    gaps: Gaps,
    first_body_byte: Option<Timestamp>,
    first_event: Option<Timestamp>,
    first_reasoning: Option<Timestamp>,
    first_output: Option<Timestamp>,
    first_generated: Option<Timestamp>,
    terminator: Option<Timestamp>,
    start: Timestamp,
    request_sent: Option<Timestamp>,
    response_head: Option<Timestamp>,
    /// Whether reasoning was only summarised: its text says nothing about the pace of its tokens.
    summarised: bool,
    /// Tokens that events said to hold before the first output.
    tokens_before: u64,
    /// Tokens up to and in the first event with output, where they are exactly known.
    first_tokens: Option<FirstTokens>,
    /// As `first_choice`, for the others.
    choices: Vec<(u32, Option<Timestamp>)>,
    holes: u32,
    /// Those of the answer, as far as they are kept.
    kept_holes: Vec<Hole>,
    /// A hole lies in the answer before its first output.
    hole_before_output: bool,
    /// A hole lies in the answer behind its first output.
    hole_behind_output: bool,
    /// A hole lies before the first event, or the first body byte, or the head.
    hole_before_event: bool,
    hole_before_body: bool,
    hole_before_head: bool,
    hole_in_request: bool,
    /// When the inference was asked for is not on the wire.
    start_unseen: bool,
}

/// Which marks are set that are set only once: they need not be looked at again.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    event: bool,
    reasoning: bool,
    output: bool,
    terminator: bool,
}

/// How the tokens of the first event with output are known.
#[derive(Clone, Copy, Debug)]
enum FirstTokens {
    /// Each stands in the event, by its id or its probability: hidden reasoning is not among them.
    Shown(u64),
    /// By the usage that came with the event, which counts all that was generated until then.
    Counted(u64),
}

/// What the end of an inference adds to its marks.
#[derive(Clone, Copy, Debug)]
pub struct Ending {
    /// The instant at which the exchange was over.
    pub at: Timestamp,
    /// Whether that is the end of the response (not the end of our sight).
    pub response_ended: bool,
    /// How.
    pub outcome: Outcome,
    /// Whether the answer was a stream.
    pub stream: bool,
    /// Why a stream has no first token, if it has none.
    pub reason: Reason,
    /// Choices that the answer finished.
    pub choices: usize,
    /// Whether the prompt was to be echoed: then the first text is not generated, or not all of it.
    pub echoed: bool,
}

impl Timeline {
    /// A timeline that begins with the request's first byte.
    pub fn new(start: Timestamp) -> Self {
        Self {
            start,
            request_sent: None,
            response_head: None,
            first_body_byte: None,
            first_event: None,
            first_reasoning: None,
            first_output: None,
            first_generated: None,
            last_generated: Timestamp::default(),
            terminator: None,
            seen: Seen::default(),
            summarised: false,
            chunks: Chunks::default(),
            first_choice: None,
            tokens_before: 0,
            first_tokens: None,
            choices: Vec::new(),
            gaps: Gaps::default(),
            max_stall: 0,
            holes: 0,
            kept_holes: Vec::new(),
            hole_before_output: false,
            hole_behind_output: false,
            hole_before_event: false,
            hole_before_body: false,
            hole_before_head: false,
            hole_in_request: false,
            hole_since_frame: false,
            start_unseen: false,
        }
    }

    /// The request's first byte.
    pub fn start(&self) -> Timestamp {
        self.start
    }

    /// Asks for the memory that [`Timeline::delta`] will need. The result says nothing.
    pub fn touch(&self) -> u64 {
        self.gaps.touch() ^ u64::from(self.chunks.events)
    }

    /// Bytes that are buffered.
    pub fn buffered(&self) -> usize {
        self.gaps.buffered() + self.kept_holes.capacity() * size_of::<Hole>()
    }

    /// Gives up the single gaps to save memory.
    pub fn forget_gaps(&mut self) {
        self.gaps.forget();
    }

    /// Capture gaps so far.
    pub fn holes(&self) -> u32 {
        self.holes
    }

    /// Whether the response has a hole behind the last frame that was seen.
    pub fn hole_since_frame(&self) -> bool {
        self.hole_since_frame
    }

    /// Whether the response has a hole.
    pub fn hole_in_response(&self) -> bool {
        self.hole_before_output || self.hole_behind_output
    }

    /// What was counted.
    pub fn chunks(&self) -> Chunks {
        self.chunks
    }

    /// The request's last byte.
    pub fn request_sent(&mut self, at: Timestamp) {
        self.request_sent = Some(at);
    }

    /// The response's first byte.
    pub fn response_head(&mut self, at: Timestamp) {
        self.response_head = Some(at);
    }

    /// A byte of the body.
    pub fn body(&mut self, at: Timestamp) {
        if self.first_body_byte.is_none() {
            self.first_body_byte = Some(at);
        }
    }

    /// Whether the API's terminator was seen.
    pub fn terminated(&self) -> bool {
        self.seen.terminator
    }

    /// The instant of the API's terminator.
    pub fn terminator_at(&self) -> Option<Timestamp> {
        self.terminator
    }

    /// The API's terminator.
    pub fn terminator(&mut self, at: Timestamp) {
        self.terminator.get_or_insert(at);
        self.seen.terminator = true;
    }

    /// When the inference was asked for is not on the wire: what begins there is undefined.
    pub fn start_unseen(&mut self) {
        self.start_unseen = true;
    }

    /// What seemed to be the end was none.
    pub fn go_on(&mut self) {
        self.terminator = None;
        self.seen.terminator = false;
    }

    /// Bytes of the request are missing.
    pub fn hole_in_request(&mut self) {
        self.holes += 1;
        self.hole_in_request = true;
    }

    /// Bytes of the response are missing: so many of the connection, where that is known.
    pub fn hole(&mut self, at: Timestamp, bytes: Option<u64>) {
        self.holes += 1;
        // What one hole of the connection hides is one to whoever looks.
        if self.kept_holes.len() < MAX_HOLES && self.kept_holes.last().is_none_or(|last| last.at != at) {
            self.kept_holes.push(Hole { at, bytes });
        }
        self.hole_since_frame = true;
        self.hole_before_head |= self.response_head.is_none();
        self.hole_before_body |= self.first_body_byte.is_none();
        self.hole_before_event |= self.first_event.is_none();
        if self.first_generated.is_none() {
            self.hole_before_output = true;
        } else {
            self.hole_behind_output = true;
        }
        self.first_choice.iter_mut().chain(&mut self.choices).for_each(|(_, last)| *last = None);
    }

    /// A complete event of the API with what it says. One event is one chunk, whatever it holds.
    pub fn frame(&mut self, at: Timestamp, events: &[LlmEvent]) {
        self.event(at);
        let (mut reasoning, mut visible) = (false, false);
        let (mut shown, mut counted) = (0_u64, None);
        for event in events {
            match event {
                LlmEvent::Delta { choice, kind } => {
                    reasoning |= kind.is_reasoning();
                    visible |= !kind.is_reasoning();
                    self.summarised |= *kind == Output::Summary;
                    // Text and a tool call of one choice in one event are one output of it.
                    let again = events
                        .iter()
                        .take_while(|e| !std::ptr::eq(*e, event))
                        .any(|e| matches!(e, LlmEvent::Delta { choice: c, .. } if c == choice));
                    if !again {
                        self.output_of(*choice, at);
                    }
                }
                LlmEvent::ToolStart => self.chunks.tool_starts += 1,
                LlmEvent::Tokens(n) => shown = shown.saturating_add(*n),
                LlmEvent::Usage(usage) => counted = usage.output,
                _ => {}
            }
        }
        if self.first_generated.is_none() {
            self.tokens_before = self.tokens_before.saturating_add(shown);
            let shown = Some(self.tokens_before).filter(|n| *n > 0).map(FirstTokens::Shown);
            self.first_tokens = shown.or(counted.filter(|n| *n > 0).map(FirstTokens::Counted));
        }
        if reasoning || visible {
            self.output(at, reasoning, visible);
        }
    }

    /// A complete event of the API that is one piece of output and nothing else: what [`Timeline::frame`] makes of such an event.
    #[inline]
    pub fn delta(&mut self, at: Timestamp, choice: u32, kind: Output) {
        self.event(at);
        self.output_of(choice, at);
        let reasoning = kind.is_reasoning();
        self.summarised |= kind == Output::Summary;
        self.output(at, reasoning, !reasoning);
    }

    /// Events as those of [`Timeline::delta`], all of one choice and kind.
    pub fn deltas(&mut self, mut instants: impl Iterator<Item = Timestamp>, choice: u32, kind: Output) {
        let Some(first) = instants.next() else { return };
        self.delta(first, choice, kind);
        // What happens once has happened; and mostly the choice is the only one.
        if !matches!(self.first_choice, Some((only, Some(_))) if only == choice) {
            return instants.for_each(|at| self.delta(at, choice, kind));
        }
        let (mut last, mut more, mut arrivals, mut stall) = (first, 0, 0, self.max_stall);
        for at in instants {
            let gap = at.nanos_since(last);
            self.gaps.push(gap);
            arrivals += u32::from(at != last);
            stall = stall.max(gap);
            more += 1;
            last = at;
        }
        self.chunks.events += more;
        self.chunks.generated += more;
        self.chunks.reasoning += if kind.is_reasoning() { more } else { 0 };
        self.chunks.arrivals += arrivals;
        (self.first_choice, self.last_generated, self.max_stall) = (Some((choice, Some(last))), last, stall);
    }

    #[inline]
    fn event(&mut self, at: Timestamp) {
        self.hole_since_frame = false;
        self.chunks.events += 1;
        if !self.seen.event {
            (self.seen.event, self.first_event) = (true, Some(at));
        }
    }

    #[inline]
    fn output(&mut self, at: Timestamp, reasoning: bool, visible: bool) {
        self.chunks.generated += 1;
        self.chunks.reasoning += u32::from(reasoning);
        if reasoning && !self.seen.reasoning {
            (self.seen.reasoning, self.first_reasoning) = (true, Some(at));
        }
        if visible && !self.seen.output {
            (self.seen.output, self.first_output) = (true, Some(at));
        }
        if self.chunks.arrivals == 0 {
            self.first_generated = Some(at);
        } else if self.last_generated == at {
            return;
        } else {
            self.max_stall = self.max_stall.max(at.nanos_since(self.last_generated));
        }
        self.chunks.arrivals += 1;
        self.last_generated = at;
    }

    #[inline]
    fn output_of(&mut self, choice: u32, at: Timestamp) {
        let last = match &mut self.first_choice {
            Some((first, last)) if *first == choice => last,
            None => {
                self.first_choice = Some((choice, Some(at)));
                return;
            }
            Some(_) => match self.choices.iter_mut().find(|(c, _)| *c == choice) {
                Some((_, last)) => last,
                None => {
                    if self.choices.len() + 1 < MAX_CHOICES {
                        self.choices.push((choice, Some(at)));
                    }
                    return;
                }
            },
        };
        if let Some(before) = last.replace(at) {
            self.gaps.push(at.nanos_since(before));
        }
    }

    fn last_generated(&self) -> Option<Timestamp> {
        (self.chunks.arrivals > 0).then_some(self.last_generated)
    }

    /// Whether generated output was seen.
    pub fn generated(&self) -> bool {
        self.first_generated.is_some()
    }

    /// How many choices gave output.
    pub fn choices(&self) -> usize {
        self.choices.len() + usize::from(self.first_choice.is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Timestamp {
        Timestamp::from_unix_nanos(ms * 1_000_000)
    }

    fn text(choice: u32) -> LlmEvent {
        LlmEvent::Delta { choice, kind: Output::Text }
    }

    const THINK: LlmEvent = LlmEvent::Delta { choice: 0, kind: Output::Reasoning };

    fn ended(ms: u64) -> Ending {
        Ending {
            at: at(ms),
            response_ended: true,
            outcome: Outcome::Completed,
            stream: true,
            reason: Reason::NoOutput,
            choices: 1,
            echoed: false,
        }
    }

    fn usage(output: u64, reasoning: Option<u64>) -> Usage {
        Usage { output: Some(output), reasoning, ..Usage::default() }
    }

    #[test]
    fn every_figure_of_a_plain_stream() {
        let mut t = Timeline::new(at(0));
        t.frame(at(100), &[]);
        for ms in [200, 220, 220, 300] {
            t.frame(at(ms), &[text(0)]);
        }
        t.terminator(at(350));
        let f = t.finish(&ended(400), Some(&usage(5, None)));
        assert_eq!(
            (f.ttft, f.first_event, f.duration),
            (Ok(Duration::from_millis(200)), Some(Duration::from_millis(100)), Ok(Duration::from_millis(350)))
        );
        assert_eq!((f.tpot, f.max_stall), (Ok(0.025), Ok(Duration::from_millis(80))));
        assert_eq!(f.gaps.iter().collect::<Vec<_>>(), [20_000_000, 0, 80_000_000]);
    }

    #[test]
    fn undefined_is_not_zero() {
        let tpot = |frames: &[(u64, &[LlmEvent])], u: Option<Usage>| {
            let mut t = Timeline::new(at(0));
            frames.iter().for_each(|(ms, e)| t.frame(at(*ms), e));
            t.finish(&ended(1000), u.as_ref()).tpot
        };
        let two: &[(u64, &[LlmEvent])] = &[(10, &[text(0)]), (20, &[text(0)])];
        assert_eq!(tpot(two, Some(usage(2, None))), Ok(0.01));
        assert_eq!(tpot(two, None), Err(Reason::NoUsage));
        assert_eq!(tpot(two, Some(usage(1, None))), Err(Reason::OneToken));
        assert_eq!(tpot(&two[..1], Some(usage(9, None))), Err(Reason::OneArrival));
        assert_eq!(tpot(&[(10, &[text(0)]), (10, &[text(0)])], Some(usage(9, None))), Err(Reason::OneArrival));
        assert_eq!(tpot(&[(10, &[text(0)]), (20, &[text(1)])], Some(usage(9, None))), Err(Reason::SeveralChoices));
        assert_eq!(tpot(&[], Some(usage(100, Some(100)))), Err(Reason::NoOutput));
        // Hidden reasoning: 7 of 10 tokens were never on the wire.
        assert_eq!(tpot(two, Some(usage(10, Some(7)))), Ok(0.005));
        assert_eq!(tpot(two, Some(usage(10, Some(11)))), Err(Reason::OneToken));
        // Summarised: its tokens have no pace.
        let sum = LlmEvent::Delta { choice: 0, kind: Output::Summary };
        let summed: &[(u64, &[LlmEvent])] = &[(5, std::slice::from_ref(&sum)), (10, &[text(0)]), (20, &[text(0)])];
        assert_eq!(tpot(summed, Some(usage(10, Some(7)))), Ok(0.005));
        assert_eq!(tpot(&summed[..2], Some(usage(10, Some(7)))), Err(Reason::OneArrival));
        assert_eq!(
            tpot(&[(5, std::slice::from_ref(&sum)), (9, std::slice::from_ref(&sum))], Some(usage(10, Some(7)))),
            Err(Reason::OneArrival)
        );
        // Shown in full: it counts.
        assert_eq!(tpot(&[(10, &[THINK]), (20, &[text(0)])], Some(usage(11, Some(7)))), Ok(0.001));
    }

    #[test]
    fn the_first_chunks_own_tokens() {
        let after = |first: &[LlmEvent], u: Usage| {
            let mut t = Timeline::new(at(0));
            t.frame(at(5), &[LlmEvent::Tokens(1)]);
            t.frame(at(10), first);
            t.frame(at(50), &[text(0), LlmEvent::Tokens(2), LlmEvent::Usage(usage(4, None))]);
            let timing = t.finish(&ended(1000), Some(&u));
            assert_eq!(timing.tpot, Ok(0.04 / (u.output.unwrap() - u.reasoning.unwrap_or(0) - 1) as f64));
            timing.tpot_after_first_chunk
        };
        // One token came before it without text, three are in it: 4 of 12 are behind it when 4 are hidden.
        assert_eq!(after(&[text(0), LlmEvent::Tokens(3)], usage(8, None)), Some(0.01));
        assert_eq!(after(&[text(0), LlmEvent::Tokens(3)], usage(12, Some(4))), Some(0.01));
        assert_eq!(after(&[text(0), LlmEvent::Tokens(9)], usage(8, None)), None);
        let mut t = Timeline::new(at(0));
        t.frame(at(10), &[text(0), LlmEvent::Usage(usage(7, None))]);
        t.frame(at(50), &[text(0), LlmEvent::Usage(usage(9, None))]);
        // Counted by the provider: hidden reasoning is in both counts.
        assert_eq!(t.finish(&ended(60), Some(&usage(11, Some(5)))).tpot_after_first_chunk, Some(0.01));
        let mut t = Timeline::new(at(0));
        t.frame(at(10), &[text(0)]);
        t.frame(at(50), &[text(0), LlmEvent::Usage(usage(9, None))]);
        assert_eq!(t.finish(&ended(60), Some(&usage(9, None))).tpot_after_first_chunk, None);
    }

    #[test]
    fn an_echoed_prompt_is_no_first_token() {
        let mut t = Timeline::new(at(0));
        [5, 200, 220].iter().for_each(|ms| t.frame(at(*ms), &[text(0)]));
        t.terminator(at(300));
        let f = t.finish(&Ending { echoed: true, ..ended(300) }, Some(&usage(2, None)));
        assert_eq!((f.ttft, f.ttfa, f.tpot), (Err(Reason::Unparsed), Err(Reason::Unparsed), Err(Reason::Unparsed)));
        assert_eq!((f.max_stall, f.first_output, f.gaps.count()), (Err(Reason::Unparsed), None, 0));
        assert_eq!(f.duration, Ok(Duration::from_millis(300)));
    }

    #[test]
    fn nothing_is_measured_across_a_hole() {
        let mut t = Timeline::new(at(0));
        t.frame(at(10), &[text(0)]);
        t.frame(at(20), &[text(0)]);
        t.hole(at(60), Some(99));
        t.frame(at(90), &[text(0)]);
        t.frame(at(95), &[text(0)]);
        t.terminator(at(100));
        let f = t.finish(&ended(100), Some(&usage(9, None)));
        assert_eq!((f.ttft, f.tpot), (Ok(Duration::from_millis(10)), Err(Reason::CaptureGap)));
        assert_eq!((f.max_stall, f.duration), (Err(Reason::CaptureGap), Err(Reason::CaptureGap)));
        assert_eq!(f.gaps.iter().collect::<Vec<_>>(), [10_000_000, 5_000_000]);
        assert_eq!(f.holes, [Hole { at: at(60), bytes: Some(99) }]);
        let mut t = Timeline::new(at(0));
        t.hole(at(5), None);
        t.frame(at(10), &[text(0)]);
        let f = t.finish(&ended(100), None);
        assert_eq!((f.ttft, f.ttfa, f.first_output, f.first_event), (Err(Reason::CaptureGap), Err(Reason::CaptureGap), None, None));
        let mut t = Timeline::new(at(0));
        t.frame(at(10), &[THINK]);
        t.hole(at(5), None);
        t.frame(at(30), &[text(0)]);
        let f = t.finish(&ended(100), None);
        assert_eq!((f.ttft, f.ttfa), (Ok(Duration::from_millis(10)), Err(Reason::CaptureGap)));
    }

    #[test]
    fn holes_are_kept_up_to_a_bound_and_counted_beyond() {
        let mut t = Timeline::new(at(0));
        for n in 0..100 {
            t.hole(at(n), Some(n));
            // Of the same hole of the connection.
            t.hole(at(n), None);
        }
        assert_eq!(t.holes(), 200);
        assert!(t.buffered() <= 2 * MAX_HOLES * size_of::<Hole>());
        let f = t.finish(&ended(100), None);
        assert_eq!(f.holes, (0..MAX_HOLES as u64).map(|n| Hole { at: at(n), bytes: Some(n) }).collect::<Vec<_>>());
    }
}
