//! Who exports what under which name, and what it means: the one registry of inference servers' metrics.
//!
//! Sources: vLLM `vllm/v1/metrics/loggers.py`; sgl-project/sglang@016d8605 `observability/metrics_collector.py`;
//! NVIDIA/TensorRT-LLM@050f80de `tensorrt_llm/metrics/collector.py`; huggingface/text-generation-inference 3.3; llama.cpp (xllamacpp
//! 2026-10, read from the running server); triton-inference-server and tensorrtllm_backend. What is left out, and why:
//!
//! * vLLM's `request_time_per_output_token_seconds`: a request with one token is written as 0 there, which is no measurement and cannot
//!   be told from one in a bucket.
//! * TGI's `request_mean_time_per_token_duration`: inference time / tokens, prefill and all; no other server's figure is like it.
//! * SGLang's `per_stage_req_latency_seconds`: its stages are not those of the others.
//! * Throughput gauges: a rate of the token counters is the same without a window of someone else's choice.

use super::Kind;
use crate::semconv::{Metric, metric};

/// A figure under our name.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Quantity {
    /// [`metric::ENGINE_RUNNING`].
    Running,
    /// [`metric::ENGINE_WAITING`].
    Waiting,
    /// [`metric::ENGINE_FINISHED`].
    Finished,
    /// [`metric::ENGINE_FAILED`].
    Failed,
    /// [`metric::ENGINE_PREEMPTIONS`].
    Preemptions,
    /// [`metric::ENGINE_KV_CACHE_USAGE`].
    KvCacheUsage,
    /// [`metric::ENGINE_PREFIX_QUERIES`].
    PrefixQueries,
    /// [`metric::ENGINE_PREFIX_HITS`].
    PrefixHits,
    /// [`metric::ENGINE_PREFIX_HIT_SHARE`].
    PrefixHitShare,
    /// [`metric::ENGINE_PROMPT_TOKENS`].
    PromptTokens,
    /// [`metric::ENGINE_GENERATION_TOKENS`].
    GenerationTokens,
    /// [`metric::ENGINE_TTFT`].
    Ttft,
    /// [`metric::ENGINE_ITL`].
    Itl,
    /// [`metric::ENGINE_TPOT`].
    Tpot,
    /// [`metric::ENGINE_QUEUE`].
    Queue,
    /// [`metric::ENGINE_PREFILL`].
    Prefill,
    /// [`metric::ENGINE_DECODE`].
    Decode,
    /// [`metric::ENGINE_INFERENCE`].
    Inference,
    /// [`metric::ENGINE_E2E`].
    EndToEnd,
    /// [`metric::ENGINE_SPENT_QUEUE`].
    SpentQueue,
    /// [`metric::ENGINE_SPENT_PREFILL`].
    SpentPrefill,
    /// [`metric::ENGINE_SPENT_DECODE`].
    SpentDecode,
    /// [`metric::ENGINE_SPENT_INFERENCE`].
    SpentInference,
    /// [`metric::ENGINE_SPENT_REQUEST`].
    SpentRequest,
}

impl Quantity {
    /// The metric that it is exported as.
    pub const fn metric(self) -> &'static Metric {
        match self {
            Self::Running => &metric::ENGINE_RUNNING,
            Self::Waiting => &metric::ENGINE_WAITING,
            Self::Finished => &metric::ENGINE_FINISHED,
            Self::Failed => &metric::ENGINE_FAILED,
            Self::Preemptions => &metric::ENGINE_PREEMPTIONS,
            Self::KvCacheUsage => &metric::ENGINE_KV_CACHE_USAGE,
            Self::PrefixQueries => &metric::ENGINE_PREFIX_QUERIES,
            Self::PrefixHits => &metric::ENGINE_PREFIX_HITS,
            Self::PrefixHitShare => &metric::ENGINE_PREFIX_HIT_SHARE,
            Self::PromptTokens => &metric::ENGINE_PROMPT_TOKENS,
            Self::GenerationTokens => &metric::ENGINE_GENERATION_TOKENS,
            Self::Ttft => &metric::ENGINE_TTFT,
            Self::Itl => &metric::ENGINE_ITL,
            Self::Tpot => &metric::ENGINE_TPOT,
            Self::Queue => &metric::ENGINE_QUEUE,
            Self::Prefill => &metric::ENGINE_PREFILL,
            Self::Decode => &metric::ENGINE_DECODE,
            Self::Inference => &metric::ENGINE_INFERENCE,
            Self::EndToEnd => &metric::ENGINE_E2E,
            Self::SpentQueue => &metric::ENGINE_SPENT_QUEUE,
            Self::SpentPrefill => &metric::ENGINE_SPENT_PREFILL,
            Self::SpentDecode => &metric::ENGINE_SPENT_DECODE,
            Self::SpentInference => &metric::ENGINE_SPENT_INFERENCE,
            Self::SpentRequest => &metric::ENGINE_SPENT_REQUEST,
        }
    }
}

