//! One server as its engine counts it and as the wire showed it: what is missing of its tokens, and what TTFT has beyond the engine's.
//!
//! Both sides are compared over the last scrapes. The engine's counters say what it had done at a scrape, the wire's what had been
//! finished by then, so that requests under way are on one side only: over a window that is long beside a request it does not matter.

use std::collections::VecDeque;
use std::time::Duration;

use super::book::Book;
use super::figures::Quantity;
use crate::inference::{Inference, Vantage};
use crate::stream::TapKind;

/// Scrapes that are compared over.
pub const WINDOW: usize = 20;

/// Share by which two counts of the same requests may differ, for those under way at the window's ends.
const SAME: f64 = 0.05;

/// What one tap saw of a server from one side. Counts since the beginning.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct View {
    /// Inferences.
    pub inferences: u64,
    /// Their output tokens, by the usage that they told.
    pub output_tokens: u64,
    /// Those that reached the engine and told no usage.
    pub untold: u64,
    /// Seconds of TTFT.
    pub ttft_s: f64,
    /// How many had one.
    pub ttfts: u64,
}

/// The side and the tap.
pub type From = (Vantage, TapKind);

/// What of an inference is compared.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Seen {
    /// The side and the tap.
    pub from: From,
    /// Output tokens, by the usage that it told.
    pub output_tokens: Option<u64>,
    /// Whether it was refused, so that the engine may never have had it.
    pub refused: bool,
    /// Its TTFT.
    pub ttft: Option<Duration>,
}

impl Seen {
    /// `None` when it is no inference but an old response that is sent again.
    pub fn of(i: &Inference) -> Option<Self> {
        i.operation.is_inference().then(|| Self {
            from: (i.vantage, i.tap),
            output_tokens: i.usage.and_then(|u| u.output),
            refused: i.response.status.is_some_and(|s| s >= 400),
            ttft: i.timing.ttft.ok(),
        })
    }
}

/// As things stood at a scrape.
#[derive(Clone, Debug, Default)]
struct Mark {
    generated: Option<f64>,
    ttft: Option<(f64, u64)>,
    views: Vec<(From, View)>,
}

/// What a window showed.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Compared {
    /// From which side it was seen.
    pub vantage: Vantage,
    /// Output tokens on the wire by generated tokens of the engine.
    pub token_coverage: Option<f64>,
    /// Mean TTFT on the wire less that of the engine, seconds.
    pub ttft_excess_s: Option<f64>,
}

/// One server, twice.
#[derive(Debug, Default)]
pub struct Beside {
    views: Vec<(From, View)>,
    marks: VecDeque<Mark>,
}

impl Beside {
    /// Counts an inference at this server, once the server was read.
    pub fn saw(&mut self, seen: Seen) {
        if self.marks.is_empty() {
            return;
        }
        // Kinds of taps and sides are few: the list is bounded by them.
        let at = self.views.iter().position(|(from, _)| *from == seen.from).unwrap_or_else(|| {
            self.views.push((seen.from, View::default()));
            self.views.len() - 1
        });
        let Some((_, view)) = self.views.get_mut(at) else { return };
        view.inferences += 1;
        match seen.output_tokens {
            Some(tokens) => view.output_tokens = view.output_tokens.saturating_add(tokens),
            // A refused request had no tokens to tell of.
            None => view.untold += u64::from(!seen.refused),
        }
        if let Some(ttft) = seen.ttft {
            view.ttft_s += ttft.as_secs_f64();
            view.ttfts += 1;
        }
    }

    /// The server was read.
    pub fn scraped(&mut self, book: &Book) {
        if self.marks.len() > WINDOW {
            self.marks.pop_front();
        }
        self.marks.push_back(Mark {
            generated: book.total(Quantity::GenerationTokens),
            ttft: book.sum_and_count(Quantity::Ttft),
            views: self.views.clone(),
        });
    }

    /// Output tokens that were seen, by side and tap.
    pub fn views(&self) -> &[(From, View)] {
        &self.views
    }

