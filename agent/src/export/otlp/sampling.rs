//! Which spans are exported. Two questions, in this order:
//!
//! 1. The head: what `OTEL_TRACES_SAMPLER` says of the trace, by its id and by what the caller decided. All spans of a trace get the same
//!    answer, here and in every other program with the same setting.
//! 2. What the head leaves out is kept all the same when it failed, was cancelled, or was slow: those are the spans that one looks for. They say so
//!    (`tokengauge.sampling.kept`), so that nobody takes them for a sample. `always_off` switches this off as well.

use schemars::JsonSchema;
use serde::Deserialize;
use tokengauge_core::inference::{Inference, Outcome};

use super::Env;

/// A trace's sampled flag (W3C Trace Context §3.2.2.3).
const SAMPLED: u8 = 1;

/// `otlp.spans.keep[]`: what is exported although the sampler leaves it out.
#[derive(Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Keep {
    /// What failed.
    Failed,
    /// What broke an objective, or a limit of `otlp.spans.slow`.
    Slow,
    /// What the client cancelled.
    Cancelled,
}

impl Keep {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Failed, Self::Slow, Self::Cancelled];

    /// The attribute's value.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Failed => "failed",
            Self::Slow => "slow",
            Self::Cancelled => "cancelled",
        }
    }
}

/// `otlp.spans.slow`: limits, in seconds, beyond which an inference is slow.
#[derive(Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq)]
#[serde(deny_unknown_fields, default)]
pub struct Slow {
    /// Of the time to first token.
    pub ttft_s: Option<f64>,
    /// Of the time per output token.
    pub tpot_s: Option<f64>,
    /// Of the longest stall.
    pub max_stall_s: Option<f64>,
    /// Of the duration.
    pub duration_s: Option<f64>,
}

impl Slow {
    /// Whether the values make sense.
    ///
    /// # Errors
    /// With the key and what is wrong with its value.
    pub fn check(&self) -> Result<(), String> {
        let all = [("ttft_s", self.ttft_s), ("tpot_s", self.tpot_s), ("max_stall_s", self.max_stall_s), ("duration_s", self.duration_s)];
        match all.into_iter().find(|(_, limit)| limit.is_some_and(|s| !(s > 0.0 && s.is_finite()))) {
            Some((key, _)) => Err(format!("slow.{key}: must be more than 0")),
            None => Ok(()),
        }
    }

    fn broken(&self, i: &Inference) -> bool {
        let t = &i.timing;
        let over = |limit: Option<f64>, value: Option<f64>| limit.zip(value).is_some_and(|(limit, value)| value > limit);
        over(self.ttft_s, t.ttft.ok().map(|d| d.as_secs_f64()))
            || over(self.tpot_s, t.tpot.ok())
            || over(self.max_stall_s, t.max_stall.ok().map(|d| d.as_secs_f64()))
            || over(self.duration_s, t.duration.ok().map(|d| d.as_secs_f64()))
    }
}

/// What is decided of a trace without a word of its caller.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Root {
    On,
    Off,
    /// So many of 2^63 traces, by the low bits of their ids.
    Ratio(u64),
}

impl Root {
    fn takes(self, trace_id: u128) -> bool {
        match self {
            Self::On => true,
            Self::Off => false,
            // As the SDKs do it, so that all programs of a trace agree.
            Self::Ratio(below) => (trace_id as u64) >> 1 < below,
        }
    }
}

/// How spans are chosen.
#[derive(Clone, Debug)]
pub struct Sampling {
    root: Root,
    parent_based: bool,
    keep: Vec<Keep>,
    slow: Slow,
}

/// What is decided of one span.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Decision {
    /// It is part of the sample.
    Sampled,
    /// It is not, and is exported all the same.
    Kept(Keep),
    /// It is not exported.
    Dropped,
}

impl Sampling {
    /// As the environment says; an unknown name is the default, `parentbased_always_on`.
    pub fn new(keep: Option<&[Keep]>, slow: Slow, env: Env<'_>) -> Self {
        let ratio = env("OTEL_TRACES_SAMPLER_ARG").and_then(|v| v.trim().parse::<f64>().ok()).filter(|r| (0.0..=1.0).contains(r));
        let name = env("OTEL_TRACES_SAMPLER").unwrap_or_default();
        let root = match name.strip_prefix("parentbased_").unwrap_or(&name) {
            "always_off" => Root::Off,
            "traceidratio" => match ratio.unwrap_or(1.0) {
                1.0 => Root::On,
                ratio => Root::Ratio((ratio * (1_u64 << 63) as f64) as u64),
            },
            _ => Root::On,
        };
        let parent_based = !matches!(name.as_str(), "always_on" | "always_off" | "traceidratio");
        Self { root, parent_based, keep: keep.unwrap_or(&Keep::ALL).to_vec(), slow }
    }

    /// What becomes of the span of `i`; `broke` says that it broke an objective.
    pub fn decide(&self, i: &Inference, broke: bool) -> Decision {
        let parent = i.request.traceparent.filter(|_| i.trace.parent.is_some() && self.parent_based);
        let sampled = match parent {
            Some(parent) => parent.flags & SAMPLED != 0,
            None => self.root.takes(i.trace.trace_id),
        };
        if sampled {
            return Decision::Sampled;
        }
        if self.root == Root::Off {
            return Decision::Dropped;
        }
        let why = match i.outcome {
            Outcome::Failed => Some(Keep::Failed),
            Outcome::Cancelled => Some(Keep::Cancelled),
            _ => None,
        };
        let why = why.filter(|w| self.keep.contains(w));
        let slow = || (self.keep.contains(&Keep::Slow) && (broke || self.slow.broken(i))).then_some(Keep::Slow);
        why.or_else(slow).map_or(Decision::Dropped, Decision::Kept)
    }
}