/// How a series of a server becomes a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Take {
    /// A level; those of several series are added.
    Level,
    /// A share; of several series the highest, because it is what the engine stops at.
    Highest,
    /// A total; with or without `_total` at its end. Those of several series are added.
    Total,
    /// A histogram; those of several series are added bucket by bucket.
    Histogram,
    /// The `_sum` of a histogram of counts, which is a total.
    SumOf,
}

/// One metric of a server.
#[derive(Clone, Copy, Debug)]
pub struct Source {
    /// Its name, without the suffixes that [`Take`] implies.
    pub name: &'static str,
    /// How it is read.
    pub take: Take,
    /// What its unit is in ours: 0.000001 for microseconds.
    pub scale: f64,
    /// Only series with this label of this value.
    pub only: Option<(&'static str, &'static str)>,
    /// The label that says why.
    pub reason: Option<&'static str>,
}

/// A quantity of one server.
#[derive(Clone, Copy, Debug)]
pub struct Figure {
    /// Which.
    pub is: Quantity,
    /// The names it has or had; the first one that a text has counts, the others are not looked at.
    pub sources: &'static [Source],
    /// Sources that are parts of one sum rather than names of one thing.
    pub sum: bool,
}

/// What is known of one kind of server.
#[derive(Debug)]
pub struct Server {
    /// Which.
    pub kind: Kind,
    /// What the names of its metrics begin with.
    pub prefixes: &'static [&'static str],
    /// Where its metrics are.
    pub path: &'static str,
    /// The port that it listens on unless it is told another; that of the metrics where they have one of their own.
    pub port: u16,
    /// The label that names the model.
    pub model: &'static str,
    /// The label that tells engines of one server apart; ranks that repeat each other's figures are in `same`.
    pub rank: Option<&'static str>,
    /// Labels of which only one value (or the label's absence) counts: the others repeat the figures.
    pub same: &'static [(&'static str, &'static str)],
    /// Its figures.
    pub figures: &'static [Figure],
}

const fn source(name: &'static str, take: Take) -> Source {
    Source { name, take, scale: 1.0, only: None, reason: None }
}

const fn level(name: &'static str) -> Source {
    source(name, Take::Level)
}

const fn highest(name: &'static str) -> Source {
    source(name, Take::Highest)
}

const fn total(name: &'static str) -> Source {
    source(name, Take::Total)
}

const fn histogram(name: &'static str) -> Source {
    source(name, Take::Histogram)
}

impl Source {
    const fn only(self, label: &'static str, value: &'static str) -> Self {
        Self { only: Some((label, value)), ..self }
    }

    const fn by(self, reason: &'static str) -> Self {
        Self { reason: Some(reason), ..self }
    }

    const fn times(self, scale: f64) -> Self {
        Self { scale, ..self }
    }
}

const fn figure(is: Quantity, sources: &'static [Source]) -> Figure {
    Figure { is, sources, sum: false }
}

const MICRO: f64 = 1e-6;
const MILLI: f64 = 1e-3;