    /// The window's two sides beside each other; `None` while nothing was seen on the wire.
    pub fn compared(&self) -> Option<Compared> {
        let (first, last) = (self.marks.front()?, self.marks.back()?);
        let during = |from: &From, view: &View| {
            let before = first.views.iter().find(|(f, _)| f == from).map(|(_, view)| *view).unwrap_or_default();
            View {
                inferences: view.inferences - before.inferences,
                output_tokens: view.output_tokens - before.output_tokens,
                untold: view.untold - before.untold,
                ttft_s: view.ttft_s - before.ttft_s,
                ttfts: view.ttfts - before.ttfts,
            }
        };
        let views = last.views.iter().map(|(from, view)| (*from, during(from, view)));
        // Two taps or two sides saw the same requests, each as many as it could. The best is compared; of equals the server's.
        let ((vantage, _), view) = views.max_by_key(|((vantage, _), view)| (view.inferences, *vantage == Vantage::Server))?;
        if view.inferences == 0 {
            return None;
        }
        let generated = last.generated.zip(first.generated).map(|(last, first)| last - first).filter(|n| *n > 0.0);
        let token_coverage = generated.filter(|_| view.untold == 0).map(|n| view.output_tokens as f64 / n);
        let engine = last.ttft.zip(first.ttft).map(|(last, first)| (last.0 - first.0, last.1.saturating_sub(first.1)));
        let ttft_excess_s = engine.and_then(|(sum, count)| {
            let (ours, theirs) = (view.ttfts as f64, count as f64);
            let same = count > 0 && view.ttfts > 0 && (ours - theirs).abs() <= SAME * theirs;
            same.then(|| view.ttft_s / ours - sum / theirs)
        });
        Some(Compared { vantage, token_coverage, ttft_excess_s })
    }
}

#[cfg(test)]
mod tests {
    use super::super::gather::Gather;
    use super::super::text::Reader;
    use super::*;

    fn read(book: &mut Book, tokens: u32, ttfts: u32) {
        let name = "vllm:time_to_first_token_seconds";
        let text =
            format!("vllm:generation_tokens_total {tokens}\n{name}_bucket{{le=\"+Inf\"}} {ttfts}\n{name}_sum {}\n", f64::from(ttfts) * 0.1);
        let (mut reader, mut gather) = (Reader::default(), Gather::default());
        reader.push(text.as_bytes(), &mut |s| gather.sample(s));
        reader.finish(&mut |s| gather.sample(s));
        book.read(gather.finish(), false);
    }

    fn seen(vantage: Vantage, tokens: u64) -> Seen {
        let ttft = Some(Duration::from_millis(104));
        Seen { from: (vantage, TapKind::Tls), output_tokens: Some(tokens), refused: false, ttft }
    }

    /// A server that was read once, with 1000 tokens and 7 first tokens before anyone looked.
    fn begun() -> (Book, Beside) {
        let (mut book, mut beside) = (Book::default(), Beside::default());
        beside.saw(seen(Vantage::Server, 999)); // before the first reading: on neither side
        read(&mut book, 1000, 7);
        beside.scraped(&book);
        (book, beside)
    }

    #[test]
    fn nothing_seen_is_nothing_said() {
        let (mut book, mut beside) = begun();
        assert_eq!(beside.compared(), None);
        read(&mut book, 2000, 9);
        beside.scraped(&book);
        assert_eq!(beside.compared(), None);
    }

    #[test]
    fn the_better_view_is_compared() {
        let (mut book, mut beside) = begun();
        beside.saw(seen(Vantage::Server, 60));
        beside.saw(seen(Vantage::Client, 60));
        beside.saw(seen(Vantage::Server, 20));
        read(&mut book, 1100, 9);
        beside.scraped(&book);
        let compared = beside.compared().unwrap();
        assert_eq!((compared.vantage, compared.token_coverage), (Vantage::Server, Some(0.8)));
        assert!((compared.ttft_excess_s.unwrap() - 0.004).abs() < 1e-9);
        assert_eq!(beside.views().len(), 2);
    }

    #[test]
    fn what_is_not_known_is_absent() {
        let (mut book, mut beside) = begun();
        beside.saw(Seen { output_tokens: None, ..seen(Vantage::Server, 0) });
        beside.saw(Seen { ttft: None, ..seen(Vantage::Server, 50) });
        read(&mut book, 1100, 9);
        beside.scraped(&book);
        let compared = beside.compared().unwrap();
        assert_eq!((compared.token_coverage, compared.ttft_excess_s), (None, None));
        // A refused request lacks nothing.
        let (mut book, mut beside) = begun();
        beside.saw(Seen { output_tokens: None, refused: true, ttft: None, ..seen(Vantage::Server, 0) });
        beside.saw(seen(Vantage::Server, 100));
        read(&mut book, 1100, 8);
        beside.scraped(&book);
        assert_eq!(beside.compared().unwrap().token_coverage, Some(1.0));
        // An engine that counts nothing in the window.
        let (book, mut beside) = begun();
        beside.saw(seen(Vantage::Server, 100));
        beside.scraped(&book);
        assert_eq!(beside.compared().unwrap().token_coverage, None);
    }

    #[test]
    fn the_window_moves_on() {
        let (mut book, mut beside) = begun();
        beside.saw(seen(Vantage::Server, 10)); // of 100: a loss long ago
        for i in 1..=WINDOW as u32 + 5 {
            beside.saw(seen(Vantage::Server, 100));
            read(&mut book, 1090 + 100 * i, 7 + i);
            beside.scraped(&book);
        }
        assert_eq!(beside.compared().unwrap().token_coverage, Some(1.0));
        assert_eq!(beside.marks.len(), WINDOW + 1);
    }
}