#[cfg(test)]
mod tests {
    use opentelemetry::trace::TraceId;
    use opentelemetry_sdk::trace::{Sampler, SamplingDecision, ShouldSample as _};
    use tokengauge_core::inference::TraceParent;

    use super::*;
    use crate::testing;

    fn sampling(name: &str, arg: &str) -> Sampling {
        let env = |n: &str| match n {
            "OTEL_TRACES_SAMPLER" => Some(name.to_owned()),
            _ => Some(arg.to_owned()),
        };
        Sampling::new(None, Slow::default(), &env)
    }

    fn with_parent(mut i: Inference, flags: u8) -> Inference {
        let traceparent = TraceParent { trace_id: i.trace.trace_id, span_id: 7, flags };
        (i.request.traceparent, i.trace.parent) = (Some(traceparent), Some(7));
        i
    }

    #[test]
    fn the_callers_decision_is_kept() {
        for (name, arg, flags, want) in [
            ("", "", Some(1), true),
            ("", "", Some(0), false),
            ("", "", None, true),
            ("nonsense", "", None, true),
            ("always_on", "", Some(0), true),
            ("always_off", "", None, false),
            ("parentbased_always_off", "", Some(1), true),
            ("parentbased_always_off", "", None, false),
            ("traceidratio", "0", Some(1), false),
            ("parentbased_traceidratio", "1", None, true),
            ("parentbased_traceidratio", "0", Some(1), true),
            ("parentbased_traceidratio", "7", None, true),
        ] {
            let i = flags.map_or_else(testing::inference, |f| with_parent(testing::inference(), f));
            let want = if want { Decision::Sampled } else { Decision::Dropped };
            assert_eq!(sampling(name, arg).decide(&i, false), want, "{name} {arg} {flags:?}");
        }
    }

    #[test]
    fn a_ratio_takes_the_traces_that_the_sdk_takes() {
        let (ours, theirs) = (sampling("traceidratio", "0.3"), Sampler::TraceIdRatioBased(0.3));
        let (mut i, mut id, mut taken) = (testing::inference(), 1_u128, 0);
        for _ in 0..10_000 {
            id = id.wrapping_mul(0xda94_2042_e4dd_58b5_93a4_3b1f_6b1d_4f2d).wrapping_add(0x9e37_79b9);
            i.trace.trace_id = id;
            let sdk = theirs.should_sample(None, TraceId::from(id), "x", &opentelemetry::trace::SpanKind::Client, &[], &[]);
            let sampled = ours.decide(&i, false) == Decision::Sampled;
            assert_eq!(sampled, sdk.decision == SamplingDecision::RecordAndSample, "{id:x}");
            taken += u32::from(sampled);
        }
        assert!((2_700..3_300).contains(&taken), "{taken}");
    }

    #[test]
    fn what_one_looks_for_is_kept_whatever_the_sampler_says() {
        let (none, plain) = (sampling("traceidratio", "0"), testing::inference());
        let cancelled = Inference { outcome: Outcome::Cancelled, ..testing::inference() };
        assert_eq!(none.decide(&plain, false), Decision::Dropped);
        assert_eq!(none.decide(&plain, true), Decision::Kept(Keep::Slow));
        assert_eq!(none.decide(&testing::refused(), false), Decision::Kept(Keep::Failed));
        assert_eq!(none.decide(&cancelled, false), Decision::Kept(Keep::Cancelled));
        assert_eq!(sampling("", "").decide(&with_parent(testing::refused(), 0), false), Decision::Kept(Keep::Failed));
        assert_eq!(sampling("", "").decide(&testing::refused(), false), Decision::Sampled);
        assert_eq!(sampling("always_off", "").decide(&testing::refused(), true), Decision::Dropped);
        let only_slow = Sampling { keep: vec![Keep::Slow], ..none };
        assert_eq!(only_slow.decide(&testing::refused(), false), Decision::Dropped);
        assert_eq!(only_slow.decide(&cancelled, true), Decision::Kept(Keep::Slow));
    }

    #[test]
    fn slow_is_beyond_any_limit() {
        // TTFT 410 ms, TPOT 10 ms, longest stall 30 ms, 480 ms in all.
        let of = |slow: Slow| Sampling { slow, ..sampling("traceidratio", "0") }.decide(&testing::inference(), false);
        let none = Slow::default();
        for (limit, slow) in [(0.40, true), (0.41, false)] {
            assert_eq!(of(Slow { ttft_s: Some(limit), ..none }) == Decision::Kept(Keep::Slow), slow);
        }
        assert_eq!(of(Slow { tpot_s: Some(0.009), ..none }), Decision::Kept(Keep::Slow));
        assert_eq!(of(Slow { max_stall_s: Some(0.029), ..none }), Decision::Kept(Keep::Slow));
        assert_eq!(of(Slow { duration_s: Some(0.479), ..none }), Decision::Kept(Keep::Slow));
        assert_eq!(of(none), Decision::Dropped);
        assert!(Slow { duration_s: Some(0.0), ..none }.check().unwrap_err().starts_with("slow.duration_s"));
    }
}