/// Every server that has metrics. Ollama has none.
pub const SERVERS: &[Server] = &[
    Server {
        kind: Kind::Vllm,
        prefixes: &["vllm:"],
        path: "/metrics",
        port: 8000,
        model: "model_name",
        rank: Some("engine"),
        same: &[],
        figures: &[
            figure(Quantity::Running, &[level("vllm:num_requests_running")]),
            figure(Quantity::Waiting, &[level("vllm:num_requests_waiting")]),
            figure(Quantity::Finished, &[total("vllm:request_success").by("finished_reason")]),
            figure(Quantity::Preemptions, &[total("vllm:num_preemptions")]),
            // 0 to 1, whatever the name says.
            figure(Quantity::KvCacheUsage, &[highest("vllm:kv_cache_usage_perc"), highest("vllm:gpu_cache_usage_perc")]),
            figure(Quantity::PrefixQueries, &[total("vllm:prefix_cache_queries"), total("vllm:gpu_prefix_cache_queries")]),
            figure(Quantity::PrefixHits, &[total("vllm:prefix_cache_hits"), total("vllm:gpu_prefix_cache_hits")]),
            figure(Quantity::PromptTokens, &[total("vllm:prompt_tokens")]),
            figure(Quantity::GenerationTokens, &[total("vllm:generation_tokens")]),
            // From the front end's own arrival stamp, before the tokeniser; requests that do not stream are in it, too.
            figure(Quantity::Ttft, &[histogram("vllm:time_to_first_token_seconds")]),
            // One sample per engine step of a request; up to 0.10 it was called time per output token.
            figure(Quantity::Itl, &[histogram("vllm:inter_token_latency_seconds"), histogram("vllm:time_per_output_token_seconds")]),
            figure(Quantity::Queue, &[histogram("vllm:request_queue_time_seconds")]),
            figure(Quantity::Prefill, &[histogram("vllm:request_prefill_time_seconds")]),
            figure(Quantity::Decode, &[histogram("vllm:request_decode_time_seconds")]),
            figure(Quantity::Inference, &[histogram("vllm:request_inference_time_seconds")]),
            figure(Quantity::EndToEnd, &[histogram("vllm:e2e_request_latency_seconds")]),
        ],
    },
    Server {
        kind: Kind::Sglang,
        prefixes: &["sglang:"],
        path: "/metrics",
        port: 30000,
        model: "model_name",
        rank: Some("dp_rank"),
        // All ranks of one model instance say the same when asked to; a level per priority is a part of the one without.
        same: &[("tp_rank", "0"), ("pp_rank", "0"), ("priority", "")],
        figures: &[
            figure(Quantity::Running, &[level("sglang:num_running_reqs")]),
            figure(Quantity::Waiting, &[level("sglang:num_queue_reqs")]),
            figure(Quantity::Finished, &[total("sglang:num_requests")]),
            figure(Quantity::Failed, &[total("sglang:num_aborted_requests")]),
            figure(Quantity::Preemptions, &[total("sglang:num_retracted_requests"), total("sglang:num_retracted_reqs_total")]),
            // The fullest of its pools.
            figure(Quantity::KvCacheUsage, &[highest("sglang:token_usage")]),
            // By source of the cached tokens (device, host, storage): their sum. Prompt tokens are what was asked for.
            figure(Quantity::PrefixHits, &[total("sglang:cached_tokens")]),
            figure(Quantity::PrefixHitShare, &[highest("sglang:cache_hit_rate")]),
            // Counted when a request is finished, streaming or not.
            figure(Quantity::PromptTokens, &[total("sglang:prompt_tokens")]),
            figure(Quantity::GenerationTokens, &[total("sglang:generation_tokens")]),
            figure(Quantity::Ttft, &[histogram("sglang:time_to_first_token_seconds")]),
            // Interval / new tokens, once for each of them.
            figure(Quantity::Itl, &[histogram("sglang:inter_token_latency_seconds")]),
            figure(Quantity::Queue, &[histogram("sglang:queue_time_seconds")]),
            figure(Quantity::EndToEnd, &[histogram("sglang:e2e_request_latency_seconds")]),
        ],
    },
    Server {
        kind: Kind::TensorRtLlm,
        prefixes: &["trtllm_"],
        path: "/prometheus/metrics",
        port: 8000,
        model: "model_name",
        rank: None,
        same: &[],
        figures: &[
            figure(Quantity::Running, &[level("trtllm_num_requests_running")]),
            figure(Quantity::Waiting, &[level("trtllm_num_requests_waiting")]),
            figure(Quantity::Finished, &[total("trtllm_request_success").by("finished_reason")]),
            figure(Quantity::Failed, &[total("trtllm_request_error")]),
            figure(Quantity::KvCacheUsage, &[highest("trtllm_kv_cache_utilization")]),
            figure(Quantity::PrefixHits, &[total("trtllm_prompt_cached_tokens")]),
            figure(Quantity::PrefixHitShare, &[highest("trtllm_kv_cache_hit_rate")]),
            figure(Quantity::PromptTokens, &[total("trtllm_prompt_tokens")]),
            figure(Quantity::GenerationTokens, &[total("trtllm_generation_tokens")]),
            figure(Quantity::Ttft, &[histogram("trtllm_time_to_first_token_seconds")]),
            // Values of 0 and less are left out by the server itself, so no request of one token is in it.
            figure(Quantity::Tpot, &[histogram("trtllm_time_per_output_token_seconds")]),
            figure(Quantity::Queue, &[histogram("trtllm_request_queue_time_seconds")]),
            // On the generation server of a disaggregated pair the transfer of the KV cache is in it.
            figure(Quantity::Prefill, &[histogram("trtllm_request_prefill_time_seconds")]),
            figure(Quantity::Decode, &[histogram("trtllm_request_decode_time_seconds")]),
            figure(Quantity::Inference, &[histogram("trtllm_request_inference_time_seconds")]),
            figure(Quantity::EndToEnd, &[histogram("trtllm_e2e_request_latency_seconds")]),
        ],
    },
    Server {
        kind: Kind::Tgi,
        prefixes: &["tgi_"],
        path: "/metrics",
        port: 3000,
        model: "",
        rank: None,
        same: &[],
        figures: &[
            figure(Quantity::Running, &[level("tgi_batch_current_size")]),
            figure(Quantity::Waiting, &[level("tgi_queue_size")]),
            figure(Quantity::Finished, &[total("tgi_request_success")]),
            figure(Quantity::Failed, &[total("tgi_request_failure").by("err")]),
            // Histograms of lengths: their sums are the tokens of finished requests.
            figure(Quantity::PromptTokens, &[source("tgi_request_input_length", Take::SumOf)]),
            figure(Quantity::GenerationTokens, &[source("tgi_request_generated_tokens", Take::SumOf)]),
            figure(Quantity::Queue, &[histogram("tgi_request_queue_duration")]),
            figure(Quantity::Inference, &[histogram("tgi_request_inference_duration")]),
            figure(Quantity::EndToEnd, &[histogram("tgi_request_duration")]),
        ],
    },
    Server {
        kind: Kind::LlamaCpp,
        prefixes: &["llamacpp:"],
        path: "/metrics",
        port: 8080,
        model: "",
        rank: None,
        same: &[],
        figures: &[
            figure(Quantity::Running, &[level("llamacpp:requests_processing")]),
            figure(Quantity::Waiting, &[level("llamacpp:requests_deferred")]),
            // Taken out of llama.cpp in 2025.
            figure(Quantity::KvCacheUsage, &[highest("llamacpp:kv_cache_usage_ratio")]),
            figure(Quantity::PrefixHits, &[total("llamacpp:prompt_tokens_cached")]),
            figure(Quantity::PromptTokens, &[total("llamacpp:prompt_tokens")]),
            // Counted when a request leaves its slot.
            figure(Quantity::GenerationTokens, &[total("llamacpp:tokens_predicted")]),
            figure(Quantity::SpentPrefill, &[total("llamacpp:prompt_seconds")]),
            figure(Quantity::SpentDecode, &[total("llamacpp:tokens_predicted_seconds")]),
        ],
    },
    Server {
        kind: Kind::Triton,
        prefixes: &["nv_inference_", "nv_trt_llm_"],
        path: "/metrics",
        port: 8002,
        model: "model",
        rank: None,
        same: &[],
        figures: &[
            figure(Quantity::Running, &[level("nv_trt_llm_request_metrics").only("request_type", "active")]),
            figure(
                Quantity::Waiting,
                &[level("nv_trt_llm_request_metrics").only("request_type", "waiting"), level("nv_inference_pending_request_count")],
            ),
            // Each model of an ensemble counts each request; the model's name tells them apart.
            figure(Quantity::Finished, &[total("nv_inference_request_success")]),
            figure(Quantity::Failed, &[total("nv_inference_request_failure").by("reason")]),
            figure(Quantity::KvCacheUsage, &[highest("nv_trt_llm_kv_cache_block_metrics").only("kv_cache_block_type", "fraction")]),
            // To the first response of a model that answers in several: a chunk, not a token. Of others, their whole time.
            figure(Quantity::Ttft, &[histogram("nv_inference_first_response_histogram_ms").times(MILLI)]),
            figure(Quantity::SpentQueue, &[total("nv_inference_queue_duration_us").times(MICRO)]),
            Figure {
                is: Quantity::SpentInference,
                sources: &[
                    total("nv_inference_compute_input_duration_us").times(MICRO),
                    total("nv_inference_compute_infer_duration_us").times(MICRO),
                    total("nv_inference_compute_output_duration_us").times(MICRO),
                ],
                sum: true,
            },
            figure(Quantity::SpentRequest, &[total("nv_inference_request_duration_us").times(MICRO)]),
        ],
    },
];

/// What is known of a kind; `None` for one without metrics.
pub fn server(kind: Kind) -> Option<&'static Server> {
    SERVERS.iter().find(|s| s.kind == kind)
}

/// The server that exports a metric of that name.
pub(super) fn of_name(name: &str) -> Option<&'static Server> {
    SERVERS.iter().find(|s| s.prefixes.iter().any(|p| name.starts_with(p)))
}

/// The registry as a Markdown table, as it stands in the README.
pub fn markdown() -> String {
    let mut out = String::from("| Metric | From |\n|---|---|\n");
    let mut seen = Vec::new();
    for figure in SERVERS.iter().flat_map(|s| s.figures) {
        if seen.contains(&figure.is) {
            continue;
        }
        seen.push(figure.is);
    }
    seen.sort();
    for is in seen {
        let theirs: Vec<_> = SERVERS
            .iter()
            .flat_map(|s| s.figures)
            .filter(|f| f.is == is)
            .map(|f| f.sources.iter().map(Source::shown).collect::<Vec<_>>().join(if f.sum { " + " } else { ", else " }))
            .collect();
        out += &format!("| `{}` | {} |\n", is.metric().name, theirs.join("; "));
    }
    out
}

impl Source {
    fn shown(&self) -> String {
        let only = self.only.map(|(label, value)| format!("{{{label}=\"{value}\"}}")).unwrap_or_default();
        let suffix = match self.take {
            Take::SumOf => "_sum",
            _ => "",
        };
        format!("`{}{suffix}{only}`", self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::semconv;

    #[test]
    fn every_figure_is_of_the_kind_that_its_metric_is() {
        for server in SERVERS {
            for figure in server.figures {
                let metric = figure.is.metric();
                assert!(!figure.sources.is_empty());
                for source in figure.sources {
                    assert!(server.prefixes.iter().any(|p| source.name.starts_with(p)), "{}", source.name);
                    assert_eq!(of_name(source.name).unwrap().kind, server.kind);
                    let kind = match source.take {
                        Take::Level | Take::Highest => semconv::Kind::Gauge,
                        Take::Total | Take::SumOf => semconv::Kind::Counter,
                        Take::Histogram => semconv::Kind::Histogram,
                    };
                    assert_eq!(metric.kind, kind, "{} as {}", source.name, metric.name);
                }
            }
            let mut all: Vec<_> = server.figures.iter().map(|f| f.is).collect();
            all.sort();
            all.dedup();
            assert_eq!(all.len(), server.figures.len(), "{:?} has a figure twice", server.kind);
        }
    }

    #[test]
    fn every_kind_but_ollama_has_metrics() {
        for kind in Kind::ALL {
            assert_eq!(server(kind).is_some(), kind != Kind::Ollama);
        }
    }
}
